//! Two [`Locks`] in one process, on the memory store.

crate::laws_of_two_locks!(crate::rw_locks::nodes, crate::rw_locks::is_empty);
