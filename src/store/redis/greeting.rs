//! The first questions on a connection: whether the server can be used at all.

use redis::aio::MultiplexedConnection;
use redis::{RedisError, Value};

use crate::error::{StoreError, StoreRefusal};
use crate::store::redis::config::Config;
use crate::store::redis::connection::{ask_all, cannot_open, read_time};
use crate::store::redis::decode::{self, error_text, field, result, text};

/// The oldest supported version: older servers lack commands that the scripts use.
pub(super) const MIN_REDIS_VERSION: (u32, u32) = (6, 2);
/// The first version whose `min-replicas-to-write` also applies to writes of scripts.
const REPLICA_LIMIT_BINDS_SCRIPTS: (u32, u32) = (7, 0);

/// Asks whether the server can be used at all. Returns its clock, and the sections `server` and `replication` of its INFO.
///
/// The pipeline is short and precedes the scripts. A server that requires a password closes the connection on a script,
/// and the reason would be lost.
pub(super) async fn greet(
    store: &Config,
    connection: &mut MultiplexedConnection,
    warnings: &mut Vec<String>,
) -> Result<(u64, [Value; 2]), StoreError> {
    let mut greeting = redis::pipe();
    greeting.cmd("ROLE").cmd("TIME").cmd("INFO").arg("server");
    greeting.cmd("INFO").arg("replication");
    let [role, time, server, replication] = ask_all(store, connection, &greeting).await?;
    check_mode(store, &server)?;
    check_role(store, role, &replication, warnings)?;
    let time = read_time(result(time)).map_err(|error| cannot_open(store, error))?;
    Ok((time, [server, replication]))
}

/// Refuses a server of a Redis Cluster, which accepts connections and then refuses each lock by its slot. On a cluster,
/// refuses any other server. Checks nothing if the Redis user may not send INFO.
pub(super) fn check_mode(store: &Config, server: &Value) -> Result<(), StoreError> {
    let server = text(server.clone()).unwrap_or_default();
    let Some(mode) = field(&server, "redis_mode") else {
        return Ok(());
    };
    let address = store.address();
    match (mode == "cluster", store.topology.cluster().is_some()) {
        (true, false) => Err(StoreError::unsupported(format_args!(
            "{address} is a server of a Redis Cluster: write `redis+cluster://{address}`"
        ))),
        (false, true) => Err(StoreError::unsupported(format_args!(
            "{address} is no server of a cluster (`cluster-enabled no`): write `redis://{address}`"
        ))),
        _ => Ok(()),
    }
}

/// Returns the error for a Sentinel, which keeps no data. Its answer to ROLE lists the masters that it watches.
fn refuse_sentinel(store: &Config, watched: Option<Value>) -> StoreError {
    let only = match watched {
        Some(Value::Array(names)) => <[Value; 1]>::try_from(names).ok(),
        _ => None,
    };
    let name = only.and_then(|[name]| text(name));
    let name = name.as_deref().unwrap_or("<name>");
    StoreError::unsupported(format_args!(
        "{address} is a Sentinel and keeps no locks: write `redis+sentinel://{address},…/{name}` with each Sentinel, which \
         follows the master",
        address = store.address()
    ))
}

/// Refuses a server that is not a master. Only a master's "gone" and "busy" are true; a replica gives both without
/// notice. INFO tells the role where ROLE does not: the user may lack the right, and some managed servers do not know it.
pub(super) fn check_role(
    store: &Config,
    role: Value,
    replication: &Value,
    warnings: &mut Vec<String>,
) -> Result<(), StoreError> {
    let (role, watched) = match result(role) {
        Ok(Value::Array(parts)) => {
            let mut parts = parts.into_iter();
            (parts.next().and_then(text), parts.next())
        }
        Ok(_) => return Err(decode::malformed("the answer to ROLE is not a list").error),
        Err(error) if !is_untold(&error) => return Err(cannot_open(store, error)),
        Err(_) => {
            let replication = text(replication.clone()).unwrap_or_default();
            let Some(role) = field(&replication, "role") else {
                warnings.push(format!(
                    "{} does not tell its role: a replica is only noticed at the first write; allow +role or +info",
                    store.address()
                ));
                return Ok(());
            };
            (Some(role.to_owned()), None)
        }
    };
    match role.as_deref() {
        Some("master") => Ok(()),
        Some("slave") => Err(StoreError::refused(StoreRefusal::ReadOnly)),
        Some("sentinel") => Err(refuse_sentinel(store, watched)),
        other => Err(StoreError::unsupported(format_args!(
            "{} is not a Redis master, its role is `{}`",
            store.address(),
            other.unwrap_or("unknown")
        ))),
    }
}

/// Returns whether a server did not answer a question because it does not know it, or the user may not ask.
pub(super) fn is_untold(error: &RedisError) -> bool {
    error_text(error).is_some_and(|said| {
        said.starts_with("ERR unknown command") || decode::refusal(&said) == StoreRefusal::NoPermission
    })
}

/// Checks the sections `server`, `memory` and `replication` of INFO, and adds warnings.
pub(super) fn check_info(
    store: &Config,
    info: [Value; 3],
    warnings: &mut Vec<String>,
) -> Result<(), StoreError> {
    let [Ok(server), Ok(memory), Ok(replication)] = info.map(result) else {
        warnings.push(format!(
            "the user may not ask {} for INFO: version and maxmemory-policy are unchecked; allow +info",
            store.address()
        ));
        return Ok(());
    };
    let [server, memory, replication] =
        [server, memory, replication].map(|section| text(section).unwrap_or_default());
    let version =
        field(&server, "redis_version").and_then(|version| Some((version, parse_version(version)?)));
    if let Some((version, numbers)) = version
        && numbers < MIN_REDIS_VERSION
    {
        return Err(StoreError::unsupported(format_args!(
            "{} is Redis {version}, 6.2 or newer is needed: upgrade it",
            store.address()
        )));
    }
    if let Some(policy) = field(&memory, "maxmemory_policy")
        && policy != "noeviction"
    {
        warnings.push(format!(
            "{} may evict locks that are held when memory is short (maxmemory-policy {policy}): set it to noeviction",
            store.address()
        ));
    }
    // INFO has this field only if the option is set. Scripts of an older Redis write nevertheless (redis#9993).
    if let Some((version, numbers)) = version
        && numbers < REPLICA_LIMIT_BINDS_SCRIPTS
        && field(&replication, "min_slaves_good_slaves").is_some()
    {
        warnings.push(format!(
            "min-replicas-to-write of {} does not bound locks on Redis {version}, whose scripts ignore it: upgrade to 7.0",
            store.address()
        ));
    }
    Ok(())
}

/// Returns the server's run id, if the Redis user may send INFO.
pub(super) fn run_id(server: &Value) -> Option<String> {
    let server = text(server.clone())?;
    field(&server, "run_id").map(str::to_owned)
}

/// Returns the run of a server: the run id, which a restart changes, and the replication id, which a promotion changes.
pub(super) fn run_of(run_id: Option<&str>, replication: &Value) -> Option<String> {
    let replication = text(replication.clone())?;
    Some(format!("{}:{}", run_id?, field(&replication, "master_replid")?))
}

pub(super) fn parse_version(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}
