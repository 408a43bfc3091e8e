//! What commands do in an ordinary week: they count signals, stop themselves, log through a pipe, have no first line.

use std::io::Write;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::Command;

use rustix::process::Signal;

use crate::run::{MARK, ends, marked, run_with, send, until};
use crate::server::RedisServer;
use crate::tools::{answer, run_on};

/// Returns a path that no other test has.
fn fresh(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("tenure-run-{name}-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    path
}

fn text(path: &PathBuf) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// A program may take the second TERM as an order to leave its work.
#[test]
fn term_is_sent_once_although_the_lease_is_renewed() {
    let server = RedisServer::start();
    let counted = fresh("terms");
    let script = "trap 'echo TERM >>\"$0\"' TERM; echo began >>\"$0\"; while :; do sleep 0.05; done";
    let mut command = run_with(&server, &["key", "--lease", "5s", "--", "sh", "-c", script]);
    let mut run = command.arg(&counted).spawn().unwrap();
    until("it began", || text(&counted).contains("began"));
    let stolen = run_on(&server, &["steal", "key", "--yes", "--grace", "4s"]);
    assert_eq!(stolen.code, 0, "{stolen:?}");
    assert_eq!(ends(&mut run).code(), Some(123));
    assert_eq!(text(&counted).matches("TERM").count(), 1);
}

#[test]
fn what_a_command_logs_through_a_pipe_is_logged_to_the_end() {
    let server = RedisServer::start();
    let log = fresh("log");
    let script = "exec > >(while read -r line; do sleep 0.1; echo \"$line\" >>\"$0\"; done); echo building; echo deployed";
    let mut command = run_with(&server, &["key", "--", "bash", "-c", script]);
    answer(command.arg(&log)).well();
    assert_eq!(text(&log), "building\ndeployed\n");
}

#[test]
fn a_command_that_has_stopped_itself_is_ended() {
    let server = RedisServer::start();
    let began = fresh("stopped");
    let script = "echo $$ >\"$0\"; kill -STOP $$; sleep 60";
    let mut command = run_with(&server, &["key", "--", "sh", "-c", script]);
    let mut run = command.arg(&began).spawn().unwrap();
    until("it has stopped", || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", text(&began).trim()));
        stat.is_ok_and(|stat| stat.contains(") T "))
    });
    send(run.id(), Signal::TERM);
    assert_eq!(ends(&mut run).code(), Some(128 + 15));
}

#[test]
fn a_script_needs_no_first_line() {
    use std::os::unix::fs::PermissionsExt;

    let server = RedisServer::start();
    let script = fresh("script");
    std::fs::write(&script, "echo \"$1\" of $TENURE_KEY\n").unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = run_with(&server, &["key", "--"]);
    assert_eq!(
        answer(command.arg(&script).arg("backup")).well(),
        "backup of key\n"
    );
}

/// The log is a pipe without a reader.
#[test]
fn a_log_that_blocks_does_not_keep_the_key() {
    let server = RedisServer::start();
    let (reader, mut writer) = std::io::pipe().unwrap();
    rustix::io::ioctl_fionbio(writer.as_fd(), true).unwrap();
    while writer.write(&[0; 4096]).is_ok() {}
    rustix::io::ioctl_fionbio(writer.as_fd(), false).unwrap();
    let script = "kill -9 $PPID; sleep 60";
    let mut command = run_with(&server, &["key", "--lease", "1h", "--", "sh", "-c", script]);
    let mut run = command.stderr(writer).spawn().unwrap();
    until("the key is released", || {
        run_on(&server, &["nodes", "--json"]).out.contains("sh")
            && run_on(&server, &["ls", "--json"]).out.is_empty()
    });
    drop(reader);
    ends(&mut run);
}

/// `sh -c 'helper & exec tenure run …'`: the helper is a child of `run`, and none of the command.
#[test]
fn a_child_that_run_had_before_is_left_alone() {
    let server = RedisServer::start();
    let mark = format!("helper-{}", server.port());
    let script = format!(
        "sleep 60 & exec {} run --url {} key -- sh -c 'kill -9 $PPID; sleep 60'",
        env!("CARGO_BIN_EXE_tenure"),
        server.url()
    );
    let mut shell = Command::new("sh");
    let mut run = shell.args(["-c", &script]).env(MARK, &mark).spawn().unwrap();
    ends(&mut run);
    let [helper] = &marked(&mark)[..] else {
        panic!("the helper alone lives: {:?}", marked(&mark));
    };
    let command = std::fs::read_to_string(helper.join("cmdline")).unwrap();
    assert!(command.starts_with("sleep"), "{command:?}");
    let pid = helper.file_name().unwrap().to_string_lossy().parse().unwrap();
    send(pid, Signal::KILL);
}
