//! Removes what is known of a job that is no more.

use std::sync::Arc;

use redis::{Cmd, Value};

use crate::error::StoreError;
use crate::protocol::ledger::Forgotten;
use crate::protocol::message::Name;
use crate::store::redis::config::Config;
use crate::store::redis::link::RedisLink;
use crate::store::redis::script::FORGET;

/// Removes it on a connection of its own, which checks the server as every connection does: a replica must not answer.
pub(super) async fn job(store: Arc<Config>, name: Name) -> Result<Forgotten, StoreError> {
    let link = RedisLink::open(store.clone()).await?;
    let (mut record, mut queue, mut memory) = (Vec::new(), Vec::new(), Vec::new());
    store.names.push_record(&name, &mut record);
    store.names.push_queue(&name, &mut queue);
    store.names.push_memory(&name, &mut memory);
    let mut call = Cmd::new();
    call.arg("EVALSHA").arg(&*FORGET.sha).arg(3);
    call.arg(record).arg(queue).arg(memory);
    Ok(match link.ask(&FORGET, call).await? {
        Value::Int(0) => Forgotten::Unknown,
        Value::Int(_) => Forgotten::Done,
        _ => Forgotten::InUse,
    })
}
