//! Credentials that a function of the service gives, and that change while locks are held.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use tenure::error::{StoreErrorKind, StoreRefusal};
use tenure::{Error, Guard, Locks};
use tokio::time::sleep;

use crate::bad_input::refused;
use crate::help::{Eyes, held, ms, soon, until};
use crate::server::RedisServer;
use crate::support::events::Watch;

/// What the service knows: the password of now.
type Known = Arc<Mutex<String>>;

fn password_of(known: &Known) -> String {
    known.lock().unwrap().clone()
}

/// Locks whose user is `shop`, with the password that is known when a connection opens.
async fn connect(server: &RedisServer, known: &Known) -> Locks {
    let known = known.clone();
    let hook = move || {
        let password = password_of(&known);
        async move { Ok::<_, io::Error>(("shop".to_owned(), password)) }
    };
    let builder = crate::help::builder().lease(ms(30_000)).credentials(hook);
    builder.connect(&server.url()).await.unwrap()
}

fn set_user(eyes: &mut Eyes, rules: &[&str]) {
    let words = ["ACL", "SETUSER", "shop"].iter().chain(rules);
    let words: Vec<_> = words.map(|word| word.as_bytes()).collect();
    eyes.ask::<()>(&words);
}

/// Under load each of 100 new connections has the password of its time. No caller is refused, and no lease is lost.
#[tokio::test]
async fn a_password_rotates_under_load() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let known = Known::new(Mutex::new("p0".into()));
    set_user(&mut eyes, &["reset", "on", ">p0", "~*", "&*", "+@all"]);
    let locks = connect(&server, &known).await;
    let kept: Guard = held(&locks, "kept").await;
    let stop = tokio_util::sync::CancellationToken::new();
    let times: Arc<[AtomicU32; 4]> = Arc::default();
    let workers: Vec<_> = (0..times.len())
        .map(|worker| {
            let (locks, stop, times) = (locks.clone(), stop.clone(), times.clone());
            tokio::spawn(async move {
                while !stop.is_cancelled() {
                    let guard = locks.mutex(("load", worker)).lock().await?;
                    times[worker].fetch_add(1, Ordering::Relaxed);
                    guard.release().await?;
                }
                Ok::<(), tenure::Error>(())
            })
        })
        .collect();
    let served = || times.each_ref().map(|times| times.load(Ordering::Relaxed));
    for round in 1..=100 {
        // The new password is valid before the service learns it, and the old one until then.
        let (old, new) = (password_of(&known), format!("p{round}"));
        set_user(&mut eyes, &[&format!(">{new}")]);
        *known.lock().unwrap() = new;
        set_user(&mut eyes, &[&format!("<{old}")]);
        let killed: u32 = eyes.ask(&[b"CLIENT", b"KILL", b"USER", b"shop"]);
        assert!(killed > 0, "round {round}");
        let is_back = || {
            let clients: String = eyes.ask(&[b"CLIENT", b"LIST"]);
            clients.matches("user=shop").count() >= 2
        };
        until("both connections are back", is_back).await;
        // A caller waits through an outage of a lease, and on a slow machine many kills in a row are one.
        let before = served();
        let all_go_on = || served().iter().zip(before).all(|(times, before)| *times > before);
        let is_refused = || workers.iter().any(tokio::task::JoinHandle::is_finished);
        until("each worker goes on", || all_go_on() || is_refused()).await;
    }
    stop.cancel();
    for worker in workers {
        soon(worker).await.unwrap().expect("no caller is refused");
    }
    assert!(kept.is_held());
    kept.release().await.unwrap();
}

#[tokio::test]
async fn credentials_that_are_missing_or_wrong_are_told_without_the_password() {
    let server = RedisServer::with_args(&["--requirepass", "hunter2"]);
    let fails = || async { Err::<(String, String), _>("the vault is sealed") };
    let (text, error) = refused(
        crate::help::builder()
            .credentials(fails)
            .connect(&server.url())
            .await,
    );
    assert_eq!(error.kind(), &StoreErrorKind::Unreachable);
    assert!(text.contains("the vault is sealed"), "{text}");

    let panics = || async { panic!("no vault") as Result<(String, String), io::Error> };
    let (text, _) = refused(
        crate::help::builder()
            .credentials(panics)
            .connect(&server.url())
            .await,
    );
    assert!(text.contains("panicked"), "{text}");

    let wrong = || async { Ok::<_, io::Error>(("default".into(), "hunter3".into())) };
    let builder = crate::help::builder().credentials(wrong);
    assert!(!format!("{builder:?}").contains("hunter"), "{builder:?}");
    let (text, error) = refused(builder.connect(&server.url()).await);
    assert_eq!(
        error.kind(),
        &StoreErrorKind::Refused(StoreRefusal::WrongPassword)
    );
    assert!(!text.contains("hunter3"), "{text}");
}

/// The password changes, and the service does not know the new one. The outage begins with a broken connection, and its report
/// names the refusal.
#[tokio::test]
async fn an_outage_by_a_wrong_password_is_reported_with_the_refusal() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let known = Known::new(Mutex::new("p0".into()));
    set_user(&mut eyes, &["reset", "on", ">p0", "~*", "&*", "+@all"]);
    let watch = Watch::of(format!("127.0.0.1:{}", server.port()));
    let locks = connect(&server, &known).await;
    let guard = held(&locks, "a").await;
    set_user(&mut eyes, &["resetpass", ">p1"]);
    eyes.ask::<u32>(&[b"CLIENT", b"KILL", b"USER", b"shop"]);
    let is_told = || {
        let told = watch.told();
        let mut failing = told.iter().filter(|told| told.event == "store_failing");
        failing.any(|told| format!("{told:?}").contains("WRONGPASS"))
    };
    until("the refusal is named", is_told).await;
    assert!(watch.count("store_failing") <= 2, "{:#?}", watch.told());
    *known.lock().unwrap() = "p1".into();
    let renewed = async {
        // Until a connection opens with the new password, a renewal is refused as the connections were.
        while let Err(Error::Store { .. }) = guard.renew().await {
            sleep(ms(20)).await;
        }
    };
    soon(renewed).await;
    soon(guard.release()).await.unwrap();
}
