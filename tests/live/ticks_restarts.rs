//! Ticks around faults of the server and of single processes: a Redis that is away, restarted or behind, and replicas that were drained or stopped.

use crate::help::{Eyes, locks, ms, soon};
use crate::server::RedisServer;
use crate::support::events::Watch;
use crate::ticks::{Heard, Line, Setup, Worker, wall};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tenure::Tick;
use tokio::time::sleep;
use tokio_cron_scheduler::{Job, JobScheduler};

/// A tick that nobody could claim when it came: once the server is back it is run, once, and by one of them.
#[test]
fn a_redis_that_is_away_at_the_tick_has_it_run_once_when_it_is_back() {
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
    // Longer than the two seconds of a request, so that some have failed and others are under way when it is back.
    std::thread::sleep(ms(4_500));
    assert_eq!(heard.of("start").len(), before, "nobody runs");
    server.thaw();
    heard.until("its end", |line| line.what == "told" && line.tick == tick);
    // Whatever was still under way has had its time.
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

/// A tick is made up for within twelve seconds by the clock of the server, though two replicas are four seconds apart: the one
/// that is ahead gives it up no sooner, and the one that is behind no later.
#[test]
fn how_late_a_tick_is_the_clock_of_the_server_says() {
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
    // From the first tick on they know their expression, and from then on what the server's clock shows.
    heard.until("a run", |line| line.what == "told");
    let mut frozen = Vec::new();
    for (late, is_run) in [(ms(4_000), true), (ms(12_700), false)] {
        // Too late by the clock of the server: then the one that is behind is alone, which would take it for young enough.
        let others = [&workers[0], &workers[2]];
        let others = if is_run { &others[..0] } else { &others };
        others.iter().for_each(|other| other.signal("-STOP"));
        let tick = loop {
            let tick = (wall().as_secs() + 4).next_multiple_of(20);
            // Before the one that is ahead fires.
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
        heard.until("the next comes as usual", |line| {
            line.what == "told" && line.tick == next
        });
    }
    // What the one that is behind is told comes four seconds later.
    std::thread::sleep(ms(4_500));
    drop(workers);
    heard.check();
    let (starts, stalls) = (heard.of("start"), heard.of("stalled"));
    for (tick, is_run) in frozen {
        let runs = starts.iter().filter(|line| line.tick == tick).count();
        // A replica that stood still for long was late itself. That of the server is the test.
        let is_near = |stall: &Line| (tick - 3..tick + 18).contains(&stall.tick) && stall.fence > 500;
        let excused = runs <= 1 && stalls.iter().any(|stall| stall.who == 1 && is_near(stall));
        println!("{tick} was run {runs} times, and is to be run: {is_run}; excused: {excused}");
        assert!(
            runs == usize::from(is_run) || excused,
            "{tick} was run {runs} times, and is to be run: {is_run}: {:#?}",
            heard.lines()
        );
    }
}

/// Of many that were missed only the last few are run: those that were asked for within the time that a request may
/// take, and which the server finds when it is back, or that a replica fired for last, each at a phase of its own. One
/// after the other, and none twice.
#[test]
fn ticks_that_a_redis_missed_are_not_made_up_for() {
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
    // Nothing that was asked before is answered any more, and what was answered is heard.
    std::thread::sleep(ms(1_500));
    let before = heard.of("start").len();
    std::thread::sleep(ms(9_200));
    assert_eq!(
        heard.of("start").len(),
        before,
        "nobody runs: {:#?}",
        heard.lines()
    );
    let back = wall().as_secs();
    server.thaw();
    heard.until("ticks go on", |line| line.what == "told" && line.tick > back);
    drop(workers);
    heard.check();
    let ended = heard.ended();
    let late: Vec<_> = ended
        .keys()
        .filter(|tick| (left + 1..back).contains(*tick))
        .collect();
    // A replica is refused once a request and a connection had no answer for the request timeout of 2 s each, and then only
    // the newest is pursued; a machine is late by a little.
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

/// A deploy of a service with a job each second: each replica is told to end at a tick, and another comes in its place.
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
        heard.until("the next is there", |line| {
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

/// A server that forgot everything knows of no mark either. Ticks go on, fences grow, and only a tick of the very moment may
/// be run again, by a replica whose claim was under way when the server went.
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
        heard.until("ticks go on", |line| line.what == "told" && line.tick > back + 1);
    }
    drop(workers);
    let mut starts = heard.of("start");
    starts.sort_by_key(|line| line.fence);
    for two in starts.windows(2) {
        assert!(two[0].fence < two[1].fence, "a fence twice: {two:?}");
        let is_of_the_moment = moments
            .iter()
            .any(|moment| (moment - 2..=moment + 1).contains(&two[1].tick));
        assert!(
            two[0].tick < two[1].tick || is_of_the_moment,
            "{two:?} of {moments:?}"
        );
    }
}

/// Somebody's clock was an hour ahead, and a tick of then is known to the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mark_ahead_of_the_servers_clock_is_told_and_can_be_reset() {
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
    // Whoever has just made the job asks soon; who has it, once in a lease.
    let other = crate::help::locks(&server.url(), ms(30_000)).await;
    let _job = other.job("ahead", |_| async {}).unwrap();
    soon(watch.until("mark_ahead")).await;
    assert!(*runs.lock().unwrap() <= before + 1, "nothing is run");
    assert!(locks.reset_job("ahead").await.unwrap());
    let seen = *runs.lock().unwrap();
    soon(async {
        while *runs.lock().unwrap() < seen + 2 {
            sleep(ms(10)).await;
        }
    })
    .await;
    assert!(!locks.reset_job("ahead").await.unwrap());
}

/// Stopped between two runs, as a process that is debugged or a machine that is suspended: what it then fires for is
/// over, or the newest.
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
    // Should it have won one in that moment, it is taken over.
    let seen = heard.until("others go on", |line| {
        line.what == "told" && line.tick > run.tick + 4
    });
    workers[stopped].signal("-CONT");
    heard.until("it wakes up", |line| {
        line.what == "told" && line.tick > seen.tick + 2
    });
    drop(workers);
    heard.check();
}

/// A job's name is a key like any other, also in the memory that outlives its lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_may_have_every_byte() {
    let server = RedisServer::start();
    let nodes = [
        locks(&server.url(), ms(30_000)).await,
        locks(&server.url(), ms(30_000)).await,
    ];
    let scheduler = JobScheduler::new().await.unwrap();
    // Its latest tick is the same for as long as the test runs.
    let job = Job::new_async("0 0 0 1 1 *", |_, _| Box::pin(async {})).unwrap();
    let id = scheduler.add(job).await.unwrap();
    let every: Vec<u8> = (0..=255).collect();
    let mut names: Vec<Vec<u8>> = every.iter().map(|byte| vec![*byte]).collect();
    names.extend([every, b"{a}b".to_vec(), b"}{".to_vec(), vec![b'x'; 512]]);
    let runs = Arc::new(Mutex::new(Vec::new()));
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
        }
    }
    assert_eq!(*runs.lock().unwrap(), names, "each once, under its own name");

    // And what is known of it goes under that name.
    let mut eyes = Eyes::on(&server);
    assert_eq!(eyes.left_behind().len(), names.len());
    for name in &names {
        assert!(nodes[0].forget_job(name.clone()).await.unwrap(), "{name:?}");
        assert!(!nodes[1].forget_job(name.clone()).await.unwrap(), "{name:?}");
    }
    eyes.until_empty().await;
    drop(server);
    let error = nodes[0].forget_job("a").await.unwrap_err();
    assert!(error.is_unreachable(), "{error}");
}
