//! Control registers and XCR0: what a guest may write, and what follows from it.
//!
//! In nested mode only writes of CR4 come here (and of CR8 on processors that misjudge it); the rest of the rules serve
//! the modes that watch more. AMD APM 2, 3.1; 11.5.2 for XCR0.

use crate::guest::vm::{HostMemory, Vm};
use crate::vcpu::dispatch::{died, next_rip};
use crate::vcpu::emulate::{MAX_LEN, Mode, System, decode, register_move};
use crate::vcpu::host::Host;
use crate::vcpu::outcome::{Cause, Outcome};
use crate::vcpu::port;
use crate::vcpu::{Vcpu, work};
use crate::virt::state::{Gpr, cr0, cr4, efer};
use crate::virt::{Exception, FlushScope, RegMove, Virt};

/// Handles a MOV to or from a control register.
pub fn control<V: Virt, M: HostMemory>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    access: RegMove,
) -> Outcome {
    let Some(next) = next_rip(vcpu, vm, System::MovControl) else {
        // CLTS, LMSW and SMSW are not intercepted; a MOV that is no longer there is executed again as what it is now.
        return Outcome::Resume;
    };
    let Some(gpr) = access.gpr.or_else(|| operand(vcpu, vm)) else { return Outcome::Resume };
    match (access.index, access.write) {
        (4, true) => {
            let value = vcpu.virt.gpr(gpr);
            if !vcpu.virt.is_64bit() && value >> 32 != 0 {
                // The upper half of the register is not part of a 32-bit operand.
                return write_cr4(vcpu, value & 0xffff_ffff, next);
            }
            write_cr4(vcpu, value, next)
        }
        (8, true) => {
            let value = vcpu.virt.gpr(gpr);
            if value > 15 {
                return Outcome::Inject(Exception::GP0);
            }
            vcpu.virt.set_task_priority(value as u8);
            vcpu.request(work::INTERRUPTS);
            Outcome::Next(next)
        }
        _ => {
            let what = alloc::format!("unexpected control register access {access:?}");
            Outcome::Stop(died(vcpu, Cause::UnknownExit, what))
        }
    }
}

/// The general-purpose operand, for processors that do not report it.
fn operand<V: Virt, M: HostMemory>(vcpu: &Vcpu<V>, vm: &Vm<V::NestedFormat, M>) -> Option<Gpr> {
    let mut bytes = [0; MAX_LEN];
    let have = port::fetch(&vcpu.virt, vm, &mut bytes);
    register_move(&decode(&bytes[..have], Mode::of(&vcpu.virt)).ok()?)?.gpr
}

fn write_cr4<V: Virt>(vcpu: &mut Vcpu<V>, value: u64, next: u64) -> Outcome {
    let old = vcpu.virt.cr4();
    let long = vcpu.virt.efer() & efer::LMA != 0;
    let starts_pcid = value & !old & cr4::PCIDE != 0;
    if value & !vcpu.cpuid.limits().cr4 != 0
        || long && value & cr4::PAE == 0
        || starts_pcid && (!long || vcpu.virt.cr3() & 0xfff != 0)
        || old & !value & cr4::PCIDE != 0 && vcpu.virt.cr0() & cr0::PG == 0
    {
        return Outcome::Inject(Exception::GP0);
    }
    vcpu.virt.set_cr4(value);
    if (value ^ old) & cr4::OSXSAVE != 0 {
        vcpu.cpuid.refresh(value, vcpu.xcr0);
    }
    // Which changes flush: AMD APM 2, 5.5.2. SMEP, SMAP and PCIDE change what cached entries allow.
    const FLUSHING: u64 = cr4::PGE | cr4::PSE | cr4::PAE | cr4::PCIDE | cr4::SMEP | cr4::SMAP;
    if (value ^ old) & FLUSHING != 0 {
        vcpu.virt.flush(FlushScope::All);
    }
    Outcome::Next(next)
}

/// Handles XSETBV.
pub fn xsetbv<V: Virt, M: HostMemory, H: Host>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    host: &mut H,
) -> Outcome {
    let Some(next) = next_rip(vcpu, vm, System::Xsetbv) else { return Outcome::Resume };
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
