//! Code that an emulation goes on executing after the guest has overwritten it.
//!
//! QEMU before version 8.1 may keep a translation of instructions that another processor overwrites while it translates them
//! (docs/qemu.md). Linux then loops for ever: where it patches its own code there is INT3 for a moment, and a processor that has kept
//! that takes #BP, finds nothing to do, and executes the same again. It does so at each boot with several processors.
//!
//! Any later write to the place makes the emulation translate it again. So dispatch calls this at interrupts of the host: where a
//! VCPU is found at the same instruction twice in a row, its code is written with what it is.

use crate::arch::Access;
use crate::arch::addr::{Gpa, Gva};
use crate::emulate::current_key;
use crate::mem::guest_memory::GuestMemory;
use crate::paging::guest_walk::{self, PagingState};
use crate::vcpu::Vcpu;
use crate::virt::Virt;
use crate::vm::{HostMemory, Vm};

/// Looks at where a host interrupt found the guest; whether its code there was written.
#[cold]
#[inline(never)]
pub fn renew<V: Virt, M: HostMemory>(vcpu: &mut Vcpu<V>, vm: &Vm<V::NestedFormat, M>) -> bool {
    let at = current_key(&vcpu.virt).linear;
    if core::mem::replace(&mut vcpu.interrupted_at, at) != at {
        return false;
    }
    let access = if vcpu.virt.cpl() == 3 { Access::FETCH.user() } else { Access::FETCH };
    let paging = PagingState::of(&vcpu.virt, vm.paging_features);
    // While the memory map changes: the next interrupt will do.
    let Some(memory) = vm.memory.try_read() else { return false };
    let ram = memory.ram();
    let Ok(found) = guest_walk::peek(&paging, &ram, Gva(at), access) else { return false };
    let word = Gpa(found.gpa.0 & !3);
    // The guest may write there at the same time, so nothing but what is there may be written. ROM never changes.
    ram.read_u32(word).is_ok_and(|now| ram.compare_exchange(word, 4, now.into(), now.into()) == Ok(true))
}
