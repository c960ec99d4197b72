//! AMD's core performance counters (APM 2, 13.2; events from the families' BKDGs and PPRs).
//!
//! Each counter has bits that confine it to guests or to the host (PERF_CTL.HostGuestOnly), so that it is programmed once and
//! never touched at exits. Processors have four counters, or six with PerfCtrExtCore; what does not fit is not counted. The
//! counters of the last-level cache belong to a whole cluster of processors and count all of them, so they are not used.

use super::slots::{Side, Slot, Slots};
use super::{Msrs, Pmu};
use crate::arch::counters::{BothSides, CounterEvent};

/// The four registers of every processor: control, counter.
const LEGACY: (u32, u32) = (0xc001_0000, 0xc001_0004);
/// The six of PerfCtrExtCore: control and counter by turns.
const EXTENDED: u32 = 0xc001_0200;
/// Bits of a counter.
const WIDTH: u32 = 48;

/// PERF_CTL: count at CPL 3, count at CPL 0, enable.
const USER: u64 = 1 << 16;
const SYSTEM: u64 = 1 << 17;
const INTERRUPT: u64 = 1 << 20;
const ENABLE: u64 = 1 << 22;
const GUEST_ONLY: u64 = 1 << 40;
const HOST_ONLY: u64 = 1 << 41;

/// An event select with its unit mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Select(u16, u8);

impl Select {
    /// The word for PERF_CTL. Events have twelve bits, of which the upper four are apart.
    const fn word(self) -> u64 {
        (self.0 & 0xff) as u64 | (self.1 as u64) << 8 | ((self.0 >> 8) as u64) << 32
    }
}

/// What of this processor's counters is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    family: u32,
    extended: bool,
}

impl Features {
    /// Reads them from CPUID. `None`: no AMD-V, hence no way to tell guests apart.
    pub fn detect(cpuid: impl Fn(u32, u32) -> [u32; 4]) -> Option<Features> {
        let extended_leaf = cpuid(0x8000_0001, 0)[2];
        let [eax, ..] = cpuid(1, 0);
        let base = eax >> 8 & 15;
        let family = if base == 15 { base + (eax >> 20 & 0xff) } else { base };
        (extended_leaf & 1 << 2 != 0).then_some(Features { family, extended: extended_leaf & 1 << 23 != 0 })
    }

    /// The events, the most useful ones first.
    fn events(self) -> impl Iterator<Item = (CounterEvent, Side, Select)> {
        let [dtlb, itlb, l2] = self.misses();
        let guest = |event, select: Option<Select>| Some((event, Side::Guest, select?));
        [
            guest(CounterEvent::Instructions, Some(Select(0xc0, 0))),
            guest(CounterEvent::Cycles, Some(Select(0x76, 0))),
            guest(CounterEvent::DtlbMisses, dtlb),
            Some((CounterEvent::Cycles, Side::Host, Select(0x76, 0))),
            guest(CounterEvent::ItlbMisses, itlb),
            guest(CounterEvent::L2Misses, l2),
        ]
        .into_iter()
        .flatten()
    }

    /// Misses of the last data TLB, of the last code TLB, of the second-level cache, where the family's manual has them.
    fn misses(self) -> [Option<Select>; 3] {
        match self.family {
            // BKDG 31116: "L1 DTLB Miss and L2 DTLB Miss" of all page sizes, the same of code, L2 misses without prefetches.
            0x10 => [Some(Select(0x46, 7)), Some(Select(0x85, 3)), Some(Select(0x7e, 7))],
            // BKDG 42301: unified TLB misses of data and of code.
            0x15 => [Some(Select(0x46, 7)), Some(Select(0x46, 0x70)), Some(Select(0x7e, 7))],
            // PPR 54945 and later: reloads of the L1 TLB that missed the L2 TLB; requests of code and data that missed the L2.
            0x17 | 0x18 => [Some(Select(0x45, 0xf0)), Some(Select(0x85, 7)), Some(Select(0x64, 9))],
            // The same, and coalesced pages have a bit of their own among those of code.
            0x19 | 0x1a => [Some(Select(0x45, 0xf0)), Some(Select(0x85, 15)), Some(Select(0x64, 9))],
            _ => [None; 3],
        }
    }

    const fn counters(self) -> u32 {
        if self.extended { 6 } else { 4 }
    }

    /// Control and counter register `n`.
    const fn registers(self, n: u32) -> (u32, u32) {
        if self.extended { (EXTENDED + 2 * n, EXTENDED + 2 * n + 1) } else { (LEGACY.0 + n, LEGACY.1 + n) }
    }
}

/// The counters of one PCPU.
#[derive(Debug)]
pub struct Amd<M> {
    msrs: M,
    slots: Slots,
}

impl<M: Msrs> Amd<M> {
    /// Programs the counters of the PCPU that executes this; they count from now on.
    pub fn start(features: Features, mut msrs: M) -> Amd<M> {
        let mut slots = Slots::default();
        for (n, (event, side, select)) in (0..features.counters()).zip(features.events()) {
            let (control, counter) = features.registers(n);
            let only = if side == Side::Guest { GUEST_ONLY } else { HOST_ONLY };
            let interrupt =
                if event == CounterEvent::Instructions && side == Side::Guest { INTERRUPT } else { 0 };
            msrs.write(control, 0);
            msrs.write(counter, 0);
            msrs.write(control, select.word() | USER | SYSTEM | ENABLE | only | interrupt);
            slots.push(Slot::new(event, side, counter, WIDTH));
        }
        Amd { msrs, slots }
    }
}

impl<M: Msrs> Pmu for Amd<M> {
    fn read(&mut self) -> BothSides {
        self.slots.read(&self.msrs)
    }

    fn arm_overflow(&mut self, instructions: u32) -> bool {
        self.slots.arm(&mut self.msrs, instructions)
    }

    fn take_overflow(&mut self) -> bool {
        self.slots.take_overflow(&self.msrs)
    }
}

#[cfg(test)]
impl<M> Amd<M> {
    /// The model behind it.
    pub(super) fn msrs(&mut self) -> &mut M {
        &mut self.msrs
    }
}
