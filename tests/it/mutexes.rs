//! The laws of exclusive locks, on the memory store.

crate::laws_of_mutexes!(crate::rw_locks::nodes, crate::rw_locks::is_empty);
