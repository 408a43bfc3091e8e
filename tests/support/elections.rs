//! The laws of elections that every store must show, seen by two nodes that are named `one` and `other`.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tenure::{Election, Error, Guard, Leader, Locks, Observer};

const PATIENCE: Duration = Duration::from_secs(30);

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future)
        .await
        .expect("did not happen in time")
}

async fn campaign(election: &Election) -> Guard {
    soon(election.campaign()).await.unwrap()
}

async fn leader(election: &Election) -> Option<Leader> {
    soon(election.leader()).await.unwrap()
}

/// Waits until the observer is told of such a leader.
async fn told(observer: &mut Observer, so: impl Fn(Option<&Leader>) -> bool) -> Option<Leader> {
    soon(async {
        loop {
            let leader = observer.next().await.unwrap();
            if so(leader.as_ref()) {
                return leader;
            }
        }
    })
    .await
}

fn is_told(leader: Option<&Leader>, value: &[u8]) -> bool {
    leader.and_then(Leader::value) == Some(value)
}

pub async fn one_leads_at_a_time(one: &Locks, other: &Locks) {
    let (here, there) = (one.election("relay"), other.election("relay"));
    assert_eq!(leader(&here).await, None);
    assert!(!here.is_leader());
    let first = campaign(&here).await;
    assert!(here.is_leader() && one.election("relay").is_leader() && !there.is_leader());
    let short = Duration::from_millis(50);
    let refused = soon(there.campaign_timeout(short)).await;
    assert!(matches!(refused, Err(Error::Busy { .. })), "{refused:?}");
    for election in [&here, &there] {
        let leader = leader(election).await.unwrap();
        assert_eq!((leader.node_id(), leader.fence()), (one.node_id(), first.fence()));
        assert_eq!(leader.value(), None);
    }
    let stands = tokio::spawn(async move { there.campaign().await });
    soon(async {
        while other.waiter_count() == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let before = first.fence();
    soon(first.release()).await.unwrap();
    assert!(!here.is_leader());
    let second = soon(stands).await.unwrap().unwrap();
    assert!(other.election("relay").is_leader());
    assert!(second.fence() > before);
    assert_eq!(leader(&here).await.unwrap().node_id(), other.node_id());
    // Another candidate of the leading node is a leader of its own.
    let there = other.election("relay");
    let third = tokio::spawn(async move { there.campaign().await });
    let before = second.fence();
    soon(second.release()).await.unwrap();
    let third = soon(third).await.unwrap().unwrap();
    assert!(third.fence() > before && third.fence().is_first());
    soon(third.release()).await.unwrap();
    assert_eq!(leader(&here).await, None);
}

pub async fn observers_are_told_of_leaders(one: &Locks, other: &Locks) {
    let (here, there) = (one.election("seen"), other.election("seen"));
    let mut observers = [here.observe(), there.observe()];
    for observer in &mut observers {
        assert_eq!(told(observer, |_| true).await, None, "as it is");
    }
    let guard = campaign(&here).await;
    for observer in &mut observers {
        // The leader may not have proclaimed its name yet.
        let leader = told(observer, |leader| {
            leader.is_some_and(|leader| leader.node_name().is_some())
        })
        .await;
        let leader = leader.unwrap();
        assert_eq!(
            (leader.node_id(), leader.node_name()),
            (one.node_id(), Some("one"))
        );
        assert_eq!((leader.fence(), leader.value()), (guard.fence(), None));
    }
    for value in [&b"10.0.0.7:80"[..], b"", b"\0\xff:= \n"] {
        soon(here.proclaim(value)).await.unwrap();
        for observer in &mut observers {
            let leader = told(observer, |leader| is_told(leader, value)).await.unwrap();
            assert_eq!((leader.node_name(), leader.fence()), (Some("one"), guard.fence()));
        }
        assert!(is_told(leader(&there).await.as_ref(), value));
    }
    soon(guard.release()).await.unwrap();
    for observer in &mut observers {
        assert_eq!(told(observer, |leader| leader.is_none()).await, None);
    }
    // An observer that looks seldom is told the latest value, and none of the earlier values.
    let guard = campaign(&there).await;
    for n in 0..20_u8 {
        soon(there.proclaim([n])).await.unwrap();
    }
    let leader = told(&mut observers[0], |_| true).await;
    assert!(is_told(leader.as_ref(), &[19]), "{leader:?}");
    soon(guard.release()).await.unwrap();
}

/// No observer sees the leader of a campaign with a value without that value.
pub async fn a_value_is_told_with_its_leader(one: &Locks, other: &Locks) {
    let (here, there) = (one.election("valued"), other.election("valued"));
    let mut observers = [here.observe(), there.observe()];
    for observer in &mut observers {
        assert_eq!(told(observer, |_| true).await, None);
    }
    let first = soon(here.clone().value("first").campaign()).await.unwrap();
    for observer in &mut observers {
        let leader = told(observer, |leader| leader.is_some()).await.unwrap();
        assert_eq!(
            (leader.value(), leader.fence()),
            (Some(&b"first"[..]), first.fence())
        );
        assert_eq!(leader.node_name(), Some("one"));
    }
    // A waiting candidate leads after a hand-over, and one that gave up earlier leaves nothing behind.
    let gives_up = soon(
        there
            .clone()
            .value([0; 100])
            .campaign_timeout(Duration::from_millis(20)),
    )
    .await;
    assert!(gives_up.is_err(), "{gives_up:?}");
    let candidate = there.clone().value(b"\0second:=");
    let stands = tokio::spawn(async move { candidate.campaign().await });
    soon(async {
        while other.waiter_count() == 0 || leader(&there).await.is_none() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    soon(first.release()).await.unwrap();
    let second = soon(stands).await.unwrap().unwrap();
    for observer in &mut observers {
        let is_next =
            |leader: Option<&Leader>| leader.is_some_and(|leader| leader.node_id() == other.node_id());
        let leader = told(observer, is_next).await.unwrap();
        assert_eq!(
            (leader.value(), leader.fence()),
            (Some(&b"\0second:="[..]), second.fence())
        );
        assert_eq!(leader.node_name(), Some("other"));
    }
    soon(there.proclaim("later")).await.unwrap();
    for observer in &mut observers {
        told(observer, |leader| is_told(leader, b"later")).await;
    }
    soon(second.release()).await.unwrap();
    // The next leader has no value, and is not reported with an earlier value.
    let third = campaign(&here).await;
    let leader = leader(&there).await.unwrap();
    assert_eq!((leader.value(), leader.fence()), (None, third.fence()));
    soon(third.release()).await.unwrap();
    let long = soon(here.clone().value(vec![0; 64 * 1024 + 1]).campaign()).await;
    assert!(matches!(long, Err(Error::Options(_))), "{long:?}");
    let longest = vec![7; 64 * 1024];
    let fourth = soon(here.clone().value(&longest).campaign()).await.unwrap();
    assert!(is_told(soon(there.leader()).await.unwrap().as_ref(), &longest));
    soon(fourth.release()).await.unwrap();
}

/// A look that is dropped and started again misses nothing.
pub async fn an_observer_that_looks_seldom_misses_nothing(one: &Locks, other: &Locks) {
    let (here, there) = (one.election("blinks"), other.election("blinks"));
    let mut observer = there.observe();
    assert_eq!(told(&mut observer, |_| true).await, None);
    let guard = campaign(&here).await;
    let short = Duration::from_micros(100);
    let mut told = None;
    soon(async {
        while told.is_none() {
            if let Ok(leader) = tokio::time::timeout(short, observer.next()).await {
                told = leader.unwrap();
            }
        }
    })
    .await;
    assert_eq!(told.unwrap().fence(), guard.fence());
    soon(guard.release()).await.unwrap();
}

pub async fn a_proclaimed_value_ends_with_its_leader(one: &Locks, other: &Locks) {
    let (here, there) = (one.election("words"), other.election("words"));
    let mut before = None;
    for round in 0..6_u8 {
        let election = [&here, &there][usize::from(round % 2)];
        let guard = campaign(election).await;
        let leader = leader(&here).await.unwrap();
        assert_eq!(leader.value(), None, "of the leader before");
        assert!(before.replace(leader.fence()) < Some(guard.fence()));
        soon(election.proclaim([round])).await.unwrap();
        let mut observer = there.observe();
        let leader = told(&mut observer, |_| true).await;
        assert!(is_told(leader.as_ref(), &[round]), "{leader:?}");
        soon(guard.release()).await.unwrap();
        let late = soon(election.proclaim("late")).await;
        assert!(late.as_ref().is_err_and(Error::is_lost), "{late:?}");
    }
}

pub async fn a_leader_works_and_resigns(one: &Locks, other: &Locks) {
    let (here, there) = (one.election("work"), other.election("work"));
    let runs = AtomicU32::new(0);
    let work = async |locks: &Locks, election: &Election| {
        let node = locks.node_id();
        election
            .lead(|lease| {
                runs.fetch_add(1, Ordering::SeqCst);
                let election = election.clone();
                async move {
                    assert!(lease.is_held() && election.is_leader());
                    assert_eq!(election.leader().await.unwrap().unwrap().node_id(), node);
                    // A leader does not wait for itself.
                    let again = election.campaign().await;
                    assert!(matches!(again, Err(Error::WouldDeadlock { .. })), "{again:?}");
                    lease.fence()
                }
            })
            .await
            .unwrap()
    };
    let (first, second) = soon(async { tokio::join!(work(one, &here), work(other, &there)) }).await;
    assert_ne!(first, second);
    assert_eq!(runs.load(Ordering::SeqCst), 2);
    assert_eq!(leader(&here).await, None);
}

/// A process that is told to end drops the future, and the next candidate leads.
pub async fn a_dropped_leader_lets_the_next_lead(one: &Locks, other: &Locks) {
    let (here, there) = (one.election("ends"), other.election("ends"));
    let (led, was_led) = tokio::sync::oneshot::channel();
    let mut led = Some(led);
    let leads = here.clone();
    let leading = tokio::spawn(async move {
        let for_ever = leads.lead(|lease| {
            led.take().unwrap().send(lease.fence()).unwrap();
            std::future::pending::<()>()
        });
        for_ever.await
    });
    let first = soon(was_led).await.unwrap();
    let stands = tokio::spawn(async move { there.campaign().await });
    soon(async {
        while other.waiter_count() == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    leading.abort();
    let next = soon(stands).await.unwrap().unwrap();
    assert!(next.fence() > first);
    assert!(!here.is_leader());
    soon(next.release()).await.unwrap();
}

pub async fn locks_of_the_same_key_are_independent(one: &Locks, other: &Locks) {
    let guard = campaign(&one.election("thing")).await;
    let lock = soon(other.mutex("thing").lock()).await.unwrap();
    let permit = soon(other.semaphore("thing", 1).acquire()).await.unwrap();
    let latch = other.latch("thing").life(Duration::from_secs(1));
    assert!(soon(latch.try_set_count(1)).await.unwrap());
    assert_eq!(soon(latch.count_down()).await.unwrap(), 0);
    assert_eq!(
        leader(&other.election("thing")).await.unwrap().fence(),
        guard.fence()
    );
    for guard in [guard, lock, permit] {
        soon(guard.release()).await.unwrap();
    }
}

pub async fn bad_input_is_refused(one: &Locks, other: &Locks) {
    for bad in [&b""[..], &[7; 100_000]] {
        let election = one.election(bad);
        let refused = [
            soon(election.campaign()).await.map(drop),
            soon(election.campaign_timeout(PATIENCE)).await.map(drop),
            soon(election.lead(async |_| ())).await,
            soon(election.leader()).await.map(drop),
            soon(election.observe().next()).await.map(drop),
        ];
        for refused in refused {
            assert!(matches!(refused, Err(Error::Key { .. })), "{refused:?}");
        }
        assert!(!election.is_leader());
    }
    let zero = soon(one.election("bad").lease(Duration::ZERO).campaign()).await;
    assert!(matches!(zero, Err(Error::Options(_))), "{zero:?}");
    let election = other.election("bad");
    let not_led = soon(election.proclaim("x")).await;
    assert!(not_led.as_ref().is_err_and(Error::is_lost), "{not_led:?}");
    let guard = campaign(&election).await;
    let too_long = soon(election.proclaim(vec![0; 64 * 1024 + 1])).await;
    assert!(matches!(too_long, Err(Error::Options(_))), "{too_long:?}");
    let longest = vec![b'x'; 64 * 1024];
    soon(election.proclaim(&longest)).await.unwrap();
    assert!(is_told(leader(&one.election("bad")).await.as_ref(), &longest));
    soon(guard.release()).await.unwrap();
}

/// A test for each law, on two nodes of `nodes`. The store must be empty at the end.
///
/// The form `list laws` adds the laws to the list `laws` instead.
#[macro_export]
macro_rules! laws_of_elections {
    ($nodes:path, $is_empty:path) => {
        $crate::laws_of_elections!(all [$nodes, $is_empty]);
    };
    (list $list:ident) => {
        $crate::laws_of_elections!(all [list $list]);
    };
    (all $form:tt) => {
        $crate::laws_of_elections!($form:
            one_leads_at_a_time,
            observers_are_told_of_leaders,
            a_value_is_told_with_its_leader,
            an_observer_that_looks_seldom_misses_nothing,
            a_proclaimed_value_ends_with_its_leader,
            a_leader_works_and_resigns,
            a_dropped_leader_lets_the_next_lead,
            locks_of_the_same_key_are_independent,
            bad_input_is_refused,
        );
    };
    ([list $list:ident]: $($law:ident,)+) => {
        $($list.add(stringify!($law), |on| on.run($crate::support::elections::$law(&on.one, &on.other)));)+
    };
    ([$nodes:path, $is_empty:path]: $($law:ident,)+) => {
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $law() {
            let (one, other, store) = $nodes().await;
            $crate::support::elections::$law(&one, &other).await;
            one.idle().await;
            other.idle().await;
            assert_eq!((one.key_count(), other.key_count()), (0, 0));
            $is_empty(store).await;
        })+
    };
}
