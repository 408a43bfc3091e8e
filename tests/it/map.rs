//! ARCHITECTURE.md names files, and functions behind their file: `driver/node.rs` `enter`, `run`. All of them must
//! exist.

use std::fs;
use std::path::Path;

/// Returns the code spans of the page, without its code blocks.
fn code(page: &str) -> Vec<String> {
    let text: String = page.split("```").step_by(2).collect();
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Functions are the only lower-case names on the page.
fn is_function(code: &str) -> bool {
    code.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
}

#[test]
fn what_the_map_names_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    let (mut files, mut functions, mut faults) = (0, 0, Vec::new());
    let mut last = (String::new(), String::new());
    for code in code(&page) {
        // A file that is yet to be written is called x.
        let is_path = (code.contains('/') || code.ends_with(".rs")) && !code.ends_with("/x.rs");
        if is_path {
            files += 1;
            let paths = ["src", ""].map(|dir| root.join(dir).join(&code));
            match paths.iter().find(|path| path.exists()) {
                Some(path) => last = (code, fs::read_to_string(path).unwrap_or_default()),
                None => faults.push(format!("there is no {code}")),
            }
        } else if is_function(&code) {
            functions += 1;
            let (file, source) = &last;
            let heads = ["(", "<"].map(|after| format!("fn {code}{after}"));
            if !heads.iter().any(|head| source.contains(head)) {
                faults.push(format!("there is no {code} in {file}"));
            }
        }
    }
    assert!(
        files > 60 && functions > 60 && faults.is_empty(),
        "{files} files, {functions} functions: {faults:#?}"
    );
}
