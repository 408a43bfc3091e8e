//! Redis commands, or a script, that are done only while a lease is current, in one atomic step.

use std::fmt;
use std::sync::Arc;

use redis::{FromRedisValue, ToRedisArgs, Value};

use crate::driver::pending_writes::Unwritten;
use crate::error::{Error, OptionsError, StoreError, StoreErrorKind, StoreRefusal};
use crate::primitives::held::Held;
use crate::protocol::write::WriteBody;

/// Begins a write that is done only if the lease is current: [`command`](Self::command) or [`script`](Self::script). Made by
/// [`Lease::atomically`](crate::Lease::atomically), which says what it promises.
#[must_use = "nothing is sent before `query`"]
pub struct Atomically {
    held: Arc<Held>,
}

/// Redis commands that are done one after the other, if the lease is current.
///
/// All keys are to be given by [`key`](Self::key), or a Redis Cluster would refuse them; a single server does not notice. A
/// command has a few thousand words at most.
#[must_use = "nothing is sent before `query`"]
pub struct Commands {
    held: Arc<Held>,
    keys: Vec<Vec<u8>>,
    commands: Vec<Vec<Vec<u8>>>,
}

/// A script of yours that is run if the lease is current. It finds [`key`](Self::key)s in `KEYS` and [`arg`](Self::arg)s in
/// `ARGV`, from 1, as with `EVAL`.
///
/// Redis keeps each text until it is restarted: give values as arguments, and do not write them into the text. A text that
/// begins with `#!` is refused.
#[must_use = "nothing is sent before `query`"]
pub struct Script {
    held: Arc<Held>,
    text: String,
    keys: Vec<Vec<u8>>,
    args: Vec<Vec<u8>>,
}

impl Atomically {
    pub(crate) fn new(held: &Arc<Held>) -> Self {
        Atomically { held: held.clone() }
    }

    /// The first of several commands. What follows are its words.
    pub fn command(self, name: &str) -> Commands {
        let commands = Commands {
            held: self.held,
            keys: Vec::new(),
            commands: Vec::new(),
        };
        commands.command(name)
    }

    /// A script in Lua.
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
    /// One command more, done after those before it.
    pub fn command(mut self, name: &str) -> Self {
        self.commands.push(vec![name.into()]);
        self
    }

    /// The next word of the command, which is a key.
    pub fn key(mut self, key: impl ToRedisArgs) -> Self {
        let words = key.to_redis_args();
        self.keys.extend_from_slice(&words);
        self.words(words)
    }

    /// The next word of the command, which is no key.
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

    /// Sends them, and gives the list of their replies: `redis::Value`, or whatever it can be read as, such as a tuple.
    ///
    /// # Errors
    /// As [`Lease::atomically`](crate::Lease::atomically) says.
    ///
    /// # Cancel safety
    /// Nothing is sent before the first poll. To drop the future after it loses the answer and nothing else: the commands
    /// may be done.
    pub async fn query<T: FromRedisValue>(self) -> Result<T, Error> {
        let Commands { held, keys, commands } = self;
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
    /// The next of `KEYS`. Every key that the script touches is to be given.
    pub fn key(mut self, key: impl ToRedisArgs) -> Self {
        self.keys.extend(key.to_redis_args());
        self
    }

    /// The next of `ARGV`.
    pub fn arg(mut self, arg: impl ToRedisArgs) -> Self {
        self.args.extend(arg.to_redis_args());
        self
    }

    /// Sends it, and gives what it returns: `redis::Value`, or whatever that can be read as.
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
                held.name.key
            ))));
        }
        query(&held, WriteBody::Script { text, keys, args }).await
    }
}

async fn query<T: FromRedisValue>(held: &Held, body: WriteBody) -> Result<T, Error> {
    let value = write(held, body).await?;
    redis::from_redis_value(value).map_err(|error| Error::Reply {
        key: held.name.key.clone(),
        why: error.to_string(),
    })
}

async fn write(held: &Held, body: WriteBody) -> Result<Value, Error> {
    let node = held.handle.node();
    held.not_forked()?;
    let answer = node.write(&held.name, held.ticket, body);
    let ended = || {
        let error = StoreError::new(StoreErrorKind::Interrupted, "the driver has ended");
        Err(Unwritten::Unanswered(error))
    };
    let key = || held.name.key.clone();
    answer.await.unwrap_or_else(|_| ended()).map_err(|why| match why {
        Unwritten::NotHeld => held.lost(),
        Unwritten::NotCurrent => held.gone(),
        Unwritten::Failed(said) => Error::Failed { key: key(), said },
        Unwritten::NotDone(source) if is_unsupported(&source) => Error::Unsupported { key: key() },
        Unwritten::NotDone(source) => Error::Store { key: key(), source },
        Unwritten::Unanswered(source) => Error::Unanswered { key: key(), source },
    })
}

fn is_unsupported(error: &StoreError) -> bool {
    *error.kind() == StoreErrorKind::Refused(StoreRefusal::Unsupported)
}

impl fmt::Debug for Atomically {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Atomically")
            .field("under", &self.held.name.key)
            .finish()
    }
}

impl fmt::Debug for Commands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Commands")
            .field("under", &self.held.name.key)
            .field("commands", &self.commands.len())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Script")
            .field("under", &self.held.name.key)
            .field("text", &self.text)
            .finish_non_exhaustive()
    }
}
