//! What is checked, by subject.

pub mod bulk;
mod control;
mod cpuid;
mod debug;
mod delivery;
mod dies;
mod interrupts;
mod ioapic;
mod ipi;
mod measure;
mod memory;
mod mmio;
mod mmio_faults;
mod mmio_system;
mod msr;
mod pic;
mod shared;
mod smp;
mod speculation;
mod strings;
mod svm;
mod task_modes;
mod task_pages;
mod task_storm;
mod tasks;
mod testdev;
mod timers;
mod turns;

use crate::check::{Case, Check};
use crate::machine::trap::{Trap, catch, vector};

/// All cases.
pub fn all() -> impl Iterator<Item = &'static Case> {
    [
        cpuid::CASES,
        msr::CASES,
        speculation::CASES,
        control::CASES,
        debug::CASES,
        interrupts::CASES,
        ipi::CASES,
        smp::CASES,
        shared::CASES,
        measure::CASES,
        turns::CASES,
        timers::CASES,
        ioapic::CASES,
        pic::CASES,
        testdev::CASES,
        strings::CASES,
        mmio::CASES,
        mmio_faults::CASES,
        mmio_system::CASES,
        delivery::CASES,
        svm::CASES,
        tasks::CASES,
        task_modes::CASES,
        task_pages::CASES,
        task_storm::CASES,
        memory::CASES,
        bulk::CASES,
        dies::CASES,
        crate::torture::CASES,
    ]
    .into_iter()
    .flatten()
}

/// What an instruction raised: vector and error code.
fn raised(body: impl FnMut()) -> Option<(u8, u32)> {
    catch(body).map(|trap: Trap| (trap.vector, trap.error))
}

/// #GP(0)
const GP: Option<(u8, u32)> = Some((vector::GP, 0));
/// #UD
const UD: Option<(u8, u32)> = Some((vector::UD, 0));

impl Check {
    /// `body` must raise exactly this.
    fn raises(&mut self, what: impl core::fmt::Display, want: Option<(u8, u32)>, body: impl FnMut()) {
        self.equal(what, raised(body), want);
    }

    /// The same where QEMU's emulation is known not to check, so that nothing is raised.
    fn raises_but_tcg(&mut self, what: impl core::fmt::Display, want: Option<(u8, u32)>, body: impl FnMut()) {
        self.equal_but_tcg(what, raised(body), want, None);
    }
}
