//! An operator asks for leases, revokes them, and hands them over.

use std::sync::Arc;

use tenure::protocol::job_act::{JobAct, JobActReply, JobActRequest};
use tenure::protocol::ledger::SharedLease;
use tenure::protocol::message::{Asking, GrantNumber, InboxEvent, Push, TickTime};
use tenure::protocol::steal::{StealAct, StealReply, StealRequest, StealTarget};
use tenure::protocol::view::{InspectQuery, KeyView, RecordView};
use tenure::store::Inspect;

use super::{Run, TOLERANCE_MS};

fn is_revoke(push: &Push) -> bool {
    matches!(push, Push::Revoked(..))
}

impl Run {
    /// Acts on a job, on the server and in the ledger. Pauses are short: otherwise no tick runs.
    pub(super) async fn act_on_job(&mut self, step: u64) {
        let inspector = self.store.inspector().expect("Redis shows its keys");
        let paused = |at: &usize| {
            self.ledger
                .job(&self.names[*at])
                .is_some_and(|job| job.paused.is_some())
        };
        let at = (0..self.busy).find(paused);
        let at = at.unwrap_or_else(|| self.rng.usize(..self.busy));
        let job = self.ledger.job(&self.names[at]).cloned().unwrap_or_default();
        let is_paused = job.paused.is_some();
        let wanted = job.wanted.as_ref().map(|wanted| wanted.tick);
        // Mostly the trigger that is wanted, and sometimes an earlier one.
        let since = job.wanted.as_ref().map(|wanted| wanted.act.since_ms);
        let since = since.map(|since| since - u64::from(self.rng.u8(..4) == 0));
        let act = match self.rng.u8(..16) {
            0 => JobAct::Pause,
            1..5 => JobAct::Trigger {
                for_tick: [None, job.mark, job.well, Some(TickTime(u64::MAX >> 12))][self.rng.usize(..4)],
            },
            5..8 => JobAct::Cancel {
                tick: wanted
                    .filter(|_| self.rng.bool())
                    .or(job.mark)
                    .unwrap_or_default(),
                since_ms: since.filter(|_| self.rng.bool()),
            },
            _ if !is_paused && self.rng.bool() => return,
            _ if !is_paused => JobAct::Pause,
            8..11 => JobAct::Resume { catch_up: true },
            _ => JobAct::Resume { catch_up: false },
        };
        let request = JobActRequest {
            name: self.names[at].clone(),
            act,
            by: "Zoë & co".into(),
            why: "100% late\n".into(),
        };
        let (real, us) = inspector.act_on_job(request.clone()).await.unwrap();
        let mut pushes = Vec::new();
        let model = self.ledger.act_on_job(&request, (us, us / 1000), &mut pushes);
        assert_eq!(real, model, "step {step}: {request:?}");
        self.saw(match (act, model) {
            (JobAct::Pause, JobActReply::Done) => "paused by an operator",
            (JobAct::Resume { .. }, JobActReply::Done) => "resumed by an operator",
            (JobAct::Trigger { .. }, JobActReply::Done) => "triggered by an operator",
            (JobAct::Trigger { .. }, JobActReply::TickUnfinished) => {
                "not triggered in a pause with an open tick"
            }
            (JobAct::Trigger { .. }, JobActReply::InFuture) => "not triggered for a future time",
            (JobAct::Trigger { .. }, JobActReply::Unchanged) => "not triggered twice",
            (JobAct::Cancel { .. }, JobActReply::Done) if pushes.iter().any(is_revoke) => "run cancelled",
            (JobAct::Cancel { .. }, JobActReply::Done) => "tick cancelled",
            (JobAct::Cancel { .. }, JobActReply::OtherTick) => "not cancelled, another tick",
            _ => "act refused",
        });
        self.compare_stolen_pushes(pushes, step).await;
        self.compare(at, step);
        self.compare_record(at, step);
        self.compare_memory(at, step);
    }

    /// Takes one step about some lease, and compares reply, pushes and record.
    pub(super) async fn steal(&mut self, step: u64) {
        let inspector = self.store.inspector().expect("Redis shows its keys");
        let at = self.rng.usize(..self.busy);
        let Some(target) = self.choose_target(&*inspector, at).await else {
            return;
        };
        let (by, why) = ("Zoë & co".to_owned(), "100% stuck\n".to_owned());
        let act = match self.rng.u8(..10) {
            0..2 => StealAct::Ask(Arc::new(Asking { grace_ms: 7, by, why })),
            2..8 => StealAct::Revoke,
            _ => StealAct::HandOver,
        };
        // A server gives a number once. Here a claim may have asserted a lost lease with the number of another claim.
        let us = self.now() * 1000;
        let shares = self.ledger.shares(&self.names[at], us);
        let has_number =
            |share: &&SharedLease| matches!(target, StealTarget::Grant(number, _) if share.number == number);
        if shares.filter(has_number).count() > 1 {
            return self.saw("a number of two shares");
        }
        let request = StealRequest {
            name: self.names[at].clone(),
            target,
            act,
            tells: self.rng.bool(),
        };
        let (real, us) = inspector.steal(request.clone()).await.unwrap();
        let mut pushes = Vec::new();
        let model = self.ledger.steal(us, &request, &mut pushes);
        if let (StealAct::HandOver, StealReply::Done(claim)) = (&request.act, &model) {
            self.ledger.apply(us, &request.leave(*claim), &mut pushes);
        }
        let is_near = match (&real, &model) {
            (StealReply::Recovering(real), StealReply::Recovering(model)) => {
                real.abs_diff(*model) <= TOLERANCE_MS
            }
            _ => real == model,
        };
        assert!(
            is_near,
            "step {step}: {request:?}\nserver {real:?}\nledger {model:?}"
        );
        self.saw(match (&request.act, &model) {
            (StealAct::Ask(_), StealReply::Done(_)) => "asked for",
            (StealAct::Revoke, StealReply::Done(Some(_))) => "revoked",
            (StealAct::Revoke, StealReply::Done(None)) => "foreign record revoked",
            (StealAct::HandOver, StealReply::Done(_)) => match &request.target {
                StealTarget::RevokedShare(..) => "revoked share handed over",
                StealTarget::Grant(..) | StealTarget::Foreign(_) => "handed over by an operator",
            },
            (_, StealReply::Changed) => "not stolen, another lease",
            (_, StealReply::Endless) => "not stolen, endless",
            (_, StealReply::Recovering(_)) => "not handed over while recovering",
        });
        self.compare_stolen_pushes(pushes, step).await;
        self.compare(at, step);
        self.compare_record(at, step);
        self.compare_memory(at, step);
    }

    /// Returns a lease of the key, as an operator sees it, or one that it had.
    async fn choose_target(&mut self, inspector: &dyn Inspect, at: usize) -> Option<StealTarget> {
        let name = &self.names[at];
        let shown = inspector
            .read(InspectQuery::Show(name.key.clone()))
            .await
            .unwrap();
        let mut views = shown.views.into_iter().flat_map(|view| view.keys);
        let KeyView { record, .. } = views.find(|view| view.name == *name)?;
        if let RecordView::Foreign { digest, .. } = &record {
            return digest.clone().map(StealTarget::Foreign);
        }
        // An operator sees a revoked share again.
        let is_again = self.rng.bool();
        let mut holders: Vec<_> = record.holders().iter().collect();
        if is_again && holders.iter().any(|holder| holder.number.is_none()) {
            holders.retain(|holder| holder.number.is_none());
        }
        let holder = self.rng.choice(holders)?;
        let earlier = u64::from(self.rng.u8(..8) == 0);
        Some(match holder.number {
            Some(number) => StealTarget::Grant(GrantNumber(number.0 - earlier), holder.mode),
            None => StealTarget::RevokedShare(holder.node, holder.claim, holder.mode),
        })
    }

    /// Checks that each inbox gets its pushes, in order. No push decides anything, so a node without an inbox misses it.
    async fn compare_stolen_pushes(&mut self, pushes: Vec<Push>, step: u64) {
        for push in pushes {
            if let Push::Granted(grant) = &push {
                self.note_grant(grant.claim_id, grant.number);
            }
            let Some(inbox) = self.inboxes.get_mut(&push.node()) else {
                assert!(!matches!(push, Push::Granted(_)), "step {step}: {push:?}");
                continue;
            };
            let real = inbox.push().await;
            assert_eq!(real, Some(InboxEvent::Pushed(push)), "step {step}");
            self.saw("push of a steal");
        }
        for inbox in self.inboxes.values_mut() {
            assert!(inbox.is_empty(), "step {step}: a push that is not in the ledger");
        }
    }
}
