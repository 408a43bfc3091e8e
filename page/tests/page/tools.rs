//! What the tests share: a browser without a screen, and conditions.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::header::{CONTENT_TYPE, COOKIE, HOST, LOCATION, SET_COOKIE};
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::BodyExt;
use scraper::{ElementRef, Html, Selector};
use tenure::Locks;
use tenure_page::{Access, router};
use tower::ServiceExt;

/// Longer than any step takes. Only a failed test waits for it.
const PATIENCE: Duration = Duration::from_secs(20);

/// An answer of the page.
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: String,
}

impl Answer {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// Returns the document. A parser finds no error in it.
    pub fn html(&self) -> Html {
        let html = Html::parse_document(&self.body);
        assert!(html.errors.is_empty(), "{:?} in {}", html.errors, self.body);
        html
    }

    /// Returns the text of what the selector finds, each in one line.
    pub fn texts(&self, selector: &str) -> Vec<String> {
        let html = self.html();
        all(&html, selector).map(|found| text(&found)).collect()
    }

    /// Returns the targets of the links that the selector finds.
    pub fn links(&self, selector: &str) -> Vec<String> {
        let html = self.html();
        let links = all(&html, selector).filter_map(|link| link.attr("href").map(str::to_owned));
        links.collect()
    }
}

pub fn all<'a>(html: &'a Html, selector: &str) -> impl Iterator<Item = ElementRef<'a>> {
    let selector = Selector::parse(selector).expect("a selector");
    html.select(&selector).collect::<Vec<_>>().into_iter()
}

pub fn text(element: &ElementRef<'_>) -> String {
    let parts = element.text().flat_map(str::split_whitespace);
    parts.collect::<Vec<_>>().join(" ")
}

/// The page of these locks for an operator with this name.
pub fn operated_by(locks: &Locks, name: &str) -> Browser {
    let name = name.to_owned();
    Browser::new(router(locks, move |_| Access::Operate(name.clone())))
}

/// The page of these locks for a reader.
pub fn read(locks: &Locks) -> Browser {
    Browser::new(router(locks, |_| Access::Read))
}

/// A browser: it keeps cookies, and sends what browsers send.
pub struct Browser {
    app: Router,
    pub cookies: BTreeMap<String, String>,
}

impl Browser {
    pub fn new(app: Router) -> Browser {
        Browser {
            app,
            cookies: BTreeMap::new(),
        }
    }

    pub fn request(&self, method: Method, path: &str) -> http::request::Builder {
        let cookies: Vec<_> = self
            .cookies
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, "page.example");
        request.header(COOKIE, cookies.join("; "))
    }

    pub async fn send(&mut self, request: Request<Body>) -> Answer {
        let response = self.app.clone().oneshot(request).await.expect("an answer");
        let (parts, body) = response.into_parts();
        for cookie in parts.headers.get_all(SET_COOKIE) {
            let cookie = cookie.to_str().unwrap();
            assert!(cookie.contains("; HttpOnly; SameSite=Strict"), "{cookie}");
            let (name, value) = cookie.split(';').next().unwrap().split_once('=').unwrap();
            self.cookies.insert(name.to_owned(), value.to_owned());
        }
        let body = body.collect().await.expect("a body").to_bytes();
        Answer {
            status: parts.status,
            headers: parts.headers,
            body: String::from_utf8(body.to_vec()).expect("UTF-8"),
        }
    }

    pub async fn get(&mut self, path: &str) -> Answer {
        let request = self.request(Method::GET, path).body(Body::empty()).unwrap();
        self.send(request).await
    }

    /// Returns a page that is there.
    pub async fn open(&mut self, path: &str) -> Answer {
        let answer = self.get(path).await;
        assert_eq!(answer.status, StatusCode::OK, "{path}: {}", answer.body);
        answer
    }

    pub async fn post(&mut self, path: &str, fields: &BTreeMap<String, String>) -> Answer {
        let request = self
            .request(Method::POST, path)
            .header("sec-fetch-site", "same-origin");
        self.send(request.header(CONTENT_TYPE, FORM).body(encoded(fields)).unwrap())
            .await
    }

    /// Opens a form, and returns where it is sent to and its fields.
    pub async fn form(&mut self, path: &str) -> (String, BTreeMap<String, String>) {
        let answer = self.open(path).await;
        let html = answer.html();
        let form = all(&html, "form[method=post]").next().expect("a form");
        let inputs = all(&html, "form[method=post] input:not([type=checkbox])");
        let fields = inputs.map(|input| {
            let attribute = |name| input.attr(name).unwrap_or_default().to_owned();
            (attribute("name"), attribute("value"))
        });
        let mut fields: BTreeMap<_, _> = fields.collect();
        fields.insert("why".to_owned(), "INC-7".to_owned());
        (format!("/{}", form.attr("action").unwrap()), fields)
    }

    /// Confirms a form, follows to what became of it, and returns what that says.
    pub async fn confirm(&mut self, path: &str, more: &[(&str, &str)]) -> Vec<String> {
        let (to, mut fields) = self.form(path).await;
        fields.extend(
            more.iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
        );
        let answer = self.post(&to, &fields).await;
        self.follow(&answer).await.texts("#steps p")
    }

    pub async fn follow(&mut self, answer: &Answer) -> Answer {
        assert_eq!(answer.status, StatusCode::SEE_OTHER, "{}", answer.body);
        let to = answer
            .headers
            .get(LOCATION)
            .expect("a target")
            .to_str()
            .unwrap()
            .to_owned();
        self.open(&format!("/{to}")).await
    }
}

pub const FORM: &str = "application/x-www-form-urlencoded";

pub fn encoded(fields: &BTreeMap<String, String>) -> Body {
    let mut form = form_urlencoded::Serializer::new(String::new());
    form.extend_pairs(fields);
    Body::from(form.finish())
}

pub fn hex(bytes: impl AsRef<[u8]>) -> String {
    tenure_page::text::hex(bytes.as_ref())
}

/// Waits until there is a value.
pub async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut look: impl FnMut() -> F) -> T {
    let looks = async {
        loop {
            match look().await {
                Some(found) => return found,
                None => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    };
    tokio::time::timeout(PATIENCE, looks)
        .await
        .unwrap_or_else(|_| panic!("timed out waiting for: {what}"))
}
