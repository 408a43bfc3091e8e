//! What the views show.

use std::time::Duration;

use http::Method;
use http::header::ACCEPT;
use tenure::inspect::Kind;
use tenure::{Locks, MemoryStore};

use tokio_cron_scheduler::JobScheduler;

use crate::tools::{Browser, all, hex, operated_by, read, text, until};

#[tokio::test]
async fn leases_are_found_by_prefix_kind_and_node() {
    let locks = Locks::memory();
    let _one = locks.mutex("account:1").lock().await.unwrap();
    let _two = locks.mutex(&b"account:\xff"[..]).lock().await.unwrap();
    let _three = locks.semaphore("pool", 2).acquire().await.unwrap();
    let mut browser = read(&locks);
    let node = locks.inspect().show("pool").await.unwrap().entries[0].holders[0]
        .node
        .id
        .to_string();
    let keys = async |browser: &mut Browser, query: &str| {
        browser
            .open(&format!("/leases?{query}"))
            .await
            .texts("#leases tr td:first-child")
    };
    assert_eq!(
        keys(&mut browser, "").await,
        ["account:1", r"account:\xff", "pool"]
    );
    assert_eq!(
        keys(&mut browser, "q=account%3A").await,
        ["account:1", r"account:\xff"]
    );
    assert_eq!(
        keys(&mut browser, r"q=account%3A%5Cxff").await,
        [r"account:\xff"],
        "as it is shown"
    );
    assert_eq!(keys(&mut browser, "kind=semaphore").await, ["pool"]);
    assert_eq!(
        keys(&mut browser, &format!("q=pool&node={}", &node[..8])).await,
        ["pool"]
    );
    assert!(keys(&mut browser, "node=another").await.is_empty());
    assert_eq!(
        browser.open("/leases?q=none").await.texts("#leases-empty"),
        ["None."]
    );
}

#[tokio::test]
async fn a_page_has_a_hundred_rows_and_a_link_to_the_next() {
    let locks = Locks::memory();
    let mut guards = Vec::new();
    for n in 0..1_234 {
        guards.push(locks.mutex(format!("k{n:04}")).lock().await.unwrap());
    }
    let mut browser = read(&locks);
    let (mut link, mut keys) = (Some("leases?q=k".to_owned()), Vec::new());
    while let Some(to) = link {
        let page = browser.open(&format!("/{to}")).await;
        let rows = page.texts("#leases tr td:first-child");
        assert!(rows.len() <= 100);
        keys.extend(rows);
        link = page.links("a#next").pop();
    }
    let all: Vec<_> = (0..1_234).map(|n| format!("k{n:04}")).collect();
    assert_eq!(keys, all);
}

#[tokio::test]
async fn a_page_has_a_hundred_jobs_and_a_link_to_the_next() {
    const COUNT: usize = 234;
    let (locks, scheduler) = (Locks::memory(), JobScheduler::new().await.unwrap());
    for n in 0..COUNT {
        let job = locks.cron(format!("j{n:04}"), "0 0 0 1 1 *").run(|_| async {});
        locks.add_job(&scheduler, job.unwrap()).await.unwrap();
    }
    scheduler.start().await.unwrap();
    let jobs = locks.jobs();
    until("all jobs are known", || async {
        (jobs.list("j").await.unwrap().len() == COUNT).then_some(())
    })
    .await;
    let mut browser = read(&locks);
    let (mut link, mut names) = (Some("jobs?q=j".to_owned()), Vec::new());
    while let Some(to) = link {
        let page = browser.open(&format!("/{to}")).await;
        let rows = page.texts("#jobs tr td:first-child");
        assert!(rows.len() <= 100, "{to}: {} rows", rows.len());
        names.extend(rows);
        link = page.links("a#next").pop();
    }
    let all: Vec<_> = (0..COUNT).map(|n| format!("j{n:04}")).collect();
    assert_eq!(names, all);
}

#[tokio::test]
async fn a_key_shows_its_holders_its_queue_and_its_time_line() {
    let locks = Locks::memory();
    let semaphore = locks.semaphore("pool", 2);
    let _held = (
        semaphore.acquire().await.unwrap(),
        semaphore.acquire().await.unwrap(),
    );
    let waits = tokio::spawn(async move { semaphore.acquire().await });
    let inspection = locks.inspect();
    crate::tools::until("a caller waits", || async {
        let entry = inspection.show("pool").await.unwrap().entries.remove(0);
        (entry.waiter_count == 1).then_some(())
    })
    .await;
    let page = read(&locks).open(&format!("/key?k={}", hex("pool"))).await;
    assert_eq!(page.texts("#entries h2"), ["Semaphore on memory"]);
    assert_eq!(
        page.texts("#entries h3").len(),
        3,
        "two holders and the queue: {}",
        page.body
    );
    assert_eq!(page.texts("#entries ol li").len(), 1);
    let facts = page.texts("#entries dl div").join("; ");
    assert!(facts.contains("Permits 2 of 2 in use"), "{facts}");
    let tracks = page.texts("#tracks tr");
    assert_eq!(tracks.len(), 3, "{tracks:?}");
    let html = page.html();
    assert_eq!(all(&html, "#tracks svg[role=img][aria-label]").count(), 3);
    assert_eq!(page.links("a.act"), [] as [&str; 0], "a reader has no acts");
    waits.abort();
    let free = read(&locks).open(&format!("/key?k={}", hex("free"))).await;
    assert_eq!(free.texts("#free").len(), 1);
}

/// The words of `--json`: an object in each line.
#[tokio::test]
async fn each_list_is_json_if_that_is_wanted() {
    let locks = Locks::memory();
    let mut guards = Vec::new();
    for n in 0..101 {
        guards.push(locks.mutex(format!("k{n:03}")).lock().await.unwrap());
    }
    let mut browser = read(&locks);
    for path in [
        "/leases",
        "/key?k=6b303030",
        "/nodes",
        "/jobs",
        "/job?k=61",
        "/audit",
    ] {
        let request = browser
            .request(Method::GET, path)
            .header(ACCEPT, "application/json");
        let answer = browser
            .send(request.body(axum::body::Body::empty()).unwrap())
            .await;
        assert_eq!(answer.header("content-type"), "application/x-ndjson", "{path}");
        let lines: Vec<serde_json::Value> = answer
            .body
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        if path == "/key?k=6b303030" {
            let entry = locks.inspect().show("k000").await.unwrap().entries.remove(0);
            let mut expected = serde_json::to_value(&entry).unwrap();
            // Two looks are two moments.
            expected["remaining"] = lines[0]["remaining"].clone();
            for field in ["remaining", "since"] {
                expected["holders"][0][field] = lines[0]["holders"][0][field].clone();
            }
            assert_eq!(lines, [expected]);
        }
        if path == "/leases" {
            assert_eq!(
                (lines.len(), &lines[0]["kind"]),
                (100, &serde_json::json!(Kind::Lock.word()))
            );
            assert!(
                answer.header("link").ends_with("; rel=\"next\""),
                "{}",
                answer.header("link")
            );
        }
    }
}

#[tokio::test]
async fn what_did_not_change_is_not_sent_again() {
    let locks = Locks::memory();
    let guard = locks.mutex("a").lock().await.unwrap();
    let mut browser = read(&locks);
    let ask = async |browser: &mut Browser, tag: &str| {
        let request = browser
            .request(Method::GET, "/leases")
            .header("if-none-match", tag);
        browser
            .send(request.body(axum::body::Body::empty()).unwrap())
            .await
    };
    let tag = browser.open("/leases").await.header("etag").to_owned();
    // A proxy that compresses makes the tag weak.
    for tag in [&*tag, &format!("W/{tag}"), &format!("\"other\", W/{tag}")] {
        let same = ask(&mut browser, tag).await;
        assert_eq!((same.status.as_u16(), &*same.body), (304, ""), "{tag}");
    }
    let same = ask(&mut browser, &tag).await;
    assert_eq!(same.header("cache-control"), "no-store");
    guard.release().await.unwrap();
    let mut changed = async || {
        let answer = ask(&mut browser, &tag).await;
        (answer.status.as_u16() == 200).then_some(())
    };
    tokio::time::timeout(Duration::from_secs(20), async {
        while changed().await.is_none() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await
    .expect("the change is shown");
}

/// Each form field has a label, each reference a target, and each id stands once.
#[tokio::test]
async fn documents_are_sound() {
    let locks = Locks::memory();
    let _guard = locks.mutex("a").lock().await.unwrap();
    let mut browser = operated_by(&locks, "mia");
    let steal = browser.open("/key?k=61").await.links("a.act").remove(0);
    for path in [
        "/leases",
        "/key?k=61",
        "/nodes",
        "/jobs",
        "/job?k=61",
        "/audit",
        &format!("/{steal}"),
    ] {
        let page = browser.open(path).await;
        let html = page.html();
        let ids: Vec<_> = all(&html, "[id]")
            .map(|found| found.attr("id").unwrap().to_owned())
            .collect();
        let mut unique = ids.clone();
        unique.sort();
        unique.dedup();
        assert_eq!(unique.len(), ids.len(), "{path}: {ids:?}");
        for (selector, attribute) in [("[for]", "for"), ("[aria-labelledby]", "aria-labelledby")] {
            for found in all(&html, selector) {
                let id = found.attr(attribute).unwrap().to_owned();
                assert!(ids.contains(&id), "{path}: {attribute} {id}");
            }
        }
        for field in all(&html, "input:not([type=hidden]):not([type=checkbox]), select") {
            let id = field.attr("id").expect("an id");
            assert!(
                all(&html, &format!("label[for={id}]")).count() == 1,
                "{path}: {id}"
            );
        }
        assert_eq!(all(&html, "h1").count(), 1);
        assert_eq!(
            all(&html, "[style], style, script:not([src]), [onclick]").count(),
            0,
            "{path}"
        );
        for region in all(&html, "[data-live]") {
            let children = region.child_elements();
            assert!(
                region.attr("id").is_some() && children.into_iter().all(|child| child.attr("id").is_some()),
                "{path}"
            );
        }
    }
}

/// A key that is used for three kinds, by many readers and with a long queue.
#[tokio::test]
async fn a_crowded_key_is_shown_kind_by_kind() {
    let store = MemoryStore::new();
    let locks = Locks::builder().memory_shared(&store).unwrap();
    let readers_and_writers = locks.rw_lock("a");
    let mut readers = Vec::new();
    for _ in 0..60 {
        readers.push(readers_and_writers.read().await.unwrap());
    }
    let _permit = locks.semaphore("a", 3).acquire().await.unwrap();
    let leader = locks.election("a").campaign().await.unwrap();
    let mut waiting = Vec::new();
    for n in 0..80 {
        // Each node has one claim in the queue.
        let other = Locks::builder().memory_shared(&store).unwrap();
        waiting.push(tokio::spawn(async move { (n, other.rw_lock("a").write().await) }));
    }
    let inspection = locks.inspect();
    crate::tools::until("all wait", || async {
        let entries = inspection.show("a").await.unwrap().entries;
        let lock = entries.iter().find(|entry| entry.kind == Kind::Lock)?;
        (lock.waiter_count == 80).then_some(())
    })
    .await;
    let page = read(&locks).open("/key?k=61").await;
    let titles = page.texts("#entries h2");
    assert_eq!(
        titles,
        ["Lock on memory", "Semaphore on memory", "Election on memory"]
    );
    assert_eq!(page.texts("#entries ol li").len(), 50, "the first waiters");
    assert!(page.body.contains("and 30 more waiters"), "{}", page.body);
    waiting.iter().for_each(|waits| waits.abort());
    drop((readers, leader));
}

/// The file of styles gives these classes a colour of their own, and no text has the colour of a state.
const COLOURED: [&str; 6] = ["back", "held", "goes-on", "waited", "done", "failed"];

/// A bar differs by its place or its height, too, and says in words what it is.
#[tokio::test]
async fn no_state_is_told_by_colour_alone() {
    let css = include_str!("../../src/page.css");
    for rule in css.split('}') {
        let mut parts = rule.rsplit('{');
        let (style, selectors) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let is_known = |selector: &str| {
            COLOURED
                .iter()
                .any(|class| selector.trim() == format!(".{class}"))
        };
        assert!(
            !style.contains("fill:") || selectors.split(',').all(is_known),
            "{rule}"
        );
        let states = ["--held", "--waited", "--failed", "--done"];
        assert!(
            !states
                .iter()
                .any(|state| style.contains(&format!(" color: var({state})"))),
            "{rule}"
        );
    }
    let locks = Locks::memory();
    let semaphore = locks.semaphore("pool", 1);
    let _held = semaphore.acquire().await.unwrap();
    let waits = tokio::spawn(async move { semaphore.acquire().await });
    until("a caller waits", || async {
        let entry = locks.inspect().show("pool").await.unwrap().entries.remove(0);
        (entry.waiter_count == 1).then_some(())
    })
    .await;
    let page = read(&locks).open(&format!("/key?k={}", hex("pool"))).await;
    let html = page.html();
    for (class, height) in [("held", "80"), ("waited", "40")] {
        let row = all(&html, "#tracks tr")
            .find(|row| text(row).contains(class))
            .expect(class);
        let selector = scraper::Selector::parse(&format!("rect.{class}")).unwrap();
        let bar = row.select(&selector).next().expect(class);
        assert_eq!(bar.attr("height"), Some(height));
    }
    waits.abort();

    let page = page_of_three_runs(&locks).await;
    let html = page.html();
    for (class, word) in [("done", "done"), ("failed", "failed"), ("goes-on", "running")] {
        let bar = all(&html, &format!("#picture rect.{class}")).next().expect(class);
        let number = |name| bar.attr(name).unwrap().parse::<u32>().unwrap();
        assert!(text(&bar).starts_with(word), "{}", text(&bar));
        assert_eq!(
            number("y") < 100,
            class != "failed",
            "failed runs are below the line"
        );
        assert_eq!(
            number("x") + number("width") == 1000,
            class == "goes-on",
            "{}",
            bar.html()
        );
        assert!(page.texts("#history tr").iter().any(|row| row.contains(word)));
    }
}

/// Lets a job run well and fail, and shows it while it runs a third time.
async fn page_of_three_runs(locks: &Locks) -> crate::tools::Answer {
    let scheduler = JobScheduler::new().await.unwrap();
    let count = std::sync::atomic::AtomicU32::new(0);
    let job = locks.cron("reconcile", "0 0 0 1 1 *").run(move |_| {
        let number = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        async move {
            match number {
                0 => Ok(()),
                1 => Err("no rates"),
                _ => std::future::pending().await,
            }
        }
    });
    locks.add_job(&scheduler, job.unwrap()).await.unwrap();
    scheduler.start().await.unwrap();
    let jobs = locks.jobs();
    until("the job is known", || async {
        jobs.show("reconcile").await.unwrap()?.plan.map(drop)
    })
    .await;
    for (is_over, word) in [(true, "done"), (true, "failed"), (false, "running")] {
        jobs.trigger("reconcile", None, "mia", "INC-7").await.unwrap();
        until(word, || async {
            let job = jobs.show("reconcile").await.unwrap()?;
            (job.latest?.state.word() == word && job.current.is_none() == is_over).then_some(())
        })
        .await;
    }
    let page = read(locks).open(&format!("/job?k={}", hex("reconcile"))).await;
    drop(scheduler);
    page
}
