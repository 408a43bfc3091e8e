//! The masters of a quorum, each behind a wire, and the round trips of a lock and its release on them.

use std::time::{Duration, Instant};

use tenure::Locks;

use super::server::RedisServer;
use super::wire::Wire;
use super::{Raw, Report, Target, is_quick, median};

pub const DELAY: Duration = Duration::from_micros(250);
/// The locks of a round. Each has a key of its own.
const CYCLES: usize = 20;

/// Masters that recover no more, each behind its wire.
pub struct Masters {
    servers: Vec<RedisServer>,
    wires: Vec<Wire>,
    raw: Vec<Raw>,
}

/// What was measured, in seconds: round trips of a PING, locks and releases.
#[derive(Default)]
pub struct Trips {
    pub pings: Vec<f64>,
    pub locks: Vec<f64>,
    pub releases: Vec<f64>,
}

impl Trips {
    pub fn report(self, report: &mut Report, what: &str, most: Target) {
        let trip = median(self.pings);
        let [lock, release] = [self.locks, self.releases].map(|taken| median(taken) / trip);
        let worse = lock.max(release);
        let values = [("lock", lock), ("release", release), ("ms per trip", trip * 1e3)];
        report.line(what, worse, most, &values);
    }
}

/// Returns locks on the masters at these URLs.
async fn quorum(urls: &[String]) -> Locks {
    let hosts: Vec<_> = urls
        .iter()
        .map(|url| url.trim_start_matches("redis://").trim_end_matches('/'))
        .collect();
    let url = format!("redis+quorum://{}", hosts.join(","));
    Locks::connect(&url).await.expect("the masters")
}

impl Masters {
    pub async fn start(count: usize) -> Masters {
        let servers: Vec<_> = (0..count).map(|_| RedisServer::as_service()).collect();
        let wires: Vec<_> = servers
            .iter()
            .map(|server| Wire::start(server.port(), DELAY))
            .collect();
        let urls: Vec<_> = wires.iter().map(Wire::url).collect();
        drop(quorum(&urls).await);
        let mut raw = Vec::new();
        for server in &servers {
            let mut master = Raw::connect(&server.url()).await;
            // No lease was granted by it before.
            master
                .run::<()>(redis::cmd("DEL").arg("tenure1:recovering"))
                .await;
            raw.push(master);
        }
        Masters { servers, wires, raw }
    }

    pub fn urls(&self) -> Vec<String> {
        self.wires.iter().map(Wire::url).collect()
    }

    pub async fn forget_stats(&mut self) {
        for master in &mut self.raw {
            master.forget_stats().await;
        }
    }

    /// Returns the calls of a command at all masters since `forget_stats`.
    pub async fn calls(&mut self, command: &str) -> f64 {
        let mut calls = 0.0;
        for master in &mut self.raw {
            calls += master.stats(|name| name == command).await.0;
        }
        calls
    }

    /// Stops the last master, which then accepts connections and answers nothing.
    pub fn mute_one(&self) {
        self.servers.last().expect("a master").freeze();
    }

    pub fn unmute(&self) {
        self.servers.last().expect("a master").thaw();
    }

    /// Measures `cycle`, which returns how long a lock and its release took. The PINGs are sent in between, to the first
    /// master, one after the other: a core that went to sleep takes longer to answer.
    pub async fn trips(&self, mut cycle: impl AsyncFnMut(String) -> [Duration; 2]) -> Trips {
        let mut raw = Raw::connect(&self.wires[0].url()).await;
        let mut trips = Trips::default();
        for round in 0..=if is_quick() { 2 } else { 60 } {
            let ping = raw.ping(CYCLES).await.as_secs_f64();
            for n in 0..CYCLES {
                let [lock, release] = cycle(format!("{round}:{n}")).await;
                // The first round loads scripts and warms up caches.
                if round > 0 {
                    trips.locks.push(lock.as_secs_f64());
                    trips.releases.push(release.as_secs_f64());
                }
            }
            trips.pings.push(ping);
        }
        trips
    }

    /// Measures tenure.
    pub async fn tenure(&self, locks: &Locks) -> Trips {
        self.trips(async |key| {
            let start = Instant::now();
            let guard = locks.mutex(key).lock().await.expect("a lock");
            let lock = start.elapsed();
            let start = Instant::now();
            guard.release().await.expect("still held");
            [lock, start.elapsed()]
        })
        .await
    }

    /// Measures the limit of the work: a PING is sent to each master, and a majority answers.
    pub async fn pings(&self) -> Trips {
        let mut raw = Vec::new();
        for url in self.urls() {
            raw.push(Raw::connect(&url).await);
        }
        let majority = raw.len() / 2 + 1;
        self.trips(async |_| {
            let mut taken = [Duration::ZERO; 2];
            for taken in &mut taken {
                let start = Instant::now();
                let (tell, mut answers) = tokio::sync::mpsc::unbounded_channel();
                for raw in &raw {
                    let (mut raw, tell) = (raw.clone(), tell.clone());
                    tokio::spawn(async move {
                        raw.run::<()>(&redis::cmd("PING")).await;
                        let _ = tell.send(());
                    });
                }
                for _ in 0..majority {
                    answers.recv().await.expect("an answer");
                }
                *taken = start.elapsed();
            }
            taken
        })
        .await
    }

    /// Returns how many of 100 locks needed a second trip. A lock and its release are two script calls at each master; a second
    /// trip is one more at some.
    pub async fn second_trips(&mut self, locks: &Locks) -> f64 {
        let count = if is_quick() { 100 } else { 2_000 };
        self.forget_stats().await;
        for n in 0..count {
            let guard = locks.mutex(("second", n)).lock().await.expect("a lock");
            guard.release().await.expect("still held");
        }
        // A slow master may not have executed its last request yet. Each request of this lock comes later.
        locks
            .mutex("last")
            .lock()
            .await
            .expect("a lock")
            .release()
            .await
            .expect("still held");
        let calls = self.calls("evalsha").await;
        let masters = self.servers.len();
        (calls - (2 * (count + 1) * masters) as f64).max(0.0) / count as f64 * 100.0
    }
}

/// Measures tenure on three masters, on three of which one is mute, and on five.
pub async fn tenure(report: &mut Report) -> Masters {
    let mut three = Masters::start(3).await;
    let locks = quorum(&three.urls()).await;
    report.section("behind 0.25 ms each way: round trips of a PING, medians, of a lock or of its release");
    let most = Target::AtMost(1.3);
    let what = "PINGs to three masters, until two have answered";
    three.pings().await.report(report, what, Target::None);
    three.tenure(&locks).await.report(report, "three masters", most);
    let second = three.second_trips(&locks).await;
    report.line(
        "locks of 100 that need a second trip",
        second,
        Target::AtMost(1.0),
        &[],
    );
    three.mute_one();
    three
        .tenure(&locks)
        .await
        .report(report, "three masters, one of them mute", most);
    three.unmute();
    let five = Masters::start(5).await;
    let locks = quorum(&five.urls()).await;
    let what = "PINGs to five masters, until three have answered";
    five.pings().await.report(report, what, Target::None);
    five.tenure(&locks)
        .await
        .report(report, "five masters", Target::None);
    three
}
