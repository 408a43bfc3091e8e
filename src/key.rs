//! The key of a lock, and the types that it is made from.

use std::borrow::Cow;
use std::fmt::{self, Write};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use uuid::Uuid;

/// A lock's key: any bytes, 1 to [`Builder::max_key`](crate::locks::Builder::max_key) of them. Cheap to clone.
///
/// Two keys are the same lock only if they are the same bytes. Text and bytes are taken as they are, nothing is folded
/// or trimmed. Integers, `bool` and [`Uuid`] have one spelling each. Lengths are checked when a lock is taken, not when
/// the key is made.
///
/// A tuple of two to six [parts](KeyPart) is the parts, joined by `:`. Within a part `:` and `%` are escaped, so that no
/// text from outside reaches into the next part, and two different tuples of text are two keys.
///
/// ```
/// use tenure::Key;
/// assert_eq!(Key::from("account:42").to_string(), "account:42");
/// assert_eq!(Key::from(("account", 42)).to_string(), "account:42");
/// assert_eq!(Key::from(("file", "a:b", "50%")).to_string(), "file:a%3Ab:50%25");
/// assert_eq!(Key::from(42).to_string(), "42");
/// assert_eq!(Key::from(&b"\xff\n"[..]).to_string(), r"\xff\n");
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key(Arc<[u8]>);

impl Key {
    /// Returns the bytes of the key.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the whole key as a text that no other key has.
    #[cfg(all(feature = "metrics", feature = "scheduler"))]
    pub(crate) fn unique_text(&self) -> String {
        let mut text = String::with_capacity(self.0.len());
        // A backslash begins an escape, so it needs one itself. Exporters take two backslashes for an escape of their own.
        let _ = write_text(&self.0, r"\u{5c}", &mut text);
        text
    }

    /// Joins a prefix and a value that may come from outside. The value is escaped, so that it is one part of the key.
    #[cfg(feature = "tower")]
    pub(crate) fn prefixed(prefix: &str, value: &[u8]) -> Key {
        let mut key = Vec::with_capacity(prefix.len() + value.len());
        key.extend_from_slice(prefix.as_bytes());
        escape(value, &mut key);
        key.into()
    }

    /// Returns the key of the scope and of the parts of this key. The scope is escaped and has no colon, so the first colon ends it.
    #[cfg(feature = "tower")]
    pub(crate) fn scoped(&self, scope: &Key) -> Key {
        let mut key = Vec::with_capacity(scope.0.len() + 1 + self.0.len());
        escape(&scope.0, &mut key);
        key.push(b':');
        key.extend_from_slice(&self.0);
        key.into()
    }
}

/// A part of a key of several parts: an integer, a `bool`, a `char`, a [`Uuid`], text, or a type that implements this trait:
///
/// ```
/// use std::fmt;
/// use tenure::{Key, KeyPart};
///
/// struct AccountId(u64);
///
/// impl KeyPart for AccountId {
///     fn write_part(&self, to: &mut dyn fmt::Write) -> fmt::Result {
///         self.0.write_part(to)
///     }
/// }
///
/// assert_eq!(Key::from(("account", AccountId(42))).to_string(), "account:42");
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a part of a key",
    label = "not a part of a key",
    note = "parts of a key are integers, `bool`, `char`, `uuid::Uuid` and text; a type of yours is one if it implements `KeyPart`"
)]
pub trait KeyPart {
    /// Writes the part in the only spelling that its value has. It need not escape anything: the key does.
    fn write_part(&self, to: &mut dyn Write) -> fmt::Result;
}

impl<T: KeyPart + ?Sized> KeyPart for &T {
    fn write_part(&self, to: &mut dyn Write) -> fmt::Result {
        (**self).write_part(to)
    }
}

macro_rules! parts {
    ($($part:ty),+ $(,)?) => {
        $(impl KeyPart for $part {
            fn write_part(&self, to: &mut dyn Write) -> fmt::Result {
                write!(to, "{self}")
            }
        })+
    };
}

parts!(char, str, String, Cow<'_, str>, Arc<str>, Box<str>);

/// Implements types that are a part, and a whole key: their spellings need no escapes.
macro_rules! plain {
    ($($plain:ty),+ $(,)?) => {
        parts!($($plain),+);
        $(impl From<$plain> for Key {
            fn from(value: $plain) -> Key {
                value.to_string().into()
            }
        })+
    };
}

/// Passes to a macro all types that are a whole key and have one spelling for each value.
macro_rules! with_plain_keys {
    ($then:ident) => {
        $then!(bool, Uuid);
        $then!(i8, i16, i32, i64, i128, isize, u8, u16, u32, u64, u128, usize);
        with_plain_keys!($then, NonZero: i8 i16 i32 i64 i128 isize u8 u16 u32 u64 u128 usize);
    };
    ($then:ident, NonZero: $($number:ident)+) => {
        $then!($(std::num::NonZero<$number>),+);
    };
}

with_plain_keys!(plain);

/// A key to which parts are appended.
struct Joined(Vec<u8>);

impl Joined {
    fn new() -> Joined {
        // Most keys then need one allocation.
        Joined(Vec::with_capacity(48))
    }

    fn push(&mut self, part: &dyn KeyPart) {
        // A part that fails has no meaning, and a key without it names another lock.
        part.write_part(self).expect("a key takes every part");
    }
}

impl Write for Joined {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        escape(text.as_bytes(), &mut self.0);
        Ok(())
    }
}

fn escape(part: &[u8], to: &mut Vec<u8>) {
    for &byte in part {
        match byte {
            b':' => to.extend_from_slice(b"%3A"),
            b'%' => to.extend_from_slice(b"%25"),
            byte => to.push(byte),
        }
    }
}

macro_rules! tuples {
    ($($first:ident $($next:ident)+;)+) => {
        $(#[allow(non_snake_case)]
        impl<$first: KeyPart, $($next: KeyPart),+> From<($first, $($next),+)> for Key {
            fn from(($first, $($next),+): ($first, $($next),+)) -> Key {
                let mut key = Joined::new();
                key.push(&$first);
                $(
                    key.0.push(b':');
                    key.push(&$next);
                )+
                key.0.into()
            }
        })+
    };
}

/// Passes to a macro the names of the parts of all tuples that are a key.
macro_rules! with_key_tuples {
    ($then:ident) => {
        $then! {
            A B;
            A B C;
            A B C D;
            A B C D E;
            A B C D E F;
        }
    };
}

with_key_tuples!(tuples);

#[cfg(feature = "tower")]
pub(crate) use {with_key_tuples, with_plain_keys};

impl Hash for Key {
    /// Writes all bytes in one call, as keys are hashed more often than anything else.
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write(&self.0);
    }
}

/// Writes printable text as it is and escapes other bytes.
fn write_text(bytes: &[u8], backslash: &str, to: &mut dyn Write) -> fmt::Result {
    bytes.utf8_chunks().try_for_each(|chunk| {
        chunk.valid().chars().try_for_each(|c| match c {
            '\\' => to.write_str(backslash),
            c if c.is_control() => write!(to, "{}", c.escape_default()),
            c => to.write_char(c),
        })?;
        write!(to, "{}", chunk.invalid().escape_ascii())
    })
}

impl fmt::Display for Key {
    /// Writes printable text as it is and escapes other bytes. Cuts keys of more than 128 bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 128;
        let shown = &self.0[..self.0.len().min(SHOWN)];
        write_text(shown, r"\", f)?;
        if self.0.len() > SHOWN {
            write!(f, "… ({} bytes)", self.0.len())?;
        }
        Ok(())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{self}`")
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for Key {
    /// Writes text, or `{"hex": "…"}` if the key is not UTF-8.
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;

        if let Ok(text) = std::str::from_utf8(&self.0) {
            return serializer.serialize_str(text);
        }
        let hex: String = self.0.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut bytes = serializer.serialize_struct("Key", 1)?;
        bytes.serialize_field("hex", &hex)?;
        bytes.end()
    }
}

macro_rules! key_from {
    ($($from:ty => |$value:ident| $bytes:expr),+ $(,)?) => {
        $(impl From<$from> for Key {
            fn from($value: $from) -> Key {
                Key(Arc::from($bytes))
            }
        })+
    };
}

key_from! {
    &str => |text| text.as_bytes(),
    String => |text| text.into_bytes(),
    &String => |text| text.as_bytes(),
    &[u8] => |bytes| bytes,
    Vec<u8> => |bytes| bytes,
}

impl From<&Key> for Key {
    fn from(key: &Key) -> Key {
        key.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZero;

    use proptest::prelude::*;

    use super::*;

    /// Returns text with many of the bytes that join and escape parts.
    fn part() -> impl Strategy<Value = String> {
        prop_oneof!["[:%3A25a]{0,6}", any::<String>()]
    }

    fn key(parts: &[String]) -> Key {
        match parts {
            [a, b] => (a, b).into(),
            [a, b, c] => (a, b, c).into(),
            [a, b, c, d] => (a, b, c, d).into(),
            [a, b, c, d, e] => (a, b, c, d, e).into(),
            [a, b, c, d, e, f] => (a, b, c, d, e, f).into(),
            _ => unreachable!(),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

        #[test]
        fn two_tuples_never_make_one_key(
            one in prop::collection::vec(part(), 2..=6),
            other in prop::collection::vec(part(), 2..=6),
        ) {
            prop_assert_eq!(key(&one) == key(&other), one == other);
            // The most similar keys: the escaped parts, and two parts joined to one.
            let escaped = String::from_utf8(key(&one).as_bytes().to_vec()).unwrap();
            let escaped: Vec<_> = escaped.split(':').map(String::from).collect();
            prop_assert_eq!(key(&one) == key(&escaped), one == escaped);
            let mut merged = vec![one[..2].join(":")];
            merged.extend_from_slice(&one[2..]);
            if merged.len() > 1 {
                prop_assert_ne!(key(&one), key(&merged));
            }
        }

        #[test]
        fn a_tuple_can_be_read_back(parts in prop::collection::vec(part(), 2..=6)) {
            let key = key(&parts);
            let text = std::str::from_utf8(key.as_bytes()).unwrap();
            let read: Vec<_> =
                text.split(':').map(|part| part.replace("%3A", ":").replace("%25", "%")).collect();
            prop_assert_eq!(read, parts);
        }

        #[cfg(feature = "tower")]
        #[test]
        fn two_scopes_never_make_one_key(
            one in (any::<Vec<u8>>(), any::<Vec<u8>>()),
            other in (any::<Vec<u8>>(), any::<Vec<u8>>()),
            cut in any::<prop::sample::Index>(),
        ) {
            let scoped = |(scope, key): (&[u8], &[u8])| Key::from(key).scoped(&Key::from(scope));
            let pair = |(scope, key): &(Vec<u8>, Vec<u8>)| scoped((scope, key));
            prop_assert_eq!(pair(&one) == pair(&other), one == other);
            // The same bytes, with the border elsewhere.
            let joined = [&one.0[..], b":", &one.1].concat();
            let cut = cut.index(joined.len());
            if cut != one.0.len() {
                prop_assert_ne!(scoped((&joined[..cut], &joined[cut + 1..])), pair(&one));
            }
        }
    }

    #[test]
    fn parts_have_one_spelling() {
        let uuid = Uuid::from_u128(0x67e5_5044_10b1_426f_9247_bb68_0e5f_e0c8);
        for (key, text) in [
            (Key::from(("account", 42)), "account:42"),
            (Key::from(("account", &-42_i64)), "account:-42"),
            (Key::from(("account", NonZero::new(42_u8).unwrap())), "account:42"),
            (Key::from(("a:b", "c")), "a%3Ab:c"),
            (Key::from(("a", "b:c")), "a:b%3Ac"),
            (Key::from(("a%3Ab", String::from("c"))), "a%253Ab:c"),
            (Key::from((':', "%")), "%3A:%25"),
            (Key::from(("", "")), ":"),
            (
                Key::from(("ü", true, u128::MAX)),
                "ü:true:340282366920938463463374607431768211455",
            ),
            (Key::from(("t", uuid)), "t:67e55044-10b1-426f-9247-bb680e5fe0c8"),
            (Key::from(uuid), "67e55044-10b1-426f-9247-bb680e5fe0c8"),
            (Key::from(false), "false"),
            (Key::from(-7_i8), "-7"),
            (Key::from("a:b%"), "a:b%"),
        ] {
            assert_eq!(key.as_bytes(), text.as_bytes());
        }
    }
}
