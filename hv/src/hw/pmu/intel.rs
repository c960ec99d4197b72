//! Intel's architectural performance monitoring, version 2 and later (SDM 3, chapter 20).
//!
//! Guests and host are told apart by IA32_PERF_GLOBAL_CTRL, which VM entries and exits load ([`Features::switch`] has both
//! values for the VMCS): each counter is enabled on one side only. A processor without these controls counts nothing here. The
//! two fixed counters take the guest's instructions and cycles, the others what fits, in the order of its use.

use arrayvec::ArrayVec;

use super::intel_events::{Select, model_events};
use super::slots::{MOST, Side, Slot, Slots};
use super::{Msrs, Pmu};
use crate::arch::counters::{BothSides, CounterEvent};

/// MSRs (SDM 4, table 2-2).
#[allow(missing_docs)]
pub mod index {
    pub const PMC0: u32 = 0xc1;
    pub const PERFEVTSEL0: u32 = 0x186;
    pub const FIXED_CTR0: u32 = 0x309;
    pub const FIXED_CTR_CTRL: u32 = 0x38d;
    pub const GLOBAL_CTRL: u32 = 0x38f;
    pub const GLOBAL_OVF_CTRL: u32 = 0x390;
}

/// IA32_PERFEVTSELx: count at CPL 3, at CPL 0, enable.
const USER: u64 = 1 << 16;
const SYSTEM: u64 = 1 << 17;
const ENABLE: u64 = 1 << 22;
/// IA32_FIXED_CTR_CTRL, for each counter in four bits: all levels; an interrupt at overflow.
const FIXED_ALL: u64 = 3;
const FIXED_INTERRUPT: u64 = 8;
/// Where fixed counters are in IA32_PERF_GLOBAL_CTRL and its status.
const FIXED_SHIFT: u32 = 32;

/// The architectural events (SDM 3, table 20-1).
const INSTRUCTIONS: Select = Select(0xc0, 0);
const CYCLES: Select = Select(0x3c, 0);
const LLC_MISSES: Select = Select(0x2e, 0x41);

/// A register for each event that fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Use {
    event: CounterEvent,
    side: Side,
    /// Which register: fixed ones are [`FIXED_SHIFT`] and on.
    counter: u32,
    select: Option<Select>,
}

/// What this processor's monitoring is used for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Features {
    uses: ArrayVec<Use, MOST>,
    width: u32,
    fixed_width: u32,
}

impl Features {
    /// Reads them from CPUID. `None`: there is no monitoring of version 2, or it lacks what is needed.
    pub fn detect(cpuid: impl Fn(u32, u32) -> [u32; 4]) -> Option<Features> {
        if cpuid(0, 0)[0] < 10 {
            return None;
        }
        let [eax, ebx, _, edx] = cpuid(10, 0);
        let (version, general, width) = (eax & 0xff, eax >> 8 & 0xff, eax >> 16 & 0xff);
        let (fixed, fixed_width) = (edx & 31, edx >> 5 & 0xff);
        let fits = |width: u32| (33..=64).contains(&width);
        if version < 2 || fixed < 2 || general == 0 || !fits(width) || !fits(fixed_width) {
            return None;
        }
        // Bits of EBX say which architectural events are missing, as far as EAX says that there are bits.
        let has = |event: u32| event < eax >> 24 && ebx >> event & 1 == 0;
        let mut features = Features { uses: ArrayVec::new(), width, fixed_width };
        for (counter, event) in [(0, CounterEvent::Instructions), (1, CounterEvent::Cycles)] {
            let side = Side::Guest;
            features.uses.push(Use { event, side, counter: FIXED_SHIFT + counter, select: None });
        }
        let mut free = 0..general.min(8);
        let mut add = |event, side, selects: &[Select]| {
            // All parts of an event, or none.
            if !selects.is_empty() && free.len() >= selects.len() {
                for (&select, counter) in selects.iter().zip(&mut free) {
                    features.uses.push(Use { event, side, counter, select: Some(select) });
                }
            }
        };
        let model = model_events(cpuid(1, 0)[0]);
        add(CounterEvent::DtlbMisses, Side::Guest, model.dtlb_misses);
        if has(0) {
            add(CounterEvent::Cycles, Side::Host, &[CYCLES]);
        }
        add(CounterEvent::WalkCycles, Side::Guest, model.walk_cycles);
        if has(4) {
            add(CounterEvent::LlcMisses, Side::Guest, &[LLC_MISSES]);
        }
        add(CounterEvent::ItlbMisses, Side::Guest, model.itlb_misses);
        if has(1) {
            add(CounterEvent::Instructions, Side::Host, &[INSTRUCTIONS]);
        }
        add(CounterEvent::L2Misses, Side::Guest, model.l2_misses);
        Some(features)
    }

    /// IA32_PERF_GLOBAL_CTRL while a guest executes, and while the host does: for the VMCS.
    pub fn switch(&self) -> [u64; 2] {
        [Side::Guest, Side::Host].map(|side| {
            let bits = self.uses.iter().filter(|it| it.side == side).map(|it| 1 << it.counter);
            bits.fold(0, |all, bit: u64| all | bit)
        })
    }
}

/// The counters of one PCPU.
#[derive(Debug)]
pub struct Intel<M> {
    msrs: M,
    slots: Slots,
}

impl<M: Msrs> Intel<M> {
    /// Programs the counters of the PCPU that executes this; the host's count from now on, the guest's whenever one is entered.
    pub fn start(features: &Features, mut msrs: M) -> Intel<M> {
        msrs.write(index::GLOBAL_CTRL, 0);
        let (mut slots, mut fixed) = (Slots::default(), 0);
        for it in &features.uses {
            let (counter, width) = match it.select {
                Some(select) => {
                    let word = select.word() | USER | SYSTEM | ENABLE;
                    msrs.write(index::PERFEVTSEL0 + it.counter, word);
                    (index::PMC0 + it.counter, features.width)
                }
                None => {
                    let number = it.counter - FIXED_SHIFT;
                    let interrupt = if it.event == CounterEvent::Instructions { FIXED_INTERRUPT } else { 0 };
                    fixed |= (FIXED_ALL | interrupt) << (4 * number);
                    (index::FIXED_CTR0 + number, features.fixed_width)
                }
            };
            msrs.write(counter, 0);
            slots.push(Slot::new(it.event, it.side, counter, width));
        }
        msrs.write(index::FIXED_CTR_CTRL, fixed);
        let [_, host] = features.switch();
        msrs.write(index::GLOBAL_CTRL, host);
        Intel { msrs, slots }
    }
}

impl<M: Msrs> Pmu for Intel<M> {
    fn read(&mut self) -> BothSides {
        self.slots.read(&self.msrs)
    }

    fn arm_overflow(&mut self, instructions: u32) -> bool {
        self.slots.arm(&mut self.msrs, instructions)
    }

    /// The status is cleared, too: it holds back the next interrupt otherwise.
    fn take_overflow(&mut self) -> bool {
        let past = self.slots.take_overflow(&self.msrs);
        if past {
            self.msrs.write(index::GLOBAL_OVF_CTRL, 1 << FIXED_SHIFT);
        }
        past
    }
}

#[cfg(test)]
impl<M> Intel<M> {
    /// The model behind it.
    pub(super) fn msrs(&mut self) -> &mut M {
        &mut self.msrs
    }
}
