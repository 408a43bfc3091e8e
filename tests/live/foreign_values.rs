//! Values of other programs under the names of the library: refused, left unchanged, and polled slowly.

use crate::bad_input::tells;
use crate::help::{Eyes, PATIENCE, held, locks, ms, now, patient, soon, until};
use crate::server::RedisServer;
use crate::support::events::Watch;
use tenure::Error;
use tenure::error::{StoreErrorKind, StoreRefusal};

#[tokio::test]
async fn a_key_of_another_type_is_refused_and_left_alone() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let locks = locks(&server.url(), ms(10_000)).await;
    let _: i64 = eyes.text("RPUSH lock:list 1 2 3");
    let mutex = locks.mutex("list");
    for error in [
        soon(mutex.lock()).await.map(drop).unwrap_err(),
        soon(mutex.try_lock()).await.map(drop).unwrap_err(),
        soon(mutex.lock_timeout(PATIENCE)).await.map(drop).unwrap_err(),
    ] {
        match &error {
            Error::Store { source, .. } => {
                assert_eq!(source.kind(), &StoreErrorKind::Refused(StoreRefusal::WrongType));
            }
            other => panic!("{other:?}"),
        }
        tells(&error, &["`list`", "not a lock", "another key or prefix"]);
    }
    // The key becomes a list while a guard holds it.
    let guard = soon(locks.mutex("a").lease(ms(3_000)).lock()).await.unwrap();
    let _: () = redis::pipe()
        .atomic()
        .del("lock:a")
        .rpush("lock:a", 1)
        .query(&mut eyes.0)
        .unwrap();
    soon(guard.lost()).await;
    assert!(soon(guard.release()).await.is_err());
    soon(locks.idle()).await;
    assert_eq!((locks.key_count(), locks.waiter_count()), (0, 0));
    assert_eq!(eyes.text::<usize>("LLEN lock:list"), 3);
    assert_eq!(eyes.left_behind().len(), 2);
}

/// A foreign value under the name of a record is refused to readers, writers and multi-locks, with a clear error. The value
/// is not touched: it gets no members and no expiry. The other keys stay free.
#[tokio::test]
async fn foreign_values_under_a_records_name_are_refused_and_left_alone() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let locks = locks(&server.url(), ms(10_000)).await;
    for (make, dump) in [
        ("RPUSH lock:theirs 1 2 3", "LRANGE lock:theirs 0 -1"),
        ("ZADD lock:theirs 1 one 2 two", "ZRANGE lock:theirs 0 -1"),
        // Like a record of the library, except for its first member.
        ("ZADD lock:theirs 0 hearts 99 n1:1:1:", "ZRANGE lock:theirs 0 -1"),
        ("HSET lock:theirs field value", "HVALS lock:theirs"),
    ] {
        let _: () = eyes.text(make);
        let theirs: Vec<String> = eyes.text(dump);
        let (lock, multi) = (locks.rw_lock("theirs"), locks.multi(["mine", "theirs", "yours"]));
        for (what, error) in [
            ("read", soon(lock.read()).await.map(drop)),
            ("try to read", soon(lock.try_read()).await.map(drop)),
            ("read in time", soon(lock.read_timeout(PATIENCE)).await.map(drop)),
            ("write", soon(lock.write()).await.map(drop)),
            ("try to write", soon(lock.try_write()).await.map(drop)),
            ("several", soon(multi.lock()).await.map(drop)),
            ("try several", soon(multi.try_lock()).await.map(drop)),
            (
                "several in time",
                soon(multi.lock_timeout(PATIENCE)).await.map(drop),
            ),
        ] {
            let error = error.expect_err(what);
            match &error {
                Error::Store { source, .. } => {
                    let kind = StoreErrorKind::Refused(StoreRefusal::WrongType);
                    assert_eq!(source.kind(), &kind, "{make}, {what}");
                }
                other => panic!("{make}, {what}: {other:?}"),
            }
            tells(&error, &["`theirs`", "not a lock", "another key or prefix"]);
        }
        soon(locks.idle()).await;
        assert_eq!((locks.key_count(), locks.waiter_count()), (0, 0));
        assert_eq!(eyes.text::<Vec<String>>(dump), theirs);
        assert_eq!(
            eyes.text::<i64>("PTTL lock:theirs"),
            -1,
            "{make}: it got an expiry"
        );
        assert_eq!(eyes.left_behind(), ["lock:theirs"]);
        let _: i64 = eyes.text("DEL lock:theirs");
    }
}

/// A foreign value under the name of a semaphore's record is refused, also if it replaces the record of a holder.
#[tokio::test]
async fn foreign_values_under_a_semaphores_name_are_refused_and_left_alone() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let locks = locks(&server.url(), ms(10_000)).await;
    let semaphore = locks.semaphore("calls", 3);
    let permit = soon(semaphore.acquire()).await.unwrap();
    let names: Vec<String> = eyes.text("KEYS tenure1:s:*");
    let name = &names[0];
    permit.release().await.unwrap();
    for (make, dump) in [
        ("RPUSH {} 1 2 3", "LRANGE {} 0 -1"),
        ("ZADD {} 1 one 2 two", "ZRANGE {} 0 -1"),
        // Like a record of the library in a later format.
        ("ZADD {} 0 hof-a-later-version 99 n1:1:1:", "ZRANGE {} 0 -1"),
        ("HSET {} field value", "HVALS {}"),
    ] {
        let (make, dump) = (make.replace("{}", name), dump.replace("{}", name));
        let _: () = eyes.text(&make);
        let theirs: Vec<String> = eyes.text(&dump);
        for (what, error) in [
            ("one", soon(semaphore.acquire()).await.map(drop)),
            ("many", soon(semaphore.acquire_many(3)).await.map(drop)),
            ("try", soon(semaphore.try_acquire()).await.map(drop)),
            (
                "in time",
                soon(semaphore.acquire_timeout(PATIENCE)).await.map(drop),
            ),
            ("how many", soon(semaphore.available_permits()).await.map(drop)),
        ] {
            let error = error.expect_err(what);
            let is_told = matches!(&error, Error::Store { source, .. }
                if *source.kind() == StoreErrorKind::Refused(StoreRefusal::WrongType));
            assert!(is_told, "{make}, {what}: {error:?}");
            tells(&error, &["`calls`", "or a semaphore", "another key or prefix"]);
        }
        soon(locks.idle()).await;
        assert_eq!((locks.key_count(), locks.waiter_count()), (0, 0));
        assert_eq!(eyes.text::<Vec<String>>(&dump), theirs);
        assert_eq!(
            eyes.text::<i64>(&format!("PTTL {name}")),
            -1,
            "{make}: it got an expiry"
        );
        let _: i64 = eyes.text(&format!("DEL {name}"));
    }
    // The foreign value replaces the record while a permit is held.
    let permit = soon(locks.semaphore("calls", 3).lease(ms(3_000)).acquire())
        .await
        .unwrap();
    let _: () = redis::pipe()
        .atomic()
        .del(name)
        .rpush(name, 1)
        .query(&mut eyes.0)
        .unwrap();
    soon(permit.lost()).await;
    assert!(soon(permit.release()).await.is_err());
    soon(locks.idle()).await;
    assert_eq!((locks.key_count(), locks.waiter_count()), (0, 0));
    // Text is the record of an owner without a queue: callers wait for it, and leave it unchanged.
    let _: () = eyes.text(&format!("SET {name} theirs"));
    assert!(soon(semaphore.try_acquire()).await.unwrap().is_none());
    let waited = soon(semaphore.acquire_timeout(ms(300))).await.unwrap_err();
    assert!(matches!(waited, Error::Busy { .. }), "{waited:?}");
    assert_eq!(soon(semaphore.available_permits()).await.unwrap(), 0);
    let waits = tokio::spawn(semaphore.acquire());
    until("the caller waits", || locks.waiter_count() == 1).await;
    assert_eq!(eyes.text::<String>(&format!("GET {name}")), "theirs");
    let _: i64 = eyes.text(&format!("DEL {name}"));
    soon(waits).await.unwrap().unwrap().release().await.unwrap();
    eyes.until_empty().await;
}

/// A foreign value under the name of an election's record is refused, or waited for if it is text.
#[tokio::test]
async fn foreign_values_under_an_elections_name_are_refused_and_left_alone() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let locks = locks(&server.url(), ms(10_000)).await;
    let election = locks.election("relay");
    let guard = soon(election.campaign()).await.unwrap();
    let names: Vec<String> = eyes.text("KEYS tenure1:e:*");
    let (name, record) = (&names[0], eyes.text::<String>(&format!("GET {}", names[0])));
    guard.release().await.unwrap();
    for (make, dump) in [
        ("RPUSH {} 1 2 3", "LRANGE {} 0 -1"),
        ("ZADD {} 1 one 2 two", "ZRANGE {} 0 -1"),
        ("HSET {} field value", "HVALS {}"),
    ] {
        let (make, dump) = (make.replace("{}", name), dump.replace("{}", name));
        let _: () = eyes.text(&make);
        let theirs: Vec<String> = eyes.text(&dump);
        for (what, error) in [
            ("stand", soon(election.campaign()).await.map(drop)),
            (
                "in time",
                soon(election.campaign_timeout(PATIENCE)).await.map(drop),
            ),
            ("lead", soon(election.lead(async |_| ())).await),
            ("leader", soon(election.leader()).await.map(drop)),
            ("observe", soon(election.observe().next()).await.map(drop)),
        ] {
            let error = error.expect_err(what);
            let is_told = matches!(&error, Error::Store { source, .. }
                if *source.kind() == StoreErrorKind::Refused(StoreRefusal::WrongType));
            assert!(is_told, "{make}, {what}: {error:?}");
            tells(&error, &["`relay`", "an election", "another key or prefix"]);
        }
        soon(locks.idle()).await;
        assert_eq!((locks.key_count(), locks.waiter_count()), (0, 0));
        assert_eq!(eyes.text::<Vec<String>>(&dump), theirs);
        let _: i64 = eyes.text(&format!("DEL {name}"));
    }
    // The owner is foreign: no leader is reported that no node can be, and the other requests of the batch are answered.
    let beside = locks.election("beside");
    let (ours, _) = record.rsplit_once(':').unwrap();
    let numbers = ["0", "007", "9007199254740992", "99999999999999999999"];
    let near = numbers.map(|number| format!("{ours}:{number}"));
    let others = ["theirs", "5f3b:12:ab:7"].map(str::to_owned);
    for theirs in near.into_iter().chain(others) {
        let _: () = eyes.text(&format!("SET {name} {theirs}"));
        let asked = async { tokio::join!(election.leader(), beside.leader(), beside.leader()) };
        let (theirs_leads, nobody, again) = soon(asked).await;
        assert_eq!(theirs_leads.unwrap(), None, "{theirs}");
        assert_eq!((nobody.unwrap(), again.unwrap()), (None, None), "{theirs}");
        let waited = soon(election.campaign_timeout(ms(100))).await.unwrap_err();
        assert!(matches!(waited, Error::Busy { .. }), "{theirs}: {waited:?}");
        assert_eq!(eyes.text::<String>(&format!("GET {name}")), theirs);
    }
    let _: i64 = eyes.text(&format!("DEL {name}"));
    soon(election.campaign()).await.unwrap().release().await.unwrap();
    soon(locks.idle()).await;
    eyes.until_empty().await;
}

/// A foreign value in place of a leader's proclamation is refused. The leader still leads, and resigns.
#[tokio::test]
async fn a_foreign_memory_of_an_election_is_refused_and_does_not_prevent_leading() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let locks = locks(&server.url(), ms(3_000)).await;
    let election = locks.election("relay");
    let guard = soon(election.campaign()).await.unwrap();
    soon(election.proclaim("here")).await.unwrap();
    let names: Vec<String> = eyes.text("KEYS tenure1:v:*");
    let name = &names[0];
    guard.release().await.unwrap();
    let _: i64 = eyes.text(&format!("RPUSH {name} 1 2 3"));
    let watch = Watch::of("kind=election key=relay ");
    let guard = soon(election.campaign()).await.unwrap();
    for (what, error) in [
        ("proclaim", soon(election.proclaim("x")).await),
        ("leader", soon(election.leader()).await.map(drop)),
        ("observe", soon(election.observe().next()).await.map(drop)),
    ] {
        let error = error.expect_err(what);
        let is_told = matches!(&error, Error::Store { source, .. }
            if *source.kind() == StoreErrorKind::Refused(StoreRefusal::WrongType));
        assert!(is_told, "{what}: {error:?}");
    }
    watch.until("renewed").await;
    assert!(guard.is_held());
    soon(guard.release()).await.unwrap();
    assert_eq!(eyes.text::<usize>(&format!("LLEN {name}")), 3);
    let _: i64 = eyes.text(&format!("DEL {name}"));

    // Foreign fields in the memory are no news, and are removed with the leader.
    for rubbish in [
        "version x seq y said theirs",
        "version 007 seq 1 said theirs",
        "version 99999999999999999999 seq 1 said theirs",
        "version 7",
        "said theirs",
        "seq nan wzz x w nan",
    ] {
        let guard = soon(election.campaign()).await.unwrap();
        let record: Vec<String> = eyes.text("KEYS tenure1:e:*");
        let record: String = eyes.text(&format!("GET {}", record[0]));
        let (_, number) = record.rsplit_once(':').unwrap();
        let _: i64 = eyes.text(&format!("HSET {name} number {number} {rubbish}"));
        let leader = soon(election.leader()).await.unwrap().expect("it leads");
        assert_eq!(
            (leader.fence(), leader.value()),
            (guard.fence(), None),
            "{rubbish}"
        );
        let mut observer = election.observe();
        let seen = soon(observer.next()).await.unwrap().unwrap();
        assert_eq!(seen, leader, "{rubbish}");
        let (news, told) = tokio::join!(soon(observer.next()), soon(election.proclaim("here")));
        told.unwrap_or_else(|error| panic!("{rubbish}: {error}"));
        assert_eq!(news.unwrap().unwrap().value(), Some(&b"here"[..]), "{rubbish}");
        soon(guard.release()).await.unwrap();
        soon(locks.idle()).await;
        assert_eq!(eyes.left_behind(), [""; 0], "{rubbish}");
    }
}

/// A foreign value in place of a record's queue is refused. Entries of a later version are passed over, and stay.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_queue_is_refused_and_one_of_another_format_is_passed_over() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let (one, other) = (
        locks(&server.url(), ms(10_000)).await,
        locks(&server.url(), ms(10_000)).await,
    );
    // The name of the queue.
    let guard = held(&one, "a").await;
    let waits = tokio::spawn(other.mutex("a").lock());
    until("the caller waits", || eyes.queue("a") == 1).await;
    let queue: Vec<Vec<u8>> = eyes.text("KEYS tenure1:q:*");
    let queue = queue.into_iter().next().unwrap();
    guard.release().await.unwrap();
    soon(waits).await.unwrap().unwrap().release().await.unwrap();
    eyes.until_empty().await;

    let (lock, multi) = (one.rw_lock("a"), one.multi(["a", "b"]));
    let _: i64 = eyes.ask(&[b"RPUSH", &queue, b"theirs"]);
    for (what, error) in [
        ("read", soon(lock.read()).await.map(drop)),
        ("try to read", soon(lock.try_read()).await.map(drop)),
        ("write", soon(lock.write()).await.map(drop)),
        ("several", soon(multi.lock()).await.map(drop)),
        ("try several", soon(multi.try_lock()).await.map(drop)),
    ] {
        let error = error.expect_err(what);
        let is_told = matches!(&error, Error::Store { source, .. }
            if *source.kind() == StoreErrorKind::Refused(StoreRefusal::WrongType));
        assert!(is_told, "{what}: {error:?}");
        tells(&error, &["`a`"]);
    }
    soon(one.idle()).await;
    assert_eq!(eyes.left_behind().len(), 1, "{:?}", eyes.left_behind());
    assert_eq!(
        eyes.ask::<Vec<String>>(&[b"LRANGE", &queue, b"0", b"-1"]),
        ["theirs"]
    );
    let _: i64 = eyes.ask(&[b"DEL", &queue]);

    let far = b"99999999999999";
    let later = [&b"aof-a-later-version"[..], b"bof-a-later-version"];
    let _: i64 = eyes.ask(&[b"ZADD", &queue, b"1", later[0], far, later[1]]);
    for round in 0..3 {
        let reader = soon(lock.read()).await.unwrap();
        let beside = soon(other.rw_lock("a").read()).await.unwrap();
        // The lock is handed over past those entries, to a writer and to a multi-lock.
        let waits = tokio::spawn(other.rw_lock("a").write());
        until("the caller waits", || eyes.queue("a") == 2).await;
        reader.release().await.unwrap();
        beside.release().await.unwrap();
        let writer = soon(waits).await.unwrap().unwrap();
        let both = multi.clone();
        let waits = tokio::spawn(async move { both.lock().await });
        until("the multi-lock waits", || one.waiter_count() == 1).await;
        let reader = soon(writer.downgrade()).await.unwrap();
        reader.release().await.unwrap();
        soon(waits).await.unwrap().unwrap().release().await.unwrap();
        assert_eq!(eyes.ask::<usize>(&[b"ZCARD", &queue]), 2, "in round {round}");
    }
    for node in [&one, &other] {
        soon(node.idle()).await;
        assert_eq!((node.key_count(), node.waiter_count()), (0, 0));
    }
    assert_eq!(eyes.left_behind().len(), 1, "{:?}", eyes.left_behind());
}

/// A user set the record by hand and forgot it: its end is unknown, so waiters poll it slowly.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_record_without_expiry_is_polled_slowly() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    // A timer takes an hour or more.
    let (one, other) = (patient(&server.url()).await, patient(&server.url()).await);
    let _: String = eyes.text("SET lock:a foreign");
    assert!(one.mutex("a").try_lock().await.unwrap().is_none());
    // Each waiter releases the lock itself: the order in the queue is random.
    let waiters = [one.mutex("a"), other.mutex("a")]
        .map(|mutex| tokio::spawn(async move { mutex.lock().await.unwrap().release().await.unwrap() }));
    until("both wait", || eyes.queue("a") == 2).await;
    // In the first two seconds the waiters poll often.
    tokio::time::sleep(ms(2_050)).await;
    let calls = |eyes: &mut Eyes| eyes.calls().get("evalsha").copied().unwrap_or(0);
    let (since, before) = (now(), calls(&mut eyes));
    // Two nodes poll every 250 ms: twenty polls take 2.25 s.
    let mut asked = 0;
    until("they poll twenty times", || {
        asked = calls(&mut eyes) - before;
        asked >= 20
    })
    .await;
    let took = now() - since;
    assert!(took > ms(1_500), "{asked} in {took:?}");
    assert_eq!(eyes.owner("a").as_deref(), Some("foreign"));
    let _: i64 = eyes.text("DEL lock:a");
    for waiter in waiters {
        soon(waiter).await.unwrap();
    }
    soon(one.idle()).await;
    soon(other.idle()).await;
    assert!(eyes.left_behind().is_empty());
}

/// Fences come from the clock. A clock that is a list gives all callers the same refusal, and stays a list.
#[tokio::test]
async fn a_clock_of_a_wrong_type_is_never_overwritten() {
    use crate::tools::{CLAIM, batch, claim_id, connect, store, tick};
    use tenure::protocol::message::Reply;

    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let locks = locks(&server.url(), ms(30_000)).await;
    let link = connect(&store(&server.url())).await.unwrap();
    let mut told = std::collections::BTreeMap::new();
    let mut tell = |who: &str, kind: String| told.insert(who.to_owned(), kind);
    let kind = |answer: Result<Option<tenure::Guard>, Error>| match answer {
        Err(Error::Store { source, .. }) => format!("{:?}", source.kind()),
        Err(other) => format!("{other:?}"),
        Ok(guard) => format!("{guard:?}"),
    };
    for who in ["one", "one that tries", "many", "a tick"] {
        let _: i64 = eyes.text("DEL tenure1:clock");
        let _: i64 = eyes.text("RPUSH tenure1:clock x");
        match who {
            "one" => {
                let answer = soon(locks.mutex("a").lock()).await;
                tell(who, kind(answer.map(Some)));
            }
            "one that tries" => {
                let answer = soon(locks.mutex("b").try_lock()).await;
                tell(who, kind(answer));
            }
            "many" => {
                let tasks: Vec<_> = (0..64)
                    .map(|n| tokio::spawn(locks.mutex(format!("many {n}")).lock()))
                    .collect();
                for (n, task) in tasks.into_iter().enumerate() {
                    let answer = soon(task).await.unwrap();
                    tell(&format!("number {n} of many"), kind(answer.map(Some)));
                }
            }
            _ => {
                let request = tick(b"job", claim_id(1, 1), 1, CLAIM);
                let answer = match link.apply(batch(vec![request])).await {
                    Err(failure) => format!("{:?}", failure.error.kind()),
                    Ok(answer) => match &answer.replies[0] {
                        Reply::Refused(refusal) => format!("Refused({refusal:?})"),
                        other => format!("{other:?}"),
                    },
                };
                tell(who, answer);
            }
        }
        let now: String = eyes.text("TYPE tenure1:clock");
        tell(&format!("the clock after {who}"), now);
    }
    let clocks: Vec<_> = told
        .iter()
        .filter(|(who, _)| who.starts_with("the clock"))
        .collect();
    assert!(clocks.iter().all(|(_, kind)| *kind == "list"), "{told:#?}");
    let words: std::collections::BTreeSet<_> = told
        .iter()
        .filter(|(who, _)| !who.starts_with("the clock"))
        .map(|(_, kind)| kind)
        .collect();
    assert!(
        words.len() == 1 && words.first().unwrap().starts_with("Refused("),
        "{told:#?}"
    );
}

/// A refusal of one key says nothing of the server, and a missing right ends only when an operator adds it.
#[tokio::test]
async fn a_bad_key_and_a_missing_right_are_no_outage() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let watch = Watch::of(format!("127.0.0.1:{}", server.port()));
    let _: i64 = eyes.text("HSET lock:account:99 a b");
    let locks = locks(&server.url(), ms(10_000)).await;
    for _ in 0..5 {
        let error = soon(locks.mutex("account:99").lock())
            .await
            .map(drop)
            .unwrap_err();
        tells(&error, &["`account:99`"]);
        held(&locks, "account:1").await.release().await.unwrap();
    }
    assert_eq!(
        (watch.count("store_failing"), watch.count("store_refuses")),
        (0, 0)
    );
    let _: String = eyes.text("ACL SETUSER default -evalsha");
    for _ in 0..5 {
        let error = soon(locks.mutex("account:1").lock()).await.map(drop).unwrap_err();
        tells(&error, &["NOPERM"]);
    }
    watch.until("store_refuses").await;
    let counts = ["store_failing", "store_refuses", "store_recovered"].map(|event| watch.count(event));
    assert_eq!(counts, [0, 1, 0], "{:#?}", watch.told());
}
