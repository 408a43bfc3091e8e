//! ARCHITECTURE.md and the ways at the heads of files name files, and functions behind their file: `driver/node.rs` `enter`,
//! `run`. All of them must exist.

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

/// Returns the pages with a map: ARCHITECTURE.md, and the head of each file that says which way something goes.
fn maps(root: &Path) -> Vec<String> {
    let mut maps = vec![fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap()];
    let mut folders = vec![root.join("src")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let source = fs::read_to_string(path).unwrap();
                let head = source.lines().map_while(|line| line.strip_prefix("//!"));
                let head = head.collect::<Vec<_>>().join("\n");
                let way = head.split_once(" # The way of ").map(|(_, way)| way.to_owned());
                maps.extend(way);
            }
        }
    }
    maps
}

#[test]
fn what_the_maps_name_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let maps = maps(root);
    let (mut files, mut functions, mut faults) = (0, 0, Vec::new());
    for page in &maps {
        let mut last = (String::new(), String::new());
        for code in code(page) {
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
    }
    assert!(
        maps.len() > 5 && files > 60 && functions > 60 && faults.is_empty(),
        "{} maps, {files} files, {functions} functions: {faults:#?}",
        maps.len()
    );
}
