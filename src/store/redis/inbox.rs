//! The inbox of a node: a connection that only subscribes to the node's channel.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;

use futures_core::Stream;
use redis::Value;
use redis::aio::{PubSubSink, PubSubStream};

use crate::error::{StoreError, StoreErrorKind};
use crate::protocol::message::{InboxEvent, NodeId};
use crate::store::redis::config::Config;
use crate::store::redis::connection::{cannot_open, client_of_now};
use crate::store::redis::decode::error_text;
use crate::store::redis::{decode, names, tls};
use crate::store::{BoxFuture, Inbox, Ping, Sink};

/// Opens a connection and subscribes it to the node's channel, and to a channel of its own.
pub(super) async fn open(store: Arc<Config>, node: NodeId, sink: Sink) -> Result<Inbox, StoreError> {
    let store = match store.topology.sentinels() {
        // The inbox leads to where the link leads. If that is no longer the master, the link ends, and the inbox too.
        Some(sentinels) => {
            let master = sentinels.master(store.timeout).await?;
            Arc::new(store.at(master).map_err(|error| cannot_open(&store, error))?)
        }
        None => store,
    };
    tls::install_provider(store.address());
    let client = client_of_now(&store).await?;
    let opening = async move { client.get_async_pubsub().await };
    let opened = tls::open(store.address(), opening).await;
    let mut inbox = opened.map_err(|error| cannot_open(&store, error))?;
    // The connection for commands asks for this channel, because a subscription cannot ask where it leads.
    let own_channel = names::own_channel(node, fastrand::u64(..));
    let subscribed = inbox.subscribe(&[&names::channel(node), &own_channel]).await;
    subscribed.map_err(|error| cannot_open(&store, error))?;
    let (pings, stream) = inbox.split();
    Ok(Inbox {
        address: store.address().to_string().into(),
        own_channel: Some(own_channel.into()),
        pings: Box::new(RedisPing {
            sink: sink.clone(),
            pings,
            is_refused: false,
        }),
        ended: Box::pin(listen(store, node, sink, stream)),
    })
}

async fn listen(store: Arc<Config>, node: NodeId, sink: Sink, mut stream: PubSubStream) -> StoreError {
    while let Some(message) = poll_fn(|cx| Pin::new(&mut stream).poll_next(cx)).await {
        match decode::push(message.get_payload_bytes(), node, &store.names) {
            Some(push) => sink(InboxEvent::Pushed(push)),
            None => sink(InboxEvent::Unknown),
        }
    }
    StoreError::new(
        StoreErrorKind::Interrupted,
        format_args!("the subscription at {} ended", store.address()),
    )
}

struct RedisPing {
    sink: Sink,
    pings: PubSubSink,
    /// Whether the server refused PING, because the Redis user may not send it.
    is_refused: bool,
}

impl Ping for RedisPing {
    fn ping(&mut self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async {
            if self.is_refused {
                return Ok(());
            }
            match self.pings.ping::<Value>().await {
                Ok(_) => Ok(()),
                // The server answered with an error, so the subscription is alive.
                Err(error) if error_text(&error).is_some() => {
                    self.is_refused = true;
                    (self.sink)(InboxEvent::Warning(format!(
                        "the inbox cannot be pinged: {error}"
                    )));
                    Ok(())
                }
                Err(error) => Err(StoreError::new(StoreErrorKind::Interrupted, &error).with_source(error)),
            }
        })
    }
}
