//! Whatever is a mutex, on a real server.

crate::laws_of_mutexes!(crate::rw_locks::nodes, crate::rw_locks::is_empty);
