//! Transfers: a lease moves from its holder to another process, which gets a text that names the lease.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode};
use siphasher::sip::SipHasher24;

use crate::driver::handle::Handle;
use crate::error::{Error, KeptGuard, LostCause, OptionsError};
use crate::key::Key;
use crate::options::LONGEST_LEASE;
use crate::primitives::acquire::Acquire;
use crate::primitives::guard::Guard;
use crate::primitives::target::Target;
use crate::protocol::message::{
    Call, CallAnswer, ClaimId, Fence, GrantNumber, Kind, LeaseTimes, Mode, Name, Permits,
};
use crate::protocol::primitive::Primitive;
use crate::protocol::step::{Input, LockOptions, Ticket, WhyDenied};

/// The first word of a text. It names the version of the format.
const FORMAT: &str = "tenure1";
/// The bytes that are percent-encoded in a text.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_');

/// A lease that its holder gave up to another process. Made by [`Guard::into_transfer`] or
/// [`Semaphore::acquire_transfer`](crate::Semaphore::acquire_transfer), sent as a text, and adopted by
/// [`Locks::adopt`](crate::Locks::adopt). For example, the handler of a request acquires the lock, and a worker in another
/// process finishes the job and releases the lock.
///
/// No process renews the lease before it is adopted. It ends by itself when its time is over, unless a process
/// [extends](crate::Locks::extend_transfer) it. A process that has the text can extend, adopt and release the lease. Treat the text as
/// a password: it contains a random number that is otherwise sent to the store only. [`Debug`](fmt::Debug) does not show
/// that number.
///
/// A transfer is adopted once. If its message arrives twice, the second `adopt` returns [`Error::Gone`].
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use std::time::Duration;
/// use tenure::Transfer;
/// # let locks = tenure::Locks::memory();
/// let guard = locks.mutex("order:7").lock().await?;
/// let message = guard.into_transfer(Duration::from_secs(60)).await?.to_string();
/// // … in another process, by way of a queue …
/// let transfer: Transfer = message.parse()?;
/// let guard = locks.adopt(&transfer).await?;
/// assert!(guard.fence() > transfer.fence());
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, PartialEq, Eq)]
#[must_use = "a transfer that is not used keeps the lock until its time ends"]
pub struct Transfer {
    prefix: Box<[u8]>,
    name: Name,
    mode: Mode,
    lease: Duration,
    claim_id: ClaimId,
    number: GrantNumber,
}

/// The reason why a lease was not transferred ([`Guard::into_transfer`]), or a writer did not become a reader
/// ([`Guard::downgrade`]).
///
/// A `TransferError` converts into an [`Error`], which [keeps the guard](crate::error#a-guard-that-is-still-held). So `?` works
/// in a function that returns `Error`.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
/// # use std::time::Duration;
/// # let locks = tenure::Locks::memory();
/// use tenure::TransferError;
///
/// let guard = locks.mutex("order:7").lock().await?;
/// match guard.into_transfer(Duration::from_secs(60)).await {
///     Ok(transfer) => locks.release_transfer(&transfer).await?,      // or send its text
///     Err(TransferError::Refused(guard, why)) => println!("{} is still held: {why}", guard.key()),
///     Err(error) => println!("nothing is held: {error}"),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    /// Nothing was changed, and the guard is still held. The call cannot be served, or the store refused it and did nothing.
    #[error("{1}")]
    Refused(Guard, #[source] Error),
    /// The lease was lost, or the outcome is unknown because the store did not answer. This process no longer holds the lease.
    #[error("{0}")]
    Failed(#[source] Error),
}

/// A program must expect further variants:
///
/// ```compile_fail,E0004
/// fn guard(error: tenure::TransferError) -> Option<tenure::Guard> {
///     match error {
///         tenure::TransferError::Refused(guard, _) => Some(guard),
///         tenure::TransferError::Failed(_) => None,
///     }
/// }
/// ```
#[cfg(doctest)]
struct TransferErrorIsNonExhaustive;

impl From<TransferError> for Error {
    /// Converts the error, and keeps a guard that is still held in it.
    fn from(error: TransferError) -> Error {
        match error {
            TransferError::Refused(guard, error) => Error::StillHeld {
                source: Box::new(error),
                guard: KeptGuard::new(guard),
            },
            TransferError::Failed(error) => error,
        }
    }
}

impl Error {
    /// Returns the guard of [`Error::StillHeld`]. Returns `None` for any other error, and if a clone of this error has returned
    /// the guard before.
    pub fn into_guard(self) -> Option<Guard> {
        match self {
            Error::StillHeld { guard, .. } => guard.take(),
            _ => None,
        }
    }
}

/// The reason why a text is not a [`Transfer`].
///
/// ```
/// use tenure::{ParseTransferError, Transfer};
///
/// match "a text of the queue".parse::<Transfer>() {
///     Ok(transfer) => println!("a lease on {}", transfer.key()),
///     Err(ParseTransferError::Newer) => println!("leave the message to a newer worker"),
///     Err(error) => println!("drop the message: {error}"),
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseTransferError {
    /// The text never was a transfer, or it was truncated or changed.
    #[error("the text is not a transfer, or it was truncated or changed: send the whole text")]
    Malformed,
    /// A later version of this crate wrote the text.
    #[error(
        "a later version of tenure wrote this transfer: upgrade the services that adopt before those that transfer"
    )]
    Newer,
}

impl Transfer {
    /// Returns the key of the lock.
    pub fn key(&self) -> &Key {
        &self.name.key
    }

    /// Returns the fencing token of the lease until it is adopted. The token is larger than that of the guard that was
    /// transferred, and smaller than that of the guard that `adopt` returns.
    pub fn fence(&self) -> Fence {
        Fence::new(self.number, 0)
    }

    /// Returns for how long the lease is kept, counted from when the transfer was made. The store adds the margin. An extension
    /// does not change the value.
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// Adopts the lease; see [`Locks::adopt`](crate::Locks::adopt).
    pub(crate) async fn adopt(&self, handle: &Handle) -> Result<Guard, Error> {
        self.check_prefix(handle)?;
        let options = LockOptions {
            mode: self.mode,
            solo: true,
            wait: false,
            ..handle.options().lock()
        };
        let adopt = Acquire::adopt(handle, &self.name, options, self.claim_id)?;
        adopt.await.map_err(|error| match error {
            Error::Lost {
                cause: LostCause::Gone,
                ..
            } => self.gone(),
            error => error,
        })
    }

    /// Sends a call about the transferred lease: to extend it to `lease`, or to release it.
    pub(crate) async fn call(
        &self,
        handle: &Handle,
        lease: Duration,
        call: impl FnOnce(ClaimId) -> Call,
    ) -> Result<(), Error> {
        self.check_prefix(handle)?;
        let target = Target::new(handle.clone(), self.name.clone()).lease(lease);
        let call = call(self.claim_id);
        let asked = target.ask(call, |call| call.mode = self.mode, CallAnswer::try_as_owned);
        if asked?.await? { Ok(()) } else { Err(self.gone()) }
    }

    fn check_prefix(&self, handle: &Handle) -> Result<(), Error> {
        let prefix = &handle.options().prefix;
        if **prefix == *self.prefix {
            Ok(())
        } else {
            Err(Error::Options(OptionsError(format!(
                "the lease on `{}` was transferred under the prefix `{}`, not `{}`: build these locks with the same prefix",
                self.key(),
                Key::from(&*self.prefix),
                Key::from(prefix.as_slice()),
            ))))
        }
    }

    fn gone(&self) -> Error {
        Error::Gone {
            key: self.key().clone(),
        }
    }
}

impl Guard {
    /// Gives up the lease and returns a [`Transfer`], by which another process adopts it.
    ///
    /// From this call on, the transfer keeps the lock for `keep` and the [margin](crate::Builder::margin), also while other
    /// callers wait for the key. No other caller has the lock in between. After that time the lock is free, and
    /// [`adopt`](crate::Locks::adopt) returns [`Error::Gone`]. Takes one round trip.
    ///
    /// `keep` is 400 ms to 30 days. It counts from this call, so it includes the delay of a queue.
    ///
    /// # Errors
    /// [`TransferError::Refused`] with the guard, which is still held. The reasons are:
    ///
    /// * There are other guards of the lease ([`again`](crate::Lease::again)), or other callers of this process read by it.
    /// * The lease is of a job's tick or of an election.
    /// * `keep` is not a lease that the [`Builder`](crate::Builder) accepts.
    /// * The store refused or was not asked, and certainly did nothing. Then the guard keeps its fence and its deadline. Its
    ///   [`lease`](Self::lease) reported a release when this was called, so call `lease` again.
    ///
    /// [`TransferError::Failed`] if the lease was lost, or the store did not answer. Then this process no longer holds the
    /// lease: it is released in the background, or ends by itself.
    ///
    /// A refusal is returned at once. This waits for an answer at most twice, each time for a quarter of `keep`, at least
    /// 100 ms and at most the [request timeout](crate::Builder::request_timeout).
    ///
    /// # Cancel safety
    /// The lease counts as given up from the first poll. Dropping the future releases it. A caller that is dropped later, but
    /// before it has sent the message, leaves the key locked for `keep`. If that may happen, do both in a spawned task, and
    /// [release](crate::Locks::release_transfer) the transfer if it cannot be sent.
    pub async fn into_transfer(mut self, keep: Duration) -> Result<Transfer, TransferError> {
        let held = self.held().clone();
        let (node, key) = (held.handle.node(), held.name.key.clone());
        held.not_forked().map_err(TransferError::Failed)?;
        if let Some(source) = node.servers.refusal(Primitive::Transfer) {
            return Err(TransferError::Refused(self, Error::Store { key, source }));
        }
        let refused = |text: &str| {
            Error::Options(OptionsError(format!(
                "cannot transfer the lease on `{key}`: {text}"
            )))
        };
        let term = match held.handle.options().term(keep) {
            _ if held.name.kind == Kind::Job => Err(refused("it is the lease of a job's tick")),
            _ if held.name.kind == Kind::Election => Err(refused("it is the lease of an election")),
            Err(error) => Err(Error::Options(error)),
            Ok(_) if held.is_held() && node.reads_with_others(&held.name, held.ticket) => {
                Err(Error::InUse { key: key.clone() })
            }
            Ok(_) if !self.end_if_only() => Err(refused(
                "there are other guards of it: release them first. A handler takes the guard of its `LockLayer` with \
                 `Lease::take_guard`; nested layers of one key have two",
            )),
            Ok(term) => Ok(term),
        };
        let term = match term {
            Ok(term) => term,
            Err(error) => return Err(TransferError::Refused(self, error)),
        };
        // The lease is fixed: this process does not renew it for the adopting process.
        let input = |ticket| Input::Transfer(held.ticket, ticket, term);
        let made = self.pass(held.mode, true, input).await?;
        made.hand_out(term).map_err(TransferError::Failed)
    }

    /// Passes the lease to a fresh claim in `mode`, and returns its guard. After a refusal the lease continues as before, under
    /// the guard in the error.
    pub(crate) async fn pass(
        &self,
        mode: Mode,
        is_fixed: bool,
        input: impl FnOnce(Ticket) -> Input,
    ) -> Result<Guard, TransferError> {
        let (held, key) = (self.held(), self.key().clone());
        let mut pass = Acquire::pass(held, mode, is_fixed, input);
        match pass.answer().await {
            Ok(guard) => Ok(guard),
            Err(WhyDenied::StillHeld(fence, source)) => {
                let guard = pass.resume(held, fence);
                Err(TransferError::Refused(guard, Error::Store { key, source }))
            }
            Err(why) => Err(TransferError::Failed(
                match (pass.error(why), held.lost_before()) {
                    (Error::Lost { .. }, Some(cause)) => Error::Lost { key, cause },
                    (error, _) => error,
                },
            )),
        }
    }

    /// Turns the guard of a passed lease into the transfer. This process forgets the lease, and does not release it.
    fn hand_out(mut self, term: LeaseTimes) -> Result<Transfer, Error> {
        let held = self.held().clone();
        let node = held.handle.node();
        let Some(holding) = held.holding().filter(|_| self.end_if_only()) else {
            return Err(held.lost());
        };
        node.drive(&held.name, Input::HandedOut(held.ticket));
        Ok(Transfer {
            prefix: held.handle.options().prefix.clone().into(),
            name: held.name.clone(),
            mode: held.mode,
            lease: Duration::from_millis(term.lease_ms),
            claim_id: holding.claim,
            number: held.fence.number(),
        })
    }
}

/// Writes `tenure1.<kind>.<mode>.<lease in ms>.<claim id>.<grant number>.<prefix>.<key>.<checksum>`. The prefix and the key are
/// percent-encoded.
impl fmt::Display for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = match self.mode {
            Mode::Exclusive => "w".to_owned(),
            Mode::Read => "r".to_owned(),
            Mode::Permits(Permits { weight, capacity }) => format!("p{weight}/{capacity}"),
        };
        let text = format!(
            "{FORMAT}.{}.{mode}.{}.{}.{}.{}.{}",
            self.name.kind.word(),
            self.lease.as_millis(),
            self.claim_id,
            self.number,
            percent_encode(&self.prefix, ESCAPED),
            percent_encode(self.name.key.as_bytes(), ESCAPED),
        );
        write!(f, "{text}.{:016x}", checksum(&text))
    }
}

/// Returns the SipHash-2-4 of `text`, by which a changed or truncated text is refused. A changed grant number would be a fence
/// that locks out other holders. The hash has no secret key.
fn checksum(text: &str) -> u64 {
    SipHasher24::new().hash(text.as_bytes())
}

impl FromStr for Transfer {
    type Err = ParseTransferError;

    fn from_str(text: &str) -> Result<Self, ParseTransferError> {
        let parts: Vec<&str> = text.split('.').collect();
        let is_newer = |format: &str| {
            let version = format.strip_prefix("tenure").map(str::parse::<u32>);
            version.is_some_and(|version| version.is_ok_and(|version| version > 1))
        };
        if is_newer(parts[0]) {
            return Err(ParseTransferError::Newer);
        }
        let [FORMAT, kind, mode, lease, claim_id, number, prefix, key, sum] = *parts else {
            return Err(ParseTransferError::Malformed);
        };
        let before = &text[..text.len() - sum.len() - 1];
        if sum != format!("{:016x}", checksum(before)) {
            return Err(ParseTransferError::Malformed);
        }
        let parsed = || {
            let kind: Kind = kind.parse().ok()?;
            let mode = parse_mode(mode)?;
            let key: Vec<u8> = percent_decode_str(key).collect();
            let lease = Duration::from_millis(lease.parse().ok()?);
            let is_valid = !key.is_empty()
                && matches!(kind, Kind::Lock | Kind::Semaphore)
                && mode.is_permits() == (kind == Kind::Semaphore)
                && lease <= LONGEST_LEASE;
            is_valid.then_some(Transfer {
                prefix: percent_decode_str(prefix).collect(),
                name: Name {
                    kind,
                    key: Key::from(key),
                },
                mode,
                lease,
                claim_id: claim_id.parse().ok()?,
                number: number
                    .parse()
                    .ok()
                    .filter(|number: &GrantNumber| number.0 < 1 << 53)?,
            })
        };
        parsed().ok_or(ParseTransferError::Malformed)
    }
}

fn parse_mode(text: &str) -> Option<Mode> {
    match text {
        "w" => Some(Mode::Exclusive),
        "r" => Some(Mode::Read),
        permits => {
            let (weight, capacity) = permits.strip_prefix('p')?.split_once('/')?;
            let (weight, capacity) = (weight.parse().ok()?, capacity.parse().ok()?);
            let mode = Mode::Permits(Permits { weight, capacity });
            (1..=capacity).contains(&weight).then_some(mode)
        }
    }
}

impl fmt::Debug for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transfer")
            .field("kind", &self.name.kind)
            .field("key", self.key())
            .field("mode", &self.mode)
            .field("lease", &self.lease)
            .field("fence", &self.fence().get())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::ParseTransferError::{Malformed, Newer};
    use super::*;
    use crate::protocol::message::{ClaimNumber, NodeId};

    fn transfer(key: &[u8], mode: Mode, lease_ms: u64, nonce: u64) -> Transfer {
        let kind = if mode.is_permits() {
            Kind::Semaphore
        } else {
            Kind::Lock
        };
        Transfer {
            prefix: (*b"lock:").into(),
            name: Name {
                kind,
                key: Key::from(key),
            },
            mode,
            lease: Duration::from_millis(lease_ms),
            claim_id: ClaimId {
                node: NodeId::numbered(7),
                claim: ClaimNumber(nonce % 1000),
                nonce,
            },
            number: GrantNumber(1_795_000_000_000_000),
        }
    }

    fn modes() -> impl Strategy<Value = Mode> {
        let permits = (1..9_u32, 9..100_u32);
        prop_oneof![
            Just(Mode::Exclusive),
            Just(Mode::Read),
            permits.prop_map(|(weight, capacity)| Mode::Permits(Permits { weight, capacity })),
        ]
    }

    proptest! {
        #[test]
        fn a_parsed_text_equals_the_transfer(
            key in prop::collection::vec(any::<u8>(), 1..40),
            mode in modes(),
            lease_ms in 0..2_000_000_000_u64,
            nonce: u64,
        ) {
            let made = transfer(&key, mode, lease_ms, nonce);
            let text = made.to_string();
            prop_assert!(text.bytes().all(|byte| byte.is_ascii_graphic()));
            prop_assert_eq!(text.parse::<Transfer>(), Ok(made));
            // A truncated text is refused, and so is a longer one.
            for length in 0..text.len() {
                prop_assert!(text[..length].parse::<Transfer>().is_err());
            }
            let longer = format!("{text}.");
            prop_assert!(longer.parse::<Transfer>().is_err());
            // A text with a changed byte is refused.
            for (at, was) in text.char_indices().skip(nonce as usize % 8).step_by(8) {
                let other = if was == '1' { "2" } else { "1" };
                let mut changed = text.clone();
                changed.replace_range(at..=at, other);
                prop_assert!(changed.parse::<Transfer>().is_err(), "{changed}");
            }
        }

        #[test]
        fn parsing_never_panics(text in ".{0,200}", bytes in "tenure1\\.[a-z.0-9:/%-]{0,120}\\.") {
            let _ = (text.parse::<Transfer>(), bytes.parse::<Transfer>());
        }
    }

    /// Returns the text with one part replaced, and a valid checksum.
    fn replaced(text: &str, from: &str, to: &str) -> String {
        let (before, _) = text.rsplit_once('.').expect("a text ends with a checksum");
        let bad = before.replacen(from, to, 1);
        assert_ne!(bad, before, "{from}");
        format!("{bad}.{:016x}", checksum(&bad))
    }

    #[test]
    fn a_text_with_impossible_parts_is_refused() {
        let good = transfer(b"order:7", Mode::Exclusive, 60_000, 3).to_string();
        for (from, to, error) in [
            ("tenure1.", "tenure2.", Newer),
            ("tenure1.", "tenure.", Malformed),
            (".lock.", ".job.", Malformed),
            (".lock.", ".latch.", Malformed),
            (".lock.", ".semaphore.", Malformed),
            (".w.", ".p1/3.", Malformed),
            (".60000.", ".99999999999999.", Malformed),
            (".1795000000000000.", ".9995000000000000.", Malformed),
            ("order%3A7", "", Malformed),
        ] {
            let bad = replaced(&good, from, to);
            assert_eq!(bad.parse::<Transfer>(), Err(error), "{bad}");
        }
        let permits = transfer(b"k", parse_mode("p2/3").unwrap(), 9, 3).to_string();
        for bad in ["p0/3", "p4/3", "p/3", "p2", "2/3"] {
            let text = replaced(&permits, "p2/3", bad);
            assert_eq!(text.parse::<Transfer>(), Err(Malformed), "{text}");
        }
    }

    #[test]
    fn debug_does_not_show_the_nonce() {
        let made = transfer(b"k", Mode::Exclusive, 9, 0x1234_5678_9abc_def0);
        let shown = format!("{made:?} {made:#?}");
        assert!(
            !shown.contains("def0") && !shown.contains("1311768467463790320"),
            "{shown}"
        );
        assert!(made.to_string().contains("123456789abcdef0"));
    }
}
