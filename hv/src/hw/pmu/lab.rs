//! The counters of a lab machine: a page of memory for each PCPU, which the model beside the emulator writes (`abi::lab`).
//!
//! Reading them takes loads only, and no exit. The model's own counters are this memory, so that they are exact, but for
//! instructions and cycles: these are brought up to date by a load from the page itself ("doorbell"). A store says that the
//! run ends ([`Lab::run_ends`]). Until the model begins (`pal run --lab-from session`) only instructions have values.

use core::ptr;

use abi::lab::{Counters as Page, Header, MAGIC, PAGE, Record, Side, VERSION};

use super::Pmu;
use crate::arch::counters::{BothSides, CounterEvent, Counts, Spent};

/// Why there are no counters where they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// No lab machine writes there.
    Magic(u64),
    /// It has another layout.
    Version(u32),
    /// It has no record of this PCPU.
    Pcpu(u32),
}

impl core::fmt::Display for Unusable {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Unusable::Magic(found) => write!(
                f,
                "no lab machine's counters are there (they begin with {found:#x}); leave the word `lab=` to `pal run --lab`"
            ),
            Unusable::Version(found) => write!(
                f,
                "the lab machine's counters have layout {found}, not {VERSION}; build hypervisor and plugin from one source"
            ),
            Unusable::Pcpu(pcpus) => write!(f, "the lab machine has counters for {pcpus} processors only"),
        }
    }
}

/// The counters of one PCPU.
#[derive(Debug)]
pub struct Lab {
    header: *const Header,
    record: *const Record,
}

// SAFETY: it is read only, by volatile loads of what the model writes at any time.
unsafe impl Send for Lab {}
// SAFETY: the same.
unsafe impl Sync for Lab {}

impl Lab {
    /// Bytes that have to be mapped, from the address on.
    pub const BYTES: u64 = (PAGE * (1 + abi::lab::PCPUS)) as u64;

    /// The record of PCPU `pcpu` in the memory at `address`, and the kHz of the modelled clock.
    ///
    /// # Safety
    /// [`Lab::BYTES`] at `address` are mapped for as long as the result lives; `address` is a multiple of 4 KiB.
    pub unsafe fn new(address: u64, pcpu: u32) -> Result<(Lab, u64), Unusable> {
        let place = address as *const Header;
        // SAFETY: by the caller; but for `counts_only` the model writes the header once, before the machine starts.
        let header = unsafe { ptr::read_volatile(place) };
        if header.magic != MAGIC {
            return Err(Unusable::Magic(header.magic));
        }
        if header.version != VERSION {
            return Err(Unusable::Version(header.version));
        }
        let at = header.record_bytes.checked_mul(pcpu.into());
        let at = at.and_then(|at| at.checked_add(header.record_offset));
        let fits =
            |at: &u64| at.is_multiple_of(8) && at.saturating_add(size_of::<Record>() as u64) <= Self::BYTES;
        match at.filter(fits) {
            Some(at) if pcpu < header.pcpus => {
                Ok((Lab { header: place, record: (address + at) as *const Record }, header.khz))
            }
            _ => Err(Unusable::Pcpu(header.pcpus)),
        }
    }

    /// All cycles of the PCPU up to now, of guests and of the host. The PCPU itself executes this.
    #[inline]
    pub fn cycles(&self) -> u64 {
        // SAFETY: as in `read`.
        unsafe {
            let _up_to_date = ptr::read_volatile(&raw const (*self.record).doorbell);
            let of = |side: Side| ptr::read_volatile(&raw const (*self.record).sides[side as usize].cycles);
            Side::ALL.into_iter().fold(0, |sum: u64, side| sum.wrapping_add(of(side)))
        }
    }

    /// Tells the lab machine that the PCPU, which executes this, does nothing more that counts. Statistics follow, and how
    /// often the hypervisor asks until the serial port has sent them depends on how busy the machine below is, as does what
    /// it executes until the emulator has ended: with these instructions no two runs would be equal.
    pub fn run_ends(self) {
        // SAFETY: the record is mapped, by `new`; it is in RAM, and the word has no other use.
        unsafe { ptr::write_volatile(&raw mut (*self.record.cast_mut()).doorbell, 1) };
    }

    /// Whether everything is modelled by now: before that there are no cycles.
    #[inline(always)]
    pub fn models(&self) -> bool {
        // SAFETY: the header is mapped, by `new`; the model writes this word as a whole.
        unsafe { ptr::read_volatile(&raw const (*self.header).counts_only) == 0 }
    }

    /// What a page says, in the words of all processors. While nothing is modelled that is instructions: the rest is absent.
    fn counts(page: &Page, models: bool) -> Counts {
        let walks = [
            page.walks_4k_4k,
            page.walks_4k_2m,
            page.walks_4k_1g,
            page.walks_2m_4k,
            page.walks_2m_2m,
            page.walks_2m_1g,
            page.walks_1g_4k,
            page.walks_1g_2m,
            page.walks_1g_1g,
        ];
        let mut counts = Counts::ABSENT;
        counts.set(CounterEvent::Instructions, page.instructions);
        if !models {
            return counts;
        }
        for (event, value) in [
            (CounterEvent::Cycles, page.cycles),
            (CounterEvent::DtlbMisses, page.dtlb_misses),
            (CounterEvent::ItlbMisses, page.itlb_misses),
            (CounterEvent::Walks, walks.iter().fold(0, |sum, walks| sum.wrapping_add(*walks))),
            (CounterEvent::WalkRefs, page.walk_refs),
            (CounterEvent::WalkCycles, page.walk_cycles),
            (CounterEvent::L2Misses, page.l2_misses),
            (CounterEvent::LlcMisses, page.llc_misses),
            (CounterEvent::MemoryLocal, page.memory_local),
            (CounterEvent::MemoryRemote, page.memory_remote),
            (CounterEvent::MemorySlow, page.memory_slow),
        ] {
            counts.set(event, value);
        }
        counts
    }
}

impl Pmu for Lab {
    fn read(&mut self) -> BothSides {
        // SAFETY: by `new`, all of the record is mapped; the first load brings it up to date.
        let [host, nested, shadow] = unsafe {
            let _up_to_date = ptr::read_volatile(&raw const (*self.record).doorbell);
            Side::ALL.map(|side| ptr::read_volatile(&raw const (*self.record).sides[side as usize]))
        };
        // Asked last: what is modelled has begun with nothing, so that a page that was read before is of that begin.
        let models = self.models();
        let guest = Lab::counts(&nested, models).plus(&Lab::counts(&shadow, models));
        BothSides { guest, host: Lab::counts(&host, models) }
    }

    #[inline(always)]
    fn host_spent(&mut self) -> Option<Spent> {
        // SAFETY: as in `read`.
        unsafe {
            let _up_to_date = ptr::read_volatile(&raw const (*self.record).doorbell);
            let host = &raw const (*self.record).sides[Side::Host as usize];
            Some(Spent {
                instructions: ptr::read_volatile(&raw const (*host).instructions),
                cycles: ptr::read_volatile(&raw const (*host).cycles),
            })
        }
    }

    /// The model has no overflow interrupt.
    fn arm_overflow(&mut self, _: u32) -> bool {
        false
    }

    fn take_overflow(&mut self) -> bool {
        false
    }
}
