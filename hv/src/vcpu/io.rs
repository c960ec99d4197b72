//! IN and OUT. Single accesses go straight to the bus; INS and OUTS are executed by the emulator.

use crate::guest::vm::{HostMemory, Vm};
use crate::vcpu::Vcpu;
use crate::vcpu::bus::Bus;
use crate::vcpu::host::Host;
use crate::vcpu::memory_fault;
use crate::vcpu::outcome::Outcome;
use crate::virt::state::Gpr;
use crate::virt::{IoExit, Virt};

/// Handles an I/O exit.
#[inline]
pub fn io<V: Virt, M: HostMemory, H: Host>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    host: &mut H,
    io: IoExit,
    tsc: u64,
) -> Outcome {
    let (false, Some(next)) = (io.string, io.next_rip) else {
        return memory_fault::emulate(vcpu, vm, host, tsc);
    };
    let mut bus = Bus::new(vm, &mut vcpu.lapic, host, tsc, vcpu.chipset_deadline);
    if io.input {
        let value = u64::from(bus.io_in(io.port, io.size));
        let rax = vcpu.virt.gpr(Gpr::Rax);
        // Writing 32 bits clears the upper half; 8 and 16 bits leave the rest.
        let rax = match io.size {
            1 => rax & !0xff | value & 0xff,
            2 => rax & !0xffff | value & 0xffff,
            _ => value,
        };
        vcpu.virt.set_gpr(Gpr::Rax, rax);
    } else {
        bus.io_out(io.port, io.size, vcpu.virt.gpr(Gpr::Rax) as u32);
    }
    let left = bus.finish();
    vcpu.after_access(left, Outcome::Next(next))
}
