//! The commands and their grammar: one table, from which lines are parsed and help is printed.
//!
//! Words are separated by blanks. Any beginning of a command's name that no other shares will do. Addresses are
//! hexadecimal with or without 0x, or the name of a register; other numbers are decimal, or hexadecimal with 0x.

use core::fmt;

use log::LevelFilter;

use super::vms::Action;
use crate::arch::state::Gpr;
use crate::paging::policy::Mode;

/// Bytes that one dump shows at most.
pub const LONGEST_DUMP: u64 = 4096;
/// Bytes that a dump shows unless told otherwise.
const DUMP: u64 = 64;

/// An address as a person writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// This one.
    At(u64),
    /// CS:RIP as a linear address.
    Rip,
    /// A general-purpose register; SS:RSP as a linear address.
    Gpr(Gpr),
    /// CR2
    Cr2,
    /// CR3 without its flags.
    Cr3,
}

/// What a person wants.
#[derive(Clone, Copy, Debug)]
pub enum Command<'a> {
    /// The list of commands, or all about one.
    Help(Option<&'static Description>),
    /// VMs.
    Vms,
    /// Virtual processors.
    Vcpus,
    /// Registers of a VCPU.
    Registers(u32),
    /// The guest's memory, or what is at a guest-physical address.
    P2m(Option<Place>),
    /// The guest's page tables at a linear address.
    Walk(Place),
    /// So many bytes at a linear address.
    Dump(Place, u64),
    /// So many bytes at a guest-physical address.
    DumpPhysical(Place, u64),
    /// Exit counters.
    Stats,
    /// Show or change how the guest's memory is virtualized.
    Mode(Option<Mode>),
    /// The shadow tables.
    Shadow,
    /// The host.
    Host,
    /// Do something to a VM: that of this name, or the one that is looked at.
    Act(Action, Option<&'a str>),
    /// Look at another VM.
    Select(&'a str),
    /// Give a VM the console.
    Console(&'a str),
    /// Press its power button.
    PowerButton,
    /// Send a VCPU an NMI.
    Nmi(u32),
    /// Show or set the least severe level of the hypervisor's log.
    LogLevel(Option<LevelFilter>),
    /// Leave the monitor.
    Quit,
}

/// One command for people.
#[derive(Clone, Copy)]
pub struct Description {
    /// Its name.
    pub name: &'static str,
    /// What follows the name.
    pub arguments: &'static str,
    /// What it does.
    pub what: &'static str,
    /// A line to try.
    pub example: &'static str,
    parse: for<'a> fn(&mut Words<'a>) -> Result<Command<'a>, ParseError<'a>>,
}

impl fmt::Debug for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

macro_rules! commands {
    ($($name:literal $arguments:literal $what:literal $example:literal $parse:expr;)*) => {
        /// All commands, as help lists them.
        pub const COMMANDS: &[Description] = &[
            $(Description {
                name: $name,
                arguments: $arguments,
                what: $what,
                example: $example,
                parse: $parse,
            },)*
        ];
    };
}

commands! {
    "help" "[COMMAND]" "this list, or a command with an example" "help walk"
        |words| Ok(Command::Help(words.next().map(find).transpose()?));
    "vms" "" "state, VCPUs, memory, mode, time and exits of each VM" "vms" |_| Ok(Command::Vms);
    "select" "NAME" "look at another VM: the commands below are about it" "select web"
        |words| Ok(Command::Select(words.name()?));
    "console" "NAME" "look at a VM and give it the console" "console web"
        |words| Ok(Command::Console(words.name()?));
    "vcpus" "" "state, place, pending work and exits of each VCPU" "vcpus" |_| Ok(Command::Vcpus);
    "regs" "[VCPU]" "registers" "regs 0" |words| Ok(Command::Registers(words.vcpu()?));
    "p2m" "[GPA]" "where the guest's memory is, or one guest-physical address" "p2m fee00000"
        |words| Ok(Command::P2m(words.optional_place()?));
    "walk" "ADDRESS" "the guest's page tables at a linear address" "walk rip"
        |words| Ok(Command::Walk(words.place()?));
    "x" "ADDRESS [BYTES]" "memory at a linear address" "x rsp 128"
        |words| Ok(Command::Dump(words.place()?, words.length()?));
    "xp" "GPA [BYTES]" "memory at a guest-physical address" "xp f0000 36"
        |words| Ok(Command::DumpPhysical(words.place()?, words.length()?));
    "stats" "" "exits by reason, interrupts, nested faults, unknown MSRs and ports" "stats"
        |_| Ok(Command::Stats);
    "mode" "[MODE]" "paging and its changes; or set it: nested, shadow, or switch=N, both by turns" "mode shadow"
        |words| Ok(Command::Mode(words.mode()?));
    "shadow" "" "the shadow tables: pages in use and counters" "shadow" |_| Ok(Command::Shadow);
    "host" "" "the host's memory and clock" "host" |_| Ok(Command::Host);
    "pause" "[NAME]" "let a VM stand still, also after the monitor is left" "pause web"
        |words| Ok(Command::Act(Action::Pause, words.next()));
    "resume" "[NAME]" "let it go on; without NAME, leave the monitor for it" "resume web"
        |words| Ok(Command::Act(Action::Resume, words.next()));
    "start" "NAME" "start a VM that has ended, was stopped or destroyed" "start web"
        |words| Ok(Command::Act(Action::Start, Some(words.name()?)));
    "stop" "NAME" "switch a VM off at once; its memory can still be looked at" "stop web"
        |words| Ok(Command::Act(Action::Stop, Some(words.name()?)));
    "restart" "NAME" "boot a VM anew" "restart web"
        |words| Ok(Command::Act(Action::Restart, Some(words.name()?)));
    "destroy" "NAME" "take a VM away; its memory is wiped and free again" "destroy web"
        |words| Ok(Command::Act(Action::Destroy, Some(words.name()?)));
    "reset" "" "as restart, and leave the monitor" "reset" |_| Ok(Command::Act(Action::Restart, None));
    "poweroff" "" "turn the guest's machine off at once: it ends" "poweroff"
        |_| Ok(Command::Act(Action::PowerOff, None));
    "press-power-button" "" "ask the guest to shut down (ACPI)" "press-power-button"
        |_| Ok(Command::PowerButton);
    "nmi" "[VCPU]" "send a VCPU a non-maskable interrupt" "nmi 0" |words| Ok(Command::Nmi(words.vcpu()?));
    "loglevel" "[LEVEL]" "the hypervisor's log: off, error, warn, info, debug or trace" "loglevel debug"
        |words| Ok(Command::LogLevel(words.level()?));
    "quit" "" "leave the monitor, as Ctrl-a p does" "quit" |_| Ok(Command::Quit);
    "exit" "" "the same" "exit" |_| Ok(Command::Quit);
}

/// Why a line is not understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParseError<'a> {
    /// No command begins with this.
    Unknown(&'a str),
    /// Several do.
    Ambiguous(&'a str),
    /// Something is missing.
    Missing(&'static str),
    /// This word is not what should be there.
    Not(&'a str, &'static str),
    /// Nothing should be there.
    TooMuch(&'a str),
}

impl fmt::Display for ParseError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            ParseError::Unknown(word) => write!(f, "{word}: no such command; `help` lists them"),
            ParseError::Ambiguous(word) => {
                write!(f, "{word}: which one?")?;
                matching(word).try_for_each(|command| write!(f, " {}", command.name))
            }
            ParseError::Missing(what) => write!(f, "{what} is missing; try `help` and the command's name"),
            ParseError::Not(word, what) => write!(f, "{word}: not {what}"),
            ParseError::TooMuch(word) => {
                write!(f, "{word}: too much; try `help` and the command's name")
            }
        }
    }
}

/// Understands a line; `None`: it is blank.
pub fn parse(line: &str) -> Result<Option<Command<'_>>, ParseError<'_>> {
    let mut words = Words(line.split_ascii_whitespace());
    let Some(name) = words.next() else { return Ok(None) };
    let command = (find(name)?.parse)(&mut words)?;
    match words.next() {
        None => Ok(Some(command)),
        Some(word) => Err(ParseError::TooMuch(word)),
    }
}

fn matching(word: &str) -> impl Iterator<Item = &'static Description> {
    COMMANDS.iter().filter(move |command| command.name.starts_with(word))
}

/// The command of this name, or the only one that begins so.
fn find(word: &str) -> Result<&'static Description, ParseError<'_>> {
    if let Some(exact) = COMMANDS.iter().find(|command| command.name == word) {
        return Ok(exact);
    }
    let mut found = matching(word);
    match (found.next(), found.next()) {
        (None, _) => Err(ParseError::Unknown(word)),
        (Some(command), None) => Ok(command),
        (Some(_), Some(_)) => Err(ParseError::Ambiguous(word)),
    }
}

/// What follows a command's name.
struct Words<'a>(core::str::SplitAsciiWhitespace<'a>);

impl<'a> Words<'a> {
    fn next(&mut self) -> Option<&'a str> {
        self.0.next()
    }

    fn name(&mut self) -> Result<&'a str, ParseError<'a>> {
        self.next().ok_or(ParseError::Missing("the VM's name"))
    }

    fn vcpu(&mut self) -> Result<u32, ParseError<'a>> {
        let Some(word) = self.next() else { return Ok(0) };
        number(word)
            .and_then(|n| u32::try_from(n).ok())
            .ok_or(ParseError::Not(word, "a VCPU's number; `vcpus` lists them"))
    }

    fn length(&mut self) -> Result<u64, ParseError<'a>> {
        let Some(word) = self.next() else { return Ok(DUMP) };
        let length = number(word).filter(|n| (1..=LONGEST_DUMP).contains(n));
        length.ok_or(ParseError::Not(word, "a number of bytes, 1 to 4096"))
    }

    fn place(&mut self) -> Result<Place, ParseError<'a>> {
        self.optional_place()?.ok_or(ParseError::Missing("the address"))
    }

    fn optional_place(&mut self) -> Result<Option<Place>, ParseError<'a>> {
        let Some(word) = self.next() else { return Ok(None) };
        let place = match word {
            "rip" => Some(Place::Rip),
            "cr2" => Some(Place::Cr2),
            "cr3" => Some(Place::Cr3),
            _ => register(word).map(Place::Gpr).or_else(|| hexadecimal(word).map(Place::At)),
        };
        place.map(Some).ok_or(ParseError::Not(word, "a hexadecimal address or a register"))
    }

    fn mode(&mut self) -> Result<Option<Mode>, ParseError<'a>> {
        let Some(word) = self.next() else { return Ok(None) };
        Mode::parse(word)
            .map(Some)
            .ok_or(ParseError::Not(word, "nested, shadow, or switch=N with N from 1 on"))
    }

    fn level(&mut self) -> Result<Option<LevelFilter>, ParseError<'a>> {
        let Some(word) = self.next() else { return Ok(None) };
        let level = LevelFilter::iter().find(|level| level.as_str().eq_ignore_ascii_case(word));
        level.map(Some).ok_or(ParseError::Not(word, "off, error, warn, info, debug or trace"))
    }
}

fn register(word: &str) -> Option<Gpr> {
    const NAMES: [&str; 16] = [
        "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13",
        "r14", "r15",
    ];
    NAMES.iter().position(|name| *name == word).map(|n| Gpr::ALL[n])
}

fn hexadecimal(word: &str) -> Option<u64> {
    digits(word.strip_prefix("0x").unwrap_or(word), 16)
}

fn number(word: &str) -> Option<u64> {
    match word.strip_prefix("0x") {
        Some(hexadecimal) => digits(hexadecimal, 16),
        None => digits(word, 10),
    }
}

/// As the standard library, which would also take a sign.
fn digits(word: &str, radix: u32) -> Option<u64> {
    word.starts_with(|c: char| c.is_digit(radix)).then(|| u64::from_str_radix(word, radix).ok())?
}

/// Parses an arbitrary line: it must not panic, and what it understands stays within bounds.
#[cfg(any(test, feature = "testing"))]
pub fn fuzz_one(data: &[u8]) {
    let line = alloc::string::String::from_utf8_lossy(data);
    match parse(&line) {
        Ok(None) => assert!(line.trim_ascii().is_empty()),
        Ok(Some(Command::Dump(_, length) | Command::DumpPhysical(_, length))) => {
            assert!((1..=LONGEST_DUMP).contains(&length));
        }
        Ok(Some(_)) => {}
        Err(error) => assert!(!alloc::format!("{error}").is_empty()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn understood(line: &str) -> String {
        match parse(line) {
            Ok(command) => format!("{command:?}"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn lines() {
        for (line, expected) in [
            ("", "None"),
            (" \t ", "None"),
            ("help", "Some(Help(None))"),
            ("h p2m", "h: which one? help host"),
            ("he p2", "Some(Help(Some(p2m)))"),
            ("help me", "me: no such command; `help` lists them"),
            ("regs", "Some(Registers(0))"),
            ("regs 3", "Some(Registers(3))"),
            ("regs 4294967296", "4294967296: not a VCPU's number; `vcpus` lists them"),
            ("p2m", "Some(P2m(None))"),
            ("p2m fee00000", "Some(P2m(Some(At(4276092928))))"),
            ("p2m 0xFEE00000", "Some(P2m(Some(At(4276092928))))"),
            ("p2m +1", "+1: not a hexadecimal address or a register"),
            ("p2m 0x", "0x: not a hexadecimal address or a register"),
            ("p2m 10000000000000000", "10000000000000000: not a hexadecimal address or a register"),
            ("walk", "the address is missing; try `help` and the command's name"),
            ("walk r10", "Some(Walk(Gpr(R10)))"),
            ("walk cr3", "Some(Walk(Cr3))"),
            ("x rip", "Some(Dump(Rip, 64))"),
            ("x 10 0x10", "Some(Dump(At(16), 16))"),
            ("xp 10 4096", "Some(DumpPhysical(At(16), 4096))"),
            ("xp 10 4097", "4097: not a number of bytes, 1 to 4096"),
            ("xp 10 0", "0: not a number of bytes, 1 to 4096"),
            ("stats now", "now: too much; try `help` and the command's name"),
            ("res", "res: which one? resume restart reset"),
            ("pause", "Some(Act(Pause, None))"),
            ("resume web", "Some(Act(Resume, Some(\"web\")))"),
            ("start", "the VM's name is missing; try `help` and the command's name"),
            ("destroy a b", "b: too much; try `help` and the command's name"),
            ("destroy a", "Some(Act(Destroy, Some(\"a\")))"),
            ("se web", "Some(Select(\"web\"))"),
            ("console web", "Some(Console(\"web\"))"),
            ("loglevel DEBUG", "Some(LogLevel(Some(Debug)))"),
            ("mode", "Some(Mode(None))"),
            ("mode nested", "Some(Mode(Some(Nested)))"),
            ("mode switch=50", "Some(Mode(Some(Switch(50))))"),
            ("mode switch=0", "switch=0: not nested, shadow, or switch=N with N from 1 on"),
            ("mode switch=4294967296", "switch=4294967296: not nested, shadow, or switch=N with N from 1 on"),
            ("mode Shadow", "Shadow: not nested, shadow, or switch=N with N from 1 on"),
            ("s", "s: which one? select stats shadow start stop"),
            ("st", "st: which one? stats start stop"),
            ("loglevel all", "all: not off, error, warn, info, debug or trace"),
            ("q", "Some(Quit)"),
            ("exit", "Some(Quit)"),
        ] {
            assert_eq!(understood(line), expected, "{line:?}");
        }
    }

    #[test]
    fn examples_work_and_names_are_unique() {
        for (i, command) in COMMANDS.iter().enumerate() {
            assert!(command.example.starts_with(command.name));
            assert!(parse(command.example).is_ok(), "{}", command.example);
            assert!(COMMANDS[..i].iter().all(|other| other.name != command.name));
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(data in prop::collection::vec(any::<u8>(), 0..40)) {
            fuzz_one(&data);
        }

        #[test]
        fn nothing_panics_on_almost_commands(
            name in prop::sample::select(COMMANDS),
            rest in "( [0-9a-fx]{1,18}| r[a-z0-9]{1,2}){0,3}",
        ) {
            fuzz_one(format!("{}{rest}", name.name).as_bytes());
        }
    }
}
