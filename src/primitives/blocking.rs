//! For code that is not async.

use std::future::Future;

/// Sleeps until the future is done, timers included.
///
/// A runtime of its own for each call: it has no thread and no input or output, and costs a few microseconds. It is this
/// thread's alone, so that nothing depends on where the caller stands, and it panics where a thread must not be blocked.
#[track_caller]
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build();
    runtime
        .expect("a runtime without input and output asks the system for nothing")
        .block_on(future)
}
