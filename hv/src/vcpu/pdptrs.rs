//! The page-directory pointers of PAE paging on processors that keep them in registers (VT-x): what loads them is executed
//! in software where CR0, CR3 and CR4 are intercepted. Intel SDM 3, 4.4.1.

use crate::arch::addr::Gpa;
use crate::mem::guest_memory::GuestMemory;
use crate::paging::format::x86::PRESENT;
use crate::paging::guest_walk::{PagingKind, PagingState, pointer_reserved};
use crate::vcpu::Vcpu;
use crate::virt::Virt;
use crate::vm::{HostMemory, Vm};

/// Loads the pointers for registers that are about to become `state`, if that has PAE paging. False: they are invalid, the
/// instruction is #GP(0), and nothing has changed.
#[must_use]
pub(super) fn load<V: Virt, M: HostMemory>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    state: &PagingState,
) -> bool {
    if !V::HAS_PDPTRS || state.kind() != PagingKind::Pae {
        return true;
    }
    let (root, reserved) = (state.cr3 & 0xffff_ffe0, pointer_reserved(state));
    let mut pointers = [0; 4];
    {
        let memory = vm.read_memory(&mut vcpu.work);
        for (at, pointer) in (root..).step_by(8).zip(&mut pointers) {
            // Where there is no memory all bits are ones.
            *pointer = memory.ram().read_u64(Gpa(at)).unwrap_or(u64::MAX);
        }
    }
    let valid = pointers.iter().all(|pointer| pointer & PRESENT == 0 || pointer & reserved == 0);
    if valid {
        vcpu.virt.set_pointers(pointers);
    }
    valid
}
