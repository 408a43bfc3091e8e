//! Pages that stay open: what changes is shown, and what does not answer is told.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::browser::{Browser, PATIENCE};
use crate::command::Serve;
use crate::stage::{Contested, Stage, hex, job, until_told};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_over_is_shown_within_seconds() {
    let Contested { stage, guard, next } = Contested::start().await;
    let browser = Browser::start().await;
    browser.goto(&stage.view("key", "account:42")).await;
    browser.until_text("Held by web-1@").await;
    browser.until_text_of("ol", "web-2@").await;
    guard.release().await.unwrap();
    let begin = Instant::now();
    browser.until_text("Held by web-2@").await;
    let took = begin.elapsed();
    println!("a hand-over was shown after {took:?}");
    assert!(took < Duration::from_secs(10), "{took:?}");
    browser.until_text_of("#tracks", "held").await;
    browser.has_empty_console("the key").await;
    drop(next.await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nine_tabs_are_current_at_once() {
    let stage = Stage::start().await;
    let guard = stage.locks.mutex("first").lock().await.unwrap();
    let browser = Browser::start().await;
    for n in 0..9 {
        if n > 0 {
            let window = browser.client.new_window(n % 2 == 0).await.unwrap();
            browser.client.switch_to_window(window.handle).await.unwrap();
        }
        browser.goto(&stage.at("leases")).await;
        browser.until_text("first").await;
    }
    guard.release().await.unwrap();
    let _second = stage.locks.mutex("second").lock().await.unwrap();
    let windows = browser.client.windows().await.unwrap();
    assert_eq!(windows.len(), 9);
    for window in windows {
        browser.client.switch_to_window(window).await.unwrap();
        browser.until_text_of("#leases", "second").await;
        assert!(!browser.text_of("#leases").await.contains("first"));
        browser.has_empty_console("a tab").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_restarts_is_told_of_and_found_again() {
    let stage = Stage::start().await;
    let mut serve = Serve::start(&stage.server, "127.0.0.1:0");
    let browser = Browser::start().await;
    browser.goto(&format!("{}leases", serve.url)).await;
    browser.until_text("None.").await;
    let address = serve.address();
    serve.kill();
    browser.until_text("does not answer since").await;
    browser.until_text("it cannot be reached").await;
    let _guard = stage.locks.mutex("meanwhile").lock().await.unwrap();
    drop(serve);
    let _again = Serve::start(&stage.server, &address);
    browser.until_text("meanwhile").await;
    assert_eq!(browser.text_of("#connection").await, "");
    browser.console_has_failed_requests_only().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_browser_that_is_offline_says_so_and_comes_back() {
    let stage = Stage::start().await;
    let browser = Browser::start().await;
    browser.goto(&stage.at("leases")).await;
    let network = |offline: bool| json!({ "offline": offline, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1 });
    browser.devtools("Network.enable", json!({})).await;
    browser
        .devtools("Network.emulateNetworkConditions", network(true))
        .await;
    browser.until_text("does not answer since").await;
    let _guard = stage.locks.mutex("meanwhile").lock().await.unwrap();
    browser
        .devtools("Network.emulateNetworkConditions", network(false))
        .await;
    browser.until_text("meanwhile").await;
    assert_eq!(browser.text_of("#connection").await, "");
    browser.console_has_failed_requests_only().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_view_says_that_the_store_is_away_and_comes_back() {
    let mut stage = Stage::start().await;
    let _job = job(&stage.locks, "reconcile").await;
    let of_views = [
        "leases".to_owned(),
        "nodes".to_owned(),
        "jobs".to_owned(),
        "audit".to_owned(),
        format!("key?k={}", hex("reconcile")),
        format!("job?k={}", hex("reconcile")),
    ];
    let browser = Browser::start().await;
    let mut windows = Vec::new();
    for view in &of_views {
        windows.push(browser.open(&stage.at(view)).await);
        assert_eq!(browser.text_of("#notices").await, "", "{view}");
    }
    stage.server.kill();
    for window in &windows {
        browser.client.switch_to_window(window.clone()).await.unwrap();
        let title = browser.text_of("h1").await;
        browser
            .until_text_of("#notices", "The store does not answer: ")
            .await;
        assert_ne!(title, "No answer", "what was seen last stays");
        assert_eq!(browser.text_of("h1").await, title);
        for theme in ["light", "dark"] {
            browser.theme(theme).await;
            browser.has_no_axe_violation("what was seen last").await;
            browser.shoot(&format!("away-{title}-{theme}")).await;
        }
    }
    // A view that is opened now has nothing to show.
    for view in &of_views {
        windows.push(browser.open(&stage.at(view)).await);
        browser.until_text_of("h1", "No answer").await;
        browser
            .until_text_of("#notices", "The store does not answer: ")
            .await;
    }
    for path in ["pause", "trigger"] {
        browser.goto(&stage.view(path, "reconcile")).await;
        browser
            .until_text_of("#notices", "The store does not answer: ")
            .await;
    }
    windows.pop();
    stage.server.restart();
    for window in windows {
        browser.client.switch_to_window(window).await.unwrap();
        let is_back = async || {
            let is_away = browser.text_of("#notices").await.contains("does not answer");
            !is_away && browser.text_of("h1").await != "No answer"
        };
        browser.until("the view is back", is_back).await;
        browser.console_has_failed_requests_only().await;
    }
}

/// Collects what a screen reader is told of changes, with the time.
const LISTEN: &str = "window.told = [];
    for (const region of document.querySelectorAll('[role=status]'))
      new MutationObserver(() => window.told.push([region.id, Date.now(), region.textContent]))
        .observe(region, { childList: true, characterData: true, subtree: true });";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_are_announced_politely_and_not_each_second() {
    let stage = Stage::start().await;
    let browser = Browser::start().await;
    browser.goto(&stage.at("leases")).await;
    browser.run("document.body.dataset.interval = 250").await;
    browser.run(LISTEN).await;
    let locks = stage.locks.clone();
    let changes = tokio::spawn(async move {
        for n in 0.. {
            let guard = locks.mutex(format!("key-{n}")).lock().await.unwrap();
            tokio::time::sleep(Duration::from_millis(700)).await;
            guard.release().await.unwrap();
        }
    });
    let announced = async || {
        browser
            .run("return window.told")
            .await
            .as_array()
            .unwrap()
            .clone()
    };
    browser
        .until("three announcements", async || announced().await.len() >= 3)
        .await;
    changes.abort();
    let told = announced().await;
    for pair in told.windows(2) {
        assert_eq!(pair[0][0], "changes");
        assert!(pair[0][2].as_str().unwrap().contains("changed"), "{told:?}");
        let pause = pair[1][1].as_u64().unwrap() - pair[0][1].as_u64().unwrap();
        assert!(pause >= 9_000, "{told:?}");
    }
    // Where nothing changes nothing is told, although ages grow.
    let _guard = stage.locks.mutex("quiet").lock().await.unwrap();
    browser.goto(&stage.view("key", "quiet")).await;
    browser.run(LISTEN).await;
    let first = browser.text_of("#entries").await;
    browser
        .until("an age grows", async || {
            browser.text_of("#entries").await != first
        })
        .await;
    assert_eq!(browser.run("return window.told").await, json!([]));
    assert_eq!(
        browser
            .run("return document.querySelectorAll('[aria-live=assertive], [role=alert]').length")
            .await,
        0
    );
}

/// A store that hangs refuses no connection: requests of it end with a timeout.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_hangs_is_told_of() {
    let stage = Stage::start().await;
    let serve = Serve::start(&stage.server, "127.0.0.1:0");
    let browser = Browser::start().await;
    browser.goto(&format!("{}leases", serve.url)).await;
    browser.until_text("None.").await;
    stage.server.freeze();
    browser
        .until_text_of("#notices", "The store does not answer: ")
        .await;
    stage.server.thaw();
    browser
        .until("the store is back", async || {
            browser.text_of("#notices").await.is_empty()
        })
        .await;
    browser.console_has_failed_requests_only().await;
}

/// A server that lost its data grants nothing for a while, and the page counts down.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_countdown_is_not_announced_each_second() {
    let mut stage = Stage::start().await;
    let _guard = stage.locks.mutex("account:42").lock().await.unwrap();
    let browser = Browser::start().await;
    browser.goto(&stage.at("leases")).await;
    stage.server.restart();
    browser.until_text_of("#notices", "may have lost leases").await;
    browser.run(LISTEN).await;
    browser
        .until("the server has recovered", async || {
            browser.text_of("#notices").await.is_empty()
        })
        .await;
    let told = browser
        .run("return window.told.filter(([id]) => id === 'notices')")
        .await;
    let told = told.as_array().unwrap();
    println!("{told:?}");
    assert!(told.len() <= 5, "{told:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn times_are_in_the_zone_of_the_browser_and_in_utc() {
    let stage = Stage::start().await;
    let _guard = stage.locks.mutex("account:42").lock().await.unwrap();
    let browser = Browser::start().await;
    let script = "const text = document.querySelector('#entries time').textContent;
        const [, here, date, utc] = text.match(/^(\\S+ \\S+) \\((?:(\\S+) )?(\\S+) UTC\\), \\d+s ago$/) ?? [];
        const ms = (text) => Date.parse(text.replace(' ', 'T') + 'Z');
        return here ? (ms(here) - ms(`${date ?? here.slice(0, 10)} ${utc}`)) / 60000 : text;";
    for (zone, minutes) in [
        ("Asia/Kolkata", 330),
        ("Pacific/Kiritimati", 840),
        ("America/St_Johns", -210),
    ] {
        browser
            .devtools("Emulation.setTimezoneOverride", json!({ "timezoneId": zone }))
            .await;
        browser.goto(&stage.view("key", "account:42")).await;
        let found = browser.run(script).await;
        assert_eq!(found.as_f64(), Some(f64::from(minutes)), "{zone}: {found}");
    }
    browser
        .devtools("Emulation.setTimezoneOverride", json!({ "timezoneId": "UTC" }))
        .await;
    browser.goto(&stage.view("key", "account:42")).await;
    let text = browser.text_of("#entries time").await;
    assert!(text.contains(" UTC, ") && !text.contains('('), "{text}");
}

/// When another holder goes, the link with the focus has another place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_focus_stays_at_the_act_of_its_holder() {
    let stage = Stage::start().await;
    let semaphore = stage.locks.semaphore("pool", 3);
    let (one, _two) = (
        semaphore.acquire().await.unwrap(),
        semaphore.acquire().await.unwrap(),
    );
    let browser = Browser::start().await;
    browser.goto(&stage.view("key", "pool")).await;
    let acts = async || {
        browser
            .run("return document.querySelectorAll('a.act').length")
            .await
    };
    browser.until("two acts", async || acts().await == 2).await;
    let link = async || {
        browser
            .run("return document.activeElement.getAttribute('href')")
            .await
    };
    crate::keyboard::tab_to(&browser, "a.act").await;
    let first = link().await;
    crate::keyboard::tab_to(&browser, "a.act").await;
    let second = link().await;
    assert_ne!(first, second);
    let of_one = async || {
        let entries = stage.locks.inspect().show("pool").await.unwrap().entries;
        entries[0].holders[0].number.unwrap().to_string()
    };
    let last = of_one().await;
    drop(one);
    browser.until("one act", async || acts().await == 1).await;
    let is_left = last != of_one().await;
    assert_eq!(link().await == second, is_left, "{first} {second} {last}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_focus_stays_where_a_row_changes() {
    let stage = Stage::start().await;
    let (one, two) = (
        stage.locks.mutex("a").lock().await.unwrap(),
        stage.locks.mutex("b").lock().await.unwrap(),
    );
    until_told(&stage.locks, 1).await;
    let browser = Browser::start().await;
    browser.goto(&stage.at("leases")).await;
    let focused = async || browser.run("return document.activeElement.textContent").await;
    let b = format!("td a[href='key?k={}']", hex("b"));
    crate::keyboard::tab_to(&browser, &b).await;
    browser
        .run("window.row = document.activeElement.closest('tr')")
        .await;
    two.note("goes on");
    browser.until_text("goes on").await;
    assert_eq!(browser.run("return window.row.isConnected").await, false);
    assert_eq!(focused().await, "b");
    crate::keyboard::has_visible_focus(&browser).await;
    // A row before it comes, and its own row goes.
    let _zero = stage.locks.mutex("Z").lock().await.unwrap();
    browser.until_text_of("#leases tr:first-child", "Z").await;
    assert_eq!(focused().await, "b");
    two.release().await.unwrap();
    let rows = async || {
        browser
            .run("return document.querySelectorAll('#leases tr').length")
            .await
    };
    browser.until("the row is gone", async || rows().await == 2).await;
    assert_eq!(focused().await, "a");
    crate::keyboard::has_visible_focus(&browser).await;
    drop(one);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_stops_while_ten_pages_are_open() {
    let stage = Stage::start().await;
    let mut serve = Serve::start(&stage.server, "127.0.0.1:0");
    let browser = Browser::start().await;
    for _ in 0..10 {
        browser.open(&format!("{}leases", serve.url)).await;
        browser.until_text("None.").await;
    }
    let took = tokio::task::spawn_blocking(move || serve.stop()).await.unwrap();
    println!("the server stopped after {took:?}");
    assert!(took < PATIENCE / 4, "{took:?}");
    browser.until_text("does not answer since").await;
}
