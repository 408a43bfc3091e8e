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
use crate::protocol::message::{InboxEvent, Name, Push};
use crate::protocol::session::step::{Attempt, SessionInput};
use crate::protocol::step::Input;
use crate::store::{BoxFuture, Inbox, Sink};

/// Opens an inbox and serves it until it breaks, or is dropped.
pub(crate) fn open(node: &Arc<Node>, server: &Arc<Server>, attempt: Attempt) {
    let (pings, asked) = mpsc::unbounded_channel();
    let (weak, to) = (Arc::downgrade(node), server.clone());
    let sink: Sink = {
        let node = weak.clone();
        Arc::new(move |event| {
            let Some(node) = node.upgrade() else { return };
            match told(event) {
                Ok((name, input)) => node.drive(&name, input),
                Err(text) => node.events.push(observe::server_warning(text)),
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
        let error = match caught("subscribing", opening).await {
            Ok(inbox) => {
                feed(SessionInput::InboxOpened(attempt));
                serve(inbox, asked, || feed(SessionInput::InboxHeard(attempt))).await
            }
            Err(error) => error,
        };
        // Taken out first: dropping it would end this very task.
        let ended = lock(&to.io).inboxes.remove(&attempt);
        feed(SessionInput::InboxFailed(attempt, error));
        drop(ended);
    });
    let task = task.abort_handle();
    lock(&server.io)
        .inboxes
        .insert(attempt, OpenInbox { task, pings });
}

/// What a key is told of that; or else what an operator is.
pub(crate) fn told(event: InboxEvent) -> Result<(Name, Input), String> {
    match event {
        InboxEvent::Pushed(Push::Granted(grant)) => Ok((grant.name.clone(), Input::Pushed(grant))),
        InboxEvent::Pushed(Push::Changed(_, name)) => Ok((name, Input::Changed)),
        InboxEvent::Warning(text) => Err(text),
    }
}

async fn serve(mut inbox: Inbox, mut asked: mpsc::UnboundedReceiver<()>, heard: impl Fn()) -> StoreError {
    loop {
        tokio::select! {
            error = &mut inbox.ended => return error,
            Some(()) = asked.recv() => match inbox.pings.ping().await {
                Ok(()) => heard(),
                Err(error) => return error,
            },
        }
    }
}

/// What foreign code does when it panics, as an error.
pub(crate) async fn caught<T>(
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
    let text = text.unwrap_or("it does not say why");
    StoreError::new(
        StoreErrorKind::Unreachable,
        format_args!("{what} panicked: {text}"),
    )
}
