//! `run` at a terminal, under a shell with job control.

use crate::server::RedisServer;
use crate::tools::python;

/// Starts a shell at a terminal. Each step waits for a text of the terminal, and then types another. Prints what was shown.
const SHELL: &str = "import json, os, pty, select, signal, sys, time\n\
    url, tenure, steps = json.load(sys.stdin)\n\
    child, terminal = pty.fork()\n\
    if child == 0:\n\
    \x20   for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT): signal.signal(number, signal.SIG_DFL)\n\
    \x20   os.environ.update(TENURE_URL=url, T=tenure, PS1='$ ', TERM='dumb')\n\
    \x20   os.execvp('bash', ['bash', '--norc', '--noprofile', '--noediting', '-i'])\n\
    shown, seen = b'', 0\n\
    for awaited, pause, typed in steps:\n\
    \x20   end = time.monotonic() + 30\n\
    \x20   while awaited.encode() not in shown[seen:]:\n\
    \x20       assert time.monotonic() < end, (awaited, shown)\n\
    \x20       if select.select([terminal], [], [], 0.1)[0]: shown += os.read(terminal, 4096)\n\
    \x20   seen = shown.index(awaited.encode(), seen) + len(awaited)\n\
    \x20   time.sleep(pause)\n\
    \x20   os.write(terminal, typed.encode())\n\
    os.kill(child, signal.SIGKILL)\n\
    os.waitpid(child, 0)\n\
    print(shown.decode())";

/// Awaits a text, pauses for so many seconds, and types another text.
type Step = (&'static str, f64, &'static str);

fn at_a_shell(steps: &[Step]) -> String {
    let server = RedisServer::start();
    let input = serde_json::to_string(&(server.url(), env!("CARGO_BIN_EXE_tenure"), steps)).unwrap();
    python(SHELL, &input)
}

#[test]
fn ctrl_c_ends_a_loop_around_it() {
    let shown = at_a_shell(&[
        (
            "$ ",
            0.0,
            // A shell that gets INT while it starts `sleep` may go on to wait for it.
            "for i in 1 2 3; do $T run key -- python3 -c 'import time; print(\"be\" + \"gun\", flush=True); time.sleep(60)'; echo ag''ain; done\n",
        ),
        ("begun", 0.0, "\x03"),
        ("$ ", 0.0, "echo code=$?\n"),
        ("code=130", 0.0, ""),
    ]);
    assert!(!shown.contains("again"), "{shown}");
}

/// The terminal has not sent it, so the command has not got it.
#[test]
fn int_from_another_process_reaches_the_command() {
    at_a_shell(&[
        (
            "$ ",
            0.0,
            "timeout --foreground -s INT 6 $T run key -- sh -c 'trap \"echo in''terrupted; exit 7\" INT; while :; do sleep 0.05; done'\n",
        ),
        ("interrupted", 0.0, "echo code=$?\n"),
        ("code=124", 0.0, ""),
    ]);
}

#[test]
fn ctrl_z_and_fg_go_on_within_the_lease() {
    at_a_shell(&[
        (
            "$ ",
            0.0,
            "$T run key --lease 20s -- sh -c 'echo be''gun; read line; echo got:$line'\n",
        ),
        ("begun", 0.0, "\x1a"),
        ("Stopped", 0.0, "fg\n"),
        ("read line", 0.0, "a word\n"),
        ("got:a word", 0.0, "echo code=$?\n"),
        ("code=0", 0.0, ""),
    ]);
}

#[test]
fn ctrl_z_for_longer_than_the_lease_ends_the_command() {
    at_a_shell(&[
        (
            "$ ",
            0.0,
            "$T run key --lease 2s -- sh -c 'echo be''gun; sleep 60'\n",
        ),
        ("begun", 0.0, "\x1a"),
        ("Stopped", 2.5, "fg\n"),
        ("its lease was lost", 0.0, "echo code=$?\n"),
        ("code=123", 0.0, ""),
    ]);
}

#[test]
fn the_command_reads_the_terminal_and_feeds_a_pipeline() {
    at_a_shell(&[
        (
            "$ ",
            0.0,
            "$T run key -- sh -c 'echo be''gun; read line; echo got:$line'\n",
        ),
        ("begun", 0.0, "a word\n"),
        ("got:a word", 0.0, ""),
        (
            "$ ",
            0.0,
            "$T run key -- sh -c 'echo ready; exec seq 1000' | (read line </dev/tty; grep -c 1)\n",
        ),
        ("grep -c 1)", 0.0, "go\n"),
        ("272", 0.0, "echo code=$?\n"),
        ("code=0", 0.0, ""),
    ]);
}
