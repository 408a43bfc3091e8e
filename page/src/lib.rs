//! A page for the browser: which node holds which lease of the crate [tenure](https://docs.rs/tenure), which nodes wait, what jobs
//! did, and the acts of an operator. It needs no terminal and, for reading and for acts, no JavaScript.
//!
//! [`router`] is an axum router for [`nest`](axum::Router::nest), so the page stands in your service, behind its authentication. The
//! command `tenure serve` has the page on its own.
//!
//! ```
//! use axum::Router;
//! use tenure_page::Access;
//!
//! # #[tokio::main] async fn main() {
//! let locks = tenure::Locks::memory();
//! let page = tenure_page::router(&locks, |request| match request.headers.get("x-forwarded-user") {
//!     // Set by the proxy in front of the service, which removes it from what a client sends.
//!     Some(user) if user == "mia" => Access::Operate("mia".to_owned()),
//!     Some(_) => Access::Read,
//!     None => Access::None,
//! });
//! let app: Router = Router::new().nest("/ops/tenure", page);
//! # drop(app); }
//! ```
//!
//! # Access
//!
//! The function is asked for each request, for those of files, too; there is no default. [`Access::Operate`] has the name that the
//! audit list and the holder of a lease get. An act is a form: its origin must be the page, it has a token, and before it is sent
//! the page shows what it does. It takes a lease only from the holder that was shown.
//!
//! # Cost
//!
//! A visible page asks again each 2 s. All viewers of a list share one look at the store, at most one a second; without a viewer there
//! is none. A look reads as the command does: no script and no claim. [`Inspection`](tenure::inspect::Inspection) says what it sends.
//!
//! # Behind a proxy
//!
//! Links are relative, so a proxy may cut a path off. Behind a proxy that changes `Host`, browsers without `Sec-Fetch-Site` (plain HTTP to
//! another machine) cannot act, because the origin of a form is not that host.

#![forbid(unsafe_code)]

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod access;
mod acts;
mod form;
mod job_acts;
mod layout;
mod links;
mod looks;
mod order;
mod picture;
mod progress;
mod steal;
#[doc(hidden)]
pub mod text;
mod token;
mod track;
mod views;
mod visit;
#[doc(hidden)]
pub mod words;

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn;
use axum::routing::{MethodRouter, get};
use http::request::Parts;
use tenure::Locks;

use crate::acts::Act;
use crate::job_acts::JobAct;
use crate::visit::App;

pub use access::Access;
pub use token::{loopback_only, with_token};

/// The largest form, in bytes.
const MAX_FORM: usize = 64 * 1024;

/// What answers a path.
type Answers = fn() -> MethodRouter<Arc<App>>;

/// Each path, and what answers it.
const ROUTES: [(&str, Answers); 15] = [
    ("/", || get(views::start)),
    ("/leases", || get(views::leases::page)),
    ("/key", || get(views::key::page)),
    ("/nodes", || get(views::nodes::page)),
    ("/jobs", || get(views::jobs::page)),
    ("/job", || get(views::job::page)),
    ("/audit", || get(views::audit::page)),
    ("/steal", || acts::route(Act::Steal)),
    ("/pause", || acts::route(Act::OfJob(JobAct::Pause))),
    ("/resume", || acts::route(Act::OfJob(JobAct::Resume))),
    ("/trigger", || acts::route(Act::OfJob(JobAct::Trigger))),
    ("/cancel", || acts::route(Act::OfJob(JobAct::Cancel))),
    ("/page.css", || get(views::css)),
    ("/page.js", || get(views::script)),
    ("/icon.svg", || get(views::icon)),
];

/// Returns each path, for a test that a path has its row in.
#[doc(hidden)]
pub fn paths() -> impl Iterator<Item = &'static str> {
    ROUTES.iter().map(|(path, _)| *path)
}

/// Returns the page for these locks, to be nested in a router of axum 0.8.
///
/// `access` is asked for each request, before anything else is done. It must be quick: it runs on the runtime's thread. The head of the
/// request has the path within the page; [`OriginalUri`](axum::extract::OriginalUri) is among its extensions.
///
/// ```
/// use tenure_page::{Access, router};
///
/// # #[tokio::main] async fn main() {
/// let locks = tenure::Locks::memory();
/// // For a port that only the machine itself reaches.
/// let app = axum::Router::new().nest("/tenure", router(&locks, |_| Access::Read));
/// # drop(app); }
/// ```
///
/// # Panics
/// A request panics outside of a tokio runtime with timers, or if `access` panics.
pub fn router<F>(locks: &Locks, access: F) -> Router
where
    F: Fn(&Parts) -> Access + Send + Sync + 'static,
{
    let mut router = Router::new();
    for (path, answers) in ROUTES {
        router = router.route(path, answers());
    }
    let access = Arc::new(access);
    router
        .fallback(views::other)
        .with_state(Arc::new(App::new(locks)))
        .layer(DefaultBodyLimit::max(MAX_FORM))
        .layer(from_fn(move |request, next| {
            access::check(access.clone(), request, next)
        }))
}
