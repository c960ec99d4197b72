//! What the documentation points at exists: files, headings, and paths of the source tree.

mod checkout;

use std::path::{Path, PathBuf};

use checkout::root;

/// Where paths in the text start.
const TREES: [&str; 8] = ["abi/", "hv/", "tools/", "tests/", "docs/", "bench/", "fuzz/", "guest-kits/"];

/// Every page of the project, with its text.
fn pages() -> Vec<(PathBuf, String)> {
    checkout::texts(&root(), |path| path.extension().is_some_and(|kind| kind == "md"))
}

/// The text without its code blocks.
fn prose(text: &str) -> String {
    text.split("```").step_by(2).collect()
}

/// The anchor that a heading gets: lower case, blanks to hyphens, punctuation dropped.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn has_heading(text: &str, wanted: &str) -> bool {
    text.lines()
        .filter(|line| line.starts_with('#'))
        .any(|line| anchor(line.trim_start_matches('#')) == wanted)
}

#[test]
fn links_lead_somewhere() {
    let mut broken = vec![];
    let mut links = 0;
    for (page, text) in pages() {
        for part in prose(&text).split("](").skip(1) {
            let link = part.split(')').next().unwrap();
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            links += 1;
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { page.clone() } else { page.parent().unwrap().join(file) };
            let found = target.exists()
                && (heading.is_empty()
                    || std::fs::read_to_string(&target).is_ok_and(|text| has_heading(&text, heading)));
            if !found {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    assert!(links > 20, "only {links} links found");
}

/// `docs/README.md` leads to each page beside and below it.
#[test]
fn the_list_of_pages_is_complete() {
    let docs = root().join("docs");
    let list = std::fs::read_to_string(docs.join("README.md")).unwrap();
    let pages = pages().into_iter().filter_map(|(page, _)| Some(page.strip_prefix(&docs).ok()?.to_owned()));
    let missing: Vec<_> = pages
        .filter(|page| page != Path::new("README.md") && !list.contains(&format!("]({})", page.display())))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn paths_in_the_text_exist() {
    let mut broken = vec![];
    for (page, text) in pages() {
        for code in prose(&text).split('`').skip(1).step_by(2) {
            let is_path = TREES.iter().any(|tree| code.starts_with(tree))
                && !code.contains(|c: char| c.is_whitespace() || "*…{}<>".contains(c));
            if is_path && !root().join(code).exists() {
                broken.push(format!("{}: {code}", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// The table that says where new code goes names files and directories that exist.
#[test]
fn places_for_new_code_exist() {
    let text = std::fs::read_to_string(root().join("docs/architecture.md")).unwrap();
    let section =
        text.split("### Where does it go?").nth(1).and_then(|rest| rest.split("\n#").next()).unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| "));
    let paths: Vec<_> =
        rows.flat_map(|row| row.split('`').skip(1).step_by(2)).filter(|code| code.contains('/')).collect();
    let missing: Vec<_> = paths.iter().filter(|path| !root().join("hv/src").join(path).exists()).collect();
    assert!(missing.is_empty(), "{missing:?}");
    assert!(paths.len() > 30, "only {} paths found", paths.len());
}

#[test]
fn anchors_are_made_as_browsers_expect() {
    assert_eq!(anchor(" When it ends: exit status"), "when-it-ends-exit-status");
    assert!(has_heading("# One\n## `pal` run\n", "pal-run"));
    assert!(!has_heading("One\n", "one"));
}

/// Columns of a line of prose at most.
const WIDEST: usize = 100;

/// Whether a line could have been broken: it is no table, heading or link target, and holds more than one word.
fn can_be_broken(line: &str) -> bool {
    let line = line.trim_start();
    let code = line.starts_with('`') && line.ends_with('`') && line.matches('`').count() == 2;
    !line.starts_with(['|', '#', '[', '>', '<']) && line.contains(' ') && !code
}

#[test]
fn prose_is_wrapped() {
    let mut wide = vec![];
    for (page, text) in pages() {
        let mut in_code = false;
        for (number, line) in (1..).zip(text.lines()) {
            if line.trim_start().starts_with("```") {
                in_code = !in_code;
            }
            let indented = line.starts_with("    ") && !line.trim_start().starts_with(['-', '*']);
            if !in_code && !indented && line.chars().count() > WIDEST && can_be_broken(line) {
                wide.push(format!("{}:{number}: {} columns", page.display(), line.chars().count()));
            }
        }
    }
    assert!(wide.is_empty(), "wrap these lines at {WIDEST} columns:\n{}", wide.join("\n"));
}

/// Lines of a design note at most: two pages of print. What does not fit is reference (a page of `docs/`) or a note of its own.
const LONGEST_NOTE: usize = 125;

#[test]
fn design_notes_stay_short() {
    let notes =
        pages().into_iter().filter(|(page, _)| page.parent().is_some_and(|dir| dir.ends_with("docs/design")));
    let lengths: Vec<_> = notes.map(|(page, text)| (page, text.lines().count())).collect();
    assert!(lengths.len() >= 10, "the design notes have moved");
    let long: Vec<_> = lengths.iter().filter(|(_, lines)| *lines > LONGEST_NOTE).collect();
    assert!(
        long.is_empty(),
        "design notes of more than {LONGEST_NOTE} lines; shorten or split them: {long:?}"
    );
}
