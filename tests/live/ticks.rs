//! Jobs of several processes on one Redis. Each process has its own tokio-cron-scheduler.
//!
//! `TENURE_JOBS_SECONDS=60` makes the runs long. Run them so from time to time.

use crate::help::{Eyes, PATIENCE, ms, now};
use crate::server::RedisServer;
use crate::store::locks_of;
use crate::support::events::Watch;
use crate::support::jobs::ByHand;
use std::collections::BTreeMap;
use std::future::pending;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::pin::Pin;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};
use tenure::Tick;
use tenure::scheduler::{EndedRun, HistoryEntry, JobRun, Misfire, RunOutcome, RunState};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;
use tokio_cron_scheduler::{Job, JobScheduler};

pub(crate) const FAKETIME: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";

/// A replica that stalled for this long may be too late for a tick, or keep a tick open until the next one.
pub(crate) const STALL: Duration = ms(200);

/// The length of the long runs, in seconds.
pub(crate) fn span() -> u64 {
    let seconds = std::env::var("TENURE_JOBS_SECONDS");
    seconds.map_or(12, |seconds| seconds.parse().expect("a number of seconds"))
}

/// Not a test: the entry point of the process that [`Worker`] starts, a replica with a job each second.
#[test]
fn is_a_replica() {
    if std::env::var("TENURE_REPLICA").is_err() {
        return;
    }
    let var = |name: &str| std::env::var(name).unwrap();
    let lease = ms(var("TENURE_LEASE_MS").parse().unwrap());
    let first: u64 = var("TENURE_FIRST_MS").parse().unwrap();
    let (url, expression) = (var("TENURE_URL"), var("TENURE_CRON"));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        say(&format!("clock {} {}", ahead().as_nanos(), now().as_nanos()));
        let request_timeout = ms(var("TENURE_TIMEOUT_MS").parse().unwrap());
        let builder = crate::help::builder()
            .lease(lease)
            .request_timeout(request_timeout);
        let locks = builder.connect(&url).await.unwrap();
        let work = move |tick: Tick| async move {
            let run = format!(
                "{} {} {}",
                tick.nominal_unix(),
                tick.attempt(),
                tick.fence().get()
            );
            // The words for triggered runs are others: they come in any order.
            let (start, mut noted) = match tick.triggered() {
                None => ("start", Noted(run, "dropped")),
                Some(_) => ("tstart", Noted(run, "tdropped")),
            };
            say(&format!("{start} {}", noted.0));
            // Only a first attempt may be long, so that a successor finishes.
            match (first, tick.attempt()) {
                (0, 1) => pending().await,
                (0, _) => sleep(ms(50)).await,
                (first, _) => sleep(ms(first)).await,
            }
            noted.1 = if tick.triggered().is_some() { "tend" } else { "end" };
        };
        let told = |end: EndedRun| {
            if end.outcome == RunOutcome::Done {
                let told = if end.is_triggered { "ttold" } else { "told" };
                let tick = end.tick.duration_since(SystemTime::UNIX_EPOCH).unwrap();
                say(&format!(
                    "{told} {} {} {}",
                    tick.as_secs(),
                    end.attempt,
                    end.fence.get()
                ));
            }
        };
        let scheduler = JobScheduler::new().await.unwrap();
        let mut job = locks.job_builder("replicated").lease(lease).on_end(told);
        if let Ok(within) = std::env::var("TENURE_WITHIN_MS") {
            let within = ms(within.parse().unwrap());
            job = job.misfire(Misfire::RunOnce { within });
        }
        let mut job = job.run(work).unwrap();
        let closure =
            move |id, scheduler| Box::pin(job(id, scheduler)) as Pin<Box<dyn Future<Output = ()> + Send>>;
        let job = Job::new_async(expression.as_str(), closure).unwrap();
        scheduler.add(job).await.unwrap();
        scheduler.start().await.unwrap();
        say("ready 0 0 0");
        let of_this = locks.clone();
        tokio::spawn(async move {
            let mut signals = signal(SignalKind::terminate()).unwrap();
            signals.recv().await;
            let drained = of_this.drain(ms(2_000)).await;
            if drained.is_ok() {
                of_this.shutdown().await;
                say("drained 0 0 0");
            } else {
                say("stuck 0 0 0");
            }
            std::process::exit(0);
        });
        let skewed = Watch::of("job=replicated ");
        tokio::spawn(async move {
            skewed.whenever("clock_skewed").await;
            say("skewed 0 0 0");
        });
        // On this thread, and on the threads that run the job.
        for _ in 0..2 {
            tokio::spawn(tells_stalls());
        }
        tells_stalls().await;
    });
}

async fn tells_stalls() {
    loop {
        let slept = Instant::now();
        sleep(ms(20)).await;
        let took = slept.elapsed();
        if took > STALL {
            say(&format!("stalled 0 0 {}", took.as_millis()));
        }
    }
}

/// Prints a line by one write, so that a kill leaves no half lines.
fn say(line: &str) {
    println!("@{line}");
}

pub(crate) struct Noted(pub(crate) String, pub(crate) &'static str);

impl Drop for Noted {
    fn drop(&mut self) {
        say(&format!("{} {}", self.1, self.0));
    }
}

/// One line of a replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) who: usize,
    pub(crate) what: String,
    pub(crate) tick: u64,
    pub(crate) attempt: u64,
    pub(crate) fence: u64,
}

/// The lines of all replicas, in the order in which they were read.
#[derive(Clone, Default)]
pub(crate) struct Heard(pub(crate) Arc<Mutex<Vec<Line>>>);

impl Heard {
    pub(crate) fn lines(&self) -> Vec<Line> {
        self.0.lock().unwrap().clone()
    }

    pub(crate) fn of(&self, what: &str) -> Vec<Line> {
        let lines = self.lines().into_iter();
        lines.filter(|line| line.what == what).collect()
    }

    pub(crate) fn until(&self, why: &str, so: impl Fn(&Line) -> bool) -> Line {
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            if let Some(line) = self.lines().into_iter().find(&so) {
                return line;
            }
            std::thread::sleep(ms(2));
        }
        panic!("timed out waiting for: {why}: {:#?}", self.lines());
    }

    /// Waits until all three replicas will fire for the next tick.
    pub(crate) fn until_all_ready(&self) {
        for who in 0..3 {
            self.until("all are ready", |line| line.what == "ready" && line.who == who);
        }
    }

    /// Records the stalls of the server and of this process, until the server ends. Replicas report their own.
    pub(crate) fn watch(&self, server: &RedisServer) {
        let (heard, mut client) = (self.clone(), server.client());
        std::thread::spawn(move || {
            loop {
                let slept = Instant::now();
                std::thread::sleep(ms(20));
                let Ok(()) = redis::cmd("PING").exec(&mut client) else {
                    return;
                };
                let took = slept.elapsed();
                if took > STALL {
                    heard.0.lock().unwrap().push(Line {
                        who: 3,
                        what: "stalled".to_owned(),
                        tick: wall().as_secs(),
                        attempt: 0,
                        fence: took.as_millis() as u64,
                    });
                }
            }
        });
    }

    /// Returns the ticks whose runs ended, with the number of such runs.
    pub(crate) fn ended(&self) -> BTreeMap<u64, usize> {
        let mut ended = BTreeMap::new();
        for line in self.of("end") {
            *ended.entry(line.tick).or_default() += 1;
        }
        ended
    }

    /// Checks the invariants. In the order of fences, ticks and their attempts only grow. A tick is not run again after
    /// its run ended and the store was told.
    pub(crate) fn check(&self) {
        let (mut starts, lines) = (self.of("start"), self.lines());
        starts.sort_by_key(|line| line.fence);
        for two in starts.windows(2) {
            assert!(two[0].fence < two[1].fence, "a duplicate fence: {two:?}");
            assert!(two[0].tick <= two[1].tick, "an older tick ran later: {two:?}");
            // The first line of a tick may be of a later attempt: the first winner may have died at once.
            if two[0].tick == two[1].tick {
                assert!(two[1].attempt > two[0].attempt, "{two:?}");
            }
        }
        for run in self.of("told") {
            let again = starts
                .iter()
                .find(|start| start.tick == run.tick && start.fence > run.fence);
            assert!(again.is_none(), "run again: {run:?} {again:?} {lines:#?}");
        }
        let unproven = self.ends_untold().len();
        let twice = self.ended().values().filter(|times| **times > 1).count();
        assert!(twice <= unproven, "ticks with two runs that ended: {lines:#?}");
    }

    /// Returns the runs that ended, but whose process was killed before the store confirmed it.
    pub(crate) fn ends_untold(&self) -> Vec<Line> {
        let told = self.of("told");
        let is_told = |end: &Line| told.iter().any(|told| told.fence == end.fence);
        self.of("end").into_iter().filter(|end| !is_told(end)).collect()
    }
}

/// The settings of a replica.
#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) url: String,
    pub(crate) lease: Duration,
    /// The request timeout. It is long for busy machines.
    pub(crate) request_timeout: Duration,
    /// The duration of a run; `None`: the first attempt never ends.
    pub(crate) lasts: Option<Duration>,
    /// The error of the replica's wall clock, in seconds; empty: none.
    pub(crate) off: &'static str,
    pub(crate) expression: String,
    /// A missed tick is made up for within this time.
    pub(crate) within: Option<Duration>,
}

impl Setup {
    pub(crate) fn on(url: String) -> Setup {
        Setup {
            url,
            lease: ms(30_000),
            request_timeout: ms(10_000),
            lasts: Some(ms(50)),
            off: "",
            expression: "* * * * * *".to_owned(),
            within: None,
        }
    }
}

/// Another process with a scheduler. It is killed when dropped.
pub(crate) struct Worker {
    pub(crate) child: Child,
    /// At its start: how far its wall clock was ahead of its lease clock, and the reading of the lease clock.
    pub(crate) clocks: (Duration, Duration),
}

impl Worker {
    pub(crate) fn start(who: usize, setup: &Setup, heard: &Heard) -> Worker {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args([
                "ticks::is_a_replica",
                "--exact",
                "--nocapture",
                "--test-threads=1",
            ])
            .env("TENURE_REPLICA", who.to_string())
            .env("TENURE_URL", &setup.url)
            .env("TENURE_CRON", &setup.expression)
            .env("TENURE_LEASE_MS", setup.lease.as_millis().to_string())
            .env("TENURE_TIMEOUT_MS", setup.request_timeout.as_millis().to_string())
            .env(
                "TENURE_FIRST_MS",
                setup.lasts.unwrap_or_default().as_millis().to_string(),
            )
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        if let Some(within) = setup.within {
            command.env("TENURE_WITHIN_MS", within.as_millis().to_string());
        }
        if !setup.off.is_empty() {
            assert!(
                Path::new(FAKETIME).exists(),
                "{FAKETIME} is missing: apt-get install libfaketime"
            );
            command
                .env("LD_PRELOAD", FAKETIME)
                .env("FAKETIME", setup.off)
                .env("DONT_FAKE_MONOTONIC", "1")
                .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        }
        let mut child = command.spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let clock = loop {
            let said = next(&mut out).expect("the replica prints a first line");
            if let Some(clock) = said.strip_prefix("clock ") {
                break clock.to_owned();
            }
        };
        let numbers: Vec<u64> = clock.split(' ').map(|n| n.parse().unwrap()).collect();
        let heard = heard.clone();
        std::thread::spawn(move || {
            while let Some(said) = next(&mut out) {
                let words: Vec<&str> = said.split(' ').collect();
                if let [what, tick, attempt, fence] = words[..] {
                    // For a stall, the moment by this process's clock counts.
                    let tick = if what == "stalled" {
                        wall().as_secs()
                    } else {
                        tick.parse().unwrap()
                    };
                    heard.0.lock().unwrap().push(Line {
                        who,
                        what: what.to_owned(),
                        tick,
                        attempt: attempt.parse().unwrap(),
                        fence: fence.parse().unwrap(),
                    });
                }
            }
        });
        Worker {
            child,
            clocks: (Duration::from_nanos(numbers[0]), Duration::from_nanos(numbers[1])),
        }
    }

    pub(crate) fn signal(&self, signal: &str) {
        let id = self.child.id().to_string();
        let status = Command::new("kill").args([signal, &id]).status();
        assert!(status.unwrap().success(), "kill {signal}");
    }

    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns the rest of the next line of a replica. The test harness may print text in front of a line.
fn next(out: &mut impl BufRead) -> Option<String> {
    let mut line = String::new();
    loop {
        line.clear();
        if out.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if let Some((_, said)) = line.split_once('@') {
            return Some(said.trim().to_owned());
        }
    }
}

pub(crate) fn wall() -> Duration {
    let now = std::time::SystemTime::now();
    now.duration_since(std::time::UNIX_EPOCH).unwrap()
}

/// Returns how far the wall clock is ahead of the lease clock.
pub(crate) fn ahead() -> Duration {
    loop {
        let (before, wall, after) = (now(), wall(), now());
        // Otherwise the process stalled in between.
        if after - before < ms(5) {
            return wall - after;
        }
    }
}

/// Runs three replicas, started 170 ms apart, for the whole span, and checks that each tick was run once.
fn once_per_tick(offs: [&'static str; 3]) {
    let (server, heard) = (RedisServer::start(), Heard::default());
    heard.watch(&server);
    let mut workers = Vec::new();
    for (who, off) in offs.into_iter().enumerate() {
        let setup = Setup {
            off,
            ..Setup::on(server.url())
        };
        let started = now();
        workers.push(Worker::start(who, &setup, &heard));
        let (seen, lease_clock) = workers[who].clocks;
        assert!(
            (started..=now()).contains(&lease_clock),
            "the lease clock is not changed"
        );
        let is_off = seen.as_secs_f64() - ahead().as_secs_f64();
        let expected: f64 = off.parse().unwrap_or_default();
        assert!(
            (is_off - expected).abs() < 0.1,
            "its wall clock is off by {is_off}, not {off}"
        );
        std::thread::sleep(ms(170));
    }
    // The span begins when all replicas are up by their own clocks: a replica that is behind runs older ticks while it is alone.
    let first = wall().as_secs() + 3;
    std::thread::sleep(Duration::from_secs(span() + 3));
    let last = wall().as_secs() - 3;
    // Runs in progress end.
    std::thread::sleep(ms(1_000));
    drop(workers);
    heard.check();
    let ended = heard.ended();
    // A machine that is too busy misses ticks. A reported stall excuses a missed tick, but no tick that was run twice.
    let stalls = heard.of("stalled");
    let excused = |tick: u64| {
        let excuses = |stall: &Line| stall.tick - stall.fence / 1_000 <= tick + 2 && tick <= stall.tick + 2;
        stalls.iter().any(excuses)
    };
    let mut missed = 0;
    for tick in first..=last {
        match ended.get(&tick) {
            Some(1) => {}
            None if excused(tick) => missed += 1,
            times => panic!(
                "tick {tick} of {offs:?} was run {times:?} times: {:#?}",
                heard.lines()
            ),
        }
    }
    for (who, off) in offs.into_iter().enumerate() {
        let is_told = heard.of("skewed").iter().any(|line| line.who == who);
        let off: f64 = off.parse().unwrap_or_default();
        assert_eq!(
            is_told,
            off.abs() > 1.0,
            "{who} is {off} s off: {:?}",
            heard.of("skewed")
        );
    }
    let starts = heard.of("start");
    assert!(starts.iter().all(|line| line.attempt == 1), "{starts:#?}");
    let mut of: [usize; 3] = [0; 3];
    starts.iter().for_each(|line| of[line.who] += 1);
    println!(
        "{offs:?}: {} runs for {} ticks, by {of:?}; {missed} more while the machine stalled",
        starts.len(),
        ended.len()
    );
}

/// The runs are in parallel: they mostly wait.
#[test]
fn three_processes_run_each_tick_once_whatever_their_clocks() {
    std::thread::scope(|scope| {
        for offs in [["", "", ""], ["", "+0.4", "-0.4"], ["", "+2.0", "-2.0"]] {
            scope.spawn(move || once_per_tick(offs));
        }
    });
}

/// Checks that the store's history has each run once, with the end that the store was told. Entries without a run are of
/// replicas that were killed before their run began.
fn check_history(server: &RedisServer, heard: &Heard) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let history = runtime.block_on(async {
        let locks = locks_of(server, "look").await;
        let history = locks.jobs().history("replicated", SystemTime::UNIX_EPOCH).await;
        history.unwrap().expect("the store knows the job")
    });
    let mut runs = BTreeMap::new();
    for entry in history.entries {
        if let HistoryEntry::Run(run) = entry {
            assert!(runs.insert(run.fence.get(), run).is_none(), "a run is there once");
        }
    }
    check_runs(runs, heard);
}

/// Checks runs of the history, by fence, against what the replicas printed since the oldest of them.
pub(crate) fn check_runs(mut runs: BTreeMap<u64, JobRun>, heard: &Heard) {
    let oldest = *runs.keys().next().expect("there are runs");
    for (triggered, [start, told, end]) in [
        (false, ["start", "told", "end"]),
        (true, ["tstart", "ttold", "tend"]),
    ] {
        let (told, ends) = (heard.of(told), heard.of(end));
        for start in heard.of(start).iter().filter(|start| start.fence >= oldest) {
            let run = runs
                .remove(&start.fence)
                .unwrap_or_else(|| panic!("{start:?} is missing"));
            let tick = run.tick.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
            assert_eq!(
                (tick, u64::from(run.attempt), run.is_triggered),
                (start.tick, start.attempt, triggered),
                "{run:?}"
            );
            let has = |lines: &[Line]| lines.iter().any(|line| line.fence == start.fence);
            let expected = match run.state {
                RunState::Ended(RunOutcome::Done) => has(&ends),
                RunState::Ended(RunOutcome::HandedOver) => !has(&ends),
                RunState::Lost | RunState::Running => !has(&told),
                _ => false,
            };
            assert!(expected, "{run:?} of {start:?}");
        }
    }
    for run in runs.values() {
        let state = run.state;
        let is_right = matches!(state, RunState::Lost | RunState::Running)
            || state == RunState::Ended(RunOutcome::HandedOver);
        assert!(is_right, "{run:?} did not begin");
    }
}

/// A random replica is killed and restarted: every ten seconds in a long run, and every second in a short one.
#[test]
fn repeatedly_killed_processes_run_no_tick_twice() {
    let (server, heard) = (RedisServer::start(), Heard::default());
    let setup = Setup {
        lease: ms(2_000),
        ..Setup::on(server.url())
    };
    let mut workers: Vec<_> = (0..3).map(|who| Worker::start(who, &setup, &heard)).collect();
    let (began, mut kills) = (Instant::now(), 0);
    let every = ms(if span() < 60 { 1_000 } else { 10_000 });
    while every * (kills + 1) <= Duration::from_secs(span()) {
        // At a random moment of each round; half of the kills are in the middle of a run.
        let at = every * kills + every.mul_f64(fastrand::f64());
        std::thread::sleep(at.saturating_sub(began.elapsed()));
        let mut who = fastrand::usize(..3);
        if fastrand::bool() {
            let seen = heard.lines().len();
            let look = Instant::now();
            while look.elapsed() < ms(1_500) {
                let lines = heard.lines();
                if let Some(line) = lines[seen..].iter().find(|line| line.what == "start") {
                    who = line.who;
                    break;
                }
                std::thread::sleep(ms(1));
            }
        }
        workers[who].kill();
        workers[who] = Worker::start(who, &setup, &heard);
        kills += 1;
        println!("{:.1?}: replica {who} killed and started again", began.elapsed());
    }
    // The tick of the last killed replica is taken over, and ticks continue.
    let seen = heard.of("told").len();
    let look = Instant::now();
    while heard.of("told").len() < seen + 3 {
        assert!(look.elapsed() < PATIENCE, "ticks continue: {:#?}", heard.lines());
        std::thread::sleep(ms(10));
    }
    drop(workers);
    heard.check();
    check_history(&server, &heard);
    let (starts, ended) = (heard.of("start"), heard.ended().len());
    let again = starts.iter().filter(|line| line.attempt > 1).count();
    let dead = starts.len() - heard.of("end").len();
    println!(
        "{kills} kills, {dead} of them in the middle of a run; {} runs, {ended} ticks to their end, {again} taken over, \
         none run twice",
        starts.len(),
    );
    assert!(ended > 2, "{:#?}", heard.lines());
}

/// A job that one replica runs for ever, while the two others wait.
pub(crate) struct Run {
    pub(crate) _server: RedisServer,
    pub(crate) setup: Setup,
    pub(crate) heard: Heard,
    pub(crate) workers: Vec<Worker>,
    pub(crate) owner: Line,
}

impl Run {
    const LEASE: Duration = ms(4_000);

    /// Starts the replicas with a single tick, for which all are ready. Ticks during its run are skipped.
    pub(crate) fn start() -> Run {
        for lead in [4, 12, 24] {
            let (server, heard) = (RedisServer::start(), Heard::default());
            let tick = wall().as_secs() + lead;
            let setup = Setup {
                lease: Run::LEASE,
                lasts: None,
                expression: format!("{} * * * * *", tick % 60),
                ..Setup::on(server.url())
            };
            let workers: Vec<_> = (0..3).map(|who| Worker::start(who, &setup, &heard)).collect();
            heard.until_all_ready();
            if wall() >= Duration::from_secs(tick) {
                continue;
            }
            let owner = heard.until("a run", |line| line.what == "start");
            let (mut eyes, began) = (Eyes::on(&server), Instant::now());
            // Each has two entries in the queue.
            while eyes.entries() != 4 {
                assert!(
                    began.elapsed() < PATIENCE,
                    "two replicas wait: {:#?}",
                    heard.lines()
                );
                std::thread::sleep(ms(2));
            }
            return Run {
                _server: server,
                setup,
                heard,
                workers,
                owner,
            };
        }
        panic!("three replicas are not ready within 24 s");
    }

    /// Kills a replica and starts another in its place, which does not know the run.
    pub(crate) fn replace(&mut self, who: usize) {
        self.workers[who].kill();
        self.workers[who] = Worker::start(3 + who, &self.setup, &self.heard);
        self.heard.until("the new replica is ready", |line| {
            line.what == "ready" && line.who == 3 + who
        });
    }

    /// Waits until a replica that came later has run the tick again, to its end.
    pub(crate) fn until_finished(&self) -> Line {
        let next = self
            .heard
            .until("a successor", |line| line.what == "start" && line.attempt > 1);
        assert_eq!(next.tick, self.owner.tick);
        assert!(next.who >= 3, "the successor came later: {next:?}");
        assert!(next.fence > self.owner.fence);
        self.heard
            .until("its end", |line| line.what == "end" && line.fence == next.fence);
        self.heard.check();
        next
    }
}

/// A deploy during the nightly job: no replica that fired for the tick is left when the new replicas are up.
#[test]
fn a_rolling_deploy_during_a_run_finishes_its_tick() {
    let mut run = Run::start();
    let owner = run.owner.who;
    for who in (0..3).filter(|who| *who != owner).chain([owner]) {
        run.replace(who);
    }
    let next = run.until_finished();
    println!("finished by {} as attempt {}", next.who, next.attempt);
}

/// All replicas die at once, as when the machine or its power fails.
#[test]
fn a_tick_whose_nodes_were_all_killed_is_finished_by_later_nodes() {
    let mut run = Run::start();
    for worker in &mut run.workers {
        worker.kill();
    }
    for who in 0..3 {
        run.replace(who);
    }
    run.until_finished();
}

#[test]
fn a_killed_owner_has_a_successor() {
    let Run {
        _server,
        setup: _,
        heard,
        mut workers,
        owner,
    } = Run::start();
    workers[owner.who].kill();
    let next = heard.until("a successor", |line| line.what == "start" && line.attempt == 2);
    assert_eq!(next.tick, owner.tick);
    assert_ne!(next.who, owner.who);
    assert!(next.fence > owner.fence);
    heard.until("its end", |line| line.what == "end" && line.fence == next.fence);
    heard.check();
}

#[test]
fn a_stopped_owner_learns_its_loss_and_its_fence_is_refused() {
    let Run {
        _server,
        setup: _,
        heard,
        workers,
        owner,
    } = Run::start();
    workers[owner.who].signal("-STOP");
    let next = heard.until("a successor", |line| line.what == "start" && line.attempt == 2);
    heard.until("its end", |line| line.what == "end" && line.fence == next.fence);
    assert_eq!(heard.of("dropped"), [], "the owner is still stopped");
    workers[owner.who].signal("-CONT");
    heard.until("the owner learns its loss, and its future is dropped", |line| {
        line.what == "dropped" && line.fence == owner.fence
    });
    assert!(!heard.of("end").iter().any(|line| line.fence == owner.fence));
    // A register that accepts only writes with the largest fence so far.
    let mut register = next.fence;
    let mut write = |fence: u64| {
        let taken = fence >= register;
        register = register.max(fence);
        taken
    };
    assert!(write(next.fence) && !write(owner.fence));
    heard.check();
}
