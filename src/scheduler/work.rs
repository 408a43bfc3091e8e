//! What a job does.

use std::future::Future;

use crate::scheduler::policy::JobOutput;
use crate::scheduler::tick::Tick;

/// What a job does: a function or a closure that takes a [`Tick`], and whose future returns nothing or a `Result`. Every
/// such `Fn` is one; it is never implemented by hand.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not what a job does",
    label = "not the work of a job",
    note = "a job's work is a function or a closure `|tick: tenure::Tick|` that can be sent and shared, which returns a future that can be sent and comes to nothing or a `Result` with an error that can be displayed"
)]
pub trait Work: Fn(Tick) -> <Self as Work>::Run + Send + Sync + 'static {
    /// One run of it.
    type Run: Future<Output: JobOutput + Send> + Send + 'static;
}

impl<F, R> Work for F
where
    F: Fn(Tick) -> R + Send + Sync + 'static,
    R: Future<Output: JobOutput + Send> + Send + 'static,
{
    type Run = R;
}
