//! Clients that time out, and try again until they are told that it is done.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{Request, Response, StatusCode};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::{Client as Http, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use tokio::time::{sleep, timeout};

use crate::help::ms;
use crate::requests::ledger::ACCOUNTS;
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
    accepted: u64,
    retried: u64,
}

impl Tally {
    fn count(&self, what: &str) {
        *self.0.lock().unwrap().answers.entry(what.to_owned()).or_default() += 1;
    }

    pub fn answers(&self) -> BTreeMap<String, u64> {
        self.0.lock().unwrap().answers.clone()
    }

    /// Answers that no table has, and requests that were not answered at all.
    pub fn undocumented(&self) -> Vec<String> {
        self.0.lock().unwrap().undocumented.clone()
    }

    pub fn accepted(&self) -> u64 {
        self.0.lock().unwrap().accepted
    }

    /// How many were accepted that had to try more than once.
    pub fn retried(&self) -> u64 {
        self.0.lock().unwrap().retried
    }
}

/// One, with connections of its own.
pub struct Client {
    n: usize,
    http: Http<HttpConnector, Empty<Bytes>>,
    /// Where it sends its attempts, in turn.
    to: Vec<SocketAddr>,
    tally: Tally,
}

impl Client {
    /// Every other one speaks HTTP/2; every third one goes straight to the replicas.
    pub fn new(n: usize, proxy: SocketAddr, replicas: [SocketAddr; 2], tally: Tally) -> Client {
        let http = Http::builder(TokioExecutor::new())
            .http2_only(n.is_multiple_of(2))
            .build_http();
        let to = if n.is_multiple_of(3) {
            replicas.to_vec()
        } else {
            vec![proxy]
        };
        Client { n, http, to, tally }
    }

    /// One after the other until it is told to stop. Answers which were accepted: all that it began.
    pub async fn withdraws(self, stop: Arc<AtomicBool>) -> Vec<String> {
        let mut accepted = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let key = format!("{}-{}", self.n, accepted.len());
            let account = fastrand::u64(0..ACCOUNTS);
            let mut tries = 1;
            while !self.is_done(account, &key, tries).await {
                tries += 1;
                // They are told to come back in seconds, and are in a hurry.
                sleep(ms(fastrand::u64(1..40))).await;
            }
            let mut seen = self.tally.0.lock().unwrap();
            seen.accepted += 1;
            seen.retried += u64::from(tries > 1);
            accepted.push(key);
        }
        accepted
    }

    async fn is_done(&self, account: u64, key: &str, tries: usize) -> bool {
        let spelling = match fastrand::u8(0..3) {
            0 => format!("{account}"),
            1 => format!("0{account}"),
            _ => format!("+{account}"),
        };
        let to = self.to[(self.n + tries) % self.to.len()];
        let request = Request::post(format!("http://{to}/accounts/{spelling}/withdraw"))
            .header("idempotency-key", key)
            .body(Empty::new())
            .unwrap();
        let patience = if self.n % 5 == 4 {
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
            Ok(Some(answer)) => self.judge(&answer),
            Ok(None) => {
                self.tally.count("connection failed");
                false
            }
            Err(_) if patience == HANGS => {
                let hangs = format!("{key} to {to} was not answered in {HANGS:?}");
                self.tally.0.lock().unwrap().undocumented.push(hangs);
                false
            }
            Err(_) => {
                self.tally.count("timed out");
                false
            }
        }
    }

    /// As the manual of the middleware has it.
    fn judge(&self, answer: &Response<Bytes>) -> bool {
        let (status, headers) = (answer.status(), answer.headers());
        let body = String::from_utf8_lossy(answer.body());
        if status == StatusCode::OK && body.ends_with(" left") {
            self.tally.count("200");
            return true;
        }
        if status == StatusCode::BAD_GATEWAY && body == BAD_GATEWAY {
            self.tally.count("502 of the proxy");
            return false;
        }
        let is_problem = headers
            .get(CONTENT_TYPE)
            .is_some_and(|kind| kind == "application/problem+json");
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
        if is_problem && is_documented {
            self.tally.count(&format!("{} {outcome}", status.as_u16()));
        } else {
            let what = format!("{status} {headers:?} {body}");
            self.tally.0.lock().unwrap().undocumented.push(what);
        }
        false
    }
}
