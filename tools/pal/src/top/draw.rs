//! The screen of `pal top`: lines of text. A terminal shows them with its titles set off, a script takes them as they are.

use super::regions;
use super::state::{Order, State, Vm};

/// What is shown, as keys have set it.
#[derive(Clone, Debug, PartialEq)]
pub struct View {
    /// The machine's name.
    pub machine: String,
    /// Seconds between refreshes.
    pub delay: f64,
    /// The order of VMs.
    pub order: Order,
    /// It is the other way round.
    pub reversed: bool,
    /// Each VM has a line with its VCPUs.
    pub vcpus: bool,
    /// Each VM has a line with its exits by reason.
    pub reasons: bool,
    /// Each VM has its regions.
    pub regions: bool,
    /// Each VM has its fast memory, and what is evicted of it.
    pub memory: bool,
    /// The keys are shown.
    pub help: bool,
    /// The screen stays as it is.
    pub paused: bool,
    /// Columns of the screen; text that is printed has 80.
    pub columns: usize,
    /// Lines of the table that are above the screen.
    pub scroll: usize,
    /// What was typed so far for another delay.
    pub typed: Option<String>,
    /// Something to say once.
    pub message: Option<String>,
}

impl View {
    /// That of a machine at first.
    pub fn new(machine: &str, delay: f64) -> View {
        View {
            machine: machine.to_owned(),
            delay,
            order: Order::default(),
            reversed: false,
            vcpus: true,
            reasons: true,
            regions: true,
            memory: true,
            help: false,
            paused: false,
            columns: 80,
            scroll: 0,
            typed: None,
            message: None,
        }
    }
}

/// The keys.
const HELP: &[&str] = &[
    "q, Ctrl-c     leave; the run goes on",
    "h, ?          show or hide these keys",
    "d, s          change the delay between refreshes: type seconds, then Enter",
    "p, Space      pause the screen, or go on; the machine is not paused",
    "< >           sort by the column to the left, to the right",
    "N P E T W M   sort by name, CPU time, exits, TLB misses, walks, memory",
    "R             reverse the order",
    "1             show or hide the VCPUs",
    "x             show or hide the exits by reason",
    "r             show or hide the regions of memory",
    "f             show or hide fast memory, and memory that is evicted",
    "Up, Down      scroll",
    "",
    "%CPU     of one processor, all VCPUs together     SW/S     changes of the mode",
    "MISS/KI  data TLB misses in 1000 instructions     %WALK    cycles of page walks",
    "IPC      instructions per cycle                   SHADOW   shadow tables' size",
    "A dash: not counted on this machine, or nothing ran. Time is the machine's.",
];

/// A dash: there is no such value.
const ABSENT: &str = "–";

/// A number with some digits after the point.
fn digits(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| ABSENT.into(), |value| format!("{value:.digits$}"))
}

/// A count in at most six columns.
pub(super) fn count(value: Option<u64>) -> String {
    match value {
        None => ABSENT.into(),
        Some(value @ 0..1_000_000) => value.to_string(),
        Some(value @ 1_000_000..1_000_000_000) => format!("{:.1}M", value as f64 / 1e6),
        Some(value) => format!("{:.1}G", value as f64 / 1e9),
    }
}

/// Bytes in the unit that leaves few digits.
pub(super) fn bytes(value: Option<u64>) -> String {
    match value {
        None => ABSENT.into(),
        Some(0) => "0".into(),
        Some(value @ 1..0x10_0000) => format!("{}K", value.div_ceil(1024)),
        Some(value @ 0x10_0000..0x4000_0000) => format!("{:.1}M", value as f64 / f64::from(1 << 20)),
        Some(value) => format!("{:.1}G", value as f64 / f64::from(1 << 30)),
    }
}

/// The first of a name's characters, where it is too long. Others than printable ones do not reach the terminal.
fn name(text: &str, most: usize) -> String {
    let mut text: String = text.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    if text.chars().count() > most {
        text = text.chars().take(most - 1).chain(['+']).collect();
    }
    text
}

/// What is above the table: a title, and lines about the machine.
pub fn head(state: &State, view: &View) -> (String, Vec<String>) {
    let word = |key: &str| state.about[key].as_str().map(|word| name(word, 40));
    let mut title = format!("pal top: {}", name(&view.machine, 32));
    for (before, key) in [("", "machine"), ("lab ", "lab"), ("mode ", "mode")] {
        if let Some(word) = word(key) {
            title += &format!(", {before}{word}");
        }
    }
    title += &format!(", {:.1} s", state.machine_ns as f64 / 1e9);
    let mut lines = Vec::new();
    let pcpus: Vec<_> = state.busy().map(|(pcpu, busy)| format!("{pcpu}: {}", digits(busy, 1))).collect();
    // A line holds eight PCPUs.
    for (at, chunk) in pcpus.chunks(8).enumerate() {
        lines.push(format!(
            "{}{}",
            if at == 0 { "PCPUs %busy  " } else { "             " },
            chunk.join("  ")
        ));
    }
    if pcpus.is_empty() {
        lines.push(format!("PCPUs %busy  {ABSENT}"));
    }
    let (free, heap) = (bytes(state.free_bytes), bytes(state.heap_bytes));
    let paused = if view.paused { "   PAUSED" } else { "" };
    lines
        .push(format!("Host memory  free {free}  hypervisor's heap {heap}   every {} s{paused}", view.delay));
    lines.push(match (&view.typed, &view.message) {
        (Some(typed), _) => format!("Seconds between refreshes (now {}): {typed}_", view.delay),
        (None, Some(message)) => message.clone(),
        (None, None) if !state.sampled => "waiting for the first sample".into(),
        (None, None) => String::new(),
    });
    (title, lines)
}

/// The titles of the table's columns, that of the order in brackets where there is room.
pub fn titles(view: &View) -> String {
    let title = |order: Order| match order == view.order {
        true => format!("{}{}", order.title(), if view.reversed { "^" } else { "*" }),
        false => order.title().to_owned(),
    };
    columns([
        &title(Order::Name),
        &title(Order::Cpu),
        "MODE",
        "SW/S",
        &title(Order::Exits),
        "IPC",
        &title(Order::Misses),
        &title(Order::Walks),
        &title(Order::Memory),
    ])
}

fn columns([vm, cpu, mode, switches, exits, ipc, misses, walks, shadow]: [&str; 9]) -> String {
    format!("{vm:<16}{cpu:>7} {mode:<7}{switches:>7}{exits:>9}{ipc:>6}{misses:>9}{walks:>8}{shadow:>9}")
}

/// The table without its titles.
pub fn rows(state: &State, view: &View) -> Vec<String> {
    let mut lines = Vec::new();
    for vm in state.sorted(view.order, view.reversed) {
        lines.push(row(vm));
        if view.vcpus && vm.ran_ns.len() > 1 {
            let vcpus: Vec<_> =
                vm.vcpus().enumerate().map(|(n, cpu)| format!("{n}: {}", digits(cpu, 1))).collect();
            for (at, chunk) in vcpus.chunks(7).enumerate() {
                lines.push(format!(
                    "  {} {}",
                    if at == 0 { "VCPUs %CPU " } else { "           " },
                    chunk.join("  ")
                ));
            }
        }
        if view.reasons {
            let exits: Vec<_> =
                vm.reasons().iter().map(|(why, rate)| format!("{} {rate}", name(why, 16))).collect();
            // A line holds four reasons.
            for (at, chunk) in exits.chunks(4).enumerate() {
                lines.push(format!("  {} {}", if at == 0 { "exits/s" } else { "       " }, chunk.join("  ")));
            }
        }
        if let Some(seen) = vm.regions.as_ref().filter(|_| view.regions) {
            lines.extend(regions::rows(seen));
        }
        if view.memory {
            lines.extend(vm.memory.rows(view.columns));
        }
    }
    if view.help {
        lines = HELP.iter().map(|line| (*line).to_owned()).collect();
    }
    lines
}

fn row(vm: &Vm) -> String {
    columns([
        &name(&vm.name, 16),
        &digits(vm.cpu(), 1),
        vm.engine.unwrap_or(ABSENT),
        &count(vm.switches_per_second()),
        &count(vm.exits_per_second()),
        &digits(vm.ipc(), 2),
        &digits(vm.misses(), 2),
        &digits(vm.walks(), 1),
        &bytes(vm.shadow_bytes),
    ])
}

/// Everything as text.
pub fn text(state: &State, view: &View) -> String {
    let (title, head) = head(state, view);
    let head = head.into_iter().filter(|line| !line.is_empty());
    let lines = std::iter::once(title).chain(head).chain([titles(view)]).chain(rows(state, view));
    lines.map(|line| line + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::state::tests::example;

    #[test]
    fn shows_what_there_is() {
        let view = View { order: Order::Exits, ..View::new("lab", 1.5) };
        let expected = "\
pal top: lab, qemu-svm, lab zen3, mode switch=50, 0.0 s
PCPUs %busy  0: 75.0
Host memory  free 1.0G  hypervisor's heap 3.0M   every 1.5 s
VM                 %CPU MODE      SW/S EXITS/S*   IPC  MISS/KI   %WALK   SHADOW
db                 60.0 shadow     100   200100  0.50     3.00    25.0       4K
  VCPUs %CPU  0: 40.0  1: 20.0
  exits/s page_fault 200000  cpuid 100
web                60.0 shadow     100    50100  0.50     3.00    25.0       4K
  VCPUs %CPU  0: 40.0  1: 20.0
  exits/s page_fault 50000  cpuid 100
";
        let shown = text(&example(), &view);
        assert_eq!(shown, expected, "{shown}");
        assert!(shown.lines().all(|line| line.chars().count() <= 80));
    }

    #[test]
    fn what_is_absent_is_a_dash() {
        let empty = text(&State::default(), &View::new("lab", 1.0));
        assert!(
            empty.contains("free –") && empty.contains("PCPUs %busy  –") && empty.contains("waiting"),
            "{empty}"
        );
        let mut state = example();
        state.refresh();
        let line = "web                   – shadow       –        –     –        –       –       4K";
        assert!(text(&state, &View::new("lab", 1.0)).lines().any(|shown| shown == line));
    }

    #[test]
    fn figures_fit_their_columns() {
        assert_eq!([999_999, 1_234_567, 7_800_000_000].map(|n| count(Some(n))), ["999999", "1.2M", "7.8G"]);
        assert_eq!([0, 1, 5 << 20, 3 << 30].map(|n| bytes(Some(n))), ["0", "1K", "5.0M", "3.0G"]);
        assert_eq!((name("a\x1b[2Jb", 9).as_str(), name("abcdef", 4).as_str()), ("a?[2Jb", "abc+"));
        assert!(HELP.iter().all(|line| line.chars().count() <= 80));
    }
}
