//! What the servers publish: messages to the nodes, messages about their keys, and the promotions of Sentinels.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::sleep;

use crate::deployment::tell;
use crate::help::ms;
use crate::server::RedisServer;
use crate::torture::journal::now;

/// Lets the server publish a message about each key that it creates or deletes.
pub fn publish_keys(server: &RedisServer) {
    tell(server, &["CONFIG", "SET", "notify-keyspace-events", "Eng"]);
}

/// The beginning of the channels about keys.
const CHANGES: &str = "__keyevent@0__:";

/// Instead of a channel: the ears are open, at first or again. A Sentinel closes them when it promotes the server.
const OPEN: &str = "open";

/// The channel of a Sentinel about a new master.
const SWITCHES: &str = "+switch-master";

/// What the servers and their Sentinels publish. A replica also publishes what its master does.
pub struct Ears {
    heard: Vec<Heard>,
    receiver: Receiver<Heard>,
    /// The threads end when this is dropped.
    _alive: Arc<()>,
}

struct Heard {
    at: u64,
    server: usize,
    channel: String,
    text: String,
}

impl Ears {
    /// Sentinels come after the servers.
    pub fn on<'a>(servers: impl Iterator<Item = &'a RedisServer>) -> Ears {
        let (sender, receiver) = channel();
        let alive = Arc::new(());
        for (at, server) in servers.enumerate() {
            let (sender, url, alive) = (sender.clone(), server.url(), Arc::downgrade(&alive));
            std::thread::spawn(move || {
                while alive.strong_count() > 0 {
                    // Fails while the server is dead, and when its role changes: a Sentinel ends its connections then.
                    let _ = listen(at, &url, &sender, || alive.strong_count() > 0);
                    sleep(ms(5));
                }
            });
        }
        Ears {
            heard: Vec::new(),
            receiver,
            _alive: alive,
        }
    }

    fn heard(&mut self, server: usize) -> impl Iterator<Item = &Heard> {
        self.heard.extend(self.receiver.try_iter());
        self.heard.iter().filter(move |heard| heard.server == server)
    }

    /// Returns the nodes that the master told of grants.
    pub fn pushes(&mut self, server: usize, since: u64) -> Vec<String> {
        let is_grant = |text: &str| !text.starts_with("1 changed ") && !text.starts_with("1 latch ");
        let pushes = self
            .heard(server)
            .filter(|heard| heard.at > since && is_grant(&heard.text));
        let nodes = pushes.filter_map(|heard| heard.channel.strip_prefix("tenure1:n:"));
        nodes.map(str::to_owned).collect()
    }

    /// Returns when Sentinels told of another master.
    pub fn switches(&mut self) -> Vec<u64> {
        self.heard.extend(self.receiver.try_iter());
        let switches = self.heard.iter().filter(|heard| heard.channel == SWITCHES);
        switches.map(|heard| heard.at).collect()
    }

    /// Returns how many records the server got while it granted nothing, except where it had a record before. Each is an
    /// assertion.
    pub fn asserted(&mut self, server: usize, from: u64, to: u64) -> usize {
        let is_record = |key: &str| {
            let names = ["lock:", "tenure1:s:", "tenure1:e:"];
            names.iter().any(|name| key.starts_with(name))
        };
        let heard = self.heard(server);
        let heard = heard.filter(|heard| (from..to).contains(&heard.at));
        // Before that it may still be a replica. Its recovery may begin before the ears are open again.
        let heard = heard.skip_while(|heard| heard.channel != OPEN && heard.text != "tenure1:recovering");
        let changes = heard.filter(|heard| heard.channel.starts_with(CHANGES));
        let mut known = BTreeSet::new();
        let first = changes.filter(|heard| is_record(&heard.text) && known.insert(&heard.text));
        first.filter(|heard| heard.channel.ends_with(":new")).count()
    }
}

/// Passes on what the server publishes, until its connection ends.
fn listen(
    at: usize,
    url: &str,
    sender: &Sender<Heard>,
    is_alive: impl Fn() -> bool,
) -> redis::RedisResult<()> {
    let mut connection = redis::Client::open(url)?.get_connection_with_timeout(ms(1_000))?;
    let mut subscription = connection.as_pubsub();
    subscription.psubscribe(&["tenure1:n:*", &*format!("{CHANGES}*"), SWITCHES])?;
    subscription.set_read_timeout(Some(ms(200)))?;
    let send = |channel: &str, payload: &[u8]| {
        let heard = Heard {
            at: now(),
            server: at,
            channel: channel.to_owned(),
            text: String::from_utf8_lossy(payload).into_owned(),
        };
        // Fails when the ears are dropped. The loop then ends.
        let _ = sender.send(heard);
    };
    send(OPEN, b"");
    while is_alive() {
        match subscription.get_message() {
            Ok(message) => send(message.get_channel_name(), message.get_payload_bytes()),
            Err(error) if error.is_timeout() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
