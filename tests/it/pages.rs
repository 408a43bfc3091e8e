//! The pages: their links lead somewhere, on GitHub and in rustdoc, what they name exists, and they are no longer than they may be.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use pulldown_cmark::{BrokenLink, Event, LinkType, Options, Parser, Tag, TagEnd};

const API: &str = "https://docs.rs/tenure/latest/tenure/";
const REPOSITORY: &str = "https://github.com/tenure-rs/tenure/blob/HEAD/";

/// What a page has, without its code blocks.
#[derive(Default)]
struct Page {
    /// Relative to the repository.
    path: PathBuf,
    /// Where each link leads, with its name if it has one.
    links: Vec<(Option<String>, String)>,
    /// Names of links without a definition.
    undefined: Vec<String>,
    /// The anchors of its headings, as GitHub and rustdoc make them.
    anchors: Vec<String>,
    code: Vec<String>,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn guides() -> Vec<PathBuf> {
    let files = fs::read_dir(root().join("docs")).unwrap();
    let mut guides: Vec<_> = files
        .map(|file| Path::new("docs").join(file.unwrap().file_name()))
        .collect();
    guides.sort();
    guides
}

fn pages() -> Vec<Page> {
    let others = [
        "README.md",
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "benches/README.md",
        "examples/README.md",
        "tests/README.md",
    ];
    let paths = others.map(PathBuf::from).into_iter().chain(guides());
    paths.map(page).collect()
}

fn anchor(heading: &str) -> String {
    let kept = heading.to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn page(path: PathBuf) -> Page {
    let text = fs::read_to_string(root().join(&path)).unwrap();
    let mut page = Page {
        path,
        ..Page::default()
    };
    let mut undefined = Vec::new();
    let note = |link: BrokenLink<'_>| {
        undefined.push(link.reference.to_string());
        None
    };
    let (mut heading, mut is_block) = (None::<String>, false);
    for event in Parser::new_with_broken_link_callback(&text, Options::ENABLE_TABLES, Some(note)) {
        match event {
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::End(TagEnd::Heading(_)) => page.anchors.extend(heading.take().map(|text| anchor(&text))),
            Event::Start(Tag::CodeBlock(_)) => is_block = true,
            Event::End(TagEnd::CodeBlock) => is_block = false,
            Event::Start(Tag::Link {
                link_type,
                dest_url,
                id,
                ..
            }) => {
                let name = (link_type != LinkType::Inline).then(|| id.to_lowercase());
                page.links.push((name, dest_url.to_string()));
            }
            Event::Text(text) | Event::Code(text) if heading.is_some() => {
                heading.as_mut().unwrap().push_str(&text);
            }
            Event::Code(code) => page.code.push(code.to_string()),
            Event::Text(text) if is_block => page.code.extend(text.lines().map(str::to_owned)),
            _ => {}
        }
    }
    page.undefined = undefined;
    page
}

/// Cuts the anchor off.
fn parts(link: &str) -> (&str, Option<&str>) {
    link.split_once('#')
        .map_or((link, None), |(file, anchor)| (file, Some(anchor)))
}

/// Returns the path of a relative link from the page, and its anchor.
fn target<'a>(page: &Page, link: &'a str) -> (PathBuf, Option<&'a str>) {
    let (file, anchor) = parts(link);
    if file.is_empty() {
        return (page.path.clone(), anchor);
    }
    let mut path = page.path.parent().unwrap().to_owned();
    for part in Path::new(file) {
        if part == ".." {
            path.pop();
        } else {
            path.push(part);
        }
    }
    (path, anchor)
}

#[test]
fn each_link_leads_to_a_page_and_a_heading() {
    let pages = pages();
    let (mut count, mut dead) = (0, Vec::new());
    for page in &pages {
        dead.extend(
            page.undefined
                .iter()
                .map(|name| format!("{}: [{name}] has no definition", page.path.display())),
        );
        for (_, link) in page
            .links
            .iter()
            .filter(|(_, link)| !link.starts_with("https://"))
        {
            count += 1;
            let (path, anchor) = target(page, link);
            let has = |page: &Page, anchor: &str| page.anchors.iter().any(|known| known == anchor);
            let has_anchor = |anchor: &str| pages.iter().any(|page| page.path == path && has(page, anchor));
            if !root().join(&path).exists() || !anchor.is_none_or(has_anchor) {
                dead.push(format!("{}: {link}", page.path.display()));
            }
        }
    }
    assert!(count > 50 && dead.is_empty(), "{count} links, dead: {dead:#?}");
}

/// Returns whether a link of GitHub and a link of rustdoc lead to the same place.
fn is_same(page: &Page, github: &str, rustdoc: &str) -> bool {
    if let Some(path) = rustdoc.strip_prefix(REPOSITORY) {
        return target(page, github) == (PathBuf::from(path), None);
    }
    let (item, anchor) = parts(rustdoc);
    if item == "crate" {
        return target(page, github) == (PathBuf::from("README.md"), anchor);
    }
    if let Some(guide) = item.strip_prefix("crate::guide::") {
        let path = PathBuf::from(format!("docs/{}.md", guide.replace('_', "-")));
        return target(page, github) == (path, anchor);
    }
    let (Some(github), Some(item)) = (github.strip_prefix(API), item.strip_prefix("crate::")) else {
        return false;
    };
    match item.rsplit_once("::") {
        Some((of, method)) if method.starts_with(char::is_lowercase) => {
            github.ends_with(&format!(".{of}.html#method.{method}"))
        }
        Some((module, item)) => {
            let is_in_module = github.starts_with(&format!("{}/", module.replace("::", "/")));
            is_in_module && github.ends_with(&format!(".{item}.html"))
        }
        None => {
            let (path, on_github) = parts(github);
            let is_item = path.ends_with(&format!(".{item}.html"));
            (path == format!("{item}/index.html") || is_item) && on_github == anchor
        }
    }
}

/// In rustdoc the definitions of `src/links.md` come first, and in Markdown the first one holds.
#[test]
fn names_of_links_mean_the_same_on_github_and_in_rustdoc() {
    let links = include_str!("../../src/links.md");
    let links = links
        .lines()
        .map(|line| line.strip_prefix('[').unwrap().split_once("]: ").unwrap());
    let mut unused: HashMap<String, &str> = links.map(|(name, link)| (name.to_lowercase(), link)).collect();
    let links = unused.clone();
    let mut faults = Vec::new();
    for page in [PathBuf::from("README.md")].into_iter().chain(guides()).map(page) {
        for (name, link) in &page.links {
            let rustdoc = name.as_ref().and_then(|name| links.get(name));
            unused.retain(|unused, _| Some(unused) != name.as_ref());
            let is_same = match rustdoc {
                Some(rustdoc) => is_same(&page, link, rustdoc),
                None => {
                    link.starts_with('#')
                        || link.starts_with("https://") && !link.starts_with(API)
                        || link == "https://docs.rs/tenure"
                }
            };
            if !is_same {
                faults.push(format!(
                    "{}: {link} is {rustdoc:?} in src/links.md",
                    page.path.display()
                ));
            }
        }
    }
    assert!(
        faults.is_empty() && unused.is_empty(),
        "{faults:#?}, unused: {unused:?}"
    );
}

/// Returns what stands behind each `flag` of a command.
fn named<'a>(page: &'a Page, flag: &'a str) -> impl Iterator<Item = &'a str> {
    let behind = page.code.iter().flat_map(move |code| code.split(flag).skip(1));
    behind.map(|rest| rest.split([' ', '`']).next().unwrap_or_default())
}

#[test]
fn files_and_commands_of_the_pages_exist() {
    let (mut count, mut missing) = (0, Vec::new());
    let folders = [
        "src/",
        "tests/",
        "docs/",
        "examples/",
        "benches/",
        "bench-compare/",
        "sim/",
        "cli/",
        ".ci/",
    ];
    for page in pages() {
        let mut check = |what: &str, paths: &[String]| {
            count += 1;
            if !paths.iter().any(|path| root().join(path).exists()) {
                missing.push(format!("{}: {what}", page.path.display()));
            }
        };
        for code in page
            .code
            .iter()
            .filter(|code| folders.iter().any(|folder| code.starts_with(folder)))
        {
            let path = code.split(['*', ' ', '#']).next().unwrap();
            check(
                code,
                &[path.to_owned(), format!("{path}.rs"), format!("{path}.md")],
            );
        }
        for name in named(&page, "--example ") {
            check(
                name,
                &[format!("examples/{name}.rs"), format!("examples/{name}/main.rs")],
            );
        }
        for name in named(&page, "--bench ") {
            check(
                name,
                &[format!("benches/{name}.rs"), format!("benches/{name}/main.rs")],
            );
        }
    }
    assert!(
        count > 30 && missing.is_empty(),
        "{count} files, missing: {missing:#?}"
    );
}

/// Longer lines of code need to be scrolled where the documentation is shown.
#[test]
fn no_line_of_code_is_cut() {
    const SHOWN: usize = 92;
    let mut cut = Vec::new();
    for path in [PathBuf::from("README.md")].into_iter().chain(guides()) {
        let text = fs::read_to_string(root().join(&path)).unwrap();
        for (block, code) in text.split("```").enumerate() {
            let long = code.lines().filter(|line| line.chars().count() > SHOWN);
            cut.extend(
                long.filter(|_| block % 2 == 1)
                    .map(|line| format!("{}: {line}", path.display())),
            );
        }
    }
    assert!(cut.is_empty(), "{cut:#?}");
}

/// Longer than this is read by few. What does not fit has a home at a type.
#[test]
fn pages_are_no_longer_than_they_may_be() {
    let words = |path: &Path| {
        fs::read_to_string(root().join(path))
            .unwrap()
            .split_whitespace()
            .count()
    };
    let readme = words(Path::new("README.md"));
    assert!(readme <= 1_500, "README.md has {readme} words");
    let guides: Vec<_> = guides().into_iter().map(|guide| (words(&guide), guide)).collect();
    let odd: Vec<_> = guides
        .iter()
        .filter(|(words, _)| !(300..=1_200).contains(words))
        .collect();
    assert!(guides.len() >= 13 && odd.is_empty(), "{odd:?}");
}
