//! The list of jobs.

use axum::response::Response;
use maud::{Markup, html};
use tenure::Error;
use tenure::scheduler::JobEntry;

use crate::layout::{Tab, brief, table, time_or_none};
use crate::links::{id, link, link_to};
use crate::views::{ROWS, next_page};
use crate::visit::{Shown, Visit};
use crate::words::{self, date_in, or_none, took, zone_of};

pub(crate) async fn page(visit: Visit) -> Response {
    visit.answer(Tab::Jobs, look(&visit).await)
}

async fn look(visit: &Visit) -> Result<Shown, Error> {
    let query = &visit.query;
    let jobs = visit.app.looks.jobs(&visit.app.locks, query.bytes("q")).await?;
    let header = [
        "JOB",
        "STATE",
        "NODE",
        "LAST",
        "BEGAN",
        "TOOK",
        "LAST-SUCCESS",
        "NEXT",
        "NODES",
    ];
    let skip: usize = query.get("skip").parse().unwrap_or(0);
    let shown: Vec<&JobEntry> = jobs.iter().skip(skip).take(ROWS).collect();
    let next = (jobs.len() > skip.saturating_add(ROWS)).then(|| {
        let skip = (skip + ROWS).to_string();
        link("jobs", &[("q", query.get("q")), ("skip", &skip)])
    });
    let rows: Vec<_> = shown.iter().map(|job| row(job)).collect();
    let body = html! {
        form.search method="get" action="jobs" role="search" {
            p { label for="q" { "Jobs that begin with" } input #q name="q" type="search" value=(query.shown("q")); }
            p { button type="submit" { "Search" } }
        }
        (table("jobs", "What jobs did; ticks are in the zone of the job", &header, &rows))
        (next_page(next.as_deref(), "Next page"))
    };
    Ok(Shown {
        title: "Jobs".to_owned(),
        tab: Tab::Jobs,
        notices: visit.notices().await,
        body,
        lines: visit.lines(shown),
        next,
    })
}

fn row(job: &JobEntry) -> (String, Vec<Markup>) {
    let (latest, zone) = (job.latest.as_ref(), zone_of(job.plan.as_ref()));
    let nodes: Vec<_> = job
        .nodes
        .iter()
        .map(|node| match &*node.name {
            "" => words::short(node.id),
            name => crate::text::shown(name),
        })
        .collect();
    let cells = vec![
        html! { a href=(link_to("job", &job.job)) { (brief(&job.job)) } },
        html! { (job.state.word()) },
        html! { (or_none(latest.map(words::node_of_run))) },
        html! { (or_none(latest.map(|run| run.state.word().to_owned()))) },
        time_or_none(latest.map(|run| run.began), true),
        html! { (or_none(latest.and_then(|run| run.took).map(took))) },
        html! { (or_none(job.last_success.map(|tick| date_in(tick, zone)))) },
        html! { (or_none(job.next.map(|next| date_in(next, zone)))) },
        html! { (job.nodes.len()) @if !nodes.is_empty() { ": " (nodes.join(", ")) } },
    ];
    (id(&[job.job.as_bytes()]), cells)
}
