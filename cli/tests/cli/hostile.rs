//! Keys and names that a terminal takes for commands. Nothing of them reaches it.

use crate::server::RedisServer;
use crate::tools::{Answer, FENCE, node, python, rows, run_on, until_told, with_notes};

fn keys() -> Vec<Vec<u8>> {
    let mut keys: Vec<Vec<u8>> = [
        "\x1b[31mred\x1b[0m",
        "\x1b]0;title\x07",
        "two\nlines\r\t",
        "\u{9b}2J",
        "\u{202e}evil\u{2066}",
        "zero\u{200b}width\u{feff}",
        "line\u{2028}separator",
        "back\\slash \"quoted\"",
        "*?[a]{1}",
    ]
    .map(Vec::from)
    .into();
    keys.push((0..=255).collect());
    keys.push(b"\xff\xfe".to_vec());
    keys
}

fn digits(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Checks that a terminal shows the text as it is.
fn harmless(answer: Answer) -> String {
    let text = answer.well();
    for c in text.chars().filter(|c| *c != '\n') {
        let is_invisible = matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
            || matches!(c, '\u{2060}'..='\u{206f}' | '\u{feff}');
        assert!(!c.is_control() && !is_invisible, "{c:?} in {text:?}");
    }
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_character_of_a_key_or_a_name_acts_on_the_terminal() {
    let (server, keys) = (RedisServer::start(), keys());
    let locks = node(&server, "\x1b[2J\n\u{202e}").await;
    let mut guards = Vec::new();
    for key in &keys {
        guards.push(locks.mutex(&key[..]).lock().await.unwrap());
    }
    until_told(&locks, 1).await;

    let table = harmless(run_on(&server, &["ls"]));
    assert_eq!(rows(&table).len(), keys.len(), "{table}");
    let shown_name = r"\x1b[2J\x0a\xe2\x80\xae";
    assert!(
        table.contains(r"\x1b[31mred\x1b[0m") && table.contains(shown_name),
        "{table}"
    );
    for key in &keys {
        let text = harmless(run_on(&server, &["show", "--hex", &digits(key)]));
        assert!(
            text.contains(&format!("key       {}\n", digits(key))) && text.contains(shown_name),
            "{text}"
        );
    }
    // The name is typed as it is shown.
    let lines = harmless(run_on(&server, &["ls", "--json", "--node", shown_name]));
    let program = "
import json, sys
for entry in map(json.loads, sys.stdin):
    key = entry['key']
    print(key['hex'] if isinstance(key, dict) else key.encode().hex())";
    let mut read: Vec<String> = python(program, &lines).lines().map(String::from).collect();
    let mut expected: Vec<String> = keys.iter().map(|key| digits(key)).collect();
    read.sort();
    expected.sort();
    assert_eq!(read, expected);
}

/// Any client of the server can write a presence.
#[tokio::test]
async fn no_character_of_a_presence_acts_on_the_terminal() {
    let server = RedisServer::start();
    let hostile = "%1B%5B2J%0A%E2%80%AE%FF";
    let fields = ["name", "host", "version", "service", "prefix"].map(|field| format!("{field}={hostile}"));
    let name = format!("tenure1:i:{}", tenure::NodeId::random());
    let presence = format!("{}&pid=-1&keys=x&started={}", fields.join("&"), u64::MAX);
    let mut set = redis::cmd("SET");
    set.arg(&[&name, &presence]).exec(&mut server.client()).unwrap();
    assert_eq!(rows(&harmless(run_on(&server, &["nodes"]))).len(), 1);
    let line = harmless(run_on(&server, &["nodes", "--json"]));
    let program = "import json, sys; print(ascii(json.load(sys.stdin)['presence']['host']))";
    assert_eq!(python(program, &line), "'\\x1b[2J\\n\\u202e\\ufffd'\n");
}

/// A note is text of a client, or of any client of the server.
#[tokio::test]
async fn no_character_of_a_note_acts_on_the_terminal() {
    let server = RedisServer::start();
    let every: Vec<u8> = (0..=255).collect();
    let codes = "\x1b[2J\x1b]0;title\x07\n\u{9b}31m\u{202e}evil\u{200b}".as_bytes();
    let long = b"\x1b[31m".repeat(2_000);
    for (note, shown_note) in [
        (&every[..], r"\x00\x01\x02"),
        (
            codes,
            r"note: \x1b[2J\x1b]0;title\x07\x0a\xc2\x9b31m\xe2\x80\xaeevil\xe2\x80\x8b",
        ),
        (&long, r"\x1b[31m\x1b[31m"),
    ] {
        with_notes(&server, &[(7, FENCE, note)]);
        let text = harmless(run_on(&server, &["show", "noted"]));
        assert!(text.contains(shown_note) && text.len() < 2_000, "{text}");
        let table = harmless(run_on(&server, &["ls", "--notes"]));
        assert!(
            rows(&table).len() == 1 && table.contains(&shown_note["note: ".len()..]),
            "{table}"
        );
        let line = harmless(run_on(&server, &["show", "noted", "--json"]));
        let program =
            "import json, sys; print(json.load(sys.stdin)['holders'][0]['notes'][0]['text'].encode().hex())";
        let read = python(program, &line);
        let expected = String::from_utf8_lossy(note).into_owned();
        assert!(
            digits(expected.as_bytes()).starts_with(read.trim()) && read.len() > 60,
            "{read}"
        );
    }
}
