//! The Redis store alone, with faults of the server.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure::error::{StoreErrorKind, StoreRefusal};
use tenure::protocol::message::{
    Call, CallAnswer, CallReply, ClaimReply, Executed, GrantNumber, GrantReply, LeaveReply, LinkRequest,
    Name, NodeId, Payload, QueueOwner, Reply, Request, RunOutcome, RunResult, TickTime, Verb, Version,
};
use tenure::store::Link;
use tenure::testing::compare_run;
use tenure::{Key, Locks};

use crate::help::Eyes;
use crate::server::RedisServer;
use crate::tools::{CLAIM, Inbox, PATIENCE, TERM, WAIT, ask, batch, claim_id, connect, request, store, tick};

const DONE: Verb = Verb::Finish {
    result: RunResult {
        outcome: RunOutcome::Done,
        took_ms: 7,
        retries: 0,
    },
};
const FAILED: Verb = Verb::Finish {
    result: RunResult {
        outcome: RunOutcome::Failed,
        took_ms: 7,
        retries: 0,
    },
};

/// Returns the ACL rule of the guide.
pub fn acl() -> String {
    rights_of("tenure")
}

/// Returns locks for a user of the guide, which may take no leases of its own.
pub async fn locks_of(server: &RedisServer, user: &str) -> Locks {
    let _: String = Eyes::on(server).text(&format!("ACL SETUSER {user} on >secret {}", rights_of(user)));
    let url = server
        .url()
        .replace("redis://", &format!("redis://{user}:secret@"));
    let builder = crate::help::builder().presence(false).lazy();
    builder.connect(&url).await.unwrap()
}

/// Returns the rights of a user of the guide.
pub fn rights_of(user: &str) -> String {
    rights_in(include_str!("../../docs/redis.md"), user)
}

/// Returns the rights that a page gives to a user, in a command of a shell.
pub fn rights_in(page: &str, user: &str) -> String {
    let (_, rule) = page
        .split_once(&format!("ACL SETUSER {user} on '>password' "))
        .expect("the page has a rule");
    let (rule, _) = rule.split_once("```").expect("its end");
    let rule = rule.replace(['\'', '\\'], "");
    rule.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn kind(error: &tenure::error::StoreError) -> StoreRefusal {
    match error.kind() {
        StoreErrorKind::Refused(refusal) => refusal.clone(),
        other => panic!("not refused: {other:?}"),
    }
}

fn granted(reply: &Reply) -> u64 {
    match reply.number() {
        Some(number) => number.0,
        None => panic!("not granted: {reply:?}"),
    }
}

/// The record was edited by hand: it has a local holder, and a number that no grant has. The record is foreign, and does
/// not fail the batch.
#[tokio::test]
async fn a_broken_number_in_a_local_record_is_no_grant() {
    let server = RedisServer::start();
    let link = connect(&store(&server.url())).await.unwrap();
    let other = claim_id(2, 1);
    granted(&ask(&link, b"other", other, CLAIM).await);
    for number in ["", "0", "-5", "nan", "inf", "zz"] {
        let text = format!("{}:{number}", claim_id(1, 1));
        let () = redis::cmd("SET")
            .arg("lock:a")
            .arg(&text)
            .query(&mut server.client())
            .unwrap();
        let verbs = [CLAIM, Verb::HEARTBEAT, Verb::Yield { to: claim_id(1, 2) }];
        let replies = [ClaimReply::Busy(None), ClaimReply::Gone, ClaimReply::Gone];
        for (verb, wanted) in verbs.into_iter().zip(replies) {
            let both = batch(vec![
                request(b"a", claim_id(1, 1), verb),
                request(b"other", other, Verb::HEARTBEAT),
            ]);
            let replies = link.apply(both).await.unwrap().replies;
            assert_eq!(replies[0], wanted.into(), "{text} {verb:?}: {replies:?}");
            granted(&replies[1]);
        }
        let left: String = redis::cmd("GET")
            .arg("lock:a")
            .query(&mut server.client())
            .unwrap();
        assert_eq!(left, text);
    }
}

#[tokio::test]
async fn a_key_of_a_wrong_type_does_not_fail_others() {
    let server = RedisServer::start();
    let link = connect(&store(&server.url())).await.unwrap();
    let () = redis::cmd("RPUSH")
        .arg("lock:100")
        .arg("x")
        .query(&mut server.client())
        .unwrap();
    let requests: Vec<_> = (0..200)
        .map(|n| request(n.to_string().as_bytes(), claim_id(1, n), CLAIM))
        .collect();
    let answer = link.apply(batch(requests)).await.unwrap();
    for (n, reply) in answer.replies.iter().enumerate() {
        match n {
            100 => assert_eq!(*reply, Reply::Refused(StoreRefusal::WrongType)),
            _ => drop(granted(reply)),
        }
    }
}

#[tokio::test]
async fn a_queue_of_a_wrong_type_does_not_prevent_a_release() {
    let server = RedisServer::start();
    let link = connect(&store(&server.url())).await.unwrap();
    granted(&ask(&link, b"a", claim_id(1, 1), CLAIM).await);
    assert!(matches!(
        ask(&link, b"a", claim_id(2, 1), WAIT).await,
        Reply::Claim(ClaimReply::Queued(Some(_), QueueOwner::Node(_)))
    ));
    let mut client = server.client();
    let queues: Vec<String> = redis::cmd("KEYS").arg("tenure1:q:*").query(&mut client).unwrap();
    let () = redis::cmd("SET")
        .arg(&queues[0])
        .arg("x")
        .query(&mut client)
        .unwrap();
    assert_eq!(
        ask(&link, b"a", claim_id(2, 1), Verb::HEARTBEAT).await,
        Reply::Refused(StoreRefusal::WrongType)
    );
    assert_eq!(
        ask(&link, b"a", claim_id(1, 1), Verb::Leave).await,
        LeaveReply::Left.into()
    );
}

#[tokio::test]
async fn a_release_needs_no_memory() {
    let server = RedisServer::with_args(&["--maxmemory-policy", "noeviction"]);
    let store = store(&server.url());
    let link = connect(&store).await.unwrap();
    let mut inbox = Inbox::open(&store, NodeId::numbered(2)).await.unwrap();
    granted(&ask(&link, b"a", claim_id(1, 1), CLAIM).await);
    granted(&ask(&link, b"b", claim_id(1, 2), CLAIM).await);
    assert!(matches!(
        ask(&link, b"a", claim_id(2, 1), WAIT).await,
        Reply::Claim(ClaimReply::Queued(_, QueueOwner::Node(_)))
    ));
    assert!(matches!(
        ask(&link, b"b", claim_id(3, 1), WAIT).await,
        Reply::Claim(ClaimReply::Queued(_, QueueOwner::Node(_)))
    ));

    let () = redis::cmd("CONFIG")
        .arg("SET")
        .arg("maxmemory")
        .arg("1")
        .query(&mut server.client())
        .unwrap();

    assert_eq!(
        ask(&link, b"c", claim_id(1, 3), CLAIM).await,
        Reply::Refused(StoreRefusal::OutOfMemory)
    );
    assert_eq!(
        ask(&link, b"b", claim_id(4, 1), WAIT).await,
        Reply::Refused(StoreRefusal::OutOfMemory)
    );
    granted(&ask(&link, b"a", claim_id(1, 1), Verb::HEARTBEAT).await);
    assert!(matches!(
        ask(&link, b"b", claim_id(3, 1), Verb::HEARTBEAT).await,
        Reply::Claim(ClaimReply::Queued(_, QueueOwner::Node(_)))
    ));
    assert_eq!(
        ask(&link, b"a", claim_id(1, 1), Verb::Leave).await,
        LeaveReply::Left.into()
    );
    let grant = inbox.grant().await;
    assert_eq!(grant.claim_id, claim_id(2, 1));
    assert_eq!(
        ask(&link, b"a", claim_id(2, 1), Verb::HEARTBEAT).await,
        ClaimReply::granted(grant.number).into()
    );
    assert_eq!(
        ask(&link, b"a", claim_id(2, 1), Verb::Leave).await,
        LeaveReply::Left.into()
    );
    granted(&ask(&link, b"b", claim_id(1, 2), Verb::Yield { to: claim_id(1, 9) }).await);
}

fn owns(number: u64) -> Verb {
    let number = Some(GrantNumber(number));
    Verb::Renew { number }
}

#[tokio::test]
async fn a_recovery_and_an_assertion_need_no_memory() {
    let mut server = RedisServer::with_args(&["--maxmemory-policy", "noeviction"]);
    let store = store(&server.url());
    let link = connect(&store).await.unwrap();
    let keys = [&b"a"[..], b"b"];
    let mut owners = Vec::new();
    for key in keys {
        let claim = claim_id(1, owners.len() as u64 + 1);
        owners.push((key, claim, granted(&ask(&link, key, claim, CLAIM).await)));
    }
    server.restart();
    let link = connect(&store).await.unwrap();
    let mut client = server.client();
    let () = command("CONFIG SET maxmemory 1").query(&mut client).unwrap();
    // The second owner has the higher number, which shows a loss, too.
    for (key, claim, number) in owners {
        let asserted = ask(&link, key, claim, owns(number)).await;
        assert_eq!(granted(&asserted), number);
        let clock: u64 = command("GET tenure1:clock").query(&mut client).unwrap();
        assert_eq!(clock, number);
        let mut shows = batch(vec![request(b"c", claim_id(2, 1), CLAIM)]);
        (shows.highest, shows.recovery_ms) = (GrantNumber(number), 60_000);
        let replies = link.apply(shows).await.unwrap().replies;
        assert!(
            matches!(replies[..], [Reply::Claim(ClaimReply::Recovering(_))]),
            "{replies:?}"
        );
    }
    let mut shows = batch(vec![request(b"c", claim_id(2, 1), CLAIM)]);
    (shows.highest, shows.recovery_ms) = (GrantNumber(1 << 52), 60_000);
    let replies = link.apply(shows).await.unwrap().replies;
    assert!(
        matches!(replies[..], [Reply::Claim(ClaimReply::Recovering(_))]),
        "{replies:?}"
    );
    let left: i64 = command("PTTL tenure1:recovering").query(&mut client).unwrap();
    assert!((30_000..=60_000).contains(&left), "{left}");
}

#[tokio::test]
async fn a_recovery_ends_by_itself_and_a_number_begins_it_once() {
    let server = RedisServer::start();
    let link = connect(&store(&server.url())).await.unwrap();
    let mut claim = batch(vec![request(b"a", claim_id(1, 1), CLAIM)]);
    (claim.highest, claim.recovery_ms) = (GrantNumber(7), 300);
    let start = Instant::now();
    let mut told = 0;
    let number = loop {
        match &link.apply(claim.clone()).await.unwrap().replies[..] {
            [Reply::Claim(ClaimReply::Recovering(left))] => {
                assert!(*left <= 300, "{left}");
                told += 1;
            }
            [reply] => break granted(reply),
            replies => panic!("{replies:?}"),
        }
        assert!(start.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert!(
        told > 0 && start.elapsed() >= Duration::from_millis(299),
        "{told}"
    );
    assert!(number > 7);
}

/// The memory of a job was edited by hand. Nodes get only numbers that they can read.
#[tokio::test]
async fn broken_numbers_of_a_job_do_not_fail_the_batch() {
    let server = RedisServer::start();
    let link = connect(&store(&server.url())).await.unwrap();
    let open = Verb::Call(Call::Open {
        fingerprint: 0,
        over: None,
    });
    let numbers = [
        ("attempt", "9007199254740992"),
        ("attempt", "4294967295"),
        ("attempt", "1.5"),
        ("well", "-1"),
        ("well", "1e300"),
        ("well", "nan"),
        ("well", "often"),
    ];
    for (n, (field, number)) in numbers.into_iter().enumerate() {
        let (of, n) = (claim_id(1, 2 * n as u64 + 1), n as u64 + 1);
        let won =
            |reply: &Reply| matches!(reply, Reply::Claim(ClaimReply::Granted(grant)) if grant.attempt > 0);
        let first = batch(vec![tick(b"a", of, n, CLAIM)]);
        let first = link.apply(first).await.unwrap().replies;
        assert!(won(&first[0]), "{first:?}");
        let memory: Vec<Vec<u8>> = command("KEYS *").query(&mut server.client()).unwrap();
        let memory = memory
            .iter()
            .find(|key| key.ends_with(b"a") && is_hash(&server, key))
            .unwrap();
        let mut edit = redis::Cmd::new();
        edit.arg("HSET").arg(memory).arg(field).arg(number);
        let () = edit.query(&mut server.client()).unwrap();
        let both = batch(vec![
            tick(b"a", of, n, Verb::HEARTBEAT),
            tick(b"b", claim_id(2, n), n, CLAIM),
        ]);
        let both = link.apply(both).await.unwrap().replies;
        assert!(won(&both[0]) && won(&both[1]), "{field} {number}: {both:?}");
        let both = batch(vec![tick(b"a", of, n, open), tick(b"b", of, n, open)]);
        let both = link.apply(both).await.unwrap().replies;
        let told = |reply: &Reply| matches!(reply.answer(), Some(CallAnswer::Report(_)));
        assert!(told(&both[0]) && told(&both[1]), "{field} {number}: {both:?}");
        for key in [b"a", b"b"] {
            let of = if key == b"a" { of } else { claim_id(2, n) };
            link.apply(batch(vec![tick(key, of, n, FAILED)])).await.unwrap();
        }
    }
}

fn is_hash(server: &RedisServer, key: &[u8]) -> bool {
    let kind: String = redis::cmd("TYPE").arg(key).query(&mut server.client()).unwrap();
    kind == "hash"
}

/// A run leaves the job, also if its checkpoint cannot be removed.
#[tokio::test]
async fn a_user_without_the_right_to_remove_a_checkpoint_still_ends_its_tick() {
    let server = RedisServer::start();
    let rule = format!("ACL SETUSER app on >secret {} -hdel", acl());
    let () = command(&rule).query(&mut server.client()).unwrap();
    let link = connect(&store(&store_url(&server, ""))).await.unwrap();
    let of = claim_id(1, 1);
    let save = Request {
        data: Some(Payload(b"half of it".as_slice().into())),
        ..tick(b"a", of, 1, Verb::Call(Call::Save { of, seq: 1 }))
    };
    for (asked, reply) in [
        (tick(b"a", of, 1, CLAIM), "Claim(Granted"),
        (save, "Call(Answer(Report"),
        (tick(b"a", of, 1, DONE), "Leave(Left)"),
        (tick(b"a", of, 1, CLAIM), "Claim(Tick(Over))"),
        (tick(b"a", of, 1, Verb::Leave), "Leave(NotThere)"),
        (tick(b"a", claim_id(1, 2), 2, CLAIM), "Claim(Granted"),
    ] {
        let replies = link.apply(batch(vec![asked])).await.unwrap().replies;
        assert!(
            format!("{:?}", replies[0]).starts_with(reply),
            "{reply}: {replies:?}"
        );
    }
}

#[tokio::test]
async fn a_user_without_the_right_to_publish_still_hands_over() {
    let server = RedisServer::start();
    let mut client = server.client();
    let rule = format!("ACL SETUSER mute on >secret {} resetchannels", acl());
    let () = command(&rule).query(&mut client).unwrap();
    let link = connect(&store(&format!(
        "redis://mute:secret@127.0.0.1:{}/",
        server.port()
    )))
    .await
    .unwrap();
    let listening = store(&server.url());
    let _inbox = Inbox::open(&listening, NodeId::numbered(2)).await.unwrap();
    granted(&ask(&link, b"a", claim_id(1, 1), CLAIM).await);
    granted(&ask(&link, b"b", claim_id(1, 2), CLAIM).await);
    assert!(matches!(
        ask(&link, b"a", claim_id(2, 1), WAIT).await,
        Reply::Claim(ClaimReply::Queued(_, QueueOwner::Node(_)))
    ));
    let both = batch(vec![
        request(b"a", claim_id(1, 1), Verb::Leave),
        request(b"b", claim_id(1, 2), Verb::Leave),
    ]);
    assert_eq!(
        link.apply(both).await.unwrap().replies,
        [LeaveReply::Left.into(), LeaveReply::Left.into()]
    );
    granted(&ask(&link, b"a", claim_id(2, 1), Verb::HEARTBEAT).await);
    assert_eq!(
        ask(&link, b"b", claim_id(1, 2), Verb::HEARTBEAT).await,
        ClaimReply::Gone.into()
    );
    // The user's own subscription is refused, with an error that says so.
    let mute = store(&format!("redis://mute:secret@127.0.0.1:{}/", server.port()));
    let refused = Inbox::open(&mute, NodeId::numbered(5)).await.err().unwrap();
    assert_eq!(kind(&refused), StoreRefusal::NoPermission);
}

fn command(text: &str) -> redis::Cmd {
    let mut cmd = redis::Cmd::new();
    for word in text.split_whitespace() {
        cmd.arg(word);
    }
    cmd
}

fn store_url(server: &RedisServer, protocol: &str) -> String {
    format!("redis://app:secret@127.0.0.1:{}/{protocol}", server.port())
}

/// Leads an election and resigns, with an observer.
async fn leadership(locks: &tenure::Locks) {
    let election = locks.election("x");
    let mut observer = election.observe();
    assert_eq!(observer.next().await.unwrap(), None);
    let (news, guard) = tokio::join!(observer.next(), election.campaign());
    let guard = guard.unwrap();
    assert_eq!(news.unwrap().unwrap().fence(), guard.fence());
    let (news, proclaimed) = tokio::join!(observer.next(), election.proclaim("here"));
    proclaimed.unwrap();
    assert_eq!(news.unwrap().unwrap().value(), Some(&b"here"[..]));
    let (news, released) = tokio::join!(observer.next(), guard.release());
    released.unwrap();
    assert_eq!(news.unwrap(), None);
}

/// Uses the questions about a job and its checkpoints, readers, and permits.
async fn questions_and_permits(link: &Arc<dyn Link>, url: &str) {
    let of = claim_id(1, 7);
    let save = Request {
        data: Some(Payload(b"half of it".as_slice().into())),
        ..tick(b"asked", of, 1, Verb::Call(Call::Save { of, seq: 1 }))
    };
    let open = Call::Open {
        fingerprint: 7,
        over: None,
    };
    for asked in [
        tick(b"asked", of, 1, CLAIM),
        save,
        tick(b"asked", of, 1, Verb::Call(Call::Recall { of })),
        tick(b"asked", of, 1, Verb::Call(Call::Verify { of })),
        tick(b"asked", of, 1, Verb::Call(open)),
        tick(b"asked", of, 1, Verb::Call(Call::Reset)),
        tick(b"asked", of, 1, DONE),
    ] {
        let verb = asked.verb;
        let replies = link.apply(batch(vec![asked])).await.unwrap().replies;
        match (&replies[0], verb) {
            (Reply::Call(CallReply::Answer(CallAnswer::Report(report))), Verb::Call(Call::Recall { .. })) => {
                let saved = report.saved.as_ref().map(|saved| &*saved.0);
                assert_eq!(saved, Some(&b"half of it"[..]));
            }
            (Reply::Call(CallReply::Answer(CallAnswer::Report(report))), Verb::Call(Call::Open { .. })) => {
                assert_eq!(report.open, Some(TickTime(1)));
            }
            (Reply::Claim(ClaimReply::Granted(_)) | Reply::Leave(LeaveReply::Left) | Reply::Call(_), _) => {}
            (other, verb) => panic!("{verb:?}: {other:?}"),
        }
    }
    let locks = crate::help::builder().connect(url).await.unwrap();
    leadership(&locks).await;
    let (one, two) = (locks.rw_lock("read").read(), locks.rw_lock("read").read());
    let (one, two) = (one.await.unwrap(), two.await.unwrap());
    drop((one, two));
    let permits = locks.semaphore("x", 3).acquire_many(2).await.unwrap();
    let one = locks.semaphore("x", 3).acquire().await.unwrap();
    assert_eq!(locks.semaphore("x", 3).available_permits().await.unwrap(), 0);
    permits.release().await.unwrap();
    // Transfers of each mode.
    let minute = Duration::from_secs(60);
    let (writer, reader) = (locks.mutex("w").lock(), locks.rw_lock("r").read());
    for guard in [one, writer.await.unwrap(), reader.await.unwrap()] {
        let given = guard.into_transfer(minute).await.unwrap();
        locks.extend_transfer(&given, 2 * minute).await.unwrap();
        let adopted = locks.adopt(&given).await.unwrap();
        let given = adopted.into_transfer(minute).await.unwrap();
        locks.release_transfer(&given).await.unwrap();
    }
    // A latch with a waiter.
    let latch = locks.latch("x");
    assert!(latch.try_set_count(1).await.unwrap());
    let (waited, counted) = tokio::join!(latch.wait(), latch.count_down());
    assert_eq!((waited.unwrap(), counted.unwrap()), ((), 0));
    locks.shutdown().await;
}

#[tokio::test]
async fn the_documented_acl_is_enough() {
    for protocol in ["", "?protocol=resp3"] {
        let server = RedisServer::start();
        let () = command(&format!("ACL SETUSER app on >secret {}", acl()))
            .query(&mut server.client())
            .unwrap();
        let store = store(&store_url(&server, protocol));
        let link = connect(&store).await.unwrap();
        let mut inbox = Inbox::open(&store, NodeId::numbered(2)).await.unwrap();
        let number = granted(&ask(&link, b"a", claim_id(1, 1), CLAIM).await);
        assert_eq!(
            ask(&link, b"a", claim_id(1, 1), Verb::HEARTBEAT).await,
            ClaimReply::granted(GrantNumber(number)).into()
        );
        assert!(matches!(
            ask(&link, b"a", claim_id(3, 1), CLAIM).await,
            Reply::Claim(ClaimReply::Busy(Some(_)))
        ));
        assert!(matches!(
            ask(&link, b"a", claim_id(2, 1), WAIT).await,
            Reply::Claim(ClaimReply::Queued(Some(_), QueueOwner::Node(_)))
        ));
        assert!(matches!(
            ask(&link, b"a", claim_id(2, 1), Verb::HEARTBEAT).await,
            Reply::Claim(ClaimReply::Queued(Some(_), QueueOwner::Node(_)))
        ));
        let to = claim_id(1, 2);
        assert!(matches!(
            ask(&link, b"a", claim_id(1, 1), Verb::Yield { to }).await,
            Reply::Claim(ClaimReply::Queued(Some(_), QueueOwner::Node(_)))
        ));
        assert_eq!(inbox.grant().await.claim_id, claim_id(2, 1));
        assert_eq!(ask(&link, b"a", to, Verb::Leave).await, LeaveReply::Left.into());
        assert_eq!(
            ask(&link, b"a", to, Verb::HEARTBEAT).await,
            ClaimReply::Gone.into()
        );
        assert_eq!(
            ask(&link, b"a", claim_id(2, 1), Verb::Leave).await,
            LeaveReply::Left.into()
        );
        assert_eq!(
            ask(&link, b"a", claim_id(2, 1), Verb::Leave).await,
            LeaveReply::NotThere.into()
        );
        // A tick, from its first attempt to its end.
        for (of, verb, reply) in [
            (claim_id(1, 3), CLAIM, "attempt 1"),
            (claim_id(1, 3), Verb::HEARTBEAT, "attempt 1"),
            (claim_id(2, 3), WAIT, "Claim(Queued"),
            (claim_id(1, 3), Verb::Leave, "Leave(Left)"),
            (claim_id(2, 3), Verb::HEARTBEAT, "attempt 2"),
            (claim_id(2, 3), DONE, "Leave(Left)"),
            (claim_id(1, 4), CLAIM, "Claim(Tick(Over"),
        ] {
            let replies = link.apply(batch(vec![tick(b"a", of, 1, verb)])).await;
            let as_wanted = match &replies.unwrap().replies[0] {
                Reply::Claim(ClaimReply::Granted(grant)) => reply == format!("attempt {}", grant.attempt),
                other => format!("{other:?}").starts_with(reply),
            };
            assert!(as_wanted, "{of:?} {verb:?} {reply}");
        }
        let grant = inbox.grant().await;
        assert_eq!((grant.claim_id, grant.attempt), (claim_id(2, 3), 2));
        // A slow tick: the next tick is skipped.
        for (of, mark) in [(claim_id(1, 5), 2), (claim_id(1, 6), 3)] {
            let next = batch(vec![tick(b"a", of, mark, CLAIM)]);
            link.apply(next).await.unwrap();
        }
        questions_and_permits(&link, &store_url(&server, protocol)).await;
        // A link compares the runs, and begins a recovery.
        let mut client = redis::Client::open(store_url(&server, protocol))
            .unwrap()
            .get_connection()
            .unwrap();
        let link = LinkRequest {
            run: "another",
            epoch: Some(1),
            number: Some(GrantNumber(number)),
            recovery_ms: 1_000,
        };
        compare_run(&mut client, &link, Some(PATIENCE)).unwrap();
        // No command was denied, not even one whose denial only degrades the service.
        let denied: Vec<redis::Value> = command("ACL LOG").query(&mut server.client()).unwrap();
        // Except for the library's name.
        let denied: Vec<_> = denied
            .iter()
            .map(|entry| format!("{entry:?}"))
            .filter(|entry| !entry.contains(r#"'"object"'), bulk-string('"client"#))
            .collect();
        assert!(denied.is_empty(), "{denied:?}");
    }
}

#[tokio::test]
async fn flushed_scripts_are_loaded_again() {
    let server = RedisServer::start();
    let link = connect(&store(&server.url())).await.unwrap();
    let () = command("SCRIPT FLUSH").query(&mut server.client()).unwrap();
    granted(&ask(&link, b"a", claim_id(1, 1), CLAIM).await);
    // The other script is loaded again when it is needed.
    let job = batch(vec![tick(b"a", claim_id(1, 2), 1, CLAIM)]);
    let won = link.apply(job).await.unwrap().replies;
    assert!(
        matches!(
            won[0],
            Reply::Claim(ClaimReply::Granted(GrantReply { attempt: 1, .. }))
        ),
        "{won:?}"
    );
}

#[tokio::test]
async fn wrong_passwords_are_told_apart_from_dead_servers() {
    let mut server = RedisServer::with_args(&["--requirepass", "secret"]);
    let port = server.port();
    let error = connect(&store(&format!("redis://127.0.0.1:{port}/")))
        .await
        .unwrap_err();
    assert_eq!(kind(&error), StoreRefusal::NoAuth);
    let error = connect(&store(&format!("redis://:wrong@127.0.0.1:{port}/")))
        .await
        .unwrap_err();
    assert_eq!(kind(&error), StoreRefusal::WrongPassword);
    let error = connect(&store(&format!(
        "redis://:wrong@127.0.0.1:{port}/?protocol=resp3"
    )))
    .await
    .unwrap_err();
    assert_eq!(kind(&error), StoreRefusal::WrongPassword);
    server.kill();
    let error = connect(&store(&format!("redis://:secret@127.0.0.1:{port}/")))
        .await
        .unwrap_err();
    assert_eq!(*error.kind(), StoreErrorKind::Unreachable);
}

#[tokio::test]
async fn a_replica_is_no_store() {
    let master = RedisServer::start();
    let server = RedisServer::start();
    let link = connect(&store(&server.url())).await.unwrap();
    granted(&ask(&link, b"a", claim_id(1, 1), CLAIM).await);
    let replicaof = format!("REPLICAOF 127.0.0.1 {}", master.port());
    let () = command(&replicaof).query(&mut server.client()).unwrap();
    let error = connect(&store(&server.url())).await.unwrap_err();
    assert_eq!(kind(&error), StoreRefusal::ReadOnly);
    // The existing link learns it from its next batch, also if the batch would write nothing.
    for verb in [
        CLAIM,
        Verb::HEARTBEAT,
        Verb::Leave,
        Verb::Yield { to: claim_id(8, 2) },
    ] {
        let failure = link
            .apply(batch(vec![request(b"b", claim_id(8, 1), verb)]))
            .await
            .unwrap_err();
        assert_eq!(failure.executed, Executed::No, "{verb:?}");
    }
    for known in [None, Some(Version(0)), Some(Version(7))] {
        let of = claim_id(8, 1);
        for call in [Call::Leader { known }, Call::Proclaim { of, seq: 1 }] {
            let request = Request {
                name: Name::election(Key::from("b")),
                data: Some(Payload(b"here".as_slice().into())),
                ..request(b"b", of, Verb::Call(call))
            };
            let failure = link.apply(batch(vec![request])).await.unwrap_err();
            assert_eq!(failure.executed, Executed::No, "{call:?}");
        }
    }
}

#[tokio::test]
async fn a_record_that_may_not_be_deleted_is_not_left() {
    let server = RedisServer::start();
    let link = connect(&store(&server.url())).await.unwrap();
    granted(&ask(&link, b"a", claim_id(1, 1), CLAIM).await);
    granted(&ask(&link, b"b", claim_id(1, 2), CLAIM).await);
    let () = command("ACL SETUSER default -del")
        .query(&mut server.client())
        .unwrap();
    let answer = link.apply(batch(vec![
        request(b"a", claim_id(1, 1), Verb::Leave),
        request(b"c", claim_id(1, 3), CLAIM),
        request(b"b", claim_id(1, 2), Verb::Leave),
    ]));
    let replies = answer.await.unwrap().replies;
    let refused = Reply::Refused(StoreRefusal::NoPermission);
    assert_eq!((&replies[0], &replies[2]), (&refused, &refused));
    granted(&replies[1]);
    assert!(matches!(
        ask(&link, b"a", claim_id(2, 1), CLAIM).await,
        Reply::Claim(ClaimReply::Busy(Some(_)))
    ));
}

#[tokio::test]
async fn keys_may_have_every_byte() {
    let server = RedisServer::start();
    let store = store(&server.url());
    let link = connect(&store).await.unwrap();
    let mut inbox = Inbox::open(&store, NodeId::numbered(2)).await.unwrap();
    let mut keys: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
    keys.extend(
        [
            &b"{}"[..],
            b"a}b{c}",
            b"clock",
            b"tenure1:clock",
            b"}{",
            b"a b",
            b"\r\n$1\r\n",
        ]
        .map(Vec::from),
    );
    for (n, key) in keys.iter().enumerate() {
        let n = n as u64;
        granted(&ask(&link, key, claim_id(1, n), CLAIM).await);
        assert!(matches!(
            ask(&link, key, claim_id(2, n), WAIT).await,
            Reply::Claim(ClaimReply::Queued(_, QueueOwner::Node(_)))
        ));
        assert_eq!(
            ask(&link, key, claim_id(1, n), Verb::Leave).await,
            LeaveReply::Left.into()
        );
        let grant = inbox.grant().await;
        assert_eq!(
            (grant.name.key.as_bytes(), grant.claim_id, grant.lease_ms),
            (&key[..], claim_id(2, n), TERM.lease_ms)
        );
        assert_eq!(
            ask(&link, key, claim_id(2, n), Verb::Leave).await,
            LeaveReply::Left.into()
        );
    }
    let left: Vec<String> = command("KEYS *").query(&mut server.client()).unwrap();
    assert_eq!(left, ["tenure1:clock"]);
}

/// Above 2^53 a Lua number plus one is the same number. A node with such a number fails its own batch, not the clock.
#[tokio::test]
async fn a_number_above_the_limit_does_not_reach_the_clock() {
    let server = RedisServer::start();
    let link = connect(&store(&server.url())).await.unwrap();
    granted(&ask(&link, b"a", claim_id(1, 1), CLAIM).await);
    for keys in [&[&b"b"[..]][..], &[b"b", b"c"]] {
        for highest in [(1 << 53) - 2, 1 << 53, 1 << 62, u64::MAX] {
            let requests = keys
                .iter()
                .map(|key| request(key, claim_id(1, 2), CLAIM))
                .collect();
            let mut batch = batch(requests);
            batch.highest = GrantNumber(highest);
            let failure = link.apply(batch).await.unwrap_err();
            assert_eq!(failure.executed, Executed::No, "{highest}");
            let renewal = ask(&link, b"b", claim_id(1, 2), owns(highest)).await;
            assert_eq!(renewal, ClaimReply::Gone.into(), "{highest}");
        }
    }
    granted(&ask(&link, b"b", claim_id(1, 3), CLAIM).await);
}

#[tokio::test]
async fn a_clock_that_is_not_a_number_does_not_restart_fences() {
    let server = RedisServer::start();
    let link = connect(&store(&server.url())).await.unwrap();
    for bad in ["x", "nan", "inf", "-5", "9007199254740991"] {
        let () = command(&format!("SET tenure1:clock {bad}"))
            .query(&mut server.client())
            .unwrap();
        let failure = link
            .apply(batch(vec![request(b"a", claim_id(1, 1), CLAIM)]))
            .await
            .unwrap_err();
        assert_eq!(failure.executed, Executed::No, "{bad}");
    }
}

#[tokio::test]
async fn the_outcome_of_a_request_to_a_dying_server_is_unknown() {
    let mut server = RedisServer::start();
    let store = store(&server.url());
    let link = connect(&store).await.unwrap();
    let mut inbox = Inbox::open(&store, NodeId::numbered(2)).await.unwrap();
    server.freeze();
    let sent = tokio::spawn(link.apply(batch(vec![request(b"a", claim_id(1, 1), CLAIM)])));
    tokio::task::yield_now().await;
    server.kill();
    let failure = sent.await.unwrap().unwrap_err();
    assert_eq!(
        (failure.executed, failure.error.kind()),
        (Executed::Unknown, &StoreErrorKind::Interrupted)
    );
    let ended = tokio::time::timeout(PATIENCE, &mut inbox.task)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(*ended.kind(), StoreErrorKind::Interrupted);
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_given_up() {
    let server = RedisServer::start();
    server.freeze();
    let store = tenure::testing::redis_store(&server.url(), std::time::Duration::from_millis(100)).unwrap();
    let start = Instant::now();
    assert_eq!(
        *connect(&store).await.unwrap_err().kind(),
        StoreErrorKind::Unreachable
    );
    assert!(start.elapsed() < PATIENCE);
    server.thaw();
}

#[tokio::test]
async fn a_waiter_costs_eight_calls() {
    let server = RedisServer::start();
    let store = store(&server.url());
    let link = connect(&store).await.unwrap();
    granted(&ask(&link, b"a", claim_id(1, 1), CLAIM).await);
    assert!(matches!(
        ask(&link, b"a", claim_id(2, 1), WAIT).await,
        Reply::Claim(ClaimReply::Queued(_, QueueOwner::Node(_)))
    ));
    let mut client = server.client();
    // In the same millisecond a heartbeat changes nothing, and one more call must check whether the claim waits.
    let time = |client: &mut redis::Connection| command("TIME").query::<(u64, u64)>(client).unwrap();
    let before = time(&mut client);
    while time(&mut client).1 / 1000 == before.1 / 1000 {}
    let () = command("CONFIG RESETSTAT").query(&mut client).unwrap();
    assert!(matches!(
        ask(&link, b"a", claim_id(2, 1), Verb::HEARTBEAT).await,
        Reply::Claim(ClaimReply::Queued(_, QueueOwner::Node(_)))
    ));
    let stats: String = command("INFO commandstats").query(&mut client).unwrap();
    let calls = stats
        .lines()
        .filter(|line| !line.contains("config") && !line.contains("info"));
    let count: u64 = calls
        .filter_map(|line| {
            line.split_once("calls=")?
                .1
                .split(',')
                .next()?
                .parse::<u64>()
                .ok()
        })
        .sum();
    assert!(count <= 8, "{stats}");
    // An idle store answers, too.
    assert!(store.abilities().queues);
}
