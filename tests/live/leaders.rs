//! Three processes are candidates in one election on one Redis. They are killed, stopped, cut off and terminated, and the
//! server is restarted. No two lead at once by the machine's clock, and a leader is elected again in time.
//!
//! `TENURE_LEADERS_SECONDS=300` makes the run long and the bounds strict. Run it so from time to time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tenure::{Error, Lease};
use tokio::signal::unix::{SignalKind, signal};

use crate::help::{Other, PATIENCE, addr, ms, now, url};
use crate::server::RedisServer;
use crate::support::proxy::{Direction, Flow, Proxy};

const LEASE: Duration = ms(2_000);

/// Returns the length of the run, and the allowance that a busy machine adds to each bound.
fn span() -> Duration {
    let seconds = std::env::var("TENURE_LEADERS_SECONDS").ok();
    seconds.map_or(ms(15_000), |seconds| {
        Duration::from_secs(seconds.parse().expect("a number of seconds"))
    })
}

/// Prints a line by one write, so that a kill leaves no half lines.
fn say(what: &str, fence: u64, at: Duration) {
    println!("@{what} {fence} {}", at.as_nanos());
}

/// Not a test: the entry point of the process that [`Replica`] starts.
#[test]
fn is_a_replica() {
    let (Ok(url), Ok(name)) = (
        std::env::var("TENURE_LEADERS_URL"),
        std::env::var("TENURE_LEADERS_NAME"),
    ) else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    runtime.unwrap().block_on(async {
        let builder = crate::help::builder().lease(LEASE).request_timeout(ms(500));
        let locks = builder.node_name(name).lazy().connect(&url).await.unwrap();
        let election = locks.election("relay");
        let mut term = signal(SignalKind::terminate()).unwrap();
        let mut observer = election.observe();
        tokio::spawn(async move {
            loop {
                match observer.next().await {
                    Ok(leader) => say("sees", leader.map_or(0, |leader| leader.fence().get()), now()),
                    Err(Error::Closed { .. }) => return,
                    // The store is unavailable. The observer asks again after a pause.
                    Err(_) => {}
                }
            }
        });
        let work = |lease: Lease| async move {
            loop {
                // The clock is read first: a process that is stopped in between reports a moment before the stop.
                let at = now();
                if lease.is_held() {
                    say("leads", lease.fence().get(), at);
                }
                tokio::time::sleep(ms(5)).await;
            }
        };
        tokio::select! {
            ended = election.lead(work) => ended.unwrap(),
            _ = term.recv() => {}
        }
        locks.shutdown().await;
    });
}

#[derive(Debug, Clone, Copy)]
struct Line {
    who: usize,
    leads: bool,
    fence: u64,
    at: Duration,
}

/// The lines of all replicas.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<Line>>>);

impl Heard {
    /// Polls the lines until there is an answer.
    fn until<T>(&self, what: &str, so: impl Fn(&[Line]) -> Option<T>) -> T {
        let began = Instant::now();
        loop {
            let lines = self.0.lock().unwrap().clone();
            if let Some(answer) = so(&lines) {
                return answer;
            }
            let from = lines.len().saturating_sub(40);
            assert!(
                began.elapsed() < PATIENCE,
                "timed out waiting for: {what}: {:#?}",
                &lines[from..]
            );
            std::thread::sleep(ms(5));
        }
    }

    /// Waits for the first leader with a larger fence.
    fn next(&self, fence: u64) -> Line {
        self.until("a replica leads", |lines| {
            let mut lines = lines.iter();
            lines.find(|line| line.leads && line.fence > fence).copied()
        })
    }

    /// Waits for a current leader with a larger fence.
    fn present(&self, fence: u64) -> Line {
        self.until("a replica leads now", |lines| {
            let mut lines = lines.iter().rev();
            let latest = lines.find(|line| line.leads && line.fence > fence);
            latest.filter(|line| line.at + ms(300) > now()).copied()
        })
    }

    /// Returns when this replica saw that leader, or a later one.
    fn saw(&self, who: usize, fence: u64) -> Duration {
        self.until("the replica sees the leader", |lines| {
            let mut lines = lines.iter();
            let saw = lines.find(|line| !line.leads && line.who == who && line.fence >= fence);
            saw.map(|line| line.at)
        })
    }
}

/// A candidate process behind its own proxy.
struct Replica {
    who: usize,
    wire: Proxy,
    process: Other,
    heard: Heard,
}

impl Replica {
    fn start(who: usize, server: &RedisServer, heard: &Heard) -> Replica {
        let wire = Proxy::start(addr(server));
        let process = Self::spawn(who, &wire, heard);
        Replica {
            who,
            wire,
            process,
            heard: heard.clone(),
        }
    }

    fn spawn(who: usize, wire: &Proxy, heard: &Heard) -> Other {
        let mut command = Other::door("leaders::is_a_replica");
        command.env("TENURE_LEADERS_URL", url(wire.addr()));
        command.env("TENURE_LEADERS_NAME", format!("replica-{who}"));
        let heard = heard.clone();
        Other::runs(command).told_to(move |words| {
            if let [what, fence, at] = *words {
                heard.0.lock().unwrap().push(Line {
                    who,
                    leads: what == "leads",
                    fence: fence.parse().unwrap(),
                    at: Duration::from_nanos(at.parse().unwrap()),
                });
            }
        })
    }

    fn again(&mut self) {
        self.process.kill();
        self.process = Self::spawn(self.who, &self.wire, &self.heard);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    Kill,
    Term,
    Stop,
    CutOff,
    Restart,
}

impl Fault {
    const ALL: [Fault; 5] = [
        Fault::Kill,
        Fault::Term,
        Fault::Stop,
        Fault::CutOff,
        Fault::Restart,
    ];

    fn begins(self, leader: &mut Replica, server: &mut RedisServer) {
        match self {
            Fault::Kill => leader.process.kill(),
            Fault::Term => leader.process.signal("-TERM"),
            Fault::Stop => leader.process.signal("-STOP"),
            Fault::CutOff => leader.wire.set(Direction::Both, Flow::Hold),
            Fault::Restart => {
                server.kill();
                std::thread::sleep(ms(fastrand::u64(0..500)));
                server.restart();
            }
        }
    }

    fn ends(self, leader: &mut Replica) {
        match self {
            Fault::Kill | Fault::Term => leader.again(),
            Fault::Stop => leader.process.signal("-CONT"),
            Fault::CutOff => {
                // The bytes of the leader arrive late, or never.
                if fastrand::bool() {
                    leader.wire.discard();
                }
                leader.wire.heal();
            }
            Fault::Restart => {}
        }
    }
}

#[test]
fn no_two_lead_at_once_and_a_new_leader_comes() {
    let span = span();
    let mut server = RedisServer::with_args(&["--appendonly", "yes", "--appendfsync", "always"]);
    let heard = Heard::default();
    let mut replicas: Vec<_> = (0..3).map(|who| Replica::start(who, &server, &heard)).collect();
    let (began, mut rounds) = (Instant::now(), 0);
    let (mut took, mut seen): (BTreeMap<Fault, Duration>, BTreeMap<Fault, Duration>) = Default::default();
    let mut fence = 0;
    while began.elapsed() < span || rounds < Fault::ALL.len() {
        // Each fault once, then random ones.
        let any = Fault::ALL[fastrand::usize(..Fault::ALL.len())];
        let fault = Fault::ALL.get(rounds).copied().unwrap_or(any);
        rounds += 1;
        let leader = heard.present(fence);
        for replica in &replicas {
            heard.saw(replica.who, leader.fence);
        }
        std::thread::sleep(ms(fastrand::u64(0..1_500)));
        let blow = now();
        fault.begins(&mut replicas[leader.who], &mut server);
        if fault == Fault::Restart {
            // The same leader may continue.
            let leads = heard.until("a replica leads", |lines| {
                let mut lines = lines.iter();
                lines.find(|line| line.leads && line.at > blow + ms(600)).copied()
            });
            fence = leads.fence - 1;
            continue;
        }
        let next = heard.next(leader.fence);
        let after = next.at.saturating_sub(blow);
        took.entry(fault)
            .and_modify(|worst| *worst = after.max(*worst))
            .or_insert(after);
        for replica in replicas.iter().filter(|replica| replica.who != leader.who) {
            let lag = heard.saw(replica.who, next.fence).saturating_sub(next.at);
            seen.entry(fault)
                .and_modify(|worst| *worst = lag.max(*worst))
                .or_insert(lag);
        }
        fault.ends(&mut replicas[leader.who]);
        judge(&heard);
        fence = leader.fence;
    }
    drop(replicas);
    let leaders = judge(&heard);
    assert!(leaders * 2 > rounds, "{leaders} led");
    println!(
        "{rounds} faults in {:?}; worst until a replica led: {took:.2?}, until all saw the leader: {seen:.2?}",
        began.elapsed()
    );
}

/// Checks that each fence has one leader, which ended before the next began. Returns the number of leaders.
fn judge(heard: &Heard) -> usize {
    let lines = heard.0.lock().unwrap();
    let mut terms: BTreeMap<u64, (usize, Duration, Duration)> = BTreeMap::new();
    for line in lines.iter().filter(|line| line.leads) {
        let (who, first, last) = terms.entry(line.fence).or_insert((line.who, line.at, line.at));
        assert_eq!(*who, line.who, "two lead with the fence {}", line.fence);
        (*first, *last) = (line.at.min(*first), line.at.max(*last));
    }
    let in_order: Vec<_> = terms.into_iter().collect();
    for two in in_order.windows(2) {
        let ((_, (_, _, last)), (_, (_, first, _))) = (two[0], two[1]);
        assert!(last < first, "two lead at once: {two:?}");
    }
    in_order.len()
}
