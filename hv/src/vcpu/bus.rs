//! One VCPU's way to devices: ports and MMIO, with the effects of each access carried out.
//!
//! The dispatcher uses it for single IN and OUT, the emulator (through [`super::port`]) for everything else.

use core::sync::atomic::Ordering;

use spin::RwLockReadGuard;

use crate::arch::addr::{Gpa, Hpa, PageSize};
use crate::device::Nanos;
use crate::device::chipset::Chipset;
use crate::device::effect::Effect;
use crate::device::lapic::{Lapic, LapicEffect};
use crate::device::message::Messages;
use crate::paging::format::{NestedAttr, PteFormat};
use crate::paging::range::{Flush, GpaRange};
use crate::paging::shadow::TlbFlush;
use crate::paging::{P2m, P2mEntry};
use crate::vcpu::Vcpu;
use crate::vcpu::host::Host;
use crate::vcpu::mmu::follow_changes;
use crate::vcpu::outcome::{Outcome, Stop};
use crate::virt::Virt;
use crate::vm::covered::Covered;
use crate::vm::mailbox::Mailbox;
use crate::vm::work;
use crate::vm::{HostMemory, MapChanges, Memory, Vm};

/// Accesses to devices on behalf of one VCPU, at one moment.
pub struct Bus<'a, F: PteFormat<Attr = NestedAttr>, M: HostMemory, H: Host> {
    /// The VM.
    pub vm: &'a Vm<F, M>,
    /// The VCPU's local APIC.
    pub lapic: &'a mut Lapic,
    /// The PCPU.
    pub host: &'a mut H,
    /// Host TSC of the exit.
    pub tsc: u64,
    /// The VCPU.
    pub vcpu: u32,
    pub(super) left: Left,
}

/// What accesses leave to do for the VCPU: see [`Vcpu::after_access`].
#[must_use]
#[derive(Debug, Default)]
pub struct Left {
    pub(super) messages: Messages,
    pub(super) work: u32,
    stop: Option<Stop>,
    pub(super) changes: MapChanges,
    readdressed: bool,
}

impl<V: Virt> Vcpu<V> {
    /// Routes and notes what device accesses left. `outcome` stands unless they ended the run.
    #[inline(always)]
    pub fn after_access(&mut self, all: &[Mailbox], mut left: Left, outcome: Outcome) -> Outcome {
        if !left.messages.is_empty() {
            self.receive(all, &mut left.messages);
        }
        if left.readdressed {
            all[self.id as usize].readdress(&self.lapic);
        }
        self.request(left.work);
        follow_changes(self, left.changes);
        match left.stop {
            Some(stop) => Outcome::Stop(stop),
            None => outcome,
        }
    }
}

impl<'a, F: PteFormat<Attr = NestedAttr>, M: HostMemory, H: Host> Bus<'a, F, M, H> {
    /// A bus for one exit.
    #[inline(always)]
    pub fn new(vm: &'a Vm<F, M>, lapic: &'a mut Lapic, host: &'a mut H, tsc: u64) -> Self {
        let vcpu = lapic.id();
        Bus { vm, lapic, host, tsc, vcpu, left: Left::default() }
    }

    /// Goes on after an access to the chipset that was made without a bus.
    pub(super) fn after(mut self, effect: Effect, messages: Messages) -> Left {
        self.left.messages = messages;
        self.left.work |= work::TIMERS | work::INTERRUPTS | work::CONSOLE;
        self.perform(effect);
        self.left
    }

    /// The VM's memory, locked for reading. Must not be taken twice: a writer that waits in between would deadlock both.
    #[inline(always)]
    pub(super) fn memory(&mut self) -> RwLockReadGuard<'a, Memory<F, M>> {
        self.vm.read_memory(&mut self.left.work)
    }

    /// Ends the accesses.
    #[inline(always)]
    pub fn finish(mut self) -> Left {
        self.note_pager();
        self.left
    }

    /// After accesses to guest memory.
    #[inline(always)]
    pub(super) fn note_pager(&mut self) {
        if self.vm.wants_pager() {
            self.left.work |= work::PAGER;
        }
    }

    /// Whether the accesses so far left interrupt messages to route, a flush, or the end of the run, or have taken long.
    #[inline]
    pub fn has_urgent_work(&self) -> bool {
        !self.left.messages.is_empty()
            || self.left.stop.is_some()
            || self.left.changes.flush
            || self.is_late()
    }

    /// Whether the exit has taken a sixteenth of a millisecond: the run loop should check soon whether the PCPU is needed otherwise.
    #[inline]
    pub(super) fn is_late(&self) -> bool {
        self.host.tsc().wrapping_sub(self.tsc) > self.vm.clock.tsc_khz() / 16
    }

    /// One access to the chipset; notes what the run loop must look at afterwards.
    #[inline(always)]
    fn chipset<R>(&mut self, access: impl FnOnce(&mut Chipset, Nanos, &mut Messages) -> R) -> R {
        let now = self.vm.nanos(self.tsc);
        let mut chipset = self.vm.chipset.lock();
        let result = access(&mut chipset, now, &mut self.left.messages);
        if chipset.wants_service() {
            self.left.work |= work::TIMERS | work::INTERRUPTS;
        }
        result
    }

    /// Reads `size` bytes (1, 2 or 4) from a port.
    #[inline]
    pub fn io_in(&mut self, port: u16, size: u8) -> u32 {
        let value = self.chipset(|chipset, now, messages| chipset.io_read(port, size, now, messages));
        // A read may have made room for console input that waits.
        if self.host.console_ready() {
            self.left.work |= work::CONSOLE;
        }
        value
    }

    /// Writes the low `size` bytes of `value` to a port.
    #[inline]
    pub fn io_out(&mut self, port: u16, size: u8, value: u32) {
        let effect =
            self.chipset(|chipset, now, messages| chipset.io_write(port, size, value, now, messages));
        self.perform(effect);
    }

    /// Reads from a device's registers; addresses that no device claims read as ones.
    pub fn mmio_read(&mut self, gpa: Gpa, buf: &mut [u8]) {
        for (i, part) in buf.chunks_mut(8).enumerate() {
            let at = gpa.wrapping_add(i as u64 * 8);
            let value = match self.lapic_offset(at) {
                Some(offset) => u64::from(self.lapic_read(offset)),
                None if self.read_beneath(at, part) => continue,
                None => self
                    .chipset(|chipset, now, messages| chipset.mmio_read(at, part.len() as u8, now, messages)),
            };
            part.copy_from_slice(&value.to_le_bytes()[..part.len()]);
        }
    }

    /// Writes to a device's registers; addresses that no device claims ignore it.
    pub fn mmio_write(&mut self, gpa: Gpa, data: &[u8]) {
        for (i, part) in data.chunks(8).enumerate() {
            let at = gpa.wrapping_add(i as u64 * 8);
            let mut bytes = [0; 8];
            bytes[..part.len()].copy_from_slice(part);
            let value = u64::from_le_bytes(bytes);
            match self.lapic_offset(at) {
                Some(offset) => {
                    let effect = self.lapic.write(offset, value as u32, self.vm.ticks(self.tsc));
                    self.lapic_effect(effect);
                }
                None if self.write_beneath(at, part) => {}
                None => {
                    let size = part.len() as u8;
                    let effect = self
                        .chipset(|chipset, now, messages| chipset.mmio_write(at, size, value, now, messages));
                    self.perform(effect);
                }
            }
        }
    }

    /// Reads what another VCPU's local APIC covers, if one does.
    #[inline]
    fn read_beneath(&mut self, gpa: Gpa, buf: &mut [u8]) -> bool {
        if !self.vm.covers.load(Ordering::Acquire) {
            return false;
        }
        let memory = self.memory();
        let Some(was) = memory.covered.beneath(gpa) else { return false };
        match was.readable() {
            Some(hpa) => memory.host.read(Hpa(hpa.0 + gpa.offset()), buf),
            None => buf.fill(0xff),
        }
        true
    }

    /// Writes what another VCPU's local APIC covers, if one does.
    #[inline]
    fn write_beneath(&mut self, gpa: Gpa, data: &[u8]) -> bool {
        if !self.vm.covers.load(Ordering::Acquire) {
            return false;
        }
        let memory = self.memory();
        let Some(was) = memory.covered.beneath(gpa) else { return false };
        if let Some(hpa) = was.writable() {
            memory.host.write(Hpa(hpa.0 + gpa.offset()), data);
        }
        true
    }

    /// A read may find the timer expired a moment before the host's interrupts for it.
    fn lapic_read(&mut self, offset: u32) -> u32 {
        let before = self.lapic.deadline();
        let value = self.lapic.read(offset, self.vm.ticks(self.tsc));
        if self.lapic.deadline() != before {
            self.left.work |= work::TIMERS | work::INTERRUPTS;
        }
        value
    }

    fn lapic_offset(&self, gpa: Gpa) -> Option<u32> {
        let page = self.lapic.mmio_page()?;
        (gpa.frame() == page.frame()).then_some(gpa.offset() as u32)
    }

    /// Carries out what the local APIC asks for after a register access.
    #[inline]
    pub fn lapic_effect(&mut self, effect: LapicEffect) {
        self.left.work |= work::TIMERS | work::INTERRUPTS;
        match effect {
            LapicEffect::None => {}
            LapicEffect::Readdressed => self.left.readdressed = true,
            LapicEffect::Ipi(message) => {
                // The sink is empty before each access, so there is room.
                let _ = self.left.messages.push(message);
            }
            LapicEffect::EoiBroadcast(vector) => {
                self.chipset(|chipset, _, messages| chipset.eoi(vector, messages));
            }
        }
    }

    #[inline]
    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::None => {}
            Effect::ConsoleOutput(byte) => {
                if !self.host.console_write(byte) {
                    self.vm.chipset.lock().set_console_ready(false);
                    self.left.work |= work::TIMERS;
                }
            }
            Effect::Reset => self.left.stop = Some(Stop::Reset),
            Effect::PowerOff => self.left.stop = Some(Stop::PowerOff),
            Effect::TestExit(value) => self.left.stop = Some(Stop::TestExit(value)),
            Effect::FlushPage(gpa) => self.flush_page(gpa),
            Effect::UnmapPage(gpa) => self.unmap(gpa),
            Effect::Notify { slot, queue } => self.notified(slot, queue),
        }
    }

    /// The test device takes a page away; once, so that a guest cannot make its other VCPUs wait for the memory's lock again and
    /// again. Without memory for the split the page stays, which the guest can see.
    #[cold]
    fn unmap(&mut self, gpa: Gpa) {
        let Some(range) = GpaRange::new(gpa.align_down(4096), 4096) else { return };
        if self.memory().p2m.peek(range.start) == P2mEntry::Hole {
            return;
        }
        let unmap = |p2m: &mut P2m<M>, _: &mut Covered| p2m.unmap(range).map(|changed| [changed].into());
        let Ok(changes) = self.vm.change_map(self.vcpu, &mut self.left.work, unmap) else { return };
        self.left.changes.add(changes);
    }

    /// The test device has the translations of a page dropped, so that the next access faults in the hypervisor and is answered from
    /// the P2m. The P2m is split first: else the fault would fill in the whole large leaf and retire the table below it, and a
    /// guest that does this in a loop would use up the host's memory. Out of memory for the split, nothing is dropped.
    #[cold]
    fn flush_page(&mut self, gpa: Gpa) {
        let Some(range) = GpaRange::new(gpa.align_down(4096), 4096) else { return };
        if self.memory().p2m.peek(range.start).readable().is_none() {
            return;
        }
        let (changed, flush, retired, host) = {
            let mut memory = self.vm.lock_memory(&mut self.left.work);
            if memory.p2m.split(range, PageSize::Size4K).is_err() {
                return;
            }
            // On an error the tables are as they were: the split comes before the removal.
            let flush = memory.nested.forget(range).unwrap_or(Flush::None);
            (memory.p2m.changed_at(range), flush, memory.nested.take_retired(), memory.host.clone())
        };
        let changes = self.vm.translations_changed(self.vcpu, &mut self.left.work, &[changed], flush);
        self.left.changes.add(changes);
        retired.free(&host);
    }

    /// Writes `len` bytes of guest memory on the guest's behalf: it may be one of its tables. Another VCPU that sees what was
    /// written and then flushes does not find what was shadowed before.
    #[inline]
    pub fn write<R>(&mut self, memory: &Memory<F, M>, gpa: Gpa, len: usize, write: impl FnOnce() -> R) -> R {
        let mut shadow = self.vm.lock_shadow(self.vcpu, &mut self.left.work);
        let result = write();
        if let Some(shadow) = &mut *shadow {
            let flush = shadow.written(&memory.p2m, &memory.ram(), gpa, len as u64);
            self.left.changes.flush |= flush != TlbFlush::None;
        }
        result
    }
}
