//! Which claims held a key and waited for it, as far as looks saw it.

use std::time::{Duration, SystemTime};

use maud::{Markup, html};
use tenure::inspect::Page;

use crate::layout::{table, time};
use crate::links::id;
use crate::picture::{end_of_step, span};
use crate::text::shown;
use crate::words;

/// The most tracks of a key. Those that ended first are dropped first.
const MAX_TRACKS: usize = 100;
/// How long a track is kept after its end.
const KEPT: Duration = Duration::from_secs(3600);

/// A claim that held the key, or waited for it.
#[derive(Clone)]
struct Track {
    /// Server, kind, node, claim, and whether it holds the key: what makes it this track.
    name: (String, &'static str, String, Option<u64>, bool),
    node: String,
    from: SystemTime,
    until: SystemTime,
    is_present: bool,
    /// Its server did not answer: whether the claim has ended is not known.
    is_unseen: bool,
}

/// The claims of a key.
#[derive(Clone, Default)]
pub(crate) struct Tracks {
    tracks: Vec<Track>,
    now: Option<SystemTime>,
}

impl Tracks {
    /// Notes what a look saw.
    pub(crate) fn note(&mut self, page: &Page, now: SystemTime) {
        let is_away = |of: &str| page.failures.iter().any(|(server, _)| &**server == of);
        for track in &mut self.tracks {
            track.is_unseen = is_away(&track.name.0) && (track.is_present || track.is_unseen);
            track.is_present = false;
        }
        for entry in &page.entries {
            let (server, kind) = (entry.server.to_string(), entry.kind.word());
            for holder in &entry.holders {
                let name = (
                    server.clone(),
                    kind,
                    holder.node.id.to_string(),
                    Some(holder.claim),
                    true,
                );
                self.see(name, words::node(&holder.node), holder.since, now);
            }
            for waiter in &entry.waiters {
                let name = (
                    server.clone(),
                    kind,
                    waiter.node.id.to_string(),
                    waiter.claim,
                    false,
                );
                self.see(name, words::node(&waiter.node), None, now);
            }
        }
        self.now = Some(now);
        let is_kept = |track: &Track| now.duration_since(track.until).unwrap_or_default() < KEPT;
        self.tracks.retain(is_kept);
        while self.tracks.len() > MAX_TRACKS
            && let Some(ended) = self.tracks.iter().position(|track| !track.is_present)
        {
            self.tracks.remove(ended);
        }
        // If more are present, the first ones stay: the time line does not change with each look.
        self.tracks.truncate(MAX_TRACKS);
    }

    fn see(
        &mut self,
        name: (String, &'static str, String, Option<u64>, bool),
        node: String,
        since: Option<SystemTime>,
        now: SystemTime,
    ) {
        let from = since.filter(|since| *since < now).unwrap_or(now);
        let mut tracks = self.tracks.iter_mut();
        match tracks.find(|track| track.name == name) {
            Some(track) => (track.until, track.is_present, track.node) = (now, true, node),
            None => self.tracks.push(Track {
                name,
                node,
                from,
                until: now,
                is_present: true,
                is_unseen: false,
            }),
        }
    }

    /// Returns the time line: a row for each claim, with its times and a bar.
    pub(crate) fn markup(&self) -> Markup {
        let now = self.now.unwrap_or(SystemTime::UNIX_EPOCH);
        let first = self.tracks.iter().map(|track| track.from).min().unwrap_or(now);
        let end = end_of_step(first, now);
        let rows: Vec<_> = self
            .tracks
            .iter()
            .rev()
            .map(|track| track.row((first, end)))
            .collect();
        let header = ["NODE", "KIND", "CLAIM", "FROM", "UNTIL", "BAR"];
        html! {
            section aria-labelledby="line" {
                h2 #line { "Time line" }
                p { "What this page has seen since it was opened, and since when the holders have held the key." }
                (table("tracks", "Which claims held the key and waited for it", &header, &rows))
            }
        }
    }
}

impl Track {
    fn row(&self, (first, end): (SystemTime, SystemTime)) -> (String, Vec<Markup>) {
        let (server, kind, node, claim, holds) = &self.name;
        let claim_text = claim.map(|claim| claim.to_string());
        let verb = if *holds { "holds" } else { "waits" };
        let until = if self.is_present { end } else { self.until };
        let words = format!("{} {verb}", self.node);
        let class = if *holds { "held" } else { "waited" };
        let name = [
            server.as_bytes(),
            kind.as_bytes(),
            node.as_bytes(),
            claim_text.as_deref().unwrap_or_default().as_bytes(),
            verb.as_bytes(),
        ];
        let cells = vec![
            html! { (self.node) },
            html! { (kind) " on " (shown(server)) },
            html! { (words::or_none(claim_text.clone())) " " (if *holds { "held" } else { "waited" }) },
            time(self.from, false),
            if self.is_present {
                html! { "now" }
            } else {
                html! { @if self.is_unseen { "last seen " } (time(self.until, false)) }
            },
            span(&words, class, (first, end), (self.from, until)),
        ];
        (id(&name), cells)
    }
}
