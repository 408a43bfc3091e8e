//! What locks cost on a Redis Cluster of three masters, beside one server, both behind a wire of 0.25 ms each way: round trips
//! and script calls of a lock and its release, and round trips of a hand-over, whose message travels on the cluster's bus.
//!
//! The masters announce the ports of their wires to clients. The bus has no wire. Needs Redis 7.0, whose announced ports can
//! be set.
#![allow(clippy::too_many_lines, clippy::type_complexity, clippy::disallowed_methods)]

mod support;

use std::time::{Duration, Instant};

use support::server::RedisServer;
use support::wire::{self, Wire};
use support::{Raw, Report, Target, median};
use tenure::Locks;

const DELAY: Duration = Duration::from_micros(250);
const MASTERS: usize = 3;
/// The locks of a round.
const CYCLES: usize = 20;
const SLOTS: usize = 16_384;
/// What each server of the cluster starts with.
const SERVER: [&str; 4] = ["--cluster-enabled", "yes", "--cluster-announce-ip", "127.0.0.1"];

fn main() {
    wire::serve_if_asked();
    if !support::is_wanted() {
        return;
    }
    let mut report = Report::new("cluster");
    support::runtime().block_on(compare(&mut report));
    report.write(env!("CARGO_TARGET_TMPDIR"));
}

/// A server behind its wire.
struct Place {
    server: RedisServer,
    wire: Wire,
}

impl Place {
    fn new(server: RedisServer) -> Self {
        let wire = Wire::start(server.port(), DELAY);
        Place { server, wire }
    }

    fn wire_port(&self) -> String {
        let url = self.wire.url();
        let digits = url.trim_end_matches('/').rsplit(':').next();
        digits.expect("a URL with a port").to_owned()
    }
}

/// Runs a command until its answer is as wanted.
fn until(server: &RedisServer, words: &[&str], is_wanted: impl Fn(&str) -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let answer: redis::Value = redis::cmd(words[0])
            .arg(&words[1..])
            .query(&mut server.client())
            .expect("the server answers");
        let text = format!("{answer:?}");
        if is_wanted(&text) {
            return;
        }
        assert!(Instant::now() < end, "{words:?}: {text}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn start_cluster() -> Vec<Place> {
    let places: Vec<Place> = (0..MASTERS)
        .map(|_| Place::new(RedisServer::with_args(&SERVER)))
        .collect();
    for (at, place) in places.iter().enumerate() {
        let (first, end) = (at * SLOTS / MASTERS, (at + 1) * SLOTS / MASTERS);
        let range = [first.to_string(), (end - 1).to_string()];
        let epoch = (at + 1).to_string();
        for words in [
            ["CONFIG", "SET", "cluster-announce-port", &place.wire_port()],
            ["CLUSTER", "SET-CONFIG-EPOCH", &epoch, ""],
            ["CLUSTER", "ADDSLOTSRANGE", &range[0], &range[1]],
        ] {
            let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
            until(&place.server, &words, |_| true);
        }
        for other in &places[..at] {
            let port = other.server.port().to_string();
            let bus = (other.server.port() + 10_000).to_string();
            until(
                &place.server,
                &["CLUSTER", "MEET", "127.0.0.1", &port, &bus],
                |_| true,
            );
        }
    }
    for place in &places {
        until(&place.server, &["CLUSTER", "INFO"], |info| {
            info.contains("cluster_state:ok") && info.contains("cluster_slots_ok:16384")
        });
        // The ports of the wires spread as gossip does. Without them the locks would go around a wire.
        until(&place.server, &["CLUSTER", "SLOTS"], |slots| {
            places.iter().all(|place| slots.contains(&place.wire_port()))
        });
    }
    places
}

async fn compare(report: &mut Report) {
    let (cluster, single) = (start_cluster(), Place::new(RedisServer::as_service()));
    let seed = cluster[0].wire.url();
    let pairs = [
        [
            Locks::connect(&single.wire.url()).await.expect("one server"),
            Locks::connect(&single.wire.url()).await.expect("one server"),
        ],
        [
            Locks::connect(&seed.replace("redis://", "redis+cluster://"))
                .await
                .expect("the cluster"),
            Locks::connect(&seed.replace("redis://", "redis+cluster://"))
                .await
                .expect("the cluster"),
        ],
    ];
    let mut raw = Raw::connect(&single.wire.url()).await;
    let rounds = if support::is_quick() { 2 } else { 60 };
    let mut masters = Vec::new();
    for place in &cluster {
        masters.push(Raw::connect(&place.server.url()).await);
    }
    let (mut trips, mut calls) = (Vec::new(), 0.0);
    let mut spread = [Vec::new(), Vec::new()];
    let (mut cycles, mut hand_overs) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    for round in 0..=rounds {
        for (at, [one, other]) in pairs.iter().enumerate() {
            for master in &mut masters {
                master.forget_stats().await;
            }
            // One after the other, as the pings: a core that went to sleep takes longer to answer.
            trips.push(raw.ping(CYCLES).await.as_secs_f64());
            let mut cycle = [Vec::new(), Vec::new()];
            for (taken, tag) in cycle.iter_mut().zip(["{a}", ""]) {
                for n in 0..CYCLES {
                    let start = Instant::now();
                    let guard = one
                        .mutex(format!("{tag}{round}:{n}"))
                        .lock()
                        .await
                        .expect("a lock");
                    guard.release().await.expect("still held");
                    taken.push(start.elapsed().as_secs_f64());
                }
            }
            for master in &mut masters {
                calls += master.stats(|name| name == "evalsha").await.0;
            }
            let guard = one.mutex(("handed over", round)).lock().await.expect("a lock");
            let next = tokio::spawn(other.mutex(("handed over", round)).lock());
            while other.waiter_count() == 0 {
                tokio::task::yield_now().await;
            }
            // The claim is in the queue by then.
            tokio::time::sleep(4 * DELAY).await;
            let start = Instant::now();
            let released = tokio::spawn(guard.release());
            let next = next.await.expect("no panic").expect("a lock");
            let handed = start.elapsed().as_secs_f64();
            released.await.expect("no panic").expect("still held");
            next.release().await.expect("still held");
            // The first round loads scripts and warms up caches.
            if round > 0 {
                let [of_one_slot, of_all] = cycle;
                cycles[at].extend(of_one_slot);
                spread[at].extend(of_all);
                hand_overs[at].push(handed);
            } else {
                calls = 0.0;
            }
        }
    }
    report.section("behind 0.25 ms each way: round trips of a PING, medians");
    let trip = median(trips);
    let [single, of_cluster] = cycles.map(|cycles| median(cycles) / trip);
    let values = [("one server", single)];
    report.line(
        "a lock and its release, keys of one slot",
        of_cluster,
        Target::AtMost(2.2),
        &values,
    );
    // Three servers and their wires sleep in turn. A process that went to sleep takes longer to answer.
    let [single, of_cluster] = spread.map(|cycles| median(cycles) / trip);
    report.line(
        "the same, keys of all slots",
        of_cluster,
        Target::None,
        &[("one server", single)],
    );
    report.line(
        "script calls of a lock and its release, cluster",
        calls / (2 * rounds * CYCLES) as f64,
        Target::AtMost(2.0),
        &[],
    );
    let [single, of_cluster] = hand_overs.map(|taken| median(taken) / trip);
    let values = [("one server", single)];
    report.line("a hand-over, cluster", of_cluster, Target::None, &values);
}
