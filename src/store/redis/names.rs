//! The names in Redis: records, queues, memories of jobs and elections, and channels.

use std::fmt::Display;
use std::sync::LazyLock;

use crc::{CRC_16_XMODEM, Crc};

use crate::key::Key;
use crate::protocol::message::{Kind, Name, NodeId};

/// The version of the formats of names and pushes.
const FORMAT: &str = "tenure1";
/// The key that holds the last grant number of a server. On a cluster a tag follows, for each slot.
pub(super) const CLOCK: &str = "tenure1:clock";
/// The key that says why a server recovers. Its life is the rest of the recovery. On a cluster a tag follows, for
/// each slot.
pub(super) const RECOVERING: &str = "tenure1:recovering";
/// The key that holds the run of a server: its run id and replication id.
pub(super) const RUN: &str = "tenure1:run";
/// The beginning of the key that holds the Sentinels' epoch of a server. The Sentinels' name of the master follows.
pub(super) const EPOCH: &str = "tenure1:epoch:";
/// The key that holds the longest lease of any process, and the length of a recovery.
pub(super) const LONGEST: &str = "tenure1:longest";
/// The key that holds the list of the masters of a quorum, of which the server is one.
pub(super) const MASTERS: &str = "tenure1:masters";

/// The beginning of the keys in which nodes tell of themselves.
pub(super) const PRESENCE: &str = "tenure1:i:";

/// The beginning of a pattern for the memories of jobs. The prefix of the records follows.
pub(super) const MEMORIES_OF_JOBS: &str = "tenure1:j:{????}";

/// The beginning of the key with the audit list. The prefix of the records follows.
const AUDIT: &str = "tenure1:a:";

/// The names of keys in Redis.
#[derive(Debug, Clone)]
pub(super) struct Names {
    pub(super) prefix: Box<[u8]>,
    /// The names lie in slots, each with a clock of its own.
    pub(super) has_slots: bool,
}

impl Names {
    /// Creates the names whose records begin with `prefix`.
    pub(super) fn new(prefix: &[u8]) -> Self {
        Names {
            prefix: prefix.into(),
            has_slots: false,
        }
    }

    /// Returns the name of the audit list.
    pub(super) fn audit(&self) -> Vec<u8> {
        [AUDIT.as_bytes(), &self.prefix].concat()
    }

    /// Returns the slot of a name, in which all its keys are. On one server all names have slot 0.
    pub(super) fn slot(&self, name: &Name) -> u16 {
        if !self.has_slots {
            return 0;
        }
        let mut record = Vec::with_capacity(self.length(name));
        self.push_full(name, &mut record);
        slot(&record)
    }

    /// Returns the slot of a key of the caller. On one server all keys have slot 0.
    pub(super) fn slot_of_key(&self, key: &[u8]) -> u16 {
        if self.has_slots { slot(key) } else { 0 }
    }

    /// Appends the name of the clock of a slot.
    pub(super) fn push_clock(&self, slot: u16, out: &mut Vec<u8>) {
        self.push_of_slot(CLOCK, slot, out);
    }

    /// Appends the name of the key that exists while a slot recovers.
    pub(super) fn push_recovering(&self, slot: u16, out: &mut Vec<u8>) {
        self.push_of_slot(RECOVERING, slot, out);
    }

    fn push_of_slot(&self, name: &str, slot: u16, out: &mut Vec<u8>) {
        out.extend_from_slice(name.as_bytes());
        if self.has_slots {
            out.extend_from_slice(b":{");
            out.extend_from_slice(tag(slot));
            out.push(b'}');
        }
    }

    /// Returns the approximate length of a record's name, in bytes.
    pub(super) fn length(&self, name: &Name) -> usize {
        self.prefix.len() + name.key.as_bytes().len()
    }

    /// Appends the name of a record.
    pub(super) fn push_record(&self, name: &Name, out: &mut Vec<u8>) {
        match letter(name.kind) {
            Some(letter) => self.push_named(letter, name, out),
            None => self.push_full(name, out),
        }
    }

    /// Appends the name of the memory of a job or an election. Its tag equals the tag of the record and of the queue.
    pub(super) fn push_memory(&self, name: &Name, out: &mut Vec<u8>) {
        let letter = if name.kind == Kind::Election { b'v' } else { b'j' };
        self.push_named(letter, name, out);
    }

    /// Appends the name of a queue: a tag, then the name of the record. The tag puts the queue into the record's slot.
    /// The record itself cannot be the tag, because it may contain braces.
    pub(super) fn push_queue(&self, name: &Name, out: &mut Vec<u8>) {
        push_tagged(b'q', out, |out| self.push_record(name, out));
    }

    fn push_named(&self, letter: u8, name: &Name, out: &mut Vec<u8>) {
        push_tagged(letter, out, |out| self.push_full(name, out));
    }

    fn push_full(&self, name: &Name, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.prefix);
        out.extend_from_slice(name.key.as_bytes());
    }

    /// Returns the job to which a memory belongs, or `None` if the key is no memory of a job.
    pub(super) fn job_of_memory(&self, memory: &[u8]) -> Option<Name> {
        let key = untagged(b'j', memory)?.strip_prefix(&*self.prefix)?;
        (!key.is_empty()).then(|| Name::job(Key::from(key)))
    }

    /// Returns the name to which a record belongs, or `None` if the record is not of this kind.
    pub(super) fn name(&self, kind: Kind, record: &[u8]) -> Option<Name> {
        let full = match letter(kind) {
            Some(letter) => untagged(letter, record)?,
            None => record,
        };
        let key = full.strip_prefix(&*self.prefix).filter(|key| !key.is_empty())?;
        Some(Name::new(kind, Key::from(key)))
    }
}

/// Returns the letter in the record names of a kind. Locks have none, because other libraries share their records.
fn letter(kind: Kind) -> Option<u8> {
    match kind {
        Kind::Lock => None,
        Kind::Job => Some(b'o'),
        Kind::Semaphore => Some(b's'),
        Kind::Latch => Some(b'l'),
        Kind::Election => Some(b'e'),
    }
}

/// Appends a letter, a tag and the name that `push` writes. The tag puts the whole into the slot of that name.
fn push_tagged(letter: u8, out: &mut Vec<u8>, push: impl FnOnce(&mut Vec<u8>)) {
    out.extend_from_slice(FORMAT.as_bytes());
    out.extend_from_slice(&[b':', letter, b':', b'{']);
    let place = out.len()..out.len() + TAG_LENGTH;
    out.extend_from_slice(&[0; TAG_LENGTH]);
    out.push(b'}');
    push(out);
    let tag = tag(slot(&out[place.end + 1..]));
    out[place].copy_from_slice(tag);
}

/// Returns the text behind the tag of a record, or `None` if the record has no such tag.
fn untagged(letter: u8, record: &[u8]) -> Option<&[u8]> {
    let tagged = record.strip_prefix(FORMAT.as_bytes())?;
    let tagged = tagged.strip_prefix(&[b':', letter, b':', b'{'])?;
    tagged.get(TAG_LENGTH..)?.strip_prefix(b"}")
}

/// Returns the slot of a key by the rules of Redis Cluster: the hash of the text in the first braces, or else of the key.
pub(super) fn slot(key: &[u8]) -> u16 {
    let tag = key.iter().position(|&b| b == b'{').and_then(|open| {
        let inner = &key[open + 1..];
        let length = inner.iter().position(|&b| b == b'}')?;
        (length > 0).then(|| &inner[..length])
    });
    CRC.checksum(tag.unwrap_or(key)) % SLOTS as u16
}

/// The checksum of Redis Cluster.
static CRC: Crc<u16> = Crc::<u16>::new(&CRC_16_XMODEM);

pub(super) const SLOTS: usize = 16384;

/// The length of a tag in bytes.
const TAG_LENGTH: usize = 4;

/// Returns a short text that hashes to `slot`. It is part of names, so it is the same in every process and release.
///
/// The table of all tags takes 64 kB. The first call builds it: a search for one tag costs as much as the table.
fn tag(slot: u16) -> &'static [u8] {
    static TAGS: LazyLock<Vec<[u8; TAG_LENGTH]>> = LazyLock::new(|| {
        const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
        let mut tags = vec![[0; TAG_LENGTH]; SLOTS];
        let mut missing = SLOTS;
        for n in 0..DIGITS.len().pow(4) {
            let text = [36 * 36 * 36, 36 * 36, 36, 1].map(|unit| DIGITS[n / unit % 36]);
            let tag = &mut tags[self::slot(&text) as usize];
            if tag[0] == 0 {
                *tag = text;
                missing -= 1;
                if missing == 0 {
                    break;
                }
            }
        }
        tags
    });
    &TAGS[slot as usize % SLOTS]
}

/// Returns the name of the key in which a node tells of itself.
pub(super) fn presence(node: impl Display) -> String {
    format!("{PRESENCE}{node}")
}

/// Returns the record of a queue, or `None` if the key is no queue.
pub(super) fn record_of_queue(key: &[u8]) -> Option<&[u8]> {
    untagged(b'q', key)
}

/// Returns the channel to which grants for a node are published.
pub(super) fn channel(node: NodeId) -> String {
    format!("{FORMAT}:n:{node}")
}

/// Returns the channel of one subscription of a node.
pub(super) fn own_channel(node: NodeId, word: u64) -> String {
    format!("{}:{word:016x}", channel(node))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_has_a_tag_that_hashes_to_it() {
        for n in 0..SLOTS as u16 {
            assert_ne!(tag(n)[0], 0, "slot {n}");
            assert_eq!(slot(tag(n)), n);
        }
        // Values from CLUSTER KEYSLOT of a Redis server.
        assert_eq!(slot(b"123456789"), 0x31c3);
        assert_eq!(slot(b"foo{hash_tag}"), 2515);
        assert_eq!(slot(b"{}foo"), slot(b"x{}foo".strip_prefix(b"x").unwrap()));
        assert_eq!(slot(b"foo{{bar}}zap"), slot(b"{bar"));
        assert_eq!(slot(b"foo{bar}{zap}"), slot(b"bar"));
    }

    #[test]
    fn all_names_of_a_key_are_in_the_slot_of_its_record() {
        let names = Names::new(b"lock:");
        for key in [
            &b"a"[..],
            b"{}",
            b"a}b{c}",
            b"}{",
            b"{x}{y}",
            b"\x00\xff\n",
            b"clock",
            b"{",
        ] {
            let full = [b"lock:", key].concat();
            for &kind in Kind::ALL {
                let name = Name::new(kind, Key::from(key));
                let (mut record, mut queue, mut memory) = (Vec::new(), Vec::new(), Vec::new());
                names.push_record(&name, &mut record);
                names.push_queue(&name, &mut queue);
                names.push_memory(&name, &mut memory);
                for of_kind in [&record, &queue, &memory] {
                    assert_eq!(slot(of_kind), slot(&full), "{key:?}");
                }
                assert!(queue.ends_with(&record), "{key:?}");
                for other in Kind::ALL.iter().copied().filter(|other| *other != Kind::Lock) {
                    let found = names.name(other, &record);
                    assert_eq!(found, (other == kind).then(|| name.clone()), "{key:?}");
                }
            }
        }
    }
}
