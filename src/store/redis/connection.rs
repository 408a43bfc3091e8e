//! A connection to a server: how it opens, and what an error means.

use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ErrorKind, Pipeline, RedisError, RedisResult, Value};

use crate::error::{StoreError, StoreErrorKind, StoreRefusal};
use crate::protocol::message::{Executed, Failure};
use crate::store::redis::config::Config;
use crate::store::redis::decode::{self, error_text};
use crate::store::redis::tls;

/// Opens a connection to a server.
pub(super) async fn connect(store: &Arc<Config>) -> Result<MultiplexedConnection, StoreError> {
    tls::install_provider(store.address());
    // The session sets deadlines. A timeout of the client would report a batch as failed while it is in flight.
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None);
    let client = client_of_now(store).await?;
    let opening = async move { client.get_multiplexed_async_connection_with_config(&config).await };
    let opened = tls::open(store.address(), opening).await;
    opened.map_err(|error| cannot_open(store, error))
}

/// Returns the client of a server, with the credentials of now.
pub(super) async fn client_of_now(store: &Config) -> Result<Client, StoreError> {
    let Some(credentials) = &store.credentials else {
        return Ok(store.client.clone());
    };
    let (user, password) = credentials.ask().await.map_err(|why| {
        let text = format_args!("no credentials for {}: {why}", store.address());
        StoreError::new(StoreErrorKind::Unreachable, text)
    })?;
    let info = store.client.get_connection_info().clone();
    let settings = info.redis_settings().clone();
    let settings = settings.set_username(user).set_password(password);
    Client::open(info.set_redis_settings(settings)).map_err(|error| cannot_open(store, error))
}

/// Returns a server's answers to the `N` commands of a pipeline.
pub(super) async fn ask_all<const N: usize>(
    store: &Config,
    connection: &mut MultiplexedConnection,
    questions: &Pipeline,
) -> Result<[Value; N], StoreError> {
    answered(ask(store, connection, questions).await?)
}

/// Returns a server's answers to the commands of a pipeline.
pub(super) async fn ask(
    store: &Config,
    connection: &mut MultiplexedConnection,
    questions: &Pipeline,
) -> Result<Vec<Value>, StoreError> {
    let answers = connection
        .send_packed_commands(questions, 0, questions.len())
        .await;
    answers.map_err(|error| cannot_open(store, error))
}

pub(super) fn answered<const N: usize>(answers: Vec<Value>) -> Result<[Value; N], StoreError> {
    let unanswered = |_| decode::malformed("the server did not answer every command").error;
    answers.try_into().map_err(unanswered)
}

/// Returns what a failed call means: whether it was executed, and the error.
pub(super) fn failure(error: RedisError) -> Failure {
    if error.code() == Some("NOSCRIPT") {
        // The script was loaded a moment ago. Either another server answers now, or the server drops scripts at once.
        // Both pass, and the next connection loads the script again.
        let text = "the server lost the script that was just loaded";
        return Failure {
            executed: Executed::No,
            error: StoreError::new(StoreErrorKind::Interrupted, text).with_source(error),
        };
    }
    if let Some(text) = error_text(&error) {
        // Any other error may come from a script that was stopped halfway.
        let executed = match (decode::refusal(&text), error.code()) {
            (StoreRefusal::Other(_), Some("CROSSSLOT" | "TENURECLOCK")) => Executed::No,
            (StoreRefusal::Other(_) | StoreRefusal::WrongType, _) => Executed::Unknown,
            _ => Executed::No,
        };
        return Failure {
            executed,
            error: refused_by(&text, error),
        };
    }
    let (executed, kind) = if error.is_connection_refusal() {
        (Executed::No, StoreErrorKind::Unreachable)
    } else if error.is_timeout() {
        (Executed::Unknown, StoreErrorKind::TimedOut)
    } else {
        (Executed::Unknown, StoreErrorKind::Interrupted)
    };
    Failure {
        executed,
        error: StoreError::new(kind, &error).with_source(error),
    }
}

/// Returns the error of a server that refused, from its text.
pub(super) fn refused(text: &str) -> StoreError {
    let refusal = decode::refusal(text);
    match refusal {
        StoreRefusal::NoPermission => {
            let message = format!("{refusal}; the server said: {text}");
            StoreError::new(StoreErrorKind::Refused(refusal), message)
        }
        refusal => StoreError::refused(refusal),
    }
}

/// Returns the error of a server that refused, with its answer as the source. An answer that may have a password is left out.
pub(super) fn refused_by(text: &str, error: RedisError) -> StoreError {
    let refusal = refused(text);
    match decode::repeats_arguments(&error) {
        true => refusal,
        false => refusal.with_source(error),
    }
}

/// Returns the error of a connection that could not be opened. No request was sent on it.
pub(super) fn cannot_open(store: &Config, error: RedisError) -> StoreError {
    if let Some(text) = error_text(&error) {
        return refused_by(&text, error);
    }
    if error.kind() == ErrorKind::AuthenticationFailed {
        return StoreError::refused(StoreRefusal::WrongPassword).with_source(error);
    }
    let hint = store.hint(Some(&error));
    StoreError::new(
        StoreErrorKind::Unreachable,
        format_args!("{}: {error}{hint}", store.address()),
    )
    .with_source(error)
}

/// Returns the error of a connection that did not open in time.
pub(super) fn too_slow(store: &Config) -> StoreError {
    let deadline = store.timeout;
    let hint = store.hint(None);
    StoreError::new(
        StoreErrorKind::Unreachable,
        format_args!("no connection to {} within {deadline:?}{hint}", store.address()),
    )
}

/// Reads the answer to TIME, in microseconds.
pub(super) fn read_time(time: RedisResult<Value>) -> RedisResult<u64> {
    let (seconds, micros): (u64, u64) = redis::from_redis_value(time?)?;
    Ok(seconds.saturating_mul(1_000_000).saturating_add(micros))
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    /// Returns the error of a server that answers so.
    fn said(line: &str) -> StoreError {
        let answer = redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
        failure(decode::result(answer).unwrap_err()).error
    }

    /// Redis and its relatives repeat the arguments of a command that they do not know.
    #[test]
    fn arguments_that_a_server_repeats_are_in_no_text_of_the_error() {
        for line in [
            "ERR unknown command 'HELLO', with args beginning with: '3' 'AUTH' 'app' 'hunter2' ",
            "ERR unknown command `HELLO`, with args beginning with: `3`, `AUTH`, `app`, `hunter2`, ",
        ] {
            let error = said(line);
            assert!(error.to_string().contains("unknown command"), "{error}");
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
            assert!(error.source().is_none());
        }
        assert!(said("ERR anything else").source().is_some());
    }
}
