//! The fast path of accesses to control registers: those that guests repeat, as they were found at the same place before.
//!
//! Part of the run loop, which tells these exits apart by their code. It leaves everything to the common path
//! ([`super::control`]) that may fault, change the kind of paging, or need the guest's memory. What must hold: where this returns a RIP, the access has
//! had the same effect that the common path would have given it. What the guest has taken of interrupts is noted at the next exit
//! of another kind, as after CPUID. Where the processor intercepts single bits (VT-x), few of these accesses exit, and none
//! come here.

use crate::arch::RegMove;
use crate::arch::state::{Gpr, cr0, cr4, efer};
use crate::vcpu::control::{register, store_status};
use crate::vcpu::next_rip::{ControlAccess, FoundControl};
use crate::vcpu::{Vcpu, mmu};
use crate::virt::exit::control;
use crate::virt::{FlushScope, Virt};
use crate::vm::{HostMemory, Vm};

/// Executes an access ([`control`]'s number) with this operand, if the processor tells it; RIP after it. `None`: nothing has
/// been done.
#[inline(always)]
pub fn execute<V: Virt, M: HostMemory>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    number: u8,
    gpr: Option<Gpr>,
) -> Option<u64> {
    match (number, gpr) {
        // CR3 has no fast path, and is not to be looked up twice.
        (control::CR3_READ | control::CR3_WRITE, _) => None,
        (_, None) => {
            let found = *vcpu.next_rips.known_control(&vcpu.virt, number)?;
            execute_found(vcpu, vm, found)
        }
        (_, Some(gpr)) => execute_named(vcpu, vm, control::access(number, Some(gpr)), gpr),
    }
}

/// The same with an operand that the processor tells.
#[inline(never)]
fn execute_named<V: Virt, M: HostMemory>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    exit: RegMove,
    gpr: Gpr,
) -> Option<u64> {
    let next = vcpu.virt.next_rip()?;
    let mask = if vcpu.virt.is_64bit() { u64::MAX } else { 0xffff_ffff };
    let RegMove { index, write, .. } = exit;
    let access = if write { ControlAccess::Write { index, gpr } } else { ControlAccess::Read { index, gpr } };
    execute_found(vcpu, vm, FoundControl { access, next, mask })
}

#[inline(always)]
fn execute_found<V: Virt, M: HostMemory>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    found: FoundControl,
) -> Option<u64> {
    let FoundControl { access, next, mask } = found;
    match access {
        ControlAccess::Write { index: 4, gpr } => write_cr4(vcpu, vm, vcpu.virt.gpr(gpr) & mask)?,
        ControlAccess::Write { index: 0, gpr } => write_cr0(vcpu, vm, vcpu.virt.gpr(gpr) & mask)?,
        ControlAccess::Read { index, gpr } => {
            let value = register(&vcpu.virt, index)?;
            vcpu.virt.set_gpr(gpr, value);
        }
        ControlAccess::StoreStatus(gpr, size) => store_status(vcpu, gpr, size),
        ControlAccess::Clts => write_cr0(vcpu, vm, vcpu.virt.cr0() & !cr0::TS)?,
        _ => return None,
    }
    Some(next)
}

/// A change of bits that no rule of CR0 connects with others, nor with other registers.
#[inline(always)]
fn write_cr0<V: Virt, M: HostMemory>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    value: u64,
) -> Option<()> {
    const FREE: u64 = cr0::MP | cr0::EM | cr0::TS | cr0::NE | cr0::WP | cr0::AM;
    let old = vcpu.virt.cr0();
    // ET is always set, whatever is written.
    let changed = (old ^ value) & !cr0::ET;
    if changed & !FREE != 0 {
        return None;
    }
    vcpu.virt.set_cr0(old ^ changed);
    if changed & cr0::WP != 0 {
        // The TLB has rights that no longer hold, and shadow tables have another root: most often the one before.
        vcpu.virt.flush(FlushScope::All);
        if !V::UNRESTRICTED {
            vcpu.request_root();
        } else if vcpu.mmu.is_shadow() && !mmu::load_recent(vcpu, vm, old ^ changed) {
            mmu::load(vcpu, vm);
        }
    }
    Some(())
}

/// A change of PGE, by which kernels flush everything.
#[inline(always)]
fn write_cr4<V: Virt, M: HostMemory>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    value: u64,
) -> Option<()> {
    let changed = vcpu.virt.cr4() ^ value;
    // Where the processor keeps page-directory pointers, this loads them.
    let loads_pointers = V::HAS_PDPTRS && value & cr4::PAE != 0 && vcpu.virt.efer() & efer::LMA == 0;
    // All other bits are those that the guest has, and so may have.
    let has_pge = vcpu.cpuid.limits().cr4 & cr4::PGE != 0;
    if changed & !cr4::PGE != 0 || !has_pge || loads_pointers {
        return None;
    }
    vcpu.virt.set_cr4(value);
    if changed != 0 {
        // Global translations go, too (AMD APM 2, 5.5.2).
        vcpu.virt.flush(FlushScope::All);
        if !V::UNRESTRICTED {
            vcpu.request_root();
        } else if vcpu.mmu.is_shadow() && !mmu::flushed_by_guest(vcpu, vm) {
            mmu::load(vcpu, vm);
        }
    }
    Some(())
}
