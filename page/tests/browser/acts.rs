//! The acts of an operator, with and without scripts.

use crate::browser::Browser;
use crate::stage::{Contested, Stage, job, node, until, until_told};

/// Follows the link of an act, gives a reason and confirms.
async fn act(browser: &Browser, path: &str) {
    browser.click(&format!("a.act[href^='{path}']")).await;
    confirm(browser).await;
}

async fn confirm(browser: &Browser) {
    browser.until_text("You act as mia").await;
    browser.fill("#why", "INC-7").await;
    browser.click("button[type=submit]").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_is_taken_after_a_confirmation() {
    let Contested { stage, guard, next } = Contested::start().await;
    let browser = Browser::start().await;
    browser.goto(&stage.view("key", "account:42")).await;
    browser.until_text_of("ol", "web-2@").await;
    browser.click("a.act[href^=steal]").await;
    browser.until_text("Next comes web-2@").await;
    browser.until_text("web-1@").await;
    browser.fill("#grace", "1").await;
    confirm(&browser).await;
    browser.until_text_of("#steps", "Asked: the holder has 1s").await;
    browser.until_text_of("#steps", "Revoked").await;
    browser.shoot("taken").await;
    assert_eq!(guard.lost().await, tenure::error::LostCause::Revoked);
    drop(guard);
    browser.until_text("Held by web-2@").await;
    browser.until_text_of("#audit", "INC-7").await;
    browser.has_empty_console("the steal").await;
    // The form is sent again by a reload of the browser: it acts once.
    let next = next.await.unwrap();
    browser.client.refresh().await.unwrap();
    browser.until_text("Held by web-2@").await;
    assert!(next.is_held());
}

/// The holder learns of it, and does not have to agree.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_is_handed_over_at_once() {
    let Contested { stage, guard, next } = Contested::start().await;
    let browser = Browser::start().await;
    browser.goto(&stage.view("key", "account:42")).await;
    browser.until_text_of("ol", "web-2@").await;
    browser.click("a.act[href^=steal]").await;
    browser.until_text("Next comes web-2@").await;
    browser.fill("#grace", "0").await;
    browser.click("input[name=now]").await;
    confirm(&browser).await;
    browser.until_text_of("#steps", "Handed over.").await;
    browser.until_text("Held by web-2@").await;
    assert!(next.await.unwrap().is_held());
    assert_eq!(guard.lost().await, tenure::error::LostCause::Revoked);
    browser.has_empty_console("the steal").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_record_of_another_library_is_taken() {
    let stage = Stage::start().await;
    let mut client = stage.server.client();
    let mut write = redis::cmd("SET");
    let write = write
        .arg("lock:account:42")
        .arg("<b>8f1e</b>")
        .arg("PX")
        .arg(3_600_000);
    let _: () = write.query(&mut client).unwrap();
    let next = stage.locks.mutex("account:42");
    let next = tokio::spawn(async move { next.lock().await.unwrap() });
    until_told(&stage.locks, 1).await;
    let browser = Browser::start().await;
    browser.goto(&stage.view("key", "account:42")).await;
    browser.until_text_of("ol", "web-1@").await;
    browser.until_text("(SHA-1)").await;
    browser.click("a.act[href^=steal]").await;
    browser
        .until_text("A client of another library loses its record:")
        .await;
    browser
        .has_no_axe_violation("the form for a foreign record")
        .await;
    browser.click("input[name=now]").await;
    confirm(&browser).await;
    browser.until_text_of("#steps", "Handed over.").await;
    browser.until_text("Held by web-1@").await;
    browser.shoot("foreign-taken").await;
    assert!(next.await.unwrap().is_held());
    browser.has_empty_console("the steal").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_changed_hands_meanwhile_is_not_taken() {
    let stage = Stage::start().await;
    let second = node(&stage.server, "web-2").await;
    let guard = stage.locks.mutex("account:42").lock().await.unwrap();
    until_told(&stage.locks, 1).await;
    let browser = Browser::start().await;
    browser.goto(&stage.view("key", "account:42")).await;
    browser.click("a.act[href^=steal]").await;
    browser.until_text("You act as mia").await;
    guard.release().await.unwrap();
    let next = second.mutex("account:42").lock().await.unwrap();
    confirm(&browser).await;
    browser
        .until_text_of("#steps", "It changed hands since you looked: nothing was done.")
        .await;
    browser.until_text("Held by web-2@").await;
    assert!(next.is_held());
    // The form of a lease that is gone.
    browser
        .goto(&(stage.view("steal", "account:42") + "&kind=lock&seen=1"))
        .await;
    browser.until_text("nothing was done").await;
    browser.click("main a").await;
    browser.until_text("Held by web-2@").await;
    assert!(stage.locks.inspect().audit().await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_act_without_the_store_says_what_is_known_of_it() {
    let mut stage = Stage::start().await;
    let _job = job(&stage.locks, "reconcile").await;
    let _guard = stage.locks.mutex("account:42").lock().await.unwrap();
    let browser = Browser::start().await;
    browser.goto(&stage.view("key", "account:42")).await;
    browser.click("a.act[href^=steal]").await;
    browser.until_text("You act as mia").await;
    let second = browser.client.new_window(false).await.unwrap();
    let first = browser.client.window().await.unwrap();
    browser.client.switch_to_window(second.handle).await.unwrap();
    browser.goto(&stage.view("pause", "reconcile")).await;
    stage.server.kill();
    confirm(&browser).await;
    browser
        .until_text_of("#steps", "it is not known whether it was done")
        .await;
    browser.client.switch_to_window(first).await.unwrap();
    confirm(&browser).await;
    browser.until_text_of("#steps", "Nothing was done").await;
    browser
        .until_text_of("#notices", "The store does not answer: ")
        .await;
    browser.console_has_failed_requests_only().await;
}

/// Does all acts of jobs, and reads what became of them.
async fn act_on_jobs(stage: &Stage, browser: &Browser) {
    let job = job(&stage.locks, "reconcile").await;
    browser.goto(&stage.at("jobs")).await;
    browser.click("td a").await;
    act(browser, "pause").await;
    browser.until_text_of("#steps", "The job is paused.").await;
    browser.until_text_of("#facts", "by mia: INC-7").await;
    act(browser, "resume").await;
    browser.until_text_of("#steps", "The job is resumed.").await;
    job.ends.send(false).unwrap();
    act(browser, "trigger?k=").await;
    browser.until_text_of("#steps", "A run is wanted.").await;
    until("the run began", async || {
        let job = stage.locks.jobs().show("reconcile").await.unwrap().unwrap();
        job.current.is_some()
    })
    .await;
    reload_until(browser, "#acts", "Cancel the tick").await;
    browser.click("a.act[href^=cancel]").await;
    browser.fill("#grace", "0").await;
    confirm(browser).await;
    reload_until(browser, "#steps", "Cancelled.").await;
    job.ends.send(true).unwrap();
    reload_until(browser, "#history", "cancelled").await;
    act(browser, "trigger?k=").await;
    reload_until(browser, "#history", "done").await;
    let jobs = stage.locks.jobs();
    let shown = jobs.show("reconcile").await.unwrap().unwrap();
    assert!(shown.paused.is_none() && shown.current.is_none());
}

/// Waits until the element has the text. A page without a script is loaded again.
async fn reload_until(browser: &Browser, selector: &str, text: &str) {
    browser
        .until(text, async || {
            let has = browser.text_of(selector).await.contains(text);
            if !has {
                browser.client.refresh().await.unwrap();
            }
            has
        })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_is_paused_resumed_triggered_and_cancelled() {
    let stage = Stage::start().await;
    let browser = Browser::start().await;
    act_on_jobs(&stage, &browser).await;
    browser.has_empty_console("the acts").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_scripts_all_is_read_and_all_acts_are_done() {
    let stage = Stage::start().await;
    let guard = stage.locks.mutex("account:42").lock().await.unwrap();
    guard.note("moves March");
    until_told(&stage.locks, 1).await;
    let browser = Browser::without_scripts().await;
    browser
        .goto("data:text/html,<p>no script ran</p><script>document.querySelector('p').textContent = 'ran'</script>")
        .await;
    assert_eq!(browser.text().await, "no script ran");
    browser.goto(&stage.url).await;
    browser.fill("#q", "acc").await;
    browser.click("button").await;
    reload_until(&browser, "#leases", "moves March").await;
    browser.until_text_of("#leases", "UTC").await;
    browser.click("td a").await;
    browser.until_text("Held by web-1@").await;
    browser.click("a.act[href^=steal]").await;
    browser.fill("#grace", "0").await;
    confirm(&browser).await;
    assert_eq!(guard.lost().await, tenure::error::LostCause::Revoked);
    drop(guard);
    reload_until(&browser, "#entries", "The key is free").await;
    act_on_jobs(&stage, &browser).await;
    for (view, text) in [("nodes", "web-1"), ("audit", "INC-7"), ("jobs", "reconcile")] {
        browser.click(&format!("nav a[href={view}]")).await;
        browser.until_text_of("main", text).await;
    }
    browser.has_empty_console("no scripts").await;
}
