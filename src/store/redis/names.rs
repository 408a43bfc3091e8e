//! How things are called in Redis: records, queues, what is known of jobs, channels.

use std::sync::LazyLock;

use crc::{CRC_16_XMODEM, Crc};

use crate::key::Key;
use crate::protocol::message::{Kind, Name, NodeId};

/// The format of names and pushes.
const FORMAT: &str = "tenure1";
/// Where a server keeps the last grant number.
pub(super) const CLOCK: &str = "tenure1:clock";

/// How keys are called in Redis.
#[derive(Debug, Clone)]
pub(super) struct Names {
    prefix: Box<[u8]>,
}

impl Names {
    /// Records begin with `prefix`.
    pub(super) fn new(prefix: &[u8]) -> Self {
        Names {
            prefix: prefix.into(),
        }
    }

    /// About how long a record's name is.
    pub(super) fn length(&self, name: &Name) -> usize {
        self.prefix.len() + name.key.as_bytes().len()
    }

    pub(super) fn push_record(&self, name: &Name, out: &mut Vec<u8>) {
        match name.kind {
            Kind::Lock => {
                out.extend_from_slice(&self.prefix);
                out.extend_from_slice(name.key.as_bytes());
            }
            Kind::Job => self.push_named(b'o', name, out),
            Kind::Semaphore => self.push_named(b's', name, out),
            Kind::Latch => self.push_named(b'l', name, out),
            Kind::Election => self.push_named(b'e', name, out),
        }
    }

    /// What is known of a job or an election, behind the same tag as its record and its queue.
    pub(super) fn push_memory(&self, name: &Name, out: &mut Vec<u8>) {
        let letter = if name.kind == Kind::Election { b'v' } else { b'j' };
        self.push_named(letter, name, out);
    }

    fn push_named(&self, letter: u8, name: &Name, out: &mut Vec<u8>) {
        let full = [&self.prefix, name.key.as_bytes()].concat();
        self.push_tagged(letter, &full, out);
    }

    /// The name of a queue is the name of the record behind a tag that brings it to the record's slot: the record
    /// itself cannot be the tag, as it may hold braces.
    pub(super) fn push_queue(&self, record: &[u8], out: &mut Vec<u8>) {
        self.push_tagged(b'q', record, out);
    }

    fn push_tagged(&self, letter: u8, name: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(FORMAT.as_bytes());
        out.extend_from_slice(&[b':', letter, b':', b'{']);
        out.extend_from_slice(tag(slot(name)));
        out.push(b'}');
        out.extend_from_slice(name);
    }

    /// The name whose record this is.
    pub(super) fn name(&self, kind: Kind, record: &[u8]) -> Option<Name> {
        let full = match kind {
            Kind::Lock => record,
            Kind::Job => untagged(b":o:{", record)?,
            Kind::Semaphore => untagged(b":s:{", record)?,
            Kind::Latch => untagged(b":l:{", record)?,
            Kind::Election => untagged(b":e:{", record)?,
        };
        let key = full.strip_prefix(&*self.prefix).filter(|key| !key.is_empty())?;
        Some(Name {
            kind,
            key: Key::from(key),
        })
    }
}

/// What stands behind the tag of a record whose name has one.
fn untagged<'a>(letter: &[u8], record: &'a [u8]) -> Option<&'a [u8]> {
    let tagged = record.strip_prefix(FORMAT.as_bytes())?.strip_prefix(letter)?;
    tagged.get(TAG..)?.strip_prefix(b"}")
}

/// The slot of a key by the rules of Redis Cluster: of what stands in the first braces, if anything does.
fn slot(key: &[u8]) -> u16 {
    let tag = key.iter().position(|&b| b == b'{').and_then(|open| {
        let inner = &key[open + 1..];
        let length = inner.iter().position(|&b| b == b'}')?;
        (length > 0).then(|| &inner[..length])
    });
    CRC.checksum(tag.unwrap_or(key)) % SLOTS as u16
}

/// The one of Redis Cluster.
static CRC: Crc<u16> = Crc::<u16>::new(&CRC_16_XMODEM);

const SLOTS: usize = 16384;

/// How long a tag is.
const TAG: usize = 4;

/// A short text that hashes to `slot`, the same in every process and release: it is part of names. All of them are 64 kB,
/// found by the first who asks; to search for one costs as much as for most.
fn tag(slot: u16) -> &'static [u8] {
    static TAGS: LazyLock<Vec<[u8; TAG]>> = LazyLock::new(|| {
        const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
        let mut tags = vec![[0; TAG]; SLOTS];
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

/// The channel on which a node is told of its grants.
pub(super) fn channel(node: NodeId) -> String {
    format!("{FORMAT}:n:{node}")
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
        // As Redis says: CLUSTER KEYSLOT.
        assert_eq!(slot(b"123456789"), 0x31c3);
        assert_eq!(slot(b"foo{hash_tag}"), 2515);
        assert_eq!(slot(b"{}foo"), slot(b"x{}foo".strip_prefix(b"x").unwrap()));
        assert_eq!(slot(b"foo{{bar}}zap"), slot(b"{bar"));
        assert_eq!(slot(b"foo{bar}{zap}"), slot(b"bar"));
    }

    #[test]
    fn a_queue_lies_in_the_slot_of_its_record() {
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
            let record = [b"lock:", key].concat();
            let mut queue = Vec::new();
            names.push_queue(&record, &mut queue);
            assert_eq!(slot(&queue), slot(&record), "{key:?}");
            let job = Name::job(Key::from(key));
            let (mut memory, mut lease, mut queue) = (Vec::new(), Vec::new(), Vec::new());
            names.push_memory(&job, &mut memory);
            names.push_record(&job, &mut lease);
            names.push_queue(&lease, &mut queue);
            for of_job in [&memory, &lease, &queue] {
                assert_eq!(slot(of_job), slot(&record), "{key:?}");
            }
            assert_eq!(names.name(Kind::Job, &lease), Some(job), "{key:?}");
            let semaphore = Name::semaphore(Key::from(key));
            let mut permits = Vec::new();
            names.push_record(&semaphore, &mut permits);
            assert_eq!(slot(&permits), slot(&record), "{key:?}");
            assert_eq!(names.name(Kind::Semaphore, &permits), Some(semaphore), "{key:?}");
            assert_eq!(names.name(Kind::Job, &permits), None, "{key:?}");
            let election = Name::election(Key::from(key));
            let (mut memory, mut record) = (Vec::new(), Vec::new());
            names.push_memory(&election, &mut memory);
            names.push_record(&election, &mut record);
            assert_eq!((slot(&memory), slot(&record)), (slot(&permits), slot(&permits)));
            assert_eq!(names.name(Kind::Election, &record), Some(election), "{key:?}");
            let latch = Name::latch(Key::from(key));
            let mut record = Vec::new();
            names.push_record(&latch, &mut record);
            assert_eq!(slot(&record), slot(&permits), "{key:?}");
            assert_eq!(names.name(Kind::Latch, &record), Some(latch), "{key:?}");
        }
    }
}
