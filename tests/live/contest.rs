//! Nodes that want the same keys all the time: what a hand-over between processes is seen by.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::Locks;
use tokio::task::JoinSet;

use crate::help::{PATIENCE, ms, now};

/// Somebody got a key.
#[derive(Debug, Clone, Copy)]
pub struct Turn {
    pub node: usize,
    pub granted: Duration,
}

#[derive(Debug, Default)]
struct Seen {
    turns: BTreeMap<String, Vec<Turn>>,
    errors: Vec<String>,
}

/// One task per key and node that locks, holds for a moment and releases, again and again. They end when it is
/// dropped.
pub struct Contest {
    seen: Arc<Mutex<Seen>>,
    _tasks: JoinSet<()>,
}

impl Contest {
    /// On the runtime it is called on.
    pub fn start<'a>(sides: impl IntoIterator<Item = (String, &'a [Locks])>, hold: Duration) -> Contest {
        let seen = Arc::<Mutex<Seen>>::default();
        let mut tasks = JoinSet::new();
        for (key, nodes) in sides {
            for (node, locks) in nodes.iter().enumerate() {
                tasks.spawn(take_turns(locks.clone(), key.clone(), node, hold, seen.clone()));
            }
        }
        Contest { seen, _tasks: tasks }
    }

    /// The turns of a key that began after `from`.
    pub fn turns(&self, key: &str, from: Duration) -> Vec<Turn> {
        let seen = self.seen.lock().unwrap();
        let turns = seen.turns.get(key).into_iter().flatten();
        turns.filter(|turn| turn.granted > from).copied().collect()
    }

    /// How often a key went from one node to another in that time.
    pub fn handed_over(&self, key: &str, from: Duration, to: Duration) -> usize {
        let turns = self.turns(key, from);
        let turns: Vec<_> = turns.iter().filter(|turn| turn.granted < to).collect();
        turns
            .windows(2)
            .filter(|pair| pair[0].node != pair[1].node)
            .count()
    }

    /// What `lock` failed with.
    pub fn errors(&self) -> Vec<String> {
        self.seen.lock().unwrap().errors.clone()
    }

    /// Waits until every key went over so often since `from`.
    pub async fn until_handed_over(&self, keys: &[String], from: Duration, times: usize) {
        let look = async {
            for key in keys {
                while self.handed_over(key, from, Duration::MAX) < times {
                    tokio::time::sleep(ms(2)).await;
                }
            }
        };
        let in_time = tokio::time::timeout(PATIENCE, look).await;
        assert!(in_time.is_ok(), "no contest: {:?}", self.seen.lock().unwrap());
    }
}

async fn take_turns(locks: Locks, key: String, node: usize, hold: Duration, seen: Arc<Mutex<Seen>>) {
    loop {
        let answer = locks.mutex(key.as_str()).lock().await;
        let granted = now();
        {
            let mut seen = seen.lock().unwrap();
            let turn = Turn { node, granted };
            match &answer {
                Ok(_) => seen.turns.entry(key.clone()).or_default().push(turn),
                Err(error) => seen.errors.push(error.to_string()),
            }
        }
        match answer {
            Ok(guard) => {
                tokio::time::sleep(hold).await;
                let _ = guard.release().await;
            }
            Err(_) => tokio::time::sleep(ms(20)).await,
        }
    }
}
