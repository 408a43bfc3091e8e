//! What a server of a cluster tells of its cluster, and of itself.

use redis::aio::MultiplexedConnection;
use redis::{ConnectionAddr, RedisResult, Value, from_redis_value};

use crate::error::{StoreError, StoreErrorKind, StoreRefusal};
use crate::protocol::cluster::{ClusterNodeId, ClusterServer, MapAnswer, SlotRange};
use crate::store::redis::config::Config;
use crate::store::redis::connection::cannot_open;
use crate::store::redis::decode::{self, error_text, field, result, text};
use crate::store::redis::names::SLOTS;

/// Asks a server for its map, and for the epoch of the map.
pub(super) async fn ask(
    server: &Config,
    connection: &mut MultiplexedConnection,
) -> Result<MapAnswer, StoreError> {
    let mut questions = redis::pipe();
    questions.cmd("CLUSTER").arg("SLOTS").cmd("CLUSTER").arg("INFO");
    let answers = connection.send_packed_commands(&questions, 0, 2).await;
    let mut answers = answers.map_err(|error| cannot_open(server, error))?.into_iter();
    let [slots, info] = [(); 2].map(|()| answers.next().unwrap_or(Value::Nil));
    let slots = result(slots).map_err(|error| match error_text(&error) {
        Some(text) if text.contains("cluster support disabled") => StoreError::unsupported(format_args!(
            "{address} is no server of a cluster (`cluster-enabled no`): write `redis://{address}`",
            address = server.address()
        )),
        _ => cannot_open(server, error),
    })?;
    // Without the right, the epoch is unknown.
    let info = text(info).unwrap_or_default();
    read_map(&slots, &info, server).ok_or_else(|| {
        let address = server.address();
        let text = format_args!("{address} answered CLUSTER SLOTS with no list of slots");
        StoreError::new(StoreErrorKind::Interrupted, text)
    })
}

/// Asks a server for its node id. It is empty if the Redis user may not ask.
pub(super) async fn ask_name(
    server: &Config,
    connection: &mut MultiplexedConnection,
) -> Result<ClusterNodeId, StoreError> {
    let answer = connection
        .send_packed_command(redis::cmd("CLUSTER").arg("MYID"))
        .await;
    name(answer.and_then(result)).map_err(|error| cannot_open(server, error))
}

/// Reads the answer to `CLUSTER MYID`.
pub(super) fn name(answer: RedisResult<Value>) -> RedisResult<ClusterNodeId> {
    let is_forbidden = |said: &str| decode::refusal(said) == StoreRefusal::NoPermission;
    match answer {
        Err(error) if error_text(&error).is_some_and(|said| is_forbidden(&said)) => {
            Ok(ClusterNodeId::default())
        }
        answer => Ok(text(answer?).unwrap_or_default().into()),
    }
}

fn read_map(slots: &Value, info: &str, server: &Config) -> Option<MapAnswer> {
    let asked = match server.address() {
        ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => host,
        _ => "",
    };
    let Value::Array(list) = slots else { return None };
    let (mut ranges, mut replicas) = (Vec::new(), Vec::new());
    for range in list {
        let Value::Array(parts) = range else { return None };
        let [first, last, master, others @ ..] = &parts[..] else {
            return None;
        };
        let [first, last] = [first, last].map(|slot| from_redis_value::<u16>(slot.clone()).ok());
        let (first, last) = (first?, last?);
        if first > last || usize::from(last) >= SLOTS {
            return None;
        }
        let master = read_member(master, asked)?;
        replicas.extend(others.iter().filter_map(|other| read_member(other, asked)));
        ranges.push(SlotRange { first, last, master });
    }
    ranges.sort_by_key(|range| range.first);
    Some(MapAnswer {
        ranges,
        replicas,
        has_failed: field(info, "cluster_state") == Some("fail"),
        epoch: field(info, "cluster_current_epoch").and_then(|epoch| epoch.parse().ok()),
    })
}

/// Reads host, port and node id of a server. A server that does not know its own host leaves it empty, and is at the
/// host that was asked.
fn read_member(value: &Value, asked: &str) -> Option<ClusterServer> {
    let Value::Array(parts) = value else { return None };
    let [host, port, rest @ ..] = &parts[..] else {
        return None;
    };
    let host = from_redis_value::<Option<String>>(host.clone()).ok()?;
    let host = host.filter(|host| !host.is_empty() && host != "?");
    let port = from_redis_value::<u16>(port.clone()).ok()?;
    let node_id = rest.first().cloned().and_then(text).unwrap_or_default();
    Some(ClusterServer {
        node_id: node_id.into(),
        address: (host.unwrap_or_else(|| asked.to_owned()), port),
    })
}
