//! Names and numbers: kind and key, node, claim, grant, fence, tick.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

use strum::{EnumString, IntoStaticStr, VariantArray};
use uuid::Uuid;

use crate::key::Key;

/// The kind of primitive that a key names. A store keeps state per kind and key, so a lock and another primitive with
/// the same key never meet.
///
/// ```
/// use tenure::inspect::Kind;
///
/// assert_eq!(Kind::Semaphore.word(), "semaphore");
/// let kind: Kind = "latch".parse().expect("it is the word for a kind");
/// assert!(Kind::ALL.contains(&kind));
/// ```
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, EnumString, IntoStaticStr, VariantArray,
)]
#[strum(serialize_all = "lowercase")]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
#[non_exhaustive]
pub enum Kind {
    /// A mutex or a read-write lock.
    Lock,
    /// A job, each of whose ticks runs once. The claims of a job name a tick.
    Job,
    /// A semaphore.
    Semaphore,
    /// A latch, which is counted down to zero.
    Latch,
    /// An election of a leader.
    Election,
}

impl Kind {
    /// All kinds.
    pub const ALL: &[Kind] = Kind::VARIANTS;

    /// Returns the word for the kind on the wire: its name in lower case. A variant must therefore not be renamed.
    pub fn word(self) -> &'static str {
        self.into()
    }
}

/// Kind and key: the full name of a state in the store. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    /// The kind of primitive.
    pub kind: Kind,
    /// The user's key.
    pub key: Key,
}

impl Name {
    /// Creates the name of `key` for this kind.
    pub fn new(kind: Kind, key: Key) -> Self {
        Name { kind, key }
    }

    /// Creates the name of the job called `key`.
    pub fn job(key: Key) -> Self {
        Name::new(Kind::Job, key)
    }

    /// Creates the name of the lock on `key`.
    pub fn lock(key: Key) -> Self {
        Name::new(Kind::Lock, key)
    }

    /// Creates the name of the semaphore called `key`.
    pub fn semaphore(key: Key) -> Self {
        Name::new(Kind::Semaphore, key)
    }

    /// Creates the name of the latch called `key`.
    pub fn latch(key: Key) -> Self {
        Name::new(Kind::Latch, key)
    }

    /// Creates the name of the election called `key`.
    pub fn election(key: Key) -> Self {
        Name::new(Kind::Election, key)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind.word(), self.key)
    }
}

/// The id of one process's runtime. Every [`Locks`](crate::locks::Locks) has its own.
///
/// ```
/// use tenure::{Locks, NodeId};
///
/// let id = Locks::memory().node_id();
/// let parsed: NodeId = id.to_string().parse().expect("it is an id"); // as `tenure nodes` prints it
/// assert_eq!(parsed, id);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(Uuid);

impl NodeId {
    /// Creates a random id.
    #[doc(hidden)]
    pub fn random() -> Self {
        NodeId(Uuid::new_v4())
    }

    /// Creates an id with a chosen number, for simulators and tests.
    #[doc(hidden)]
    pub fn numbered(n: u128) -> Self {
        NodeId(Uuid::from_u128(n))
    }

    /// Returns a number below `period` that differs from node to node, so that not all nodes act in the same moment.
    pub(crate) fn phase(self, period: u64) -> u64 {
        self.0.as_u64_pair().1 % period
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_simple().fmt(f)
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for NodeId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The error for a text that is no node's id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotANode;

impl FromStr for NodeId {
    type Err = NotANode;

    fn from_str(text: &str) -> Result<Self, NotANode> {
        Uuid::try_parse(text).map(NodeId).map_err(|_| NotANode)
    }
}

/// Defines types for numbers that must not be mixed up.
macro_rules! number {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = ParseIntError;

            fn from_str(text: &str) -> Result<Self, ParseIntError> {
                text.parse().map($name)
            }
        }
    };
}

number! {
    /// The number of a claim: a node's pursuit of one lease. A number lives once: asked, queued, granted, gone, and
    /// never back.
    ClaimNumber
}

number! {
    /// The number of a grant, given by the store. It grows with every grant of a server.
    GrantNumber
}

number! {
    /// The version of a watched value: the number with which a latch was set, or with which the leader was granted
    /// its lease or last proclaimed a value. It grows with every change.
    Version
}

number! {
    /// The nominal time of a tick, in milliseconds since the Unix epoch. A job's mark is the latest granted tick of its
    /// schedule; it only grows, unless it is reset. A tick that an operator triggered does not belong to the schedule, and
    /// is never compared with the mark.
    TickTime
}

impl TickTime {
    /// The first tick that an operator triggered. Each is this number plus its nominal time, so that it is no tick of a
    /// schedule, and a number that Lua represents exactly.
    pub const FIRST_TRIGGERED: TickTime = TickTime(1 << 52);

    /// Returns whether an operator triggered the tick.
    pub fn is_triggered(self) -> bool {
        self >= Self::FIRST_TRIGGERED
    }

    /// Returns the triggered tick with this nominal time.
    pub fn triggered(self) -> TickTime {
        TickTime(Self::FIRST_TRIGGERED.0 | self.0)
    }

    /// Returns the nominal time of the tick, in milliseconds since the Unix epoch.
    pub fn nominal_ms(self) -> u64 {
        self.0 & (Self::FIRST_TRIGGERED.0 - 1)
    }
}

/// The identity of an owner or a waiter: a node, the number of its claim, and a random nonce that other clients
/// cannot guess.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClaimId {
    /// The node of the claim.
    pub node: NodeId,
    /// The number of the claim.
    pub claim: ClaimNumber,
    /// Makes a forged push as hard as guessing 64 random bits.
    pub nonce: u64,
}

/// Appends the digits of a number. `write!` is slower, and every request carries numbers.
#[cfg(feature = "redis")]
pub(crate) fn append_number(text: &mut Vec<u8>, number: u64) {
    text.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

impl GrantNumber {
    /// Returns the date of the grant in microseconds since 1970, by what the clock of the numbers and the date show now. The two
    /// may differ, and a number may be ahead of its clock.
    pub(crate) fn date_us(self, now_us: u64, date_us: u64) -> u64 {
        date_us.saturating_sub(now_us.saturating_sub(self.0))
    }
}

#[cfg(feature = "redis")]
impl ClaimId {
    /// Appends the text that [`Display`](fmt::Display) writes, without the formatting machinery: every request
    /// carries it.
    pub(crate) fn append_to(&self, text: &mut Vec<u8>) {
        let mut uuid = Uuid::encode_buffer();
        text.extend_from_slice(self.node.0.as_simple().encode_lower(&mut uuid).as_bytes());
        text.push(b':');
        append_number(text, self.claim.0);
        text.push(b':');
        let nibble = |n: u32| b"0123456789abcdef"[(self.nonce >> (4 * n)) as usize & 15];
        text.extend((0..16).rev().map(nibble));
    }
}

impl fmt::Display for ClaimId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{:016x}", self.node, self.claim, self.nonce)
    }
}

/// The error for a text that is not `<node>:<claim>:<nonce>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotAClaimId;

impl FromStr for ClaimId {
    type Err = NotAClaimId;

    fn from_str(s: &str) -> Result<Self, NotAClaimId> {
        let read = || {
            let (node, rest) = s.split_once(':')?;
            let (claim, nonce) = rest.split_once(':')?;
            Some(ClaimId {
                node: node.parse().ok()?,
                claim: claim.parse().ok()?,
                nonce: u64::from_str_radix(nonce, 16).ok()?,
            })
        };
        read().ok_or(NotAClaimId)
    }
}

/// The fencing token of one holder. It grows with every grant of a key. Send the token with each write, and let the
/// guarded resource refuse smaller ones.
///
/// The upper 54 bits are the store's grant number. The lower 10 bits are the place of the holder among the local
/// holders that shared the grant. A token is a `u64` above 2^53: write it as a string in JSON.
///
/// ```
/// # fn main() -> Result<(), tenure::Error> {
/// # let locks = tenure::Locks::memory();
/// use tenure::block_on;
///
/// let account = locks.mutex("account:42");
/// let first = block_on(account.lock())?.fence();
/// let second = block_on(account.lock())?.fence();
/// assert!(second > first);
/// println!(r#"{{"amount":10,"fence":"{second}"}}"#);
/// # Ok(()) }
/// ```
///
/// Source of the idea: Martin Kleppmann, "How to do distributed locking" (2016); Chubby calls it a sequencer
/// (Burrows, OSDI 2006).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(u64);

impl Fence {
    /// Most local holders of one grant.
    pub const LOCAL: u64 = 1 << 10;
    /// Largest number of a grant. No store gives a larger one, and Redis counts up to it in steps of one.
    const LARGEST: u64 = (1 << 53) - 1;

    /// Creates the fence of the `index`-th local holder of grant `number`.
    pub fn new(number: GrantNumber, index: u64) -> Self {
        debug_assert!(index < Self::LOCAL);
        Fence(number.0.min(Self::LARGEST) << 10 | index)
    }

    /// Returns the token as a number.
    pub fn get(self) -> u64 {
        self.0
    }

    /// Returns the token for SQL: `bigint` of PostgreSQL and MySQL, `integer` of SQLite. sqlx and rusqlite bind it as an
    /// `i64`. The token always fits and keeps its order: a store gives numbers below 2^53, so the token is below 2^63.
    ///
    /// Store the largest token beside the guarded data, and let each write refuse smaller tokens in the same statement:
    ///
    /// ```sql
    /// update accounts set balance = ?, fence = ? where id = ? and fence <= ?
    /// ```
    ///
    /// If no row changed, the lease was lost and a later holder has written. The condition is `<=` because one holder may
    /// write several times. `cargo run -p tenure-fenced-ledger` shows it on SQLite.
    pub fn as_i64(self) -> i64 {
        // The sign bit is never set, so the value stays the same.
        self.0.cast_signed()
    }

    /// Returns whether this is the first local holder of the grant.
    #[doc(hidden)]
    pub fn is_first(self) -> bool {
        self.0.is_multiple_of(Self::LOCAL)
    }

    /// Returns the store's number of the grant.
    #[doc(hidden)]
    pub fn number(self) -> GrantNumber {
        GrantNumber(self.0 >> 10)
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for Fence {
    /// Writes the number as text: it is too large for the numbers of JavaScript.
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<Fence> for u64 {
    fn from(fence: Fence) -> u64 {
        fence.0
    }
}

/// Converts the token for SQL; see [`Fence::as_i64`].
impl From<Fence> for i64 {
    fn from(fence: Fence) -> i64 {
        fence.as_i64()
    }
}
