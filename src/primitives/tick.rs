//! One tick of a job: acquired by one node of all, and by nobody once it is over.

use std::time::Duration;

use crate::driver::handle::Handle;
use crate::key::Key;
use crate::primitives::acquire::{Acquire, Wanted};
use crate::protocol::message::{Name, TickTime};

/// Pursues a tick of the job called `job`: wins it, or stands by until its winner has ended.
pub(crate) fn acquire_tick(handle: &Handle, job: &Key, lease: Duration, tick: TickTime) -> Acquire {
    let wanted = Wanted {
        name: Name::job(job.clone()),
        lease,
        fixed: false,
        wait: true,
        limit: usize::MAX,
        tick: Some(tick),
    };
    Acquire::new(handle.clone(), wanted)
}
