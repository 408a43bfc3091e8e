//! Guarded writes: Redis commands or a script, executed in one atomic step, and only while each of their leases is current.
//!
//! # The way of one write
//!
//! A guarded write is a list of Redis commands, or a script, of the caller. The server executes it only while the lease is
//! current. For a `MultiGuard`, every lease must be current. The code handles a single lease as a list with one element.
//!
//! 1. The call refuses input that no server accepts (`primitives/write.rs` `query`, `check_words`). It refuses leases on
//!    two servers, because no server could check both in one step (`primitives/write.rs` `write`, `driver/servers.rs`
//!    `for_all`).
//! 2. The key machine of each lease counts the write, and returns the claim and the grant that the server must find
//!    (`primitives/write.rs` `begin`, `protocol/key/holding.rs` `begin_write`).
//! 3. The write becomes a call that is sent once (`primitives/call.rs` `once`, `protocol/call/actions.rs` `act`).
//! 4. The session sends the write after the batches, once, in a script call of its own, with a deadline
//!    (`protocol/session/actions.rs` `queue_action`, `send_actions`, `driver/driver.rs` `act`, `store/redis/link.rs`
//!    `act`).
//! 5. In the text of the script, the caller's code stands before the check, but it runs only after the check
//!    (`store/redis/write.rs` `encode`, `wrap`, `wrap_text`). The check is `store/redis/lua/write.lua`, and its rule is in
//!    the ledger (`protocol/ledger/mod.rs` `not_current`).
//! 6. A server before Redis 7.0 does not protect its global variables. There a script of the caller gets its own global
//!    variables from `store/redis/lua/globals.lua`.
//! 7. After the answer, the write no longer counts as in flight (`protocol/call/actions.rs` `answered`, `end_write`). If a
//!    lease was not current, it is lost before the caller gets the answer (`protocol/key/holding.rs` `write_ended`).
//! 8. Without an answer, the outcome is unknown, and the write still counts as in flight (`protocol/call/actions.rs`
//!    `failed`). When the holder gives such a lease back, the lease is yielded to a fresh number. It is not handed over in
//!    the process (`protocol/key/holding.rs` `give_back`). So a write that is executed late finds another record.
//!    `sim/src/callers/writes.rs` sends such writes late.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::{FromRedisValue, ToRedisArgs, Value};

use crate::driver::node::Node;
use crate::error::{Error, OptionsError};
use crate::key::Key;
use crate::primitives::call::CallFuture;
use crate::primitives::held::Held;
use crate::protocol::message::{CallAnswer, WriteAnswer};
use crate::protocol::primitive::Primitive;
use crate::protocol::step::Input;
use crate::protocol::write::{Action, GuardedWrite, Precondition, WriteBody};

/// The most words of one command: its name, its keys and its arguments. A function call in Lua takes no more arguments.
const MAX_COMMAND_WORDS: usize = 7_997;
/// The most words of one write: its keys, its arguments and the commands' names. Redis before 7.0 closes the
/// connection on a request of more than 2^20 words.
const MAX_WRITE_WORDS: usize = 1_000_000;

/// The beginning of a write that is executed only if the lease is current, or each lease of a
/// [`MultiGuard`](crate::MultiGuard). Continue with [`command`](Self::command) or [`script`](Self::script). Made by
/// [`Lease::atomically`](crate::Lease::atomically), which says what a write promises.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
/// # let locks = tenure::Locks::memory();
/// use tenure::Error;
///
/// let guard = locks.mutex("item:42").lock().await?;
/// match guard.atomically().command("DECR").key("stock:42").query().await {
///     Ok((left,)) => { let left: i64 = left; println!("{left} left") }
///     Err(error @ Error::Unanswered { .. }) => println!("perhaps written, look at the stock: {error}"),
///     Err(error @ (Error::Failed { .. } | Error::Reply { .. })) => println!("written, perhaps in part: {error}"),
///     Err(error) => println!("not written: {error}"), // here, because memory keeps no stock
/// }
/// # guard.release().await }
/// ```
#[must_use = "nothing is sent before `query`"]
pub struct Atomically {
    held: Vec<Arc<Held>>,
}

/// Redis commands that are executed one after the other if the lease is current.
///
/// Pass every key by [`key`](Self::key): a Redis Cluster refuses other keys, and a single server does not notice. A command
/// has at most 7,997 words, including its name and its keys. All commands and keys together have at most 1,000,000 words.
///
/// ```no_run
/// # async fn sells(guard: tenure::Guard) -> Result<(), tenure::Error> {
/// let (left,): (i64,) = guard.atomically().command("DECR").key("stock:42").query().await?;
/// let () = guard
///     .atomically()
///     .command("HSET").key("item:42").arg("left").arg(left)
///     .command("EXPIRE").key("item:42").arg(3600)
///     .query()
///     .await?;
/// # Ok(()) }
/// ```
#[must_use = "nothing is sent before `query`"]
pub struct Commands {
    held: Vec<Arc<Held>>,
    keys: Vec<Vec<u8>>,
    commands: Vec<Vec<Vec<u8>>>,
}

/// A Lua script of the caller that is executed if the lease is current. The script finds each [`key`](Self::key) in `KEYS` and
/// each [`arg`](Self::arg) in `ARGV`, from 1, as with `EVAL`.
///
/// Redis keeps each text until it is restarted: pass values as arguments, and do not write them into the text. A text that
/// begins with `#!` is refused, and so are more than 1,000,000 keys and arguments together.
///
/// Before Redis 7.0 a script can assign to the server's own functions (`redis.call = nil`), which breaks every later script of
/// the server. There a script runs with globals of its own, and its assignments end with it. It has no `getfenv`, `setfenv`,
/// `newproxy` and `print`.
///
/// ```no_run
/// # async fn sells(guard: tenure::Guard) -> Result<(), tenure::Error> {
/// const SELL: &str = "
///     local left = tonumber(redis.call('GET', KEYS[1]) or 0)
///     if left < tonumber(ARGV[1]) then return 0 end
///     redis.call('DECRBY', KEYS[1], ARGV[1])
///     return 1";
/// let is_sold: bool = guard.atomically().script(SELL).key("stock:42").arg(3).query().await?;
/// # let _ = is_sold; Ok(()) }
/// ```
#[must_use = "nothing is sent before `query`"]
pub struct Script {
    held: Vec<Arc<Held>>,
    text: String,
    keys: Vec<Vec<u8>>,
    args: Vec<Vec<u8>>,
}

impl Atomically {
    /// Begins a write under these leases, which are one or more.
    pub(crate) fn new<'a>(held: impl IntoIterator<Item = &'a Arc<Held>>) -> Self {
        let held = held.into_iter().cloned().collect();
        Atomically { held }
    }

    /// Adds the first command, by its name. The calls that follow add its keys and arguments.
    pub fn command(self, name: &str) -> Commands {
        let commands = Commands {
            held: self.held,
            keys: Vec::new(),
            commands: Vec::new(),
        };
        commands.command(name)
    }

    /// Begins a script, by its text in Lua. The server keeps each text that it ever ran, so the text must be the same for all
    /// calls: values are [arguments](Script::arg). With `script(format!(…))` the server's memory fills.
    pub fn script(self, text: impl Into<String>) -> Script {
        Script {
            held: self.held,
            text: text.into(),
            keys: Vec::new(),
            args: Vec::new(),
        }
    }
}

impl Commands {
    /// Adds a command, which is executed after the commands before it.
    pub fn command(mut self, name: &str) -> Self {
        self.commands.push(vec![name.into()]);
        self
    }

    /// Adds a key, which is the next word of the command.
    pub fn key(mut self, key: impl ToRedisArgs) -> Self {
        let words = key.to_redis_args();
        self.keys.extend_from_slice(&words);
        self.words(words)
    }

    /// Adds an argument, which is the next word of the command and no key.
    pub fn arg(self, arg: impl ToRedisArgs) -> Self {
        let words = arg.to_redis_args();
        self.words(words)
    }

    fn words(mut self, words: Vec<Vec<u8>>) -> Self {
        if let Some(command) = self.commands.last_mut() {
            command.extend(words);
        }
        self
    }

    /// Sends the commands, and returns the list of their replies as a `redis::Value`, or as a type that reads a list, such as a
    /// tuple.
    ///
    /// # Errors
    /// As [`Lease::atomically`](crate::Lease::atomically) says.
    ///
    /// # Cancel safety
    /// Nothing is sent before the first poll. If the future is dropped later, only the answer is lost: the commands may be
    /// executed.
    pub async fn query<T: FromRedisValue>(self) -> Result<T, Error> {
        let Commands { held, keys, commands } = self;
        for command in &commands {
            check_words(&held, "a command", command.len(), MAX_COMMAND_WORDS)?;
        }
        let words: usize = commands.iter().map(Vec::len).sum();
        check_words(
            &held,
            "a write",
            keys.len() + commands.len() + words,
            MAX_WRITE_WORDS,
        )?;
        let replies = query(&held, WriteBody::Commands { keys, commands }).await;
        replies.map_err(|error| match error {
            Error::Reply { key, why } => Error::Reply {
                key,
                why: format!("{why} The replies are a list: that of one command is read as `(T,)`."),
            },
            error => error,
        })
    }
}

impl Script {
    /// Adds the next of `KEYS`. Pass every key that the script touches.
    pub fn key(mut self, key: impl ToRedisArgs) -> Self {
        self.keys.extend(key.to_redis_args());
        self
    }

    /// Adds the next of `ARGV`.
    pub fn arg(mut self, arg: impl ToRedisArgs) -> Self {
        self.args.extend(arg.to_redis_args());
        self
    }

    /// Sends the script, and returns its reply as a `redis::Value`, or as a type that reads it.
    ///
    /// # Errors
    /// As [`Lease::atomically`](crate::Lease::atomically) says.
    ///
    /// # Cancel safety
    /// As [`Commands::query`].
    pub async fn query<T: FromRedisValue>(self) -> Result<T, Error> {
        let Script {
            held,
            text,
            keys,
            args,
        } = self;
        if text.trim_start().starts_with("#!") {
            return Err(Error::Options(OptionsError(format!(
                "a script under `{}` begins with `#!`, which only a whole script can: leave the line out",
                first(&held)
            ))));
        }
        check_words(&held, "a script", keys.len() + args.len(), MAX_WRITE_WORDS)?;
        query(&held, WriteBody::Script { text, keys, args }).await
    }
}

/// Returns the key of the first lease. Errors that are about no single lease name it.
fn first(held: &[Arc<Held>]) -> &Key {
    &held[0].name.key
}

/// Refuses a write of too many words, which would fail half-way or end the connection that all requests share.
///
/// # Errors
/// More than `limit` words.
fn check_words(held: &[Arc<Held>], what: &str, words: usize, limit: usize) -> Result<(), Error> {
    if words <= limit {
        return Ok(());
    }
    let key = first(held);
    let why = format!("{what} under `{key}` has at most {limit} words, not {words}: split it");
    Err(Error::Options(OptionsError(why)))
}

async fn query<T: FromRedisValue>(held: &[Arc<Held>], body: WriteBody) -> Result<T, Error> {
    let value = write(held, body).await?;
    redis::from_redis_value(value).map_err(|error| Error::Reply {
        key: first(held).clone(),
        why: error.to_string(),
    })
}

async fn write(held: &[Arc<Held>], body: WriteBody) -> Result<Value, Error> {
    let (handle, node) = (&held[0].handle, held[0].handle.node());
    let lost = || held.iter().find(|held| !held.is_held()).map(|held| held.lost());
    held[0].not_forked()?;
    let key = || first(held).clone();
    let unsupported = |why: &str| Error::Unsupported {
        key: key(),
        why: why.to_owned(),
    };
    if held.iter().any(|held| !held.is_of(node)) {
        return Err(unsupported("other leases of the guard are of another `Locks`"));
    }
    if let Some(refused) = node.servers.refusal(Primitive::Write) {
        return Err(unsupported(refused.message()));
    }
    if node.servers.for_all(held.iter().map(|held| &held.name)).is_none() {
        return Err(unsupported(
            "other leases of the guard are in another slot of the cluster: give their keys one hash tag, such as `{order:7}`",
        ));
    }
    if let Some(why) = key_elsewhere(node, held, &body) {
        return Err(unsupported(&why));
    }
    let (leases, shortest) = begin(held).ok_or_else(|| lost().unwrap_or_else(|| held[0].lost()))?;
    let write = Action::Write(Arc::new(GuardedWrite { leases, body }));
    match CallFuture::once(
        handle,
        &held[0].name,
        (shortest, write),
        CallAnswer::try_as_written,
    )
    .await
    {
        Ok(WriteAnswer::Done(reply)) => Ok(*reply),
        Ok(WriteAnswer::Failed(message)) => Err(Error::Failed { key: key(), message }),
        Ok(WriteAnswer::NotCurrent(places)) => {
            let place = places.first().and_then(|place| held.get(*place));
            Err(place.unwrap_or(&held[0]).gone())
        }
        // Nothing was executed. If a lease is lost, the caller must not repeat the write.
        Err(error @ Error::Store { .. }) => Err(lost().unwrap_or(error)),
        Err(error) => Err(error),
    }
}

/// Returns why a key of the caller cannot be written: on a cluster it lies in another slot than the lock.
fn key_elsewhere(node: &Node, held: &[Arc<Held>], body: &WriteBody) -> Option<String> {
    let (WriteBody::Commands { keys, .. } | WriteBody::Script { keys, .. }) = body;
    let store = &node.servers.store;
    let slot = store.slot(&held[0].name);
    let other = keys.iter().find(|key| store.slot_of_key(key) != slot)?;
    let other = String::from_utf8_lossy(other);
    Some(format!(
        "the key `{other}` is in another slot of the cluster than the lock: give both one hash tag, such as `{{order:7}}` and \
         `stock:{{order:7}}`"
    ))
}

/// Has each holding count the write, and returns the preconditions of the write and the length of the shortest lease. Returns
/// `None` if a lease is over; then no holding counts the write.
fn begin(held: &[Arc<Held>]) -> Option<(Arc<[Precondition]>, Duration)> {
    let node = held[0].handle.node();
    let (mut leases, mut shortest) = (Vec::<Precondition>::new(), Duration::MAX);
    for Held { name, ticket, .. } in held.iter().map(|held| &**held) {
        let begun = node.look(name, |shard, now| shard.begin_write(now, name, *ticket));
        let Some((lease, length)) = begun else {
            let ended = leases
                .iter()
                .map(|lease| (&lease.name, Input::WriteEnded(lease.clone(), false)));
            node.drive_each(ended);
            return None;
        };
        leases.push(lease);
        shortest = shortest.min(length);
    }
    Some((leases.into(), shortest))
}

fn keys(held: &[Arc<Held>]) -> Vec<&Key> {
    held.iter().map(|held| &held.name.key).collect()
}

impl fmt::Debug for Atomically {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Atomically")
            .field("under", &keys(&self.held))
            .finish()
    }
}

impl fmt::Debug for Commands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Commands")
            .field("under", &keys(&self.held))
            .field("commands", &self.commands.len())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Script")
            .field("under", &keys(&self.held))
            .field("text", &self.text)
            .finish_non_exhaustive()
    }
}
