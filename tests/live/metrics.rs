//! Errors, outages and answers of the store.

use std::collections::BTreeSet;

use crate::help::{Eyes, addr, held, locks, ms, soon, until, url};
use crate::server::RedisServer;
use crate::support::alone::alone;
use crate::support::events::Watch;
use crate::support::meter::Meter;
use crate::support::proxy::Proxy;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_are_counted_by_what_they_disturb() {
    let meter = Meter::global();
    let server = RedisServer::with_args(&["--maxmemory-policy", "noeviction"]);
    let proxy = Proxy::start(addr(&server));
    let mut eyes = Eyes::on(&server);
    let one = locks(&url(proxy.addr()), ms(4_000)).await;
    let other = locks(&url(proxy.addr()), ms(4_000)).await;
    let (held_one, dropped) = (
        held(&one, "metered renewal").await,
        held(&one, "metered drop").await,
    );
    let released = held(&one, "metered release").await;
    let waiter = tokio::spawn(other.mutex("metered renewal").lock());
    until("it waits", || eyes.queue("metered renewal") == 1).await;
    // And knows it: answers come in order.
    soon(other.ping()).await.unwrap();
    let of_key = |what: &str| Watch::of(format!("key=metered {what} "));
    let (renewal, drop_watch, release) = (of_key("renewal"), of_key("drop"), of_key("release"));
    let (refused, node) = (of_key("refusal"), Watch::of(one.node_id().to_string()));

    // Every connection breaks, and no new one is to be had.
    proxy.refuse(true);
    assert!(proxy.reset() > 0);
    drop(dropped);
    assert!(soon(released.release()).await.is_err());
    assert!(soon(one.mutex("metered refusal").lock()).await.is_err());
    for (watch, event, during) in [
        (&renewal, "renew_failed", "renew"),
        (&renewal, "wait_failed", "wait"),
        (&release, "release_failed", "release"),
        (&refused, "denied", "lock"),
        (&node, "connection_lost", "connection"),
        (&node, "inbox_lost", "inbox"),
        (&drop_watch, "leave_failed", "withdraw"),
    ] {
        watch.until(event).await;
        // Told and counted by one function, in the reverse order.
        let begin = format!("tenure_store_errors_total{{during={during},error=");
        let counted: BTreeSet<String> = meter
            .series()
            .into_iter()
            .filter_map(|(_, series)| Some(series.strip_prefix(&begin)?.to_owned()))
            .collect();
        assert!(!counted.is_empty(), "nothing is counted during {during}");
    }
    proxy.heal();
    drop(held_one);
    drop(soon(waiter).await.unwrap());

    let _: String = eyes.text("CONFIG SET maxmemory 1");
    let series = "tenure_store_errors_total{during=lock,error=out_of_memory}";
    soon(async {
        while meter.count(series) == 0 {
            assert!(one.mutex("metered refusal").lock().await.is_err());
        }
    })
    .await;
}

/// Gauges are those of the process, so this test has one of its own.
#[test]
fn an_outage_is_shown_while_it_lasts() {
    alone("metrics::an_outage_is_shown_while_it_lasts", || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(outage());
    });
}

async fn outage() {
    let meter = Meter::global();
    let server = RedisServer::start();
    let proxy = Proxy::start(addr(&server));
    let one = locks(&url(proxy.addr()), ms(4_000)).await;
    let other = locks(&url(proxy.addr()), ms(4_000)).await;
    let guard = held(&one, "metered").await;
    soon(guard.release()).await.unwrap();
    let answers = meter.values("tenure_store_seconds");
    let is_answer = |answer: &f64| *answer > 0.0;
    assert!(answers.len() > 1 && answers.iter().all(is_answer), "{answers:?}");

    let failing = format!("tenure_store_failing{{server={}}}", proxy.addr());
    let shown = || {
        (
            meter.gauge(&failing).unwrap_or(0.0),
            meter.gauge("tenure_inbox_lost").unwrap(),
        )
    };
    until("no inbox is lost", || shown() == (0.0, 0.0)).await;
    proxy.refuse(true);
    proxy.reset();
    until("both are in an outage", || shown() == (2.0, 2.0)).await;
    proxy.heal();
    until("both are back", || shown() == (0.0, 0.0)).await;
    proxy.refuse(true);
    proxy.reset();
    until("both are in an outage again", || shown() == (2.0, 2.0)).await;
    // One ends in order in the outage, the other is dropped.
    soon(one.shutdown()).await;
    until("one is over", || shown() == (1.0, 1.0)).await;
    drop(other);
    until("both are over", || shown() == (0.0, 0.0)).await;
    drop(one);
}
