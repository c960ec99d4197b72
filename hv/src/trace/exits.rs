//! Counters of exits: how often each kind happened and how long the hypervisor took for it.

use abi::telemetry::ExitKind;

use crate::arch::{Exception, vector};
use crate::virt::Exit;

/// The kind of this exit.
#[inline(always)]
pub const fn kind(exit: &Exit) -> ExitKind {
    match exit {
        Exit::Cpuid => ExitKind::Cpuid,
        Exit::Hlt => ExitKind::Hlt,
        Exit::Io(_) => ExitKind::Io,
        Exit::Rdmsr => ExitKind::Rdmsr,
        Exit::Wrmsr => ExitKind::Wrmsr,
        Exit::NestedFault { .. } => ExitKind::NestedFault,
        Exit::Exception(Exception { vector: vector::PF, .. }) => ExitKind::PageFault,
        Exit::Exception(_) => ExitKind::Exception,
        Exit::ControlReg(_) => ExitKind::ControlReg,
        Exit::DebugReg(_) => ExitKind::DebugReg,
        Exit::Xsetbv => ExitKind::Xsetbv,
        Exit::Invlpg(_) | Exit::Invpcid => ExitKind::Invlpg,
        Exit::Hypercall => ExitKind::Hypercall,
        Exit::Interrupt | Exit::Nmi => ExitKind::Interrupt,
        Exit::InterruptWindow | Exit::NmiWindow => ExitKind::Window,
        Exit::Shutdown => ExitKind::Shutdown,
        Exit::Pause => ExitKind::Pause,
        _ => ExitKind::Other,
    }
}

/// Count and time of one kind of exit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExitCount {
    /// How many exits.
    pub count: u64,
    /// Host TSC ticks from these exits to the next entry (time asleep after HLT is not part of it).
    pub ticks: u64,
}

/// The counters of one VCPU.
#[derive(Clone, Debug, Default)]
pub struct ExitCounts([ExitCount; ExitKind::ALL.len()]);

impl ExitCounts {
    /// Adds one exit that took `ticks`.
    #[inline(always)]
    pub fn add(&mut self, kind: ExitKind, ticks: u64) {
        let slot = &mut self.0[kind as usize];
        slot.count += 1;
        slot.ticks = slot.ticks.wrapping_add(ticks);
    }

    /// Adds one exit that took less than 2^32 ticks, by the low halves of the TSC at its begin and end.
    #[inline(always)]
    pub fn add_short(&mut self, kind: ExitKind, begin: u32, end: u32) {
        self.add(kind, u64::from(end.wrapping_sub(begin)));
    }

    /// The counters of one kind.
    pub fn of(&self, kind: ExitKind) -> ExitCount {
        self.0[kind as usize]
    }

    /// All exits together.
    pub fn total(&self) -> ExitCount {
        self.0.iter().fold(ExitCount::default(), |sum, c| ExitCount {
            count: sum.count + c.count,
            ticks: sum.ticks.wrapping_add(c.ticks),
        })
    }
}
