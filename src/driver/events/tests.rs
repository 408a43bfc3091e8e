//! Each test has a queue, and so an event thread, of its own.

use std::fmt::{Debug, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::Wake;
use std::thread;
use std::time::Duration;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::with_default;
use tracing::{Event, Metadata, Subscriber};

use super::*;
use crate::driver::events::queue::{ROOM, ROOM_BEYOND};
use crate::key::Key;
use crate::protocol::message::NodeId;

const PATIENCE: Duration = Duration::from_secs(20);

/// A subscriber that does something with each event.
struct Each<F>(F);

impl<F: Fn(&str) + Send + Sync + 'static> Subscriber for Each<F> {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(format!("{} ", event.metadata().level()));
        event.record(&mut text);
        (self.0)(&text.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = write!(self.0, "{}={value:?} ", field.name());
    }
}

type Told = Arc<Mutex<Vec<String>>>;

/// A sink for the subscriber, on a queue of its own.
fn sink_for(act: impl Fn(&str) + Send + Sync + 'static) -> EventSink {
    let label = Label::new(NodeId::numbered(1), Some("one"));
    with_default(Each(act), || {
        EventSink::to(Box::leak(Box::new(Queue::new())), label)
    })
}

fn keeps(told: &Told) -> impl Fn(&str) + Send + Sync + 'static {
    let told = told.clone();
    move |text| told.lock().unwrap().push(text.to_owned())
}

fn count(told: &Told, what: &str) -> usize {
    told.lock()
        .unwrap()
        .iter()
        .filter(|text| text.contains(what))
        .count()
}

fn name(key: &str) -> Name {
    Name::lock(Key::from(key))
}

/// Blocks whoever tells something, from the first event on, until something is sent.
fn blocking(told: &Told) -> (EventSink, Receiver<()>, Sender<()>) {
    let (blocked, is_blocked) = channel();
    let (go, may_go) = channel::<()>();
    let may_go = Mutex::new(Some(may_go));
    let keep = keeps(told);
    let sink = sink_for(move |text| {
        let first = may_go.lock().unwrap().take();
        if let Some(may_go) = first {
            blocked.send(()).unwrap();
            may_go.recv().unwrap();
        }
        keep(text);
    });
    (sink, is_blocked, go)
}

#[test]
fn a_subscriber_that_blocks_costs_events_and_no_loss() {
    let told = Told::default();
    let (sink, is_blocked, go) = blocking(&told);
    sink.push(observe::inbox_open(None));
    is_blocked.recv_timeout(PATIENCE).unwrap();
    for _ in 0..ROOM + 100 {
        sink.push_key_event(&name("a"), &KeyEvent::Late);
    }
    // An ended lease is no trouble, and has no room of its own.
    sink.push_loss(&name("a"), LostCause::Ended, None);
    for _ in 0..ROOM_BEYOND + 10 {
        sink.push_loss(&name("a"), LostCause::Deadline, None);
    }
    assert_eq!(count(&told, ""), 0);
    go.send(()).unwrap();
    sink.queue.flush(PATIENCE);
    assert_eq!(count(&told, "event=\"late\""), ROOM);
    assert_eq!(count(&told, "event=\"lost\""), ROOM_BEYOND);
    assert_eq!(count(&told, "event=\"events_dropped\""), 1);
    assert_eq!(count(&told, &format!("count={} ", 100 + 1 + 10)), 1);
    // And there is room again.
    sink.push_key_event(&name("a"), &KeyEvent::Late);
    sink.queue.flush(PATIENCE);
    assert_eq!(count(&told, "event=\"late\""), ROOM + 1);
}

#[test]
fn of_a_hundred_producers_each_event_is_told_or_counted() {
    const EACH: usize = 100;
    let told = Told::default();
    let sink = sink_for(keeps(&told));
    thread::scope(|scope| {
        for n in 0..100 {
            let sink = sink.clone();
            scope.spawn(move || {
                for _ in 0..EACH {
                    sink.push_key_event(&name(&format!("of {n}.")), &KeyEvent::Requeued);
                }
            });
        }
    });
    sink.queue.flush(PATIENCE);
    let dropped = told
        .lock()
        .unwrap()
        .iter()
        .filter_map(|text| text.split_once("count=")?.1.split_once(' '))
        .map(|(count, _)| count.parse::<usize>().unwrap())
        .sum::<usize>();
    assert_eq!(count(&told, "requeued") + dropped, 100 * EACH);
    assert!((0..100).all(|n| count(&told, &format!("of {n}.")) <= EACH));
}

#[test]
fn what_only_the_simulator_counts_is_not_told() {
    let told = Told::default();
    let sink = sink_for(keeps(&told));
    sink.push_key_event(&name("a"), &KeyEvent::Yielded);
    sink.queue.flush(PATIENCE);
    assert_eq!(count(&told, ""), 0);
}

/// Its last handle may run anything.
#[test]
fn a_subscriber_ends_on_the_event_thread() {
    struct Ends(Sender<Option<String>>);
    impl Drop for Ends {
        fn drop(&mut self) {
            let _ = self.0.send(thread::current().name().map(str::to_owned));
        }
    }
    let (ended, has_ended) = channel();
    let ends = Ends(ended);
    let sink = sink_for(move |_| {
        let _ = &ends;
    });
    drop(sink);
    let thread = has_ended.recv_timeout(PATIENCE).unwrap();
    assert_eq!(thread.as_deref(), Some("tenure-events"));
}

#[test]
fn a_waker_that_panics_ends_nothing() {
    struct Panics(AtomicBool);
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::SeqCst);
            panic!("a waker could not wake");
        }
    }
    let panics = Arc::new(Panics(AtomicBool::new(false)));
    wake(panics.clone().into());
    assert!(panics.0.load(Ordering::SeqCst));
}
