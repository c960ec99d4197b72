//! What a VCPU leaves in the registers of a PCPU between its entries, because the host has no use for it: FPU and vector
//! registers, XCR0, TSC_AUX, the addresses of breakpoints. Swapped when another VCPU runs, not at exits.

use super::fpu::FpuState;
use super::{cpu, msr};

/// These registers of a VCPU that is not in a PCPU.
#[derive(Debug)]
pub struct Context {
    fpu: FpuState,
    xcr0: u64,
    /// Where the processor has it: with RDTSCP.
    tsc_aux: Option<u64>,
    breakpoints: [u64; 4],
}

impl Context {
    /// Their values after RESET.
    pub fn after_reset() -> Context {
        let has_tsc_aux = cpu::cpuid(0x8000_0001, 0).edx & 1 << 27 != 0;
        Context { fpu: FpuState::new(), xcr0: 1, tsc_aux: has_tsc_aux.then_some(0), breakpoints: [0; 4] }
    }

    /// Takes the VCPU's registers out of the PCPU.
    ///
    /// # Safety
    /// They are in it.
    pub unsafe fn save(&mut self) {
        let components = self.fpu.components();
        // SAFETY: the registers exist where they are used; XCR0 then holds all components, so that none is lost that the guest
        // has turned off for a while.
        unsafe {
            if components != 0 {
                self.xcr0 = cpu::xgetbv(0);
                if self.xcr0 != components {
                    cpu::xsetbv(0, components);
                }
            }
            self.fpu.save();
            if let Some(value) = &mut self.tsc_aux {
                *value = msr::read(msr::TSC_AUX);
            }
        }
        // Neither VMRUN nor VM entries switch DR0 to DR3; DR6 and DR7 they do, or the backend does.
        self.breakpoints = cpu::breakpoints();
    }

    /// Puts them into the PCPU.
    ///
    /// # Safety
    /// The values that it overwrites are saved elsewhere or not needed.
    pub unsafe fn restore(&mut self) {
        let components = self.fpu.components();
        // SAFETY: as above; the values were there before, or are those after RESET.
        unsafe {
            if components != 0 {
                cpu::xsetbv(0, components);
            }
            self.fpu.restore();
            if components != 0 && self.xcr0 != components {
                cpu::xsetbv(0, self.xcr0);
            }
            if let Some(value) = self.tsc_aux {
                msr::write(msr::TSC_AUX, value);
            }
        }
        cpu::set_breakpoints(self.breakpoints);
    }
}
