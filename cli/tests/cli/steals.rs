//! `steal` and `audit`: what the holder is told, what is printed, and the exit codes.

use std::process::Stdio;

use tenure::error::LostCause;

use crate::server::RedisServer;
use crate::tools::{answer, at_a_terminal, command, node, python, rows, run_on, until_told};

fn steal<'a>(args: &[&'a str]) -> Vec<&'a str> {
    [&["steal", "account:42", "--yes", "--by", "Zoë"], args].concat()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_is_taken_and_written_down() {
    let server = RedisServer::start();
    let one = node(&server, "web-1").await;
    let guard = one.mutex("account:42").lock().await.unwrap();
    until_told(&one, 1).await;
    let obeys = tokio::spawn(async move {
        let asked = guard.asked().await.unwrap();
        guard.release().await.unwrap();
        asked
    });
    let url = server.url();
    let told = tokio::task::spawn_blocking(move || {
        let args = steal(&["--why", "stuck\x1b[31m", "--grace", "60s", "--url", &url]);
        answer(&mut command(&args)).well()
    });
    let told = told.await.unwrap();
    let asked = obeys.await.unwrap();
    assert_eq!((&*asked.by, &*asked.why), ("Zoë", "stuck\x1b[31m"));
    assert!(told.contains("web-1@") && told.contains("number "), "{told}");
    assert!(told.contains("asked     the holder has 1m\n"), "{told}");
    assert!(
        told.ends_with("done      given back by its holder; now:\nstate     free\n"),
        "{told}"
    );

    // One that does not listen, and JSON.
    let guard = one.mutex("account:42").lock().await.unwrap();
    let lost = tokio::spawn(async move {
        let cause = guard.lost().await;
        drop(guard);
        cause
    });
    let url = server.url();
    let told = tokio::task::spawn_blocking(move || {
        answer(&mut command(&steal(&["--grace", "0s", "--json", "--url", &url]))).well()
    });
    let told = told.await.unwrap();
    assert_eq!(lost.await.unwrap(), LostCause::Revoked);
    let read = python(
        "import json, sys\n\
         lines = [json.loads(line) for line in sys.stdin]\n\
         assert lines[0]['holders'][0]['number'] > 0, lines\n\
         print([line['step'] for line in lines[1:]], lines[-1]['now'])",
        &told,
    );
    assert_eq!(read, "['revoked', 'ended'] None\n");

    let table = run_on(&server, &["audit"]).well();
    let header = table.lines().next().unwrap();
    assert_eq!(
        header.split_whitespace().collect::<Vec<_>>(),
        ["TIME", "BY", "WHAT", "KIND", "KEY", "NUMBER", "WHY"]
    );
    let rows = rows(&table);
    assert_eq!(rows[0][1..5], ["Zoë", "revoked", "lock", "account:42"]);
    assert_eq!(rows[1][1..5], ["Zoë", "asked", "lock", "account:42"]);
    assert_eq!(rows[1][6], r"stuck\x1b[31m");
    let lines = run_on(&server, &["audit", "--json"]).well();
    let read = python(
        "import json, sys\nprint([json.loads(line)['what'] for line in sys.stdin])",
        &lines,
    );
    assert_eq!(read, "['revoked', 'asked']\n");
}

/// The audit list names the operator also where no variable does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_without_a_variable_has_a_name() {
    let server = RedisServer::start();
    let one = node(&server, "web-1").await;
    let _guard = one.mutex("account:42").lock().await.unwrap();
    let args = ["steal", "account:42", "--yes", "--grace", "0s", "--now", "--url"];
    let mut command = command(&[&args[..], &[&server.url()]].concat());
    command.env_remove("LOGNAME").env("USER", "");
    let told = tokio::task::spawn_blocking(move || answer(&mut command));
    assert_eq!(told.await.unwrap().code, 0);
    let user = std::process::Command::new("id").arg("-un").output().unwrap();
    let user = String::from_utf8(user.stdout).unwrap();
    let table = run_on(&server, &["audit"]).well();
    assert!(rows(&table).iter().all(|row| row[1] == user.trim()), "{table}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_not_taken_is_said() {
    let server = RedisServer::start();
    let one = node(&server, "web-1").await;
    // Nothing holds it.
    let free = run_on(&server, &steal(&[]));
    assert!(free.code == 1 && free.err.contains("has no holder"), "{free:?}");
    let _guard = one.mutex("account:42").lock().await.unwrap();
    // Without a terminal nothing is asked, and nothing is done.
    let refused = run_on(&server, &["steal", "account:42"]);
    assert!(refused.code == 2 && refused.err.contains("--yes"), "{refused:?}");
    let other = run_on(&server, &steal(&["--number", "7"]));
    assert!(
        other.code == 1 && other.err.contains("no listed holder with the number 7"),
        "{other:?}"
    );
    let readers = [
        one.rw_lock("doc").read().await.unwrap(),
        node(&server, "web-2").await.rw_lock("doc").read().await.unwrap(),
    ];
    let several = run_on(&server, &["steal", "doc", "--yes"]);
    assert!(
        several.code == 2 && several.err.contains("--number"),
        "{several:?}"
    );
    let number = readers[1].fence().number().to_string();
    let (args, url) = (
        ["steal", "doc", "--yes", "--now", "--number", &number],
        server.url(),
    );
    let told = answer(&mut command(&[&args[..], &["--url", &url]].concat())).well();
    assert!(told.contains("done      handed over; now:\n"), "{told}");
    assert!(readers[0].is_held());
    // Two kinds have this key.
    let _permit = one.semaphore("account:42", 3).acquire().await.unwrap();
    let kinds = run_on(&server, &steal(&[]));
    assert!(kinds.code == 2 && kinds.err.contains("--kind"), "{kinds:?}");
    assert!(
        run_on(&server, &["audit", "--prefix", "other:"])
            .well()
            .lines()
            .count()
            == 1
    );
}

/// A reader that is gone neither stops a steal nor changes its exit code.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_pipe_does_not_decide_what_is_taken() {
    let server = RedisServer::start();
    let one = node(&server, "web-1").await;
    let guard = one.mutex("account:42").lock().await.unwrap();
    until_told(&one, 1).await;
    let run = |args: &[&str]| {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = command(&steal(args));
        command
            .args(["--url", &server.url()])
            .stdout(writer)
            .stderr(Stdio::piped());
        tokio::task::spawn_blocking(move || command.spawn().unwrap().wait_with_output().unwrap())
    };
    let taken = run(&["--now"]);
    assert_eq!(guard.lost().await, LostCause::Revoked);
    let taken = taken.await.unwrap();
    assert!(taken.status.success() && taken.stderr.is_empty(), "{taken:?}");
    let () = redis::cmd("SET")
        .arg(&["lock:account:42", "without an end"])
        .query(&mut server.client())
        .unwrap();
    let refused = run(&["--grace", "0s"]).await.unwrap();
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_a_terminal_the_operator_is_asked() {
    let server = RedisServer::start();
    let url = server.url();
    let one = node(&server, "web-1").await;
    let guard = one.mutex("account:42").lock().await.unwrap();
    until_told(&one, 1).await;
    let args = ["steal", "account:42", "--grace", "0s", "--url", &url];
    for no in ["n\n", "\n", "\u{4}"] {
        let (code, shown) = at_a_terminal(&args, no);
        assert!(code == 1 && shown.contains("web-1@"), "{shown}");
        assert!(shown.contains("Take the lease of `account:42`? [y/N]"), "{shown}");
        assert!(shown.contains("nothing was done") && guard.is_held(), "{shown}");
    }
    assert_eq!(run_on(&server, &["audit"]).well().lines().count(), 1);
    let works = tokio::spawn(async move {
        let cause = guard.lost().await;
        drop(guard);
        cause
    });
    let args = args.map(str::to_owned);
    let stealing = move || at_a_terminal(&args.each_ref().map(|arg| &**arg), "y\n");
    let (code, shown) = tokio::task::spawn_blocking(stealing).await.unwrap();
    assert!(code == 0 && shown.contains("done "), "{shown}");
    assert_eq!(works.await.unwrap(), LostCause::Revoked);
}
