//! The name of the thing that is locked.

use std::fmt;
use std::sync::Arc;

/// A lock's key: any bytes, 1 to [`Builder::max_key`](crate::locks::Builder::max_key) of them. Cheap to clone.
///
/// Text and bytes convert into it; nothing is escaped, folded or trimmed, so two keys are the same lock only if
/// they are the same bytes. Lengths are checked when a lock is taken, not when the key is made.
///
/// ```
/// use tenure::Key;
/// assert_eq!(Key::from("account:42").to_string(), "account:42");
/// assert_eq!(Key::from(&b"\xff\n"[..]).to_string(), r"\xff\n");
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<[u8]>);

impl Key {
    /// The bytes of the key.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for Key {
    /// Printable as it is, every other byte escaped; long keys are cut.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 128;
        let shown = &self.0[..self.0.len().min(SHOWN)];
        match std::str::from_utf8(shown) {
            Ok(text) => text.chars().try_for_each(|c| match c {
                c if c.is_control() => write!(f, "{}", c.escape_default()),
                c => write!(f, "{c}"),
            })?,
            Err(_) => write!(f, "{}", shown.escape_ascii())?,
        }
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
