//! Links that open: what a node knows is sent to the script that compares runs, and to the ledger. They begin the same
//! recoveries, for the same reasons, and raise the clock alike.

use std::time::Duration;

use tenure::protocol::message::{GrantNumber, Kind, LinkReply, LinkRequest, RecoveryCause};
use tenure::testing::compare_run;

use super::comparing::is_near;
use super::losses::RECOVERING;
use super::steps::Steps;
use super::{Run, wall_us};
use crate::server::RedisServer;

const LONGEST_MS: u64 = 20_000;
/// Later than the end of any recovery.
const FAR_US: u64 = 20_000_000_000;
/// The steps until all is cleared: otherwise the clock is always ahead of the time.
const EPOCH: u64 = 60;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_begins_the_recoveries_of_the_ledger() {
    let mut steps = Steps::begin();
    let server = RedisServer::start();
    let mut run = Run::new(&server, steps.seed, Kind::Lock).await;
    let wanted = [
        ("recovery by the run", 20),
        ("recovery by the epoch", 20),
        ("recovery by the number", 10),
        ("lengthened by the run", 5),
        ("lengthened by the epoch", 2),
        ("lengthened by the number", 2),
        ("within a longer recovery", 2),
        ("nothing new", 50),
        ("nothing new while it recovers", 20),
        ("raised above its end", 20),
        ("raised above the number", 5),
        ("raised above the clock", 5),
        ("of a quorum", 20),
        ("on evidence", 50),
        ("first that always recovers", 5),
        ("another longest lease", 10),
        ("clock refused", 2),
        ("recovery without an end", 5),
        ("Granted", 20),
        ("claim held back, unconfirmed", 5),
        ("asserted", 1),
    ];
    while let Some(step) = steps.next(&run.replies, &wanted) {
        match run.rng.u8(..8) {
            0..3 => run.open_link(step),
            3 if run.recovers() => run.end_recovery(),
            _ => run.step(step).await,
        }
        if step.is_multiple_of(EPOCH) {
            run.begin_again();
        }
    }
}

impl Run {
    /// Opens a link, and compares what the server answers and records.
    fn open_link(&mut self, step: u64) {
        let recorded = self.text("tenure1:longest");
        let contract = recorded.as_deref().map(|text| {
            let (longest, recovery) = text.split_once(':').unwrap();
            (longest.parse().unwrap(), recovery.parse().unwrap())
        });
        let drawn = self.draw_recovery_ms();
        let (longest_ms, recovery_ms) = match (self.rng.u8(..8), contract) {
            (0..=2, _) => (None, drawn),
            (4.., Some((longest, recovery))) => (Some(longest), recovery),
            _ => (Some(LONGEST_MS + self.rng.u64(..2)), drawn),
        };
        let run = self.draw_run();
        let mut link = LinkRequest {
            run: &run,
            epoch: self.draw_epoch(),
            number: Some(self.draw_number()),
            recovery_ms,
        };
        // A quorum has no Sentinels.
        if self.rng.u8(..12) == 0 {
            (link.epoch, link.number) = (None, None);
        }
        let is_endless = self.rng.u8(..12) == 0;
        if is_endless {
            self.end_recovery();
            let mut set = redis::cmd("SET");
            set.arg(RECOVERING).arg(1).exec(&mut self.client).unwrap();
        }
        let longest = longest_ms.map(Duration::from_millis);
        // A recovery that began in the same millisecond is as long as one that begins now, or not, by the microsecond.
        std::thread::sleep(Duration::from_millis(2));
        let before = wall_us();
        let (known, real) = compare_run(&mut self.client, &link, longest).unwrap();
        let own = longest_ms.map(|longest| format!("{longest}:{recovery_ms}"));
        let is_refused = recorded.is_some() && own.is_some() && own != recorded;
        self.saw(match (&own, &recorded) {
            (None, _) => "on evidence",
            (Some(_), None) => "first that always recovers",
            (Some(_), Some(_)) if is_refused => "another longest lease",
            (Some(_), Some(_)) => "the same longest lease",
        });
        assert_eq!(
            known,
            recorded.or(own).unwrap_or_default(),
            "step {step}: {link:?}"
        );
        // The server's length is that of all nodes.
        link.recovery_ms = contract.map_or(recovery_ms, |(_, recovery)| recovery);
        if is_refused {
            assert_eq!(real, LinkReply::default(), "step {step}: {link:?}");
        } else {
            // A raised clock tells the server's time.
            let time = real.clock.0.saturating_sub(1_000 * link.recovery_ms);
            let is_time = (before..=wall_us()).contains(&time);
            let us = if is_time { time } else { before };
            self.compare_link(step, us, (link, real, is_endless));
        }
        if is_endless && !self.recovers() {
            self.end_recovery();
        }
        let run = self.text("tenure1:run");
        assert_eq!(run.as_deref(), self.ledger.recorded_run(), "step {step}");
        self.compare_server(step);
    }

    fn compare_link(&mut self, step: u64, us: u64, drawn: (LinkRequest<'_>, LinkReply, bool)) {
        let (link, real, is_endless) = drawn;
        let (last, left) = (self.ledger.last_number(), self.ledger.recovering(us));
        let mut model = self.ledger.link(us, &link);
        let is_raised = model.clock > last;
        self.count_link(&link, left, (model, is_raised.then_some(last)));
        if link.number.is_none() {
            model.clock = GrantNumber::default();
        }
        if is_endless && model.recovering.is_none() {
            self.saw("recovery without an end");
            model.recovering = Some((link.recovery_ms, RecoveryCause::Number));
        }
        let is_same = match (real.recovering, model.recovering) {
            (Some((real, why)), Some((model, because))) => is_near(real, model) && why == because,
            (real, model) => real == model,
        };
        assert!(
            is_same && real.clock == model.clock,
            "step {step}: {link:?} at {us}, the clock at {last}, {left:?} ms left\nserver {real:?}\nledger {model:?}"
        );
        self.last = self.last.max(model.clock.0);
    }

    /// Counts what a link met. `left`: the rest of a recovery before. `raised`: the clock before, if it was raised.
    fn count_link(
        &mut self,
        link: &LinkRequest<'_>,
        left: Option<u64>,
        (reply, raised): (LinkReply, Option<GrantNumber>),
    ) {
        self.saw(match (left, reply.recovering) {
            (None, Some((_, RecoveryCause::Run))) => "recovery by the run",
            (None, Some((_, RecoveryCause::Epoch))) => "recovery by the epoch",
            (None, Some((_, RecoveryCause::Number))) => "recovery by the number",
            (Some(before), Some((after, why))) if after > before => match why {
                RecoveryCause::Run => "lengthened by the run",
                RecoveryCause::Epoch => "lengthened by the epoch",
                RecoveryCause::Number => "lengthened by the number",
            },
            (Some(_), _) if raised.is_some() => "within a longer recovery",
            (Some(_), _) => "nothing new while it recovers",
            (None, None) => "nothing new",
        });
        let Some(number) = link.number else {
            return self.saw("of a quorum");
        };
        if let Some(last) = raised {
            self.saw(match reply.clock.0 {
                clock if clock == last.0 + 1 => "raised above the clock",
                clock if clock == number.0 + 1 => "raised above the number",
                _ => "raised above its end",
            });
        }
    }

    /// Returns the recorded run, or at times another one.
    fn draw_run(&mut self) -> String {
        match self.rng.u8(..12) {
            at @ 0..2 => format!("run {at}"),
            _ => self.ledger.recorded_run().unwrap_or("run 0").to_owned(),
        }
    }

    /// Returns no epoch, the recorded one, or at times another one.
    fn draw_epoch(&mut self) -> Option<u64> {
        let recorded = self.text("tenure1:epoch:mymaster");
        match self.rng.u8(..12) {
            0..4 => None,
            at @ 4..6 => Some(u64::from(at)),
            _ => recorded.map_or(Some(4), |text| text.parse().ok()),
        }
    }

    /// Returns the highest number that a node has seen: mostly one that is no evidence of a loss.
    fn draw_number(&mut self) -> GrantNumber {
        let last = self.ledger.last_number().0;
        GrantNumber(match self.rng.u8(..24) {
            0 => last + 1,
            1 => last + self.rng.u64(1..1_000),
            2 => last.max(wall_us()) + FAR_US,
            3..8 => last.saturating_sub(self.rng.u64(..1_000)),
            8..12 => 0,
            _ => last,
        })
    }

    pub(super) fn text(&mut self, key: &str) -> Option<String> {
        redis::cmd("GET").arg(key).query(&mut self.client).unwrap()
    }
}
