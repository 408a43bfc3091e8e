//! Imports run downwards, and files import each other in no circle, including a file and its parent. Paths are read
//! wherever they occur, except in unit tests.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::iter::Peekable;
use std::path::Path;

use proc_macro2::{Spacing, TokenStream, TokenTree, token_stream};

/// The folders of `protocol` that a claim does not know: it has no line, no other claim and no masters.
const CLAIM_NEVER: [&str; 3] = ["key", "call", "quorum"];

/// The floors from the bottom to the top. A floor imports itself and the floors below it.
const FLOORS: &str =
    "key error protocol options observe store driver primitives locks middleware scheduler testing lib";
/// The floors of the simulator, from the bottom to the top.
const SIM_FLOORS: &str = "time violation coverage setup planted log profile world network nodes callers faults \
                          laws run explore lib main";
/// Imports that are never allowed: primitives, middleware and scheduler know no store.
const NEVER: &str = "primitives-store middleware-store scheduler-store";
/// Crates and modules that the pure floor may not name.
const IMPURE: &str =
    "tokio tracing std::time::Instant std::time::SystemTime std::thread std::net std::fs std::env";

type Paths = BTreeSet<Vec<String>>;

/// Collects every path, with the groups of `use` spread out.
fn walk(tokens: TokenStream, paths: &mut Paths) {
    let mut tokens = tokens.into_iter().peekable();
    while let Some(tree) = tokens.next() {
        match &tree {
            TokenTree::Group(group) if group.stream().to_string().replace(' ', "") == "cfg(test)" => {
                // The item behind an attribute: `mod tests { … }`, or any other item.
                let ends = |next: &TokenTree| matches!(next, TokenTree::Group(_)) || next.to_string() == ";";
                while tokens.next().is_some_and(|next| !ends(&next)) {}
            }
            TokenTree::Group(group) => walk(group.stream(), paths),
            // `::redis::Value` names a crate and no file. No token precedes its first two colons.
            tree if begins_separator(tree) => {
                tokens.next();
                if let Some(TokenTree::Ident(name)) =
                    tokens.next_if(|tree| matches!(tree, TokenTree::Ident(_)))
                {
                    path(vec![String::new(), name.to_string()], &mut tokens, paths);
                }
            }
            TokenTree::Ident(first) => path(vec![first.to_string()], &mut tokens, paths),
            // The examples of a documentation are a literal.
            TokenTree::Literal(text) if text.to_string().contains("tokio::") => {
                paths.insert(vec!["tokio".to_owned()]);
            }
            _ => {}
        }
    }
}

/// Returns whether this is the first of two colons. A single colon separates a name from its type or value.
fn begins_separator(tree: &TokenTree) -> bool {
    matches!(tree, TokenTree::Punct(punct) if punct.as_char() == ':' && punct.spacing() == Spacing::Joint)
}

fn path(mut so_far: Vec<String>, tokens: &mut Peekable<token_stream::IntoIter>, paths: &mut Paths) {
    while tokens.next_if(begins_separator).is_some() {
        tokens.next();
        match tokens.peek() {
            Some(TokenTree::Ident(name)) => so_far.push(name.to_string()),
            Some(TokenTree::Punct(punct)) if punct.as_char() == '*' => so_far.push("*".into()),
            Some(TokenTree::Group(group)) => {
                let mut rest = group.stream().into_iter().peekable();
                while let Some(tree) = rest.next() {
                    if let TokenTree::Ident(name) = tree {
                        path([&so_far[..], &[name.to_string()]].concat(), &mut rest, paths);
                    }
                }
                return;
            }
            _ => break,
        }
        tokens.next();
    }
    paths.insert(so_far);
}

/// Collects every file by its module path, with the paths that it names.
fn files(dir: &Path, module: &[String], found: &mut BTreeMap<Vec<String>, Paths>) {
    for entry in fs::read_dir(dir).unwrap() {
        let file = entry.unwrap().path();
        let stem = file.file_stem().unwrap().to_str().unwrap().to_owned();
        let inner = [module, std::slice::from_ref(&stem)].concat();
        if file.is_dir() {
            files(&file, &inner, found);
        } else if stem != "tests" && file.extension().is_some_and(|ext| ext == "rs") {
            let mut paths = Paths::new();
            walk(fs::read_to_string(&file).unwrap().parse().unwrap(), &mut paths);
            found.insert(if stem == "mod" { module.to_vec() } else { inner }, paths);
        }
    }
}

/// Asserts that the imports of a folder run downwards and in no circle.
fn check(dir: &str, floors: &str) {
    let mut found = BTreeMap::new();
    files(&Path::new(env!("CARGO_MANIFEST_DIR")).join(dir), &[], &mut found);
    let floor = |of: &str| floors.split(' ').position(|name| name == of).expect("on a floor");
    let (mut faults, mut edges) = (Vec::new(), BTreeMap::<_, BTreeSet<_>>::new());
    let of_file = |(file, paths)| Paths::iter(paths).map(move |path: &Vec<String>| (file, path));
    for (file, path) in found.iter().flat_map(of_file) {
        let written = path.join("::");
        let written = written.trim_start_matches("::");
        if file[0] == "protocol" && IMPURE.split(' ').any(|name| written.starts_with(name)) {
            faults.push(format!("{file:?} is pure and names {written}"));
        }
        let parents = path.iter().take_while(|part| *part == "super").count();
        let (from, rest) = match path[0].as_str() {
            "crate" => (&[][..], &path[1..]),
            "self" => (&file[..], &path[1..]),
            "super" => (&file[..file.len() - parents], &path[parents..]),
            // A file names the files of its own folder without a prefix.
            _ if path.len() > 1 && found.contains_key(&[&file[..], &path[..1]].concat()) => {
                (&file[..], &path[..])
            }
            _ => continue,
        };
        // `pub(super)` and `self` alone name nothing.
        if rest.is_empty() {
            continue;
        }
        let target = [from, rest].concat();
        let known = |n: usize| found.get_key_value(&target[..n]);
        let Some(target) = (1..=target.len()).rev().find_map(known) else {
            faults.push(format!("{file:?} imports {written} from the root"));
            continue;
        };
        if floor(&target.0[0]) > floor(&file[0]) || NEVER.contains(&format!("{}-{}", file[0], target.0[0])) {
            faults.push(format!("{file:?} -> {:?} runs up", target.0));
        }
        let is_of_claim = file.starts_with(&["protocol".to_owned(), "claim".to_owned()]);
        if is_of_claim
            && target
                .0
                .get(1)
                .is_some_and(|to| CLAIM_NEVER.contains(&to.as_str()))
        {
            faults.push(format!("{file:?} -> {:?}: a claim knows no callers", target.0));
        }
        if target.0 != file && file[0] != "lib" {
            edges.entry(file).or_default().insert(target.0);
        }
    }
    // A file is in no circle if it imports no remaining file, or if no remaining file imports it.
    let mut before = usize::MAX;
    while edges.len() < std::mem::replace(&mut before, edges.len()) {
        let left: BTreeSet<_> = edges.keys().copied().collect();
        let imported: BTreeSet<_> = edges.values().flatten().copied().collect();
        edges.retain(|file, to| imported.contains(file) && to.iter().any(|to| left.contains(to)));
    }
    let left: BTreeSet<_> = edges.keys().copied().collect();
    edges
        .values_mut()
        .for_each(|to| to.retain(|to| left.contains(to)));
    assert!(found.len() > 40, "{found:?}");
    assert!(faults.is_empty(), "{faults:#?}");
    assert!(edges.is_empty(), "in a circle: {edges:#?}");
}

#[test]
fn imports_run_downwards_and_in_no_circle() {
    check("src", FLOORS);
}

#[test]
fn imports_of_the_simulator_run_downwards_and_in_no_circle() {
    check("sim/src", SIM_FLOORS);
}

/// Collects the files that define each type in a folder. Types inside an `impl`, a trait or a test module do not
/// count.
fn types(dir: &Path, defined: &mut BTreeMap<String, BTreeSet<String>>) {
    for entry in fs::read_dir(dir).unwrap() {
        let file = entry.unwrap().path();
        let stem = file.file_stem().unwrap();
        if file.is_dir() {
            types(&file, defined);
            continue;
        }
        if stem == "tests" || file.extension().is_none_or(|ext| ext != "rs") {
            continue;
        }
        let source: TokenStream = fs::read_to_string(&file).unwrap().parse().unwrap();
        let tokens: Vec<_> = source.into_iter().collect();
        for item in tokens.windows(2) {
            if let [TokenTree::Ident(keyword), TokenTree::Ident(name)] = item
                && ["struct", "enum", "trait", "type"].contains(&keyword.to_string().as_str())
            {
                let files = defined.entry(name.to_string()).or_default();
                // One file may define a type twice, for two sets of features.
                files.insert(file.display().to_string());
            }
        }
    }
}

#[test]
fn two_types_never_share_a_name() {
    for (dir, least) in [("src", 150), ("sim/src", 30)] {
        let mut defined = BTreeMap::new();
        types(&Path::new(env!("CARGO_MANIFEST_DIR")).join(dir), &mut defined);
        assert!(defined.len() > least, "{defined:?}");
        defined.retain(|_, files| files.len() > 1);
        assert!(defined.is_empty(), "defined twice: {defined:#?}");
    }
}

/// The methods of the simulator's `World`: where each is defined, and which of them each file calls on `self`.
#[derive(Default)]
struct WorldMethods {
    defined: BTreeMap<String, Vec<String>>,
    called: BTreeSet<(Vec<String>, String)>,
}

impl WorldMethods {
    fn read_file(&mut self, file: &[String], tokens: TokenStream) {
        let tokens: Vec<_> = tokens.into_iter().collect();
        for item in tokens.windows(3) {
            if let [first, second, TokenTree::Group(body)] = item
                && first.to_string() == "impl"
                && second.to_string() == "World"
            {
                self.read_body(file, body.stream());
            }
        }
    }

    fn read_body(&mut self, file: &[String], tokens: TokenStream) {
        let tokens: Vec<_> = tokens.into_iter().collect();
        let text = |at: usize| tokens.get(at).map(ToString::to_string).unwrap_or_default();
        let is_dot = |at: Option<usize>| at.is_some_and(|at| text(at) == ".");
        for (at, tree) in tokens.iter().enumerate() {
            match tree {
                TokenTree::Group(group) => self.read_body(file, group.stream()),
                TokenTree::Ident(word) if word == "fn" => {
                    self.defined.insert(text(at + 1), file.to_vec());
                }
                TokenTree::Ident(word) if word == "self" && !is_dot(at.checked_sub(1)) => {
                    let is_call = matches!(tokens.get(at + 3), Some(TokenTree::Group(_)));
                    if is_dot(Some(at + 1)) && is_call {
                        self.called.insert((file.to_vec(), text(at + 2)));
                    }
                }
                _ => {}
            }
        }
    }
}

/// All files of the simulator add methods to its `World`, so imports alone do not show its layers: calls run downwards, too.
#[test]
fn calls_of_the_simulator_run_downwards() {
    fn read(dir: &Path, module: &[String], methods: &mut WorldMethods) {
        for entry in fs::read_dir(dir).unwrap() {
            let file = entry.unwrap().path();
            let stem = file.file_stem().unwrap().to_str().unwrap().to_owned();
            let inner = [module, &[stem]].concat();
            if file.is_dir() {
                read(&file, &inner, methods);
            } else {
                methods.read_file(&inner, fs::read_to_string(&file).unwrap().parse().unwrap());
            }
        }
    }
    let mut methods = WorldMethods::default();
    read(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("sim/src"),
        &[],
        &mut methods,
    );
    let floor = |file: &[String]| SIM_FLOORS.split(' ').position(|name| name == file[0]);
    let up: Vec<_> = methods
        .called
        .iter()
        .filter_map(|(file, name)| Some((file, name, methods.defined.get(name)?)))
        .filter(|(file, _, target)| floor(target) > floor(file))
        .collect();
    assert!(methods.defined.len() > 200, "{:?}", methods.defined);
    assert!(methods.called.len() > 300, "{:?}", methods.called);
    assert!(up.is_empty(), "these calls run up: {up:#?}");
}
