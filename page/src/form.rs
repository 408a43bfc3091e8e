//! Tokens of forms: a form is accepted once, from the browser and the operator that it was made for, and for the act that it showed.
//!
//! The browser has a random cookie, and the token is a code (HMAC) of that cookie over the act, the operator and a number of the
//! form. No process keeps a secret, so any replica of a service accepts a form of another one. This is the pattern of a signed
//! double-submit cookie (OWASP, Cross-Site Request Forgery Prevention); the check of the origin comes before it.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::text::{hex, unhex};
use crate::visit::{Query, Visit, cookies};

const COOKIE: &str = "tenure_form";

/// What a form has hidden in it, and what its answer sets.
pub(crate) struct Ticket {
    pub(crate) nonce: String,
    pub(crate) token: String,
    /// The value of `Set-Cookie`. `None`: the browser has the cookie.
    pub(crate) cookie: Option<String>,
}

/// Makes the ticket of a form for this act, which is named by the link that the form is sent to.
pub(crate) fn issue(visit: &Visit, operator: &str, act: &str) -> Ticket {
    let known = secret(visit);
    let secret = known.map_or_else(random, str::to_owned);
    let nonce = random();
    Ticket {
        token: hex(&code(&secret, operator, act, &nonce).finalize().into_bytes()),
        cookie: known
            .is_none()
            .then(|| format!("{COOKIE}={secret}; HttpOnly; SameSite=Strict")),
        nonce,
    }
}

/// Returns whether the form has the token for this act, this operator and this browser.
pub(crate) fn is_valid(visit: &Visit, operator: &str, act: &str, form: &Query) -> bool {
    let Some(secret) = secret(visit) else {
        return false;
    };
    let (nonce, token) = (form.get("nonce"), unhex(form.get("token").as_bytes()));
    let code = code(secret, operator, act, nonce);
    is_random(nonce) && token.is_some_and(|token| code.verify_slice(&token).is_ok())
}

/// Returns the random cookie that the browser has.
fn secret(visit: &Visit) -> Option<&str> {
    cookies(&visit.headers, COOKIE).find(|value| is_random(value))
}

fn code(secret: &str, operator: &str, act: &str, nonce: &str) -> Hmac<Sha256> {
    let mut code = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("a key of any length");
    for part in [operator, act, nonce] {
        code.update(&(part.len() as u64).to_be_bytes());
        code.update(part.as_bytes());
    }
    code
}

/// Returns 128 random bits.
fn random() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}

fn is_random(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}
