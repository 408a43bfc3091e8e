//! A node's inbox: a connection that only listens on the node's channel.

use std::future::{pending, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_core::Stream;
use redis::Value;
use redis::aio::{PubSub, PubSubSink, PubSubStream};

use crate::error::{StoreError, StoreErrorKind};
use crate::observe;
use crate::protocol::message::{InboxEvent, NodeId};
use crate::store::Sink;
use crate::store::redis::link::{cannot_open, said};
use crate::store::redis::{Inner, codec, names};

/// How often the connection is asked whether it is there. Found dead after one of these and the deadline: until
/// then waiters have their timers.
const PING_EVERY: Duration = Duration::from_secs(10);

/// Serves the inbox until it breaks.
pub(super) async fn serve(store: Arc<Inner>, node: NodeId, sink: Sink) -> StoreError {
    let channel = names::channel(node);
    let opened = tokio::time::timeout(store.timeout, async {
        let mut inbox = store.client.get_async_pubsub().await?;
        inbox.subscribe(&channel).await?;
        Ok::<PubSub, redis::RedisError>(inbox)
    });
    let inbox = match opened.await {
        Ok(Ok(inbox)) => inbox,
        Ok(Err(error)) => return cannot_open(&store, error),
        Err(_) => {
            return StoreError::new(
                StoreErrorKind::Unreachable,
                format_args!(
                    "no subscription at {} within {:?}",
                    store.address(),
                    store.timeout
                ),
            );
        }
    };
    sink(InboxEvent::Open);
    let (ask, stream) = inbox.split();
    tokio::select! {
        error = listen(&store, node, &sink, stream) => error,
        error = beat(&store, ask) => error,
    }
}

async fn listen(store: &Inner, node: NodeId, sink: &Sink, mut stream: PubSubStream) -> StoreError {
    while let Some(message) = poll_fn(|cx| Pin::new(&mut stream).poll_next(cx)).await {
        match codec::decode_push(message.get_payload_bytes(), node, &store.names) {
            Some(grant) => sink(InboxEvent::Granted(grant)),
            None => observe::server_warning(&format!(
                "ignored a push to {node} of an unknown format: another release, another prefix, or a forgery"
            )),
        }
    }
    StoreError::new(
        StoreErrorKind::Interrupted,
        format_args!("the subscription at {} ended", store.address()),
    )
}

/// A peer that vanished without a word is found by its silence only.
async fn beat(store: &Inner, mut ask: PubSubSink) -> StoreError {
    loop {
        tokio::time::sleep(PING_EVERY).await;
        match tokio::time::timeout(store.timeout, ask.ping::<Value>()).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) if said(&error).is_some() => {
                // The user may not PING. The subscription stands, and an answer is an answer.
                observe::server_warning(&format!("the inbox cannot be pinged: {error}"));
                return pending().await;
            }
            Ok(Err(error)) => {
                return StoreError::new(StoreErrorKind::Interrupted, &error).with_source(error);
            }
            Err(_) => {
                return StoreError::new(
                    StoreErrorKind::TimedOut,
                    format_args!("the subscription at {} is silent", store.address()),
                );
            }
        }
    }
}
