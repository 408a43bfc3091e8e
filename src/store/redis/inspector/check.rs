//! The checks of the servers: what each one tells of itself, judged. `CONFIG` is not sent, because managed services refuse it.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use redis::{FromRedisValue, Value};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use crate::error::{StoreError, StoreErrorKind};
use crate::key::Key;
use crate::protocol::finding::{Finding, FindingLevel};
use crate::protocol::message::{Kind, Name, NodeId};
use crate::store::ServerId;
use crate::store::redis::connection::{cannot_open, read_time};
use crate::store::redis::decode::{field, result, text};
use crate::store::redis::greeting::{MIN_REDIS_VERSION, check_mode, check_role, is_untold, parse_version};
use crate::store::redis::inbox;
use crate::store::redis::inspector::Inner;
use crate::store::redis::inspector::answers::{is_refused_with, push, read, unreadable};
use crate::store::redis::inspector::connections::Connections;
use crate::store::redis::names::{self, Names};

use FindingLevel::{Fail, Ok as Good, Warn};

/// How often a server is pinged. The median does not show a single slow answer.
const PINGS: usize = 20;
/// The longest median of the answers to pings: with longer ones, waits of a second are mostly round trips.
const MAX_LATENCY: Duration = Duration::from_millis(100);
/// The largest difference of two clocks: ticks of jobs are due by the server's.
const MAX_SKEW: Duration = Duration::from_secs(1);
/// The part of its limit up to which memory may be used, in percent.
const MAX_MEMORY: f64 = 90.0;
const UNTOLD: &str = "the server does not tell: give the user the rights in docs/redis.md, or look it up";

/// The commands of the scripts that change nothing of a key that does not exist, with their other words. A script that is refused
/// does not tell for which of its commands, and a trial does not get to each of them.
const HARMLESS: [(&str, &[&str]); 18] = [
    ("GET", &[]),
    ("MGET", &[]),
    ("EXISTS", &[]),
    ("PTTL", &[]),
    ("DEL", &[]),
    ("PEXPIRE", &["1"]),
    ("PEXPIREAT", &["1"]),
    ("HGET", &["field"]),
    ("HMGET", &["field"]),
    ("HDEL", &["field"]),
    ("HKEYS", &[]),
    ("ZADD", &["XX", "0", "member"]),
    ("ZREM", &["member"]),
    ("ZSCORE", &["member"]),
    ("ZCOUNT", &["0", "0"]),
    ("ZRANGE", &["0", "0"]),
    ("ZRANGEBYSCORE", &["0", "0"]),
    ("ZREVRANGEBYSCORE", &["0", "0"]),
];

/// The name of a check, and what it has found.
type Verdict = (&'static str, FindingLevel, String);

/// What a server told of itself.
#[derive(Debug, Default)]
struct ServerFacts {
    /// `None`: the user may not ask for it, or the server does not know the question.
    info: Option<String>,
    /// Why the server cannot be used, or what it does not tell of its role.
    role: Option<(FindingLevel, String)>,
    is_in_cluster: bool,
    /// The services begin a recovery after each restart and promotion.
    always_recovers: bool,
    /// What is left of a recovery in ms, as PTTL answers, or why the server refuses to tell.
    recovering: Option<Result<i64, String>>,
    /// How far the server's clock is ahead of this machine's, in µs, beyond half a round trip. Negative if it is behind.
    skew_us: Option<i64>,
    latency: Duration,
    /// Why the server refuses pings, such as LOADING.
    refusal: Option<String>,
}

impl Inner {
    /// Checks each server. A server without an answer is a finding, unless there is no other.
    pub(super) async fn check(&self) -> Result<Vec<Finding>, StoreError> {
        let connections = Connections::to_any(self.config.clone());
        let (mut findings, mut failure, mut has_answer) = (Vec::new(), None, false);
        for server in self.servers().await? {
            let verdicts = match self.facts(&connections, server).await {
                Ok(facts) => {
                    has_answer = true;
                    judge(&facts)
                }
                Err(error) => {
                    let text = error.to_string();
                    failure.get_or_insert(error);
                    vec![("connection", Fail, text)]
                }
            };
            let server = self.name(server);
            findings.extend(verdicts.into_iter().map(|(check, level, text)| Finding {
                server: server.clone(),
                check,
                level,
                text,
            }));
        }
        failure.filter(|_| !has_answer).map_or(Ok(findings), Err)
    }

    async fn facts(&self, connections: &Connections, server: ServerId) -> Result<ServerFacts, StoreError> {
        let at = connections.at(server).await?;
        let mut questions = redis::pipe();
        questions.cmd("INFO").cmd("ROLE");
        let answers = connections.ask(server, &questions).await?;
        let [info, role] = <[Value; 2]>::try_from(answers).map_err(unreadable)?;
        let is_in_cluster = self.config.topology.cluster().is_some();
        let mut facts = ServerFacts {
            info: match result(info.clone()) {
                Err(error) if !is_untold(&error) => return Err(cannot_open(&at, error)),
                answer => answer.ok().and_then(text),
            },
            is_in_cluster,
            ..ServerFacts::default()
        };
        let mut warnings = Vec::new();
        let checked = check_mode(&at, &info).and_then(|()| check_role(&at, role, &info, &mut warnings));
        let warning = warnings.pop().map(|warning| (Warn, warning));
        facts.role = checked.map_or_else(|error| Some((Fail, error.to_string())), |()| warning);
        // The slots of a cluster recover one by one, and never always.
        if !is_in_cluster {
            let mut questions = redis::pipe();
            questions.cmd("GET").arg(names::LONGEST);
            questions.cmd("PTTL").arg(names::RECOVERING);
            let answers = connections.ask(server, &questions).await?;
            let [longest, left] = <[Value; 2]>::try_from(answers).map_err(unreadable)?;
            facts.always_recovers = result(longest).ok().and_then(text).is_some();
            facts.recovering = told(left);
        }
        let began = wall_us();
        let (time, trip) = exchange(connections, server, "TIME").await?;
        let time = read_time(result(time)).ok();
        facts.skew_us = time.map(|time| skew(began, time, trip));
        let mut pings = Vec::with_capacity(PINGS);
        for _ in 0..PINGS {
            // An error is an answer, too.
            let (answer, trip) = exchange(connections, server, "PING").await?;
            facts.refusal = told::<Value>(answer).and_then(Result::err);
            pings.push(trip);
        }
        facts.latency = median(pings);
        Ok(facts)
    }

    /// Publishes at the server of `key` to a node that does not exist, and waits for the message.
    pub(super) async fn try_push(&self, key: &Key) -> Result<(), StoreError> {
        let node = NodeId::random();
        let (sender, mut received) = mpsc::unbounded_channel();
        let pushed = Arc::new(move |_| _ = sender.send(()));
        let pushing = async {
            let config = match self.config.topology.cluster() {
                Some(cluster) => cluster.next_inbox(&self.config).await?,
                None => self.config.clone(),
            };
            let inbox = inbox::open(config, node, pushed).await?;
            let slot = self.config.names.slot(&Name::lock(key.clone()));
            let server = self.stealer().server_of(slot).await?;
            let mut publish = redis::pipe();
            publish.cmd("PUBLISH").arg(names::channel(node)).arg("");
            read::<i64>(result(self.connections.ask_one(server, &publish).await?))?;
            tokio::select! {
                error = inbox.ended => Err(error),
                _ = received.recv() => Ok(()),
            }
        };
        let late = |_| {
            let text = format_args!("no published message arrived within {:?}", self.config.timeout);
            StoreError::new(StoreErrorKind::TimedOut, text)
        };
        timeout(self.config.timeout, pushing).await.map_err(late)?
    }

    /// Returns the first right that the user lacks, in the server's words. Other refusals are left to the trial.
    pub(super) async fn try_rights(&self, key: &Key) -> Result<(), StoreError> {
        if self.config.topology.masters().is_some() {
            return Ok(());
        }
        let (names, name) = (&self.config.names, Name::lock(key.clone()));
        let (mut record, mut questions) = (Vec::new(), redis::pipe());
        names.push_record(&name, &mut record);
        for (command, words) in HARMLESS {
            push(&mut questions, command, &record, words);
        }
        let server = self.stealer().server_of(names.slot(&name)).await?;
        let answers = self.connections.ask(server, &questions).await?;
        let refused = answers
            .into_iter()
            .find(|answer| is_refused_with(answer, &["NOPERM"]));
        refused.map_or(Ok(()), |answer| read::<Value>(result(answer)).map(drop))
    }

    /// Removes the records, queues and memories of a key of a trial.
    pub(super) async fn remove(&self, key: &Key) -> Result<(), StoreError> {
        if self.config.topology.masters().is_some() {
            return Ok(());
        }
        let names = &self.config.names;
        let mut remove = redis::pipe();
        remove.cmd("DEL");
        for kind in Kind::ALL {
            let name = Name::new(*kind, key.clone());
            for push in [Names::push_record, Names::push_queue, Names::push_memory] {
                let mut stored = Vec::new();
                push(names, &name, &mut stored);
                remove.arg(stored);
            }
        }
        let slot = names.slot(&Name::lock(key.clone()));
        let stealer = self.stealer();
        let server = stealer.server_of(slot).await?;
        read::<i64>(Ok(stealer.last_answer(server, &remove).await?)).map(drop)
    }
}

/// Returns what the server answered, or why it refuses for now. `None`: the user may not ask, or the server does not know the
/// question.
fn told<T: FromRedisValue>(answer: Value) -> Option<Result<T, String>> {
    match result(answer) {
        Err(error) if is_untold(&error) => None,
        answer => Some(read(answer).map_err(|error| error.to_string())),
    }
}

/// Sends a command, and returns the answer and how long it took.
async fn exchange(
    connections: &Connections,
    server: ServerId,
    command: &str,
) -> Result<(Value, Duration), StoreError> {
    let mut question = redis::pipe();
    question.cmd(command);
    let began = Instant::now();
    let answer = connections.ask_one(server, &question).await?;
    Ok((answer, began.elapsed()))
}

#[allow(clippy::disallowed_methods, reason = "compared with the clock of a server")]
fn wall_us() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.unwrap_or_default().as_micros() as u64
}

/// Returns how far a server's clock is ahead, which was read within a round trip.
fn skew(began_us: u64, server_us: u64, trip: Duration) -> i64 {
    let half = trip.as_micros() as i64 / 2;
    let ahead = server_us.cast_signed().wrapping_sub(began_us.cast_signed()) - half;
    ahead.signum() * (ahead.saturating_abs() - half).max(0)
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// Returns what the facts mean, a verdict for each check.
fn judge(facts: &ServerFacts) -> Vec<Verdict> {
    let info = facts.info.as_deref().unwrap_or_default();
    let role = facts.role.clone();
    let role = role.unwrap_or_else(|| (Good, "a master".to_owned()));
    let mut found = vec![
        ("version", version(info)),
        ("role", Some(role)),
        ("eviction", eviction(info)),
        ("memory", memory(info)),
        ("persistence", persistence(info, facts.always_recovers)),
        ("replicas", replicas(info, facts)),
        ("clock", facts.skew_us.map(clock)),
    ];
    if !facts.is_in_cluster {
        let recovering = facts.recovering.clone();
        let refused = |why| (Fail, why);
        found.push((
            "recovery",
            recovering.map(|left| left.map_or_else(refused, recovery)),
        ));
    }
    let latency = format!("the median of {PINGS} pings is {:?}", facts.latency);
    let advice = "use a server that is nearer or less busy";
    let latency = match &facts.refusal {
        Some(why) => (Fail, why.clone()),
        None => fail_if(facts.latency > MAX_LATENCY, latency, advice),
    };
    found.push(("latency", Some(latency)));
    let untold = || (Warn, UNTOLD.to_owned());
    let verdicts = found.into_iter().map(|(check, found)| {
        let (level, text) = found.unwrap_or_else(untold);
        (check, level, text)
    });
    verdicts.collect()
}

fn fail_if(is_fault: bool, fact: String, advice: &str) -> (FindingLevel, String) {
    match is_fault {
        true => (Fail, format!("{fact}: {advice}")),
        false => (Good, fact),
    }
}

fn number(info: &str, name: &str) -> Option<u64> {
    field(info, name)?.parse().ok()
}

fn version(info: &str) -> Option<(FindingLevel, String)> {
    let version = field(info, "redis_version")?;
    let is_old = parse_version(version)? < MIN_REDIS_VERSION;
    Some(fail_if(
        is_old,
        format!("Redis {version}"),
        "upgrade it to 6.2 or newer",
    ))
}

fn eviction(info: &str) -> Option<(FindingLevel, String)> {
    let policy = field(info, "maxmemory_policy")?;
    let advice = format!("maxmemory-policy {policy} may evict leases that are held: set it to noeviction");
    Some(match (policy, number(info, "maxmemory")) {
        ("noeviction", _) => (Good, policy.to_owned()),
        // Without a limit nothing is evicted yet.
        (_, Some(0)) => (Warn, advice),
        _ => (Fail, advice),
    })
}

fn memory(info: &str) -> Option<(FindingLevel, String)> {
    let (used, limit) = (number(info, "used_memory")?, number(info, "maxmemory")?);
    if limit == 0 {
        return Some((Good, "without a limit (maxmemory)".to_owned()));
    }
    let percent = used as f64 * 100.0 / limit as f64;
    let fact = format!("{percent:.1} % of maxmemory is used");
    let advice = "raise it or free some, because without memory no lease is granted";
    Some(fail_if(percent > MAX_MEMORY, fact, advice))
}

fn persistence(info: &str, always_recovers: bool) -> Option<(FindingLevel, String)> {
    let advice = "after a restart leases may be held twice: set `appendonly yes`, or give services a URL with `recovery=always`";
    let (level, text) = match (number(info, "aof_enabled")?, always_recovers) {
        (0, true) => (Good, "none, and each restart begins a recovery"),
        (0, false) => (Warn, advice),
        _ => (Good, "an append-only file"),
    };
    Some((level, text.to_owned()))
}

fn replicas(info: &str, facts: &ServerFacts) -> Option<(FindingLevel, String)> {
    let count = number(info, "connected_slaves")?;
    let (level, text) = match (facts.always_recovers, facts.is_in_cluster) {
        _ if count == 0 => (Good, ""),
        (true, _) => (Good, ", and each promotion begins a recovery"),
        (false, true) => (
            Warn,
            ", and after a promotion leases may be held twice: set `cluster-node-timeout` to the longest lease or more",
        ),
        (false, false) => (
            Warn,
            ", and after a promotion leases may be held twice: give services a URL with `recovery=always`",
        ),
    };
    Some((level, format!("{count}{text}")))
}

fn clock(skew_us: i64) -> (FindingLevel, String) {
    let skew = Duration::from_micros(skew_us.unsigned_abs());
    let side = if skew_us < 0 { "behind" } else { "ahead of" };
    let fact = format!("{skew:?} {side} this machine's");
    fail_if(skew > MAX_SKEW, fact, "run NTP on both")
}

/// Judges the rest of a recovery, as PTTL answers: -1 without an end, -2 if there is no recovery.
fn recovery(left_ms: i64) -> (FindingLevel, String) {
    match u64::try_from(left_ms).map(Duration::from_millis) {
        Ok(left) => (
            Fail,
            format!("nothing is granted for {left:?}: wait; holders keep their leases"),
        ),
        Err(_) if left_ms == -1 => (Fail, format!("it has no end: `DEL {}`", names::RECOVERING)),
        Err(_) => (Good, "none".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the facts of a server without a fault.
    fn good() -> ServerFacts {
        let info = "redis_version:7.0.15\r\nused_memory:90\r\nmaxmemory:100\r\nmaxmemory_policy:noeviction\r\n\
                    aof_enabled:1\r\nconnected_slaves:0\r\n";
        ServerFacts {
            info: Some(info.to_owned()),
            recovering: Some(Ok(-2)),
            skew_us: Some(1_000_000),
            latency: MAX_LATENCY,
            ..ServerFacts::default()
        }
    }

    /// Returns the checks that are not as they must be, with their levels.
    fn faults(facts: &ServerFacts) -> Vec<(&'static str, FindingLevel)> {
        let verdicts = judge(facts).into_iter();
        let faults = verdicts.filter(|(_, level, _)| *level != Good);
        faults.map(|(check, level, _)| (check, level)).collect()
    }

    #[test]
    fn each_fault_is_one_check_that_is_not_ok() {
        assert_eq!(faults(&good()), []);
        for (fact, changed, fault) in [
            ("redis_version:7.0.15", "redis_version:6.1.9", ("version", Fail)),
            ("redis_version:7.0.15", "valkey_version:8", ("version", Warn)),
            ("policy:noeviction", "policy:volatile-ttl", ("eviction", Fail)),
            ("maxmemory:100", "maxmemory:99", ("memory", Fail)),
            ("used_memory:90", "used:90", ("memory", Warn)),
            ("aof_enabled:1", "aof_enabled:0", ("persistence", Warn)),
            ("connected_slaves:0", "connected_slaves:2", ("replicas", Warn)),
        ] {
            let mut facts = good();
            facts.info = facts.info.map(|info| info.replace(fact, changed));
            assert_eq!(faults(&facts), [fault], "{changed}");
        }
        type Change = fn(&mut ServerFacts);
        let changes: [(Change, _); 9] = [
            (|facts| facts.role = Some((Fail, String::new())), ("role", Fail)),
            (|facts| facts.skew_us = Some(1_000_001), ("clock", Fail)),
            (|facts| facts.skew_us = Some(-1_000_001), ("clock", Fail)),
            (|facts| facts.recovering = Some(Ok(1)), ("recovery", Fail)),
            (|facts| facts.recovering = Some(Ok(-1)), ("recovery", Fail)),
            (|facts| facts.recovering = None, ("recovery", Warn)),
            (
                |facts| facts.recovering = Some(Err(String::new())),
                ("recovery", Fail),
            ),
            (|facts| facts.refusal = Some(String::new()), ("latency", Fail)),
            (
                |facts| facts.latency += Duration::from_nanos(1),
                ("latency", Fail),
            ),
        ];
        for (change, fault) in changes {
            let mut facts = good();
            change(&mut facts);
            assert_eq!(faults(&facts), [fault]);
        }
    }

    #[test]
    fn a_recovery_after_each_restart_makes_up_for_lost_writes_and_a_policy_without_a_limit_evicts_nothing() {
        let mut facts = good();
        let info = facts.info.take().unwrap_or_default();
        let info = info.replace("aof_enabled:1", "aof_enabled:0");
        facts.info = Some(info.replace("connected_slaves:0", "connected_slaves:1"));
        assert_eq!(faults(&facts), [("persistence", Warn), ("replicas", Warn)]);
        facts.always_recovers = true;
        assert_eq!(faults(&facts), []);
        facts.info = Some(
            info.replace("maxmemory:100", "maxmemory:0")
                .replace("noeviction", "allkeys-lru"),
        );
        assert_eq!(faults(&facts), [("eviction", Warn)]);
        let silent = ServerFacts { info: None, ..good() };
        let untold = ["version", "eviction", "memory", "persistence", "replicas"];
        assert_eq!(faults(&silent), untold.map(|check| (check, Warn)));
    }

    #[test]
    fn half_a_round_trip_is_no_difference_of_clocks() {
        let trip = Duration::from_micros(200);
        for (server_us, ahead) in [(1_000, 0), (1_200, 0), (1_201, 1), (999, -1), (0, -1_000)] {
            assert_eq!(skew(1_000, server_us, trip), ahead, "{server_us}");
        }
    }

    #[test]
    fn the_median_does_not_show_single_slow_answers() {
        let times = [1, 900, 2, 3, 800].map(Duration::from_millis);
        assert_eq!(median(times.into()), Duration::from_millis(3));
    }
}
