//! XCR0: what a guest may write. AMD APM 2, 11.5.2.

use crate::arch::Exception;
use crate::arch::state::{Gpr, cr4};
use crate::emulate::System;
use crate::vcpu::Vcpu;
use crate::vcpu::dispatch::next_rip;
use crate::vcpu::host::Host;
use crate::vcpu::outcome::Outcome;
use crate::virt::Virt;
use crate::vm::{HostMemory, Vm};

/// Handles XSETBV.
pub fn xsetbv<V: Virt, M: HostMemory, H: Host>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    host: &mut H,
) -> Outcome {
    let Some(next) = next_rip(vcpu, vm, System::Xsetbv) else { return Outcome::Resume };
    // Processors look at this before the intercept; QEMU's emulation does not.
    if vcpu.virt.cr4() & cr4::OSXSAVE == 0 {
        return Outcome::Inject(Exception::UD);
    }
    let low = |reg| vcpu.virt.gpr(reg) & 0xffff_ffff;
    let value = low(Gpr::Rdx) << 32 | low(Gpr::Rax);
    if vcpu.virt.cpl() != 0 || low(Gpr::Rcx) != 0 || !xcr0_is_valid(value, vcpu.cpuid.limits().xcr0) {
        return Outcome::Inject(Exception::GP0);
    }
    host.set_xcr0(value);
    vcpu.xcr0 = value;
    vcpu.cpuid.refresh(vcpu.virt.cr4(), value);
    Outcome::Next(next)
}

/// The rules of XCR0: x87 always, AVX only with SSE, AVX-512 as a whole and only with AVX.
fn xcr0_is_valid(value: u64, allowed: u64) -> bool {
    const X87: u64 = 1 << 0;
    const SSE: u64 = 1 << 1;
    const AVX: u64 = 1 << 2;
    const AVX512: u64 = 7 << 5;
    value & X87 != 0
        && value & !allowed == 0
        && (value & AVX == 0 || value & SSE != 0)
        && (value & AVX512 == 0 || value & AVX512 == AVX512 && value & AVX != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xcr0_rules() {
        assert!(xcr0_is_valid(1, 7));
        assert!(xcr0_is_valid(7, 7));
        assert!(!xcr0_is_valid(0, 7));
        assert!(!xcr0_is_valid(6, 7));
        assert!(!xcr0_is_valid(5, 7));
        assert!(!xcr0_is_valid(7, 3));
        assert!(xcr0_is_valid(0xe7, 0xe7));
        assert!(!xcr0_is_valid(0x67, 0xe7));
        assert!(!xcr0_is_valid(0xe3, 0xe7));
    }
}
