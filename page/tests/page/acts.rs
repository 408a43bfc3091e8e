//! What an operator does: the form, what it shows, and what became of it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::StatusCode;
use tenure::Locks;
use tenure::error::LostCause;
use tokio::sync::Semaphore;
use tokio_cron_scheduler::JobScheduler;

use crate::tools::{Browser, all, hex, operated_by, until};

async fn steal_link(browser: &mut Browser, key: &str) -> String {
    let page = browser.open(&format!("/key?k={}", hex(key))).await;
    let mut links = page.links("a.act");
    assert_eq!(links.len(), 1, "{}", page.body);
    format!("/{}", links.remove(0))
}

#[tokio::test]
async fn a_steal_shows_what_it_takes_and_what_became_of_it() {
    let locks = Locks::memory();
    let guard = locks.mutex("account:42").lock().await.unwrap();
    guard.note("POST /transfer");
    let inspection = locks.inspect();
    until("the note is told", || async {
        let entry = inspection.show("account:42").await.unwrap().entries.remove(0);
        (!entry.holders[0].notes.is_empty()).then_some(())
    })
    .await;
    let mut mia = operated_by(&locks, "mia");
    let link = steal_link(&mut mia, "account:42").await;
    let shown = mia.open(&link).await.texts("main dl div").join("; ");
    let number = locks.inspect().show("account:42").await.unwrap().entries[0].holders[0].number;
    assert!(shown.contains(&format!("number {}", number.unwrap())), "{shown}");
    assert!(shown.contains("POST /transfer"), "{shown}");
    let holder = async {
        let asked = guard.asked().await.expect("it is held");
        assert_eq!((&*asked.by, &*asked.why), ("mia", "INC-7"));
        guard.release().await.unwrap();
    };
    let (steps, ()) = tokio::join!(mia.confirm(&link, &[]), holder);
    assert_eq!(steps, ["Asked: the holder has 10s.", "Given back by its holder."]);
    let audit = locks.inspect().audit().await.unwrap();
    assert_eq!(
        (&*audit[0].by, &*audit[0].what, &*audit[0].why),
        ("mia", "asked", "INC-7")
    );
    let page = mia.open(&format!("/key?k={}", hex("account:42"))).await;
    assert!(
        page.texts("#audit tr").join("; ").contains("INC-7"),
        "{}",
        page.body
    );
}

#[tokio::test]
async fn a_lease_is_revoked_after_the_grace_and_handed_over_at_once_if_wanted() {
    for (more, last, cause) in [
        (
            &[("grace", "0")][..],
            "The revoked lease has ended.",
            LostCause::Revoked,
        ),
        (&[("now", "yes")][..], "Handed over.", LostCause::Revoked),
    ] {
        let locks = Locks::memory();
        let guard = locks.mutex("a").lock().await.unwrap();
        let mut mia = operated_by(&locks, "mia");
        let link = steal_link(&mut mia, "a").await;
        let lost = async move { guard.lost().await };
        let (steps, lost) = tokio::join!(mia.confirm(&link, more), lost);
        assert_eq!(lost, cause);
        let shows_end = steps
            .last()
            .is_some_and(|step| step == last || step.starts_with("It goes on"));
        assert!(shows_end, "{steps:?}");
    }
}

#[tokio::test]
async fn a_lease_that_changed_hands_is_not_taken() {
    let locks = Locks::memory();
    let guard = locks.mutex("a").lock().await.unwrap();
    let mut mia = operated_by(&locks, "mia");
    let link = steal_link(&mut mia, "a").await;
    let (to, fields) = mia.form(&link).await;
    guard.release().await.unwrap();
    let next = locks.mutex("a").lock().await.unwrap();
    let answer = mia.post(&to, &fields).await;
    let steps = mia.follow(&answer).await.texts("#steps p");
    assert_eq!(steps, ["It changed hands since you looked: nothing was done."]);
    assert!(next.is_held());
    assert!(locks.inspect().audit().await.unwrap().is_empty());
    let answer = mia.get(&link).await;
    assert_eq!(answer.status, StatusCode::CONFLICT);
    assert!(answer.body.contains("changed hands"), "{}", answer.body);
}

/// The script loads a page again if the answer has a region that the page lacks. So a form that was opened while the store was away
/// is there when the store is back.
#[tokio::test]
async fn a_form_has_a_region_that_the_page_of_an_outage_lacks() {
    let locks = Locks::memory();
    let _guard = locks.mutex("a").lock().await.unwrap();
    let mut mia = operated_by(&locks, "mia");
    let link = steal_link(&mut mia, "a").await;
    assert_eq!(mia.open(&link).await.texts("#confirmation[data-live]").len(), 1);
}

/// A job that counts its runs, each of which goes on until it may end.
struct Scene {
    locks: Locks,
    _scheduler: JobScheduler,
    begun: Arc<Semaphore>,
    may_end: Arc<Semaphore>,
}

async fn scene() -> Scene {
    let locks = Locks::memory();
    let (begun, may_end) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (begins, ends) = (begun.clone(), may_end.clone());
    let job = locks.cron("reconcile", "0 0 0 1 1 *").run(move |_| {
        let (begins, ends) = (begins.clone(), ends.clone());
        async move {
            begins.add_permits(1);
            ends.acquire().await.expect("it stays open").forget();
        }
    });
    let scheduler = JobScheduler::new().await.unwrap();
    locks.add_job(&scheduler, job.unwrap()).await.unwrap();
    scheduler.start().await.unwrap();
    let jobs = locks.jobs();
    until("the job is known", || async {
        jobs.show("reconcile").await.unwrap()
    })
    .await;
    Scene {
        locks,
        _scheduler: scheduler,
        begun,
        may_end,
    }
}

/// Returns the link of an act about the job whose text begins so.
async fn job_link(browser: &mut Browser, words: &str) -> String {
    let page = browser.open(&format!("/job?k={}", hex("reconcile"))).await;
    let (texts, links) = (page.texts("a.act"), page.links("a.act"));
    let at = texts.iter().position(|text| text.starts_with(words));
    format!(
        "/{}",
        links[at.unwrap_or_else(|| panic!("no `{words}` among {texts:?}"))]
    )
}

#[tokio::test]
async fn a_job_is_paused_and_resumed() {
    let scene = scene().await;
    let mut mia = operated_by(&scene.locks, "mia");
    let pause = job_link(&mut mia, "Pause").await;
    assert_eq!(mia.confirm(&pause, &[]).await, ["The job is paused."]);
    let job = scene.locks.jobs().show("reconcile").await.unwrap().unwrap();
    assert_eq!(&*job.paused.unwrap().by, "mia");
    assert_eq!(mia.confirm(&pause, &[]).await, ["It was paused already."]);
    let page = mia.open(&format!("/job?k={}", hex("reconcile"))).await;
    assert!(
        page.texts("#facts div")
            .join("; ")
            .contains("Paused by mia: INC-7"),
        "{}",
        page.body
    );
    let resume = job_link(&mut mia, "Resume").await;
    assert_eq!(
        mia.confirm(&resume, &[("catch_up", "yes")]).await,
        ["The job is resumed."]
    );
    let audit = scene.locks.inspect().audit().await.unwrap();
    assert_eq!(audit[0].what, "resumed_to_catch_up");
}

/// The form of an hour ago does not end the pause that another operator began meanwhile.
#[tokio::test]
async fn a_pause_that_was_not_shown_is_not_ended() {
    let scene = scene().await;
    let (mut mia, jobs) = (operated_by(&scene.locks, "mia"), scene.locks.jobs());
    jobs.pause("reconcile", "ann", "slow disk").await.unwrap();
    let resume = job_link(&mut mia, "Resume").await;
    let (to, fields) = mia.form(&resume).await;
    let first = jobs
        .show("reconcile")
        .await
        .unwrap()
        .unwrap()
        .paused
        .unwrap()
        .since;
    until("another pause began at another time", || async {
        jobs.resume("reconcile", false, "ann", "disk is changed")
            .await
            .unwrap();
        jobs.pause("reconcile", "bob", "wrong rates").await.unwrap();
        let job = jobs.show("reconcile").await.unwrap().unwrap();
        (job.paused.unwrap().since != first).then_some(())
    })
    .await;
    let answer = mia.post(&to, &fields).await;
    let steps = mia.follow(&answer).await.texts("#steps p");
    assert_eq!(steps, ["It was paused again since you looked: nothing was done."]);
    let job = jobs.show("reconcile").await.unwrap().unwrap();
    assert_eq!(&*job.paused.unwrap().by, "bob");
    assert_eq!(mia.get(&resume).await.status, StatusCode::CONFLICT);
}

/// The script exchanges rows by their ids.
#[tokio::test]
async fn acts_within_a_second_have_rows_of_their_own() {
    let scene = scene().await;
    let jobs = scene.locks.jobs();
    for _ in 0..4 {
        jobs.pause("reconcile", "ann", "slow disk").await.unwrap();
        // The acts of a millisecond are one row for the script.
        tokio::time::sleep(Duration::from_millis(2)).await;
        jobs.resume("reconcile", false, "ann", "slow disk").await.unwrap();
    }
    let page = operated_by(&scene.locks, "mia")
        .open(&format!("/job?k={}", hex("reconcile")))
        .await;
    let html = page.html();
    let ids: Vec<_> = all(&html, "#history tr")
        .filter_map(|row| row.attr("id"))
        .collect();
    let different: BTreeSet<_> = ids.iter().collect();
    assert!(ids.len() >= 8, "{}", page.body);
    assert_eq!(different.len(), ids.len(), "{ids:?}");
}

#[tokio::test]
async fn a_job_is_triggered_for_a_tick_once_however_often_the_form_is_sent() {
    let scene = scene().await;
    let mut mia = operated_by(&scene.locks, "mia");
    let trigger = job_link(&mut mia, "Run once more").await;
    let (to, fields) = mia.form(&trigger).await;
    for _ in 0..2 {
        let answer = mia.post(&to, &fields).await;
        assert_eq!(mia.follow(&answer).await.texts("#steps p"), ["A run is wanted."]);
        scene.may_end.add_permits(1);
        let jobs = scene.locks.jobs();
        let is_over = || async {
            let job = jobs.show("reconcile").await.unwrap().unwrap();
            (job.wanted.is_none() && job.latest.is_some_and(|run| run.took.is_some())).then_some(())
        };
        until("the run has ended", is_over).await;
    }
    assert_eq!(scene.begun.available_permits(), 1, "the second form acted, too");
    let again = job_link(&mut mia, "Run again").await;
    let shown = mia.open(&again).await;
    assert!(
        shown.texts("#tick-runs tr").join("; ").contains("done"),
        "{}",
        shown.body
    );
    assert_eq!(mia.confirm(&again, &[]).await, ["A run is wanted."]);
    let wanted = async || scene.locks.jobs().show("reconcile").await.unwrap().unwrap();
    let past = SystemTime::now() - Duration::from_secs(5);
    let tick = wanted().await.current.map(|current| current.tick);
    assert!(tick.is_none_or(|tick| tick > past), "{tick:?}");
}

#[tokio::test]
async fn a_run_is_cancelled_and_another_one_is_not() {
    let scene = scene().await;
    let mut mia = operated_by(&scene.locks, "mia");
    let trigger = job_link(&mut mia, "Run once more").await;
    mia.confirm(&trigger, &[]).await;
    scene.begun.acquire().await.unwrap().forget();
    let cancel = job_link(&mut mia, "Cancel").await;
    let steps = mia.confirm(&cancel, &[("grace", "0")]).await;
    assert_eq!(steps.last().map(String::as_str), Some("Cancelled."), "{steps:?}");
    let jobs = scene.locks.jobs();
    let is_cancelled = || async {
        let run = jobs.show("reconcile").await.unwrap().unwrap().latest?;
        (run.state.word() == "cancelled").then_some(())
    };
    until("the run is cancelled", is_cancelled).await;
    let answer = mia.get(&cancel).await;
    assert_eq!(answer.status, StatusCode::CONFLICT, "{}", answer.body);
}

#[tokio::test]
async fn an_act_needs_a_reason() {
    let scene = scene().await;
    let mut mia = operated_by(&scene.locks, "mia");
    let pause = job_link(&mut mia, "Pause").await;
    let (to, mut fields) = mia.form(&pause).await;
    fields.insert("why".to_owned(), "  ".to_owned());
    assert_eq!(mia.post(&to, &fields).await.status, StatusCode::BAD_REQUEST);
    assert!(scene.locks.inspect().audit().await.unwrap().is_empty());
}

/// A grace that is no number was once taken for the usual one.
#[tokio::test]
async fn a_grace_that_is_no_number_is_refused() {
    let locks = Locks::memory();
    let guard = locks.mutex("a").lock().await.unwrap();
    let mut mia = operated_by(&locks, "mia");
    let link = steal_link(&mut mia, "a").await;
    for grace in ["a day", "-1", "3601", "99999999999999999999"] {
        let (to, mut fields) = mia.form(&link).await;
        fields.insert("grace".to_owned(), grace.to_owned());
        assert_eq!(
            mia.post(&to, &fields).await.status,
            StatusCode::BAD_REQUEST,
            "{grace}"
        );
    }
    assert!(guard.is_held() && locks.inspect().audit().await.unwrap().is_empty());
}
