//! The laws of read-write locks that every store must show, seen by two nodes.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use tenure::error::LostCause;
use tenure::{Error, Fence, Guard, Key, Locks, MultiKey, RwLock, TransferError};
use tokio::task::JoinHandle;

const PATIENCE: Duration = Duration::from_secs(30);

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future)
        .await
        .expect("did not happen in time")
}

/// Waits until a new reader of this node must wait.
async fn until_readers_wait(locks: &Locks, key: &str) {
    soon(async {
        while let Some(guard) = locks.rw_lock(key).try_read().await.unwrap() {
            guard.release().await.unwrap();
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}

pub async fn readers_share_and_exclude_writers(one: &Locks, other: &Locks) {
    let (here, there) = (one.rw_lock("prices"), other.rw_lock("prices"));
    let first = soon(here.read()).await.unwrap();
    let second = soon(here.read_timeout(PATIENCE)).await.unwrap();
    let third = there.try_read().await.unwrap().expect("others only read");
    assert!(first.is_held() && second.is_held() && third.is_held());
    for locks in [one, other] {
        assert!(locks.rw_lock("prices").try_write().await.unwrap().is_none());
        assert!(locks.mutex("prices").try_lock().await.unwrap().is_none());
        let wait = Duration::from_millis(30);
        let refused = locks.rw_lock("prices").write_timeout(wait).await;
        assert!(matches!(refused, Err(Error::Busy { .. })), "{refused:?}");
    }
    first.release().await.unwrap();
    drop(second);
    third.release().await.unwrap();
    let writer = soon(there.write()).await.unwrap();
    for locks in [one, other] {
        assert!(locks.rw_lock("prices").try_read().await.unwrap().is_none());
        assert!(locks.mutex("prices").try_lock().await.unwrap().is_none());
    }
    writer.release().await.unwrap();
    let mutex = soon(one.mutex("prices").lock()).await.unwrap();
    assert!(here.try_read().await.unwrap().is_none());
    assert!(there.try_read().await.unwrap().is_none());
    mutex.release().await.unwrap();
}

pub async fn a_writers_fence_exceeds_all_before_it(one: &Locks, other: &Locks) {
    let mut highest = 0;
    for _ in 0..5 {
        let writer = soon(one.rw_lock("fence").write()).await.unwrap();
        assert!(writer.fence().get() > highest);
        highest = writer.fence().get();
        writer.release().await.unwrap();
        let mut readers = Vec::new();
        for locks in [one, other, one, other] {
            let reader = soon(locks.rw_lock("fence").read()).await.unwrap();
            assert!(reader.fence().get() > highest, "after the writer");
            readers.push(reader);
        }
        highest = readers
            .iter()
            .map(|reader| reader.fence().get())
            .max()
            .unwrap_or_default();
        for reader in readers {
            reader.release().await.unwrap();
        }
    }
}

pub async fn a_reader_that_comes_after_a_writer_reads_after_it(one: &Locks, other: &Locks) {
    let reader = soon(one.rw_lock("order").read()).await.unwrap();
    let turns = Arc::new(AtomicU64::new(0));
    let (writes, turn) = (other.rw_lock("order"), turns.clone());
    let writer = tokio::spawn(async move {
        let guard = writes.write().await.unwrap();
        let mine = turn.fetch_add(1, Ordering::SeqCst);
        guard.release().await.unwrap();
        mine
    });
    until_readers_wait(one, "order").await;
    until_readers_wait(other, "order").await;
    let later: Vec<_> = [one, other]
        .map(|locks| {
            let (reads, turn) = (locks.rw_lock("order"), turns.clone());
            tokio::spawn(async move {
                let guard = reads.read().await.unwrap();
                let mine = turn.fetch_add(1, Ordering::SeqCst);
                guard.release().await.unwrap();
                mine
            })
        })
        .into();
    assert!(reader.is_held());
    reader.release().await.unwrap();
    assert_eq!(soon(writer).await.unwrap(), 0, "the writer came first");
    for reader in later {
        assert!(soon(reader).await.unwrap() > 0);
    }
}

/// What endless callers were granted: the phase of the test when each caller came, and its fence.
#[derive(Clone, Default)]
struct Grants {
    phase: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    all: Arc<Mutex<Vec<(u64, Fence)>>>,
}

impl Grants {
    fn come(&self) -> u64 {
        self.phase.load(Ordering::SeqCst)
    }

    fn note(&self, came: u64, guard: &Guard) {
        self.all.lock().unwrap().push((came, guard.fence()));
    }

    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::SeqCst)
    }

    fn count(&self) -> usize {
        self.all.lock().unwrap().len()
    }

    /// Waits for `more` further grants.
    async fn until_more(&self, more: usize) {
        let enough = self.count() + more;
        soon(async {
            while self.count() < enough {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }

    /// Ends all tasks. Returns a function that lists the fences of the callers that came in this phase or later.
    async fn end(self, tasks: Vec<JoinHandle<()>>) -> impl Fn(u64) -> Vec<Fence> {
        self.stop.store(true, Ordering::SeqCst);
        for task in tasks {
            soon(task).await.unwrap();
        }
        let all = std::mem::take(&mut *self.all.lock().unwrap());
        move |since| {
            let came = all.iter().filter(|(came, _)| *came >= since);
            came.map(|(_, fence)| *fence).collect()
        }
    }

    /// Reads in an endless loop. Releases a guard only if it holds another one, unless it must wait.
    fn readers(&self, lock: RwLock) -> JoinHandle<()> {
        let grants = self.clone();
        tokio::spawn(async move {
            let mut held: Option<Guard> = None;
            while grants.goes_on() {
                let mut came = grants.come();
                let next = match lock.try_read().await.unwrap() {
                    Some(next) => next,
                    None => {
                        if let Some(held) = held.take() {
                            held.release().await.unwrap();
                        }
                        came = grants.come();
                        lock.read().await.unwrap()
                    }
                };
                grants.note(came, &next);
                if let Some(before) = held.replace(next) {
                    before.release().await.unwrap();
                }
                tokio::task::yield_now().await;
            }
        })
    }

    fn writers(&self, lock: RwLock) -> JoinHandle<()> {
        let grants = self.clone();
        tokio::spawn(async move {
            while grants.goes_on() {
                let came = grants.come();
                let guard = lock.write().await.unwrap();
                grants.note(came, &guard);
                tokio::task::yield_now().await;
                guard.release().await.unwrap();
            }
        })
    }
}

/// Polls the future for one step and returns its output if it is ready.
async fn step<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    std::future::poll_fn(|cx| {
        Poll::Ready(match Pin::new(&mut *future).poll(cx) {
            Poll::Ready(ready) => Some(ready),
            Poll::Pending => None,
        })
    })
    .await
}

/// Readers come without end. A waiting writer is next: readers that come later on any node read after it.
pub async fn a_writer_is_the_next_among_readers_for_ever(one: &Locks, other: &Locks) {
    let grants = Grants::default();
    let lock_of = |n: usize| [one, other][n % 2].rw_lock("busy");
    let tasks: Vec<_> = (0..6).map(|n| grants.readers(lock_of(n))).collect();
    let mut fences = Vec::new();
    for round in 0..4 {
        grants.until_more(50).await;
        // These guards are held until the writer is known to wait.
        let before = soon(lock_of(round / 2).read()).await.unwrap();
        let writer = tokio::spawn(lock_of(round).write());
        until_readers_wait(one, "busy").await;
        until_readers_wait(other, "busy").await;
        grants.phase.store(round as u64 + 1, Ordering::SeqCst);
        // Some readers queue in their process, others have a claim of their own in the store.
        let own_claim = |n| lock_of(n).fixed(PATIENCE);
        let late = (0..4).flat_map(|n| [lock_of(n).read(), own_claim(n).read()]);
        let mut late: Vec<_> = late.collect();
        for read in &mut late {
            assert!(step(read).await.is_none(), "it reads past a writer");
        }
        let known = before.fence();
        before.release().await.unwrap();
        let writer = soon(writer).await.unwrap().unwrap();
        assert!(writer.fence() > known);
        for read in &mut late {
            assert!(step(read).await.is_none(), "it reads beside a writer");
        }
        let fence = writer.fence();
        fences.push(fence);
        writer.release().await.unwrap();
        for read in late {
            let read = soon(read).await.unwrap();
            assert!(read.fence() > fence, "it came after the writer");
            read.release().await.unwrap();
        }
    }
    let came_since = grants.end(tasks).await;
    for (phase, fence) in (1..).zip(fences) {
        let passed: Vec<_> = came_since(phase)
            .into_iter()
            .filter(|read| *read < fence)
            .collect();
        assert!(
            passed.is_empty(),
            "{passed:?} read before {fence:?}, which waited"
        );
    }
}

/// Writers come without end on both nodes. A reader is granted before every writer of its process that came later.
pub async fn a_reader_is_next_among_writers_of_its_process(one: &Locks, other: &Locks) {
    let grants = [Grants::default(), Grants::default()];
    let lock_of = |n: usize| [one, other][n % 2].rw_lock("busy");
    let mut tasks = [Vec::new(), Vec::new()];
    (0..6).for_each(|n| tasks[n % 2].push(grants[n % 2].writers(lock_of(n))));
    let mut fences = Vec::new();
    for round in 0..10 {
        grants[0].until_more(3).await;
        grants[1].until_more(3).await;
        let mut read = one.rw_lock("busy").read();
        let answered = step(&mut read).await;
        grants[0].phase.store(round + 1, Ordering::SeqCst);
        let reader = match answered {
            Some(reader) => reader,
            None => soon(read).await,
        };
        let reader = reader.unwrap();
        fences.push(reader.fence());
        reader.release().await.unwrap();
    }
    let [here, there] = grants;
    let [own, others] = tasks;
    let came_since = here.end(own).await;
    drop(there.end(others).await);
    for (phase, fence) in (1..).zip(fences) {
        let passed = came_since(phase).into_iter().filter(|write| *write < fence);
        assert_eq!(passed.count(), 0, "wrote before {fence:?}, which came first");
    }
}

/// Writers of one process come without end. A reader of another process that is in the store's queue is next. Only
/// the present grant goes on before it, until its burst ends.
pub async fn a_reader_is_next_among_writers_for_ever(one: &Locks, other: &Locks, queued: impl Fn() -> usize) {
    let grants = Grants::default();
    let tasks: Vec<_> = (0..4).map(|_| grants.writers(other.rw_lock("turns"))).collect();
    let mut fences = Vec::new();
    for round in 0..10 {
        grants.until_more(5).await;
        let read = tokio::spawn(one.rw_lock("turns").read());
        soon(async {
            while queued() == 0 && !read.is_finished() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
        grants.phase.store(round + 1, Ordering::SeqCst);
        let reader = soon(read).await.unwrap().unwrap();
        fences.push(reader.fence());
        reader.release().await.unwrap();
    }
    let came_since = grants.end(tasks).await;
    for (phase, fence) in (1..).zip(fences) {
        let before = came_since(phase).into_iter().filter(|write| *write < fence);
        let turns: BTreeSet<_> = before.map(Fence::number).collect();
        assert!(turns.len() <= 1, "{turns:?} before {fence:?}, which waited");
    }
}

/// Fair readers and writers of all processes are served in the order in which they came.
pub async fn fair_readers_and_writers_are_served_in_turn(
    one: &Locks,
    other: &Locks,
    queued: impl Fn() -> usize,
) {
    const CALLERS: usize = 6;
    let held = soon(one.rw_lock("turns").write()).await.unwrap();
    let served = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for caller in 0..CALLERS {
        let lock = [one, other][caller % 2].rw_lock("turns").fair();
        let served = served.clone();
        tasks.push(tokio::spawn(async move {
            let acquire = if caller % 3 == 1 {
                lock.read()
            } else {
                lock.write()
            };
            let guard = acquire.await.unwrap();
            served.lock().unwrap().push(caller);
            guard.release().await.unwrap();
        }));
        soon(async {
            while queued() <= caller {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
    soon(held.release()).await.unwrap();
    for task in tasks {
        soon(task).await.unwrap();
    }
    assert_eq!(*served.lock().unwrap(), Vec::from_iter(0..CALLERS));
}

pub async fn a_writer_becomes_a_reader_without_a_write_between(one: &Locks, other: &Locks) {
    let written = Arc::new(AtomicU64::new(0));
    for round in 1..=5 {
        let writer = soon(one.rw_lock("report").write()).await.unwrap();
        let (next, count) = (other.rw_lock("report"), written.clone());
        let waits = tokio::spawn(async move {
            let guard = next.write().await.unwrap();
            count.fetch_add(1, Ordering::SeqCst);
            guard.release().await.unwrap();
        });
        until_waiting(other, 1).await;
        let fence = writer.fence();
        let lease = writer.lease();
        let reader = soon(writer.downgrade()).await.unwrap();
        assert!(reader.is_held() && reader.fence() > fence);
        assert!(!lease.is_held(), "the lease of the writer has ended");
        assert_eq!(lease.lost().await, LostCause::Released);
        // The guard remains a reader.
        let reader = soon(reader.downgrade()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert_eq!(
            written.load(Ordering::SeqCst),
            round - 1,
            "no writer holds beside a reader"
        );
        assert!(reader.is_held());
        reader.release().await.unwrap();
        soon(waits).await.unwrap();
    }
    // A mutex can be downgraded too, and waiting readers are granted.
    let mutex = soon(one.mutex("report").lock()).await.unwrap();
    let waits = tokio::spawn({
        let next = other.rw_lock("report");
        async move { next.read().await.unwrap() }
    });
    until_waiting(other, 1).await;
    let reader = soon(mutex.downgrade()).await.unwrap();
    let beside = soon(waits).await.unwrap();
    assert!(reader.is_held() && beside.is_held());
    let here = soon(one.rw_lock("report").read()).await.unwrap();
    for guard in [reader, beside, here] {
        guard.release().await.unwrap();
    }
}

async fn until_waiting(locks: &Locks, callers: usize) {
    soon(async {
        while locks.waiter_count() < callers {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}

pub async fn a_reader_does_not_become_a_writer(one: &Locks, _: &Locks) {
    let lock = one.rw_lock("upgrade");
    let reader = soon(lock.read()).await.unwrap();
    let refused = reader.run(lock.write()).await.unwrap().unwrap_err();
    let text = refused.to_string();
    assert!(
        matches!(refused, Error::WouldDeadlock { is_upgrade: true, .. }),
        "{refused:?}"
    );
    assert!(text.contains("a reader cannot become a writer"), "{text}");
    // A reader cannot take the lease of a mutex either.
    let mutex = reader.run(one.mutex("upgrade").lock()).await.unwrap();
    assert!(matches!(
        mutex,
        Err(Error::WouldDeadlock { is_upgrade: true, .. })
    ));
    let again = reader.run(lock.read()).await.unwrap();
    assert!(matches!(
        again,
        Err(Error::WouldDeadlock {
            is_upgrade: false,
            ..
        })
    ));
    assert!(reader.run(lock.try_write()).await.unwrap().unwrap().is_none());
    reader.release().await.unwrap();
    let writer = soon(lock.write()).await.unwrap();
    let other_guard = writer.again().unwrap();
    let Err(TransferError::Refused(writer, Error::Options(_))) = soon(writer.downgrade()).await else {
        panic!("it was downgraded")
    };
    other_guard.release().await.unwrap();
    assert!(writer.is_held(), "it still holds");
    writer.release().await.unwrap();
}

/// A transfer reads two counters and writes both; a reader sees both counters of the same transfer.
pub async fn readers_see_no_half_transfer(one: &Locks, other: &Locks) {
    let accounts = Arc::new([AtomicU64::new(500), AtomicU64::new(500)]);
    let tasks: Vec<_> = (0..8)
        .map(|n| {
            let lock = if n % 2 == 0 { one } else { other }.rw_lock("accounts");
            let accounts = accounts.clone();
            tokio::spawn(async move {
                for round in 0..25 {
                    if (n + round) % 4 > 0 {
                        let guard = lock.read().await.unwrap();
                        let left = accounts[0].load(Ordering::Relaxed);
                        tokio::task::yield_now().await;
                        let right = accounts[1].load(Ordering::Relaxed);
                        assert_eq!(left + right, 1000, "half a transfer");
                        guard.release().await.unwrap();
                        continue;
                    }
                    let guard = lock.write().await.unwrap();
                    let left = accounts[0].load(Ordering::Relaxed);
                    let right = accounts[1].load(Ordering::Relaxed);
                    accounts[0].store(left - 1, Ordering::Relaxed);
                    tokio::task::yield_now().await;
                    accounts[1].store(right + 1, Ordering::Relaxed);
                    let reader = guard.downgrade().await.unwrap();
                    assert_eq!(accounts[1].load(Ordering::Relaxed), right + 1);
                    reader.release().await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        soon(task).await.unwrap();
    }
    assert_eq!(accounts[1].load(Ordering::Relaxed), 550);
}

/// A written multi-lock takes none of its keys while another caller reads one of them, and excludes readers while it
/// is held.
pub async fn readers_and_several_locks_exclude_each_other(one: &Locks, other: &Locks) {
    let multi = one.multi(["a", "b", "c"]);
    for locks in [one, other] {
        let reader = soon(locks.rw_lock("b").read()).await.unwrap();
        assert!(
            soon(multi.try_lock()).await.unwrap().is_none(),
            "a reader holds b"
        );
        for key in ["a", "c"] {
            // The process that reads b may still be returning what a try had taken.
            let free = soon(other.mutex(key).lock()).await.expect("not taken without b");
            soon(free.release()).await.unwrap();
        }
        // A failed try keeps no reader out.
        let beside = soon(other.rw_lock("b").try_read()).await.unwrap();
        soon(beside.expect("readers share").release()).await.unwrap();
        assert!(reader.is_held());
        soon(reader.release()).await.unwrap();
    }
    let all = soon(multi.lock()).await.unwrap();
    for locks in [one, other] {
        for key in ["a", "b", "c"] {
            assert!(
                soon(locks.rw_lock(key).try_read()).await.unwrap().is_none(),
                "{key}"
            );
        }
    }
    let waiting = tokio::spawn(other.rw_lock("c").read());
    until_waiting(other, 1).await;
    soon(all.release()).await.unwrap();
    let reader = soon(waiting).await.unwrap().unwrap();
    // A waiting multi-lock waits for the reader.
    let waiting = tokio::spawn({
        let multi = multi.clone();
        async move { multi.lock().await }
    });
    until_waiting(one, 1).await;
    assert!(reader.is_held());
    soon(reader.release()).await.unwrap();
    soon(soon(waiting).await.unwrap().unwrap().release())
        .await
        .unwrap();
}

/// A multi-lock that writes one key and reads another: readers of the second key may hold it on any node, writers may
/// not.
pub async fn several_locks_write_one_key_and_read_another(one: &Locks, other: &Locks) {
    let mixed = |locks: &Locks, key: &str| locks.multi([MultiKey::read("rates"), MultiKey::write(key)]);
    let written = soon(other.rw_lock("rates").write()).await.unwrap();
    let before = written.fence();
    assert!(
        soon(mixed(one, "a").try_lock()).await.unwrap().is_none(),
        "a writer holds"
    );
    // Keys of two slots are taken in turn, and the first is given back in the background.
    let free = soon(other.mutex("a").lock_timeout(Duration::from_secs(2))).await;
    soon(free.expect("not taken without the other").release())
        .await
        .unwrap();
    soon(written.release()).await.unwrap();

    let first = soon(mixed(one, "a").lock()).await.unwrap();
    assert!(first.is_held() && first.fence("rates").unwrap() > before);
    for locks in [one, other] {
        let reader = soon(locks.rw_lock("rates").try_read()).await.unwrap();
        soon(reader.expect("readers share").release()).await.unwrap();
        let kept_out = [
            soon(locks.rw_lock("rates").try_write()).await.unwrap(),
            soon(locks.rw_lock("a").try_read()).await.unwrap(),
            soon(locks.mutex("a").try_lock()).await.unwrap(),
        ];
        assert!(kept_out.iter().all(Option::is_none), "{kept_out:?}");
        // Another key is written as well, by one request or in this process.
        let second = soon(mixed(locks, "b").try_lock()).await.unwrap();
        let second = second.expect("both read the rates");
        assert!(soon(mixed(other, "a").try_lock()).await.unwrap().is_none());
        assert!(soon(one.multi(["b", "c"]).try_lock()).await.unwrap().is_none());
        assert!(second.is_held() && first.is_held());
        soon(second.release()).await.unwrap();
    }
    // A writer waits for it, and is next.
    let writer = tokio::spawn(other.rw_lock("rates").write());
    until_waiting(other, 1).await;
    let fence = first.fence("rates").unwrap();
    soon(first.release()).await.unwrap();
    let writer = soon(writer).await.unwrap().unwrap();
    assert!(writer.fence() > fence);
    soon(writer.release()).await.unwrap();
}

/// A multi-lock that reads one of its keys comes after a writer that waits for that key. It takes no later key
/// meanwhile.
pub async fn a_reader_of_several_locks_does_not_pass_a_writer(one: &Locks, other: &Locks) {
    for (round, writes) in [(0, one), (1, other)] {
        let (key, last) = (format!("rates {round}"), format!("x {round}"));
        let mixed =
            |locks: &Locks| locks.multi([MultiKey::read(key.as_str()), MultiKey::write(last.as_str())]);
        let reader = soon(other.rw_lock(key.as_str()).read()).await.unwrap();
        let writer = tokio::spawn(writes.rw_lock(key.as_str()).write());
        until_readers_wait(one, &key).await;
        until_readers_wait(other, &key).await;
        for locks in [one, other] {
            let passed = soon(mixed(locks).try_lock()).await.unwrap();
            assert!(passed.is_none(), "it reads past a writer");
            let untouched = soon(one.mutex(last.as_str()).lock()).await.unwrap();
            soon(untouched.release()).await.unwrap();
        }
        let mut waits = Box::pin(mixed(one).lock());
        assert!(step(&mut waits).await.is_none(), "it reads past a writer");
        soon(reader.release()).await.unwrap();
        let writer = soon(writer).await.unwrap().unwrap();
        assert!(step(&mut waits).await.is_none(), "it reads beside a writer");
        let untouched = soon(other.mutex(last.as_str()).try_lock()).await.unwrap();
        soon(untouched.expect("it comes later").release()).await.unwrap();
        let fence = writer.fence();
        soon(writer.release()).await.unwrap();
        let both = soon(waits).await.unwrap();
        assert!(both.fence(key.as_str()).unwrap() > fence);
        soon(both.release()).await.unwrap();
    }
}

/// Two nodes lock crossing sets of keys, some read and some written. A writer is alone, a reader is beside readers
/// only, and every caller gets all its keys.
pub async fn crossing_sets_in_both_modes_do_not_deadlock(one: &Locks, other: &Locks) {
    const KEYS: usize = 4;
    const WRITES: u64 = 1 << 32;
    // The number of readers of each key, and whether a writer is inside.
    let inside: Arc<[AtomicU64; KEYS]> = Arc::default();
    let shared = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = (0..6_u64)
        .map(|task| {
            let locks = if task % 2 == 0 { one } else { other }.clone();
            let (inside, shared) = (inside.clone(), shared.clone());
            tokio::spawn(async move {
                let mut rng = fastrand::Rng::with_seed(task);
                for _ in 0..25 {
                    let mut keys: Vec<usize> = (0..KEYS).collect();
                    rng.shuffle(&mut keys);
                    keys.truncate(rng.usize(1..=KEYS));
                    let wanted: Vec<_> = keys.into_iter().map(|key| (key, rng.u8(..3) > 0)).collect();
                    let multi = locks.multi(wanted.iter().map(|(key, reads)| match reads {
                        true => MultiKey::read(*key),
                        false => MultiKey::write(*key),
                    }));
                    let guard = multi.lock().await.unwrap();
                    for &(key, reads) in &wanted {
                        let before = inside[key].fetch_add(if reads { 1 } else { WRITES }, Ordering::SeqCst);
                        assert!(
                            before == 0 || reads && before < WRITES,
                            "{key}: {before:x} beside, reads {reads}"
                        );
                        shared.fetch_add(before, Ordering::Relaxed);
                    }
                    tokio::task::yield_now().await;
                    for &(key, reads) in &wanted {
                        inside[key].fetch_sub(if reads { 1 } else { WRITES }, Ordering::SeqCst);
                    }
                    guard.release().await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        soon(task).await.unwrap();
    }
    assert!(shared.load(Ordering::Relaxed) > 0, "no two readers overlapped");
}

/// A key that is named twice is written if one of the names writes, also if that name comes from another group.
pub async fn a_key_of_both_modes_is_written(one: &Locks, other: &Locks) {
    let (read, write) = (MultiKey::read("k"), MultiKey::write("k"));
    let [r, w] = [&read, &write].map(|key| || key.clone());
    for (n, multi) in [
        one.multi([r(), w()]),
        one.multi([w(), r()]),
        one.multi([r()]).and(one.multi([w()])),
        one.multi([w()]).and(one.multi([r()])),
        one.multi([r(), r()]),
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(multi.keys().collect::<Vec<_>>(), [&Key::from("k")]);
        let guard = soon(multi.lock()).await.unwrap();
        let beside = soon(other.rw_lock("k").try_read()).await.unwrap();
        assert_eq!(beside.is_some(), n == 4, "{multi:?}");
        if let Some(guard) = beside {
            soon(guard.release()).await.unwrap();
        }
        soon(guard.release()).await.unwrap();
    }
}

/// Keys that are read are visible to the code that holds them, and end like other keys.
pub async fn keys_read_by_several_locks_are_held_like_written_keys(one: &Locks, other: &Locks) {
    let multi = one.multi([MultiKey::read("rates"), MultiKey::write("a")]);
    let guard = soon(multi.lock()).await.unwrap();
    let inner = async {
        let upgrade = one.rw_lock("rates").write().await;
        assert!(
            matches!(upgrade, Err(Error::WouldDeadlock { is_upgrade: true, .. })),
            "{upgrade:?}"
        );
        let again = one.multi([MultiKey::read("rates")]).lock().await;
        assert!(
            matches!(
                again,
                Err(Error::WouldDeadlock {
                    is_upgrade: false,
                    ..
                })
            ),
            "{again:?}"
        );
    };
    soon(guard.run(inner)).await.unwrap();
    let again = guard.again().unwrap();
    soon(guard.release()).await.unwrap();
    assert!(again.is_held());
    let refused = soon(other.rw_lock("rates").try_write()).await.unwrap();
    assert!(refused.is_none(), "the other guard reads");
    drop(again);
    // Not renewed, and bounded where each reader has its own lease.
    let length = Duration::from_millis(1_000);
    for (multi, cause) in [
        (multi.clone().fixed(length), LostCause::Ended),
        (
            multi.clone().lease(length).max_hold(length / 4),
            LostCause::Overdue,
        ),
    ] {
        // On a machine that stalls, one lease may end before the last one is granted.
        let guard = soon(async {
            loop {
                match multi.lock().await {
                    Err(error) if error.is_lost() => {}
                    taken => return taken.unwrap(),
                }
            }
        })
        .await;
        let beside = soon(other.rw_lock("rates").read()).await.unwrap();
        let lost = soon(guard.lost()).await;
        assert_eq!(lost, cause);
        assert!(guard.release().await.unwrap_err().is_lost());
        soon(beside.release()).await.unwrap();
        let next = soon(other.multi(["a", "rates"]).lock()).await.unwrap();
        soon(next.release()).await.unwrap();
    }
}

/// Runs each law on two nodes made by `$nodes`, and checks with `$empty` that nothing is left. `$queued` counts the
/// waiting claims of a key.
///
/// The form `list laws` adds the laws to the list `laws` instead.
#[macro_export]
macro_rules! laws_of_read_write_locks {
    (list $list:ident) => {
        $crate::laws_of_read_write_locks!(all [list $list]);
        $list.add("a_reader_is_next_among_writers_for_ever", |on| {
            let queued = || on.queued("turns");
            on.run($crate::support::laws::a_reader_is_next_among_writers_for_ever(&on.one, &on.other, queued));
        });
        $list.add("fair_readers_and_writers_are_served_in_turn", |on| {
            let queued = || on.queued("turns");
            on.run($crate::support::laws::fair_readers_and_writers_are_served_in_turn(&on.one, &on.other, queued));
        });
    };
    (all $form:tt) => {
        $crate::laws_of_read_write_locks!($form:
            readers_share_and_exclude_writers,
            a_writers_fence_exceeds_all_before_it,
            a_reader_that_comes_after_a_writer_reads_after_it,
            a_writer_is_the_next_among_readers_for_ever,
            a_reader_is_next_among_writers_of_its_process,
            a_writer_becomes_a_reader_without_a_write_between,
            a_reader_does_not_become_a_writer,
            readers_see_no_half_transfer,
            readers_and_several_locks_exclude_each_other,
            several_locks_write_one_key_and_read_another,
            a_reader_of_several_locks_does_not_pass_a_writer,
            crossing_sets_in_both_modes_do_not_deadlock,
            a_key_of_both_modes_is_written,
            keys_read_by_several_locks_are_held_like_written_keys,
        );
    };
    ($nodes:path, $empty:path, $queued:path) => {
        $crate::laws_of_read_write_locks!(all [$nodes, $empty]);

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn a_reader_is_next_among_writers_for_ever() {
            let (one, other, store) = $nodes().await;
            let queued = || $queued(&store, "turns");
            $crate::support::laws::a_reader_is_next_among_writers_for_ever(&one, &other, queued).await;
            one.idle().await;
            other.idle().await;
            $empty(store);
        }

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn fair_readers_and_writers_are_served_in_turn() {
            let (one, other, store) = $nodes().await;
            let queued = || $queued(&store, "turns");
            $crate::support::laws::fair_readers_and_writers_are_served_in_turn(&one, &other, queued).await;
            one.idle().await;
            other.idle().await;
            $empty(store);
        }
    };
    ([list $list:ident]: $($law:ident,)+) => {
        $($list.add(stringify!($law), |on| on.run($crate::support::laws::$law(&on.one, &on.other)));)+
    };
    ([$nodes:path, $empty:path]: $($law:ident,)+) => {
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $law() {
            let (one, other, store) = $nodes().await;
            $crate::support::laws::$law(&one, &other).await;
            one.idle().await;
            other.idle().await;
            $empty(store);
        })+
    };
}
