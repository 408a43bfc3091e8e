//! The torture behind Sentinels: the nodes reach their servers without proxies, and masters are replaced.
//!
//! The referee judges all leases as in the other variants, and the counter that is not atomic must be exact. Written
//! notes, latch counts and proclaimed values may be lost with a master. After each failover two processes must hand over
//! by push again.
//!
//! `TENURE_FAILOVER_SECONDS` is the length of the run, with a failover every 20 s. Without it there are two failovers.

use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::deployment::{Deployment, eventually, info, query, tell};
use crate::help::{Canary, ms};
use crate::server::RedisServer;
use crate::torture::faults::{Nodes, node_id};
use crate::torture::journal::now;
use crate::torture::orders::{LONG, Locked, Orders, count, counter, name};
use crate::torture::referee::{Case, Findings, Scope, Tally, Trouble, judge};
use crate::torture::{KEYS, NODES, TURN, Variant, notes, seed};

/// The time from one failover to the next.
const PACE: Duration = Duration::from_secs(20);
/// Sentinels promote no replica that has lacked its master for 10 s. Mostly a long holding begins much earlier.
const LONGEST_CUT: Duration = Duration::from_secs(4);
/// A holding that has lasted this long probably goes on.
const LONG_HOLDING: Duration = ms(200);

/// The way in which a master is replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Failover {
    /// `kill -9` of the master, with grants that no replica has. Mostly one of them is held for long.
    KillUnreplicated,
    /// `SENTINEL FAILOVER`.
    Planned,
    /// `kill -9` of the master.
    Kill,
}

const FAILOVERS: [Failover; 3] = [Failover::KillUnreplicated, Failover::Planned, Failover::Kill];

#[test]
#[ignore = "its referee is not finished: run it alone, with --ignored"]
fn torture_with_failovers() {
    let variant = Variant {
        title: "with failovers",
        locked: Locked::Everybody,
        // Leases outlive the election of a master, and its first replica.
        lease: Duration::from_secs(8),
        faults: &[],
        counter: true,
        register: false,
    };
    let span = std::env::var("TENURE_FAILOVER_SECONDS").ok();
    let span = span.map(|span| span.parse().expect("TENURE_FAILOVER_SECONDS is a number"));
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let seed = seed().unwrap_or_else(|| fastrand::u64(..1_000_000_000));
    let (summary, findings) = variant.with_failovers(seed, span.map(Duration::from_secs));
    println!("{summary}");
    assert!(findings.is_empty(), "TENURE_SEED={seed}\n{summary}\n{findings}");
}

impl Variant {
    /// Runs the nodes through two failovers, or through as many as fit into the span.
    fn with_failovers(&self, seed: u64, span: Option<Duration>) -> (String, Findings) {
        let dir = std::env::temp_dir().join(format!("tenure-failovers-{}-{seed}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).expect("a directory for the journals");
        let (canary, deployment) = (Canary::start(), Deployment::start());
        deployment.servers.iter().for_each(publish_new_keys);
        let orders = Orders {
            url: String::new(),
            sentinels: deployment.urls(),
            cluster: Vec::new(),
            register: None,
            counters: Some(dir.clone()),
            journal: Default::default(),
            seed,
            keys: KEYS,
            lease: self.lease,
            locked: self.locked,
        };
        let mut scene = Scene {
            ears: Ears::on(&deployment.servers),
            nodes: Nodes::start(orders, dir.clone(), None, NODES),
            deployment,
            troubles: Vec::new(),
            reports: Vec::new(),
        };
        let mut findings = Findings::default();
        if !scene.nodes.ready(Duration::from_secs(20)) {
            findings.add("worker", "not ready within 20 s".into());
        }
        // The first use of a server is a recovery, too.
        let first = scene.deployment.master();
        scene.until_granting(first);
        let (began, start) = (now(), Instant::now());
        scene.until_pushed(first, began);
        for n in 0.. {
            let is_over = span.map_or(n >= 2, |span| start.elapsed() >= span);
            if is_over {
                break;
            }
            let next = start + PACE * n;
            if span.is_some() {
                sleep(next.saturating_duration_since(Instant::now()));
            }
            scene.fail_over(FAILOVERS[n as usize % FAILOVERS.len()]);
        }
        let run = (began, now());
        for text in scene.nodes.finish(Duration::from_secs(60)) {
            findings.add("worker", text);
        }
        let last = &scene.deployment.servers[scene.deployment.master()];
        self.leftovers(last, &canary, &mut findings);
        let stall = canary.worst();
        let counters = (0..KEYS).map(|key| count(&counter(&dir, key)));
        let case = Case {
            journals: scene.nodes.journals.clone(),
            keys: KEYS,
            exclusive: (0..KEYS).chain([scene.nodes.orders.election_key()]).collect(),
            run,
            failovers: scene
                .troubles
                .iter()
                .map(|trouble| (trouble.from, trouble.to))
                .collect(),
            troubles: scene.troubles.clone(),
            bound: self.bound() + 2 * stall + ms(250),
            losses: true,
            counters: Some(counters.collect()),
            notes: (0..KEYS).map(|key| notes::written(last, key)).collect(),
        };
        let (tally, found) = judge(&case);
        findings.append(found);
        let used = [
            tally.shared,
            tally.downgrades,
            tally.looks,
            tally.notes,
            tally.zeros,
            tally.leaders_seen,
        ];
        if used.contains(&0) {
            findings.add("primitives that were not used", format!("{used:?}"));
        }
        if scene.reports.iter().all(|report| report.asserted == 0) {
            findings.add("no lease was asserted", String::new());
        }
        let summary = scene.summary(self, seed, run, &tally, stall);
        if findings.is_empty() {
            let _ = std::fs::remove_dir_all(&dir);
        } else {
            findings.add("where to look", dir.display().to_string());
        }
        (summary, findings)
    }
}

struct Scene {
    // The nodes end before their servers.
    nodes: Nodes,
    ears: Ears,
    deployment: Deployment,
    troubles: Vec<Trouble>,
    reports: Vec<Report>,
}

/// What happened at a failover.
struct Report {
    failover: Failover,
    /// From its begin until the Sentinels agree on the new master, and until that grants.
    promoted: Duration,
    granting: Duration,
    /// Records that nodes wrote again.
    asserted: usize,
    /// Grants that were pushed after that, until two processes had one.
    pushes: usize,
}

impl Scene {
    fn fail_over(&mut self, failover: Failover) {
        self.deployment.settle();
        let master = self.deployment.master();
        if failover == Failover::KillUnreplicated {
            self.deployment.cut_replication();
            let server = &self.deployment.servers[master];
            let (known, end) = (holder(server), Instant::now() + LONGEST_CUT);
            eventually("a holding that no replica knows", || {
                let holds = holder(server).filter(|holder| known.as_ref() != Some(holder));
                sleep(LONG_HOLDING);
                let is_held = holds.is_some() && holder(server) == holds;
                (is_held || Instant::now() > end).then_some(())
            });
        }
        let from = now();
        let since = || Duration::from_nanos(now() - from);
        let old = match failover {
            Failover::KillUnreplicated | Failover::Kill => self.deployment.kill_master(),
            Failover::Planned => self.deployment.fail_over(),
        };
        if failover == Failover::KillUnreplicated {
            self.deployment.heal_replication();
        }
        let new = self.deployment.promoted(old);
        let promoted = since();
        self.until_granting(new);
        let granting = since();
        let to = now();
        self.troubles.push(Trouble {
            from,
            to,
            scope: Scope::Everybody,
        });
        let asserted = self.ears.asserted(new, from, to);
        let pushes = self.until_pushed(new, to);
        self.reports.push(Report {
            failover,
            promoted,
            granting,
            asserted,
            pushes,
        });
        if failover != Failover::Planned {
            self.deployment.rejoin(old);
            publish_new_keys(&self.deployment.servers[old]);
        }
    }

    /// Waits until a node has compared the runs of the server, and its recovery is over.
    fn until_granting(&self, server: usize) {
        let server = &self.deployment.servers[server];
        eventually("the server grants", || {
            let run = format!("{}:{}", info(server, "run_id"), info(server, "master_replid"));
            let recorded = query::<Option<String>>(server, &["GET", "tenure1:run"]).ok()??;
            let recovers = query::<u8>(server, &["EXISTS", "tenure1:recovering"]).ok()?;
            (recorded == run && recovers == 0).then_some(())
        });
    }

    /// Waits until two of the processes are told of grants by the server. Returns the number of all such messages.
    fn until_pushed(&mut self, server: usize, since: u64) -> usize {
        let nodes: BTreeSet<String> = self
            .nodes
            .journals
            .iter()
            .filter_map(|(_, path)| node_id(path))
            .collect();
        eventually("two processes hand over by push", || {
            let pushes = self.ears.pushes(server, since);
            let told: BTreeSet<&String> = pushes.iter().filter(|node| nodes.contains(*node)).collect();
            (told.len() >= 2).then_some(pushes.len())
        })
    }

    fn summary(
        &self,
        variant: &Variant,
        seed: u64,
        run: (u64, u64),
        tally: &Tally,
        stall: Duration,
    ) -> String {
        let reports = self.reports.iter().map(|report| {
            let Report {
                failover,
                promoted,
                granting,
                asserted,
                pushes,
            } = report;
            format!(
                "\n\x20 {failover:?}: promoted after {promoted:?}, granting after {granting:?}; {asserted} asserted, \
                 then {pushes} grants pushed"
            )
        });
        let asserted: usize = self.reports.iter().map(|report| report.asserted).sum();
        format!(
            "torture {}: TENURE_SEED={seed}, {} s, {} processes{}\n\
             \x20 {} grants, {} hand-overs between processes, {asserted} assertions, \
             {} lost, longest pause {:?}\n\
             \x20 {} increments, {} shared, {} downgraded, {} noted, {} latches, {} told of zero, {} leaders seen\n\
             \x20 misses {:?}\n\x20 errors {:?}\n\x20 events {:?}\n\
             \x20 largest stall {stall:?}, worst recovery {:?}",
            variant.title,
            Duration::from_nanos(run.1 - run.0).as_secs(),
            self.nodes.journals.len(),
            reports.collect::<String>(),
            tally.grants,
            tally.hand_overs,
            tally.lost,
            tally.longest_pause,
            tally.increments,
            tally.shared,
            tally.downgrades,
            tally.notes,
            tally.latches,
            tally.zeros,
            tally.leaders_seen,
            tally.misses,
            tally.errors,
            tally.events,
            tally.worst_recovery,
        )
    }
}

/// Lets the server publish a message about each new key.
fn publish_new_keys(server: &RedisServer) {
    tell(server, &["CONFIG", "SET", "notify-keyspace-events", "En"]);
}

/// Returns the holder of the key with long holdings: its owner, or one of its readers.
fn holder(server: &RedisServer) -> Option<String> {
    let key = format!("lock:{}", name(LONG));
    query::<Option<String>>(server, &["GET", &key]).unwrap_or_else(|_| {
        let readers = query::<Vec<String>>(server, &["ZRANGE", &key, "0", "0"]);
        readers.ok()?.into_iter().next()
    })
}

/// What the servers publish. A replica also publishes what its master does.
struct Ears {
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
    fn on(servers: &[RedisServer]) -> Ears {
        let (sender, receiver) = channel();
        let alive = Arc::new(());
        for (at, server) in servers.iter().enumerate() {
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
    fn pushes(&mut self, server: usize, since: u64) -> Vec<String> {
        let is_grant = |text: &str| !text.starts_with("1 changed ") && !text.starts_with("1 latch ");
        let pushes = self
            .heard(server)
            .filter(|heard| heard.at > since && is_grant(&heard.text));
        let nodes = pushes.filter_map(|heard| heard.channel.strip_prefix("tenure1:n:"));
        nodes.map(str::to_owned).collect()
    }

    /// Returns how many records the server got while it granted nothing. Each is an assertion.
    fn asserted(&mut self, server: usize, from: u64, to: u64) -> usize {
        let is_record = |key: &str| {
            let names = ["lock:", "tenure1:s:", "tenure1:e:"];
            names.iter().any(|name| key.starts_with(name))
        };
        let new = self.heard(server).filter(|heard| heard.channel.ends_with(":new"));
        let new = new.filter(|heard| (from..to).contains(&heard.at));
        // Before that it may still be a replica.
        let new = new.skip_while(|heard| heard.text != "tenure1:recovering");
        new.filter(|heard| is_record(&heard.text)).count()
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
    subscription.psubscribe(&["tenure1:n:*", "__keyevent@0__:new"])?;
    subscription.set_read_timeout(Some(ms(200)))?;
    while is_alive() {
        match subscription.get_message() {
            Ok(message) => {
                let heard = Heard {
                    at: now(),
                    server: at,
                    channel: message.get_channel_name().to_owned(),
                    text: String::from_utf8_lossy(message.get_payload_bytes()).into_owned(),
                };
                if sender.send(heard).is_err() {
                    return Ok(());
                }
            }
            Err(error) if error.is_timeout() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
