//! Each test has its own queue, and so its own event thread.

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
use crate::driver::events::queue::{MAX_EXTRA_LOSSES, MAX_WAITING_EVENTS};
use crate::key::Key;
use crate::protocol::message::NodeId;

const PATIENCE: Duration = Duration::from_secs(20);

/// A subscriber that runs a function for each event.
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

type EmittedTexts = Arc<Mutex<Vec<String>>>;

/// Returns a sink for such a subscriber, on its own queue.
fn sink_for(act: impl Fn(&str) + Send + Sync + 'static) -> EventSink {
    let label = Label::new(NodeId::numbered(1), Some("one"));
    with_default(Each(act), || {
        EventSink::with_queue(Box::leak(Box::new(EventQueue::new())), label)
    })
}

fn keeps(texts: &EmittedTexts) -> impl Fn(&str) + Send + Sync + 'static {
    let texts = texts.clone();
    move |text| texts.lock().unwrap().push(text.to_owned())
}

fn count(texts: &EmittedTexts, what: &str) -> usize {
    texts
        .lock()
        .unwrap()
        .iter()
        .filter(|text| text.contains(what))
        .count()
}

fn name(key: &str) -> Name {
    Name::lock(Key::from(key))
}

/// Returns a sink whose subscriber blocks at the first event until something is sent.
fn blocking(texts: &EmittedTexts) -> (EventSink, Receiver<()>, Sender<()>) {
    let (blocked, is_blocked) = channel();
    let (go, may_go) = channel::<()>();
    let may_go = Mutex::new(Some(may_go));
    let keep = keeps(texts);
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
    let texts = EmittedTexts::default();
    let (sink, is_blocked, go) = blocking(&texts);
    sink.push(observe::inbox_open(None));
    is_blocked.recv_timeout(PATIENCE).unwrap();
    for _ in 0..MAX_WAITING_EVENTS + 100 {
        sink.push_key_event(&name("a"), &KeyEvent::Late);
    }
    // An ended lease is no trouble, so it gets no extra room.
    sink.push_loss(&name("a"), LostCause::Ended, None);
    for _ in 0..MAX_EXTRA_LOSSES + 10 {
        sink.push_loss(&name("a"), LostCause::Deadline, None);
    }
    assert_eq!(count(&texts, ""), 0);
    go.send(()).unwrap();
    sink.queue.flush(PATIENCE);
    assert_eq!(count(&texts, "event=\"late\""), MAX_WAITING_EVENTS);
    assert_eq!(count(&texts, "event=\"lost\""), MAX_EXTRA_LOSSES);
    assert_eq!(count(&texts, "event=\"events_dropped\""), 1);
    assert_eq!(count(&texts, &format!("count={} ", 100 + 1 + 10)), 1);
    // There is room again.
    sink.push_key_event(&name("a"), &KeyEvent::Late);
    sink.queue.flush(PATIENCE);
    assert_eq!(count(&texts, "event=\"late\""), MAX_WAITING_EVENTS + 1);
}

#[test]
fn each_event_of_a_hundred_producers_is_emitted_or_counted() {
    const EACH: usize = 100;
    let texts = EmittedTexts::default();
    let sink = sink_for(keeps(&texts));
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
    let dropped = texts
        .lock()
        .unwrap()
        .iter()
        .filter_map(|text| text.split_once("count=")?.1.split_once(' '))
        .map(|(count, _)| count.parse::<usize>().unwrap())
        .sum::<usize>();
    assert_eq!(count(&texts, "requeued") + dropped, 100 * EACH);
    assert!((0..100).all(|n| count(&texts, &format!("of {n}.")) <= EACH));
}

#[test]
fn events_for_the_simulator_are_not_emitted() {
    let texts = EmittedTexts::default();
    let sink = sink_for(keeps(&texts));
    sink.push_key_event(&name("a"), &KeyEvent::Yielded);
    sink.queue.flush(PATIENCE);
    assert_eq!(count(&texts, ""), 0);
}

/// The last handle of a subscriber may run any code.
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
fn the_panic_of_a_waker_is_caught() {
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
