//! Random batches on a real cluster and through a ledger for each slot: batches that are split, and requests that are
//! executed with their record alone while a slot is half moved.

use std::collections::HashMap;
use std::sync::Arc;

use tenure::Key;
use tenure::protocol::ledger::Ledger;
use tenure::protocol::message::{
    Batch, ClaimId, ClaimNumber, ClaimReply, Executed, GrantNumber, Kind, LeaseTimes, LeaveReply, Mode, Name,
    NodeId, Permits, Push, Redirect, Reply, Request, Verb,
};
use tenure::store::{Link, ServerId};
use tenure::testing::cluster_store;

use super::steps::Steps;
use super::{same, word};
use crate::cluster::{Cluster, SlotMove, slot_of};
use crate::deployment::tell;
use crate::tools::{PATIENCE, TERM, batch};

const SLOTS: usize = 4;
const KEYS_OF_SLOT: usize = 3;
const KINDS: [Kind; 3] = [Kind::Lock, Kind::Semaphore, Kind::Election];
const CAPACITY: u32 = 3;

/// A slot, its ledger, and where it is on its way to.
struct Slot {
    tag: String,
    ledger: Ledger,
    /// The server that owns it.
    owner: usize,
    /// Set while it is half moved; true if its keys are on the target.
    moving: Option<(SlotMove, bool)>,
}

impl Slot {
    fn has_record(&self, name: &Name, time: u64) -> bool {
        self.ledger.record(name, time).is_some() || self.ledger.shares(name, time).next().is_some()
    }
}

struct Run {
    rng: fastrand::Rng,
    cluster: Cluster,
    links: HashMap<usize, Arc<dyn Link>>,
    slots: Vec<Slot>,
    /// The claims of each name.
    claims: HashMap<Name, Vec<(ClaimId, Mode)>>,
    next: u64,
    seen: HashMap<&'static str, u64>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn split_batches_and_records_alone_give_the_replies_of_a_ledger_for_each_slot() {
    let mut steps = Steps::begin();
    let mut run = Run::new(steps.seed).await;
    let wanted = [
        ("split", 200),
        ("Granted", 50),
        ("Busy", 20),
        ("Gone", 20),
        ("Done", 20),
        ("pending", 50),
        ("moved", 2),
        ("renewed alone", 10),
        ("asserted alone", 2),
        ("left alone", 8),
        ("gone alone", 10),
        ("not left alone", 10),
    ];
    while let Some(step) = steps.next(&run.seen, &wanted) {
        if step.is_multiple_of(20) {
            run.move_a_slot();
        }
        if step.is_multiple_of(250) {
            run.begin_again();
        }
        run.step(step).await;
    }
}

impl Run {
    async fn new(seed: u64) -> Self {
        let cluster = Cluster::start(2, 0);
        let store = cluster_store(&cluster.urls()[0], PATIENCE).unwrap();
        let mut links = HashMap::new();
        // The first link reads the map.
        drop(store.connect(ServerId(0), None).await.unwrap());
        for id in store.servers() {
            let link = store.connect(id, None).await.unwrap();
            let address = link.opened().place.address.to_string();
            let is_its = |at: &usize| address.ends_with(&format!(":{}", cluster.server(*at).port()));
            links.insert((0..2).find(is_its).unwrap(), link);
        }
        let slots = (0..SLOTS).map(|n| {
            let tag = format!("tag{n}");
            Slot {
                owner: cluster.master_of_slot(slot_of(&tag)),
                tag,
                ledger: Ledger::new(),
                moving: None,
            }
        });
        let slots = slots.collect();
        Run {
            rng: fastrand::Rng::with_seed(seed),
            cluster,
            links,
            slots,
            claims: HashMap::new(),
            next: 1,
            seen: HashMap::new(),
        }
    }

    fn saw(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    /// Ends all moves and clears the store. Otherwise each key is soon held by a claim that is not known any more.
    fn begin_again(&mut self) {
        for at in 0..2 {
            tell(self.cluster.server(at), &["FLUSHALL"]);
        }
        for slot in &mut self.slots {
            match slot.moving.take() {
                Some((moving, true)) => {
                    self.cluster.end_move(moving);
                    slot.owner = moving.to;
                }
                Some((moving, false)) => self.cluster.abort_move(moving),
                None => {}
            }
            slot.ledger = Ledger::new();
        }
        self.claims.clear();
    }

    /// Begins to move a slot, moves its keys, or ends its move.
    fn move_a_slot(&mut self) {
        let slot = &mut self.slots[self.rng.usize(..SLOTS)];
        slot.moving = match slot.moving {
            None => {
                let number = slot_of(&slot.tag);
                let to = 1 - slot.owner;
                Some((self.cluster.begin_move(number, to), false))
            }
            Some((moving, false)) if self.rng.u8(..4) > 0 => {
                self.cluster.migrate_all(moving);
                Some((moving, true))
            }
            Some((moving, false)) => {
                self.cluster.abort_move(moving);
                None
            }
            Some((moving, true)) => {
                self.cluster.end_move(moving);
                slot.owner = moving.to;
                *self.seen.entry("moved").or_default() += 1;
                None
            }
        };
    }

    fn request(&mut self, kind: Kind, slot: usize, key: usize) -> Request {
        let name = Name::new(kind, Key::from(format!("{{{}}}:{key}", self.slots[slot].tag)));
        let known = self.claims.entry(name.clone()).or_default();
        let is_new = known.len() < 2 || self.rng.u8(..4) == 0;
        let (claim_id, mode) = if is_new {
            let claim_id = ClaimId {
                node: NodeId::numbered(self.rng.u128(1..4)),
                claim: ClaimNumber(self.next),
                nonce: self.next,
            };
            self.next += 1;
            let mode = match kind {
                Kind::Semaphore => Mode::Permits(Permits {
                    weight: self.rng.u32(1..=2),
                    capacity: CAPACITY,
                }),
                Kind::Lock if self.rng.bool() => Mode::Read,
                _ => Mode::Exclusive,
            };
            known.push((claim_id, mode));
            if known.len() > 6 {
                known.remove(0);
            }
            (claim_id, mode)
        } else {
            known[self.rng.usize(..known.len())]
        };
        // No number that shows a loss.
        let number = GrantNumber(1);
        let verb = match self.rng.u8(..10) {
            _ if is_new => Verb::Claim {
                wait: self.rng.bool(),
            },
            0..4 => Verb::Renew { number: Some(number) },
            4 => Verb::Assert { number },
            5 => Verb::HEARTBEAT,
            _ => Verb::Leave,
        };
        Request {
            name,
            claim_id,
            // No lease ends in the time of a run.
            term: LeaseTimes {
                lease_ms: super::LONG_MS,
                ..TERM
            },
            mode,
            when_behind: Default::default(),
            may_keep: false,
            data: None,
            mark: None,
            verb,
        }
    }

    async fn step(&mut self, step: u64) {
        let kind = KINDS[self.rng.usize(..KINDS.len())];
        let owner = self.rng.usize(..2);
        let mut places: Vec<(usize, usize)> = Vec::new();
        for slot in 0..SLOTS {
            // A slot that is half moved still belongs to the source.
            if self.slots[slot].owner == owner {
                places.extend((0..KEYS_OF_SLOT).map(|key| (slot, key)));
            }
        }
        self.rng.shuffle(&mut places);
        places.truncate(self.rng.usize(1..=8));
        if places.is_empty() {
            return;
        }
        let requests = places.iter().map(|(slot, key)| self.request(kind, *slot, *key));
        let whole: Batch = batch(requests.collect());
        let real = self.links[&owner].apply(whole.clone()).await.unwrap();
        let of_slots: std::collections::BTreeSet<usize> = places.iter().map(|(slot, _)| *slot).collect();
        if of_slots.len() > 1 {
            self.saw("split");
        }
        for slot in of_slots {
            let of_slot = (0..places.len()).filter(|at| places[*at].0 == slot);
            let at: Vec<usize> = of_slot.collect();
            let requests: Vec<Request> = at.iter().map(|at| whole.requests[*at].clone()).collect();
            let model = self.model(slot, real.time, requests);
            for (at, model) in at.into_iter().zip(model) {
                let real = &real.replies[at];
                let is_equal = match (real, &model) {
                    // The scripts of a batch run at slightly different times.
                    (Reply::Claim(ClaimReply::Granted(one)), Reply::Claim(ClaimReply::Granted(other))) => {
                        one.other_capacity == other.other_capacity
                    }
                    (Reply::Failed(one), Reply::Failed(other)) => one.executed == other.executed,
                    _ => same(real, &model),
                };
                let request = &whole.requests[at];
                assert!(
                    is_equal,
                    "step {step}: {request:?}, server {real:?}, ledger {model:?}"
                );
                let word = word(&model);
                if ["Granted", "Busy", "Gone", "Done"].contains(&word) {
                    self.saw(word);
                }
            }
        }
    }

    /// Returns the replies of the ledger of a slot.
    fn model(&mut self, slot: usize, time: u64, requests: Vec<Request>) -> Vec<Reply> {
        let time = if time > 0 { time } else { super::wall_us() };
        let Some((_, is_migrated)) = self.slots[slot].moving else {
            let ledger = &mut self.slots[slot].ledger;
            return ledger
                .apply(time, &batch(requests), &mut Vec::<Push>::new())
                .replies;
        };
        let pending = || {
            let error = tenure::testing::timed_out();
            Reply::Failed(Box::new(tenure::protocol::message::Failure {
                executed: Executed::Elsewhere(Redirect::Pending),
                error,
            }))
        };
        let mut replies = Vec::new();
        for request in requests {
            if !request.needs_record_only() {
                self.saw("pending");
                replies.push(pending());
                continue;
            }
            let reply = self.slots[slot].ledger.apply_alone(time, &request);
            self.saw(match (word(&reply), request.verb) {
                ("Granted", Verb::Assert { .. }) => "asserted alone",
                ("Granted", _) => "renewed alone",
                ("Done", _) => "left alone",
                ("Gone", _) => "gone alone",
                _ => "not left alone",
            });
            // Another owner's record at the source is no proof, and a waiter has no record.
            let is_of_another = self.slots[slot].has_record(&request.name, time) && !is_migrated;
            let is_believed = match reply {
                Reply::Claim(ClaimReply::Gone) => !is_of_another,
                _ => reply != Reply::Leave(LeaveReply::NotThere),
            };
            replies.push(if is_believed { reply } else { pending() });
        }
        replies
    }
}
