//! The inbox: the stream of grants and news that a server pushes to this node.

use std::any::Any;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Poll;

use tokio::sync::mpsc;

use crate::driver::node::Node;
use crate::driver::servers::{OpenInbox, Server};
use crate::driver::waiter::lock;
use crate::error::{StoreError, StoreErrorKind};
use crate::observe;
#[cfg(feature = "scheduler")]
use crate::protocol::message::Kind;
use crate::protocol::message::{InboxEvent, Name, Push};
use crate::protocol::session::step::{Attempt, SessionInput};
use crate::protocol::step::Input;
use crate::store::{BoxFuture, Inbox, Sink};

/// Opens an inbox and serves it until it breaks or is dropped.
pub(crate) fn open(node: &Arc<Node>, server: &Arc<Server>, attempt: Attempt) {
    let (pings, ping_requests) = mpsc::unbounded_channel();
    let (weak, to) = (Arc::downgrade(node), server.clone());
    let sink: Sink = {
        let node = weak.clone();
        Arc::new(move |event| {
            let Some(node) = node.upgrade() else { return };
            if let Some((name, input)) = key_input(&node, event) {
                node.drive(&name, input);
            }
        })
    };
    let opening = node.servers.store.inbox(server.id, node.id, sink);
    let task = tokio::spawn(async move {
        let feed = |input| {
            if let Some(node) = weak.upgrade() {
                node.feed(&to, input);
                node.alarm.ring();
            }
        };
        let error = match catch_panic("subscribing", opening).await {
            Ok(inbox) => {
                let address = inbox.address.clone();
                if let Some(open) = lock(&to.io).inboxes.get_mut(&attempt) {
                    open.own_channel = inbox.own_channel.clone();
                }
                feed(SessionInput::InboxOpened { attempt, address });
                serve(inbox, ping_requests, || feed(SessionInput::InboxHeard(attempt))).await
            }
            Err(error) => error,
        };
        // Removed first: its drop would abort this very task.
        let ended = lock(&to.io).inboxes.remove(&attempt);
        feed(SessionInput::InboxFailed(attempt, error));
        drop(ended);
    });
    let task = task.abort_handle();
    lock(&server.io).inboxes.insert(
        attempt,
        OpenInbox {
            task,
            pings,
            own_channel: None,
        },
    );
}

/// Returns the input for the key machine, if the event is one for it. News of jobs wake their tasks, and a warning becomes an event.
pub(crate) fn key_input(node: &Node, event: InboxEvent) -> Option<(Name, Input)> {
    match event {
        #[cfg(feature = "scheduler")]
        InboxEvent::Pushed(Push::Changed(_, name)) if name.kind == Kind::Job => node.job_news.tell(&name.key),
        InboxEvent::Pushed(Push::Granted(grant)) => return Some((grant.name.clone(), Input::Pushed(grant))),
        InboxEvent::Pushed(Push::Changed(_, name)) => return Some((name, Input::Changed)),
        InboxEvent::Pushed(Push::Asked(name, claim_id, asking)) => {
            return Some((name, Input::Asked(claim_id, asking)));
        }
        InboxEvent::Pushed(Push::Revoked(name, claim_id, mode)) => {
            return Some((name, Input::Revoked(claim_id, mode)));
        }
        InboxEvent::Pushed(Push::Recalled(name, claim_id)) => return Some((name, Input::Recalled(claim_id))),
        InboxEvent::Unknown => {
            if let Some(count) = node.count_unknown_push() {
                node.events.push(observe::unknown_pushes(count));
            }
        }
        InboxEvent::Warning(text) => node.events.push(observe::server_warning(text)),
    }
    None
}

async fn serve(
    mut inbox: Inbox,
    mut ping_requests: mpsc::UnboundedReceiver<()>,
    note_answer: impl Fn(),
) -> StoreError {
    loop {
        tokio::select! {
            error = &mut inbox.ended => return error,
            Some(()) = ping_requests.recv() => match inbox.pings.ping().await {
                Ok(()) => note_answer(),
                Err(error) => return error,
            },
        }
    }
}

/// Runs foreign code, and returns its panic as an error.
pub(crate) async fn catch_panic<T>(
    what: &str,
    mut future: BoxFuture<'static, Result<T, StoreError>>,
) -> Result<T, StoreError> {
    poll_fn(|cx| {
        let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx)));
        polled.unwrap_or_else(|panic| Poll::Ready(Err(panicked(what, &*panic))))
    })
    .await
}

fn panicked(what: &str, panic: &(dyn Any + Send)) -> StoreError {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    let text = text.unwrap_or("without a message");
    StoreError::new(
        StoreErrorKind::Unreachable,
        format_args!("{what} panicked: {text}"),
    )
}
