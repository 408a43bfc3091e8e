"""Locks of Python for interop.rs, which names one and says on stdin what to do with it: one line of words each, one
answer each.

acquire NAME SECONDS|endless PATIENCE    yes, or no when PATIENCE seconds were not enough
extend NAME SECONDS                      yes, or the name of what was raised
release NAME                             the same
owned NAME                               yes or no: whether the record is that of this process
hold NAME SECONDS                        releases after so many seconds; when, in ns of CLOCK_BOOTTIME
halves NAME SECONDS KEYS                 holds each of NAME0, NAME1 … for half of each second; when each was released,
                                         in ns of CLOCK_BOOTTIME, commas between: key:time
poll NAME SECONDS                        takes it and gives it back, and does something else for 0.2 s, for so many
                                         seconds; how often
count NAME SECONDS                       adds one to what stands in the key `counted`, in two steps under the lock, for
                                         so many seconds; how often
"""

import random
import sys
import threading
import time

import redis
import redis_lock


class RedisPy:
    raised = redis.exceptions.LockError

    def __init__(self, name, length, sleep):
        self.lock = client.lock(name, timeout=None if length == "endless" else float(length), sleep=sleep)

    def acquire(self, patience):
        return self.lock.acquire(blocking_timeout=patience)

    def extend(self, seconds):
        return self.lock.extend(seconds, replace_ttl=True)

    def release(self):
        self.lock.release()

    def value(self):
        return self.lock.local.token


class PythonRedisLock:
    raised = (redis_lock.NotAcquired, redis_lock.NotExpirable)

    def __init__(self, name, length, sleep):
        self.lock = redis_lock.Lock(client, name.removeprefix("lock:"), expire=int(length))

    def acquire(self, patience):
        # It waits for a message of its own kind, which a release of ours does not send: it looks again after a second.
        end = time.monotonic() + patience
        while not self.lock.acquire(blocking=patience > 0, timeout=1 if patience > 0 else None):
            if time.monotonic() >= end:
                return False
        return True

    def extend(self, seconds):
        self.lock.extend(int(seconds))
        return True

    def release(self):
        self.lock.release()

    def value(self):
        return self.lock.id.encode()


def acquire(name, length, patience, sleep=0.005):
    locks[name] = LIBRARIES[library](name, length, sleep)
    return locks[name].acquire(float(patience))


def owned(name):
    return client.get(name) == locks[name].value()


def count(name, seconds):
    end, added = time.monotonic() + float(seconds), 0
    while time.monotonic() < end:
        if not acquire(name, 60, 20):
            sys.exit("20 seconds were not enough")
        counted = int(client.get("counted") or 0)
        time.sleep(0.001)
        client.set("counted", counted + 1)
        if not owned(name):
            sys.exit("the record is not ours while we hold it")
        locks[name].release()
        added += 1
        time.sleep(random.uniform(0.005, 0.015))
    return added


def poll(name, seconds):
    end, got = time.monotonic() + float(seconds), 0
    while time.monotonic() < end:
        # As often as it looks when nobody says otherwise.
        if acquire(name, 60, 1, sleep=0.1):
            got += 1
            locks[name].release()
            time.sleep(0.2)
    return got


def hold(name, seconds):
    time.sleep(float(seconds))
    before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    locks[name].release()
    return before


def halves(name, seconds, keys):
    released = []

    def hold_by_halves(key):
        lock = client.lock(f"{name}{key}", timeout=60, sleep=0.01, thread_local=False)
        # Not all at once.
        due = start + key / int(keys)
        while due < start + float(seconds):
            time.sleep(max(0, due - time.monotonic()))
            lock.acquire()
            time.sleep(0.5)
            before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
            lock.release()
            released.append(f"{key}:{before}")
            due += 1

    start = time.monotonic()
    threads = [threading.Thread(target=hold_by_halves, args=(key,)) for key in range(int(keys))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ",".join(released)


def release(name):
    locks[name].release()
    return True


def extend(name, seconds):
    return locks[name].extend(float(seconds))


def obey(verb, name, *words):
    try:
        return VERBS[verb](name, *words)
    except LIBRARIES[library].raised as error:
        return type(error).__name__


LIBRARIES = {"redis-py": RedisPy, "python-redis-lock": PythonRedisLock}
VERBS = {verb.__name__: verb for verb in (acquire, extend, release, owned, hold, halves, poll, count)}
url, library = sys.argv[1:]
client = redis.Redis.from_url(url)
locks = {}
print("@ready", library, flush=True)
for line in sys.stdin:
    done = obey(*line.split())
    print("@said", done if type(done) is int else {True: "yes", False: "no"}.get(done, done), flush=True)
