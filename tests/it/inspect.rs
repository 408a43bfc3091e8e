//! What operators see of a store in memory.

use tenure::inspect::{Page, State};
use tenure::protocol::ledger::{Record, RecordOwner};
use tenure::protocol::message::Name;
use tenure::{Locks, MemoryStore};

use crate::help::{ms, soon};
use crate::support::inspect;

fn nodes() -> (MemoryStore, Locks, Locks) {
    let store = MemoryStore::new();
    let node = |name: &str| {
        let builder = Locks::builder().node_name(name).seed(7);
        builder.memory_shared(&store).unwrap()
    };
    let (one, other) = (node("one"), node("other"));
    (store, one, other)
}

#[tokio::test]
async fn an_owner_and_its_waiter_are_shown() {
    let (_, one, other) = nodes();
    inspect::an_owner_and_its_waiter_are_shown(&one, &other).await;
}

#[tokio::test]
async fn each_kind_of_a_key_has_an_entry() {
    let (_, one, other) = nodes();
    inspect::each_kind_of_a_key_has_an_entry(&one, &other).await;
}

#[tokio::test]
async fn pages_have_each_key_with_the_prefix() {
    let (_, one, _) = nodes();
    inspect::pages_have_each_key_with_the_prefix(&one, 1_100).await;
    let guards: Vec<_> = {
        let keys: Vec<_> = (0..1_001).map(|n| one.mutex(n)).collect();
        let mut guards = Vec::new();
        for key in keys {
            guards.push(key.lock().await.unwrap());
        }
        guards
    };
    let inspection = one.inspect();
    let (mut sizes, mut from) = (Vec::new(), None);
    loop {
        let page: Page = soon(inspection.list("", from)).await.unwrap();
        sizes.push(page.entries.len());
        from = page.next;
        if from.is_none() {
            break;
        }
    }
    assert_eq!(sizes, [500, 500, 1]);
    drop(guards);
}

#[tokio::test]
async fn a_foreign_record_is_shown_without_its_value() {
    let (store, one, _) = nodes();
    let name = Name::lock("a".into());
    store.with_ledger(|ledger, now_us| {
        let expires = Some(now_us / 1000 + 60_000);
        let owner = RecordOwner::Foreign;
        ledger.overwrite(
            &name,
            Some(Record {
                owner,
                expires,
                may_keep: false,
            }),
        );
    });
    let entries = inspect::show(&one, "a").await;
    assert_eq!(entries.len(), 1);
    assert_eq!((entries[0].state, entries[0].holder_count), (State::Foreign, 0));
    assert!(
        entries[0].remaining.is_some_and(|left| left <= ms(60_000)),
        "{entries:?}"
    );
}

#[tokio::test]
async fn looking_changes_nothing() {
    let (store, one, other) = nodes();
    let guard = one.mutex("a").lock().await.unwrap();
    let mutex = other.mutex("a");
    let waiting = tokio::spawn(async move { mutex.lock().await });
    inspect::until(&one, "a", |entry| entry.waiter_count == 1).await;
    let name = Name::lock("a".into());
    let entries = |store: &MemoryStore| {
        store.with_ledger(|ledger, _| {
            let entries = ledger
                .entries()
                .map(|(name, claim_id, dies)| (name.clone(), claim_id, dies));
            entries.collect::<Vec<_>>()
        })
    };
    // The key is free and its waiter is dead: a request would settle it.
    store.with_ledger(|ledger, _| {
        let waiter = ledger.waiters(&name)[0];
        ledger.overwrite(&name, None);
        ledger.age(&name, waiter, 3_600_000);
    });
    let before = entries(&store);
    for _ in 0..3 {
        let shown = inspect::show(&one, "a").await;
        assert_eq!(shown[0].state, State::WaitedFor);
        assert!(shown[0].waiters[0].is_dead, "{shown:?}");
        assert_eq!(inspect::list(&one, "").await, shown);
    }
    assert_eq!(entries(&store), before);
    waiting.abort();
    drop(guard);
}

#[tokio::test]
async fn nothing_that_is_shown_is_a_secret() {
    let (store, one, other) = nodes();
    let _guard = one.mutex("a").lock().await.unwrap();
    let mutex = other.mutex("a");
    let waiting = tokio::spawn(async move { mutex.lock().await });
    let entry = inspect::until(&one, "a", |entry| entry.waiter_count == 1).await;
    let name = Name::lock("a".into());
    let nonces = store.with_ledger(|ledger, now_us| {
        let Some(RecordOwner::Claim(owner, _)) =
            ledger.record(&name, now_us).map(|record| record.owner.clone())
        else {
            panic!("it is owned");
        };
        [owner.nonce, ledger.waiters(&name)[0].nonce]
    });
    inspect::is_no_secret(&format!("{entry:?}"), &nonces);
    #[cfg(feature = "serde")]
    inspect::is_no_secret(&serde_json::to_string(&entry).unwrap(), &nonces);
    waiting.abort();
}

#[tokio::test]
async fn a_node_tells_of_itself_from_its_first_lease_to_its_shutdown() {
    let (_, one, other) = nodes();
    assert_eq!(soon(one.inspect().nodes()).await.unwrap(), []);
    let guard = one.mutex("a").lock().await.unwrap();
    inspect::until_told(&other, "a").await;
    let nodes = soon(other.inspect().nodes()).await.unwrap();
    assert_eq!(nodes.len(), 1, "the other node never asked for a lease");
    let told = nodes[0].presence.as_ref().unwrap();
    assert_eq!(
        (nodes[0].id, &*told.name, told.pid),
        (one.node_id(), "one", std::process::id())
    );
    assert_eq!(told.version, env!("CARGO_PKG_VERSION"));
    assert!(!told.host.is_empty());
    drop(guard);
    soon(one.shutdown()).await;
    assert_eq!(soon(other.inspect().nodes()).await.unwrap(), []);
    let silent = Locks::builder().presence(false).memory().unwrap();
    drop(silent.mutex("a").lock().await.unwrap());
    assert_eq!(soon(silent.inspect().nodes()).await.unwrap(), []);
}

#[cfg(feature = "serde")]
#[tokio::test]
async fn an_entry_has_the_documented_form_of_json() {
    use serde_json::{Value, json};

    let (_, one, _) = nodes();
    let guard = one.mutex(&b"\xff\x1b[31m\n"[..]).lock().await.unwrap();
    let text = one.mutex("\u{202e}\u{1b}[2J").lock().await.unwrap();
    let mut entries = inspect::list(&one, "").await;
    entries.sort_by_key(|entry| entry.key.as_bytes()[0]);
    let forms: Vec<Value> = entries
        .iter()
        .map(|entry| serde_json::to_value(entry).unwrap())
        .collect();
    assert_eq!(forms[0]["key"], json!("\u{202e}\u{1b}[2J"));
    assert_eq!(forms[1]["key"], json!({ "hex": "ff1b5b33316d0a" }));
    let holder = &forms[0]["holders"][0];
    assert_eq!(holder["fence"], json!(text.fence().to_string()));
    assert_eq!(holder["node"]["id"], json!(one.node_id().to_string()));
    assert!(holder["since"].as_str().unwrap().ends_with('Z'), "{holder}");
    assert!(holder["remaining"].as_u64().unwrap() <= 11_000, "{holder}");
    assert_eq!(
        (&forms[0]["kind"], &forms[0]["state"]),
        (&json!("lock"), &json!("held"))
    );
    drop((guard, text));
}
