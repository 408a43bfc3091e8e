//! Scopes: which leases the code that is being polled holds, so that no task waits for itself.
//!
//! Each thread has a stack of the leases in whose scope a future is being polled at this moment. The stack is exact for code that
//! is polled inside a scope. It knows nothing of tasks that this code spawned.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::Arc;

use crate::driver::node::Node;
#[cfg(feature = "tower")]
use crate::error::LostCause;
use crate::primitives::held::Held;
use crate::protocol::message::Name;

thread_local! {
    static HELD: RefCell<Vec<Arc<Held>>> = const { RefCell::new(Vec::new()) };
}

/// A scope, which ends when this is dropped, also while unwinding.
pub(crate) struct Scope {
    /// How many leases on the stack belong to this scope.
    leases: usize,
    /// Keeps the scope on its thread.
    of_thread: PhantomData<*const ()>,
}

/// Enters the scope of these leases, until the [`Scope`] is dropped.
pub(crate) fn enter<'a>(held: impl IntoIterator<Item = &'a Arc<Held>>) -> Scope {
    let leases = HELD.with_borrow_mut(|stack| {
        let before = stack.len();
        stack.extend(held.into_iter().cloned());
        stack.len() - before
    });
    Scope {
        leases,
        of_thread: PhantomData,
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        for _ in 0..self.leases {
            // Dropped after the borrow ends: the drop of a lease may run foreign code.
            let held = HELD.try_with(|stack| stack.borrow_mut().pop());
            drop(held);
        }
    }
}

/// Returns the innermost lease on `name` in whose scope this code runs, if it is still held.
pub(crate) fn find(node: &Arc<Node>, name: &Name) -> Option<Arc<Held>> {
    let is_it = |held: &&Arc<Held>| held.is_on(node, name) && held.is_held();
    HELD.with_borrow(|stack| stack.iter().rev().find(is_it).cloned())
}

/// Returns whether this code runs in the scope of any lease of this node.
#[cfg(feature = "tower")]
pub(crate) fn any(node: &Arc<Node>) -> bool {
    HELD.with_borrow(|stack| stack.iter().any(|held| held.is_of(node)))
}

/// Returns the leases in whose scope this code runs and that are `wanted`, the outermost first, without those that this code
/// released itself.
#[cfg(feature = "tower")]
pub(crate) fn all(wanted: impl Fn(&Arc<Held>) -> bool) -> Vec<Arc<Held>> {
    let is_kept = |held: &&Arc<Held>| wanted(held) && held.over() != Some(LostCause::Released);
    HELD.with_borrow(|stack| stack.iter().filter(is_kept).cloned().collect())
}
