//! The run of one world: passes each event and each signal to its layer.

use tenure::error::LostCause;
use tenure::protocol::step::{AcquireError, WhyDenied};

use crate::coverage::Case;
use crate::setup::{Run, Setup};
use crate::time::MS;
use crate::violation::Violation;
use crate::world::World;
use crate::world::event::Event;
use crate::world::signal::Signal;

/// Runs one world.
pub fn run(setup: Setup) -> Run {
    let mut world = World::new(setup, handle);
    world.begin();
    world.run()
}

/// Passes a signal to the layer above its sender.
fn handle(world: &mut World, signal: Signal<'_>) {
    match signal {
        Signal::Session { slot, session, input } => world.tell_session(slot, session, input),
        Signal::MapChanged { slot, hash, server } => world.slot_moved(slot, hash, server),
        Signal::StrangerMet { slot } => world.read_map(slot),
        Signal::Input { slot, key, input } => world.feed(slot, key, input),
        Signal::Granted { slot, ticket, fence } => world.granted(slot, ticket, fence),
        Signal::Answered { slot, ticket, answer } => world.answered(slot, ticket, answer),
        Signal::Denied { slot, ticket, denial } => world.denied(slot, ticket, denial),
        Signal::Asked { slot, ticket } => world.asked(slot, ticket),
        Signal::Overdue { slot, ticket } => world.overdue(slot, ticket),
        Signal::Lost { slot, ticket, cause } => {
            world.watch_revoked_loss(slot, ticket, cause);
            world.lost(slot, ticket, cause);
        }
        Signal::Released {
            slot,
            ticket,
            outcome,
        } => world.released(slot, ticket, outcome),
        Signal::KeyChanged { key } => world.check_key(key),
        Signal::AllKeysChanged => world.check_all(),
        Signal::RequestQueued { slot, outgoing } => {
            world.watch_queued(slot, outgoing);
            world.watch_tick_claim(&outgoing.request);
        }
        Signal::RequestSent { slot, request } => world.watch_send_order(slot, request),
        Signal::RequestReported { slot, key, input } => world.watch_report(slot, key, input),
        Signal::Executed {
            batch,
            replies,
            before,
            pushes,
        } => {
            world.watch_execution(batch, replies, before, pushes);
            world.watch_group(batch, replies);
        }
        Signal::WriteExecuted { writer, mode } => world.watch_write(writer, mode),
        Signal::FenceIssued {
            slot,
            key,
            mode,
            fence,
        } => world.watch_fence(slot, key, mode, fence),
        Signal::LeaseGranted { slot, caller, fence } => {
            world.watch_solo(slot, caller, fence);
            world.watch_adopted(slot, caller);
        }
        Signal::CallerDenied { slot, caller, denial } => {
            world.watch_refused_call(slot, caller, denial);
            world.watch_gone(slot, caller, denial);
            let is_gone = matches!(denial, WhyDenied::Error(AcquireError::Lost(LostCause::Gone)));
            world.watch_not_adopted(slot, caller, None, is_gone);
        }
        Signal::OwnerAnswered {
            slot,
            caller,
            is_owner,
        } => {
            world.watch_not_adopted(slot, caller, Some(is_owner), !is_owner);
            world.watch_proclamation(slot, caller, is_owner);
        }
        Signal::ReleaseAnswered {
            slot,
            caller,
            outcome,
        } => world.watch_refused_release(slot, caller, outcome),
        Signal::ReleaseKept {
            slot,
            ticket,
            finished,
        } => world.watch_finish(slot, ticket, finished),
        Signal::CheckpointAnswered { slot, caller, report } => world.watch_checkpoint(slot, caller, report),
        Signal::TickDenied {
            slot,
            key,
            options,
            denial,
        } => world.with_key(key, |world| world.watch_denial(slot, key, options, denial)),
        Signal::RunBegan { slot, caller, fence } => {
            let key = world.nodes[slot].callers[caller].key;
            world.with_key(key, |world| world.watch_run(slot, caller, fence));
        }
        Signal::LeaderAnswered { observer, report } => world.watch_leader_news(observer, report),
        Signal::LatchAnswered {
            slot,
            caller,
            id,
            called_at,
            report,
        } => {
            world.watch_latch_answer(slot, caller, id, called_at, report);
        }
    }
}

impl World {
    /// Schedules the first events.
    fn begin(&mut self) {
        for slot in 0..self.profile.nodes {
            let node = self.new_node(slot, 0);
            self.nodes.push(node);
            self.want_inbox(slot);
            self.watch_sentinels(slot);
            let first = self.rng.u64(0..50 * MS);
            self.at(first, Event::Arrival { slot });
            if !self.jobs().is_empty() {
                let first = self.rng.u64(0..500 * MS);
                self.at(
                    first,
                    Event::TickFires {
                        slot,
                        key: self.locks,
                    },
                );
                self.at(
                    first,
                    Event::AskForOpenTick {
                        slot,
                        key: self.locks,
                    },
                );
            }
            if self.latch.is_some() {
                let first = self.rng.u64(0..100 * MS);
                self.at(first, Event::LatchUse { slot });
            }
        }
        self.begin_elections();
        for (is_met, case) in [
            (!self.profile.rules.queues, Case::NoQueue),
            (!self.profile.rules.final_push, Case::WeakPush),
            (!self.profile.probe, Case::NoProbe),
            (self.profile.crowd, Case::Crowd),
        ] {
            if is_met {
                self.cover(case);
            }
        }
        if self.is_quorum() {
            self.cover(Case::Quorum);
        }
        if self.is_cluster() {
            self.cover(Case::Cluster);
            self.at(50 * MS, Event::ClusterChange);
        }
        let (from, until) = self.profile.fault_period;
        if until > from {
            self.at(from, Event::Fault);
        }
        self.call_operator();
        // Derived, not drawn, and only where no other fault happens.
        if until == 0 && !self.profile.crowd && self.setup.seed.is_multiple_of(2) {
            let slot = self.setup.seed as usize / 2 % self.nodes.len();
            self.at(1_500 * MS, Event::FallSilent { slot });
        }
        let drain = self.profile.drain;
        self.at(drain, Event::Drain);
        self.at(20 * MS, Event::Audit);
    }

    /// Handles events until the world ends or fails.
    fn run(mut self) -> Run {
        let text = format!("{:?}, {} keys", self.profile, self.keys.len());
        self.note(None, None, || text);
        while !self.finished && self.failure.is_none() {
            let Some(event) = self.next_event() else { break };
            self.steps += 1;
            self.dispatch(event);
            if self.steps > 5_000_000 {
                self.report(Violation::EndlessRequests, None, || {
                    "the world does not end".into()
                });
                break;
            }
        }
        self.log.mix(self.now);
        Run {
            steps: self.steps,
            inputs: self.inputs,
            virtual_ms: self.now / MS,
            hash: self.log.hash,
            coverage: self.coverage,
            failure: self.failure,
            history: self.log.lines.unwrap_or_default(),
        }
    }

    /// Passes an event to its layer.
    pub(crate) fn dispatch(&mut self, event: Event) {
        let Some(event) = self.defer(event) else {
            return;
        };
        match event {
            Event::Wake { slot, life } if self.is_alive(slot, life) => self.wake(slot),
            Event::Step { slot, life } if self.is_alive(slot, life) => {
                self.nodes[slot].step_at = None;
                self.step_session(slot);
            }
            Event::Handshake { conn } => self.visit(self.conns[conn].to, |world| world.handshake(conn)),
            Event::MasterMoved { slot, life } if self.is_alive(slot, life) => self.master_moved(slot),
            Event::SentinelsAsked { slot, life } if self.is_alive(slot, life) => self.sentinels_asked(slot),
            Event::SentinelLearns { sentinel } => self.sentinel_learns(sentinel),
            Event::Greeted { conn } => self.greeted(conn),
            Event::Link { conn } => self.visit(self.conns[conn].to, |world| world.link(conn)),
            Event::InboxSought { conn, sub } => {
                self.visit(self.conns[conn].to, |world| world.inbox_sought(conn, sub));
            }
            Event::InboxFound { conn, sub, is_there } => self.inbox_found(conn, sub, is_there),
            Event::ProcessReplaced => self.replace_process(),
            Event::FailOver => self.fail_over(),
            Event::Promote => self.promote(),
            Event::Demoted => self.demote(),
            Event::Connected { conn, time } => self.connected(conn, time),
            Event::ConnectFailed { conn, error } => self.connect_failed(conn, error),
            Event::Arrive {
                conn,
                id,
                batch,
                reload,
            } => self.visit(self.conns[conn].to, |world| world.arrive(conn, id, batch, reload)),
            Event::NoScript { conn, id, batch } => self.no_script(conn, id, batch),
            Event::Write { conn, id, write } => {
                self.visit(self.conns[conn].to, |world| world.write_arrives(conn, id, write));
            }
            Event::Reply { conn, id, reply } => self.reply(conn, id, reply),
            Event::ResetSeen { conn } => self.reset_seen(conn),
            Event::MovedSeen { conn, hash, server } => self.moved_seen(conn, hash, server),
            Event::Fallback { join } => self.fall_back(join),
            Event::Alone {
                join,
                index,
                side,
                server,
            } => self.visit(server, |world| world.alone_arrives(join, index, side)),
            Event::AloneAnswered {
                join,
                index,
                side,
                answer,
            } => self.alone_answered(join, index, side, *answer),
            Event::Forwarded { join, index, server } => {
                self.visit(server, |world| world.forwarded(join, index));
            }
            Event::MapRefresh { slot, life } if self.is_alive(slot, life) => self.refresh_map(slot),
            Event::ClusterChange => self.change_cluster(),
            Event::MemberReplaced => self.replace_member(),
            Event::RecordMoves { key } => self.record_moves(key),
            Event::MoveEnds { hash } => self.end_move(hash),
            Event::Subscribe { slot, life, sub } => {
                let to = self.nodes[slot].inbox.to;
                self.visit(to, |world| world.subscribe_arrives(slot, life, sub));
            }
            Event::InboxOpened { slot, life, sub } if self.is_alive(slot, life) => {
                self.inbox_opened(slot, sub)
            }
            Event::InboxPong { slot, life, sub } if self.is_alive(slot, life) => self.inbox_pong(slot, sub),
            Event::InboxFailed {
                slot,
                life,
                sub,
                error,
            } if self.is_alive(slot, life) => self.inbox_failed(slot, sub, error),
            Event::Unsubscribed { slot, life, sub } => {
                for server in 0..self.servers.len() {
                    self.visit(server, |world| world.unsubscribed(slot, life, sub));
                }
            }
            Event::Push {
                slot,
                life,
                sub,
                push,
            } if self.is_alive(slot, life) => self.push_arrives(slot, sub, *push),
            Event::TickFires { slot, key } => self.fire_tick(slot, key),
            Event::JobActed { slot, key } if !self.draining => self.look_for_open_tick(slot, key),
            Event::JobActed { .. } => {}
            Event::AskForOpenTick { slot, key } => self.ask_for_open_tick(slot, key),
            Event::ClaimTick {
                slot,
                life,
                key,
                mark,
                patient,
            } if self.is_alive(slot, life) => self.claim_tick(slot, key, mark, patient),
            Event::Arrival { slot } => self.add_lock_caller(slot),
            Event::TransferMessage {
                slot,
                message,
                choice,
            } => self.deliver(slot, message, choice),
            Event::LatchUse { slot } => self.use_latch(slot),
            Event::Campaign { slot, key } => self.start_candidate(slot, key),
            Event::CampaignAgain { slot, life, key } if self.is_alive(slot, life) => {
                self.campaign(slot, key, true)
            }
            Event::Observe { observer } => self.observe(observer),
            Event::ObserveAgain { slot, life, observer } if self.is_alive(slot, life) => {
                self.observe_again(observer)
            }
            Event::Caller {
                slot,
                life,
                caller,
                act,
            } if self.is_alive(slot, life) => self.act(slot, caller, act),
            Event::Resume { slot, life } if self.is_alive(slot, life) => self.resume(slot),
            Event::ProcessStart { slot } => self.restart_process(slot),
            Event::ServerUp { server: None } => self.server.down = false,
            Event::ServerUp { server: Some(server) } => self.member_up(server),
            Event::FallSilent { slot } => self.silence_inbox(slot),
            Event::Operator => self.operate(),
            Event::Fault => self.fault(),
            Event::Audit => self.audit(),
            Event::Drain => self.drain(),
            // The event is for an earlier life of the slot.
            _ => {}
        }
    }

    /// Holds back the events of a stopped process, by source.
    pub(crate) fn defer(&mut self, event: Event) -> Option<Event> {
        let (slot, source) = match &event {
            Event::Wake { slot, .. }
            | Event::Step { slot, .. }
            | Event::Caller { slot, .. }
            | Event::MasterMoved { slot, .. }
            | Event::SentinelsAsked { slot, .. }
            | Event::MapRefresh { slot, .. }
            | Event::CampaignAgain { slot, .. }
            | Event::ObserveAgain { slot, .. }
            | Event::ClaimTick { slot, .. } => (*slot, 2),
            Event::InboxOpened { slot, .. }
            | Event::InboxPong { slot, .. }
            | Event::InboxFailed { slot, .. }
            | Event::Push { slot, .. } => (*slot, 1),
            Event::MovedSeen { conn, .. }
            | Event::Greeted { conn }
            | Event::InboxFound { conn, .. }
            | Event::Connected { conn, .. }
            | Event::ConnectFailed { conn, .. }
            | Event::NoScript { conn, .. }
            | Event::Reply { conn, .. }
            | Event::ResetSeen { conn } => {
                let conn = &self.conns[*conn];
                (self.is_alive(conn.slot, conn.life).then_some(conn.slot)?, 0)
            }
            Event::Fallback { join } | Event::AloneAnswered { join, .. } => {
                let conn = &self.conns[self.cluster.joins[*join].conn];
                (self.is_alive(conn.slot, conn.life).then_some(conn.slot)?, 0)
            }
            _ => return Some(event),
        };
        let node = &mut self.nodes[slot];
        if node.alive && node.paused.is_some() {
            node.backlog[source].push(event);
            return None;
        }
        Some(event)
    }
}
