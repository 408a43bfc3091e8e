//! Wrong usage and unavailable stores: exit codes, words, and no password.

use std::process::Stdio;

use crate::server::{RedisServer, ReservedPort};
use crate::tools::{answer, command, run, run_on};

#[test]
fn wrong_usage_is_code_2() {
    let file = env!("CARGO_MANIFEST_PATH");
    for (args, words) in [
        (&[][..], "Usage"),
        (&["ls", "--colour"], "--colour"),
        (&["ls", "--kind", "mutex"], "semaphore"),
        (&["ls", "--watch", "1ms"], "100ms"),
        (
            &["ls", "--hex", "abc"],
            "`abc` is not pairs of hexadecimal digits",
        ),
        (&["show", "--hex", "+f"], "hexadecimal"),
        (&["nodes", "--prefix", "tenure1:"], "prefix"),
        (&["nodes", "--url", "http://hunter2@one/"], "URL"),
        (&["nodes", "--url", "redis://app:hunter2@one:99999/"], "URL"),
        (&["nodes", "--url", "redis://one,two/"], "redis+cluster://one,two"),
        (
            &["nodes", "--url", "redis+sentinel://:hunter2@one/"],
            "redis+sentinel://one/name",
        ),
        (&["nodes", "--url", "redis+cluster://:hunter2@one:x/"], "URL"),
        (&["nodes", "--cert", file], "--key"),
        (&["nodes", "--ca", "/no/such/file"], "/no/such/file"),
        (
            &["nodes", "--ca", file, "--url", "redis://:hunter2@one/"],
            "rediss",
        ),
    ] {
        run(args).refuses(2, words);
    }
}

#[test]
fn a_store_that_is_unavailable_or_refuses_is_code_3() {
    let closed = ReservedPort::new();
    let url = closed.url().replace("//", "//:hunter2@");
    for args in [
        &["ls"][..],
        &["show", "a"],
        &["nodes"],
        &["audit"],
        &["jobs"],
        &["jobs", "check", "a", "--within", "1h"],
        &["steal", "a", "--yes"],
        &["ls", "--json", "--watch", "1s"],
    ] {
        run(&[args, &["--url", &url]].concat()).refuses(3, "efused");
    }
    let server = RedisServer::with_args(&["--requirepass", "hunter2"]);
    run_on(&server, &["ls"]).refuses(3, "NOAUTH");
    let url = |password| server.url().replace("//", &format!("//:{password}@"));
    run(&["ls", "--url", &url("hunter")]).refuses(3, "WRONGPASS");
    assert_eq!(run(&["ls", "--url", &url("hunter2")]).code, 0);
    // A server that does not know HELLO repeats its arguments.
    let old = RedisServer::with_args(&["--rename-command", "HELLO", ""]);
    let url = old.url().replace("//", "//app:hunter2@") + "?protocol=resp3";
    for args in [&["ls"][..], &["doctor"]] {
        run(&[args, &["--url", &url]].concat()).refuses(3, "unknown command 'HELLO'");
    }
}

#[test]
fn the_environment_names_the_store_and_the_help_hides_its_password() {
    let server = RedisServer::start();
    let set = redis::cmd("SET")
        .arg(&["app:a", "abc"])
        .exec(&mut server.client());
    set.unwrap();
    let closed = ReservedPort::new();
    let wrong = closed.url().replace("//", "//:hunter2@");
    let show = |url: &str| {
        let mut command = command(&["show", "a"]);
        command.env("TENURE_PREFIX", "app:");
        answer(command.env("TENURE_URL", url))
    };
    assert!(show(&server.url()).well().contains("foreign"));
    show(&wrong).refuses(3, "efused");
    let help = answer(command(&["ls", "--help"]).env("TENURE_URL", wrong)).well();
    assert!(help.contains("TENURE_URL") && !help.contains("hunter2"), "{help}");
}

#[test]
fn a_closed_pipe_ends_the_command_quietly() {
    let server = RedisServer::start();
    // A listing without a line writes nothing, and meets no closed pipe.
    let set = redis::cmd("SET")
        .arg(&["lock:a", "abc"])
        .exec(&mut server.client());
    set.unwrap();
    for args in [&["ls"][..], &["ls", "--json", "--watch", "100ms"], &["nodes"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = command(args);
        command
            .args(["--url", &server.url()])
            .stdout(writer)
            .stderr(Stdio::piped());
        let output = command.spawn().unwrap().wait_with_output().unwrap();
        assert!(
            output.status.success() && output.stderr.is_empty(),
            "{args:?}: {output:?}"
        );
    }
}
