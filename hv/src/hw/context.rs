//! What a VCPU leaves in the registers of a PCPU between its entries, because the host has no use for it: FPU and vector
//! registers, XCR0, TSC_AUX, the addresses of breakpoints. Swapped when another VCPU runs, not at exits.

use super::fpu::{self, FpuState};
use super::{cpu, msr};
use crate::virt::state::cr4;

/// These registers of a VCPU that is not in a PCPU.
#[derive(Debug)]
pub struct Context {
    fpu: FpuState,
    xcr0: u64,
    tsc_aux: u64,
    breakpoints: [u64; 4],
}

impl Context {
    /// Their values after RESET.
    pub fn after_reset() -> Context {
        Context { fpu: FpuState::new(), xcr0: 1, tsc_aux: 0, breakpoints: [0; 4] }
    }

    /// Takes the VCPU's registers out of the PCPU.
    ///
    /// # Safety
    /// They are in it.
    pub unsafe fn save(&mut self) {
        // SAFETY: the registers exist where they are used; XCR0 then holds all components, so that none is lost that the guest
        // has turned off for a while.
        unsafe {
            if cpu::cr4() & cr4::OSXSAVE != 0 {
                self.xcr0 = cpu::xgetbv(0);
                cpu::xsetbv(0, fpu::supported_components());
            }
            self.fpu.save();
            if has_tsc_aux() {
                self.tsc_aux = msr::read(msr::TSC_AUX);
            }
        }
        self.breakpoints = cpu::breakpoints();
    }

    /// Puts them into the PCPU.
    ///
    /// # Safety
    /// Nobody needs what was there.
    pub unsafe fn restore(&mut self) {
        // SAFETY: as above; the values were there before, or are those after RESET.
        unsafe {
            let xsave = cpu::cr4() & cr4::OSXSAVE != 0;
            if xsave {
                cpu::xsetbv(0, fpu::supported_components());
            }
            self.fpu.restore();
            if xsave {
                cpu::xsetbv(0, self.xcr0);
            }
            if has_tsc_aux() {
                msr::write(msr::TSC_AUX, self.tsc_aux);
            }
        }
        cpu::set_breakpoints(self.breakpoints);
    }
}

/// Whether the processor has TSC_AUX: with RDTSCP.
fn has_tsc_aux() -> bool {
    cpu::cpuid(0x8000_0001, 0).edx & 1 << 27 != 0
}
