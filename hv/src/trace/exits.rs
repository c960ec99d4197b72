//! Counters of exits: how often each kind happened and how long the hypervisor took for it.

use crate::arch::{Exception, vector};
use crate::virt::Exit;

macro_rules! kinds {
    ($($kind:ident $name:literal,)*) => {
        /// A kind of exit, for statistics.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        #[allow(missing_docs)]
        pub enum ExitKind { $($kind,)* }

        impl ExitKind {
            /// All kinds, in the order of their numbers.
            pub const ALL: &'static [ExitKind] = &[$(ExitKind::$kind,)*];

            /// The name in statistics records.
            pub const fn name(self) -> &'static str {
                match self { $(ExitKind::$kind => $name,)* }
            }
        }
    };
}

kinds! {
    Cpuid "cpuid",
    Hlt "hlt",
    Io "io",
    Rdmsr "rdmsr",
    Wrmsr "wrmsr",
    NestedFault "nested-fault",
    PageFault "page-fault",
    Exception "exception",
    ControlReg "control-reg",
    DebugReg "debug-reg",
    Xsetbv "xsetbv",
    Invlpg "invlpg",
    Hypercall "hypercall",
    Interrupt "interrupt",
    Window "window",
    Shutdown "shutdown",
    Pause "pause",
    Other "other",
}

impl ExitKind {
    /// The kind of this exit.
    #[inline(always)]
    pub const fn of(exit: &Exit) -> ExitKind {
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
