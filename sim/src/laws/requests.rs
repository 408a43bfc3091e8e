//! Laws of requests between node and server.

use tenure::protocol::message::{Call, ClaimNumber, ClaimReply, Reply, Request, Verb};
use tenure::protocol::session::step::{MAX_RECONNECT_PAUSE, MAX_SILENCE};
use tenure::protocol::step::{Input, Outgoing, Tag};

use crate::laws::ownership::ends_lease;
use crate::time::MS;
use crate::violation::Violation;
use crate::world::World;

impl World {
    /// Checks that a node which found a missed push asks often from then on, and does not wait for pushes. It trusts an
    /// inbox for a second after a sign of life.
    pub(crate) fn watch_missed_push(&mut self, slot: usize, key: usize, claim: ClaimNumber, reply: &Reply) {
        let (now, way) = (self.now, self.profile.delay.1);
        let Some(silent) = &mut self.nodes[slot].inbox.silent else {
            return;
        };
        // A grant that was revoked before its node learned of it does not show that its push was missed.
        if *reply == Reply::Claim(ClaimReply::Revoked) {
            silent.found = None;
        }
        let given = reply.number().and_then(|_| silent.grants.remove(&claim));
        let Some(given) = given else { return };
        let unknown = now - given;
        let Some(found) = silent.found else {
            if unknown > 100 * MS + 3 * way {
                silent.found = Some(now);
            }
            return;
        };
        let bound = 255 * MS + 4 * way + 2 * self.profile.lag + 30 * MS;
        let trusted_until = found + MAX_RECONNECT_PAUSE.as_nanos() as u64;
        if given > trusted_until + bound && unknown > bound {
            self.report(Violation::SilentInboxTrusted, Some(key), || {
                format!(
                    "{claim} of node {slot} was granted {} ms ago, and its node knows that its inbox is silent",
                    unknown / MS
                )
            });
        }
    }

    /// Remembers a queued request, and checks that it is not an answered call.
    pub(crate) fn watch_queued(&mut self, slot: usize, outgoing: &Outgoing) {
        let key = self.key_index(&outgoing.request.name);
        let Tag { claim, seq, .. } = outgoing.tag;
        self.log.mix(claim.0 << 8 | u64::from(seq));
        self.note(Some(slot), Some(key), || {
            format!(
                "   -> {:?} {claim} #{seq} {:?}",
                outgoing.request.verb, outgoing.class
            )
        });
        self.watch_rests(slot, key, &outgoing.request);
        if matches!(outgoing.request.verb, Verb::Call(call) if !call.is_watched())
            && self.nodes[slot].answered.contains(&claim)
        {
            self.report(Violation::SentAgain, Some(key), || {
                format!("call {claim} of node {slot} was answered and is sent again")
            });
        }
        let now = self.now;
        let node = &mut self.nodes[slot];
        node.sends += 1;
        node.requests.insert((claim, seq), (now, key));
        if !outgoing.request.verb.is_renewal() {
            node.unsent.push((outgoing.tag, outgoing.request.clone()));
        }
    }

    /// Checks the order of sending: a claim follows the node's own leave, and a leave follows the calls about
    /// its claim.
    pub(crate) fn watch_send_order(&mut self, slot: usize, request: &Request) {
        let unsent = &mut self.nodes[slot].unsent;
        let Some(at) = unsent.iter().position(|(_, of)| of == request) else {
            return;
        };
        unsent.remove(at);
        let is_asked = |(tag, earlier): &(Tag, Request)| {
            let of = match earlier.verb {
                Verb::Call(Call::Extend { .. } | Call::Release { .. }) => None,
                Verb::Call(call) => call.claim_id(),
                _ => None,
            };
            tag.seq == 1 && of == Some(request.claim_id)
        };
        if ends_lease(request.verb) && unsent[..at].iter().any(is_asked) {
            let key = self.key_index(&request.name);
            self.report(Violation::CallOvertaken, Some(key), || {
                format!(
                    "node {slot} sends the leave of {} before an earlier call about it",
                    request.claim_id
                )
            });
            return;
        }
        let is_before = |(_, earlier): &(Tag, Request)| {
            earlier.name == request.name && !matches!(earlier.verb, Verb::Claim { .. })
        };
        if matches!(request.verb, Verb::Claim { .. }) && unsent[..at].iter().any(is_before) {
            let key = self.key_index(&request.name);
            self.report(Violation::LeaveOvertaken, Some(key), || {
                format!(
                    "claim {} of node {slot} is sent before an earlier leave",
                    request.claim_id
                )
            });
        }
    }

    /// Checks that each request is reported once.
    pub(crate) fn watch_report(&mut self, slot: usize, key: usize, input: &Input) {
        let (Input::Answered { tag, .. } | Input::Failed { tag, .. }) = input else {
            return;
        };
        if let Input::Answered { reply, .. } = input {
            // A node ignores the answer to a request after which it sent another one, such as a leave.
            let next = (tag.claim, tag.seq + 1);
            if !self.nodes[slot].requests.contains_key(&next) {
                self.watch_missed_push(slot, key, tag.claim, reply);
            }
            if matches!(reply, Reply::Claim(ClaimReply::Recovering(_))) {
                self.note_recovery_heard(slot, tag.claim);
            }
            if !matches!(reply, Reply::Refused(_) | Reply::Late) {
                self.nodes[slot].answered.insert(tag.claim);
            }
        }
        self.nodes[slot].unsent.retain(|(unsent, _)| unsent != tag);
        let known = self.nodes[slot].requests.remove(&(tag.claim, tag.seq));
        if known.is_none_or(|(_, of)| of != key) {
            self.report(Violation::Unanswered, Some(key), || {
                format!("{tag:?} of node {slot} is reported and was not pending")
            });
        }
    }

    /// Checks that each request of a session is answered or reported in the end.
    pub(crate) fn watch_requests(&mut self) {
        if self.profile.crowd {
            return;
        }
        let bound = 6 * self.profile.request_timeout.as_nanos() as u64 + 4_000 * MS;
        for slot in 0..self.nodes.len() {
            let node = &self.nodes[slot];
            if !node.alive || node.paused.is_some() {
                continue;
            }
            let now = self.now;
            let is_old = |since: u64| now - since > bound;
            let request = node.requests.iter().find(|(_, (since, _))| is_old(*since));
            if let Some((&(claim, seq), &(_, key))) = request {
                self.report(Violation::Unanswered, Some(key), || {
                    format!("request {claim} #{seq} of node {slot} is neither answered nor reported")
                });
            }
            if let Some(probe) = self.nodes[slot].probes.iter().find(|(_, since)| is_old(**since)) {
                let text = format!("{probe:?} of node {slot} is neither answered nor reported");
                self.report(Violation::Unanswered, None, || text);
            }
        }
    }

    /// Checks that a silent connection is given up in the end. Until then there is no calm.
    pub(crate) fn watch_silence(&mut self) {
        let bound = 2 * (MAX_SILENCE + self.profile.request_timeout).as_nanos() as u64 + 8_000 * MS;
        for slot in 0..self.nodes.len() {
            let conns = self.nodes[slot].conns().into_iter();
            let silent = conns.filter_map(|conn| self.conns[conn].silent).min();
            let Some(since) = silent else { continue };
            self.extend_fault(self.now);
            if self.now - since > bound && self.nodes[slot].paused.is_none() {
                self.report(Violation::SilentConnectionKept, None, || {
                    format!("node {slot} has had a silent connection since {} ms", since / MS)
                });
            }
        }
    }

    /// Checks that the number of requests is bounded by the callers and the timers.
    pub(crate) fn watch_request_count(&mut self, calm: bool) {
        let lease = self
            .profile
            .terms
            .iter()
            .map(|term| term.lease_ms)
            .min()
            .unwrap_or(1000);
        // Each waiter asks every 30 ms where a key may be left free.
        let looks = if self.profile.poll_gap > 0 { 42 } else { 8 };
        let timers =
            self.keys.len() as u32 * (2 + self.profile.callers as u32) * (8_000 / lease as u32 + looks);
        // Each request goes to each master, and a claim that fails is left there. A waiter claims again after 15 ms at the
        // earliest.
        let timers = timers * (1 + 20 * self.profile.quorum as u32);
        for slot in 0..self.nodes.len() {
            let node = &mut self.nodes[slot];
            let (sends, asked) = (std::mem::take(&mut node.sends), std::mem::take(&mut node.asked));
            let opened = std::mem::take(&mut node.opened);
            if opened > 80 {
                self.report(Violation::EndlessRequests, None, || {
                    format!("node {slot} opened {opened} connections and inboxes in a second")
                });
            }
            let bound = if calm {
                timers + 6 * asked
            } else {
                10 * (timers + 6 * asked)
            };
            if sends > bound {
                self.report(Violation::EndlessRequests, None, || {
                    format!("node {slot} sent {sends} in a second, for {asked} callers")
                });
            }
        }
    }
}
