//! IN and OUT. Single accesses go straight to the chipset; INS and OUTS are executed by the emulator.

use crate::arch::state::Gpr;
use crate::device::effect::Effect;
use crate::device::message::Messages;
use crate::vcpu::Vcpu;
use crate::vcpu::bus::Bus;
use crate::vcpu::exit_context::ExitContext;
use crate::vcpu::host::Host;
use crate::vcpu::memory_fault;
use crate::vcpu::outcome::Outcome;
use crate::vcpu::run::complete;
use crate::virt::{IoExit, Virt};
use crate::vm::work;
use crate::vm::{HostMemory, Vm};

/// Handles an I/O exit. `None`: the instruction is complete and nothing is left to do, as after most accesses.
///
/// Not by way of [`ExitContext`]: as separate arguments its parts are in registers here, which spares five instructions.
#[inline]
pub fn io<V: Virt, M: HostMemory, H: Host>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    host: &mut H,
    io: IoExit,
    tsc: u64,
) -> Option<Outcome> {
    let (false, Some(next)) = (io.string, io.next_rip) else {
        return Some(memory_fault::emulate(ExitContext { vcpu, vm, host, tsc }));
    };
    let now = vm.nanos(tsc);
    let rax = vcpu.virt.gpr(Gpr::Rax);
    let mut messages = Messages::new();
    let mut chipset = vm.chipset.lock();
    let effect = if io.input {
        let value = u64::from(chipset.io_read(io.port, io.size, now, &mut messages));
        // Writing 32 bits clears the upper half; 8 and 16 bits leave the rest.
        let rax = match io.size {
            4 => value,
            1 => rax & !0xff | value & 0xff,
            _ => rax & !0xffff | value & 0xffff,
        };
        vcpu.virt.set_gpr(Gpr::Rax, rax);
        Effect::None
    } else {
        chipset.io_write(io.port, io.size, rax as u32, now, &mut messages)
    };
    let quiet = messages.is_empty() && !chipset.wants_service();
    drop(chipset);
    match effect {
        // An input may have made room for console bytes that wait.
        Effect::None if quiet && !host.console_ready() => {}
        Effect::ConsoleOutput(byte) if quiet => {
            if !host.console_write(byte) {
                hold_output(vcpu, vm);
            }
        }
        effect => {
            let left = Bus::new(vm, &mut vcpu.lapic, host, tsc).after(effect, messages);
            return Some(vcpu.after_access(&vm.mailboxes, left, Outcome::Next(next)));
        }
    }
    complete(vcpu, next);
    None
}

/// The host's console takes no more: the guest's port is busy until [`crate::vcpu::run`] finds otherwise.
#[cold]
fn hold_output<V: Virt, M: HostMemory>(vcpu: &mut Vcpu<V>, vm: &Vm<V::NestedFormat, M>) {
    vm.chipset.lock().set_console_ready(false);
    vcpu.request(work::TIMERS);
}
