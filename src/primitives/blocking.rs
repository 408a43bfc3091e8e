//! The wait of code that is not async.

use std::future::IntoFuture;

/// Waits until the future is done, for code that is not async: this thread runs it, with tokio's timers, and returns its
/// output. It takes what every method of this crate returns.
///
/// ```
/// use tenure::block_on;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let locks = tenure::Locks::memory();
/// let guard = block_on(locks.mutex("account:42").lock())?;
/// // … the lease is renewed meanwhile …
/// block_on(guard.release())?;
/// # Ok(()) }
/// ```
///
/// Each call makes its own runtime, without threads, which costs a few microseconds. So the result does not depend on a
/// runtime of the caller.
///
/// # Panics
/// In async code, where a thread must not be blocked: it drives other tasks, too. Await the future there, or call this in
/// `spawn_blocking`.
#[track_caller]
pub fn block_on<F: IntoFuture>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime
        .expect("the operating system has the resources of a runtime")
        .block_on(future.into_future())
}
