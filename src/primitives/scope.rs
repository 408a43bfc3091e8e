//! What the code that is being polled holds: so that nobody waits for themselves.
//!
//! A stack per thread, of the leases in whose scope something is being polled at this moment. It is exact for code that
//! is polled inside, and knows nothing of tasks that this code spawned.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::Arc;

use crate::driver::node::Node;
use crate::primitives::held::Held;
use crate::protocol::message::Name;

thread_local! {
    static HELD: RefCell<Vec<Arc<Held>>> = const { RefCell::new(Vec::new()) };
}

/// Ends the scope when it is dropped, also while unwinding.
pub(crate) struct Scope {
    /// How many leases it is of.
    leases: usize,
    /// It belongs to its thread.
    of_thread: PhantomData<*const ()>,
}

/// What runs until the [`Scope`] is dropped runs with `held`.
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
            // Dropped when nothing is borrowed: its drop may run code of anybody's.
            let held = HELD.try_with(|stack| stack.borrow_mut().pop());
            drop(held);
        }
    }
}

/// What is held here of `name`, if anything, and is still held.
pub(crate) fn find(node: &Arc<Node>, name: &Name) -> Option<Arc<Held>> {
    let is_it = |held: &&Arc<Held>| held.is_on(node, name) && held.is_held();
    HELD.with_borrow(|stack| stack.iter().rev().find(is_it).cloned())
}

/// Anything of this node is held here.
#[cfg(feature = "tower")]
pub(crate) fn any(node: &Arc<Node>) -> bool {
    HELD.with_borrow(|stack| stack.iter().any(|held| held.is_of(node)))
}
