//! A listing of many leases among ten times as many other keys shows each lease, and delays no holder.

use std::collections::BTreeSet;
use std::time::Duration;

use tenure::inspect::State;
use tenure::{Guard, Key, Locks};
use tokio::task::JoinSet;

use crate::help::{Eyes, ms, soon};
use crate::inspect::node;
use crate::server::RedisServer;
use crate::support::inspect;

/// The leases that are renewed while others are listed.
const HELD: u64 = 1_000;
/// The most words of a command of a listing: it asks about some 100 members, and no command visits more keys or members than
/// [`MAX_VISITED`].
const MAX_WORDS: usize = 110;
/// The most that the words `COUNT` and `LIMIT` permit.
const MAX_VISITED: usize = 400;

/// What an inspection calls. The scripts of holders call some of these, too.
const READS: &str = "scan time type pttl zcount getrange zrange zrangebyscore zmscore hmget pubsub";

/// Other keys, of which each tenth has the prefix of locks inside.
const OTHERS: &str = "for n = tonumber(ARGV[1]), tonumber(ARGV[2]) do
    redis.call('SET', (n % 10 == 0 and 'data:lock:' or 'session:') .. string.format('%d', n), n)
end";
/// Leases of one node, in the format of records.
const LEASES: &str = "for n = tonumber(ARGV[1]), tonumber(ARGV[2]) do
    local lease = string.format('lease:%d', n)
    local record = string.format('%s:%d:%016x:%d', string.rep('5', 32), n, n, 1700000000000000 + n)
    redis.call('SET', 'lock:' .. lease, record, 'PX', 36000000)
end";

/// Calls a script for the numbers from 1 to `count`, some thousands at a time.
fn fill(eyes: &mut Eyes, script: &str, count: u64) {
    for from in (1..=count).step_by(5_000) {
        let to = count.min(from + 4_999);
        let mut call = redis::cmd("EVAL");
        call.arg(script).arg(0).arg(from).arg(to);
        call.exec(&mut eyes.0).unwrap();
    }
}

/// Holds many leases of this length.
async fn many_held(server: &RedisServer, lease: Duration) -> (Locks, Vec<Guard>) {
    let builder = crate::help::builder().lease(lease).request_timeout(ms(10_000));
    let locks = builder.connect(&server.url()).await.unwrap();
    let mut taking = JoinSet::new();
    for n in 0..HELD {
        let mutex = locks.mutex(format!("held:{n}"));
        taking.spawn(async move { mutex.lock().await.unwrap() });
    }
    let guards = soon(taking.join_all()).await;
    (locks, guards)
}

/// Returns the words of each command of an inspection since the last reset, and how many words it had. The server notes 32.
fn commands(eyes: &mut Eyes) -> Vec<(usize, Vec<String>)> {
    type Noted = (u64, u64, u64, Vec<String>, String, String);
    let noted: Vec<Noted> = eyes.text("SLOWLOG GET 1000000");
    let noted = noted.into_iter().map(|(_, _, _, words, ..)| words);
    let is_read = |words: &Vec<String>| READS.split(' ').any(|read| words[0].eq_ignore_ascii_case(read));
    let count = |words: &[String]| {
        let more = words.last().and_then(|last| last.strip_prefix("... ("));
        let more = more.and_then(|more| more.split(' ').next()?.parse::<usize>().ok());
        more.map_or(words.len(), |more| words.len() - 1 + more)
    };
    noted
        .filter(is_read)
        .map(|words| (count(&words), words))
        .collect()
}

/// Returns the number after `COUNT`, or the last of a range by `LIMIT`, if the command has one.
fn visited(words: &[String]) -> usize {
    let after = |name: &str, at: usize| {
        let found = words.iter().position(|word| word.eq_ignore_ascii_case(name));
        found.and_then(|found| words.get(found + at)?.parse().ok())
    };
    after("COUNT", 1).or(after("LIMIT", 2)).unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_leases_are_listed_and_no_holder_is_delayed() {
    let asked = std::env::var("TENURE_LEASES").ok();
    let count: u64 = asked
        .as_deref()
        .map_or(5_000, |count| count.parse().expect("a number"));
    let server = RedisServer::as_service();
    let mut eyes = Eyes::on(&server);
    fill(&mut eyes, OTHERS, 10 * count);
    fill(&mut eyes, LEASES, count);
    let _: String = eyes.text("CONFIG SET slowlog-log-slower-than 0");
    let _: String = eyes.text("CONFIG SET slowlog-max-len 1000000");
    let leases = (1..=count).map(|n| Key::from(format!("lease:{n}")));
    let held = (0..HELD).map(|n| Key::from(format!("held:{n}")));
    let expected: BTreeSet<Key> = leases.chain(held).collect();
    // Beside other tests, a machine may stall for longer than a short lease.
    let lease = if asked.is_some() { ms(2_000) } else { ms(30_000) };
    let (_holder, guards) = many_held(&server, lease).await;
    let looks = node(&server.url(), "looks").await;
    let _: String = eyes.text("SLOWLOG RESET");
    let entries = inspect::list(&looks, "").await;
    let lost = guards.iter().filter(|guard| !guard.is_held()).count();
    let noted = commands(&mut eyes);
    let longest = noted.iter().max().expect("a listing has commands");
    let most = noted.iter().map(|(_, words)| visited(words)).max();
    println!(
        "{} leases among {} other keys by {} commands, of which the longest has {} words, and one visits {most:?}; {lost} leases lost",
        expected.len(),
        10 * count,
        noted.len(),
        longest.0
    );
    assert_eq!(lost, 0);
    assert_eq!(entries.len(), expected.len());
    assert!(
        entries
            .iter()
            .all(|entry| entry.state == State::Held && entry.holders.len() == 1)
    );
    let listed: BTreeSet<Key> = entries.into_iter().map(|entry| entry.key).collect();
    assert!(listed == expected, "other keys are listed");
    // A command that visits a bounded number of keys delays no holder, however slow the machine is.
    assert!(longest.0 <= MAX_WORDS, "{longest:?}");
    assert!(most <= Some(MAX_VISITED), "{most:?}");
}
