//! A PCPU that has no VCPU to run: it halts until an interrupt, and looks at what has come.

use super::backend::Backend;
use super::pcpu::Pcpu;
use crate::boot::percpu::work;
use crate::hw::{cpu, lapic};
use crate::vcpu::host::Host as _;
use crate::vm::work as vcpu_work;

/// How long a PCPU halts that waits for something of which no interrupt tells.
const MOMENT_MS: u64 = 1;

impl<B: Backend, const LAB: bool> Pcpu<B, LAB> {
    /// Waits until there may be something to do.
    pub fn idle(&mut self) {
        self.send_records();
        self.idle_until(u64::MAX);
    }

    /// Sends samples and traces where pal does not take them out of memory, until there is something to do.
    fn send_records(&mut self) {
        let Some(records) = self.machine.records.as_ref().filter(|_| self.is_first()) else { return };
        while !self.is_wanted() && !self.has(work::CONSOLE | work::TIMER) && records.send_one() {}
    }

    /// Waits for a moment.
    pub fn idle_briefly(&mut self) {
        self.idle_until(self.tsc().saturating_add(self.machine.khz * MOMENT_MS));
    }

    /// Waits until there may be something to do, but not longer than this.
    fn idle_until(&mut self, deadline: u64) {
        // Its timer may be early, most of all where time is modelled. The scheduler is not asked then: its lock is what a VCPU may wait
        // for that is to go on here.
        while self.halt_until(deadline) == work::TIMER && !self.is_wanted() && self.tsc() < deadline {}
    }

    /// Halts until an interrupt, which should be the timer's then if none comes before; what interrupts have noted.
    fn halt_until(&mut self, deadline: u64) -> u32 {
        // Before the last look: an interrupt that comes after the look ends the HLT, whose STI lets it in.
        self.arm(deadline, true);
        if let Some(time) = self.lab_time() {
            time.look(self.cpu.index);
        }
        if self.is_wanted() || self.has(work::CONSOLE | work::TIMER) {
            return self.look();
        }
        // QEMU's emulation may have overlooked an interrupt at the last VMRUN; halted, nothing would make it look.
        lapic::look_again();
        // Here it costs no time: whatever ends the halt does not wait for it.
        if self.has_counters() {
            let counts = self.counters();
            let spent = self.host_spent();
            self.moves.halts(counts, spent);
        }
        if let Some(time) = self.lab_time() {
            time.halt(self.cpu.index);
        }
        // SAFETY: the IDT is loaded and no lock is held that a handler takes (handlers take none).
        unsafe { cpu::wait_for_interrupt() }
        if let Some(time) = self.pcpu_time() {
            time.resume(self.cpu.index);
        }
        self.look()
    }

    /// Acts upon what interrupts have noted, and returns it.
    pub(super) fn look(&mut self) -> u32 {
        let noted = self.cpu.take_pending();
        if noted & work::TIMER != 0 {
            self.armed = u64::MAX;
        }
        if noted & work::CONSOLE != 0 {
            self.drain_console();
        }
        noted
    }

    /// Takes what was typed, and tells the guest that has the console.
    pub fn drain_console(&self) {
        let console = &self.machine.console;
        if console.drain()
            && let Some(guest) = self.machine.guest(console.focus() as usize)
            && let Some(first) = guest.vm.mailboxes.first()
        {
            first.request(vcpu_work::CONSOLE);
            self.wake_vcpu(first);
        }
    }
}
