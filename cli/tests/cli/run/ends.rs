//! What ends the command, and that nothing of it outlives the lease.

use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;

use crate::proxy::Direction::Both;
use crate::proxy::{Flow, Proxy};
use crate::run::{Family, each_round, ends, marked, run_with, send, until};
use crate::server::RedisServer;
use crate::tools::run_on;

const ENDING: [Signal; 4] = [Signal::TERM, Signal::HUP, Signal::INT, Signal::QUIT];

#[test]
fn a_command_that_ends_takes_its_family_with_it() {
    each_round(&[
        ("ends", || {
            let (status, _) = Family::start("ends", 3).with_next().end_without_presence(true);
            assert_eq!(status.code(), Some(3));
        }),
        ("dies", || {
            let (status, _) = Family::start("dies", 0).with_next().end_without_presence(true);
            assert_eq!(status.code(), Some(128 + 9));
        }),
    ]);
}

#[test]
fn a_signal_goes_to_the_command() {
    fn passes(signal: Signal) {
        let family = Family::start("beats_on", 0).with_next();
        family.signal(signal);
        let (status, _) = family.end_without_presence(true);
        let number = signal.as_raw();
        // INT ends `run` itself.
        let expected = if signal == Signal::INT {
            (None, Some(number))
        } else {
            (Some(128 + number), None)
        };
        assert_eq!((status.code(), status.signal()), expected);
    }
    each_round(&[
        ("TERM", || passes(Signal::TERM)),
        ("HUP", || passes(Signal::HUP)),
        ("INT", || passes(Signal::INT)),
        ("QUIT", || passes(Signal::QUIT)),
        ("USR1", || passes(Signal::USR1)),
    ]);
}

#[test]
fn no_death_and_no_stop_leaves_a_process() {
    each_round(&[
        ("kill -9 of run", || {
            let family = Family::start_briefly().with_next();
            family.signal(Signal::KILL);
            assert_eq!(family.end(true).0.signal(), Some(9));
        }),
        ("kill -9 of run, long before the end of the lease", || {
            let server = RedisServer::start();
            let url = server.url();
            let mut family = Family::start_at(server, &url, "deaf", 0, "1h");
            family.signal(Signal::KILL);
            family.run.wait().unwrap();
            until("the family is gone", || family.members().is_empty());
        }),
        ("kill -9 of the watcher", || {
            let family = Family::start("deaf", 0).with_next();
            send(family.watcher(), Signal::KILL);
            let (status, err) = family.end_without_presence(true);
            assert_eq!(status.code(), Some(128 + 9));
            assert!(err.contains("the watcher died"), "{err}");
        }),
        ("SIGSTOP of run", || {
            let family = Family::start_briefly().with_next();
            family.signal(Signal::STOP);
            until("the family was killed", || family.members().len() <= 1);
            std::thread::sleep(Duration::from_millis(500));
            family.signal(Signal::CONT);
            let (status, err) = family.end_without_presence(true);
            assert_eq!(status.code(), Some(123));
            assert!(err.contains("was ended: its lease was lost"), "{err}");
        }),
    ]);
}

/// Starts a family whose connection to the server goes through a proxy.
fn behind_a_proxy() -> (Family, Proxy) {
    let server = RedisServer::start();
    let proxy = Proxy::start(([127, 0, 0, 1], server.port()).into());
    let url = format!("redis://{}/", proxy.addr());
    (Family::start_at(server, &url, "deaf", 0, "2s").with_next(), proxy)
}

#[test]
fn a_store_that_does_not_answer_ends_the_command() {
    each_round(&[
        ("a black hole", || {
            let (family, proxy) = behind_a_proxy();
            proxy.set(Both, Flow::Hold);
            let (status, err) = family.end(true);
            assert_eq!(status.code(), Some(123), "{err}");
        }),
        ("a black hole and a stopped watcher", || {
            let (family, proxy) = behind_a_proxy();
            let watcher = family.watcher();
            send(watcher, Signal::STOP);
            proxy.set(Both, Flow::Hold);
            let (status, err) = family.end(true);
            assert_eq!(status.code(), Some(123), "{err}");
            assert!(err.contains("the watcher died"), "{err}");
        }),
        ("a server that is gone", || {
            let (family, proxy) = behind_a_proxy();
            proxy.refuse(true);
            proxy.reset();
            assert_eq!(family.end(true).0.code(), Some(123));
        }),
    ]);
}

#[test]
fn a_steal_ends_the_command() {
    fn steals(what: &str, how: &[&str]) -> (Family, String) {
        let family = Family::start(what, 0).with_next();
        let steal = [&["steal", "key", "--yes", "--by", "anna", "--why", "a test"], how].concat();
        let stolen = run_on(&family.server, &steal);
        assert_eq!(stolen.code, 0, "{stolen:?}");
        (family, stolen.out)
    }
    each_round(&[
        ("asked", || {
            // The command ends with TERM, and what it leaves with KILL 6 s later: long before the end of the grace.
            let (family, out) = steals("beats_on", &["--grace", "1m"]);
            assert!(out.contains("given back by its holder"), "{out}");
            let (status, err) = family.end_without_presence(true);
            assert_eq!(status.code(), Some(123));
            assert!(err.contains("anna wants the key within 1m: a test"), "{err}");
        }),
        ("at once", || {
            // The next one has the key at once, as the operator demands.
            let (family, _) = steals("deaf", &["--now"]);
            assert_eq!(family.end_without_presence(false).0.code(), Some(123));
        }),
    ]);
}

/// Returns what the command of `run` writes when it begins, and how `run` ended.
fn signalled(server: &RedisServer, signal: Signal, wait: impl FnOnce()) {
    let mark = format!("early-{}-{}", server.port(), signal.as_raw());
    let mut command = run_with(server, &["key", "--", "sleep", "60"]);
    let mut run = command
        .env("TENURE_TEST_FAMILY", &mark)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until("it waits", || {
        run_on(server, &["show", "key"]).out.contains("waiting   1")
    });
    wait();
    send(run.id(), signal);
    let (status, number) = (ends(&mut run), signal.as_raw());
    let is_right = match signal {
        Signal::INT => status.signal() == Some(number),
        _ => status.code() == Some(128 + number),
    };
    assert!(is_right, "{signal:?}: {status:?}");
    assert!(marked(&mark).is_empty());
}

#[test]
fn a_signal_before_the_grant_ends_the_wait() {
    let server = RedisServer::start();
    let mut holder = run_with(&server, &["key", "--", "sleep", "60"]).spawn().unwrap();
    until("it is held", || {
        run_on(&server, &["show", "key"]).out.contains("holders   1")
    });
    for signal in ENDING {
        signalled(&server, signal, || {});
        let show = run_on(&server, &["show", "key"]).out;
        assert!(show.contains("waiting   0"), "{show}");
    }
    send(holder.id(), Signal::TERM);
    assert_eq!(ends(&mut holder).code(), Some(128 + 15));
    assert!(run_on(&server, &["nodes", "--json"]).out.is_empty());
}

#[test]
fn a_signal_at_the_grant_ends_the_wait_or_the_command() {
    let server = RedisServer::start();
    for round in 0..5 * u64::from(crate::run::rounds()) {
        for signal in ENDING {
            let mut holder = run_with(&server, &["key", "--", "sleep", "60"]).spawn().unwrap();
            until("it is held", || {
                run_on(&server, &["show", "key"]).out.contains("holders   1")
            });
            signalled(&server, signal, || {
                send(holder.id(), Signal::TERM);
                std::thread::sleep(Duration::from_millis(round * 2));
            });
            ends(&mut holder);
        }
    }
    assert!(run_on(&server, &["ls", "--json"]).out.is_empty());
    assert!(run_on(&server, &["nodes", "--json"]).out.is_empty());
}
