//! `ls`, `show` and `nodes`, on keys of every kind.

use tenure::{Guard, Locks};
use tokio::task::JoinHandle;

use crate::server::RedisServer;
use crate::tools::{FENCE, node, python, rows, run_on, second, until, until_told, with_notes};

/// Two nodes, and what they hold.
struct Stage {
    server: RedisServer,
    one: Locks,
    other: Locks,
    account: Guard,
    _others: Vec<Guard>,
    waiter: JoinHandle<Result<Guard, tenure::Error>>,
}

async fn stage() -> Stage {
    let server = RedisServer::start();
    let (one, other) = (node(&server, "web-1").await, node(&server, "web-2").await);
    let account = one.mutex("account:42").lock().await.unwrap();
    let others = vec![
        one.rw_lock("doc").read().await.unwrap(),
        other.rw_lock("doc").read().await.unwrap(),
        one.semaphore("pool", 3).acquire_many(2).await.unwrap(),
    ];
    assert!(one.latch("start").try_set_count(2).await.unwrap());
    let set = redis::cmd("SET")
        .arg(&["lock:theirs", "abc"])
        .exec(&mut server.client());
    set.unwrap();
    let waiter = tokio::spawn(other.mutex("account:42").lock().into_future());
    until("the caller waits", async || {
        let page = one.inspect().show("account:42").await.unwrap();
        page.entries[0].waiter_count == 1
    })
    .await;
    until_told(&one, 2).await;
    Stage {
        server,
        one,
        other,
        account,
        _others: others,
        waiter,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_listed_with_holders_and_waiters() {
    let stage = stage().await;
    let table = run_on(&stage.server, &["ls"]).well();
    let header = table.lines().next().unwrap();
    assert_eq!(
        header.split_whitespace().collect::<Vec<_>>(),
        ["KIND", "KEY", "STATE", "NODE", "SINCE", "LEFT", "WAITING"]
    );
    assert_eq!(second(&table), ["account:42", "doc", "pool", "start", "theirs"]);
    let rows = rows(&table);
    let row = |key| rows.iter().find(|row| row[1] == key).unwrap();

    let account = row("account:42");
    assert_eq!((account[0], account[2], account[6]), ("lock", "held", "1"));
    assert!(account[3].starts_with("web-1@"), "{account:?}");
    assert!(
        account[4].ends_with("s ago") && account[5].ends_with('s'),
        "{account:?}"
    );
    let doc = row("doc");
    assert!(doc[3].starts_with("web-1@") && doc[3].ends_with(" +1"), "{doc:?}");
    assert_eq!((row("pool")[0], row("pool")[2]), ("semaphore", "held"));
    assert_eq!(row("start")[..5], ["latch", "start", "set", "-", "-"]);
    assert_eq!(
        row("theirs")[..],
        ["lock", "theirs", "foreign", "-", "-", "-", "0"]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listing_is_of_what_is_asked_for() {
    let stage = stage().await;
    let id = stage.other.node_id().to_string();
    for (args, keys) in [
        (&["ls", "acc"][..], &["account:42"][..]),
        (&["ls", "--kind", "latch"], &["start"]),
        (&["ls", "--node", "web-2"], &["account:42", "doc"]),
        (&["ls", "--node", &id[..8].to_uppercase()], &["account:42", "doc"]),
        (&["ls", "--node", &id[..7]], &[]),
        (
            &["ls", "--limit", "5"],
            &["account:42", "doc", "pool", "start", "theirs"],
        ),
        (&["ls", "--hex", "6163"], &["6163636f756e743a3432"]),
        (&["ls", "--prefix", "other:"], &[]),
    ] {
        assert_eq!(second(&run_on(&stage.server, args).well()), keys, "{args:?}");
    }
    let cut = run_on(&stage.server, &["ls", "--limit", "2"]);
    assert!(cut.code == 0 && cut.err.contains("--limit 0"), "{cut:?}");
    assert_eq!(rows(&cut.out).len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_is_shown_with_all_that_is_known() {
    let stage = stage().await;
    let show = |key| run_on(&stage.server, &["show", key]);
    let text = show("account:42").well();
    let one = format!(
        "alive\n    node {}, pid {}\n    claim ",
        stage.one.node_id(),
        std::process::id()
    );
    let other = format!("alive\n    node {}", stage.other.node_id());
    let fence = stage.account.fence();
    let fence = format!(
        "exclusive\n    number {}, fence {fence}\n    since 20",
        fence.number()
    );
    for words in [
        "state     held",
        "holders   1",
        &one,
        &fence,
        "waiting   1",
        &other,
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let longest = text.lines().map(|line| line.chars().count()).max();
    assert!(longest <= Some(80), "a terminal wraps it: {text}");
    assert!(show("pool").well().contains("permits   2 of 3 in use"));
    assert!(show("start").well().contains("count     2 count-downs left"));
    assert!(show("theirs").well().contains("value     a9993e364706 (SHA-1)"));
    assert!(show("doc").well().contains("holders   2"));
    show("acc").refuses(1, "`acc` is neither held, waited for nor set");

    let waiter = stage.waiter;
    stage.account.release().await.unwrap();
    let guard = waiter.await.unwrap().unwrap();
    let text = show("account:42").well();
    assert!(text.contains(&other) && text.contains("waiting   0"), "{text}");
    guard.release().await.unwrap();
    show("account:42").refuses(1, "neither");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_is_no_node() {
    let stage = stage().await;
    let table = run_on(&stage.server, &["nodes"]).well();
    assert_eq!(second(&table), ["web-1", "web-2"]);
    let pid = std::process::id().to_string();
    for row in rows(&table) {
        assert_eq!(
            (row[3], row[5], row[9]),
            (&*pid, env!("CARGO_PKG_VERSION"), "lock:"),
            "{row:?}"
        );
    }
    let told: Vec<String> = redis::cmd("KEYS")
        .arg("tenure1:i:*")
        .query(&mut stage.server.client())
        .unwrap();
    assert_eq!(told.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn json_is_one_object_per_line() {
    let stage = stage().await;
    let lines = run_on(&stage.server, &["ls", "--json"]).well();
    let program = "
import datetime, json, sys
for entry in sorted(map(json.loads, sys.stdin), key=lambda entry: entry['key']):
    for holder in entry['holders']:
        datetime.datetime.fromisoformat(holder['since'].replace('Z', '+00:00'))
        assert int(holder['fence']) > 0 and holder['remaining'] > 0
    names = [of['node']['presence']['name'] for of in entry['holders'] + entry['waiters']]
    print(entry['kind'], entry['key'], entry['state'], entry['waiter_count'], sorted(names))";
    let expected = "lock account:42 held 1 ['web-1', 'web-2']\nlock doc held 0 ['web-1', 'web-2']\n\
         semaphore pool held 0 ['web-1']\nlatch start set 0 []\nlock theirs foreign 0 []\n";
    assert_eq!(python(program, &lines), expected);

    let line = run_on(&stage.server, &["show", "doc", "--json"]).well();
    let program = "import json, sys; print(json.load(sys.stdin)['holder_count'])";
    assert_eq!(python(program, &line), "2\n");
    let lines = run_on(&stage.server, &["nodes", "--json"]).well();
    let program =
        "import json, sys; print(sorted(json.loads(line)['presence']['name'] for line in sys.stdin))";
    assert_eq!(python(program, &lines), "['web-1', 'web-2']\n");
}

#[tokio::test]
async fn a_note_is_shown_under_its_holder_and_under_no_other() {
    const NOTE: &str = "POST /accounts/{id} trace 4bf92f3577b34da6a3ce929d0e0e4736";

    let server = RedisServer::start();
    let show = || run_on(&server, &["show", "noted"]).well();
    // Of an earlier and of a later claim.
    with_notes(&server, &[(6, FENCE, b"6"), (77, FENCE, b"77")]);
    assert!(
        !show().contains("note:") && !show().contains("note of"),
        "{}",
        show()
    );
    let table = run_on(&server, &["ls", "--notes"]).well();
    assert_eq!(rows(&table)[0].last(), Some(&"-"), "{table}");

    with_notes(&server, &[(6, FENCE, b"6"), (7, FENCE, NOTE.as_bytes())]);
    assert!(
        show().contains(&format!("left\n    note: {NOTE}\n")),
        "{}",
        show()
    );
    let table = run_on(&server, &["ls", "--notes"]).well();
    assert!(
        table.lines().next().unwrap().ends_with("WAITING  NOTE"),
        "{table}"
    );
    assert_eq!(rows(&table)[0].last(), Some(&NOTE), "{table}");
    assert!(!run_on(&server, &["ls"]).well().contains("POST"));
    let line = run_on(&server, &["ls", "--json"]).well();
    let program = "import json, sys; print(json.load(sys.stdin)['holders'][0]['notes'])";
    let expected = format!("[{{'fence': '{FENCE}', 'text': '{NOTE}'}}]\n");
    assert_eq!(python(program, &line), expected);

    // Readers of one node share a grant.
    let later = FENCE + 2;
    with_notes(&server, &[(7, FENCE, b"one"), (7, later, b"two")]);
    let words = format!("note: one\n    note of fence {later}: two\n");
    assert!(show().contains(&words), "{}", show());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_note_of_a_lease_reaches_the_screen() {
    let server = RedisServer::start();
    let locks = node(&server, "web-1").await;
    let guard = locks.mutex("import").lock().await.unwrap();
    guard.note("part 3\nof 9");
    until("it is shown", async || {
        run_on(&server, &["show", "import"])
            .well()
            .contains(r"note: part 3\x0aof 9")
    })
    .await;
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_several_pages_are_listed_once() {
    let server = RedisServer::start();
    let mut set = redis::pipe();
    for n in 0..1_500 {
        set.set(format!("lock:{n:04}"), "abc");
    }
    set.exec(&mut server.client()).unwrap();
    let expected: Vec<String> = (0..1_500).map(|n| format!("{n:04}")).collect();
    assert_eq!(second(&run_on(&server, &["ls", "--limit", "0"]).well()), expected);
    let lines = run_on(&server, &["ls", "--limit", "1500", "--json"]).well();
    assert_eq!(lines.lines().count(), 1_500);
    let cut = run_on(&server, &["ls", "--limit", "1499", "--json"]);
    assert!(
        cut.err.contains("--limit 0") && cut.out.lines().count() == 1_499,
        "{}",
        cut.err
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_screen_says_that_the_server_recovers() {
    let server = RedisServer::start();
    let recovers = redis::cmd("SET")
        .arg(&["tenure1:recovering", "run", "EX", "600"])
        .exec(&mut server.client());
    recovers.unwrap();
    for screen in [
        &["ls"][..],
        &["show", "a"],
        &["nodes"],
        &["audit"],
        &["steal", "a", "--yes"],
    ] {
        let answer = run_on(&server, screen);
        assert!(answer.err.contains("grants none for 10m"), "{answer:?}");
    }
}
