//! The commands and their grammar: one table, from which lines are parsed and help is printed.
//!
//! Words are separated by blanks. A command's name can be abbreviated to an unambiguous prefix. Addresses are
//! hexadecimal with or without 0x, or the name of a register; other numbers are decimal, or hexadecimal with 0x.

use core::fmt;

use abi::regions::Regions;
use log::LevelFilter;

use super::vms::Action;
use crate::arch::state::Gpr;
use crate::mem::tier::sharing::EState;
use crate::paging::policy::{Mode, UnknownMode};

/// Maximum bytes of one dump.
pub const LONGEST_DUMP: u64 = 4096;
/// Default bytes of a dump.
const DUMP: u64 = 64;

/// An address argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A literal address.
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

/// Where a region's memory is to be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// In the cache of this domain alone.
    Domain(u8),
    /// In all caches.
    Global,
}

/// A parsed command.
#[derive(Clone, Copy, Debug)]
pub enum Command<'a> {
    /// List the commands, or explain one.
    Help(Option<&'static Description>),
    /// List the VMs.
    Vms,
    /// List the VCPUs.
    Vcpus,
    /// Show the registers of a VCPU.
    Registers(u32),
    /// Show the P2m, or its entry for one guest-physical address.
    P2m(Option<Place>),
    /// Walk the guest's page tables for a linear address.
    Walk(Place),
    /// Dump this many bytes at a linear address.
    Dump(Place, u64),
    /// Dump this many bytes at a guest-physical address.
    DumpPhysical(Place, u64),
    /// Show the exit counters.
    Stats,
    /// Show or change how the guest's memory is virtualized.
    Mode(Option<Mode>),
    /// Show the shadow pages.
    Shadow,
    /// Show which parts of the address spaces are nested.
    Agile,
    /// Show the guest's regions, those that were found too, or place one of them.
    Regions(Option<(u64, Placement)>),
    /// Have the hypervisor find regions, or no longer.
    FindRegions(Regions),
    /// Show the VM's fast memory, or set its E-state first.
    Tiers(Option<TierState>),
    /// Show the fast memory of all VMs, or set the E-state of the one with this name first.
    AllTiers(Option<(&'a str, TierState)>),
    /// Show the balloon of the VM with this name or of the selected one, or set how many MiB it is to have first.
    Balloon(Option<&'a str>, Option<u64>),
    /// Show the host.
    Host,
    /// Act on the VM with this name, or on the selected one.
    Act(Action, Option<&'a str>),
    /// Select another VM.
    Select(&'a str),
    /// Select a VM and connect the console to it.
    Console(&'a str),
    /// Press the selected VM's power button.
    PowerButton,
    /// Send a VCPU an NMI.
    Nmi(u32),
    /// Show or set the least severe level of the hypervisor's log.
    LogLevel(Option<LevelFilter>),
    /// Quit the monitor.
    Quit,
}

/// The E-state that a VM is to have; `None`: the machine decides again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierState(pub Option<EState>);

/// One command of the table.
#[derive(Clone, Copy)]
pub struct Description {
    /// Its name.
    pub name: &'static str,
    /// Its arguments.
    pub arguments: &'static str,
    /// What it does, as `help` shows it.
    pub what: &'static str,
    /// An example.
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
    "help" "[COMMAND]" "list the commands, or explain one" "help walk"
        |words| Ok(Command::Help(words.next().map(find).transpose()?));
    "vms" "" "list the VMs: state, memory, VCPUs, uptime, CPU time, exits, mode" "vms" |_| Ok(Command::Vms);
    "select" "NAME" "select another VM for the commands below; it is paused meanwhile" "select web"
        |words| Ok(Command::Select(words.name()?));
    "console" "NAME" "select a VM and connect the console to it" "console web"
        |words| Ok(Command::Console(words.name()?));
    "vcpus" "" "list the VCPUs: state, RIP, exits, pending events" "vcpus" |_| Ok(Command::Vcpus);
    "regs" "[VCPU]" "show the registers of a VCPU" "regs 0" |words| Ok(Command::Registers(words.vcpu()?));
    "p2m" "[GPA]" "show the physical memory map, or one guest-physical address" "p2m fee00000"
        |words| Ok(Command::P2m(words.optional_place()?));
    "walk" "ADDRESS" "walk the guest's page tables for a linear address" "walk rip"
        |words| Ok(Command::Walk(words.place()?));
    "x" "ADDRESS [BYTES]" "dump memory at a linear address" "x rsp 128"
        |words| Ok(Command::Dump(words.place()?, words.length()?));
    "xp" "GPA [BYTES]" "dump memory at a guest-physical address" "xp f0000 36"
        |words| Ok(Command::DumpPhysical(words.place()?, words.length()?));
    "stats" "" "count exits by reason, injected events, nested faults, unknown MSRs and ports" "stats"
        |_| Ok(Command::Stats);
    "mode" "[MODE]" "show or set the paging mode: nested, shadow, agile, switch=N, or a policy" "mode shadow"
        |words| Ok(Command::Mode(words.mode()?));
    "shadow" "" "show the shadow pages in use and the counters of shadow paging" "shadow" |_| Ok(Command::Shadow);
    "agile" "" "show which page tables of each address space are shadowed, and which nested" "agile"
        |_| Ok(Command::Agile);
    "regions" "[REGION DOMAIN|POLICY]" "show regions, map one to a cache, or set how they are found" "regions unify"
        |words| words.regions();
    "tiers" "[all|[NAME] E0…E7|auto]" "show fast memory, or set an E-state (E0 all, E7 an eighth)" "tiers E3"
        |words| words.tiers();
    "balloon" "[NAME] [MIB]" "show how much memory a guest has given back, or ask it for MIB" "balloon web 64"
        |words| words.balloon();
    "host" "" "show the host's memory and TSC frequency" "host" |_| Ok(Command::Host);
    "pause" "[NAME]" "pause a VM; it stays paused after you quit the monitor" "pause web"
        |words| Ok(Command::Act(Action::Pause, words.next()));
    "resume" "[NAME]" "resume a VM; without NAME, resume the selected one and quit the monitor" "resume web"
        |words| Ok(Command::Act(Action::Resume, words.next()));
    "start" "NAME" "start a VM that has ended, was stopped or destroyed" "start web"
        |words| Ok(Command::Act(Action::Start, Some(words.name()?)));
    "stop" "NAME" "power a VM off at once; keep its memory for inspection" "stop web"
        |words| Ok(Command::Act(Action::Stop, Some(words.name()?)));
    "restart" "NAME" "reboot a VM" "restart web"
        |words| Ok(Command::Act(Action::Restart, Some(words.name()?)));
    "destroy" "NAME" "destroy a VM; clear and free its memory" "destroy web"
        |words| Ok(Command::Act(Action::Destroy, Some(words.name()?)));
    "reset" "" "reboot the selected VM and quit the monitor" "reset" |_| Ok(Command::Act(Action::Restart, None));
    "poweroff" "" "power the selected VM off at once and quit the monitor" "poweroff"
        |_| Ok(Command::Act(Action::PowerOff, None));
    "press-power-button" "" "press the ACPI power button: ask the guest to shut down" "press-power-button"
        |_| Ok(Command::PowerButton);
    "nmi" "[VCPU]" "send a VCPU an NMI" "nmi 0" |words| Ok(Command::Nmi(words.vcpu()?));
    "loglevel" "[LEVEL]" "show or set the log level: off, error, warn, info, debug or trace" "loglevel debug"
        |words| Ok(Command::LogLevel(words.level()?));
    "quit" "" "quit the monitor, as Ctrl-a p does" "quit" |_| Ok(Command::Quit);
    "exit" "" "same as quit" "exit" |_| Ok(Command::Quit);
}

/// Why a line cannot be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParseError<'a> {
    /// No command begins with this.
    Unknown(&'a str),
    /// Several commands begin with this.
    Ambiguous(&'a str),
    /// This argument is missing, of the command with this name.
    Missing(&'static str, &'static str),
    /// This word is not what the command expects.
    Not(&'a str, &'static str),
    /// This word is no mode.
    Mode(&'a str, UnknownMode),
    /// The command with this name takes no such argument.
    Unexpected(&'a str, &'static str),
}

impl fmt::Display for ParseError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            ParseError::Unknown(word) => write!(f, "unknown command `{word}`; `help` lists the commands"),
            ParseError::Ambiguous(word) => {
                write!(f, "ambiguous command `{word}`:")?;
                matching(word).try_for_each(|command| write!(f, " {}", command.name))
            }
            ParseError::Missing(what, command) => write!(f, "missing {what}; see `help {command}`"),
            ParseError::Not(word, what) => write!(f, "`{word}` is not {what}"),
            ParseError::Mode(word, why) => write!(f, "`{word}` is no mode: {why}"),
            ParseError::Unexpected(word, command) => {
                write!(f, "unexpected argument `{word}`; see `help {command}`")
            }
        }
    }
}

/// Parses a line; `None`: it is blank.
pub fn parse(line: &str) -> Result<Option<Command<'_>>, ParseError<'_>> {
    let mut rest = line.split_ascii_whitespace();
    let Some(name) = rest.next() else { return Ok(None) };
    let description = find(name)?;
    let mut words = Words { rest, command: description.name };
    let command = (description.parse)(&mut words)?;
    match words.next() {
        None => Ok(Some(command)),
        Some(word) => Err(ParseError::Unexpected(word, description.name)),
    }
}

fn matching(word: &str) -> impl Iterator<Item = &'static Description> {
    COMMANDS.iter().filter(move |command| command.name.starts_with(word))
}

/// The command with this name or unambiguous prefix.
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

/// The arguments of a command.
struct Words<'a> {
    rest: core::str::SplitAsciiWhitespace<'a>,
    /// The command's name, for messages.
    command: &'static str,
}

impl<'a> Words<'a> {
    fn next(&mut self) -> Option<&'a str> {
        self.rest.next()
    }

    fn name(&mut self) -> Result<&'a str, ParseError<'a>> {
        self.next().ok_or(ParseError::Missing("VM name", self.command))
    }

    fn vcpu(&mut self) -> Result<u32, ParseError<'a>> {
        let Some(word) = self.next() else { return Ok(0) };
        number(word)
            .and_then(|n| u32::try_from(n).ok())
            .ok_or(ParseError::Not(word, "a VCPU number; `vcpus` lists them"))
    }

    fn length(&mut self) -> Result<u64, ParseError<'a>> {
        let Some(word) = self.next() else { return Ok(DUMP) };
        let length = number(word).filter(|n| (1..=LONGEST_DUMP).contains(n));
        length.ok_or(ParseError::Not(word, "a number of bytes, 1 to 4096"))
    }

    fn place(&mut self) -> Result<Place, ParseError<'a>> {
        let missing = ParseError::Missing("address", self.command);
        self.optional_place()?.ok_or(missing)
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

    /// A policy for regions, or a region's number and where it is to be.
    fn regions(&mut self) -> Result<Command<'a>, ParseError<'a>> {
        let Some(word) = self.next() else { return Ok(Command::Regions(None)) };
        if let Ok(wanted) = word.parse() {
            return Ok(Command::FindRegions(wanted));
        }
        let region = number(word).ok_or(ParseError::Not(word, "the number of a region, nor a policy"))?;
        let word = self.next().ok_or(ParseError::Missing("cache domain or `global`", self.command))?;
        let domain = || number(word).and_then(|n| u8::try_from(n).ok()).map(Placement::Domain);
        let to = if word == "global" { Some(Placement::Global) } else { domain() };
        let to = to.ok_or(ParseError::Not(word, "the number of a cache domain, nor `global`"))?;
        Ok(Command::Regions(Some((region, to))))
    }

    /// An E-state or `auto`, with or without the VM's name before it, or `all`.
    fn tiers(&mut self) -> Result<Command<'a>, ParseError<'a>> {
        let Some(word) = self.next() else { return Ok(Command::Tiers(None)) };
        match self.next() {
            None if word == "all" => Ok(Command::AllTiers(None)),
            None => Ok(Command::Tiers(Some(state(word)?))),
            Some(wanted) => Ok(Command::AllTiers(Some((word, state(wanted)?)))),
        }
    }

    /// A VM's name, or a number of MiB, or both.
    fn balloon(&mut self) -> Result<Command<'a>, ParseError<'a>> {
        let Some(word) = self.next() else { return Ok(Command::Balloon(None, None)) };
        let Some(mib) = self.next() else {
            let mib = number(word);
            return Ok(Command::Balloon(mib.is_none().then_some(word), mib));
        };
        let wanted = number(mib).ok_or(ParseError::Not(mib, "a number of MiB"))?;
        Ok(Command::Balloon(Some(word), Some(wanted)))
    }

    fn mode(&mut self) -> Result<Option<Mode>, ParseError<'a>> {
        let Some(word) = self.next() else { return Ok(None) };
        word.parse().map(Some).map_err(|why| ParseError::Mode(word, why))
    }

    fn level(&mut self) -> Result<Option<LevelFilter>, ParseError<'a>> {
        let Some(word) = self.next() else { return Ok(None) };
        let level = LevelFilter::iter().find(|level| level.as_str().eq_ignore_ascii_case(word));
        level.map(Some).ok_or(ParseError::Not(word, "off, error, warn, info, debug or trace"))
    }
}

/// An E-state, or `auto`.
fn state(word: &str) -> Result<TierState, ParseError<'_>> {
    let wanted = || EState::new(word.strip_prefix(['E', 'e']).and_then(number)?.try_into().ok()?);
    let state = if word == "auto" { Some(None) } else { wanted().map(Some) };
    state.map(TierState).ok_or(ParseError::Not(word, "an E-state from E0 to E7, nor `auto`"))
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

/// Parses an arbitrary line: it must not panic, and lengths stay within bounds.
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
