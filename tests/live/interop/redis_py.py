"""redis-py's own Lock for interop.rs, which says on stdin what to do with it: one line of words each, one answer each.

acquire NAME SECONDS|endless PATIENCE    yes, or no when PATIENCE seconds were not enough
extend NAME SECONDS                      yes, or the name of what was raised
release NAME                             the same
owned NAME                               yes or no
hold NAME SECONDS                        releases after so many seconds; when, in ns of CLOCK_BOOTTIME
count NAME TIMES                         adds one to what stands in the key `counted`, in two steps under the lock
count-prl NAME TIMES                     the same under the lock of python-redis-lock, which has the same record
"""

import sys
import time

import redis
import redis_lock


def acquire(name, length, patience):
    lock = client.lock(name, timeout=None if length == "endless" else float(length), sleep=0.005)
    locks[name] = lock
    return lock.acquire(blocking_timeout=float(patience))


def count(name, times):
    for _ in range(int(times)):
        with client.lock(name, timeout=60, sleep=0.001, blocking_timeout=20):
            client.set("counted", int(client.get("counted") or 0) + 1)
        time.sleep(0.03)
    return True


def count_prl(name, times):
    for _ in range(int(times)):
        lock = redis_lock.Lock(client, name.removeprefix("lock:"), expire=60)
        # It waits for a message of its own kind, which a release of ours does not send: it looks again after a second.
        while not lock.acquire(timeout=1):
            pass
        client.set("counted", int(client.get("counted") or 0) + 1)
        lock.release()
        time.sleep(0.03)
    return True


def hold(name, seconds):
    time.sleep(float(seconds))
    before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    locks[name].release()
    return before


def obey(verb, name, *words):
    try:
        if verb == "acquire":
            return acquire(name, *words)
        if verb == "count":
            return count(name, *words)
        if verb == "count-prl":
            return count_prl(name, *words)
        if verb == "hold":
            return hold(name, *words)
        if verb == "extend":
            return locks[name].extend(float(*words), replace_ttl=True)
        if verb == "release":
            locks[name].release()
            return True
        if verb == "owned":
            return locks[name].owned()
    except redis.exceptions.LockError as error:
        return type(error).__name__
    sys.exit(f"what is {verb}?")


client = redis.Redis.from_url(sys.argv[1])
locks = {}
print("@redis-py", redis.__version__, flush=True)
for line in sys.stdin:
    done = obey(*line.split())
    print("@said", done if type(done) is int else {True: "yes", False: "no"}.get(done, done), flush=True)
