//! Each path, for each access, by each way in.

use std::collections::BTreeMap;

use axum::Router;
use axum::body::Body;
use http::header::{CONTENT_TYPE, LOCATION};
use http::{Method, StatusCode};
use tenure::Locks;
use tenure_page::{Access, paths, router};

use crate::tools::{Answer, Browser, FORM, encoded, hex, operated_by};

/// What a path is for.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Use {
    /// It leads to a view.
    Start,
    /// A view or a file.
    Read,
    /// A form and its act.
    Act,
}

/// Each path and what it is for.
const TABLE: [(&str, Use); 15] = [
    ("/", Use::Start),
    ("/leases", Use::Read),
    ("/key", Use::Read),
    ("/nodes", Use::Read),
    ("/jobs", Use::Read),
    ("/job", Use::Read),
    ("/audit", Use::Read),
    ("/steal", Use::Act),
    ("/pause", Use::Act),
    ("/resume", Use::Act),
    ("/trigger", Use::Act),
    ("/cancel", Use::Act),
    ("/page.css", Use::Read),
    ("/page.js", Use::Read),
    ("/icon.svg", Use::Read),
];

const MIA: &str = "mia";

fn accesses() -> [Access; 3] {
    [Access::None, Access::Read, Access::Operate(MIA.to_owned())]
}

/// How a form is sent.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Sent {
    Well,
    /// As an old browser, or one without TLS, sends it.
    ByOrigin,
    FromElsewhere,
    FromOtherSite,
    FromNowhere,
    WithoutToken,
    WithTokenOfOther,
    WithTokenOfOtherAct,
}

const SENT: [Sent; 8] = [
    Sent::Well,
    Sent::ByOrigin,
    Sent::FromElsewhere,
    Sent::FromOtherSite,
    Sent::FromNowhere,
    Sent::WithoutToken,
    Sent::WithTokenOfOther,
    Sent::WithTokenOfOtherAct,
];

/// Checks what each answer has.
fn check_headers(answer: &Answer, what: &str) {
    let policy = answer.header("content-security-policy");
    assert!(policy.starts_with("default-src 'none'; "), "{what}: {policy}");
    assert!(
        policy.contains("frame-ancestors 'none'") && !policy.contains("unsafe"),
        "{what}: {policy}"
    );
    for (name, value) in [
        ("x-content-type-options", "nosniff"),
        ("cache-control", "no-store"),
        ("referrer-policy", "no-referrer"),
    ] {
        assert_eq!(answer.header(name), value, "{what}");
    }
}

/// Returns locks in which each form has something to show, and the parameters of the forms.
async fn scene() -> (Locks, tenure::Guard, String) {
    let locks = Locks::memory();
    let job = locks
        .cron("a", "0 0 0 1 1 *")
        .run(|_| std::future::pending::<()>())
        .unwrap();
    let scheduler = tokio_cron_scheduler::JobScheduler::new().await.unwrap();
    locks.add_job(&scheduler, job).await.unwrap();
    scheduler.start().await.unwrap();
    let jobs = locks.jobs();
    crate::tools::until("the job is known", || async { jobs.show("a").await.unwrap() }).await;
    let guard = locks.mutex("a").lock().await.unwrap();
    let entry = locks.inspect().show("a").await.unwrap().entries.remove(0);
    let number = entry.holders[0].number.unwrap();
    jobs.trigger("a", None, "ann", "INC-1").await.unwrap();
    let wanted = jobs.show("a").await.unwrap().unwrap();
    let tick = wanted.current.map_or(String::new(), |tick| {
        let ms =
            |time: std::time::SystemTime| time.duration_since(std::time::UNIX_EPOCH).unwrap().as_millis();
        let since = tick.since.map_or(String::new(), |since| ms(since).to_string());
        format!("&tick={}&triggered=yes&since={since}", ms(tick.tick))
    });
    (
        locks,
        guard,
        format!("?k={}&kind=lock&seen={number}{tick}", hex("a")),
    )
}

#[test]
fn each_path_has_its_row() {
    let table: Vec<_> = TABLE.iter().map(|(path, _)| *path).collect();
    assert_eq!(
        paths().collect::<Vec<_>>(),
        table,
        "a new path needs a row in this table"
    );
}

#[tokio::test]
async fn each_path_gives_what_the_access_allows() {
    let (locks, _guard, query) = scene().await;
    for access in accesses() {
        let granted = access.clone();
        let mut browser = Browser::new(router(&locks, move |_| granted.clone()));
        for (path, used) in TABLE {
            let answer = browser.get(&format!("{path}{query}")).await;
            let expected = match (&access, used) {
                (Access::None, _) | (Access::Read, Use::Act) => StatusCode::FORBIDDEN,
                (_, Use::Start) => StatusCode::SEE_OTHER,
                _ => StatusCode::OK,
            };
            let what = format!("GET {path} with {access:?}");
            assert_eq!(answer.status, expected, "{what}: {}", answer.body);
            check_headers(&answer, &what);
            if answer.header("content-type").starts_with("text/html") {
                answer.html();
            }
        }
        for (path, expected) in [
            ("/none", StatusCode::NOT_FOUND),
            ("/leases/", StatusCode::NOT_FOUND),
        ] {
            let answer = browser.get(path).await;
            let expected = if access == Access::None {
                StatusCode::FORBIDDEN
            } else {
                expected
            };
            assert_eq!(answer.status, expected, "{path} with {access:?}");
            check_headers(&answer, path);
        }
    }
}

/// Sends the form of a path in that way, and returns the answer.
async fn send(app: &Router, (path, used, query): (&str, Use, &str), sent: Sent) -> Answer {
    let mut browser = Browser::new(app.clone());
    let of = if sent == Sent::WithTokenOfOtherAct {
        "/steal"
    } else {
        path
    };
    let shown = browser.get(&format!("{of}{query}")).await;
    let mut fields = match shown.status {
        StatusCode::OK if used == Use::Act => browser.form(&format!("{of}{query}")).await.1,
        _ => BTreeMap::new(),
    };
    match sent {
        Sent::WithoutToken => drop(fields.remove("token")),
        // The token of another browser, which has other cookies.
        Sent::WithTokenOfOther => {
            let mut other = Browser::new(app.clone());
            if !fields.is_empty() {
                fields = other.form(&format!("{path}{query}")).await.1;
            }
        }
        _ => {}
    }
    let request = browser
        .request(Method::POST, &format!("{path}{query}"))
        .header(CONTENT_TYPE, FORM);
    let request = match sent {
        Sent::ByOrigin => request.header("origin", "http://page.example"),
        Sent::FromElsewhere => request.header("origin", "http://evil.example"),
        Sent::FromOtherSite => {
            let request = request.header("origin", "http://page.example");
            request.header("sec-fetch-site", "cross-site")
        }
        Sent::FromNowhere => request,
        _ => request.header("sec-fetch-site", "same-origin"),
    };
    browser.send(request.body(encoded(&fields)).unwrap()).await
}

/// Returns what a form that is sent in that way gets.
fn expected(access: &Access, (path, used): (&str, Use), sent: Sent) -> StatusCode {
    let is_from_page = !matches!(
        sent,
        Sent::FromElsewhere | Sent::FromOtherSite | Sent::FromNowhere
    );
    let is_of_act = matches!(sent, Sent::Well | Sent::ByOrigin);
    let is_of_act = is_of_act || (sent == Sent::WithTokenOfOtherAct && path == "/steal");
    match (access, used) {
        (Access::None | Access::Read, _) => StatusCode::FORBIDDEN,
        _ if !is_from_page => StatusCode::FORBIDDEN,
        (_, Use::Act) if is_of_act => StatusCode::SEE_OTHER,
        (_, Use::Act) => StatusCode::FORBIDDEN,
        _ => StatusCode::METHOD_NOT_ALLOWED,
    }
}

/// Sends the form of a path in that way, and checks the answer.
async fn check_form(locks: &Locks, query: &str, (path, used): (&str, Use), (access, sent): (Access, Sent)) {
    let expected = expected(&access, (path, used), sent);
    let what = format!("POST {path} with {access:?}, {sent:?}");
    let app = router(locks, move |_| access.clone());
    let answer = send(&app, (path, used, query), sent).await;
    assert_eq!(answer.status, expected, "{what}: {}", answer.body);
    check_headers(&answer, &what);
}

#[tokio::test]
async fn a_form_acts_only_for_an_operator_from_the_page_with_its_token() {
    let (locks, _guard, query) = scene().await;
    let mut acting = Vec::new();
    for access in accesses() {
        for of in TABLE {
            for sent in SENT {
                let access = access.clone();
                if expected(&access, of, sent) == StatusCode::SEE_OTHER {
                    acting.push(tokio::spawn(async move {
                        let (locks, _guard, query) = scene().await;
                        check_form(&locks, &query, of, (access, sent)).await;
                    }));
                } else {
                    check_form(&locks, &query, of, (access, sent)).await;
                }
            }
        }
    }
    for acts in acting {
        acts.await.unwrap();
    }
    let audit = locks.inspect().audit().await.unwrap();
    assert!(
        audit.iter().all(|act| act.by == "ann"),
        "a refused form acted: {audit:?}"
    );
}

#[tokio::test]
async fn a_form_that_is_too_large_is_refused_with_the_headers_of_each_answer() {
    let locks = Locks::memory();
    let browser = &mut operated_by(&locks, MIA);
    let request = browser
        .request(Method::POST, "/pause?k=61")
        .header("sec-fetch-site", "same-origin");
    let answer = browser
        .send(request.body(Body::from(vec![b'a'; 70_000])).unwrap())
        .await;
    assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE);
    check_headers(&answer, "a large form");
}

#[tokio::test]
async fn a_token_is_of_one_operator() {
    let locks = Locks::memory();
    let guard = locks.mutex("a").lock().await.unwrap();
    let mut mia = operated_by(&locks, MIA);
    let link = mia
        .open(&format!("/key?k={}", hex("a")))
        .await
        .links("a.act")
        .remove(0);
    let (to, fields) = mia.form(&format!("/{link}")).await;
    let mut bob = operated_by(&locks, "bob");
    bob.cookies = mia.cookies.clone();
    assert_eq!(bob.post(&to, &fields).await.status, StatusCode::FORBIDDEN);
    assert!(guard.is_held());
}

#[tokio::test]
async fn links_are_relative_under_any_path() {
    let locks = Locks::memory();
    let as_service = |path: &str| Router::new().nest_service(path, router(&locks, |_| Access::Read));
    let nested = |path: &str| Router::new().nest(path, router(&locks, |_| Access::Read));
    for (app, path, target) in [
        (router(&locks, |_| Access::Read), "/", "leases"),
        (nested("/ops"), "/ops", "./ops/leases"),
        (as_service("/ops"), "/ops", "./ops/leases"),
        (as_service("/ops"), "/ops/", "leases"),
        (nested("/a/b:c"), "/a/b:c", "./b:c/leases"),
    ] {
        let mut browser = Browser::new(app);
        let answer = browser.get(path).await;
        assert_eq!(
            (answer.status, answer.header(LOCATION.as_str())),
            (StatusCode::SEE_OTHER, target),
            "{path}"
        );
        let target = target.rsplit('/').next().unwrap();
        let base = if path.ends_with('/') {
            path.to_owned()
        } else {
            format!("{path}/")
        };
        let page = browser.open(&format!("{base}{target}")).await;
        for link in [page.links("a[href]"), page.links("link[href]")].concat() {
            let is_relative = !link.starts_with('/') && !link.contains("..") && !link.contains(':');
            assert!(is_relative, "{link}");
            if !link.starts_with('#') {
                browser.open(&format!("{base}{link}")).await;
            }
        }
    }
}
