//! Who and what is named: a key and its kind, a node, a claim and its holder, a grant and its fence, a tick.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

use strum::{EnumString, IntoStaticStr, VariantArray};
use uuid::Uuid;

use crate::key::Key;

/// What sort of thing a key names. State in a store is per kind and key, so that a lock and a later
/// primitive of the same name never meet.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, EnumString, IntoStaticStr, VariantArray,
)]
#[strum(serialize_all = "lowercase")]
#[non_exhaustive]
pub enum Kind {
    /// An exclusive lock.
    Lock,
    /// A job whose ticks are run once each. Its claims carry a mark.
    Job,
    /// A number of permits.
    Semaphore,
    /// A number that is counted down to zero.
    Latch,
    /// Who leads.
    Election,
}

impl Kind {
    /// All of them.
    pub const ALL: &[Kind] = Kind::VARIANTS;

    /// The word that stands for the kind on the wire: its name in lower case, so a variant must not be renamed.
    pub fn word(self) -> &'static str {
        self.into()
    }
}

/// Kind and key: the full name of a state in the store. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    /// What sort of thing it is.
    pub kind: Kind,
    /// What the user called it.
    pub key: Key,
}

impl Name {
    /// The name of the state of `kind` called `key`.
    pub fn new(kind: Kind, key: Key) -> Self {
        Name { kind, key }
    }

    /// The name of the job called `key`.
    pub fn job(key: Key) -> Self {
        Name::new(Kind::Job, key)
    }

    /// The name of the exclusive lock on `key`.
    pub fn lock(key: Key) -> Self {
        Name::new(Kind::Lock, key)
    }

    /// The name of the semaphore called `key`.
    pub fn semaphore(key: Key) -> Self {
        Name::new(Kind::Semaphore, key)
    }

    /// The name of the latch called `key`.
    pub fn latch(key: Key) -> Self {
        Name::new(Kind::Latch, key)
    }

    /// The name of the election called `key`.
    pub fn election(key: Key) -> Self {
        Name::new(Kind::Election, key)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind.word(), self.key)
    }
}

/// One process's runtime. A new one for every [`Locks`](crate::locks::Locks) that is built.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(Uuid);

impl NodeId {
    /// A fresh random node.
    pub fn random() -> Self {
        NodeId(Uuid::new_v4())
    }

    /// A node with a chosen number, for simulators and tests.
    pub fn numbered(n: u128) -> Self {
        NodeId(Uuid::from_u128(n))
    }

    /// Below `period`, and not the same for all nodes, so that they do not all act in the same moments.
    pub(crate) fn phase(self, period: u64) -> u64 {
        self.0.as_u64_pair().1 % period
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_simple().fmt(f)
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text that is not a node's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotANode;

impl FromStr for NodeId {
    type Err = NotANode;

    fn from_str(text: &str) -> Result<Self, NotANode> {
        Uuid::try_parse(text).map(NodeId).map_err(|_| NotANode)
    }
}

/// Numbers that must not be taken for one another.
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
    /// The number of a claim: a node's pursuit of one lease. A number lives once: asked, queued, granted,
    /// gone, and never back.
    ClaimNumber
}

number! {
    /// The number of a grant, given by the store. It grows with every grant of a server.
    GrantNumber
}

number! {
    /// The version of what a watcher sees: the number with which a latch was set, or with which the leader was granted its
    /// lease or last proclaimed a value. It grows with every change.
    Version
}

number! {
    /// The nominal time of a tick, in milliseconds since the Unix epoch. A store's mark of a job only grows.
    TickTime
}

/// Who owns or waits: a node, the number of its claim, and a random nonce that nobody else can guess.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClaimId {
    /// Whose claim it is.
    pub node: NodeId,
    /// Which of the node's claims.
    pub claim: ClaimNumber,
    /// Makes a forged push as hard as guessing 64 random bits.
    pub nonce: u64,
}

/// Appends the digits of a number. Not by `write!`, which is slow: every request carries some.
#[cfg(feature = "redis")]
pub(crate) fn append_number(text: &mut Vec<u8>, number: u64) {
    text.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

#[cfg(feature = "redis")]
impl ClaimId {
    /// Appends the text that [`Display`](fmt::Display) gives, by hand: every request carries it.
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

/// A text that is not `<node>:<claim>:<nonce>`.
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

/// The fencing token of one holder. Grows with every grant of a key; send it with each write and let the
/// guarded resource refuse smaller ones.
///
/// It is the store's grant number in the upper 54 bits and, below, the place of the holder among the local
/// holders that shared the grant. A `u64` above 2^53: write it as a string in JSON.
///
/// Source of the idea: Martin Kleppmann, "How to do distributed locking" (2016); Chubby calls it a sequencer
/// (Burrows, OSDI 2006).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(u64);

impl Fence {
    /// How many local holders one grant can have.
    pub const LOCAL: u64 = 1 << 10;
    /// The largest number of a grant: no store gives more, and Redis counts up to here in ones.
    const LARGEST: u64 = (1 << 53) - 1;

    /// The fence of the `index`-th local holder of grant `number`.
    pub fn new(number: GrantNumber, index: u64) -> Self {
        debug_assert!(index < Self::LOCAL);
        Fence(number.0.min(Self::LARGEST) << 10 | index)
    }

    /// The token as a number.
    pub fn get(self) -> u64 {
        self.0
    }

    /// The token as SQL has it: `bigint` of PostgreSQL and MySQL, `integer` of SQLite, which sqlx and rusqlite bind as an
    /// `i64`. It always fits, and keeps its order: a store gives numbers below 2^53, which leaves the token below 2^63.
    ///
    /// Keep the largest token beside what it guards, and let each write refuse smaller ones in the same statement:
    ///
    /// ```sql
    /// update accounts set balance = ?, fence = ? where id = ? and fence <= ?
    /// ```
    ///
    /// No row changed: the lease was lost, and somebody wrote after it. `<=`, as one holding may write several times.
    pub fn as_i64(self) -> i64 {
        // The bits are the same: the highest is not set.
        self.0.cast_signed()
    }

    /// Nobody of this process held the grant before.
    #[doc(hidden)]
    pub fn is_first(self) -> bool {
        self.0.is_multiple_of(Self::LOCAL)
    }

    /// The store's number of the grant behind it.
    #[doc(hidden)]
    pub fn number(self) -> GrantNumber {
        GrantNumber(self.0 >> 10)
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

/// For SQL; see [`Fence::as_i64`].
impl From<Fence> for i64 {
    fn from(fence: Fence) -> i64 {
        fence.as_i64()
    }
}
