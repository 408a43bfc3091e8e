//! Laws of elections. Each proclamation names its grant, its node and its sequence number, so that every confusion
//! shows. The truth is derived from what the server executed, and is not asked of the ledger.

use std::time::Duration;

use tenure::protocol::ledger::RecordOwner;
use tenure::protocol::message::{Call, CallAnswer, Fence, Kind, LeaderReport, Reply, Request, Verb, Version};

use crate::callers::elections::{NOT_YET_GRANTED, Proclamation};
use crate::coverage::Case;
use crate::time::MS;
use crate::violation::Violation;
use crate::world::World;
use crate::world::caller::{Caller, CallerState};
use crate::world::election_memory::{LeaderNews, Observer};

impl World {
    /// Checks the answer to a proclamation.
    pub(crate) fn watch_proclamation(&mut self, slot: usize, caller: usize, done: bool) {
        let Caller {
            key, call, in_time, ..
        } = self.nodes[slot].callers[caller];
        let Some(Call::Proclaim { of, seq }) = call else {
            return;
        };
        let elections = &self.memory.elections;
        let Some(number) = elections.leads.get(&of).copied() else {
            return;
        };
        let is_kept = elections
            .proclaimed
            .get(&(key, number))
            .is_some_and(|kept| *kept >= seq);
        let local = self.local(slot);
        let leader = self.nodes[slot].shard.held_alone(local, &self.keys[key]);
        let leads = leader.is_some_and(|leader| leader.claim == of);
        // The server does not know a leader whose record is lost until the leader asserts its lease. Or it granted the same claim
        // itself, under another number.
        let is_lost = self.is_after_loss() && self.may_be_lost(number);
        // A leader that an operator revoked learns of it after its election.
        let is_revoked = self.memory.revoked.contains(&of);
        let is_exempt = is_lost || is_revoked || self.is_exempt_grant(number);
        let wrongly_refused = !done && in_time && leads && !is_exempt;
        if wrongly_refused || done && !is_kept && !is_lost {
            self.report(Violation::ProclaimedByAnother, Some(key), || {
                format!("{of} leads: {leads}; it was told that its proclamation {seq} was kept: {done}")
            });
        }
    }

    /// Checks that a reported value was proclaimed under the reported grant, and that reports never go back.
    pub(crate) fn watch_leader_news(&mut self, observer: usize, report: Option<&LeaderReport>) {
        let Observer {
            slot, key, latest, ..
        } = self.memory.elections.observers[observer];
        self.cover(match report {
            None => Case::NoLeaderTold,
            Some(report) if report.value.is_some() => Case::ProclaimedTold,
            Some(_) => Case::LeaderTold,
        });
        if !self.has_candidates(slot) {
            self.cover(Case::OutsideObserverTold);
        }
        let proclamation = report
            .and_then(|report| report.value.as_ref())
            .map(Proclamation::read);
        let elections = &self.memory.elections;
        // Around a promotion two masters may grant one claim, each under a number of its own. The proclamation names one of them.
        let is_lost = |number| self.is_after_loss() && self.may_be_lost(number);
        let is_of_leader = report.is_none_or(|report| {
            let led = elections.led.get(&(key, report.number)) == Some(&report.node);
            let is_true = is_lost(report.number)
                || proclamation.as_ref().is_none_or(|proclamation| {
                    let latest = elections.proclaimed.get(&(key, report.number)).copied();
                    proclamation.as_ref().is_some_and(|proclamation| {
                        [report.number, NOT_YET_GRANTED].contains(&proclamation.number)
                            && proclamation.node == report.node.to_string()
                            && Some(proclamation.seq) <= latest
                    })
                });
            led && is_true
        });
        if !is_of_leader {
            self.report(Violation::ProclaimedByAnother, Some(key), || {
                format!("an observer of node {slot} is told {report:?} with the value {proclamation:?}")
            });
        }
        let won_with_value = |report: &LeaderReport| {
            let elections = &self.memory.elections;
            elections.won_with_value.contains(&(key, report.number))
                && !self.is_exempt_fence(Fence::new(report.number, 0))
                // The value of a leader stays lost, though the leader asserts its lease.
                && !self.may_be_lost(report.number)
        };
        if let Some(report) = report
            && won_with_value(report)
        {
            self.cover(Case::ValueOfWinnerTold);
            if proclamation.is_none() {
                self.report(Violation::LeaderWithoutValue, Some(key), || {
                    format!("an observer of node {slot} is told {report:?}, which campaigned with a value")
                });
            }
        }
        let seq = proclamation.flatten().map(|proclamation| proclamation.seq);
        let told = report.map(|report| (report.number, seq));
        // The latest leader, or the latest value, may be lost.
        let is_lost = self.is_after_loss();
        if latest > told
            && !is_lost
            && told.is_some_and(|(number, _)| !self.is_exempt_fence(Fence::new(number, 0)))
        {
            self.report(Violation::LeaderNewsOutOfOrder, Some(key), || {
                format!("an observer of node {slot} is told {told:?} after {latest:?}")
            });
        }
        if latest.zip(told).is_some_and(|(latest, told)| latest.0 < told.0) {
            self.cover(Case::NextLeaderTold);
        }
        let version = report.map_or(Version(0), |report| report.version);
        let of = &mut self.memory.elections.observers[observer];
        (of.known, of.latest) = (Some((version, told)), told.or(latest));
    }

    /// Returns the leader's grant and the sequence number of its last proclamation.
    pub(crate) fn current_leader(&self, key: usize) -> LeaderNews {
        let (ledger, us) = self.ledger_of(key);
        let record = ledger.record(&self.keys[key], us)?;
        let RecordOwner::Claim(_, number) = record.owner else {
            return None;
        };
        Some((
            number,
            self.memory.elections.proclaimed.get(&(key, number)).copied(),
        ))
    }

    /// Checks that only the leader proclaims.
    pub(crate) fn watch_election(&mut self, key: usize, request: &Request, reply: &Reply) {
        if !self.elections.contains(&key) {
            return;
        }
        if let (Verb::Claim { .. }, Some(value)) = (request.verb, &request.data)
            && let Some(value) = Proclamation::read(value)
        {
            let campaigned = &mut self.memory.elections.campaigned;
            campaigned.insert(request.claim_id, value.seq);
        }
        let us = self.server_us();
        let record = self.server.ledger.record(&self.keys[key], us);
        let leader = record.and_then(|record| match record.owner {
            RecordOwner::Claim(claim_id, number) => Some((claim_id, number)),
            _ => None,
        });
        if let Some((claim_id, number)) = leader {
            let (elections, grant) = (&mut self.memory.elections, (key, number));
            // A server that forgot its clock, and whose clock was set back, gives a number again.
            if elections.led.insert(grant, claim_id.node) != Some(claim_id.node) {
                elections.won_with_value.remove(&grant);
                elections.proclaimed.remove(&grant);
                if let Some(seq) = elections.campaigned.get(&claim_id).copied() {
                    elections.won_with_value.insert(grant);
                    elections.proclaimed.insert(grant, seq);
                }
            }
        }
        let Verb::Call(Call::Proclaim { of, seq }) = request.verb else {
            return;
        };
        let number = leader
            .filter(|(claim_id, _)| *claim_id == of)
            .map(|(_, number)| number);
        let is_fair = match reply.answer() {
            Some(CallAnswer::Owned(is_done)) => *is_done == number.is_some(),
            _ => true,
        };
        if let (Some(number), Some(CallAnswer::Owned(true))) = (number, reply.answer()) {
            let kept = self.memory.elections.proclaimed.entry((key, number)).or_default();
            *kept = seq.max(*kept);
        }
        if !is_fair {
            self.report(Violation::ProclaimedByAnother, Some(key), || {
                format!("{leader:?} leads; {of} proclaims and is told {reply:?}")
            });
        }
    }

    /// Checks that a node asks only for callers that do not rest.
    pub(crate) fn watch_rests(&mut self, slot: usize, key: usize, request: &Request) {
        if request.name.kind != Kind::Election {
            return;
        }
        let is_of: fn(Option<Call>) -> bool = match request.verb {
            Verb::Claim { .. } => |call| call.is_none(),
            Verb::Call(Call::Leader { .. }) => |call| matches!(call, Some(Call::Leader { .. })),
            _ => return,
        };
        let (local, life) = (self.local(slot), self.nodes[slot].life);
        let node = &self.nodes[slot];
        let wants = |caller: &usize| {
            let of = &node.callers[*caller];
            let waits = matches!(of.state, CallerState::Waiting | CallerState::GivingUp);
            waits && of.key == key && is_of(of.call)
        };
        let (resting, awake): (Vec<_>, Vec<_>) = node
            .live
            .iter()
            .copied()
            .filter(wants)
            .partition(|caller| self.is_resting(slot, *caller));
        // Nodes draw the length of a rest. Of the callers whose rests may be over, the request counts for the one whose rest
        // ends first at the latest.
        let rests = &mut self.memory.elections.rests;
        let latest_of = |caller: &usize| {
            let rest = rests.get(&(slot, life, *caller));
            rest.filter(|rest| rest.earliest <= local).map(|rest| rest.latest)
        };
        let due = awake
            .iter()
            .filter_map(|caller| Some((latest_of(caller)?, *caller)));
        if let Some((_, first)) = due.min() {
            rests.remove(&(slot, life, first));
        }
        if awake.is_empty() {
            self.report(Violation::RestIgnored, Some(key), || {
                format!("node {slot} asks only for resting callers {resting:?}: {request:?}")
            });
        }
    }

    /// Checks that callers claim when their rest is over, if the store is available.
    pub(crate) fn watch_rested(&mut self) {
        let nodes = &self.nodes;
        self.memory.elections.rests.retain(|(slot, life, caller), _| {
            let node = &nodes[*slot];
            node.alive && node.life == *life && node.callers[*caller].state == CallerState::Waiting
        });
        if !self.is_calm() || !self.profile.rules.queues {
            return;
        }
        let slack = Duration::from_nanos(20 * MS + 4 * self.profile.lag);
        let mut rests = self.memory.elections.rests.iter();
        let late = rests.find(|((slot, ..), rest)| rest.latest + slack < self.local(*slot));
        if let Some((&(slot, _, caller), _)) = late {
            let key = self.nodes[slot].callers[caller].key;
            let state = self.describe_key(key);
            self.report(Violation::RestIgnored, Some(key), || {
                format!("ticket {} of node {slot} still rests: {state}", caller + 1)
            });
        }
    }

    /// Checks that in a calm an asking observer knows the leader, at the latest by its own timer.
    pub(crate) fn watch_elections(&mut self) {
        if self.elections.is_empty() {
            return;
        }
        self.watch_rested();
        let calm = self.is_calm();
        for observer in 0..self.memory.elections.observers.len() {
            let of = &self.memory.elections.observers[observer];
            let (slot, key, lease) = (of.slot, of.key, of.term.lease_ms * MS);
            let node = &self.nodes[slot];
            let asking_caller = of.asking_caller.filter(|_| node.alive && node.life == of.life);
            let asking_caller = asking_caller.filter(|caller| !self.is_resting(slot, *caller));
            let truth = self.current_leader(key);
            let knows = of.known.is_some_and(|(_, told)| told == truth);
            let now = self.now;
            let of = &mut self.memory.elections.observers[observer];
            if !calm || asking_caller.is_none() || knows {
                of.differs = None;
                continue;
            }
            // Between two checks another leader may have come and gone, and the observer was told of that one
            // in time.
            of.differs = of.differs.filter(|(_, of)| *of == truth);
            let ((since, _), known) = (*of.differs.get_or_insert((now, truth)), of.known);
            let bound = lease / 3 + lease / 100 + 6 * self.profile.delay.1 + 30 * MS;
            if now - since > bound {
                let state = self.describe_key(key);
                self.report(Violation::LeaderNotTold, Some(key), || {
                    format!("{truth:?} leads, and an observer of node {slot} knows {known:?}: {state}")
                });
            }
        }
        if calm && !self.draining {
            self.kill_leader();
        }
    }
}
