//! The options, the load, and the figures of the scrape.

#![allow(clippy::disallowed_methods, reason = "a program reads the clock")]

#[path = "../replicas/store.rs"]
mod store;

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use tenure::{Error, Locks};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_cron_scheduler::JobScheduler;
use tower::ServiceExt;

use crate::{BoxError, install_recorder, schedule, service};
use store::Store;

const USAGE: &str = "usage: cargo run --example observed --features metrics [-- --listen <port> [--cron <expression>] [--fail]]
TENURE_URL=redis://127.0.0.1/ puts the locks on that Redis.";

/// How long the load lasts without `--listen`: longer than two ticks of the job.
const SHOW: Duration = Duration::from_secs(4);
/// The time that a run takes.
const RUN_TAKES: Duration = Duration::from_millis(300);
/// The time that jobs and locks have to end.
const GRACE: Duration = Duration::from_secs(5);

/// The job, which fails on demand.
pub(crate) async fn reconcile(fails: bool) -> Result<(), &'static str> {
    sleep(RUN_TAKES).await;
    if fails { Err("no rates") } else { Ok(()) }
}

struct Options {
    listen: Option<u16>,
    cron: String,
    fails: bool,
}

impl Options {
    /// Returns `None` after wrong usage.
    fn from_args(mut args: impl Iterator<Item = String>) -> Option<Options> {
        let mut options = Options {
            listen: None,
            cron: "* * * * * *".to_owned(),
            fails: false,
        };
        while let Some(arg) = args.next() {
            match &*arg {
                "--listen" => options.listen = Some(args.next()?.parse().ok()?),
                "--cron" => options.cron = args.next()?,
                "--fail" => options.fails = true,
                _ => return None,
            }
        }
        Some(options)
    }
}

/// Withdraws from two accounts. Some requests find their account busy for as long as the layer waits.
async fn withdraw(app: Router, client: u64) {
    for request in 0.. {
        let account = (client + request) % 2;
        let request = Request::post(format!("/accounts/{account}/withdraw")).body(Body::empty());
        let request = request.expect("the path is one");
        let Ok(answer) = app.clone().oneshot(request).await;
        if !answer.status().is_success() && answer.status() != StatusCode::TOO_MANY_REQUESTS {
            eprintln!("a withdrawal got {}", answer.status());
            sleep(Duration::from_secs(1)).await;
        }
        sleep(Duration::from_millis(20)).await;
    }
}

/// Holds a lease for several of its renewals, which come each third of a second.
async fn export(locks: Locks) -> Result<(), Error> {
    let mutex = locks.mutex("export").lease(Duration::from_secs(1));
    loop {
        let guard = mutex.lock().await?;
        sleep(Duration::from_millis(1_500)).await;
        guard.release().await?;
    }
}

/// Asks for the export, and gives up because it is busy.
async fn report(locks: Locks) -> Result<(), Error> {
    let mutex = locks.mutex("export");
    loop {
        match mutex.lock_timeout(Duration::from_millis(200)).await {
            Ok(guard) => guard.release().await?,
            Err(Error::Busy { .. }) => {}
            Err(error) => return Err(error),
        }
        sleep(Duration::from_millis(200)).await;
    }
}

/// Calls a partner service that answers two calls at a time.
async fn call_partner(locks: Locks) -> Result<(), Error> {
    loop {
        let permit = locks.semaphore("partner", 2).acquire().await?;
        sleep(Duration::from_millis(100)).await;
        permit.release().await?;
    }
}

/// Leads for a second at a time.
async fn lead(locks: Locks) -> Result<(), Error> {
    loop {
        let leader = locks.election("relay").campaign().await?;
        sleep(Duration::from_secs(1)).await;
        leader.release().await?;
    }
}

/// Repeats work that the store interrupts.
async fn repeat<F: Future<Output = Result<(), Error>>>(work: impl Fn() -> F) {
    while let Err(error) = work().await {
        eprintln!("{error}");
        sleep(Duration::from_secs(1)).await;
    }
}

/// Starts the load, which ends when the set is dropped.
fn load(locks: &Locks, app: &Router) -> JoinSet<()> {
    let mut load = JoinSet::new();
    for client in 0..12 {
        load.spawn(withdraw(app.clone(), client));
    }
    for _ in 0..2 {
        let locks = locks.clone();
        load.spawn(repeat(move || export(locks.clone())));
    }
    for _ in 0..4 {
        let locks = locks.clone();
        load.spawn(repeat(move || call_partner(locks.clone())));
    }
    let leading = locks.clone();
    load.spawn(repeat(move || lead(leading.clone())));
    let reporting = locks.clone();
    load.spawn(repeat(move || report(reporting.clone())));
    load
}

pub(crate) async fn play() -> Result<(), BoxError> {
    let Some(options) = Options::from_args(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        std::process::exit(2);
    };
    let mut sigterm = signal(SignalKind::terminate())?;
    let scrape = install_recorder()?;
    let upkeep = scrape.clone();
    tokio::spawn(async move {
        loop {
            // Values of histograms are kept until they are rendered, or until this.
            sleep(Duration::from_secs(5)).await;
            upkeep.run_upkeep();
        }
    });

    // Replicas share their keys, so they have one prefix.
    let locks = Locks::connect(Store::from_env().url()).await?;
    let scheduler = schedule(&locks, &options.cron, options.fails).await?;
    let app = service(&locks, scrape);
    let load = load(&locks, &app);
    let Some(port) = options.listen else {
        println!("One replica and its load, for {SHOW:?}.\n");
        sleep(SHOW).await;
        let figures = figures(app).await?;
        end(&locks, scheduler, load).await?;
        return check(&figures);
    };
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    println!("http://{}/metrics until Ctrl-C", listener.local_addr()?);
    tokio::select! {
        ended = axum::serve(listener, app) => ended?,
        _ = sigterm.recv() => {}
        ended = tokio::signal::ctrl_c() => ended?,
    }
    end(&locks, scheduler, load).await
}

/// Ends a replica: first the jobs, then the scheduler, then the locks.
async fn end(locks: &Locks, mut scheduler: JobScheduler, load: JoinSet<()>) -> Result<(), BoxError> {
    drop(load);
    locks.drain(GRACE).await?;
    scheduler.shutdown().await?;
    Ok(timeout(GRACE, locks.shutdown()).await?)
}

/// The values of a scrape, each by its name and labels.
type Figures = BTreeMap<String, f64>;

/// Scrapes the service.
async fn figures(app: Router) -> Result<Figures, BoxError> {
    let answer = app.oneshot(Request::get("/metrics").body(Body::empty())?).await?;
    let text = String::from_utf8(to_bytes(answer.into_body(), usize::MAX).await?.to_vec())?;
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let values = lines.filter_map(|line| line.rsplit_once(' '));
    values
        .map(|(series, value)| Ok((series.to_owned(), value.parse()?)))
        .collect()
}

/// Prints some figures, and fails if one is not as it must be after this load.
fn check(figures: &Figures) -> Result<(), BoxError> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
    let (some, recent) = (1.0..1e9, now - 3.0..now + 2.0);
    let expected = [
        ("tenure_grants_total{kind=\"lock\"}", &some),
        ("tenure_held{kind=\"lock\"}", &some),
        ("tenure_waiting{kind=\"semaphore\"}", &some),
        (
            "tenure_wait_seconds_count{kind=\"lock\",outcome=\"gave_up\"}",
            &some,
        ),
        ("tenure_renewal_slack_ratio_count", &some),
        ("tenure_refused_total{why=\"waited_too_long\"}", &some),
        (
            "tenure_losses_total{kind=\"lock\",cause=\"deadline\"}",
            &(0.0..0.1),
        ),
        (
            "tenure_ticks_total{job_name=\"reconcile\",outcome=\"done\"}",
            &some,
        ),
        (
            "tenure_job_last_success_timestamp_seconds{job_name=\"reconcile\"}",
            &recent,
        ),
        (
            "tenure_job_success_due_timestamp_seconds{job_name=\"reconcile\"}",
            &recent,
        ),
    ];
    let mut wrong = Vec::new();
    for (series, range) in &expected {
        let value = figures.get(*series).copied();
        println!("{series} {}", value.unwrap_or(f64::NAN));
        if !value.is_some_and(|value| range.contains(&value)) {
            wrong.push(format!("{series} is {value:?}, and not in {range:?}"));
        }
    }
    println!(
        "\n{} of {} figures are as the load was",
        expected.len() - wrong.len(),
        expected.len()
    );
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(wrong.join("; ").into())
    }
}
