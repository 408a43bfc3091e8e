//! Names that a browser takes for markup, scripts or paths. They are shown as text, and their links lead to that very key.

use serde_json::json;
use tenure::Locks;
use tenure_page::text::shown;

use crate::browser::{Browser, PATIENCE};
use crate::stage::{Stage, hex, job, serve_as, until, until_told};

/// Texts that act somewhere.
const TEXTS: [&str; 17] = [
    "<script>window.hacked = 1</script>",
    "\"><img src=x onerror='window.hacked=1'>",
    "' onmouseover='window.hacked=1' x='",
    "\" autofocus onfocus=\"window.hacked=1",
    "javascript:window.hacked=1",
    "data:text/html,<script>window.hacked=1</script>",
    "</title><svg onload=window.hacked=1>",
    "</textarea><iframe srcdoc='<script>parent.hacked=1</script>'>",
    "<!--",
    "two\nlines\r\t",
    "nul\0here",
    "\u{202e}evil\u{2066}\u{200b}",
    "{{constructor.constructor('window.hacked=1')()}}",
    "%00%0a",
    "../../key?k=61&x=#top",
    "&lt;b&gt;&amp;",
    "//evil.example/leases",
];

fn keys() -> Vec<Vec<u8>> {
    let mut keys: Vec<Vec<u8>> = TEXTS.map(Vec::from).into();
    keys.push(b"\xff\xfe\x00<script>".to_vec());
    keys.push((0..=255).collect());
    keys.push(b"<b>".repeat(3_400));
    keys
}

/// What a page has of its own, and nothing of what it shows.
const CHECK: &str = "
    const found = [];
    for (const e of document.querySelectorAll('*')) {
      for (const a of e.attributes) if (a.name.startsWith('on') || ['style', 'srcdoc', 'autofocus'].includes(a.name)) found.push(e.outerHTML);
      if (['IMG', 'IFRAME', 'OBJECT', 'EMBED', 'STYLE', 'BASE', 'B', 'FRAME'].includes(e.tagName)) found.push(e.outerHTML);
    }
    for (const s of document.scripts) if (s.src !== new URL('page.js', location).href) found.push(s.outerHTML);
    for (const a of document.querySelectorAll('a, form')) {
      const to = new URL(a.href ?? a.action);
      if (to.origin !== location.origin || !/^\\/[a-z]+$/.test(to.pathname)) found.push(a.outerHTML);
    }
    if (window.hacked || window.name === 'hacked') found.push('a script ran');
    return found;";

async fn is_harmless(browser: &Browser, what: &str) {
    assert_eq!(browser.run(CHECK).await, json!([]), "{what}");
    browser.has_no_sideways_scroll(what).await;
    let text = browser
        .run("return document.body.textContent + document.title")
        .await;
    let is_wrong = |c: char| {
        (c.is_control() && c != '\n')
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    assert!(!text.as_str().unwrap().contains(is_wrong), "{what}: {text}");
    browser.has_empty_console(what).await;
}

/// A node whose names are hostile, which takes keys of any length.
async fn hostile_node(stage: &Stage) -> Locks {
    let builder = Locks::builder()
        .node_name(TEXTS[0])
        .service(TEXTS[1])
        .max_key(20_000)
        .lease(crate::stage::LEASE)
        .request_timeout(PATIENCE);
    builder.connect(&stage.server.url()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_keys_are_text_and_their_links_lead_to_them() {
    let (stage, keys) = (Stage::start().await, keys());
    let locks = hostile_node(&stage).await;
    let mut guards = Vec::new();
    for (n, key) in keys.iter().enumerate() {
        let guard = locks.mutex(&key[..]).lock().await.unwrap();
        guard.note(TEXTS[n % TEXTS.len()]);
        guards.push(guard);
    }
    until_told(&locks, 1).await;
    let browser = Browser::start().await;
    browser.width(320, 1).await;
    browser.goto(&stage.at("leases")).await;
    browser
        .until("a note is shown", async || {
            browser.text_of("#leases").await.contains(&shown(TEXTS[1]))
        })
        .await;
    is_harmless(&browser, "leases").await;
    browser.shoot("hostile-leases-320").await;
    let rows = async || {
        browser
            .run("return document.querySelectorAll('#leases tr').length")
            .await
    };
    assert_eq!(rows().await, keys.len());
    for key in &keys {
        browser.goto(&stage.at("leases")).await;
        let name = shown(key);
        browser.click(&format!("td a[href='key?k={}']", hex(key))).await;
        browser.until_text("Held by").await;
        let title = browser
            .run("return document.querySelector('h1').textContent")
            .await;
        assert_eq!(title, name);
        is_harmless(&browser, &name).await;
        browser.click("a.act[href^=steal]").await;
        browser.until_text("You act as mia").await;
        is_harmless(&browser, &name).await;
        let back = browser
            .run("return document.querySelector('.buttons a').getAttribute('href')")
            .await;
        assert_eq!(back, format!("key?k={}", hex(key)));
    }
    // The key is typed as it is shown.
    browser.goto(&stage.at("leases")).await;
    browser.fill("#q", &shown(&keys[18])).await;
    browser.fill("#node", &shown(TEXTS[0])).await;
    browser.click("form.search button").await;
    browser.until("one row", async || rows().await == 1).await;
    assert_eq!(
        browser.run("return document.querySelector('#q').value").await,
        shown(&keys[18])
    );
    is_harmless(&browser, "a search").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_names_of_nodes_are_text() {
    let stage = Stage::start().await;
    for text in TEXTS {
        // Any client of the server can write a presence.
        let hostile: String = text
            .bytes()
            .map(|byte| format!("%{byte:02x}"))
            .collect::<String>()
            + "%ff";
        let fields =
            ["name", "host", "version", "service", "prefix"].map(|field| format!("{field}={hostile}"));
        let name = format!("tenure1:i:{}", tenure::NodeId::random());
        let presence = format!("{}&pid=-1&keys=x&started={}", fields.join("&"), u64::MAX);
        let mut set = redis::cmd("SET");
        set.arg(&[&name, &presence]);
        set.exec(&mut stage.server.client()).unwrap();
    }
    let browser = Browser::start().await;
    for width in [1280, 1000, 320] {
        browser.width(width, 1).await;
        browser.goto(&stage.at("nodes")).await;
        let rows = browser
            .run("return document.querySelectorAll('#nodes tr').length")
            .await;
        assert_eq!(rows, TEXTS.len());
        is_harmless(&browser, "nodes").await;
        for text in TEXTS {
            assert!(
                browser.text_of("#nodes").await.contains(shown(text).trim()),
                "{text}"
            );
        }
        browser.shoot(&format!("hostile-nodes-{width}")).await;
    }
}

/// Waits until the run of the job with this name has failed with the same text, and the page shows it.
async fn shows_error(browser: &Browser, locks: &Locks, text: &str) {
    until("the run failed", async || {
        let job = locks.jobs().show(text).await.unwrap().unwrap();
        job.latest.is_some_and(|run| !run.text.is_empty())
    })
    .await;
    let wanted = format!("triggered: {}", shown(text));
    let history = "return document.querySelector('#history').textContent";
    browser
        .until("the error is shown", async || {
            browser.run(history).await.as_str().unwrap().contains(&wanted)
        })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_jobs_errors_reasons_and_operators_are_text() {
    let stage = Stage::start().await;
    let locks = hostile_node(&stage).await;
    let page = crate::stage::node(&stage.server, "page").await;
    let browser = Browser::start().await;
    browser.width(1000, 1).await;
    for text in TEXTS {
        // The server stays: the browser asks it until it shows the next one.
        let (url, _) = serve_as(&page, &text.replace('\0', " ")).await;
        let job = job(&locks, text).await;
        *job.error.lock().unwrap() = Some(text.to_owned());
        browser.goto(&format!("{url}jobs")).await;
        browser
            .until("the job is listed", async || {
                let link = format!(
                    "return !!document.querySelector(\"td a[href='job?k={}']\")",
                    hex(text)
                );
                browser.run(&link).await == true
            })
            .await;
        is_harmless(&browser, "jobs").await;
        browser.click(&format!("td a[href='job?k={}']", hex(text))).await;
        browser.click("a.act[href^='trigger?k=']").await;
        browser.until_text("You act as").await;
        is_harmless(&browser, "a form").await;
        // A field of one line takes no newline.
        browser
            .client
            .execute(
                "document.querySelector('#why').value = arguments[0]",
                vec![json!(text)],
            )
            .await
            .unwrap();
        browser.click("button").await;
        browser.until_text_of("#steps", "A run is wanted").await;
        shows_error(&browser, &locks, text).await;
        is_harmless(&browser, text).await;
        browser.goto(&format!("{url}audit")).await;
        is_harmless(&browser, "audit").await;
        let audit = browser
            .run("return document.querySelector('#audit')?.textContent")
            .await;
        let reason = shown(text.replace(['\n', '\r'], "").trim());
        assert!(audit.as_str().unwrap().contains(&reason), "{reason}: {audit}");
    }
    browser.width(320, 1).await;
    browser.shoot("hostile-audit-320").await;
    is_harmless(&browser, "audit").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_links_do_nothing() {
    let stage = Stage::start().await;
    let browser = Browser::start().await;
    for query in [
        "leases?q=%3Cscript%3Ewindow.hacked=1%3C/script%3E&kind=%22%3E%3Cimg%20src=x%3E&node=%00&from=%ff&skip=-1",
        "leases?q=%22%20autofocus%20onfocus=%22window.hacked=1",
        "jobs?q=%22%3E%3Csvg%20onload=window.hacked=1%3E",
        "key?k=61&done=%3Cscript%3E",
        "job?k=61&days=%3Cscript%3E&done=../..",
    ] {
        browser.goto(&stage.at(query)).await;
        is_harmless(&browser, query).await;
    }
    for query in [
        "key?k=%3Cscript%3Ewindow.hacked=1%3C/script%3E",
        "steal?k=61&kind=%3Cscript%3E&seen=javascript:",
        "trigger?k=61&tick=%22%3E",
        "%3Cscript%3Ewindow.hacked=1%3C/script%3E",
        "..%2f..%2fetc",
    ] {
        browser.goto(&stage.at(query)).await;
        assert_eq!(browser.run("return window.hacked ?? null").await, json!(null));
        let lines = browser.console().await;
        assert!(lines.iter().all(|line| line.contains("\"network\"")), "{lines:?}");
    }
}
