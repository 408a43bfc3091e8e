//! Imports run downwards, and no two files import each other in a circle. Reads every path in every file under `src/`, in
//! `use` or written out, macros included; unit tests do not count.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::iter::Peekable;
use std::path::Path;

use proc_macro2::{TokenStream, TokenTree, token_stream};

/// From the bottom to the top. A floor imports itself and what is below it.
const FLOORS: &[&str] = &[
    "key",
    "error",
    "protocol",
    "options",
    "observe",
    "store",
    "driver",
    "primitives",
    "locks",
    "middleware",
    "scheduler",
    "testing",
    "lib",
];
/// Neighbours that never meet all the same: faces know no store, doors neither store nor key machine.
const NEVER: &[(&str, &str)] = &[
    ("primitives", "store"),
    ("middleware", "store"),
    ("scheduler", "store"),
];
/// What the pure floor may not name.
const IMPURE: &[&str] = &[
    "tokio",
    "tracing",
    "std::time::Instant",
    "std::time::SystemTime",
    "std::thread",
    "std::net",
];

type Paths = BTreeSet<Vec<String>>;
type Tokens = Peekable<token_stream::IntoIter>;

fn ident(tree: Option<&TokenTree>) -> Option<String> {
    tree.and_then(|tree| {
        if let TokenTree::Ident(ident) = tree {
            Some(ident.to_string())
        } else {
            None
        }
    })
}

/// Collects every path, with the groups of `use` spread out.
fn walk(tokens: TokenStream, paths: &mut Paths) {
    let mut tokens = tokens.into_iter().peekable();
    while let Some(tree) = tokens.next() {
        match &tree {
            TokenTree::Group(group) if group.stream().to_string().replace(' ', "") == "cfg(test)" => {
                // What it is about: `mod tests { … }`, or any other item.
                while tokens
                    .next_if(|next| !matches!(next, TokenTree::Group(_)) && next.to_string() != ";")
                    .is_some()
                {}
                tokens.next();
            }
            TokenTree::Group(group) => walk(group.stream(), paths),
            TokenTree::Ident(first) => path(vec![first.to_string()], &mut tokens, paths),
            _ => {}
        }
    }
}

fn path(mut so_far: Vec<String>, tokens: &mut Tokens, paths: &mut Paths) {
    while tokens.peek().is_some_and(|tree| tree.to_string() == ":") {
        tokens.next();
        match tokens.peek() {
            Some(tree) if tree.to_string() == ":" => drop(tokens.next()),
            _ => break,
        }
        match tokens.peek() {
            Some(TokenTree::Group(group)) => {
                let mut rest = group.stream().into_iter().peekable();
                while let Some(tree) = rest.next() {
                    if let Some(name) = ident(Some(&tree)) {
                        path([so_far.clone(), vec![name]].concat(), &mut rest, paths);
                    }
                }
                break;
            }
            next => match ident(next) {
                Some(name) => so_far.push(name),
                None => break,
            },
        }
        tokens.next();
    }
    paths.insert(so_far);
}

/// Every file by its module path, with the paths that it names.
fn files(dir: &Path, module: &[String], found: &mut BTreeMap<Vec<String>, Paths>) {
    for entry in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
        let stem = entry.file_stem().unwrap().to_str().unwrap().to_owned();
        let inner = [module, &[stem.clone()]].concat();
        if entry.is_dir() {
            files(&entry, &inner, found);
        } else if entry.extension().is_some_and(|ext| ext == "rs") && stem != "tests" {
            let mut paths = Paths::new();
            walk(fs::read_to_string(&entry).unwrap().parse().unwrap(), &mut paths);
            found.insert(if stem == "mod" { module.to_vec() } else { inner }, paths);
        }
    }
}

#[test]
fn imports_run_downwards_and_in_no_circle() {
    let mut found = BTreeMap::new();
    files(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("src"),
        &[],
        &mut found,
    );
    let floor = |module: &[String]| {
        FLOORS
            .iter()
            .position(|name| *name == module[0])
            .expect(&module[0])
    };
    let (mut faults, mut edges) = (Vec::new(), BTreeMap::<_, BTreeSet<_>>::new());
    for (module, paths) in &found {
        for path in paths {
            let written = path.join("::");
            if module[0] == "protocol" && IMPURE.iter().any(|name| written.starts_with(name)) {
                faults.push(format!("{module:?} is pure and names {written}"));
            }
            let target = match path[0].as_str() {
                _ if path.len() == 1 => continue,
                "crate" => path[1..].to_vec(),
                "super" => [&module[..module.len() - 1], &path[1..]].concat(),
                "self" => [&module[..], &path[1..]].concat(),
                _ => continue,
            };
            let Some(target) = (1..=target.len())
                .rev()
                .find_map(|n| found.get_key_value(&target[..n]))
            else {
                faults.push(format!("{module:?} imports {written} from the root"));
                continue;
            };
            if floor(target.0) > floor(module) || NEVER.contains(&(&*module[0], &*target.0[0])) {
                faults.push(format!("{module:?} -> {:?} runs up", target.0));
            }
            if target.0 != module && module[0] != "lib" {
                edges.entry(module).or_default().insert(target.0);
            }
        }
    }
    // Whoever imports nothing that is left is in no circle.
    while let Some(done) = edges
        .iter()
        .find(|(_, to)| to.iter().all(|to| !edges.contains_key(to)))
        .map(|edge| *edge.0)
    {
        edges.remove(done);
    }
    assert!(
        found.len() > 40 && faults.is_empty() && edges.is_empty(),
        "{faults:#?}\nin a circle: {edges:#?}"
    );
}
