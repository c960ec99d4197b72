//! Short ways of accesses to control registers: those that guests repeat, as they were found at the same place before.
//!
//! Called by the run loop before the common way ([`control`]), which it leaves everything to that may fault, change the
//! kind of paging, or need the guest's memory. What must hold: where this returns a RIP, the access has had the same effect that
//! the common way would have given it. Where the processor intercepts single bits (VT-x), few of these accesses exit.

use crate::arch::RegMove;
use crate::arch::state::{Gpr, cr0, cr4, efer};
use crate::vcpu::control::{register, store_status};
use crate::vcpu::next_rip::{ControlAccess, FoundControl};
use crate::vcpu::{Vcpu, mmu};
use crate::virt::{FlushScope, Virt};
use crate::vm::{HostMemory, Vm};

/// Executes the access that exited as `exit`; RIP after it. `None`: nothing has been done.
#[inline(always)]
pub fn execute<V: Virt, M: HostMemory>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    exit: RegMove,
) -> Option<u64> {
    // CR3 has no short way, and is not to be looked up twice.
    if exit.index == 3 { None } else { execute_known(vcpu, vm, exit) }
}

#[inline(never)]
fn execute_known<V: Virt, M: HostMemory>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    exit: RegMove,
) -> Option<u64> {
    let FoundControl { access, next, mask } = match exit.gpr {
        None => vcpu.next_rips.known_control(&vcpu.virt, exit)?,
        Some(gpr) => named(vcpu, exit, gpr)?,
    };
    match access {
        ControlAccess::Write { index: 0, gpr } => write_cr0(vcpu, vm, vcpu.virt.gpr(gpr) & mask)?,
        ControlAccess::Write { index: 4, gpr } => write_cr4(vcpu, vm, vcpu.virt.gpr(gpr) & mask)?,
        ControlAccess::Read { index, gpr } => {
            let value = register(&vcpu.virt, index)?;
            vcpu.virt.set_gpr(gpr, value);
        }
        ControlAccess::StoreStatus(gpr, size) => store_status(vcpu, gpr, size),
        ControlAccess::Clts => write_cr0(vcpu, vm, vcpu.virt.cr0() & !cr0::TS)?,
        _ => return None,
    }
    vcpu.note_taken();
    Some(next)
}

/// What the processor says itself.
#[inline(always)]
fn named<V: Virt>(vcpu: &Vcpu<V>, exit: RegMove, gpr: Gpr) -> Option<FoundControl> {
    let next = vcpu.virt.next_rip()?;
    let mask = if vcpu.virt.is_64bit() { u64::MAX } else { 0xffff_ffff };
    let RegMove { index, write, .. } = exit;
    let access = if write { ControlAccess::Write { index, gpr } } else { ControlAccess::Read { index, gpr } };
    Some(FoundControl { access, next, mask })
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
        follow_tables(vcpu, vm);
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
    if changed & !cr4::PGE != 0 || value & !vcpu.cpuid.limits().cr4 != 0 || loads_pointers {
        return None;
    }
    vcpu.virt.set_cr4(value);
    if changed != 0 {
        follow_tables(vcpu, vm);
    }
    Some(())
}

/// All translations go, global ones too (AMD APM 2, 5.5.2), and shadow tables have another root: most often the one before.
#[inline(always)]
fn follow_tables<V: Virt, M: HostMemory>(vcpu: &mut Vcpu<V>, vm: &Vm<V::NestedFormat, M>) {
    vcpu.virt.flush(FlushScope::All);
    if !V::UNRESTRICTED {
        vcpu.request_root();
    } else if vcpu.mmu.is_shadow() && !mmu::load_recent(vcpu, vm) {
        mmu::load(vcpu, vm);
    }
}
