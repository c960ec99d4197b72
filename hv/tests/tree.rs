//! The rules that explain the source tree, checked.

mod checkout;

use std::path::Path;

/// Where assembly and unsafe code may be, and the hardware-free files whose module doc says why they need it.
const HARDWARE: [&str; 3] = ["hw/", "boot/", "virt/"];
const TOUCHES_MEMORY: [&str; 5] =
    ["mem/frame.rs", "mem/heap.rs", "mem/host_ram.rs", "mem/pieces.rs", "mem/tables.rs"];
/// What ties the machine to the guests: it makes the promises that the functions above ask for.
const TIES: [&str; 14] = [
    "vmm/backend.rs",
    "vmm/counters.rs",
    "vmm/idle.rs",
    "vmm/machine.rs",
    "vmm/memory.rs",
    "vmm/overcommit.rs",
    "vmm/page_disk.rs",
    "vmm/pcpu.rs",
    "vmm/pcpu/registers.rs",
    "vmm/pcpus.rs",
    "vmm/records.rs",
    "vmm/selftest_shootdown.rs",
    "vmm/start.rs",
    "vmm/tiers.rs",
];
/// Lines of a file at most.
const LONGEST: usize = 400;
/// Tables of registers may be longer.
const TABLES: [&str; 1] = ["arch/state.rs"];

/// The top-level modules from the lowest layer to the highest, each with those that it may import. A module imports only
/// such as stand before it, so that there is no circle. docs/architecture.md has the picture.
const LAYERS: [(&str, &[&str]); 20] = [
    ("arch", &[]),
    ("screen", &[]),
    ("sched", &[]),
    ("hw", &["arch", "screen"]),
    ("mem", &["arch", "hw"]),
    ("smp", &["sched"]),
    ("firmware", &["hw", "screen"]),
    ("paging", &["arch", "mem"]),
    ("region", &["arch", "mem"]),
    ("emulate", &["arch"]),
    ("device", &["arch", "mem"]),
    ("virt", &["arch", "hw", "paging"]),
    ("trace", &["arch", "virt"]),
    ("probe", &["arch", "firmware", "hw", "mem", "sched", "screen", "trace", "virt"]),
    ("vm", &["arch", "device", "mem", "paging", "region", "smp"]),
    ("guest", &["arch", "device", "mem", "paging", "probe", "sched", "smp", "virt", "vm"]),
    ("vcpu", &["arch", "device", "emulate", "guest", "mem", "paging", "region", "trace", "virt", "vm"]),
    ("monitor", &["arch", "device", "guest", "mem", "paging", "region", "trace", "vcpu", "virt", "vm"]),
    (
        "boot",
        &["arch", "firmware", "hw", "mem", "paging", "probe", "sched", "screen", "smp", "trace", "virt"],
    ),
    (
        "vmm",
        &[
            "arch", "boot", "device", "emulate", "firmware", "guest", "hw", "mem", "monitor", "paging",
            "probe", "region", "sched", "smp", "trace", "vcpu", "virt", "vm",
        ],
    ),
];
/// Models of tests, which play the layers above (other VCPUs, their mailboxes) for the code that they try.
const PLAYS_ABOVE: [&str; 2] = ["paging/shadow/oracle/", "paging/shadow/shootdown/interleavings.rs"];

/// The files below `root` that are wanted, with their paths from there, and their text.
fn texts_below(root: &Path, is_wanted: impl Fn(&Path) -> bool) -> Vec<(String, String)> {
    let name = |path: &Path| path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
    checkout::texts(root, is_wanted).into_iter().map(|(path, text)| (name(&path), text)).collect()
}

/// Every source file of the hypervisor, tests left out, with its path below `src`.
fn sources() -> Vec<(String, String)> {
    let texts = texts_below(&checkout::root().join("hv/src"), |_| true).into_iter();
    texts.filter(|(name, _)| !name.contains("tests/") && !name.ends_with("tests.rs")).collect()
}

/// The line without its comment.
fn code(line: &str) -> &str {
    line.split("//").next().unwrap_or("")
}

fn offenders(breaks: impl Fn(&str, &str) -> bool) -> Vec<String> {
    let broken = |name: &str, text: &str| {
        let lines = text.lines().enumerate().filter(|(_, line)| breaks(name, code(line)));
        lines.map(|(n, line)| format!("{name}:{}: {}", n + 1, line.trim())).collect::<Vec<_>>()
    };
    sources().iter().flat_map(|(name, text)| broken(name, text)).collect()
}

#[test]
fn assembly_lives_with_the_hardware() {
    let found = offenders(|name, line| {
        !HARDWARE.iter().any(|dir| name.starts_with(dir)) && (line.contains("asm!(") || name.ends_with(".s"))
    });
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn unsafe_code_is_where_the_hardware_is() {
    let allowed = |name: &str| {
        HARDWARE.iter().any(|dir| name.starts_with(dir))
            || TOUCHES_MEMORY.contains(&name)
            || TIES.contains(&name)
    };
    let is_unsafe =
        |line: &str| line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "unsafe");
    let found = offenders(|name, line| !allowed(name) && is_unsafe(line));
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn files_are_short_and_say_what_they_are() {
    let mut found = vec![];
    for (name, text) in sources().iter().filter(|(name, _)| name.ends_with(".rs")) {
        if text.lines().count() > LONGEST && !TABLES.contains(&name.as_str()) {
            found.push(format!("{name}: {} lines", text.lines().count()));
        }
        if !text.starts_with("//!") {
            found.push(format!("{name}: no module documentation"));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// The top-level modules of the hypervisor that a source text names after `crate::`, with the line; tests at its end left
/// out.
fn imports(text: &str) -> Vec<(usize, String)> {
    let modules = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(text);
    let first_word = |rest: &str| -> String {
        rest.chars().take_while(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || *c == '_').collect()
    };
    let mut found = vec![];
    for (n, line) in modules.lines().enumerate() {
        for rest in code(line).split("crate::").skip(1) {
            match rest.strip_prefix('{') {
                Some(group) => found.extend(group.split(',').map(|item| (n + 1, first_word(item.trim())))),
                None => found.push((n + 1, first_word(rest))),
            }
        }
    }
    found
}

/// What is wrong with an import of `to` by `file`, or `None` if its layer may import that.
fn misplaced(file: &str, to: &str) -> Option<String> {
    let from = file.split('/').next().unwrap_or(file);
    let place = |name: &str| LAYERS.iter().position(|(layer, _)| *layer == name);
    let (Some(here), Some(there)) = (place(from), place(to)) else {
        return None;
    };
    let (_, allowed) = LAYERS[here];
    if here == there || allowed.contains(&to) {
        return None;
    }
    if there < here {
        return Some(format!(
            "`{from}` has not imported the lower layer `{to}` so far: if it must, add `{to}` to its row of LAYERS"
        ));
    }
    let above = LAYERS.iter().find(|(_, may)| may.contains(&from) && may.contains(&to));
    let above = above.map_or("vmm", |(layer, _)| layer);
    Some(format!(
        "`{to}` stands above `{from}`: what `{from}` needs of it belongs into one of [{}], and code that needs both \
         into `{above}` or higher",
        if allowed.is_empty() { "itself".into() } else { allowed.join(", ") }
    ))
}

#[test]
fn imports_point_downwards() {
    let mut found = vec![];
    for (name, text) in sources() {
        let is_test = name.ends_with("testing.rs") || PLAYS_ABOVE.iter().any(|path| name.starts_with(path));
        if !name.contains('/') || is_test {
            continue;
        }
        let layer = name.split('/').next().unwrap_or(&name);
        if !LAYERS.iter().any(|(known, _)| *known == layer) {
            found.push(format!("{name}: `{layer}` is not in LAYERS: give it a place and its imports"));
        }
        for (line, to) in imports(&text) {
            found.extend(misplaced(&name, &to).map(|why| format!("{name}:{line}: {why}")));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn layers_have_no_circle() {
    for (index, (layer, allowed)) in LAYERS.iter().enumerate() {
        for to in *allowed {
            assert!(
                LAYERS[..index].iter().any(|(lower, _)| lower == to),
                "`{layer}` may import only layers that stand before it, and `{to}` does not"
            );
        }
    }
}

#[test]
fn an_upward_import_is_found_and_explained() {
    let text = "use crate::arch::addr::Gpa;\nuse crate::{mem::frame, vcpu::Vcpu}; // crate::vmm\n";
    assert_eq!(imports(text), [(1, "arch".into()), (2, "mem".into()), (2, "vcpu".into())]);
    assert_eq!(misplaced("paging/p2m.rs", "mem"), None);
    let why = misplaced("paging/p2m.rs", "vcpu").unwrap();
    assert!(why.contains("`vcpu` stands above `paging`") && why.contains("`monitor` or higher"), "{why}");
    assert!(misplaced("device/uart.rs", "hw").unwrap().contains("add `hw`"));
}

/// Words that no text of the project may have, wherever they stand: names of things for persons, and old-fashioned ones. With
/// what to write instead.
const PLAIN: [(&str, &str); 12] = [
    ("anew", "again"),
    ("so many", "the number itself, or this many"),
    ("stands still", "is stopped, does not advance"),
    ("stand still", "is stopped, does not advance"),
    ("standing still", "is stopped, does not advance"),
    ("somebody", "the thing's name: a VCPU, a PCPU, the caller"),
    ("nobody", "no VCPU, no PCPU, none"),
    ("anybody", "any VCPU, any PCPU"),
    ("everybody", "all VCPUs, all PCPUs"),
    ("whoever", "whatever, or the thing's name"),
    ("whomever", "whatever, or the thing's name"),
    ("whom", "which, or the thing's name"),
];

/// Names that only this project used for things that have one, with the usual one.
const NAMES: [(&str, &str); 34] = [
    ("is_watched", "is_write_protected, or has_dirty_log"),
    ("let_through", "make_unsync"),
    ("leave_to_guest", "make_unsync"),
    ("tighten", "resync_upper"),
    ("limbo", "pending_free"),
    ("lingering", "stale_writable"),
    ("crowded", "pt_count_2m"),
    ("TAKES_WRITES", "HOST_WRITABLE"),
    ("be_paranoid", "audit_shadow"),
    ("displaced", "forced"),
    ("Excursion", "NestedStep"),
    ("Deaf", "HltTracker"),
    ("Believed", "GuestCr"),
    ("Parked", "DescheduledVcpu"),
    ("expect_others", "set_ple"),
    ("has_spun", "ple_expired"),
    ("KEEPS_POINTERS", "HAS_PDPTRS"),
    ("RUNS_ANYTHING", "UNRESTRICTED"),
    ("gives_way", "should_yield"),
    ("AtWork", "Session"),
    ("IsSeenTo", "Transition"),
    ("Renewal", "Restart"),
    ("steer", "lifecycle_lock"),
    ("look_after", "reap"),
    ("see_to", "finish"),
    ("one_less", "put"),
    ("Holder", "MemoryRef"),
    ("Lent", "VmRam"),
    ("Sight", "PublishedLoad"),
    ("set_aside", "put_prev"),
    ("weighted_lead", "weighted_vruntime"),
    ("Sitting", "Run"),
    ("Crew", "Scenario"),
    ("Carrier", "KickSender"),
];

/// Every text of the project, with its path: sources, documents, scripts. Without this file, which has the words.
fn texts() -> Vec<(String, String)> {
    const KINDS: [&str; 8] = ["rs", "md", "c", "h", "s", "py", "sh", "toml"];
    let is_text = |path: &Path| KINDS.iter().any(|kind| path.extension().is_some_and(|found| found == *kind));
    let texts = texts_below(&checkout::root(), is_text).into_iter();
    texts.filter(|(name, _)| name != "hv/tests/tree.rs").collect()
}

/// Whether `line` has `word` with nothing before and behind it that `joins` words.
fn has_word(line: &str, word: &str, joins: impl Fn(char) -> bool) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let (before, behind) = (line[..at].chars().next_back(), line[at + word.len()..].chars().next());
        !before.is_some_and(&joins) && !behind.is_some_and(&joins)
    })
}

/// What is wrong with the words of a text: the numbers of lines, and what to write there.
fn wrong_words(text: &str) -> Vec<(usize, String)> {
    // A name of several words has each of them.
    let plain_text = text.to_lowercase().replace('_', " ");
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let mut found = vec![];
    let mut look = |text: &str, word: &str, instead: &str| {
        // Most texts have none.
        if text.contains(word) {
            let lines = (1..).zip(text.lines()).filter(|(_, line)| has_word(line, word, is_part));
            found.extend(lines.map(|(number, _)| (number, format!("`{word}`; write: {instead}"))));
        }
    };
    PLAIN.iter().for_each(|(word, instead)| look(&plain_text, word, instead));
    NAMES.iter().for_each(|(word, instead)| look(text, word, instead));
    found
}

#[test]
fn words_are_the_usual_ones() {
    let texts = texts();
    assert!(texts.len() > 800, "only {} texts found", texts.len());
    let mut found = vec![];
    for (name, text) in &texts {
        let wrong = wrong_words(text).into_iter();
        found.extend(wrong.map(|(number, what)| format!("{name}:{number}: {what}")));
    }
    assert!(
        found.is_empty(),
        "readers who know KVM, Xen or the manuals must not need a dictionary:\n{}",
        found.join("\n")
    );
}

#[test]
fn a_private_word_is_found_and_replaced() {
    let found = wrong_words("/// One waits.\n/// Nobody waits.\n");
    assert!(matches!(&found[..], [(2, what)] if what.contains("`nobody`; write: no VCPU")), "{found:?}");
    assert_eq!(wrong_words("fn map_anew(limbo: Crew) {").len(), 3);
    assert_eq!(wrong_words("so that many crews, renewals and is_watched_here"), []);
}
