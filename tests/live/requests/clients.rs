//! Clients that time out, and try again until they are told that it is done.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{Request, Response, StatusCode};
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper_util::client::legacy::{Client as Http, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use tokio::time::{sleep, timeout};

use crate::help::ms;
use crate::requests::orders::Order;
use crate::requests::repeater::BAD_GATEWAY;

/// Longer than two waits at each of the attempts of the proxy. Only a request that hangs is not answered by then.
const HANGS: Duration = Duration::from_secs(25);

/// What all of them saw.
#[derive(Debug, Clone, Default)]
pub struct Tally(Arc<Mutex<Seen>>);

#[derive(Debug, Default)]
struct Seen {
    answers: BTreeMap<String, u64>,
    undocumented: Vec<String>,
    retried: u64,
}

impl Tally {
    pub fn count(&self, what: &str) {
        *self.0.lock().unwrap().answers.entry(what.to_owned()).or_default() += 1;
    }

    fn undocumented_answer(&self, answer: &Response<Bytes>) {
        let (status, headers) = (answer.status(), answer.headers());
        let what = format!("{status} {headers:?} {}", String::from_utf8_lossy(answer.body()));
        self.0.lock().unwrap().undocumented.push(what);
    }

    pub fn answers(&self) -> BTreeMap<String, u64> {
        self.0.lock().unwrap().answers.clone()
    }

    /// Answers that no table has, and requests that were not answered at all.
    pub fn undocumented(&self) -> Vec<String> {
        self.0.lock().unwrap().undocumented.clone()
    }

    /// How many were accepted that had to try more than once.
    pub fn retried(&self) -> u64 {
        self.0.lock().unwrap().retried
    }
}

/// One, with connections of its own.
pub struct Client {
    n: usize,
    http: Http<HttpConnector, Body>,
    /// Where it sends its attempts, in turn.
    to: Vec<SocketAddr>,
    tally: Tally,
    /// The storm is over: it ends its order, and waits for the answer.
    stop: Arc<AtomicBool>,
}

impl Client {
    /// Every other one speaks HTTP/2; every third one goes straight to the replicas.
    pub fn new(
        n: usize,
        proxy: SocketAddr,
        replicas: [SocketAddr; 2],
        tally: Tally,
        stop: Arc<AtomicBool>,
    ) -> Client {
        let http = Http::builder(TokioExecutor::new())
            .http2_only(n.is_multiple_of(2))
            .build_http();
        let to = if n.is_multiple_of(3) {
            replicas.to_vec()
        } else {
            vec![proxy]
        };
        Client {
            n,
            http,
            to,
            tally,
            stop,
        }
    }

    /// One after the other until it is told to stop. Answers which were accepted: all that it began.
    pub async fn sends_orders(self) -> Vec<(String, Order)> {
        let mut accepted = Vec::new();
        while !self.stop.load(Ordering::Relaxed) {
            let key = format!("{}-{}", self.n, accepted.len());
            if fastrand::u8(0..8) == 0 {
                self.sends_too_much(&format!("{key}-too-large")).await;
            }
            let order = Order::draw();
            let mut tries = 1;
            while !self.is_done(order, &key, tries).await {
                tries += 1;
                // They are told to come back in seconds, and are in a hurry.
                sleep(ms(fastrand::u64(1..40))).await;
            }
            self.tally.0.lock().unwrap().retried += u64::from(tries > 1);
            accepted.push((key, order));
        }
        accepted
    }

    async fn is_done(&self, order: Order, key: &str, tries: usize) -> bool {
        let to = self.to[(self.n + tries) % self.to.len()];
        let request = order.request(to, key, &self.tally);
        let answer = self.exchange(request, &format!("{key} to {to}")).await;
        answer.is_some_and(|answer| self.judge(&answer))
    }

    /// It must not be done.
    async fn sends_too_much(&self, key: &str) {
        let to = self.to[self.n % self.to.len()];
        let request = Order::request_too_large(to, key, &self.tally);
        let answer = self.exchange(request, &format!("{key} to {to}")).await;
        match answer {
            Some(answer) if answer.status() == StatusCode::PAYLOAD_TOO_LARGE && is_problem(&answer) => {
                self.tally.count("413");
            }
            Some(answer) if is_bad_gateway(&answer) => self.tally.count("502 of the proxy"),
            Some(answer) => self.tally.undocumented_answer(&answer),
            None => {}
        }
    }

    /// Answers nothing if it was not answered in time.
    async fn exchange(&self, request: Request<Body>, what: &str) -> Option<Response<Bytes>> {
        let patience = if self.n % 5 == 4 || self.stop.load(Ordering::Relaxed) {
            HANGS
        } else {
            ms(fastrand::u64(5..600))
        };
        let answer = async {
            let (parts, body) = self.http.request(request).await.ok()?.into_parts();
            let body = body.collect().await.ok()?.to_bytes();
            Some(Response::from_parts(parts, body))
        };
        match timeout(patience, answer).await {
            Ok(Some(answer)) => return Some(answer),
            Ok(None) => self.tally.count("connection failed"),
            Err(_) if patience == HANGS => {
                let hangs = format!("{what} was not answered in {HANGS:?}");
                self.tally.0.lock().unwrap().undocumented.push(hangs);
            }
            Err(_) => self.tally.count("timed out"),
        }
        None
    }

    /// As the manual of the middleware has it.
    fn judge(&self, answer: &Response<Bytes>) -> bool {
        let (status, headers) = (answer.status(), answer.headers());
        let body = String::from_utf8_lossy(answer.body());
        if status == StatusCode::OK && body.ends_with(" left") {
            self.tally.count("200");
            return true;
        }
        if is_bad_gateway(answer) {
            self.tally.count("502 of the proxy");
            return false;
        }
        let outcome = body
            .split_once("#variant.")
            .and_then(|(_, rest)| rest.split_once('"'));
        let outcome = outcome.map_or("", |(outcome, _)| outcome);
        let is_documented = match (status.as_u16(), headers.contains_key(RETRY_AFTER)) {
            (429, true) => matches!(outcome, "WaitedTooLong" | "QueueFull"),
            (503, true) => matches!(outcome, "StoreFailed" | "Closed" | "Lost"),
            (500, false) => outcome == "OutcomeUnknown",
            _ => false,
        };
        if is_problem(answer) && is_documented {
            self.tally.count(&format!("{} {outcome}", status.as_u16()));
        } else {
            self.tally.undocumented_answer(answer);
        }
        false
    }
}

fn is_problem(answer: &Response<Bytes>) -> bool {
    let kind = answer.headers().get(CONTENT_TYPE);
    kind.is_some_and(|kind| kind == "application/problem+json")
}

fn is_bad_gateway(answer: &Response<Bytes>) -> bool {
    answer.status() == StatusCode::BAD_GATEWAY && answer.body() == BAD_GATEWAY
}
