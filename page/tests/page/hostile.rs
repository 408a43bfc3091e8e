//! Names that browsers take for commands. They are shown as text, and links lead to that very key.

use tenure::Locks;
use tenure_page::text::shown;

use crate::tools::{all, hex, operated_by};

fn names() -> Vec<Vec<u8>> {
    let mut names: Vec<Vec<u8>> = [
        "<script>alert(1)</script>",
        "\"><img src=x onerror=alert(1)>",
        "' onmouseover='alert(1)",
        "javascript:alert(1)",
        "two\nlines\r\t",
        "NUL\0",
        "\u{202e}evil\u{2066}",
        "{{7*7}}${7*7}<%= 7 %>",
        "%00%0a%3Cscript%3E",
        "../../etc/passwd",
        "a&b=c;d#e?f",
        "</title></textarea></style><!--",
        "back\\slash",
        " ",
    ]
    .map(Vec::from)
    .into();
    names.push(b"\xff\xfe\xc3(".to_vec());
    // The longest key.
    names.push(vec![b'<'; 512]);
    names
}

#[tokio::test]
async fn no_name_is_more_than_text() {
    let names = names();
    for name in &names {
        let text = String::from_utf8_lossy(name).into_owned();
        let locks = Locks::memory();
        let guard = locks.mutex(&name[..]).lock().await.unwrap();
        guard.note(&*text);
        let mut browser = operated_by(&locks, &text);
        let mut pages = Vec::new();
        for path in ["/leases", "/nodes", "/jobs", "/audit"] {
            pages.push(browser.open(path).await);
        }
        let link = pages[0].links("#leases tr a").remove(0);
        assert_eq!(link, format!("key?k={}", hex(name)));
        let page = browser.open(&format!("/{link}")).await;
        assert_eq!(page.texts("h1"), [squeezed(&shown(name))]);
        let steal = format!("/{}", page.links("a.act").remove(0));
        pages.push(page);
        let (to, mut fields) = browser.form(&steal).await;
        fields.insert("why".to_owned(), format!("{text}!").repeat(20));
        fields.insert("now".to_owned(), "yes".to_owned());
        let answer = browser.post(&to, &fields).await;
        pages.push(browser.follow(&answer).await);
        pages.push(browser.open("/audit").await);
        pages.push(browser.get(&format!("/job?k={}", hex(name))).await);
        pages.push(
            browser
                .open(&format!("/leases?q={0}&node={0}", percent(&text)))
                .await,
        );
        let audit = locks.inspect().audit().await.unwrap();
        assert_eq!(audit.len(), 1, "{audit:?}");
        for page in pages {
            let html = page.html();
            assert_eq!(all(&html, "script").count(), 1, "{text:?}: {}", page.body);
            assert_eq!(
                all(&html, "img, style, textarea, [onerror], [onmouseover]").count(),
                0,
                "{text:?}"
            );
            for link in [page.links("a"), page.links("link")].concat() {
                assert!(
                    !link.contains(':') && !link.starts_with('/') && !link.contains(".."),
                    "{link}"
                );
            }
            assert!(
                page.body.chars().all(|c| !c.is_control() && c != '\u{202e}'),
                "{text:?}"
            );
        }
    }
}

fn percent(text: &str) -> String {
    form_urlencoded::byte_serialize(text.as_bytes()).collect()
}

fn squeezed(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[tokio::test]
async fn parameters_that_make_no_sense_are_refused_or_ignored() {
    let locks = Locks::memory();
    let _guard = locks.mutex("a").lock().await.unwrap();
    let mut browser = operated_by(&locks, "mia");
    for path in [
        "/key?k=6",
        "/key?k=zz",
        "/job?k=%00",
        "/steal?k=",
        "/steal?k=61&kind=none&seen=1",
        "/steal?k=61&kind=lock&seen=18446744073709551616",
        "/cancel?k=61&tick=99999999999999999999",
        "/trigger?k=61&tick=-1",
        "/job?k=61&days=99999999999999999999",
        "/leases?skip=18446744073709551615&from=0-99999999999999999999",
        "/leases?from=%00&kind=%ff&node=%ff",
        "/leases?q=%5C%5Cx%5Cxzz",
    ] {
        let answer = browser.get(path).await;
        assert!(!answer.status.is_server_error(), "{path}: {}", answer.status);
        answer.html();
    }
}
