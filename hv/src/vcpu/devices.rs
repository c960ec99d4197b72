//! Virtio devices at work for a VCPU: their accesses to guest memory (and those of the paravirtual clock), and what serving them
//! leaves to do.
//!
//! A device is served by the VCPU that has notified it, or by one that finds it waiting. Called by [`super::bus`] and
//! [`super::run`]; no lock of the chipset is held.

use core::cell::{Cell, RefCell};

use arrayvec::ArrayVec;

use crate::arch::addr::Gpa;
use crate::device::message::Messages;
use crate::device::virtio::Virtio;
use crate::device::virtio::switch::Woken;
use crate::mem::guest_memory::{GuestMemory, NotRam};
use crate::paging::format::{NestedAttr, PteFormat};
use crate::paging::shadow::TlbFlush;
use crate::vcpu::Vcpu;
use crate::vcpu::bus::Bus;
use crate::vcpu::host::Host;
use crate::vcpu::outcome::Outcome;
use crate::virt::Virt;
use crate::vm::work;
use crate::vm::{HostMemory, MapChanges, Memory, Vm};

/// Writes of one pass that are recorded one by one. After more, all shadow pages are dropped: right, and slower only for a guest
/// that uses shadow tables.
const MOST_WRITES: usize = 64;

/// Guest memory as devices reach it. What they write may be one of the guest's tables: it is recorded, and reported to the
/// shadow engine when the device is unlocked: the holder of the shadow tables may wait, in a shootdown, for a PCPU that waits for the device.
pub(super) struct Dma<'a, F: PteFormat<Attr = NestedAttr>, M: HostMemory> {
    memory: &'a Memory<F, M>,
    written: RefCell<ArrayVec<(Gpa, u64), MOST_WRITES>>,
    too_many: Cell<bool>,
}

impl<F: PteFormat<Attr = NestedAttr>, M: HostMemory> GuestMemory for Dma<'_, F, M> {
    fn read(&self, gpa: Gpa, buf: &mut [u8]) -> Result<(), NotRam> {
        self.memory.ram().read(gpa, buf)
    }

    fn write(&self, gpa: Gpa, buf: &[u8]) -> Result<(), NotRam> {
        let result = self.memory.ram().write(gpa, buf);
        // Part of it may have been written on an error, too.
        if self.written.borrow_mut().try_push((gpa, buf.len() as u64)).is_err() {
            self.too_many.set(true);
        }
        result
    }

    fn compare_exchange(&self, gpa: Gpa, _: usize, _: u64, _: u64) -> Result<bool, NotRam> {
        // No device needs it.
        Err(NotRam { gpa })
    }
}

/// Serves the devices that have something to do without the guest's asking. What they leave waits for the next pass.
#[cold]
pub(super) fn serve<V: Virt, M: HostMemory, H: Host>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    host: &mut H,
) {
    vcpu.work &= !work::DEVICES;
    let tsc = host.tsc();
    let mut bus = Bus::new(vm, &mut vcpu.lapic, host, tsc);
    bus.serve_waiting();
    let left = bus.finish();
    let _goes_on = vcpu.after_access(&vm.mailboxes, left, Outcome::Resume);
    vcpu.request(work::INTERRUPTS | work::TIMERS);
}

impl<F: PteFormat<Attr = NestedAttr>, M: HostMemory, H: Host> Bus<'_, F, M, H> {
    /// The guest's driver has notified a queue.
    #[cold]
    pub(super) fn notified(&mut self, slot: u8, queue: u8) {
        self.with_devices(|devices, memory, messages| devices.serve(slot, queue, memory, messages));
        // The guest may have made room for input that waits.
        if self.host.console_ready() {
            self.left.work |= work::CONSOLE;
        }
    }

    /// Serves the devices that have waited for it, once each, as far as there is time.
    fn serve_waiting(&mut self) {
        for _ in 0..self.vm.virtio.waiting() {
            self.with_devices(|devices, memory, messages| devices.serve_next(memory, messages));
            if self.is_late() {
                break;
            }
        }
    }

    pub(super) fn with_devices(
        &mut self,
        serve: impl FnOnce(&Virtio, &Dma<'_, F, M>, &mut Messages) -> Woken,
    ) {
        let vm = self.vm;
        let woken = self.with_memory(|dma, messages| serve(&vm.virtio, dma, messages));
        self.show_console();
        // Served, devices only assert lines. One that was asserted before may have fallen meanwhile, and been carried on so.
        if vm.virtio.lines() != 0 {
            vm.chipset.lock().virtio_lines(&mut self.left.messages);
        }
        if woken != Woken::default() {
            self.host.wake(woken);
        }
        if vm.virtio.wants_service() {
            self.left.work |= work::DEVICES;
        }
        // Pages of the balloon: with no lock held.
        if vm.virtio.has_named() {
            self.left.work |= work::PAGER;
        }
    }

    /// Lets `access` read and write guest memory; afterwards the shadow tables know what it has written.
    pub(super) fn with_memory<R>(&mut self, access: impl FnOnce(&Dma<'_, F, M>, &mut Messages) -> R) -> R {
        let memory = self.memory();
        let dma = Dma { memory: &memory, written: RefCell::default(), too_many: Cell::new(false) };
        let result = access(&dma, &mut self.left.messages);
        self.tell_written(&dma);
        self.note_pager();
        result
    }

    /// Tells the shadow tables what a device has written.
    fn tell_written(&mut self, dma: &Dma<'_, F, M>) {
        if let Some(shadow) = &mut *self.vm.lock_shadow(self.vcpu, &mut self.left.work) {
            if dma.too_many.get() {
                let (_reload, _everything) = shadow.drop_everything();
                self.left.changes = MapChanges { flush: true, root: true };
                return;
            }
            for (gpa, len) in &*dma.written.borrow() {
                let flush = shadow.written(&dma.memory.p2m, &dma.memory.ram(), *gpa, *len);
                self.left.changes.flush |= flush != TlbFlush::None;
            }
        }
    }

    /// Shows what the guest has written to the console device, as far as the host's console takes it. One VCPU at a time, with the
    /// chipset locked: bytes that two take out at once would be shown in any order.
    fn show_console(&mut self) {
        if !self.vm.virtio.has_output() {
            return;
        }
        let mut chipset = self.vm.chipset.lock();
        while chipset.console_is_ready()
            && let Some(byte) = self.vm.virtio.console_output()
        {
            if !self.host.console_write(byte) {
                chipset.set_console_ready(false);
                self.left.work |= work::TIMERS;
            }
        }
    }
}
