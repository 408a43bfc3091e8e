//! A lease on its way from one process to another: what its holder writes down, and what others do with that.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode};
use siphasher::sip::SipHasher24;

use crate::driver::handle::Handle;
use crate::error::{Error, KeptGuard, LostCause, OptionsError};
use crate::key::Key;
use crate::options::LONGEST_LEASE;
use crate::primitives::acquire::LockFuture;
use crate::primitives::guard::Guard;
use crate::primitives::mutex::Mutex;
use crate::protocol::message::{Call, ClaimId, Fence, GrantNumber, Kind, LeaseTimes, Mode, Name, Permits};
use crate::protocol::step::{AcquireError, CallAnswer, Input, LockOptions, Ticket};

/// How a text begins, and which format it is.
const FORMAT: &str = "tenure1";
/// What stands in a text as it is.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_');

/// A lease that its holder gave up to whoever has this: made by [`Guard::into_transfer`] or
/// [`Semaphore::acquire_for`](crate::Semaphore::acquire_for), written down as a text, and taken over elsewhere by
/// [`Locks::adopt`](crate::Locks::adopt). A handler of a request takes the lock, a worker in another process finishes the job and
/// gives it back.
///
/// Nobody renews it on its way. It ends by itself when its time is over, unless a process [extends](crate::Locks::extend) it. Whoever has
/// the text can do so, adopt it and give it back: it holds a random number that was never sent anywhere else, so treat it as a
/// password. It is no part of what [`Debug`](fmt::Debug) shows.
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
#[must_use = "the lease is nobody's until it is adopted, given back, or at its end"]
pub struct Transfer {
    prefix: Box<[u8]>,
    name: Name,
    mode: Mode,
    lease: Duration,
    claim_id: ClaimId,
    number: GrantNumber,
}

/// Why a lease was not given up to others ([`Guard::into_transfer`]), or a writer did not become a reader
/// ([`Guard::downgrade`]).
///
/// It converts into an [`Error`], so `?` works where a function returns that. A guard that is still held is then in the error,
/// [`Error::StillHeld`], and [`Error::into_guard`] takes it out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    /// Nothing was changed, and the guard is still held: the call cannot be served, or the store refused it and did nothing.
    #[error("{1}")]
    Refused(Guard, #[source] Error),
    /// The lease was lost, or the outcome is not known, as the store did not answer: nothing is held here any more.
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
    /// Keeps a guard that is still held in the error.
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
    /// Takes the guard out of [`Error::StillHeld`]. Returns `None` for any other error, and if a clone of this error was asked
    /// before.
    pub fn into_guard(self) -> Option<Guard> {
        match self {
            Error::StillHeld { guard, .. } => guard.take(),
            _ => None,
        }
    }
}

/// A text that is no [`Transfer`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseTransferError {
    /// It never was one, or was cut short or changed on its way.
    #[error("this is no lease that was handed on, or not the whole text of one")]
    Malformed,
    /// A later version of this crate wrote it.
    #[error(
        "this lease was handed on by a later version of tenure: upgrade this service before those that hand on"
    )]
    Newer,
}

impl Transfer {
    /// What is locked.
    pub fn key(&self) -> &Key {
        &self.name.key
    }

    /// The fencing token of the lease while nobody has adopted it. Larger than that of the holder who gave it up, and smaller than
    /// that of whoever adopts it.
    pub fn fence(&self) -> Fence {
        Fence::new(self.number, 0)
    }

    /// For how long it was to be kept, counted from when it was made; the store adds the margin.
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// Takes it over, as [`Locks::adopt`](crate::Locks::adopt).
    pub(crate) async fn adopt(&self, handle: &Handle) -> Result<Guard, Error> {
        self.check_prefix(handle)?;
        let options = LockOptions {
            mode: self.mode,
            solo: true,
            wait: false,
            ..handle.options().lock()
        };
        let adopt = LockFuture::adopt(handle, &self.name, options, self.claim_id)?;
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
        let line = Mutex::new(handle.clone(), self.name.clone()).lease(lease);
        let call = call(self.claim_id);
        let asked = line.ask(call, |call| call.mode = self.mode, CallAnswer::try_as_owned);
        if asked?.await? { Ok(()) } else { Err(self.gone()) }
    }

    fn check_prefix(&self, handle: &Handle) -> Result<(), Error> {
        let prefix = &handle.options().prefix;
        if **prefix == *self.prefix {
            Ok(())
        } else {
            Err(Error::Options(OptionsError(format!(
                "the lease on `{}` was given up under the prefix `{}`, these locks have `{}`: build them with the same prefix",
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
    /// Gives the lease up to whoever is told of it: from now on it is the [`Transfer`]'s, for `keep` and the
    /// [margin](crate::Builder::margin), whoever waits for the key. Then the lock is free, and who adopts it is told
    /// [`Error::Gone`]. In one step: nobody has it in between. A trip to the store.
    ///
    /// `keep` is 400 ms to 30 days. It counts from this call, so a queue's delay is part of it.
    ///
    /// # Errors
    /// [`TransferError::Refused`] with the guard, which goes on: there are other guards of the lease
    /// ([`again`](Self::again)), others of this process read by it, it is that of a job's tick, or `keep` is no lease that the
    /// [`Builder`](crate::Builder) would take; or the store refused, or was not asked, and surely did nothing. Then the guard has
    /// its fence and its deadline as before. What watches the lease ([`lease`](Self::lease)) was told that it is released when
    /// this was called, so take a new view of it. [`TransferError::Failed`] when the lease was lost, or the store did
    /// not answer. A refusal is told at once. An answer is waited for twice at most, each time for a quarter of `keep`, 100 ms
    /// at least and the [request timeout](crate::Builder::request_timeout) at most. Then nothing is held here any more: the
    /// lease is given back in the background, or ends by itself.
    ///
    /// # Cancel safety
    /// The lease counts as given up from the first poll. Dropping the future gives it back. A caller that is dropped later,
    /// before it has sent the message, leaves the key locked for `keep`: where that may happen do both in a task of its own,
    /// and [release](crate::Locks::release) the transfer if it cannot be sent.
    pub async fn into_transfer(mut self, keep: Duration) -> Result<Transfer, TransferError> {
        let held = self.held().clone();
        let (node, key) = (held.handle.node(), held.name.key.clone());
        held.not_forked().map_err(TransferError::Failed)?;
        let refused =
            |text: &str| OptionsError(format!("cannot give up the lease on `{key}` to others: {text}"));
        let term = match held.handle.options().term(keep) {
            _ if held.name.kind == Kind::Job => Err(refused("it is that of a job's tick")),
            _ if held.name.kind == Kind::Election => Err(refused("it is that of an election")),
            Err(error) => Err(error),
            Ok(_) if held.is_held() && node.reads_with_others(&held.name, held.ticket) => Err(refused(
                "others of this process read by it, give them time or take a fixed lease",
            )),
            Ok(_) if !self.end_if_only() => Err(refused(
                "there are other guards of it, give them back first; that of a `LockLayer` lasts as long as its handler, so lock \
                 a mutex in the handler instead",
            )),
            Ok(term) => Ok(term),
        };
        let term = match term {
            Ok(term) => term,
            Err(error) => return Err(TransferError::Refused(self, Error::Options(error))),
        };
        // A lease of fixed length, which is kept for others.
        let input = |ticket| Input::Transfer(held.ticket, ticket, term);
        let made = self.pass(held.mode, true, input).await?;
        made.hand_out(term).map_err(TransferError::Failed)
    }

    /// Passes the lease on to what it becomes. After a refusal the lease goes on as before, under a guard of its own.
    pub(crate) async fn pass(
        &self,
        mode: Mode,
        is_fixed: bool,
        input: impl FnOnce(Ticket) -> Input,
    ) -> Result<Guard, TransferError> {
        let (held, key) = (self.held(), self.key().clone());
        let mut pass = LockFuture::pass(held, mode, is_fixed, input);
        match pass.answer().await {
            Ok(guard) => Ok(guard),
            Err(AcquireError::StillHeld(fence, source)) => {
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

    /// What others are to be told of it. Its lease is none of this process's any more.
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

/// `tenure1.<kind>.<mode>.<lease in ms>.<claim_id>.<number>.<prefix>.<key>.`, prefix and key percent-encoded. A text that was cut
/// short has no end.
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

/// A text that was changed on its way is none: with another number its fence would lock out others. No secret, SipHash-2-4 of
/// the text before it.
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
            let is_whole = !key.is_empty()
                && matches!(kind, Kind::Lock | Kind::Semaphore)
                && mode.is_permits() == (kind == Kind::Semaphore)
                && lease <= LONGEST_LEASE;
            is_whole.then_some(Transfer {
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
        fn a_text_is_read_as_it_was_written(
            key in prop::collection::vec(any::<u8>(), 1..40),
            mode in modes(),
            lease_ms in 0..2_000_000_000_u64,
            nonce: u64,
        ) {
            let made = transfer(&key, mode, lease_ms, nonce);
            let text = made.to_string();
            prop_assert!(text.bytes().all(|byte| byte.is_ascii_graphic()));
            prop_assert_eq!(text.parse::<Transfer>(), Ok(made));
            // Cut short at any place, or with something behind it, it is none.
            for length in 0..text.len() {
                prop_assert!(text[..length].parse::<Transfer>().is_err());
            }
            let longer = format!("{text}.");
            prop_assert!(longer.parse::<Transfer>().is_err());
            // So is one of which a byte was changed.
            for (at, was) in text.char_indices().skip(nonce as usize % 8).step_by(8) {
                let other = if was == '1' { "2" } else { "1" };
                let mut changed = text.clone();
                changed.replace_range(at..=at, other);
                prop_assert!(changed.parse::<Transfer>().is_err(), "{changed}");
            }
        }

        #[test]
        fn no_text_is_too_bad_to_be_refused(text in ".{0,200}", bytes in "tenure1\\.[a-z.0-9:/%-]{0,120}\\.") {
            let _ = (text.parse::<Transfer>(), bytes.parse::<Transfer>());
        }
    }

    /// With one part of it exchanged, and whole otherwise.
    fn exchanged(text: &str, from: &str, to: &str) -> String {
        let (before, _) = text.rsplit_once('.').expect("it has a checksum");
        let bad = before.replacen(from, to, 1);
        assert_ne!(bad, before, "{from}");
        format!("{bad}.{:016x}", checksum(&bad))
    }

    #[test]
    fn what_a_text_says_is_possible() {
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
            let bad = exchanged(&good, from, to);
            assert_eq!(bad.parse::<Transfer>(), Err(error), "{bad}");
        }
        let permits = transfer(b"k", parse_mode("p2/3").unwrap(), 9, 3).to_string();
        for bad in ["p0/3", "p4/3", "p/3", "p2", "2/3"] {
            let text = exchanged(&permits, "p2/3", bad);
            assert_eq!(text.parse::<Transfer>(), Err(Malformed), "{text}");
        }
    }

    #[test]
    fn its_secret_is_not_shown() {
        let made = transfer(b"k", Mode::Exclusive, 9, 0x1234_5678_9abc_def0);
        let shown = format!("{made:?} {made:#?}");
        assert!(
            !shown.contains("def0") && !shown.contains("1311768467463790320"),
            "{shown}"
        );
        assert!(made.to_string().contains("123456789abcdef0"));
    }
}
