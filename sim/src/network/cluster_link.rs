//! The link of a node to the servers of a cluster: it splits a batch by hash slot, and falls back to requests with a record
//! alone while a slot is on its way. It never sends a script to another server.

use tenure::error::StoreErrorKind;
use tenure::protocol::flaw::Flaw;
use tenure::protocol::message::{
    Batch, BatchReply, ClaimReply, Executed, Failure, GrantNumber, LeaveReply, Redirect, Reply, Request,
    Rule, Verb,
};
use tenure::protocol::redirects::{Fallback, Side, SlotRefusal, after_alone, after_script, is_believed};
use tenure::protocol::session::step::BatchId;

use crate::coverage::Case;
use crate::time::MS;
use crate::world::World;
use crate::world::cluster::Join;
use crate::world::connection::error;
use crate::world::event::{AloneAnswer, Event};
use crate::world::signal::Signal;

/// What a server replies to the parts of a batch.
#[derive(Debug)]
pub(crate) struct Parts {
    time: u64,
    /// `None`: the link asks in another way.
    replies: Vec<Option<Reply>>,
    /// The hash slots that another server serves.
    moved: Vec<(usize, usize)>,
}

/// Returns the failure of requests that a server did not execute because it does not serve their names.
pub(crate) fn elsewhere(redirect: Redirect) -> Failure {
    Failure {
        executed: Executed::Elsewhere(redirect),
        error: error(StoreErrorKind::Unreachable),
    }
}

/// Returns the case of a request that is reported as not executed by its server.
fn redirected(verb: Verb) -> Case {
    match verb {
        Verb::Claim { .. } | Verb::Propose { .. } => Case::RedirectedClaim,
        Verb::Renew { .. } | Verb::Assert { .. } | Verb::Restore { .. } => Case::RedirectedRenew,
        Verb::Leave | Verb::Finish { .. } => Case::RedirectedLeave,
        Verb::Yield { .. } => Case::RedirectedYield,
        Verb::Pass { .. } => Case::RedirectedPass,
        Verb::Call(_) => Case::RedirectedCall,
    }
}

impl World {
    /// Returns why the server at hand executes no script for a hash slot, and the server that it names.
    pub(crate) fn slot_refusal(&mut self, hash: usize) -> Option<(SlotRefusal, usize)> {
        let (at, now, is_faulty) = (self.at, self.now, self.in_fault_period());
        let servers = self.cluster.servers;
        let (slot, rng) = (&self.cluster.slots[hash], &mut self.cluster.rng);
        if slot.server != at {
            // A server may have old news of the others.
            let is_old = is_faulty && rng.u8(0..100) < 5;
            let named = if is_old {
                rng.usize(0..servers)
            } else {
                slot.server
            };
            self.cover(Case::Moved);
            return Some((SlotRefusal::Moved, named));
        }
        if slot.unserved_until > now {
            self.cover(Case::Unserved);
            return Some((SlotRefusal::Down, at));
        }
        // A script names a queue, which often does not exist. So it finds all its names at neither server.
        let half = slot.half.as_ref()?;
        let said = if rng.bool() {
            SlotRefusal::Ask
        } else {
            SlotRefusal::TryAgain
        };
        let named = half.target;
        self.cover(Case::AskedOrTryAgain);
        Some((said, named))
    }

    /// Executes the parts of a batch, each with the ledger of its hash slot.
    pub(crate) fn execute_parts(&mut self, batch: &Batch) -> Parts {
        let mut parts = Parts {
            time: self.server_us(),
            replies: vec![None; batch.requests.len()],
            moved: Vec::new(),
        };
        let hash_of = |world: &World, request: &Request| world.hash_slot(world.key_index(&request.name));
        let hashes: Vec<_> = batch
            .requests
            .iter()
            .map(|request| hash_of(self, request).expect("a cluster"))
            .collect();
        let mut seen = hashes.clone();
        seen.sort_unstable();
        seen.dedup();
        if seen.len() > 1 {
            self.cover(Case::BatchSplit);
        }
        for hash in seen {
            let at: Vec<_> = (0..hashes.len()).filter(|at| hashes[*at] == hash).collect();
            match self.slot_refusal(hash) {
                Some((said, named)) => self.refuse_part(batch, &at, (hash, said, named), &mut parts),
                None => {
                    let mut part = Batch {
                        requests: at.iter().map(|at| batch.requests[*at].clone()).collect(),
                        ..batch.clone()
                    };
                    let answer = self.with_slot(self.at, Some(hash), |world| world.execute(&mut part));
                    for (at, reply) in at.into_iter().zip(answer.replies) {
                        parts.replies[at] = Some(reply);
                    }
                }
            }
        }
        parts
    }

    fn refuse_part(
        &mut self,
        batch: &Batch,
        at: &[usize],
        (hash, said, named): (usize, SlotRefusal, usize),
        parts: &mut Parts,
    ) {
        let server = self.at;
        self.note(None, None, || {
            format!("server {server}: {said:?} of slot {hash}, names {named}")
        });
        if said == SlotRefusal::Moved {
            parts.moved.push((hash, named));
        }
        let forwards = self.setup.plant().is(Flaw::ForwardedByLink);
        for &at in at {
            let request = &batch.requests[at];
            if let Fallback::Report(redirect) = after_script(request, said)
                && !(forwards && redirect == Redirect::Moved)
            {
                self.cover(redirected(request.verb));
                parts.replies[at] = Some(Reply::Failed(Box::new(elsewhere(redirect))));
            }
        }
    }

    /// Sends the replies to the parts of a batch to the link.
    pub(crate) fn answer_parts(&mut self, conn: usize, id: BatchId, batch: Batch, parts: Parts) {
        let back = self.way_back(conn);
        for &(hash, server) in &parts.moved {
            self.at(back, Event::MovedSeen { conn, hash, server });
        }
        if parts.replies.iter().all(Option::is_some) {
            let reply = BatchReply {
                time: parts.time,
                replies: parts.replies.into_iter().flatten().collect(),
            };
            let reply = Box::new(Ok(reply));
            return self.at(back, Event::Reply { conn, id, reply });
        }
        let join = self.cluster.joins.len();
        self.cluster.joins.push(Join {
            conn,
            id,
            time: parts.time,
            batch,
            replies: parts.replies,
        });
        self.at(back, Event::Fallback { join });
    }

    /// The link was told that another server serves a hash slot. It corrects the node's map.
    pub(crate) fn moved_seen(&mut self, conn: usize, hash: usize, server: usize) {
        let of = &self.conns[conn];
        let (slot, client, stall) = (of.slot, of.client, of.stall);
        if !client || of.silent.is_some() {
            return;
        }
        if stall > self.now {
            return self.at(stall, Event::MovedSeen { conn, hash, server });
        }
        self.raise(Signal::MapChanged { slot, hash, server });
    }

    /// The link sends the requests that need another way.
    pub(crate) fn fall_back(&mut self, join: usize) {
        let conn = self.cluster.joins[join].conn;
        let of = &self.conns[conn];
        if !of.client || of.silent.is_some() || of.mute || of.broken {
            return;
        }
        if of.stall > self.now {
            return self.at(of.stall, Event::Fallback { join });
        }
        let source = of.to;
        let unanswered = self.cluster.joins[join].replies.iter();
        let indices: Vec<_> = unanswered
            .enumerate()
            .filter_map(|(at, reply)| reply.is_none().then_some(at))
            .collect();
        if self.setup.plant().is(Flaw::ForwardedByLink) {
            return self.forward(join, &indices);
        }
        for index in indices {
            let arrives = (self.now + self.delay()).max(self.conns[conn].up);
            self.conns[conn].up = arrives;
            let (side, server) = (Side::Source, source);
            self.at(
                arrives,
                Event::Alone {
                    join,
                    index,
                    side,
                    server,
                },
            );
        }
    }

    /// A request reaches a server that shall execute it with its record alone.
    pub(crate) fn alone_arrives(&mut self, join: usize, index: usize, side: Side) {
        let conn = self.cluster.joins[join].conn;
        let of = &self.conns[conn];
        let is_dead = side == Side::Source && (!of.server || of.silent.is_some());
        let stall = if side == Side::Source { of.stall } else { 0 };
        let (client, mute) = (of.client, of.mute && side == Side::Source);
        if is_dead {
            return;
        }
        let held = self.server.stall.max(stall);
        let server = self.at;
        if held > self.now {
            return self.at(
                held,
                Event::Alone {
                    join,
                    index,
                    side,
                    server,
                },
            );
        }
        let answer = if self.server.down {
            AloneAnswer::Lost(Executed::No)
        } else {
            self.execute_alone_if_served(join, index, side)
        };
        if !client {
            self.cover(Case::AloneLate);
        }
        if !client || mute {
            return;
        }
        let is_lost = side == Side::Target && self.in_fault_period() && self.chance(4);
        let answer = if is_lost {
            AloneAnswer::Lost(Executed::Unknown)
        } else {
            answer
        };
        let back = match side {
            Side::Source => self.way_back(conn),
            Side::Target => self.now + self.delay(),
        };
        self.at(
            back,
            Event::AloneAnswered {
                join,
                index,
                side,
                answer: Box::new(answer),
            },
        );
    }

    fn execute_alone_if_served(&mut self, join: usize, index: usize, side: Side) -> AloneAnswer {
        let request = self.cluster.joins[join].batch.requests[index].clone();
        let key = self.key_index(&request.name);
        let hash = self.hash_slot(key).expect("a cluster");
        let has_record = !self.with_key(key, |world| world.key_records(&request.name).is_free());
        let slot = &self.cluster.slots[hash];
        let (owner, is_forgetful) = (slot.server, self.cluster.rng.u8(0..5) == 0);
        let answer = match &slot.half {
            Some(half) if half.target == self.at && side == Side::Target => None,
            _ if owner != self.at => Some(AloneAnswer::Refused(SlotRefusal::Moved, owner)),
            // A source that was promoted does not know of the move, and lacks what the target has.
            Some(half) if half.moved.contains(&key) || !has_record => Some(match is_forgetful {
                true => AloneAnswer::Done(match request.verb {
                    Verb::Leave => LeaveReply::NotThere.into(),
                    _ => ClaimReply::Gone.into(),
                }),
                false => AloneAnswer::Refused(SlotRefusal::Ask, half.target),
            }),
            _ => None,
        };
        answer.unwrap_or_else(|| {
            self.cover(match side {
                Side::Source => Case::AloneAtSource,
                Side::Target => Case::AloneAtTarget,
            });
            let execute = |world: &mut World| world.execute_alone(request);
            AloneAnswer::Done(self.with_slot(self.at, Some(hash), execute))
        })
    }

    /// Executes a request with its record alone, and raises the signal for the laws.
    fn execute_alone(&mut self, request: Request) -> Reply {
        let us = self.server_us();
        let key = self.key_index(&request.name);
        let batch = Batch {
            highest: GrantNumber::default(),
            not_after: u64::MAX,
            poll_gap_ms: self.profile.poll_gap,
            is_unconfirmed: false,
            recovery_ms: self.profile.recovery().as_millis() as u64,
            rule: Rule::Each,
            requests: vec![request],
        };
        let before = self.records_of_batch(&batch);
        let request = &batch.requests[0];
        let reply = self.server.ledger.apply_alone(us, request);
        let at = self.at;
        self.note(None, Some(key), || {
            format!(
                "server {at}: alone {:?} {} -> {reply:?}",
                request.verb, request.claim_id.claim
            )
        });
        self.memory.is_copy = false;
        // Nothing was done otherwise.
        if !matches!(
            reply,
            Reply::Claim(ClaimReply::Gone) | Reply::Leave(LeaveReply::NotThere)
        ) {
            self.raise(Signal::Executed {
                batch: &batch,
                replies: std::slice::from_ref(&reply),
                before: &before,
                pushes: &[],
            });
            self.raise(Signal::KeyChanged { key });
        }
        reply
    }

    /// The link has the answer to a request that needed another way.
    pub(crate) fn alone_answered(&mut self, join: usize, index: usize, side: Side, answer: AloneAnswer) {
        let conn = self.cluster.joins[join].conn;
        let of = &self.conns[conn];
        if !of.client || of.silent.is_some() {
            return;
        }
        if of.stall > self.now {
            let answer = Box::new(answer);
            return self.at(
                of.stall,
                Event::AloneAnswered {
                    join,
                    index,
                    side,
                    answer,
                },
            );
        }
        let (slot, plant) = (of.slot, self.setup.plant());
        let name = &self.cluster.joins[join].batch.requests[index].name;
        let hash = self.hash_slot(self.key_index(name)).expect("a cluster");
        let failed = |failure| Reply::Failed(Box::new(failure));
        let reply = match answer {
            AloneAnswer::Done(reply) if is_believed(side, &reply, plant) => reply,
            AloneAnswer::Done(_) => failed(elsewhere(Redirect::Pending)),
            AloneAnswer::Lost(executed) => failed(Failure {
                executed,
                error: error(StoreErrorKind::Interrupted),
            }),
            AloneAnswer::Refused(said, server) => {
                if said == SlotRefusal::Moved {
                    self.raise(Signal::MapChanged { slot, hash, server });
                }
                match after_alone(side, said) {
                    Fallback::Report(redirect) => failed(elsewhere(redirect)),
                    Fallback::Alone(side) => {
                        let way = self.way_to_target();
                        return self.after(
                            way,
                            Event::Alone {
                                join,
                                index,
                                side,
                                server,
                            },
                        );
                    }
                }
            }
        };
        if let Reply::Failed(failure) = &reply
            && let Executed::Elsewhere(_) = failure.executed
        {
            let verb = self.cluster.joins[join].batch.requests[index].verb;
            self.cover(redirected(verb));
        }
        self.cluster.joins[join].replies[index] = Some(reply);
        self.finish_join(join);
    }

    /// Draws the delay of a request to a target. It travels on a connection of its own, so a later request may overtake it.
    fn way_to_target(&mut self) -> u64 {
        let way = self.delay();
        if self.in_fault_period() && self.chance(15) {
            way + self.rng.u64(0..1_000 * MS)
        } else {
            way
        }
    }

    /// Delivers a batch when all its replies are there.
    fn finish_join(&mut self, join: usize) {
        let of = &mut self.cluster.joins[join];
        if of.replies.iter().any(Option::is_none) {
            return;
        }
        let replies = std::mem::take(&mut of.replies).into_iter().flatten().collect();
        let (conn, id, time) = (of.conn, of.id, of.time);
        self.reply(conn, id, Box::new(Ok(BatchReply { time, replies })));
    }

    /// Only for a planted mistake: sends the requests to the server that serves them now.
    fn forward(&mut self, join: usize, indices: &[usize]) {
        let key_of = |world: &World, index: &usize| {
            let request = &world.cluster.joins[join].batch.requests[*index];
            world.key_index(&request.name)
        };
        for index in indices {
            let hash = self.hash_slot(key_of(self, index)).expect("a cluster");
            let server = self.cluster.slots[hash].server;
            let mut way = self.delay();
            // Often shortly before the not-after, by the clock of the other server.
            let clock = self.server_at(server).clock_us(self.now);
            let early = self.rng.u64(0..40_000);
            let not_after = self.cluster.joins[join].batch.not_after;
            let left = not_after.saturating_sub(clock + early) * 1_000;
            if self.in_fault_period() && left < 4_000 * MS && self.chance(50) {
                way = way.max(left);
                self.extend_fault(self.now + way);
            }
            let index = *index;
            self.after(way, Event::Forwarded { join, index, server });
        }
    }

    /// Only for a planted mistake: a forwarded request reaches the server.
    pub(crate) fn forwarded(&mut self, join: usize, index: usize) {
        let of = &self.cluster.joins[join];
        let mut part = Batch {
            requests: vec![of.batch.requests[index].clone()],
            ..of.batch.clone()
        };
        let (conn, key) = (of.conn, self.key_index(&part.requests[0].name));
        let hash = self.hash_slot(key).expect("a cluster");
        let reply = if self.server.down || self.slot_refusal(hash).is_some() {
            Reply::Failed(Box::new(elsewhere(Redirect::Pending)))
        } else {
            self.memory.is_copy = false;
            let execute = |world: &mut World| world.execute(&mut part);
            let mut answer = self.with_slot(self.at, Some(hash), execute);
            answer.replies.remove(0)
        };
        if self.conns[conn].client {
            let (side, way) = (Side::Target, self.delay());
            let answer = Box::new(AloneAnswer::Done(reply));
            self.after(
                way,
                Event::AloneAnswered {
                    join,
                    index,
                    side,
                    answer,
                },
            );
        }
    }
}
