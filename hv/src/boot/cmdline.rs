//! The hypervisor's own command line: words, most of them `key=value`, separated by blanks.
//!
//! `docs/configuration.md` lists them with their values and defaults.
//!
//! Later words win; `fast-mem` adds up. A word that is not understood is reported and otherwise ignored: a boot loader may add
//! its own.

use abi::config::Mitigations;
use abi::tiers::{Eviction, FastRange, HotPolicy, MAX_FAST_RANGES, Sharing};
use arrayvec::ArrayVec;
use log::LevelFilter;

use crate::hw::pm::ExitAction;
use crate::hw::uart::SerialPort;
use crate::smp::first::FirstPcpu;

/// The options with their defaults filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HvOptions {
    /// The least severe level that is logged.
    pub loglevel: LevelFilter,
    /// Guest console and log; `None` is the screen.
    pub console: Option<SerialPort>,
    /// Machine-readable records.
    pub telemetry: Option<SerialPort>,
    /// What is done against leaks by speculation.
    pub mitigations: Mitigations,
    /// Emit a statistics record when a guest ends.
    pub stats: bool,
    /// Record the output of guests, also if there is only one.
    pub consoles: bool,
    /// What to do at the end, if that was given.
    pub exit: Option<ExitAction>,
    /// PCPUs that are used at most; one that runs no guests comes on top.
    pub pcpus: usize,
    /// Whether the first PCPU runs guests.
    pub first_pcpu: FirstPcpu,
    /// Physical address of the counters that a lab machine writes (`abi::lab`), a multiple of 4 KiB.
    pub lab: Option<u64>,
    /// Time follows the lab machine's cycles.
    pub lab_time: bool,
    /// Use the performance counters.
    pub counters: bool,
    /// Milliseconds between samples of a VM.
    pub samples: Option<u32>,
    /// Trace exits, decisions of the scheduler and changes of the mode.
    pub trace: bool,
    /// Where samples and traces go; without it through the telemetry port.
    pub records: Option<RecordMemory>,
    /// The fast memory is what the firmware's tables call fastest.
    pub fast_auto: bool,
    /// Memory that is faster than all other.
    pub fast_mem: ArrayVec<FastRange, MAX_FAST_RANGES>,
    /// How it is divided among the VMs.
    pub fast_sharing: Sharing,
    /// Which pages it is for.
    pub fast_policy: HotPolicy,
    /// Which pages leave it.
    pub fast_evict: Eviction,
    /// Print the hardware report and end.
    pub probe: bool,
    /// A test of the host.
    pub selftest: Option<SelfTest>,
}

/// Milliseconds between samples at most: a minute.
const SLOWEST_SAMPLES: u32 = 60_000;

/// Memory for samples and traces that no memory map mentions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordMemory {
    /// Its physical address, a multiple of 4 KiB.
    pub address: u64,
    /// Its size, a multiple of 4 KiB up to 1 GiB.
    pub bytes: u64,
}

impl RecordMemory {
    /// `ADDRESS,BYTES`.
    fn parse(word: &str) -> Option<RecordMemory> {
        let (address, bytes) = word.split_once(',')?;
        let bytes = bytes.parse().ok().filter(|bytes: &u64| (4096..=1 << 30).contains(bytes))?;
        let memory = RecordMemory { address: parse_page(address)?, bytes };
        bytes.is_multiple_of(4096).then_some(memory)
    }
}

/// A test of the host that end-to-end tests ask for; all but the first four end in a panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SelfTest {
    /// Frames, heap, FPU state, timer, interrupts.
    Quick,
    /// Echo the console's input until `q`.
    Console,
    /// Several PCPUs at once: memory, log, interrupts to each other, virtualization; as `Quick` where there is one.
    Smp,
    /// As `Smp`, with a PCPU that the MADT names and that is not there.
    AbsentPcpu,
    /// Panic on the last PCPU, while others are at work and one panics, too.
    PanicElsewhere,
    /// Panic.
    Panic,
    /// Read address 0.
    Null,
    /// Write to code.
    WriteCode,
    /// Execute data.
    ExecuteData,
    /// Use an SSE register outside of the FPU routines.
    Sse,
    /// Use up the stack.
    Stack,
    /// Use up the heap.
    Heap,
}

impl SelfTest {
    fn parse(word: &str) -> Option<SelfTest> {
        Some(match word {
            "quick" => SelfTest::Quick,
            "console" => SelfTest::Console,
            "smp" => SelfTest::Smp,
            "absent-pcpu" => SelfTest::AbsentPcpu,
            "panic-elsewhere" => SelfTest::PanicElsewhere,
            "panic" => SelfTest::Panic,
            "null" => SelfTest::Null,
            "write-code" => SelfTest::WriteCode,
            "execute-data" => SelfTest::ExecuteData,
            "sse" => SelfTest::Sse,
            "stack" => SelfTest::Stack,
            "heap" => SelfTest::Heap,
            _ => return None,
        })
    }
}

impl Default for HvOptions {
    fn default() -> Self {
        HvOptions {
            loglevel: LevelFilter::Info,
            console: Some(SerialPort::Com1),
            telemetry: None,
            mitigations: Mitigations::Auto,
            stats: false,
            consoles: false,
            exit: None,
            pcpus: usize::MAX,
            first_pcpu: FirstPcpu::Auto,
            lab: None,
            lab_time: false,
            counters: false,
            samples: None,
            trace: false,
            records: None,
            fast_auto: false,
            fast_mem: ArrayVec::new(),
            fast_sharing: Sharing::default(),
            fast_policy: HotPolicy::default(),
            fast_evict: Eviction::default(),
            probe: false,
            selftest: None,
        }
    }
}

/// Words that were not understood; at most 16 are kept.
pub type UnknownWords<'a> = ArrayVec<&'a str, 16>;

impl HvOptions {
    /// Parses a command line. The second result holds the words to complain about.
    pub fn parse(line: &str) -> (HvOptions, UnknownWords<'_>) {
        let mut options = HvOptions::default();
        let mut unknown = UnknownWords::new();
        for word in line.split_ascii_whitespace() {
            if options.apply(word).is_none() {
                // Beyond 16 they are not reported: an unknown word has no effect anyway.
                let _ = unknown.try_push(word);
            }
        }
        (options, unknown)
    }

    /// What to do at the end. On a real machine what `probe` wrote stays on the screen.
    pub fn ending(&self, virtual_machine: bool) -> ExitAction {
        let stay = self.probe && !virtual_machine;
        self.exit.unwrap_or(if stay { ExitAction::Halt } else { ExitAction::PowerOff })
    }

    fn apply(&mut self, word: &str) -> Option<()> {
        if word == "probe" {
            self.probe = true;
            return Some(());
        }
        let (key, value) = word.split_once('=')?;
        match key {
            "loglevel" => self.loglevel = value.parse().ok()?,
            "console" if value == "screen" => self.console = None,
            "console" => self.console = Some(SerialPort::parse(value)?),
            "telemetry" if value == "none" => self.telemetry = None,
            "telemetry" => self.telemetry = Some(SerialPort::parse(value)?),
            "mitigations" => self.mitigations = value.parse().ok()?,
            "stats" => self.stats = parse_switch(value)?,
            "consoles" => self.consoles = parse_switch(value)?,
            "pcpus" => self.pcpus = value.parse().ok().filter(|most| *most > 0)?,
            "first-pcpu" => self.first_pcpu = FirstPcpu::parse(value)?,
            "lab" => self.lab = Some(parse_page(value)?),
            "lab-time" => self.lab_time = parse_switch(value)?,
            "counters" => self.counters = parse_switch(value)?,
            "samples" if value == "off" => self.samples = None,
            "samples" => {
                self.samples = Some(value.parse().ok().filter(|ms| (1..=SLOWEST_SAMPLES).contains(ms))?);
            }
            "trace" => self.trace = parse_switch(value)?,
            "records" => self.records = Some(RecordMemory::parse(value)?),
            "fast-mem" if value == "auto" => self.fast_auto = true,
            "fast-mem" => self.fast_mem.try_push(value.parse().ok()?).ok()?,
            "fast-sharing" => self.fast_sharing = value.parse().ok()?,
            "fast-policy" => self.fast_policy = value.parse().ok()?,
            "fast-evict" => self.fast_evict = value.parse().ok()?,
            "selftest" => self.selftest = Some(SelfTest::parse(value)?),
            "exit" => self.exit = Some(ExitAction::parse(value)?),
            _ => return None,
        }
        Some(())
    }
}

impl ExitAction {
    fn parse(word: &str) -> Option<ExitAction> {
        match word {
            "poweroff" => Some(ExitAction::PowerOff),
            "reset" => Some(ExitAction::Reset),
            "halt" => Some(ExitAction::Halt),
            _ => parse_port(word.strip_prefix("isa-debug:")?).map(ExitAction::IsaDebug),
        }
    }
}

fn parse_switch(word: &str) -> Option<bool> {
    match word {
        "on" => Some(true),
        "off" => Some(false),
        _ => None,
    }
}

/// The hexadecimal address of a page other than the first.
fn parse_page(word: &str) -> Option<u64> {
    let address = u64::from_str_radix(word.strip_prefix("0x")?, 16).ok()?;
    (address != 0 && address.is_multiple_of(4096)).then_some(address)
}

fn parse_port(word: &str) -> Option<u16> {
    match word.strip_prefix("0x") {
        Some(hex) => u16::from_str_radix(hex, 16).ok(),
        None => word.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_words_and_lets_later_ones_win() {
        let line = "palimpsest loglevel=debug exit=halt selftest=write-code telemetry=com2 mitigations=off stats=on consoles=on exit=isa-debug:0xf4  console=com2 pcpus=3 first-pcpu=host lab=0xfc0000000 lab-time=on counters=on samples=20 trace=on records=0xf80000000,8192 fast-mem=64@768 fast-mem=auto fast-mem=1@2 fast-sharing=wss fast-policy=histogram fast-evict=clock-pro";
        let (options, unknown) = HvOptions::parse(line);
        assert_eq!(unknown.as_slice(), ["palimpsest"]);
        let expected = HvOptions {
            loglevel: LevelFilter::Debug,
            console: Some(SerialPort::Com2),
            telemetry: Some(SerialPort::Com2),
            mitigations: Mitigations::Off,
            stats: true,
            consoles: true,
            exit: Some(ExitAction::IsaDebug(0xf4)),
            pcpus: 3,
            first_pcpu: FirstPcpu::Host,
            lab: Some(63 << 30),
            lab_time: true,
            counters: true,
            samples: Some(20),
            trace: true,
            records: Some(RecordMemory { address: 62 << 30, bytes: 8192 }),
            fast_auto: true,
            fast_mem: [FastRange { start_mib: 768, mib: 64 }, FastRange { start_mib: 2, mib: 1 }]
                .into_iter()
                .collect(),
            fast_sharing: Sharing::Wss,
            fast_policy: HotPolicy::Histogram,
            fast_evict: Eviction::By(abi::config::Replacement::ClockPro),
            probe: false,
            selftest: Some(SelfTest::WriteCode),
        };
        assert_eq!(options, expected);
        assert_eq!(HvOptions::parse("console=com3 console=screen").0.console, None);
        assert_eq!(HvOptions::parse("telemetry=com1 telemetry=none exit=isa-debug:244").0.telemetry, None);
    }

    #[test]
    fn a_bad_value_changes_nothing_and_is_reported() {
        let (options, unknown) = HvOptions::parse(
            "loglevel=loud console=tty stats= exit=isa-debug:70000 exit=isa-debug pcpus=0 first-pcpu=1 lab=0 lab=4096 lab=0x1001 samples=0 samples=60001 trace=yes records=0x1000 records=0x1000,4095 records=0x10,4096",
        );
        assert_eq!(options, HvOptions::default());
        assert_eq!(unknown.len(), 16);
    }

    #[test]
    fn a_report_stays_on_the_screen_of_a_real_machine() {
        let ending = |line, is_virtual| HvOptions::parse(line).0.ending(is_virtual);
        assert_eq!([ending("", false), ending("", true)], [ExitAction::PowerOff; 2]);
        assert_eq!(ending("probe", false), ExitAction::Halt);
        assert_eq!(ending("probe", true), ExitAction::PowerOff);
        assert_eq!(ending("exit=reset probe", false), ExitAction::Reset);
        assert_eq!(HvOptions::parse("probe=yes").1.as_slice(), ["probe=yes"]);
    }

    proptest! {
        #[test]
        fn survives_noise(line in ".{0,200}") {
            let (_, unknown) = HvOptions::parse(&line);
            prop_assert!(unknown.len() <= line.split_ascii_whitespace().count());
        }
    }
}
