//! Three libraries on the same three masters: two processes of each, and one counter that is not atomic.

use crate::help::{Eyes, Other, now};
use crate::interop::foreign::{Foreign, Library};
use crate::interop::pairs::{counts, seconds};
use crate::quorums::{masters, urls};

/// The count is on the first master, but the lock needs two of the three.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_counter_is_exact_beside_redlock_5_and_rslock() {
    let masters = masters(3).await;
    let (urls, seconds) = (urls(&masters).join(","), seconds());
    let libraries = [
        Library::Redlock5,
        Library::Redlock5,
        Library::Rslock,
        Library::Rslock,
    ];
    let mut theirs = libraries.map(|library| Foreign::runs_on(library, &urls));
    for other in &mut theirs {
        // Connects, and loads the scripts: the first call of a script travels twice, and a release may overtake it.
        assert_eq!(other.asks("acquire lock:first 60 20"), "yes");
        other.asks("release lock:first");
    }
    let mut ours = [(); 2].map(|()| counts(&urls, "lock:", seconds));
    let since = now();
    ours.iter_mut().for_each(Other::nod);
    for other in &mut theirs {
        other.tells(&format!("count lock:counter {seconds}"));
    }
    let number = |said: String| {
        said.parse::<u64>()
            .unwrap_or_else(|_| panic!("a process said {said}"))
    };
    let theirs = theirs.each_mut().map(|other| number(other.said()));
    let ours = ours.each_mut().map(|other| number(other.hears("counted")));
    let (redlock, rslock) = theirs.split_at(2);
    println!(
        "{redlock:?} redlock 5, {rslock:?} rslock, {ours:?} tenure in {:?}",
        now() - since
    );
    let sums = [redlock, rslock, &ours].map(|added| added.iter().sum::<u64>());
    assert!(sums.iter().all(|sum| *sum > 0), "{sums:?}");
    let counted: u64 = Eyes::on(&masters[0]).text("GET counted");
    assert_eq!(counted, sums.iter().sum::<u64>());
}
