//! What `run` refuses, how long it waits, and its exit codes.

use crate::run::{ends, run_with, until};
use crate::server::RedisServer;
use crate::tools::{answer, run, run_on, with_signals};

#[test]
fn what_cannot_run_has_the_codes_of_timeout() {
    let server = RedisServer::start();
    for (code, args, words) in [
        (125, &["key"][..], "CMD"),
        (125, &["key", "--"], "CMD"),
        (125, &["", "--", "true"], "key"),
        (125, &["key", "--lease", "1s", "--", "true"], "2s or more"),
        (125, &["key", "--try", "--wait", "1s", "--", "true"], "--wait"),
        (
            125,
            &["key", "--read", "--permits", "2", "--", "true"],
            "--permits",
        ),
        (125, &["key", "--permits", "0", "--", "true"], "permit"),
        (125, &["key", "--colour", "--", "true"], "--colour"),
        (126, &["key", "--", "/"], "`/` cannot be executed"),
        (
            127,
            &["key", "--", "no-such-command"],
            "`no-such-command` cannot be executed",
        ),
    ] {
        answer(&mut run_with(&server, args)).refuses(code, words);
    }
    run(&["run", "--url", "http://hunter2@one/", "key", "--", "true"]).refuses(125, "URL");
    run(&[
        "run",
        "--url",
        "redis://:hunter2@127.0.0.1:1/",
        "key",
        "--",
        "true",
    ])
    .refuses(125, "efused");
    let locked = RedisServer::with_args(&["--requirepass", "hunter2"]);
    answer(&mut run_with(&locked, &["key", "--", "true"])).refuses(125, "NOAUTH");
    let wrong = locked.url().replace("//", "//:hunter@");
    run(&["run", "--url", &wrong, "key", "--", "true"]).refuses(125, "WRONGPASS");
    assert!(run_on(&server, &["ls", "--json"]).out.is_empty());
    assert!(run_on(&server, &["nodes", "--json"]).out.is_empty());
}

#[test]
fn the_command_knows_its_key_and_its_fence_and_has_its_own_code() {
    let server = RedisServer::start();
    let said = |words: &[&str]| answer(&mut run_with(&server, &[&["account:42", "--"], words].concat()));
    let mut fences = Vec::new();
    for _ in 0..2 {
        let out = said(&["sh", "-c", "echo $TENURE_KEY $TENURE_FENCE"]).well();
        let (key, fence) = out.trim().split_once(' ').unwrap();
        assert_eq!(key, "account:42");
        fences.push(fence.parse::<u64>().unwrap());
    }
    assert!(fences[0] < fences[1], "{fences:?}");
    assert_eq!(said(&["sh", "-c", "exit 7"]).code, 7);
    assert_eq!(said(&["sh", "-c", "kill -9 $$"]).code, 128 + 9);
}

#[test]
fn a_key_that_is_held_is_waited_for_as_told() {
    let server = RedisServer::start();
    let holder = |how: &[&str]| {
        let args = [
            &["key", "--lease", "20s", "--name", "nightly"],
            how,
            &["--", "sleep", "60"],
        ]
        .concat();
        run_with(&server, &args).spawn().unwrap()
    };
    let others = |how: &[&str]| {
        answer(&mut run_with(
            &server,
            &[&["key"], how, &["--", "echo", "ran"]].concat(),
        ))
    };
    let held = |count: usize| {
        until("it is held", || {
            let show = run_on(&server, &["show", "key"]).out;
            show.contains(&format!("holders   {count}\n")) && show.contains("nightly@")
        });
    };
    let mut writer = holder(&[]);
    held(1);
    until("the command is noted", || {
        run_on(&server, &["show", "key"]).out.contains("sleep 60")
    });
    let refused = others(&["--try"]);
    assert!(
        refused.code == 124 && refused.err.is_empty() && refused.out.is_empty(),
        "{refused:?}"
    );
    others(&["--wait", "50ms"]).refuses(124, "`key` was not had within 50ms");
    others(&["--try", "--read"]).refuses(124, "");
    end(&mut writer);
    let mut reader = holder(&["--read"]);
    held(1);
    assert_eq!(others(&["--try", "--read"]).well(), "ran\n");
    others(&["--try"]).refuses(124, "");
    end(&mut reader);
    let mut permits = [holder(&["--permits", "2"]), holder(&["--permits", "2"])];
    held(2);
    others(&["--try", "--permits", "2"]).refuses(124, "");
    permits.iter_mut().for_each(end);
    assert_eq!(others(&["--wait", "1h"]).well(), "ran\n");
}

fn end(holder: &mut std::process::Child) {
    crate::run::send(holder.id(), rustix::process::Signal::TERM);
    assert_eq!(ends(holder).code(), Some(128 + 15));
}

/// A signal ends the time for which a key is kept.
#[test]
fn a_key_is_kept_for_a_time_although_the_command_has_ended() {
    let server = RedisServer::start();
    let mut run = run_with(&server, &["key", "--at-least", "1h", "--", "true"])
        .spawn()
        .unwrap();
    until("the command has ended", || {
        let shown = run_on(&server, &["show", "key"]).out;
        let children = format!("/proc/{0}/task/{0}/children", run.id());
        shown.contains("holders   1")
            && std::fs::read_to_string(children)
                .unwrap()
                .split_whitespace()
                .all(is_zombie)
    });
    answer(&mut run_with(&server, &["key", "--try", "--", "true"])).refuses(124, "");
    crate::run::send(run.id(), rustix::process::Signal::TERM);
    assert_eq!(ends(&mut run).code(), Some(0));
    assert!(run_on(&server, &["ls", "--json"]).out.is_empty());
}

fn is_zombie(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|stat| stat.contains(") Z "))
}

/// As under `nohup`: a handler would end what the parent of `run` asked for.
#[test]
fn an_ignored_signal_stays_ignored() {
    let server = RedisServer::start();
    let tenure = env!("CARGO_BIN_EXE_tenure");
    let script = format!(
        "trap '' HUP; exec {tenure} run --url {} key -- grep SigIgn /proc/self/status",
        server.url()
    );
    let mut shell = std::process::Command::new("env");
    let mask = answer(shell.args(["--default-signal", "sh", "-c", &script])).well();
    let mask = u64::from_str_radix(mask.trim().trim_start_matches("SigIgn:").trim(), 16).unwrap();
    assert_eq!(mask & 0b111, 0b001, "HUP alone is ignored: {mask:b}");
    let mut plain = with_signals(&[
        "run",
        "--url",
        &server.url(),
        "key",
        "--",
        "grep",
        "SigIgn",
        "/proc/self/status",
    ]);
    let plain = answer(&mut plain).well();
    assert!(plain.trim().ends_with("0000000"), "{plain}");
}
