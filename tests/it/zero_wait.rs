//! Waits of zero, on the memory store.

crate::laws_of_zero_waits!(crate::rw_locks::nodes);
