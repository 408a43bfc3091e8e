//! The answers of a server to plain reads, and what an error among them means.

use redis::{FromRedisValue, Pipeline, RedisResult, Value, from_redis_value};

use crate::error::StoreError;
use crate::store::redis::connection::{failure, refused_by};
use crate::store::redis::decode::{error_text, malformed, result};

/// Appends a read of a key.
pub(super) fn push(pipe: &mut Pipeline, command: &str, key: &[u8], words: &[&str]) {
    pipe.cmd(command).arg(key).arg(words);
}

pub(super) fn next(answers: &mut impl Iterator<Item = Value>) -> Result<Value, StoreError> {
    answers.next().ok_or_else(|| unreadable(()))
}

pub(super) fn unreadable<T>(_: T) -> StoreError {
    malformed("the server's answer to a read is no such answer").error
}

pub(super) fn read<T: FromRedisValue>(answer: RedisResult<Value>) -> Result<T, StoreError> {
    let answer = answer.map_err(|error| failure(error).error)?;
    from_redis_value(answer).map_err(unreadable)
}

pub(super) fn has_other_type(answer: &Value) -> bool {
    is_refused_with(answer, &["WRONGTYPE"])
}

pub(super) fn is_refused_with(answer: &Value, codes: &[&str]) -> bool {
    matches!(answer, Value::ServerError(error) if codes.contains(&error.code()))
}

/// Returns the answer, or `None` if the key has another type by now, or another server serves it.
pub(super) fn checked(answer: Value) -> Result<Option<Value>, StoreError> {
    match result(answer) {
        Ok(Value::Nil) => Ok(None),
        Ok(answer) => Ok(Some(answer)),
        Err(error) if matches!(error.code(), Some("WRONGTYPE" | "MOVED" | "ASK" | "TRYAGAIN")) => Ok(None),
        Err(error) => Err(match error_text(&error) {
            Some(text) => refused_by(&text, error),
            None => failure(error).error,
        }),
    }
}

pub(super) fn optional<T: FromRedisValue>(answer: Value) -> Result<Option<T>, StoreError> {
    let answer = checked(answer)?;
    answer
        .map(|answer| from_redis_value(answer).map_err(unreadable))
        .transpose()
}
