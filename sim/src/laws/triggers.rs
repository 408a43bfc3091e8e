//! Laws of the runs that operators trigger.

use tenure::protocol::ledger::JobRecord;
use tenure::protocol::message::{Reply, Request, RunRecord, TickTime, Verb};

use crate::callers::open_ticks::QUESTION_PAUSE_MS;
use crate::time::MS;
use crate::violation::Violation;
use crate::world::World;

impl World {
    /// Follows what operators want: a triggered tick is granted only while it is wanted, and is wanted until its winner ends it.
    pub(crate) fn watch_trigger(
        &mut self,
        key: usize,
        (request, reply): (&Request, &Reply),
        before: &JobRecord,
        (began, job): (Option<&RunRecord>, &JobRecord),
    ) {
        let wanted = self.memory.ticks.wanted.entry(key).or_default();
        let expected = *wanted;
        // A key with a foreign value refuses it.
        let is_refused = matches!(reply, Reply::Refused(_));
        let ends =
            matches!(request.verb, Verb::Finish { result } if result.outcome.ends_tick()) && !is_refused;
        let is_latest = before.winner == Some(request.claim_id)
            && before
                .runs
                .back()
                .is_some_and(|run| Some(run.tick) == request.mark);
        let is_ended = wanted.is_some_and(|wanted| wanted.is_granted && Some(wanted.tick) == request.mark);
        if ends && is_latest && is_ended {
            *wanted = None;
        }
        let triggered = began.filter(|run| run.tick.is_triggered());
        let is_right = match (triggered, expected) {
            (None, _) => true,
            (Some(run), Some(wanted)) => wanted.tick == run.tick,
            (Some(_), None) => false,
        };
        if let (Some(wanted), Some(_)) = (wanted.as_mut(), triggered) {
            wanted.is_granted = true;
        }
        let is_kept = job.wanted.as_ref().map(|wanted| wanted.tick) == wanted.map(|wanted| wanted.tick);
        if !is_right || !is_kept {
            self.report(Violation::TriggerRunAgain, Some(key), || {
                format!(
                    "after {:?} of {} with {began:?} the store wants {:?}, expected was {expected:?}",
                    request.verb, request.claim_id, job.wanted
                )
            });
        }
        if let Some(run) = began {
            // The checkpoint of a triggered tick ends with the next grant of another tick.
            let is_other = |of: usize, mark: Option<TickTime>| {
                of == key && mark != Some(run.tick) && mark.is_some_and(TickTime::is_triggered)
            };
            self.memory
                .ticks
                .saved
                .retain(|(of, mark), _| !is_other(*of, *mark));
        }
    }

    /// Checks that in a calm a wanted run is soon pursued, while nodes look for it and no tick of the schedule comes first.
    pub(crate) fn watch_wanted_run(&mut self, key: usize, calm: bool) {
        let (job, us) = (self.job(key), self.server_us());
        let wanted = job.wanted.as_ref().map(|wanted| wanted.tick);
        let mut live = self.nodes.iter().filter(|node| node.alive);
        let is_pursued = live.any(|node| node.pursuits.contains(&(key, wanted)));
        let looks = self
            .nodes
            .iter()
            .any(|node| node.alive && node.paused.is_none() && !node.retired && !node.closing);
        let is_behind = job.attempt > 0 && !job.done;
        let is_free = self.server.ledger.record(&self.keys[key], us).is_none();
        if wanted.is_none() || is_pursued || !looks || is_behind || !is_free || self.draining {
            self.memory.ticks.unpursued = None;
            return;
        }
        let (now, fault_until) = (self.now, self.memory.fault_until);
        let since = *self.memory.ticks.unpursued.get_or_insert(now);
        // As for an abandoned tick.
        let bound = 4 * QUESTION_PAUSE_MS.end * MS + 6 * self.profile.delay.1;
        if calm && now - since.max(fault_until) > bound {
            self.report(Violation::TickAbandoned, Some(key), || {
                let ms = (now - since) / MS;
                format!("{wanted:?} is wanted and has not been pursued for {ms} ms, the job is {job:?}")
            });
        }
    }
}
