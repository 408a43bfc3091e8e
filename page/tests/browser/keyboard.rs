//! Every act by the keyboard alone.

use serde_json::json;

use crate::browser::Browser;
use crate::stage::{Stage, job, until, until_told};

const TAB: char = '\u{e004}';
const ENTER: char = '\u{e007}';

/// Presses Tab until the element has the focus. Each element that has it on the way shows it.
pub async fn tab_to(browser: &Browser, selector: &str) {
    let found = format!("return document.activeElement.matches({})", json!(selector));
    for _ in 0..100 {
        browser.press(TAB).await;
        if browser.run(&found).await == true {
            return has_visible_focus(browser).await;
        }
    }
    panic!("Tab does not lead to {selector}: {}", browser.text().await);
}

/// Checks that a reader sees what has the focus.
pub async fn has_visible_focus(browser: &Browser) {
    let script = "const e = document.activeElement, s = getComputedStyle(e), r = e.getBoundingClientRect();
        return [e !== document.body, s.outlineStyle, parseFloat(s.outlineWidth) >= 2,
            r.right > 0 && r.bottom > 0 && r.left < innerWidth && r.top < innerHeight];";
    assert_eq!(browser.run(script).await, json!([true, "solid", true, true]));
}

async fn type_text(browser: &Browser, text: &str) {
    for key in text.chars() {
        browser.press(key).await;
    }
}

/// Goes to the act, gives a reason and confirms. The holder of a lease, or the run, has the grace.
async fn act(browser: &Browser, path: &str, grace: Option<&str>) {
    tab_to(browser, &format!("a.act[href^='{path}']")).await;
    browser.press(ENTER).await;
    browser.until_text("You act as").await;
    if let Some(grace) = grace {
        tab_to(browser, "#grace").await;
        type_text(browser, grace).await;
    }
    tab_to(browser, "#why").await;
    type_text(browser, "INC-7").await;
    tab_to(browser, "button").await;
    browser.press(ENTER).await;
    browser
        .until("the act is done", async || {
            !browser.text_of("#steps").await.is_empty()
        })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_act_is_done_by_keys() {
    let stage = Stage::start().await;
    let job = job(&stage.locks, "reconcile").await;
    let guard = stage.locks.mutex("account:42").lock().await.unwrap();
    let holder = tokio::spawn(async move {
        let asked = guard.asked().await.unwrap();
        guard.release().await.unwrap();
        asked
    });
    until_told(&stage.locks, 1).await;
    let browser = Browser::start().await;
    browser.goto(&stage.at("leases")).await;
    tab_to(&browser, "a.skip").await;
    browser.press(ENTER).await;
    tab_to(&browser, "td a").await;
    browser.press(ENTER).await;
    browser.until_text("Held by").await;
    act(&browser, "steal", Some("60")).await;
    browser.until_text_of("#steps", "Given back by its holder").await;
    let asked = holder.await.unwrap();
    assert_eq!((&*asked.by, &*asked.why), ("mia", "INC-7"));

    browser.goto(&stage.at("jobs")).await;
    tab_to(&browser, "td a").await;
    browser.press(ENTER).await;
    browser.until_text("Pause…").await;
    act(&browser, "pause", None).await;
    browser.until_text_of("#steps", "The job is paused").await;
    act(&browser, "resume", None).await;
    browser.until_text_of("#steps", "The job is resumed").await;
    job.ends.send(false).unwrap();
    act(&browser, "trigger", None).await;
    browser.until_text_of("#steps", "A run is wanted").await;
    browser.until_text_of("#facts", "running").await;
    act(&browser, "cancel", Some("0")).await;
    browser.until_text_of("#steps", "Cancelled.").await;
    job.ends.send(true).unwrap();
    until("the run has ended", async || {
        let job = stage.locks.jobs().show("reconcile").await.unwrap().unwrap();
        job.current.is_none() && job.wanted.is_none()
    })
    .await;
    browser.until_text_of("#history", "cancelled").await;
    browser.has_empty_console("the acts").await;
}
