//! A wall clock for one program, which a test steps.

use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// What a program that loads it first takes for the wall clock: off by as many seconds as a file says, at any moment.
/// Durations are right. (libfaketime and the jemalloc of a redis-server wait for each other for ever.)
const SHIM: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long off(void) {
    static volatile long *shared;
    if (!shared) {
        int file = open(OFF, O_RDONLY);
        void *map = mmap(0, sizeof(long), PROT_READ, MAP_SHARED, file, 0);
        close(file);
        if (map == MAP_FAILED) _exit(3);
        shared = map;
    }
    return *shared;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    int result = syscall(SYS_clock_gettime, clock, time);
    if (!result && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) time->tv_sec += off();
    return result;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *time) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (time) *time = now.tv_sec;
    return now.tv_sec;
}
"#;

/// A directory with the library and the file that it reads. Gone when dropped.
pub struct WallClock(PathBuf);

impl WallClock {
    pub fn new() -> WallClock {
        static MADE: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let n = MADE.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let clock = WallClock(std::env::temp_dir().join(format!("tenure-clock-{}-{n}", std::process::id())));
        std::fs::create_dir_all(&clock.0).unwrap();
        std::fs::write(clock.0.join("off"), 0i64.to_ne_bytes()).unwrap();
        let mut cc = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-x", "c", "-"])
            .arg(format!("-DOFF=\"{}\"", clock.0.join("off").display()))
            .arg("-o")
            .arg(clock.library())
            .stdin(Stdio::piped())
            .spawn()
            .expect("cc, which rustc needs too");
        cc.stdin.take().unwrap().write_all(SHIM.as_bytes()).unwrap();
        assert!(cc.wait().unwrap().success(), "cc");
        clock
    }

    pub fn library(&self) -> PathBuf {
        self.0.join("clock.so")
    }

    /// Sets by how many seconds the clock is off.
    pub fn step(&self, seconds: i64) {
        let file = std::fs::OpenOptions::new().write(true).open(self.0.join("off"));
        file.unwrap().write_all_at(&seconds.to_ne_bytes(), 0).unwrap();
    }
}

impl Drop for WallClock {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
