"""A command with descendants of each kind. Each process writes the time every 5 ms, to the file that it is given."""

import os
import signal
import sys
import time

path, how, code = sys.argv[1], sys.argv[2], int(sys.argv[3])
out = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def beat(seconds=60.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        os.write(out, b"%d\n" % time.clock_gettime_ns(time.CLOCK_MONOTONIC))
        time.sleep(0.005)


def child(live):
    if os.fork() == 0:
        try:
            live()
        finally:
            os._exit(0)


def deaf():
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    beat()


def of_a_session():
    os.setsid()
    child(deaf)
    beat()


def daemon():
    os.setsid()
    child(deaf)


def of_job_control():
    script = "%s %s %s beats 0 & sleep 60" % (sys.executable, __file__, path)
    os.execvp("bash", ["bash", "-mc", script])


if how == "beats":
    deaf()
for live in (beat, deaf, of_a_session, daemon, of_job_control):
    child(live)
if how == "deaf":
    deaf()
if how == "ends":
    beat(0.3)
    sys.exit(code)
if how == "dies":
    beat(0.3)
    os.kill(os.getpid(), signal.SIGKILL)
beat()
