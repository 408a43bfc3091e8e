//! Pictures as SVG, without a style of their own. Each stands beside the same data as text.

use std::time::{Duration, SystemTime};

use maud::{Markup, html};
use tenure::scheduler::{JobRun, RunOutcome, RunState};

use crate::words::took;

/// The width of a picture, in its own units. The height of bars is a part of a hundred.
const WIDTH: f64 = 1000.0;
/// The narrowest bar.
const MIN_WIDTH: f64 = 3.0;
/// A picture of what goes on grows in steps of this time, so that it does not change with each look.
const STEP: Duration = Duration::from_secs(10);

/// Returns the end of a picture that begins at `first` and has what goes on now.
pub(crate) fn end_of_step(first: SystemTime, now: SystemTime) -> SystemTime {
    let steps = now.duration_since(first).unwrap_or_default().as_secs() / STEP.as_secs();
    first + STEP * (steps as u32 + 1)
}

/// Returns where a time lies between two others, from 0 to [`WIDTH`].
fn place(at: SystemTime, (first, end): (SystemTime, SystemTime)) -> f64 {
    let seconds = |time: SystemTime| time.duration_since(first).unwrap_or_default().as_secs_f64();
    let all = seconds(end).max(1.0);
    (seconds(at) / all * WIDTH).min(WIDTH)
}

/// Returns a bar for the time from `from` to `until`.
pub(crate) fn span(
    words: &str,
    class: &str,
    all: (SystemTime, SystemTime),
    (from, until): (SystemTime, SystemTime),
) -> Markup {
    let x = place(from, all).min(WIDTH - MIN_WIDTH);
    let width = (place(until, all) - x).max(MIN_WIDTH);
    html! {
        svg.bar viewBox="0 0 1000 100" preserveAspectRatio="none" role="img" aria-label=(words) {
            rect.back x="0" y="45" width="1000" height="10" {}
            rect class=(class) x=(format!("{x:.0}")) y=(if class == "held" { "10" } else { "30" }) width=(format!("{width:.0}"))
                height=(if class == "held" { "80" } else { "40" }) {}
        }
    }
}

/// Returns a picture of runs: a bar for each, above the line if it is done or goes on, else below it. Higher bars are longer runs.
pub(crate) fn runs(runs: &[&JobRun], (first, end): (SystemTime, SystemTime)) -> Markup {
    let longest = runs.iter().filter_map(|run| run.took).max().unwrap_or_default();
    html! {
        svg.runs viewBox="0 0 1000 200" preserveAspectRatio="none" role="img"
            aria-label=(format!("{} runs; the table has each with its outcome, its node and how long it took", runs.len()))
        {
            rect.back x="0" y="98" width="1000" height="4" {}
            @for run in runs { (bar(run, longest, (first, end))) }
        }
    }
}

fn bar(run: &JobRun, longest: Duration, all: (SystemTime, SystemTime)) -> Markup {
    let x = place(run.began, all).min(WIDTH - MIN_WIDTH);
    let until = run.took.map_or(run.began, |took| run.began + took);
    let until = if run.state == RunState::Running {
        all.1
    } else {
        until
    };
    let width = (place(until, all) - x).max(MIN_WIDTH);
    let part = run.took.unwrap_or(longest).as_secs_f64() / longest.as_secs_f64().max(0.001);
    let height = 15.0 + 80.0 * part.min(1.0);
    let is_well = matches!(run.state, RunState::Running | RunState::Ended(RunOutcome::Done));
    let y = if is_well { 98.0 - height } else { 102.0 };
    let class = match run.state {
        RunState::Running => "goes-on",
        RunState::Ended(RunOutcome::Done) => "done",
        _ => "failed",
    };
    let took = run.took.map_or("no end known".to_owned(), took);
    html! {
        rect class=(class) x=(format!("{x:.0}")) y=(format!("{y:.0}")) width=(format!("{width:.0}")) height=(format!("{height:.0}")) {
            title { (run.state.word()) ", " (crate::words::node_of_run(run)) ", " (took) }
        }
    }
}
