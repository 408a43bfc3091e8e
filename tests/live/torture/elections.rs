//! An election in the torture: each node always has a candidate and an observer.
//!
//! Leaders are judged like other holders. An observer never sees an earlier leader than it saw before, nor the value of
//! another leader. Only a promotion may lose a leader or a value. An observer then goes back once.

use std::time::Duration;

use tenure::{Election, Error};
use tokio::time::{sleep, timeout};

use crate::torture::journal::now;
use crate::torture::orders::Locked;
use crate::torture::referee::Case;
use crate::torture::worker::{Held, Worker, check};

const ELECTION: &str = "torture";

impl Worker {
    /// Campaigns repeatedly.
    pub async fn stands(&self, rng: &mut fastrand::Rng) {
        let election = self.node.election(ELECTION);
        let key = self.orders.election_key();
        let mut stop = self.stop.clone();
        while !*self.stop.borrow() {
            let led = tokio::select! {
                led = self.stand(&election, rng) => led,
                _ = stop.wait_for(|stop| *stop) => return,
            };
            match led {
                Ok(Some(held)) => self.lead(&election, held, rng).await,
                Ok(None) => {}
                Err(error) => {
                    self.failed(key, &error);
                    sleep(Duration::from_millis(rng.u64(5..25))).await;
                }
            }
            sleep(Duration::from_micros(rng.u64(0..3000))).await;
        }
    }

    /// Returns a guard, or `None` if the task has already led, or gave up.
    async fn stand(&self, election: &Election, rng: &mut fastrand::Rng) -> Result<Option<Held>, Error> {
        if self.orders.locked == Locked::None {
            sleep(Duration::from_millis(rng.u64(0..4))).await;
            return Ok(Some(self.pretended()));
        }
        match rng.u32(..10) {
            0 => {
                let patience = Duration::from_micros(1 << rng.u32(4..16));
                match timeout(patience, election.campaign()).await {
                    Err(_) => Ok(None),
                    Ok(guard) => guard.map(|guard| Some(Held::Real(guard))),
                }
            }
            1..3 => {
                let wait = Duration::from_millis(rng.u64(1..300));
                match election.campaign_timeout(wait).await {
                    Err(Error::Busy { .. }) => Ok(None),
                    guard => guard.map(|guard| Some(Held::Real(guard))),
                }
            }
            3..6 => self.lead_until_done(election, rng).await.map(|()| None),
            _ => election.campaign().await.map(|guard| Some(Held::Real(guard))),
        }
    }

    /// The work is dropped when the leadership is lost, and begun again.
    async fn lead_until_done(&self, election: &Election, rng: &mut fastrand::Rng) -> Result<(), Error> {
        let span = self.term(rng);
        let led = election.lead(|lease| async move {
            let id = self.granted(
                self.orders.election_key(),
                lease.fence().get(),
                format_args!("write"),
            );
            let is_held = || check(&self.journal, id, || lease.is_held());
            self.proclaims(election, lease.fence().get()).await;
            self.stay(now(), span, is_held).await;
            self.journal.write(now(), format_args!("ending {id} lead"));
            id
        });
        match led.await {
            Ok(id) => self.journal.write(now(), format_args!("released {id} kept")),
            // The work was done. The leader since then is unknown.
            Err(Error::Lost { .. }) => {}
            // The work was done, and the node led to the end.
            Err(error) => return Err(error),
        }
        Ok(())
    }

    async fn lead(&self, election: &Election, held: Held, rng: &mut fastrand::Rng) {
        let fence = held.fence();
        let id = self.granted(self.orders.election_key(), fence, format_args!("write"));
        if matches!(held, Held::Real(_)) && rng.bool() {
            self.proclaims(election, fence).await;
        }
        self.stay(now(), self.term(rng), || self.check(id, &held)).await;
        self.tell_loss(id, &held).await;
        self.end(id, held, rng).await;
    }

    fn term(&self, rng: &mut fastrand::Rng) -> Duration {
        Duration::from_micros(match rng.u32(..10) {
            0..3 => rng.u64(..self.orders.lease.as_micros() as u64 * 3 / 2),
            _ => rng.u64(..20_000),
        })
    }

    async fn proclaims(&self, election: &Election, fence: u64) {
        if let Err(error) = election.proclaim(fence.to_string()).await {
            self.failed(self.orders.election_key(), &error);
        }
    }

    /// Follows the leaders.
    pub async fn observes(&self, rng: &mut fastrand::Rng) {
        let election = self.node.election(ELECTION);
        let (mut observer, mut stop) = (election.observe(), self.stop.clone());
        let sees = |fence: u64, value: &str| {
            self.journal.write(now(), format_args!("leader {fence} {value}"));
        };
        while !*self.stop.borrow() {
            if self.orders.locked == Locked::None {
                sleep(Duration::from_millis(rng.u64(0..20))).await;
                sees(rng.u64(1..100), "of another");
                continue;
            }
            let seen = tokio::select! {
                seen = observer.next() => seen,
                _ = stop.wait_for(|stop| *stop) => return,
            };
            match seen {
                Ok(Some(leader)) => {
                    let value = leader.value().map(String::from_utf8_lossy);
                    sees(leader.fence().get(), value.as_deref().unwrap_or("none"));
                }
                Ok(None) => sees(0, "none"),
                Err(error) => self.failed(self.orders.election_key(), &error),
            }
        }
    }
}

/// The leaders that one node has seen so far.
#[derive(Default)]
pub struct Seen {
    fence: u64,
    proclaimed: bool,
    /// The end of the promotion that explained the last step back. Another step back needs a later one.
    explained_to: u64,
}

impl Seen {
    /// Reads which leader was seen, and its proclaimed value. Returns the broken rules.
    pub fn read(&mut self, case: &Case, at: u64, fence: u64, value: &str) -> Vec<&'static str> {
        let proclaimed = value != "none";
        let is_back = fence < self.fence || fence == self.fence && self.proclaimed && !proclaimed;
        let mut broken = Vec::new();
        if fence == 0 {
            return broken;
        }
        if is_back {
            let mut promotions = case.promotions_at(at).map(|promotion| promotion.to);
            match promotions.find(|to| *to > self.explained_to) {
                Some(to) => self.explained_to = to,
                None => broken.push("an observer goes back"),
            }
        }
        if proclaimed && value != fence.to_string() {
            broken.push("proclaimed by another");
        }
        (self.fence, self.proclaimed) = (fence, proclaimed);
        broken
    }
}
