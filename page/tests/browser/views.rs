//! Each view, in both themes, on narrow screens and with a zoom.

use tenure::Locks;

use crate::browser::Browser;
use crate::server::RedisServer;
use crate::stage::{LEASE, Stage, hex, job, node, serve_as, until, until_told};

/// A stage with something to see in each view, and the addresses of the views.
async fn full_stage() -> (Stage, Vec<(&'static str, String)>, Vec<Box<dyn std::any::Any>>) {
    let stage = Stage::start().await;
    let mut kept: Vec<Box<dyn std::any::Any>> = Vec::new();
    let guard = stage.locks.mutex("account:42").lock().await.unwrap();
    guard.note("moves 12 entries of March");
    let second = node(&stage.server, "web-2").await;
    let waits = second.mutex("account:42");
    kept.push(Box::new(tokio::spawn(async move { waits.lock().await })));
    for n in 0..6 {
        let key = format!("tenant/{n}/reports/a-rather-long-name-of-a-report-that-wraps");
        kept.push(Box::new(second.mutex(key).lock().await.unwrap()));
    }
    let job = job(&stage.locks, "reconcile").await;
    for text in ["no rates for 2026-02-30", ""] {
        *job.error.lock().unwrap() = Some(text.to_owned()).filter(|text| !text.is_empty());
        run_once(&stage).await;
    }
    stage
        .locks
        .jobs()
        .pause("reconcile", "mia", "INC-7")
        .await
        .unwrap();
    let runs = crate::stage::job(&second, "nightly").await;
    runs.ends.send(false).unwrap();
    let jobs = stage.locks.jobs();
    jobs.trigger("nightly", None, "mia", "INC-7").await.unwrap();
    until_told(&stage.locks, 2).await;
    let number = stage.locks.inspect().show("account:42").await.unwrap().entries[0].holders[0].number;
    let seen = format!("&kind=lock&seen={}", number.unwrap());
    let of_key = |path| stage.view(path, "account:42");
    let of_job = |path| stage.view(path, "reconcile");
    let views = vec![
        ("leases", stage.at("leases")),
        ("key", of_key("key")),
        ("free-key", stage.view("key", "free")),
        ("nodes", stage.at("nodes")),
        ("jobs", stage.at("jobs")),
        ("job", of_job("job")),
        ("audit", stage.at("audit")),
        ("steal", of_key("steal") + &seen),
        ("pause", of_job("pause")),
        ("resume", of_job("resume")),
        ("trigger", of_job("trigger")),
        ("changed", of_key("steal") + "&kind=lock&seen=1"),
        ("nothing", stage.at("nothing")),
    ];
    kept.push(Box::new((guard, job, second, runs)));
    (stage, views, kept)
}

/// Lets a job run, and returns the address of the form that cancels its tick.
async fn cancel_form(stage: &Stage, browser: &Browser) -> String {
    browser.goto(&stage.view("job", "nightly")).await;
    let link = "return document.querySelector('a.act[href^=cancel]')?.href ?? ''";
    let find = async || browser.run(link).await.as_str().unwrap_or_default().to_owned();
    browser
        .until("the tick is shown", async || !find().await.is_empty())
        .await;
    find().await
}

/// Triggers the job, and waits until it has run once more.
async fn run_once(stage: &Stage) {
    let jobs = stage.locks.jobs();
    let runs = async || {
        let history = jobs.history("reconcile", std::time::UNIX_EPOCH).await.unwrap();
        let entries = history.map_or(Vec::new(), |history| history.entries);
        let is_run = |entry: &&tenure::scheduler::HistoryEntry| match entry {
            tenure::scheduler::HistoryEntry::Run(run) => run.took.is_some(),
            _ => false,
        };
        entries.iter().filter(is_run).count()
    };
    let before = runs().await;
    jobs.trigger("reconcile", None, "mia", "INC-7").await.unwrap();
    until("the job ran", async || runs().await > before).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_view_has_a_fault_for_axe_or_a_line_in_the_console_in_either_theme() {
    let (stage, mut views, _kept) = full_stage().await;
    let browser = Browser::start().await;
    views.push(("cancel", cancel_form(&stage, &browser).await));
    // The dates differ at times.
    let zone = serde_json::json!({ "timezoneId": "Asia/Kolkata" });
    browser.devtools("Emulation.setTimezoneOverride", zone).await;
    for (width, scale) in [(1280, 1), (640, 2), (320, 1)] {
        browser.width(width, scale).await;
        for theme in ["light", "dark"] {
            browser.theme(theme).await;
            for (name, url) in &views {
                let what = format!("{name}-{width}-{theme}");
                browser.goto(url).await;
                browser.shoot(&what).await;
                browser.has_no_sideways_scroll(&what).await;
                browser.has_no_axe_violation(&what).await;
                let lines = browser.console().await;
                let is_refusal = matches!(*name, "changed" | "nothing");
                assert!(is_refusal || lines.is_empty(), "{what}: {lines:?}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_view_of_a_quorum_says_what_that_means_and_which_master_is_away() {
    let mut servers = [(); 3].map(|()| RedisServer::start());
    let clients = servers
        .iter()
        .map(|server| redis::Client::open(server.url()).unwrap());
    let builder = Locks::builder().node_name("web-1");
    let locks = builder.quorum(clients.collect(), LEASE).await.unwrap();
    let _guard = locks.mutex("account:42").lease(LEASE).lock().await.unwrap();
    let (url, page) = serve_as(&locks, "mia").await;
    let views =
        ["leases", "nodes", &format!("key?k={}", hex("account:42"))].map(|view| format!("{url}{view}"));
    let browser = Browser::start().await;
    browser.goto(&views[0]).await;
    let rows = "return document.querySelectorAll('#leases tr').length";
    browser
        .until("each master has its row", async || browser.run(rows).await == 3)
        .await;
    let look = async |what: &str| {
        for theme in ["light", "dark"] {
            browser.theme(theme).await;
            browser.has_no_axe_violation(what).await;
            browser.shoot(&format!("{what}-{theme}")).await;
        }
        browser.has_empty_console(what).await;
        let acts = "return document.querySelectorAll('a.act').length";
        assert_eq!(browser.run(acts).await, 0, "{what}");
    };
    for view in &views {
        browser.goto(view).await;
        browser
            .until_text_of("#notices", "A quorum: each master has rows of its own")
            .await;
        look(&format!("quorum-{}", browser.text_of("h1").await)).await;
    }
    servers[2].kill();
    for view in [&views[0], &views[2]] {
        browser.goto(view).await;
        browser
            .until_text_of("#notices", "does not answer, and its rows are missing")
            .await;
        look(&format!("away-{}", browser.text_of("h1").await)).await;
    }
    // Whether its lease has ended is not known.
    browser.until_text_of("#tracks", "last seen").await;
    servers[2].restart();
    let is_away = async || browser.text_of("#notices").await.contains("does not answer");
    browser
        .until("the master is back", async || !is_away().await)
        .await;
    let tracks = browser.text_of("#tracks").await;
    assert!(!tracks.contains("last seen"), "{tracks}");
    page.abort();
}
