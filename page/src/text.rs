//! Values as text that is safe on a terminal. Keys, names and messages come from the store, where any client writes.

use std::fmt::Write;
use std::io;
use std::time::{Duration, SystemTime};

/// Returns printable characters as they are, and each byte of anything else as `\xNN`. Bash (`$'…'`) and redis-cli read
/// that form. A backslash is escaped, too, so different values have different texts.
pub fn shown(bytes: impl AsRef<[u8]>) -> String {
    let mut text = String::new();
    for chunk in bytes.as_ref().utf8_chunks() {
        for c in chunk.valid().chars() {
            if is_printable(c) && c != '\\' {
                text.push(c);
            } else {
                escape(c.encode_utf8(&mut [0; 4]).as_bytes(), &mut text);
            }
        }
        escape(chunk.invalid(), &mut text);
    }
    text
}

/// Returns the bytes of a text that [`shown`] returned. A backslash that begins no `\xNN` stands for itself.
pub fn unshown(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let escaped = rest
            .strip_prefix(b"\\x")
            .and_then(|digits| unhex(digits.get(..2)?));
        rest = match &escaped {
            Some(_) => &rest[4..],
            None => after,
        };
        bytes.extend(escaped.unwrap_or_else(|| vec![*first]));
    }
    bytes
}

fn escape(bytes: &[u8], text: &mut String) {
    for byte in bytes {
        let _ = write!(text, "\\x{byte:02x}");
    }
}

/// Returns whether the character has a shape of its own, and no effect on the characters around it.
fn is_printable(c: char) -> bool {
    match c {
        // `escape_debug` escapes them for Rust only.
        '"' | '\'' | '\\' => true,
        // Letters and a symbol that are blank.
        '\u{115f}' | '\u{1160}' | '\u{2800}' | '\u{3164}' | '\u{ffa0}' => false,
        // Escapes control, format, combining and unassigned characters, and all separators but the space.
        _ => c.escape_debug().len() == 1,
    }
}

/// Returns the line of a JSON object. Characters that are not printable are escaped: they can stand in strings only, and there
/// JSON has escapes for them.
pub fn json(object: serde_json::Result<String>) -> io::Result<String> {
    let mut line = String::new();
    for c in object?.chars() {
        if is_printable(c) {
            line.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(line, "\\u{unit:04x}");
            }
        }
    }
    line.push('\n');
    Ok(line)
}

/// Returns the bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the bytes of hexadecimal digits, or `None` if the text is something else.
pub fn unhex(text: &[u8]) -> Option<Vec<u8>> {
    let digits: Option<Vec<u32>> = text.iter().map(|byte| char::from(*byte).to_digit(16)).collect();
    let digits = digits.filter(|digits| digits.len().is_multiple_of(2))?;
    let byte = |pair: &[u32]| u8::try_from(pair[0] * 16 + pair[1]).ok();
    digits.chunks(2).map(byte).collect()
}

/// Returns the duration in seconds, as its two largest units: `3m 12s`.
pub fn duration(duration: Duration) -> String {
    let rounded = duration.saturating_add(Duration::from_millis(500)).as_secs();
    let text = humantime::format_duration(Duration::from_secs(rounded)).to_string();
    text.split(' ').take(2).collect::<Vec<_>>().join(" ")
}

/// Returns how long ago a time was: `3m 12s ago`. A time after `now` was `0s ago`: clocks differ.
pub fn age(time: SystemTime, now: SystemTime) -> String {
    format!("{} ago", duration(now.duration_since(time).unwrap_or_default()))
}

/// Returns the time in RFC 3339, or `-` if the form has no such year.
pub fn date(time: SystemTime) -> String {
    let mut text = String::new();
    match write!(text, "{}", humantime::format_rfc3339_seconds(time)) {
        Ok(()) => text,
        Err(_) => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printable_text_is_shown_as_it_is() {
        for text in ["account:42", "Größe 50% 'a' \"b\" {x}", "順序", "заказ", "🔒"] {
            assert_eq!(shown(text), text);
        }
    }

    #[test]
    fn everything_else_is_escaped() {
        for (bytes, text) in [
            (&b"\x1b[31mred\x07"[..], r"\x1b[31mred\x07"),
            (b"a\nb\r\tc\0", r"a\x0ab\x0d\x09c\x00"),
            (b"back\\slash\x7f", r"back\x5cslash\x7f"),
            (b"\xff\xc3(\xe2\x80", r"\xff\xc3(\xe2\x80"),
            ("\u{9b}31m".as_bytes(), r"\xc2\x9b31m"),
            ("\u{202e}a".as_bytes(), r"\xe2\x80\xaea"),
            ("e\u{301}".as_bytes(), r"e\xcc\x81"),
            (b"\\x0a", r"\x5cx0a"),
        ] {
            assert_eq!(shown(bytes), text);
        }
    }

    #[test]
    fn what_is_shown_is_read_back() {
        let all: Vec<u8> = (0..=255).collect();
        for bytes in [&all[..], b"\\x0a", b"a\\", "Größe \u{202e}".as_bytes(), b""] {
            assert_eq!(unshown(&shown(bytes)), bytes);
        }
        assert_eq!(unshown(r"C:\dir\x4"), br"C:\dir\x4");
    }

    #[test]
    fn no_character_that_is_invisible_or_acts_is_shown() {
        let ranges = [
            '\0'..='\x1f',
            '\x7f'..='\u{a0}',
            '\u{ad}'..='\u{ad}',
            '\u{300}'..='\u{36f}',
            '\u{61c}'..='\u{61c}',
            '\u{115f}'..='\u{1160}',
            '\u{180b}'..='\u{180f}',
            '\u{2000}'..='\u{200f}',
            '\u{2028}'..='\u{202f}',
            '\u{205f}'..='\u{206f}',
            '\u{2800}'..='\u{2800}',
            '\u{3000}'..='\u{3000}',
            '\u{3164}'..='\u{3164}',
            '\u{e000}'..='\u{f8ff}',
            '\u{fe00}'..='\u{fe0f}',
            '\u{feff}'..='\u{feff}',
            '\u{ffa0}'..='\u{ffa0}',
            '\u{fff0}'..='\u{fffb}',
            '\u{e0000}'..='\u{e0fff}',
            '\u{10fffe}'..='\u{10ffff}',
        ];
        for c in ranges.into_iter().flatten() {
            assert!(!is_printable(c), "{c:?}");
        }
    }

    #[test]
    fn two_values_never_have_one_text() {
        let bytes = (0x80..=0xff).map(|byte| shown([byte]));
        let texts = ('\0'..='\u{2fff}')
            .map(|c: char| shown(c.to_string()))
            .chain(bytes);
        let count = texts.clone().count();
        assert_eq!(texts.collect::<std::collections::HashSet<_>>().len(), count);
    }

    #[test]
    fn json_has_no_character_that_a_terminal_acts_on() {
        let value = "\u{1b}[31m\u{9b}\u{7f}\u{202e}\\\"ü\u{e0001}\n";
        let line = json(serde_json::to_string(value)).unwrap();
        assert_eq!(
            line,
            "\"\\u001b[31m\\u009b\\u007f\\u202e\\\\\\\"ü\\udb40\\udc01\\n\"\n"
        );
        assert_eq!(serde_json::from_str::<String>(&line).unwrap(), value);
    }

    #[test]
    fn hexadecimal_digits_are_read_back() {
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(unhex(hex(&bytes).as_bytes()), Some(bytes));
        assert_eq!(unhex(b"aAfF"), Some(vec![0xaa, 0xff]));
        assert_eq!(unhex(b""), Some(vec![]));
        for text in ["a", "zz", "+f", "0x", "0a 0b"] {
            assert_eq!(unhex(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn durations_are_rounded_to_seconds_and_two_units() {
        for (ms, text) in [
            (0, "0s"),
            (499, "0s"),
            (9_600, "10s"),
            (192_000, "3m 12s"),
            (60_000, "1m"),
            (93_784_000, "1day 2h"),
        ] {
            assert_eq!(duration(Duration::from_millis(ms)), text);
        }
        assert!(duration(Duration::MAX).contains("years"));
    }

    #[test]
    fn ages_and_dates_of_any_time_are_texts() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        assert_eq!(age(now - Duration::from_secs(192), now), "3m 12s ago");
        assert_eq!(age(now + Duration::from_secs(9), now), "0s ago");
        assert_eq!(date(now), "2027-01-15T08:00:00Z");
        assert_eq!(date(now + Duration::from_millis(u64::MAX)), "-");
    }
}
