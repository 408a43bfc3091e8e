//! What operators see of keys that two nodes hold and want, on every store.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use tenure::inspect::{Cursor, Entry, Kind, Mode, Permits, State};
use tenure::{Error, Guard, Locks, NodeId};
use tokio::task::JoinHandle;

const PATIENCE: Duration = Duration::from_secs(30);

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future)
        .await
        .expect("did not happen in time")
}

/// Returns the entries of a key.
pub async fn show(locks: &Locks, key: &str) -> Vec<Entry> {
    let page = soon(locks.inspect().show(key)).await.unwrap();
    assert!(page.next.is_none() && page.failures.is_empty(), "{page:?}");
    page.entries
}

/// Returns all entries of the keys with a prefix, each once.
pub async fn list(locks: &Locks, prefix: &str) -> Vec<Entry> {
    let inspection = locks.inspect();
    let (mut entries, mut seen) = (Vec::new(), BTreeSet::new());
    let mut from = None;
    loop {
        let page = soon(inspection.list(prefix, from)).await.unwrap();
        assert!(page.failures.is_empty(), "{page:?}");
        let is_new = |entry: &Entry| seen.insert((entry.kind, entry.key.clone()));
        entries.extend(page.entries.into_iter().filter(is_new));
        // A link has the text of a cursor, and another process reads it.
        let Some(next) = page.next else {
            return entries;
        };
        let read: Cursor = next.to_string().parse().unwrap();
        assert_eq!(read, next);
        from = Some(read);
    }
}

/// Shows a key until its entry is as wanted.
pub async fn until(locks: &Locks, key: &str, so: impl Fn(&Entry) -> bool) -> Entry {
    soon(async {
        loop {
            if let Some(entry) = show(locks, key).await.into_iter().find(&so) {
                return entry;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await
}

/// Shows a key until a node that holds it or waits for it has told of itself.
pub async fn until_told(locks: &Locks, key: &str) {
    let told = |entry: &Entry| {
        let holders = entry.holders.iter().map(|holder| &holder.node);
        let waiters = entry.waiters.iter().map(|waiter| &waiter.node);
        holders.chain(waiters).all(|node| node.presence.is_some())
    };
    until(locks, key, told).await;
}

fn lock(locks: &Locks, key: &str) -> JoinHandle<Result<Guard, Error>> {
    let mutex = locks.mutex(key);
    tokio::spawn(async move { mutex.lock().await })
}

fn nodes<'a>(ids: impl IntoIterator<Item = &'a NodeId>) -> BTreeSet<NodeId> {
    ids.into_iter().copied().collect()
}

pub async fn an_owner_and_its_waiter_are_shown(one: &Locks, other: &Locks) {
    assert_eq!(show(one, "account:42").await, []);
    let before = SystemTime::now() - Duration::from_secs(2);
    let guard = soon(one.mutex("account:42").lock()).await.unwrap();
    let waiting = lock(other, "account:42");
    let entry = until(one, "account:42", |entry| entry.waiter_count == 1).await;
    until_told(one, "account:42").await;
    assert_eq!(
        (entry.kind, entry.key.clone(), entry.state),
        (Kind::Lock, "account:42".into(), State::Held)
    );
    assert_eq!((entry.holder_count, entry.permits, entry.count), (1, None, None));
    let [holder] = &entry.holders[..] else {
        panic!("{entry:?}")
    };
    assert_eq!((holder.node.id, holder.mode), (one.node_id(), Mode::Exclusive));
    assert_eq!(holder.fence.unwrap().number(), guard.fence().number());
    assert!(
        (before..SystemTime::now() + Duration::from_secs(2)).contains(&holder.since.unwrap()),
        "{holder:?}"
    );
    assert!(
        holder.remaining.is_some_and(|left| left > Duration::ZERO) && holder.remaining == entry.remaining,
        "{entry:?}"
    );
    let [waiter] = &entry.waiters[..] else {
        panic!("{entry:?}")
    };
    assert_eq!(
        (waiter.node.id, waiter.mode, waiter.is_dead),
        (other.node_id(), Mode::Exclusive, false)
    );
    assert!(holder.node.is_alive && waiter.node.is_alive, "{entry:?}");
    // The lease passes on, and then there is nothing.
    soon(guard.release()).await.unwrap();
    let guard = soon(waiting).await.unwrap().unwrap();
    let entry = until(one, "account:42", |entry| entry.waiter_count == 0).await;
    assert_eq!(entry.holders[0].node.id, other.node_id());
    assert!(entry.holders[0].fence > holder.fence, "{entry:?}");
    soon(guard.release()).await.unwrap();
    soon(other.idle()).await;
    assert_eq!(show(one, "account:42").await, []);
}

pub async fn each_kind_of_a_key_has_an_entry(one: &Locks, other: &Locks) {
    let readers = [
        soon(one.rw_lock("x").read()).await.unwrap(),
        soon(other.rw_lock("x").read()).await.unwrap(),
    ];
    let permits = soon(one.semaphore("x", 3).acquire_many(2)).await.unwrap();
    assert!(soon(one.latch("x").try_set_count(2)).await.unwrap());
    let leader = soon(other.election("x").campaign()).await.unwrap();
    let entries = show(one, "x").await;
    let of = |kind| entries.iter().find(|entry| entry.kind == kind).unwrap();
    let kinds: Vec<_> = entries.iter().map(|entry| (entry.kind, entry.state)).collect();
    use State::{Held, Set};
    assert_eq!(
        kinds,
        [
            (Kind::Lock, Held),
            (Kind::Semaphore, Held),
            (Kind::Latch, Set),
            (Kind::Election, Held)
        ]
    );
    let lock = of(Kind::Lock);
    assert_eq!(lock.holder_count, 2);
    assert!(
        lock.holders.iter().all(|holder| holder.mode == Mode::Read),
        "{lock:?}"
    );
    let ids = nodes(lock.holders.iter().map(|holder| &holder.node.id));
    assert_eq!(ids, nodes(&[one.node_id(), other.node_id()]));
    let semaphore = of(Kind::Semaphore);
    let count = semaphore.permits.unwrap();
    assert_eq!((count.in_use, count.capacity), (2, 3));
    let held = Permits {
        weight: 2,
        capacity: 3,
    };
    assert_eq!(semaphore.holders[0].mode, Mode::Permits(held));
    let latch = of(Kind::Latch);
    assert_eq!(
        (latch.count, latch.holder_count, latch.waiter_count),
        (Some(2), 0, 0)
    );
    assert_eq!(of(Kind::Election).holders[0].node.id, other.node_id());
    // A node that waits for zero.
    let waits = one.latch("x");
    let waits = tokio::spawn(async move { waits.wait().await });
    let latch = until(other, "x", |entry| {
        entry.kind == Kind::Latch && entry.waiter_count == 1
    })
    .await;
    assert_eq!(
        (latch.waiters[0].node.id, latch.waiters[0].claim),
        (one.node_id(), None)
    );
    waits.abort();
    for guard in readers {
        soon(guard.release()).await.unwrap();
    }
    soon(permits.release()).await.unwrap();
    soon(leader.release()).await.unwrap();
    soon(one.idle()).await;
    soon(other.idle()).await;
    let left = list(one, "").await;
    assert_eq!(
        left.iter().map(|entry| entry.kind).collect::<Vec<_>>(),
        [Kind::Latch]
    );
}

pub async fn pages_have_each_key_with_the_prefix(one: &Locks, count: usize) {
    let mut guards = Vec::new();
    for n in 0..count {
        guards.push(soon(one.mutex(format!("a*:{n}")).lock()).await.unwrap());
    }
    let others = [
        soon(one.mutex("ab:1").lock()).await.unwrap(),
        soon(one.mutex("b:a*:1").lock()).await.unwrap(),
    ];
    let entries = list(one, "a*:").await;
    assert_eq!(entries.len(), count);
    assert!(
        entries
            .iter()
            .all(|entry| entry.key.as_bytes().starts_with(b"a*:")),
        "{entries:?}"
    );
    let all = list(one, "").await;
    assert_eq!(
        all.iter().filter(|entry| entry.kind == Kind::Lock).count(),
        count + 2
    );
    assert_eq!(list(one, "c").await.len(), 0);
    drop((guards, others));
    soon(one.idle()).await;
}

/// What is shown has no nonce of these claims, in any form.
pub fn is_no_secret(text: &str, nonces: &[u64]) {
    assert!(!nonces.is_empty());
    for nonce in nonces {
        for form in [format!("{nonce:016x}"), format!("{nonce:x}"), nonce.to_string()] {
            assert!(!text.contains(&form), "{text} has {form}");
        }
    }
}
