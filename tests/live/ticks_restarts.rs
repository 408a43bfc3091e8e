//! Ticks around faults: a Redis that is unavailable, restarted or behind, and replicas that were drained or stopped.

use crate::help::{Eyes, locks, ms, soon, until};
use crate::server::RedisServer;
use crate::support::events::Watch;
use crate::support::jobs::ByHand;
use crate::ticks::{Heard, Line, Setup, Worker, wall};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tenure::Tick;
use tokio::time::sleep;
use tokio_cron_scheduler::{Job, JobScheduler};

/// No replica can claim the tick when it is due. When the server is back, one replica runs the tick, once.
#[test]
fn a_tick_during_an_outage_is_run_once_after_it() {
    let (server, heard) = (RedisServer::start(), Heard::default());
    let setup = Setup {
        lease: ms(8_000),
        expression: "0,20,40 * * * * *".to_owned(),
        ..Setup::on(server.url())
    };
    let workers: Vec<_> = (0..3).map(|who| Worker::start(who, &setup, &heard)).collect();
    heard.until_all_ready();
    let (tick, before) = loop {
        let tick = (wall().as_secs() + 2).next_multiple_of(20);
        std::thread::sleep(Duration::from_secs(tick - 1).saturating_sub(wall()));
        let before = heard.of("start").len();
        server.freeze();
        if wall().as_secs() < tick {
            break (tick, before);
        }
        server.thaw();
    };
    // Longer than 2 s, so that some requests have failed and others are in flight when the server is back.
    std::thread::sleep(ms(4_500));
    assert_eq!(heard.of("start").len(), before, "no replica runs");
    server.thaw();
    heard.until("its end", |line| line.what == "told" && line.tick == tick);
    // Requests that were in flight have timed out by then.
    std::thread::sleep(ms(2_500));
    drop(workers);
    heard.check();
    let starts = heard.of("start");
    assert_eq!(
        starts.iter().filter(|line| line.tick == tick).count(),
        1,
        "{starts:#?}"
    );
    assert_eq!(heard.ended()[&tick], 1);
}

/// A server that recovers grants nothing. A job of each second has no alarm then, and goes on with the newest tick.
/// `TENURE_RECOVERY_SECONDS` is how long that takes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recovery_skips_no_tick_of_a_job_each_second() {
    let seconds = std::env::var("TENURE_RECOVERY_SECONDS").map_or(6, |text| text.parse().unwrap());
    let (server, watch) = (RedisServer::start(), Watch::of("job=each-second "));
    let begun: Arc<Mutex<Vec<u64>>> = Arc::default();
    let mut replicas = Vec::new();
    for _ in 0..3 {
        let (node, of_job) = (locks(&server.url(), ms(3_000)).await, begun.clone());
        let job = node.every("each-second", ms(1_000)).run(move |tick: Tick| {
            of_job.lock().unwrap().push(tick.nominal_unix());
            async {}
        });
        let scheduler = JobScheduler::new().await.unwrap();
        node.add_job(&scheduler, job.unwrap()).await.unwrap();
        scheduler.start().await.unwrap();
        replicas.push((node, scheduler));
    }
    until("it runs", || begun.lock().unwrap().len() >= 2).await;
    let mut recover = redis::cmd("SET");
    recover
        .arg("tenure1:recovering")
        .arg("run")
        .arg("PX")
        .arg(seconds * 1_000);
    let () = recover.query(&mut server.client()).unwrap();
    let from = wall().as_secs() + 1;
    sleep(Duration::from_secs(seconds)).await;
    until("it runs again", || {
        begun.lock().unwrap().iter().filter(|tick| **tick > from).count() >= 3
    })
    .await;
    for (node, mut scheduler) in replicas {
        scheduler.shutdown().await.unwrap();
        soon(node.shutdown()).await;
    }
    let mut begun = begun.lock().unwrap().clone();
    let later: Vec<_> = begun.iter().copied().filter(|tick| *tick > from).collect();
    assert!(
        later[0] + 2 >= from + seconds,
        "the newest tick is first: {begun:?}, it ended {seconds} s after {from}"
    );
    let count = begun.len();
    begun.sort_unstable();
    begun.dedup();
    assert_eq!(begun.len(), count, "each tick once");
    assert_eq!(watch.count("job_skips"), 0, "{:#?}", watch.told());
    println!("a recovery of {seconds} s from {from}: {later:?}");
}

/// A tick is made up for within 12 s by the server's clock, though the clocks of two replicas are 4 s apart. The replica that
/// is ahead gives the tick up no sooner, and the replica that is behind no later.
#[test]
fn the_lateness_of_a_tick_is_measured_by_the_servers_clock() {
    let (server, heard) = (RedisServer::start(), Heard::default());
    let worker = |(who, off): (usize, &'static str)| {
        let setup = Setup {
            off,
            expression: "0,20,40 * * * * *".to_owned(),
            within: Some(ms(12_000)),
            ..Setup::on(server.url())
        };
        Worker::start(who, &setup, &heard)
    };
    let workers: Vec<_> = ["+2.0", "-2.0", ""].into_iter().enumerate().map(worker).collect();
    heard.until_all_ready();
    // From the first tick on the replicas know their expression and the server's clock.
    heard.until("a run", |line| line.what == "told");
    let mut frozen = Vec::new();
    for (late, is_run) in [(ms(4_000), true), (ms(12_700), false)] {
        // The tick is too late by the server's clock. Only the replica that is behind runs; by its own clock the tick is in time.
        let others = [&workers[0], &workers[2]];
        let others = if is_run { &others[..0] } else { &others };
        others.iter().for_each(|other| other.signal("-STOP"));
        let tick = loop {
            let tick = (wall().as_secs() + 4).next_multiple_of(20);
            // Before the replica that is ahead fires.
            std::thread::sleep(Duration::from_secs(tick - 3).saturating_sub(wall()));
            server.freeze();
            if wall().as_secs() < tick - 2 {
                break tick;
            }
            server.thaw();
        };
        std::thread::sleep((Duration::from_secs(tick) + late).saturating_sub(wall()));
        server.thaw();
        frozen.push((tick, is_run));
        if !is_run {
            std::thread::sleep(ms(3_000));
        }
        others.iter().for_each(|other| other.signal("-CONT"));
        let next = tick + 20;
        heard.until("the next tick runs as usual", |line| {
            line.what == "told" && line.tick == next
        });
    }
    // The replica that is behind reports 4 s later.
    std::thread::sleep(ms(4_500));
    drop(workers);
    heard.check();
    let (starts, stalls) = (heard.of("start"), heard.of("stalled"));
    for (tick, is_run) in frozen {
        let runs = starts.iter().filter(|line| line.tick == tick).count();
        // A stall of the replica itself excuses the tick. The server's stall is the test.
        let is_near = |stall: &Line| (tick - 3..tick + 18).contains(&stall.tick) && stall.fence > 500;
        let excused = runs <= 1 && stalls.iter().any(|stall| stall.who == 1 && is_near(stall));
        println!("{tick} was run {runs} times, expected a run: {is_run}; excused: {excused}");
        assert!(
            runs == usize::from(is_run) || excused,
            "{tick} was run {runs} times, expected a run: {is_run}: {:#?}",
            heard.lines()
        );
    }
}

/// Of many missed ticks only the last few are run: the ticks whose requests are still in flight when the server is back,
/// and the latest tick of each replica, each at its own phase. They run one after the other, and none runs twice.
#[test]
fn ticks_of_a_long_outage_are_not_made_up_for() {
    let (server, heard) = (RedisServer::start(), Heard::default());
    let setup = Setup {
        lease: ms(8_000),
        request_timeout: ms(2_000),
        ..Setup::on(server.url())
    };
    let workers: Vec<_> = (0..3).map(|who| Worker::start(who, &setup, &heard)).collect();
    heard.until("a run", |line| line.what == "told");
    server.freeze();
    let left = wall().as_secs();
    // Earlier requests get no more answers, and all earlier answers have been read.
    std::thread::sleep(ms(1_500));
    let before = heard.of("start").len();
    std::thread::sleep(ms(9_200));
    assert_eq!(
        heard.of("start").len(),
        before,
        "no replica runs: {:#?}",
        heard.lines()
    );
    let back = wall().as_secs();
    server.thaw();
    heard.until("ticks continue", |line| line.what == "told" && line.tick > back);
    drop(workers);
    heard.check();
    let ended = heard.ended();
    let late: Vec<_> = ended
        .keys()
        .filter(|tick| (left + 1..back).contains(*tick))
        .collect();
    // A replica gives a tick up when a request and a connection had no answer for the request timeout, 2 s each. Then it
    // pursues only the newest tick. A busy machine adds a short delay.
    assert!(
        late.len() <= 6 && late.iter().all(|tick| **tick + 6 >= back),
        "{late:?} at {back}: {:#?}",
        heard.lines()
    );
    println!(
        "{} ticks missed, {} of them run late",
        back - left - 1,
        late.len()
    );
}

/// A deploy of a service with a job each second: each replica is drained at a tick, and another one replaces it.
#[test]
fn replicas_that_are_drained_at_the_tick_leave_it_to_the_others() {
    let (server, heard) = (RedisServer::start(), Heard::default());
    heard.watch(&server);
    let setup = Setup {
        lease: ms(3_000),
        lasts: Some(ms(150)),
        ..Setup::on(server.url())
    };
    let mut workers: Vec<_> = (0..3).map(|who| Worker::start(who, &setup, &heard)).collect();
    heard.until_all_ready();
    let first = heard.until("a run", |line| line.what == "told").tick + 1;
    for round in 0..6 {
        let at = Duration::from_secs(wall().as_secs() + 1) + ms(fastrand::u64(..600));
        std::thread::sleep(at.saturating_sub(wall()));
        workers[round % 3].signal("-TERM");
        let ended = format!("{round} is drained");
        heard.until(&ended, |line| line.what == "drained" && line.who == round);
        let _ = workers[round % 3].child.wait();
        workers[round % 3] = Worker::start(round + 3, &setup, &heard);
        heard.until("the next replica is ready", |line| {
            line.what == "ready" && line.who == round + 3
        });
    }
    let last = heard.of("told").last().unwrap().tick;
    std::thread::sleep(ms(1_500));
    drop(workers);
    heard.check();
    let (ended, stalls) = (heard.ended(), heard.of("stalled"));
    let excused = |tick: u64| {
        let excuses = |stall: &Line| stall.tick - stall.fence / 1_000 <= tick + 2 && tick <= stall.tick + 2;
        stalls.iter().any(excuses)
    };
    for tick in first..last {
        let times = ended.get(&tick).copied().unwrap_or_default();
        assert!(
            times == 1 || times == 0 && excused(tick),
            "{tick} ended {times} times: {:#?}",
            heard.lines()
        );
    }
    assert!(last > first + 2, "{first} to {last}");
}

/// A server that lost its data has no mark. Ticks continue, and fences grow. Only the tick of that moment may be run again,
/// by a replica whose claim was in flight when the server stopped.
#[test]
fn a_redis_that_is_restarted_empty_goes_on_with_larger_fences() {
    let (mut server, heard) = (RedisServer::start(), Heard::default());
    let setup = Setup {
        lease: ms(2_000),
        ..Setup::on(server.url())
    };
    let workers: Vec<_> = (0..3).map(|who| Worker::start(who, &setup, &heard)).collect();
    heard.until_all_ready();
    heard.until("a run", |line| line.what == "told");
    let mut moments = Vec::new();
    for _ in 0..2 {
        moments.push(wall().as_secs());
        server.kill();
        server.restart();
        let mut client = server.client();
        let left: Vec<String> = redis::cmd("KEYS").arg("tenure1:j:*").query(&mut client).unwrap();
        let back = wall().as_secs();
        println!("{} jobs are known to the new server", left.len());
        heard.until("ticks continue", |line| {
            line.what == "told" && line.tick > back + 1
        });
    }
    drop(workers);
    let mut starts = heard.of("start");
    starts.sort_by_key(|line| line.fence);
    for two in starts.windows(2) {
        assert!(two[0].fence < two[1].fence, "a duplicate fence: {two:?}");
        let is_of_the_moment = moments
            .iter()
            .any(|moment| (moment - 2..=moment + 1).contains(&two[1].tick));
        assert!(
            two[0].tick < two[1].tick || is_of_the_moment,
            "{two:?} of {moments:?}"
        );
    }
}

/// The clock of a replica was one hour ahead, and the server recorded a tick of that time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mark_ahead_of_the_servers_clock_is_reported_and_can_be_reset() {
    let server = RedisServer::start();
    let locks = locks(&server.url(), ms(30_000)).await;
    let (watch, runs) = (Watch::of("job=ahead "), Arc::new(Mutex::new(0)));
    let ran = runs.clone();
    let work = move |_| {
        *ran.lock().unwrap() += 1;
        async {}
    };
    let scheduler = JobScheduler::new().await.unwrap();
    let job = Job::new_async("* * * * * *", locks.job("ahead", work).unwrap()).unwrap();
    scheduler.add(job).await.unwrap();
    scheduler.start().await.unwrap();
    soon(watch.until("tick_starts")).await;
    let mut client = server.client();
    let memory: Vec<String> = redis::cmd("KEYS").arg("tenure1:j:*").query(&mut client).unwrap();
    let ahead = (wall().as_millis() as u64 + 3_600_000).to_string();
    redis::cmd("HSET")
        .arg(&memory[0])
        .arg(&["mark", ahead.as_str(), "done", "1"])
        .exec(&mut client)
        .unwrap();
    let before = *runs.lock().unwrap();
    // A node that has just created the job asks soon. The owner asks once in a lease.
    let other = crate::help::locks(&server.url(), ms(30_000)).await;
    let _job = other.job("ahead", |_| async {}).unwrap();
    soon(watch.until("mark_ahead")).await;
    assert!(*runs.lock().unwrap() <= before + 1, "no tick is run");
    assert!(locks.jobs().reset("ahead").await.unwrap());
    let seen = *runs.lock().unwrap();
    soon(async {
        while *runs.lock().unwrap() < seen + 2 {
            sleep(ms(10)).await;
        }
    })
    .await;
    assert!(!locks.jobs().reset("ahead").await.unwrap());
}

/// The replica is stopped between two runs, like a process in a debugger or a suspended machine. The ticks that it fires
/// for afterwards are already run, except for the newest.
#[test]
fn a_replica_that_was_stopped_runs_nothing_again() {
    let (server, heard) = (RedisServer::start(), Heard::default());
    let setup = Setup {
        lease: ms(2_000),
        ..Setup::on(server.url())
    };
    let workers: Vec<_> = (0..3).map(|who| Worker::start(who, &setup, &heard)).collect();
    let run = heard.until("a run", |line| line.what == "told");
    let stopped = (run.who + 1) % 3;
    workers[stopped].signal("-STOP");
    // If the replica won a tick in that moment, another replica takes the tick over.
    let seen = heard.until("the others continue", |line| {
        line.what == "told" && line.tick > run.tick + 4
    });
    workers[stopped].signal("-CONT");
    heard.until("the stopped replica continues", |line| {
        line.what == "told" && line.tick > seen.tick + 2
    });
    drop(workers);
    heard.check();
}

/// A job's name may have any bytes, also in the memory that outlives its lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_may_have_every_byte() {
    let server = RedisServer::start();
    let nodes = [
        locks(&server.url(), ms(30_000)).await,
        locks(&server.url(), ms(30_000)).await,
    ];
    let scheduler = JobScheduler::new().await.unwrap();
    // The latest tick stays the same while the test runs.
    let job = Job::new_async("0 0 0 1 1 *", |_, _| Box::pin(async {})).unwrap();
    let id = scheduler.add(job).await.unwrap();
    let every: Vec<u8> = (0..=255).collect();
    let mut names: Vec<Vec<u8>> = every.iter().map(|byte| vec![*byte]).collect();
    names.extend([every, b"{a}b".to_vec(), b"}{".to_vec(), vec![b'x'; 512]]);
    let runs = Arc::new(Mutex::new(Vec::new()));
    let mut jobs = Vec::new();
    for name in &names {
        for locks in &nodes {
            let runs = runs.clone();
            let work = move |tick: Tick| {
                assert!(tick.is_held());
                runs.lock().unwrap().push(tick.job().as_bytes().to_vec());
                async {}
            };
            let mut fire = locks.job(name.clone(), work).unwrap();
            soon(fire(id, scheduler.clone())).await;
            jobs.push(fire);
        }
    }
    assert_eq!(
        *runs.lock().unwrap(),
        names,
        "each job runs once, under its own name"
    );

    // The memory of the job has that name.
    let mut eyes = Eyes::on(&server);
    assert_eq!(eyes.left_behind().len(), names.len());
    // A job is forgotten when no node has it any more.
    drop(jobs);
    let has_nodes = async || {
        let known = nodes[0].jobs().list("").await.unwrap();
        known.iter().any(|job| !job.nodes.is_empty())
    };
    soon(async {
        while has_nodes().await {
            sleep(ms(20)).await;
        }
    })
    .await;
    for name in &names {
        assert!(nodes[0].jobs().forget(name.clone()).await.unwrap(), "{name:?}");
        assert!(!nodes[1].jobs().forget(name.clone()).await.unwrap(), "{name:?}");
    }
    eyes.until_empty().await;
    drop(server);
    let error = nodes[0].jobs().forget("a").await.unwrap_err();
    assert!(error.is_unreachable(), "{error}");
}
