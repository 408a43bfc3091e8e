//! The wait of code that is not async.

use std::future::Future;

/// Runs the future on this thread until it is done, with tokio's timers, and returns its output.
///
/// Each call makes its own runtime, without threads and without I/O, which costs a few microseconds. So the result does not
/// depend on a runtime of the caller.
///
/// # Panics
/// In async code, where a thread must not be blocked.
#[track_caller]
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build();
    runtime
        .expect("a runtime without I/O needs no resource of the operating system")
        .block_on(future)
}
