//! What clients order, and how an order travels.

use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use axum::http::Request;
use axum::http::header::CONTENT_TYPE;
use bytes::Bytes;
use http_body::Frame;
use tokio::time::Sleep;

use crate::help::ms;
use crate::requests::clients::Tally;
use crate::requests::ledger::ACCOUNTS;

/// The JSON of a transfer: the account that pays, the account that is paid, and the amount.
pub type Transfer = (u64, u64, i64);
/// The most bytes that a replica reads of a transfer.
pub const MAX_TRANSFER: usize = 64;

const WITHDRAWN: i64 = 10;

#[derive(Debug, Clone, Copy)]
pub enum Order {
    Withdrawal { account: u64 },
    Transfer { from: u64, to: u64, amount: i64 },
}

impl Order {
    /// A third of them are transfers, between any two accounts.
    pub fn draw() -> Order {
        let account = fastrand::u64(0..ACCOUNTS);
        if fastrand::u8(0..3) > 0 {
            return Order::Withdrawal { account };
        }
        Order::Transfer {
            from: account,
            to: (account + fastrand::u64(1..ACCOUNTS)) % ACCOUNTS,
            amount: fastrand::i64(1..=20),
        }
    }

    /// Returns the accounts, and what each of them gets. The account that pays is the first.
    pub fn changes(self) -> Vec<(u64, i64)> {
        match self {
            Order::Withdrawal { account } => vec![(account, -WITHDRAWN)],
            Order::Transfer { from, to, amount } => vec![(from, -amount), (to, amount)],
        }
    }

    /// Returns a request in one of its spellings.
    pub fn request(self, to: SocketAddr, key: &str, tally: &Tally) -> Request<Body> {
        match self {
            Order::Withdrawal { account } => {
                let sign = ["", "0", "+"][fastrand::usize(0..3)];
                Request::post(format!("http://{to}/accounts/{sign}{account}/withdraw"))
                    .header("idempotency-key", key)
                    .body(Body::empty())
                    .unwrap()
            }
            Order::Transfer {
                from,
                to: payee,
                amount,
            } => {
                let space = ["", " ", "\n"][fastrand::usize(0..3)];
                let json = format!("[{space}{from},{space}{payee},{space}{amount}]");
                transfer(to, key, json, tally)
            }
        }
    }

    /// Returns the request of a transfer with more bytes than a replica reads.
    pub fn request_too_large(to: SocketAddr, key: &str, tally: &Tally) -> Request<Body> {
        transfer(to, key, format!("[0,1,1]{:MAX_TRANSFER$}", ""), tally)
    }
}

fn transfer(to: SocketAddr, key: &str, json: String, tally: &Tally) -> Request<Body> {
    let body = match fastrand::u8(0..4) {
        0 => Body::new(SlowBody::new(json.into(), tally.clone())),
        _ => Body::from(json),
    };
    Request::post(format!("http://{to}/transfers"))
        .header("idempotency-key", key)
        .header(CONTENT_TYPE, "application/json")
        .body(body)
        .unwrap()
}

/// A body in two parts, with a pause between them that some clients do not wait for.
struct SlowBody {
    /// What is to be sent, the last part first.
    parts: Vec<Bytes>,
    pause: Pin<Box<Sleep>>,
    tally: Tally,
}

impl SlowBody {
    fn new(mut json: Bytes, tally: Tally) -> SlowBody {
        let first = json.split_to(3);
        SlowBody {
            parts: vec![json, first],
            pause: Box::pin(tokio::time::sleep(ms(fastrand::u64(1..100)))),
            tally,
        }
    }
}

impl http_body::Body for SlowBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if self.parts.len() == 1 {
            ready!(self.pause.as_mut().poll(cx));
        }
        Poll::Ready(self.parts.pop().map(|part| Ok(Frame::data(part))))
    }
}

impl Drop for SlowBody {
    fn drop(&mut self) {
        if self.parts.len() == 1 {
            self.tally.count("half of a body");
        }
    }
}
