//! A sample: what a VM and its VCPUs have counted up to a moment. All values are sums since the VM's last start, so that a sample
//! that was dropped costs resolution and no count; a reader subtracts two of them.

use crate::{head, parse_head};

/// The kind of a record.
pub const KIND: u8 = 1;
/// Kinds of exits, in the hypervisor's order; keys of JSON objects.
pub const EXITS: [&str; 18] = [
    "cpuid",
    "hlt",
    "io",
    "rdmsr",
    "wrmsr",
    "nested_fault",
    "page_fault",
    "exception",
    "control_reg",
    "debug_reg",
    "xsetbv",
    "invlpg",
    "hypercall",
    "interrupt",
    "window",
    "shutdown",
    "pause",
    "other",
];
/// Events of performance counters, and the guest's own count of its page faults, in the hypervisor's order; keys of JSON objects.
pub const COUNTERS: [&str; 13] = [
    "instructions",
    "cycles",
    "dtlb_misses",
    "itlb_misses",
    "walks",
    "walk_refs",
    "walk_cycles",
    "l2_misses",
    "llc_misses",
    "memory_local",
    "memory_remote",
    "memory_slow",
    "page_faults",
];
/// Engines of address translation, in the hypervisor's order.
pub const ENGINES: [&str; 3] = ["nested", "shadow", "agile"];

/// Performance counters of one side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// A bit for each event that is counted.
    pub present: u64,
    /// The values. A sum whose event is not counted for a while keeps its value.
    pub values: [u64; COUNTERS.len()],
}

impl Counters {
    /// The value of an event, if it is counted.
    pub fn get(&self, event: usize) -> Option<u64> {
        (self.present >> event & 1 != 0).then_some(*self.values.get(event)?)
    }

    /// Adds those of another VCPU: of the events that both have.
    pub fn add(&mut self, other: &Counters) {
        self.present &= other.present;
        add(&mut self.values, &other.values);
    }
}

/// What each VCPU counts; of a VM their sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Exits by kind.
    pub exits: [u64; EXITS.len()],
    /// Ticks that the hypervisor took for them.
    pub exit_ticks: [u64; EXITS.len()],
    /// Nested faults that filled an entry.
    pub nested_filled: u64,
    /// Instructions executed in software after a nested fault.
    pub emulated: u64,
    /// Changes to each engine of [`ENGINES`].
    pub switches: [u64; ENGINES.len()],
    /// Ticks for all of these changes.
    pub switch_ticks: u64,
    /// External interrupts delivered to the guest.
    pub interrupts: u64,
    /// Performance counters of the guest, and of the hypervisor while it worked for it.
    pub counters: [Counters; 2],
}

/// Words of [`Sums`].
pub const SUMS: usize = 2 * EXITS.len() + 4 + ENGINES.len() + 2 * (1 + COUNTERS.len());

fn add(to: &mut [u64], from: &[u64]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to = to.wrapping_add(*from));
}

impl Sums {
    /// What a sum begins with: every event is counted until a VCPU does not.
    pub const ZERO: Sums = {
        let all = Counters { present: (1 << COUNTERS.len()) - 1, values: [0; COUNTERS.len()] };
        Sums {
            exits: [0; EXITS.len()],
            exit_ticks: [0; EXITS.len()],
            nested_filled: 0,
            emulated: 0,
            switches: [0; ENGINES.len()],
            switch_ticks: 0,
            interrupts: 0,
            counters: [all; 2],
        }
    };

    /// Adds those of another VCPU.
    pub fn add(&mut self, other: &Sums) {
        add(&mut self.exits, &other.exits);
        add(&mut self.exit_ticks, &other.exit_ticks);
        self.nested_filled = self.nested_filled.wrapping_add(other.nested_filled);
        self.emulated = self.emulated.wrapping_add(other.emulated);
        add(&mut self.switches, &other.switches);
        self.switch_ticks = self.switch_ticks.wrapping_add(other.switch_ticks);
        self.interrupts = self.interrupts.wrapping_add(other.interrupts);
        self.counters.iter_mut().zip(&other.counters).for_each(|(to, from)| to.add(from));
    }
}

/// A sample of a VM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// The VM's number in the configuration.
    pub vm: u8,
    /// Its VCPUs.
    pub vcpus: u8,
    /// The engine in force, by its number in [`ENGINES`].
    pub engine: u8,
    /// How often it was reset, modulo 256: its sums begin at 0 each time, but for those of shadow paging.
    pub resets: u8,
    /// Nanoseconds since the VM's start.
    pub time_ns: u64,
    /// The same when its guest was last started or reset: the sums are since then.
    pub began_ns: u64,
    /// The host's TSC.
    pub tsc: u64,
    /// Faults on shadow tables, and those of them that were the guest's own.
    pub shadow_faults: [u64; 2],
    /// Shadow pages in use, and the bytes that all of shadow paging takes, at this moment.
    pub shadow_memory: [u64; 2],
    /// All VCPUs together.
    pub sums: Sums,
}

/// Words of a sample before its VCPUs' times.
pub const WORDS: usize = 8 + SUMS;
/// VCPUs that a VM has at most.
pub const VCPUS: usize = 64;
/// Words of a record at most.
pub const MOST: usize = WORDS + VCPUS;
const _: () = assert!(MOST <= crate::ring::LONGEST);

/// Writes words one after the other.
struct Writer<'a>(&'a mut [u64], usize);

impl Writer<'_> {
    fn put(&mut self, words: &[u64]) {
        if let Some(to) = self.0.get_mut(self.1..self.1 + words.len()) {
            to.copy_from_slice(words);
        }
        self.1 += words.len();
    }
}

struct Reader<'a>(&'a [u64]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u64; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }
}

impl Sample {
    /// Writes the record, with the ticks that each VCPU has run; its words.
    pub fn write(&self, ran: impl Iterator<Item = u64>, record: &mut [u64; MOST]) -> usize {
        let more = u32::from(self.vm)
            | u32::from(self.vcpus) << 8
            | u32::from(self.engine) << 16
            | u32::from(self.resets) << 24;
        let mut out = Writer(record, 1);
        out.put(&[self.time_ns, self.began_ns, self.tsc]);
        out.put(&self.shadow_faults);
        out.put(&self.shadow_memory);
        let sums = &self.sums;
        out.put(&sums.exits);
        out.put(&sums.exit_ticks);
        out.put(&[sums.nested_filled, sums.emulated]);
        out.put(&sums.switches);
        out.put(&[sums.switch_ticks, sums.interrupts]);
        for side in &sums.counters {
            out.put(&[side.present]);
            out.put(&side.values);
        }
        ran.take(usize::from(self.vcpus).min(VCPUS)).for_each(|ticks| out.put(&[ticks]));
        let words = out.1;
        record[0] = head(KIND, words, more);
        words
    }

    /// Reads a record, and the ticks that each VCPU has run. `None`: it is none, or not whole.
    pub fn read(record: &[u64]) -> Option<(Sample, &[u64])> {
        let (kind, words, more) = parse_head(*record.first()?);
        if kind != KIND || words > record.len() {
            return None;
        }
        let mut from = Reader(record.get(1..words)?);
        let [time_ns, began_ns, tsc] = from.take()?;
        let mut sample = Sample {
            vm: more as u8,
            vcpus: (more >> 8) as u8,
            engine: (more >> 16) as u8,
            resets: (more >> 24) as u8,
            time_ns,
            began_ns,
            tsc,
            shadow_faults: from.take()?,
            shadow_memory: from.take()?,
            sums: Sums { exits: from.take()?, exit_ticks: from.take()?, ..Sums::default() },
        };
        let sums = &mut sample.sums;
        [sums.nested_filled, sums.emulated] = from.take()?;
        sums.switches = from.take()?;
        [sums.switch_ticks, sums.interrupts] = from.take()?;
        for side in &mut sums.counters {
            let [present] = from.take()?;
            *side = Counters { present, values: from.take()? };
        }
        Some((sample, from.0.get(..usize::from(sample.vcpus))?))
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn sample() -> Sample {
        let mut n = 100;
        let mut next = || {
            n += 1;
            n
        };
        let mut sums = Sums::ZERO;
        sums.exits.iter_mut().chain(&mut sums.exit_ticks).for_each(|word| *word = next());
        [sums.nested_filled, sums.emulated, sums.switch_ticks, sums.interrupts] =
            [next(), next(), next(), next()];
        sums.switches = [next(), next(), next()];
        sums.counters[0] = Counters { present: 0b101, values: [7; COUNTERS.len()] };
        Sample {
            vm: 3,
            vcpus: 2,
            engine: 1,
            resets: 9,
            time_ns: next(),
            began_ns: next(),
            tsc: next(),
            shadow_faults: [next(), next()],
            shadow_memory: [next(), next()],
            sums,
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let mut record = [0; MOST];
        let words = sample().write([5, 6, 7].into_iter(), &mut record);
        assert_eq!(words, WORDS + 2);
        assert_eq!(Sample::read(&record), Some((sample(), &[5u64, 6][..])));
        assert_eq!(Sample::read(&record[..words - 1]), None);
        assert_eq!(Sample::read(&[]), None);
    }

    #[test]
    fn sums_keep_what_all_have() {
        let mut sums = Sums::ZERO;
        sums.add(&sample().sums);
        sums.add(&sample().sums);
        assert_eq!(sums.exits[0], 2 * sample().sums.exits[0]);
        assert_eq!((sums.counters[0].get(0), sums.counters[0].get(1)), (Some(14), None));
    }

    proptest! {
        #[test]
        fn no_words_panic(words in prop::collection::vec(any::<u64>(), 0..MOST), kind: bool) {
            let mut words: Vec<u64> = words;
            if let (true, Some(first)) = (kind, words.first_mut()) {
                *first = *first & !0xff | u64::from(KIND);
            }
            let _ = Sample::read(&words);
        }
    }
}
