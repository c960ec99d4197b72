//! Performance counters of the PCPU that executes this, the guest's and the hypervisor's apart.
//!
//! One [`Pmu`] for each PCPU, made on it and read by it alone (`vmm::pcpu` owns it). Behind the trait are the counters of a
//! [lab machine](lab), of [AMD](amd) and of [Intel](intel) processors; where there are none, [`Counters::None`] says so. All of
//! them tell guest and host apart without an instruction on the way of an exit: the model does it itself, AMD's counters have a
//! bit for it, and Intel's are switched by VM entries and exits.
//!
//! What holds: values only grow (modulo 2^64), and an event that the processor cannot count has none. Guests never get at the
//! counters: CPUID shows none, their MSRs are not passed through, and RDPMC exits (`vcpu::dispatch`).

pub mod amd;
pub mod intel;
mod intel_events;
pub mod lab;
mod slots;
#[cfg(test)]
mod tests;

use core::fmt;

use crate::arch::counters::{BothSides, CounterEvent, Spent};

/// Access to MSRs of counters: the processor's, or a model's.
pub trait Msrs {
    /// Reads one.
    fn read(&self, index: u32) -> u64;
    /// Writes one.
    fn write(&mut self, index: u32, value: u64);
}

/// The MSRs of the PCPU that executes this.
#[derive(Debug)]
pub struct RealMsrs(());

impl RealMsrs {
    /// Access to those that the drivers in this module use.
    ///
    /// # Safety
    /// The result is given only to the driver that CPUID says is right for this processor: then the registers exist.
    pub unsafe fn new() -> RealMsrs {
        RealMsrs(())
    }
}

impl Msrs for RealMsrs {
    fn read(&self, index: u32) -> u64 {
        // SAFETY: by `new`, the register exists.
        unsafe { super::msr::read(index) }
    }

    fn write(&mut self, index: u32, value: u64) {
        // SAFETY: as above, and counters change nothing that code depends on.
        unsafe { super::msr::write(index, value) }
    }
}

/// The counters of one PCPU.
pub trait Pmu {
    /// The values now.
    fn read(&mut self) -> BothSides;

    /// What the hypervisor alone has executed, where that takes less than all of them.
    fn host_spent(&mut self) -> Option<Spent> {
        let host = self.read().host;
        let [instructions, cycles] =
            [CounterEvent::Instructions, CounterEvent::Cycles].map(|event| host.get(event));
        Some(Spent { instructions: instructions?, cycles: cycles? })
    }

    /// Asks for an interrupt after this many instructions of guests, instead of an earlier wish. False: this processor cannot.
    fn arm_overflow(&mut self, instructions: u32) -> bool;

    /// Whether the instructions of [`Pmu::arm_overflow`] have been executed; then once.
    fn take_overflow(&mut self) -> bool;
}

/// The counters of a PCPU, whatever they are.
#[derive(Debug)]
pub enum Counters<M = RealMsrs> {
    /// There are none, or they were not requested (`counters=on`).
    None,
    /// A lab machine's.
    Lab(lab::Lab),
    /// An AMD processor's.
    Amd(amd::Amd<M>),
    /// An Intel processor's.
    Intel(intel::Intel<M>),
}

impl<M: Msrs> Pmu for Counters<M> {
    fn read(&mut self) -> BothSides {
        match self {
            Counters::None => BothSides::ABSENT,
            Counters::Lab(it) => it.read(),
            Counters::Amd(it) => it.read(),
            Counters::Intel(it) => it.read(),
        }
    }

    #[inline(always)]
    fn host_spent(&mut self) -> Option<Spent> {
        match self {
            Counters::None => None,
            Counters::Lab(it) => it.host_spent(),
            Counters::Amd(it) => it.host_spent(),
            Counters::Intel(it) => it.host_spent(),
        }
    }

    fn arm_overflow(&mut self, instructions: u32) -> bool {
        match self {
            Counters::None => false,
            Counters::Lab(it) => it.arm_overflow(instructions),
            Counters::Amd(it) => it.arm_overflow(instructions),
            Counters::Intel(it) => it.arm_overflow(instructions),
        }
    }

    fn take_overflow(&mut self) -> bool {
        match self {
            Counters::None => false,
            Counters::Lab(it) => it.take_overflow(),
            Counters::Amd(it) => it.take_overflow(),
            Counters::Intel(it) => it.take_overflow(),
        }
    }
}

impl<M> Counters<M> {
    /// Whether anything is counted.
    pub const fn are_some(&self) -> bool {
        !matches!(self, Counters::None)
    }

    /// What they are, for people.
    pub const fn name(&self) -> &'static str {
        match self {
            Counters::None => "none",
            Counters::Lab(_) => "a lab machine's",
            Counters::Amd(_) => "AMD core counters",
            Counters::Intel(_) => "Intel performance monitoring",
        }
    }
}

/// The events of one side, for the log.
#[derive(Clone, Copy, Debug)]
pub struct Listed<'a>(pub &'a crate::arch::counters::Counts);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (event, _) in self.0.iter() {
            write!(f, "{separator}{}", event.name())?;
            separator = ", ";
        }
        if separator.is_empty() { f.write_str("nothing") } else { Ok(()) }
    }
}

/// Detects counters that do not advance: of a processor that has them by CPUID and does not count, as emulators do, or of a model
/// that has stopped.
#[derive(Clone, Copy, Debug, Default)]
pub struct StallDetector {
    last: u64,
    /// Looks in a row at which guests had run and nothing was counted.
    silent: u8,
}

impl StallDetector {
    /// After this many silent looks the counters are given up. A guest may be entered and exit before its first instruction.
    const LIMIT: u8 = 32;

    /// Looks at the values; `ran` says that guests have executed since the last look. True: they do not advance.
    pub fn look(&mut self, now: &BothSides, ran: bool) -> bool {
        let Some(instructions) = now.guest.get(CounterEvent::Instructions) else { return false };
        let moved = instructions != core::mem::replace(&mut self.last, instructions);
        self.silent = match (moved, ran) {
            (true, _) => 0,
            (false, true) => self.silent.saturating_add(1),
            (false, false) => self.silent,
        };
        self.silent >= Self::LIMIT
    }
}
