//! The guest's console: input that waits for room, output that was held back.

use crate::device::Nanos;
use crate::device::chipset::Chipset;
use crate::device::message::Messages;
use crate::vcpu::Vcpu;
use crate::vcpu::host::Host;
use crate::virt::Virt;
use crate::vm::work;
use crate::vm::{HostMemory, Vm};

/// Passes console input to the guest's console: its virtio console if it uses one, else its serial port.
pub(super) fn feed<V: Virt, M: HostMemory, H: Host>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    host: &mut H,
) {
    if let Some(room) = vm.virtio.console_room() {
        (0..room).map_while(|_| host.console_read()).for_each(|byte| vm.virtio.console_input(byte));
        return;
    }
    let mut messages = Messages::new();
    let mut chipset = vm.chipset.lock();
    while chipset.console_room() > 0
        && let Some(byte) = host.console_read()
    {
        let _has_room = chipset.console_input(byte, vm.nanos(host.tsc()), &mut messages);
        vcpu.receive(&vm.mailboxes, &mut messages);
    }
    vcpu.request(work::INTERRUPTS | work::TIMERS);
}

/// Sends what the guest's serial port has held back while the console took no more output, if it does again.
#[cold]
pub(super) fn resume_output<V: Virt, M: HostMemory, H: Host>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    chipset: &mut Chipset,
    now: Nanos,
    host: &mut H,
) {
    if !host.console_writable() {
        return;
    }
    chipset.set_console_ready(true);
    let mut messages = Messages::new();
    while let Some(byte) = chipset.console_backlog(now, &mut messages) {
        let more = host.console_write(byte);
        chipset.set_console_ready(more);
        vcpu.receive(&vm.mailboxes, &mut messages);
    }
    vcpu.request(work::INTERRUPTS);
}
