//! Two [`Locks`] in one process, on a real server.

crate::laws_of_two_locks!(crate::rw_locks::nodes, crate::rw_locks::is_empty);
