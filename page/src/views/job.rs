//! A job: its plan, its nodes, its runs and the ticks without a run.

use std::time::{Duration, SystemTime};

use axum::response::Response;
use chrono_tz::Tz;
use maud::{Markup, html};
use tenure::scheduler::{ActEntry, HistoryEntry, JobEntry, JobHistory, JobRun, RunState};
use tenure::{Error, Key};

use crate::layout::{Tab, fact, name, table, time};
use crate::links::{cancel_link, id, link, link_to, ms, resume_link};
use crate::text::{hex, shown};
use crate::views::no_key;
use crate::visit::{Shown, Visit};
use crate::words::{self, date_in, or_none, zone_of};
use crate::{picture, progress};

/// How many days a history goes back without a parameter.
const DAYS: u64 = 3;
/// The time of the picture of runs.
const DAY: Duration = Duration::from_secs(86_400);

pub(crate) async fn page(visit: Visit) -> Response {
    match visit.query.key() {
        Some(key) => visit.answer(Tab::Jobs, look(&visit, &key).await),
        None => no_key(),
    }
}

async fn look(visit: &Visit, key: &Key) -> Result<Shown, Error> {
    let days = visit.query.get("days").parse().unwrap_or(DAYS).clamp(1, 366);
    let seen = visit.app.looks.job(&visit.app.locks, key, days).await?;
    let outcome = progress::outcome(&visit.app.acts, visit.query.get("done"));
    let body = match &*seen {
        None => html! { (outcome) div #job data-live { p #unknown { "The store does not know this job." } } },
        Some((job, history)) => html! { (outcome) (body(visit, job, history, days)) },
    };
    let entries = seen
        .as_ref()
        .as_ref()
        .map_or(&[][..], |(_, history)| &history.entries);
    Ok(Shown {
        title: name(key.as_bytes()),
        tab: Tab::Jobs,
        notices: visit.notices().await,
        body,
        lines: visit.lines(entries),
        next: None,
    })
}

fn body(visit: &Visit, job: &JobEntry, history: &JobHistory, days: u64) -> Markup {
    let (zone, k) = (zone_of(job.plan.as_ref()), hex(job.job.as_bytes()));
    let mut rows = history_rows(&history.entries, zone, visit.operator().map(|_| &*k));
    rows.reverse();
    let mut header = words::HISTORY.to_vec();
    if visit.operator().is_some() {
        header.push("ACT");
    }
    html! {
        div #job data-live { (facts(job, zone)) (acts(visit, job, &k)) }
        section aria-labelledby="runs-of-day" {
            h2 #runs-of-day { "Runs of the last day" }
            div #picture data-live { (picture_of(job, history, zone)) }
        }
        h2 { "History" }
        p {
            "Ticks are in the zone of the job. Back to "
            @for (days, name) in [(1, "1 day"), (3, "3 days"), (30, "30 days"), (366, "a year")] {
                a href=(link("job", &[("k", &k), ("days", &days.to_string())])) { (name) } " "
            }
        }
        (table("history", &format!("The last {days} days, the latest first"), &header, &rows))
        p #cut data-live { @if history.is_cut { span #is-cut { "Earlier ticks without a run are left out." } } }
    }
}

fn facts(job: &JobEntry, zone: Tz) -> Markup {
    let plan = job.plan.as_ref();
    html! {
        dl #facts {
            (fact("State", html! { (job.state.word()) }))
            @if let Some(pause) = &job.paused { (fact("Paused", html! { (pause_text(pause, zone)) })) }
            @if let Some(wanted) = &job.wanted {
                (fact("Wanted", html! { "a run for " (date_in(wanted.tick, zone)) ", by " (shown(&*wanted.act.by)) ": " (shown(&*wanted.act.why)) }))
            }
            (fact("Plan", html! { (or_none(plan.map(|plan| shown(&plan.expression)))) }))
            (fact("Zone", html! { (or_none(plan.map(|plan| shown(&plan.zone)))) }))
            (fact("Next", html! { (or_none(job.next.map(|next| date_in(next, zone)))) }))
            (fact("Last success", html! { (or_none(job.last_success.map(|tick| date_in(tick, zone)))) }))
            @if let Some(run) = &job.latest { (fact("Latest run", latest(run, zone))) }
            (fact("Scheduled on", html! {
                @if job.nodes.is_empty() { "no node" }
                ul { @for node in &job.nodes { li { (shown(&*node.name)) " " (node.id) } } }
            }))
            (fact("Lease", html! { a href=(link_to("key", &job.job)) { "its holders and waiters" } }))
        }
    }
}

fn latest(run: &JobRun, zone: Tz) -> Markup {
    html! {
        (run.state.word()) " of " (date_in(run.tick, zone)) @if run.is_triggered { ", triggered" }
        ", attempt " (run.attempt) " on " (words::node_of_run(run)) ", began " (time(run.began, true))
        @if let Some(took) = run.took { ", took " (words::took(took)) }
        @if !run.text.is_empty() { ": " (shown(&*run.text)) }
    }
}

/// Returns who paused the job, why and since when.
pub(crate) fn pause_text(pause: &ActEntry, zone: Tz) -> String {
    let since = date_in(pause.since, zone);
    shown(format!("by {}: {}, since {since}", pause.by, pause.why))
}

fn acts(visit: &Visit, job: &JobEntry, k: &str) -> Markup {
    let act = |path: &str| link(path, &[("k", k)]);
    let wanted = job.wanted.as_ref().map(|wanted| wanted.tick_entry());
    html! {
        @if visit.operator().is_some() {
            p.acts #acts {
                @if let Some(pause) = &job.paused { a.act href=(resume_link(k, pause)) { "Resume…" } } @else { a.act href=(act("pause")) { "Pause…" } }
                " " a.act href=(act("trigger")) { "Run once more…" }
                @if let Some(tick) = &job.current { " " a.act href=(cancel_link(k, tick)) { "Cancel the tick…" } }
                @if let Some(tick) = wanted.filter(|tick| job.current != Some(*tick)) {
                    " " a.act href=(cancel_link(k, &tick)) { "Withdraw the triggered run…" }
                }
            }
        }
    }
}

fn picture_of(job: &JobEntry, history: &JobHistory, zone: Tz) -> Markup {
    let runs = history.entries.iter().filter_map(|entry| match entry {
        HistoryEntry::Run(run) => Some(run),
        _ => None,
    });
    let since = job.now.checked_sub(DAY).unwrap_or(SystemTime::UNIX_EPOCH);
    let runs: Vec<&JobRun> = runs.filter(|run| run.began >= since).collect();
    let Some(first) = runs.iter().map(|run| run.began).min() else {
        return html! { p #no-runs { "None." } };
    };
    let goes_on = runs.iter().any(|run| run.state == RunState::Running);
    let last = runs
        .iter()
        .map(|run| run.began + run.took.unwrap_or_default())
        .max();
    let last = match goes_on {
        true => picture::end_of_step(first, job.now),
        false => last.unwrap_or(first),
    };
    html! {
        figure #runs-picture {
            (picture::runs(&runs, (first, last)))
            figcaption {
                "From " (date_in(first, zone)) " to " @if goes_on { "now" } @else { (date_in(last, zone)) } ". Above the line: done, or going on. Below it: failed, lost or ended "
                "otherwise. A higher bar is a longer run. The history has the same runs as text."
            }
        }
    }
}

/// Returns the rows of these entries. With `k`, those of runs have a link that runs their tick again.
pub(crate) fn history_rows(
    entries: &[HistoryEntry],
    zone: Tz,
    k: Option<&str>,
) -> Vec<(String, Vec<Markup>)> {
    let rows = entries.iter().map(|entry| {
        let texts = words::history_row(entry, zone);
        let mut cells: Vec<Markup> = texts.iter().map(|text| html! { (text) }).collect();
        let tick = match entry {
            HistoryEntry::Run(run) => Some(run.tick),
            HistoryEntry::NoRun(none) => Some(none.last),
            _ => None,
        };
        if let Some(k) = k {
            cells.push(match tick {
                Some(tick) => html! {
                    a.act href=(link("trigger", &[("k", k), ("tick", &ms(tick))])) { "Run again" span.quiet { " for " (date_in(tick, zone)) } "…" }
                },
                None => html! { (words::NONE) },
            });
        }
        // A row of ticks without a run stays the same row while it grows.
        let name = match entry {
            HistoryEntry::NoRun(none) => format!("{} {}", texts[0], none.why.word()),
            // A program may act twice within a second.
            HistoryEntry::Act(act) => format!("{} {}", act.time_ms, act.by),
            _ => [&texts[0], &texts[2], &texts[4], &texts[6], &texts[7]].map(String::as_str).join(" "),
        };
        let kind = if matches!(entry, HistoryEntry::Run(_)) { "run" } else { &*texts[1] };
        (id(&[kind.as_bytes(), name.as_bytes()]), cells)
    });
    rows.collect()
}
