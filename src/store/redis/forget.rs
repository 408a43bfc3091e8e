//! Removes what is known of a job that is no more.

use std::sync::{Arc, LazyLock};

use redis::Script;

use crate::error::StoreError;
use crate::protocol::ledger::Forgotten;
use crate::protocol::message::Name;
use crate::store::redis::config::Config;
use crate::store::redis::link::RedisLink;

const TEXT: &str = include_str!("lua/forget.lua");

static SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(TEXT));

/// On a connection of its own, which checks the server as any other does: whoever is no master would forget nothing.
pub(super) async fn job(store: Arc<Config>, name: Name) -> Result<Forgotten, StoreError> {
    let link = RedisLink::open(store.clone()).await?;
    let (mut record, mut queue, mut memory) = (Vec::new(), Vec::new(), Vec::new());
    store.names.push_record(&name, &mut record);
    store.names.push_queue(&record, &mut queue);
    store.names.push_memory(&name, &mut memory);
    let mut call = SCRIPT.prepare_invoke();
    call.key(record).key(queue).key(memory);
    let answer = link.ask(&call).await?;
    Ok(match answer {
        redis::Value::Int(0) => Forgotten::Unknown,
        redis::Value::Int(_) => Forgotten::Done,
        _ => Forgotten::InUse,
    })
}
