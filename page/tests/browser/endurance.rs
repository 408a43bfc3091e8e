//! A page that stays open for an hour.

use std::time::Duration;

use serde_json::json;

use crate::browser::Browser;
use crate::command::Serve;
use crate::stage::Stage;

/// How many refreshes an hour has.
const REFRESHES: u64 = 1_800;
/// How many DOM nodes the page may have more or less. A row has about thirty.
const NODES: u64 = 100;
/// How much more memory the process may have, in KiB.
const KIB: u64 = 6 * 1024;

/// Returns how many nodes the documents of the page have, after a collection of garbage.
async fn nodes(browser: &Browser) -> u64 {
    browser.devtools("HeapProfiler.collectGarbage", json!({})).await;
    let counters = browser.devtools("Memory.getDOMCounters", json!({})).await;
    counters["nodes"].as_u64().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_refreshes_leave_nodes_and_memory_where_they_were() {
    let stage = Stage::start().await;
    let serve = Serve::start(&stage.server, "127.0.0.1:0");
    let browser = Browser::start().await;
    browser.goto(&format!("{}leases", serve.url)).await;
    browser
        .run(
            "const ask = window.fetch; window.asked = 0;
            window.fetch = (...request) => { window.asked++; return ask(...request); };
            document.body.dataset.interval = 20;",
        )
        .await;
    let locks = stage.locks.clone();
    // Ten keys, each of which has another holder, note and age all the time.
    let changes = tokio::spawn(async move {
        for n in 0_u32.. {
            let mut guards = Vec::new();
            for key in 0..10 {
                let guard = locks.mutex(format!("key-{key}")).lock().await.unwrap();
                guard.note(format!("turn {n}"));
                guards.push(guard);
            }
            tokio::time::sleep(Duration::from_millis(1_100)).await;
        }
    });
    let asked = async || browser.run("return window.asked").await.as_u64().unwrap();
    browser.until("ten refreshes", async || asked().await >= 10).await;
    let rows = async || {
        browser
            .run("return document.querySelectorAll('#leases tr').length")
            .await
    };
    browser.until("ten rows", async || rows().await == 10).await;
    let before = (nodes(&browser).await, serve.memory());
    let begun = asked().await;
    let mut seen = std::collections::HashSet::new();
    while asked().await < begun + REFRESHES {
        // An element that chromedriver found stays in its memory, so the text is read by a script.
        let row = "return document.querySelector('#leases tr')?.textContent ?? ''";
        seen.insert(browser.run(row).await.to_string());
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    assert!(seen.len() > 10, "rows changed: {seen:?}");
    let after = (nodes(&browser).await, serve.memory());
    println!("nodes and KiB: {before:?} before, {after:?} after");
    assert!(after.0.abs_diff(before.0) < NODES, "{before:?} {after:?}");
    assert!(after.1 < before.1 + KIB, "{before:?} {after:?}");
    changes.abort();
    browser.has_empty_console("the page").await;
}
