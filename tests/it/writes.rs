//! Writes under a lease: what a store without data answers, and which leases are not handed on.

use std::time::Duration;

use tenure::Fence;
use tenure::error::{LostCause, StoreErrorKind};
use tenure::protocol::message::{
    CallAnswer, ClaimId, ClaimNumber, ClaimReply, GrantNumber, LeaveReply, Mode, Name, Verb, WriteAnswer,
};
use tenure::protocol::session::Session;
use tenure::protocol::session::step::{
    Attempt, BatchId, Opened, SessionEffect, SessionInput, SessionOptions,
};
use tenure::protocol::step::{Effect, Input, LockOptions, OutgoingAction, Rules, Tag, Ticket};
use tenure::protocol::time::Instant;
use tenure::protocol::write::{Action, GuardedWrite, Precondition, WriteBody};
use tenure::testing::timed_out;

use crate::failures::Why;
use crate::help::ms;
use crate::machine::{Machine, options};

#[cfg(feature = "redis")]
#[tokio::test]
async fn a_store_that_keeps_leases_only_says_so() {
    use tenure::{Error, Locks};

    let locks = Locks::memory();
    let guard = locks.mutex("a").lock().await.unwrap();
    let script = guard.atomically().script("return 1").query::<i64>().await;
    let commands = guard.lease().atomically().command("INCR").key("n");
    let commands = commands.query::<(i64,)>().await.map(|(n,)| n);
    let several = locks.multi(["b", "c"]).lock().await.unwrap();
    let of_several = several.atomically().script("return 1").query::<i64>().await;
    for (written, of) in [(script, "a"), (commands, "a"), (of_several, "b")] {
        let Err(Error::Unsupported { key, .. }) = &written else {
            panic!("{written:?}")
        };
        assert_eq!(*key, of.into());
        assert!(written.unwrap_err().to_string().contains("Redis"));
    }
    guard.release().await.unwrap();
    several.release().await.unwrap();
}

/// SQL has signed integers of 64 bits.
#[test]
fn a_fence_fits_into_sql_and_keeps_its_order() {
    const LARGEST: u64 = (1 << 53) - 1;
    let last = Fence::LOCAL - 1;
    let fences: Vec<i64> = [
        (0, 0),
        (1, 0),
        (1, last),
        (LARGEST - 1, last),
        (LARGEST, 0),
        (LARGEST, last),
    ]
    .map(|(number, index)| Fence::new(GrantNumber(number), index).as_i64())
    .into();
    assert!(fences.is_sorted_by(|one, next| one < next), "{fences:?}");
    assert_eq!((fences[0], fences[5]), (0, i64::MAX));
    // No store gives a larger number. A larger one must not reverse the order.
    let forged = Fence::new(GrantNumber(u64::MAX), last);
    assert_eq!(
        (i64::from(forged), u64::from(forged)),
        (i64::MAX, i64::MAX as u64)
    );
}

// The key machine.

/// Returns a machine with a holder, and with a waiter of the same process. Bursts do not end.
fn held_and_waited(mode: Mode) -> (Machine, Ticket, Ticket) {
    let rules = Rules {
        burst: 1_000,
        burst_time: ms(60_000),
        ..Rules::default()
    };
    let mut machine = Machine::new(rules);
    let wanted = LockOptions {
        mode,
        ..options(1_000)
    };
    let claim_id = machine.enter(wanted);
    machine.answer(ClaimReply::granted(GrantNumber(7)));
    assert!(machine.take_up(claim_id));
    let next = machine.enter(options(1_000));
    (machine, claim_id, next)
}

/// Returns the precondition of a write, if the caller holds.
fn begin_write(machine: &mut Machine, of: Ticket) -> Option<Precondition> {
    let (now, name) = (machine.now, machine.name.clone());
    let (precondition, lease) = machine.shard.begin_write(now, &name, of)?;
    assert_eq!(precondition.number, GrantNumber(7));
    assert_eq!(
        Some(precondition.claim_id),
        machine.shard.holding(now, &name, of).map(|held| held.claim)
    );
    assert_eq!(lease, ms(1_000));
    Some(precondition)
}

fn end_write(machine: &mut Machine, write: &Precondition) {
    machine.tell(Input::WriteEnded(write.clone(), false));
}

/// Reports that the store has no lease of this claim under this grant.
fn refuse_write(machine: &mut Machine, claim_id: ClaimId, number: u64) {
    let write = Precondition {
        name: machine.name.clone(),
        claim_id,
        mode: Mode::Exclusive,
        number: GrantNumber(number),
    };
    machine.tell(Input::WriteEnded(write, true));
}

#[test]
fn a_lease_with_a_write_under_way_is_not_handed_on() {
    let (mut machine, claim_id, next) = held_and_waited(Mode::Exclusive);
    let [_, write] = [(); 2].map(|()| begin_write(&mut machine, claim_id).unwrap());
    // One of the two writes is answered.
    end_write(&mut machine, &write);
    machine.tell(Input::Release(claim_id));
    assert!(!machine.is_granted(next));
    assert!(matches!(machine.sent().request.verb, Verb::Yield { .. }));
    machine.answer(ClaimReply::granted(GrantNumber(8)));
    assert!(machine.holds(next));
    // A late answer does not affect the writes of the next holder.
    end_write(&mut machine, &write);
}

#[test]
fn a_lease_whose_writes_are_answered_is_handed_on() {
    let (mut machine, claim_id, next) = held_and_waited(Mode::Exclusive);
    let writes = [(); 2].map(|()| begin_write(&mut machine, claim_id).unwrap());
    writes.iter().for_each(|write| end_write(&mut machine, write));
    let sends = machine.sends();
    machine.tell(Input::Release(claim_id));
    assert!(machine.is_granted(next) && machine.holds(next));
    assert_eq!(machine.sends(), sends, "no request was sent");
}

#[test]
fn a_lease_with_an_unanswered_write_of_a_departed_reader_admits_no_reader() {
    let (mut machine, first, _) = held_and_waited(Mode::Read);
    let reads = LockOptions {
        mode: Mode::Read,
        ..options(1_000)
    };
    // The waiter is a writer, and no reader passes it.
    let writer = Ticket(2);
    machine.tell(Input::Cancel(writer));
    let second = machine.enter(reads);
    assert!(machine.is_granted(second));
    assert!(begin_write(&mut machine, first).is_some());
    machine.tell(Input::Release(first));
    let third = machine.enter(reads);
    assert!(!machine.is_granted(third), "it came after the writer");
    assert!(machine.holds(second));
    assert_eq!(machine.sent().request.verb, Verb::Claim { wait: true });
}

#[test]
fn a_holder_whose_lease_ended_writes_nothing() {
    let (mut machine, claim_id, next) = held_and_waited(Mode::Exclusive);
    assert!(begin_write(&mut machine, next).is_none(), "it waits");
    machine.later(ms(999));
    assert!(begin_write(&mut machine, claim_id).is_some());
    // No timer fired.
    machine.later(ms(1));
    assert!(begin_write(&mut machine, claim_id).is_none());
    let claim = machine.holding(claim_id).map(|of| of.claim.claim);
    assert_eq!(claim, Some(ClaimNumber(1)), "it is still to be told");
}

fn is_lost(machine: &Machine, claim_id: Ticket) -> bool {
    let is_told = |effect: &Effect| matches!(effect, Effect::Lost(of, LostCause::Gone) if *of == claim_id);
    machine.effects.iter().any(is_told) && !machine.holds(claim_id)
}

#[test]
fn a_refused_write_ends_the_holding_at_once() {
    for fixed in [false, true] {
        let mut machine = Machine::new(Rules::default());
        let wanted = LockOptions {
            fixed,
            ..options(1_000)
        };
        let claim_id = machine.enter(wanted);
        machine.answer(ClaimReply::granted(GrantNumber(7)));
        assert!(machine.take_up(claim_id));
        let write = begin_write(&mut machine, claim_id).unwrap();
        // A renewal is in flight, and its answer comes late.
        let sends = machine.sends() + usize::from(!fixed);
        if !fixed {
            machine.passes();
        }
        let (asked, renewal) = (machine.now, machine.sent());
        let of = machine.holding(claim_id).unwrap().claim;
        refuse_write(&mut machine, of, 7);
        assert!(is_lost(&machine, claim_id));
        end_write(&mut machine, &write);
        if !fixed {
            machine.answer_to(&renewal, asked, ClaimReply::granted(GrantNumber(7)));
        }
        assert!(!machine.holds(claim_id));
        assert_eq!(machine.sends(), sends, "the holder's code may still run");
        // The record may still be there, if an operator revoked it.
        machine.tell(Input::Release(claim_id));
        assert_eq!(machine.sends(), sends + 1);
        assert_eq!(machine.sent().request.verb, Verb::Leave);
        machine.answer(LeaveReply::NotThere);
        assert!(machine.shard.is_empty(), "nothing is left");
    }
}

#[test]
fn a_refused_write_ends_the_holding_of_all_readers_of_its_lease() {
    let mut machine = Machine::new(Rules::default());
    let reads = LockOptions {
        mode: Mode::Read,
        ..options(1_000)
    };
    let first = machine.enter(reads);
    machine.answer(ClaimReply::granted(GrantNumber(7)));
    let second = machine.enter(reads);
    for reader in [first, second] {
        assert!(machine.take_up(reader));
    }
    let of = machine.holding(first).unwrap().claim;
    // The writing holder has gone.
    machine.tell(Input::Release(first));
    assert!(machine.holds(second));
    refuse_write(&mut machine, of, 7);
    assert!(is_lost(&machine, second));
}

/// The answer is about one claim and one grant. A lease held under another claim or grant stays.
#[test]
fn a_refused_write_ends_no_other_holding() {
    let mut machine = Machine::new(Rules::default());
    let writer = machine.claim_id(1_000);
    let of = machine.holding(writer).unwrap().claim;
    refuse_write(&mut machine, of, 6);
    let foreign = ClaimId {
        nonce: !of.nonce,
        ..of
    };
    refuse_write(&mut machine, foreign, 7);
    assert!(machine.holds(writer));
    // The holder becomes a reader before the answer comes.
    let reader = machine.shard.issue();
    machine.tell(Input::Downgrade(writer, reader));
    refuse_write(&mut machine, of, 7);
    machine.answer(ClaimReply::granted(GrantNumber(8)));
    refuse_write(&mut machine, of, 7);
    refuse_write(&mut machine, of, 8);
    assert!(machine.holds(reader) && !is_lost(&machine, reader));
}

// The session.

const TIMEOUT: Duration = ms(2_000);

fn tag(number: u64) -> Tag {
    Tag {
        claim: ClaimNumber(number),
        seq: 1,
        master: 0,
    }
}

struct Bench {
    session: Session,
    now: Instant,
    effects: Vec<SessionEffect>,
}

impl Bench {
    /// Returns a bench with a connection.
    fn connected() -> (Bench, Attempt) {
        let mut bench = Bench::new();
        bench.write(0, ms(10_000));
        let attempt = bench.connects();
        let time = 1_700_000_000_000_000;
        bench.tell(SessionInput::Connected {
            attempt,
            opened: Opened {
                time,
                ..Opened::default()
            },
        });
        let sent = bench.sent();
        assert_eq!(sent.len(), 1);
        bench.answer(sent[0].1);
        bench.effects.clear();
        (bench, attempt)
    }

    fn new() -> Bench {
        Bench {
            session: Session::new(SessionOptions {
                request_timeout: TIMEOUT,
                server: "here".into(),
                remote: true,
                can_fail: true,
                poll_gap: ms(0),
                recovery: Duration::from_secs(10),
                lag: Duration::ZERO,
                seed: 7,
                role: Default::default(),
            }),
            now: Instant::from_nanos(1_000_000_000_000),
            effects: Vec::new(),
        }
    }

    fn connects(&self) -> Attempt {
        let attempt = self.effects.iter().rev().find_map(|effect| match effect {
            SessionEffect::Connect(attempt) => Some(*attempt),
            _ => None,
        });
        attempt.expect("an attempt")
    }

    fn tell(&mut self, input: SessionInput) {
        self.session.handle(self.now, input, &mut self.effects);
        self.step();
    }

    fn step(&mut self) {
        loop {
            let before = self.effects.len();
            self.session.step(self.now, &mut self.effects);
            if self.effects.len() == before {
                return;
            }
        }
    }

    /// Queues a write under a lease of this length.
    fn write(&mut self, number: u64, lease: Duration) {
        let write = GuardedWrite {
            leases: [].into(),
            body: WriteBody::Script {
                text: String::new(),
                keys: Vec::new(),
                args: Vec::new(),
            },
        };
        self.session.queue_action(OutgoingAction {
            tag: tag(number),
            name: Name::lock(number.to_string().into()),
            lease,
            called: self.now,
            action: Action::Write(write.into()),
        });
        self.step();
    }

    /// Advances the clock to the next due time.
    fn passes(&mut self) {
        self.now = self.session.next_due().expect("something is due").max(self.now);
        self.step();
    }

    fn answer(&mut self, batch: BatchId) {
        let reply = Ok(tenure::protocol::message::BatchReply {
            time: 0,
            replies: vec![CallAnswer::Written(WriteAnswer::Done(Box::default())).into()],
        });
        self.tell(SessionInput::Replied { batch, reply });
    }

    /// Returns the requests that were sent, with their batches.
    fn sent(&self) -> Vec<(u64, BatchId)> {
        let sent = self.effects.iter().filter_map(|effect| match effect {
            SessionEffect::Act { id, name, .. } => Some((name.key.to_string().parse().unwrap(), *id)),
            _ => None,
        });
        sent.collect()
    }

    fn failed(&self) -> Vec<(u64, Why)> {
        let failed = self.effects.iter().filter_map(|effect| match effect {
            SessionEffect::Tell(_, Input::Failed { tag, failed }) => {
                Some((tag.claim.0, Why::kind_of(failed)))
            }
            _ => None,
        });
        failed.collect()
    }
}

#[test]
fn a_write_is_sent_once_and_waited_for_a_quarter_of_its_lease() {
    let (mut bench, attempt) = Bench::connected();
    let start = bench.now;
    bench.write(1, ms(1_000));
    bench.write(2, ms(60_000));
    let sent = bench.sent();
    assert_eq!(sent.iter().map(|(write, _)| *write).collect::<Vec<_>>(), [1, 2]);
    assert!(!bench.session.is_idle());
    bench.passes();
    assert_eq!(
        (bench.now.since(start), bench.failed()),
        (ms(250), vec![(1, Why::Unknown)])
    );
    // A late answer changes nothing.
    bench.answer(sent[0].1);
    // The other write is waited for as long as its connection.
    while bench.failed().len() < 2 {
        bench.passes();
    }
    assert_eq!(bench.now.since(start), TIMEOUT);
    assert_eq!(bench.failed()[1], (2, Why::Unknown));
    let closed = |effect: &SessionEffect| matches!(effect, SessionEffect::Close(of) if *of == attempt);
    assert!(
        bench.effects.iter().any(closed),
        "a silent connection is given up"
    );
    assert_eq!(bench.sent().len(), 2, "nothing is sent again");
    assert!(bench.session.is_idle());
}

#[test]
fn a_write_that_finds_no_connection_is_not_sent_later() {
    let mut bench = Bench::new();
    bench.write(1, ms(1_000));
    let attempt = bench.connects();
    bench.passes();
    assert_eq!(bench.failed(), [(1, Why::No)], "its time is over");
    bench.write(2, ms(1_000));
    let error = timed_out();
    bench.tell(SessionInput::ConnectFailed { attempt, error });
    assert_eq!(bench.failed().len(), 2);
    assert_ne!(bench.failed()[1].1, Why::Unknown);
    assert!(bench.sent().is_empty() && bench.session.is_idle());
}

#[test]
fn many_writes_leave_room_for_renewals() {
    let (mut bench, _) = Bench::connected();
    for write in 1..=40 {
        bench.write(write, ms(10_000));
    }
    assert_eq!(bench.sent().len(), 16);
    // A liveness check is a batch like a renewal.
    let batches = |bench: &Bench| {
        let sends = |effect: &&SessionEffect| matches!(effect, SessionEffect::Send { .. });
        bench.effects.iter().filter(sends).count()
    };
    bench.tell(SessionInput::Probed(tenure::protocol::session::step::Probe(1)));
    assert_eq!(batches(&bench), 1);
    let answered = bench.sent()[3].1;
    bench.answer(answered);
    assert_eq!(bench.sent().len(), 17);
    let failure = tenure::protocol::message::Failure {
        executed: tenure::protocol::message::Executed::Unknown,
        error: tenure::error::StoreError::new(StoreErrorKind::Interrupted, "it broke"),
    };
    let batch = bench.sent()[0].1;
    bench.tell(SessionInput::Replied {
        batch,
        reply: Err(failure),
    });
    // Writes in flight may have been executed; queued writes were not.
    let unknown = bench
        .failed()
        .iter()
        .filter(|(_, why)| *why == Why::Bystander)
        .count();
    assert_eq!(unknown, 16);
    assert_eq!(bench.sent().len(), 17);
}

/// A write whose lease has ended before it could be sent is refused as by the store, and says nothing about the server: an operator
/// would look for what the server refuses.
#[test]
fn a_write_that_is_not_sent_is_no_failure_of_its_server() {
    let (mut bench, _) = Bench::connected();
    bench.write(1, ms(1_000));
    let (_, batch) = bench.sent()[0];
    bench.effects.clear();
    bench.tell(SessionInput::LeasesOver(batch, vec![0]));
    let [SessionEffect::Tell(_, Input::Answered { tag, reply, .. })] = &bench.effects[..] else {
        panic!("{:?}", bench.effects);
    };
    assert_eq!(tag.claim.0, 1);
    let answer = reply.answer();
    assert!(
        matches!(answer, Some(CallAnswer::Written(WriteAnswer::NotCurrent(places))) if places[..] == [0]),
        "{answer:?}"
    );
    assert!(bench.session.is_idle());
}
