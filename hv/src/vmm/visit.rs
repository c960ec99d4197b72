//! A person's visit to the monitor, on the first PCPU: the VM that is looked at stands still, the others go on.
//!
//! While the person thinks, the PCPU works on ([`Worker::turn`]); and also while it waits for a VM to stand still, to begin or to be
//! gone, but then it halts only for moments ([`Worker::brief_turn`]), as nobody would wake it.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use super::backend::Backend;
use super::guest::{Guest, Parked, Rest};
use super::memory::HostMemory;
use super::worker::Worker;
use crate::boot::host::Host;
use crate::hw::cpu;
use crate::mem::{frame, heap};
use crate::monitor::view::{HostReport, View};
use crate::monitor::vms::{Action, Look, Refused, State, Summary, Vms};
use crate::monitor::{Key, Terminal};
use crate::vcpu::outcome::Stop;

/// The monitor's side of a PCPU that goes on working.
struct AtWork<'a, B: Backend> {
    worker: &'a mut Worker<B>,
    /// The VM that is looked at.
    kept: Option<usize>,
}

impl<B: Backend> AtWork<'_, B> {
    /// A VM, made to stand still: it does so from now on until it is let run. `None`: it is not there.
    fn still(&mut self, vm: usize) -> Option<Arc<Guest<B>>> {
        let machine = self.worker.machine;
        loop {
            let guest = machine.guest(vm)?;
            // Whoever lets it start anew or begin holds the lock meanwhile: what has been held before does not count.
            let stands_still = guest.steer.try_lock().is_some_and(|_steer| {
                machine.hold(&guest);
                machine.is_off(&guest) && !guest.has_stopped()
            });
            if stands_still {
                return Some(guest);
            }
            drop(guest);
            self.worker.brief_turn();
        }
    }

    /// A VM that stands still stops, and what follows is seen to.
    fn stop(&mut self, guest: &Arc<Guest<B>>, stop: Stop) {
        self.worker.machine.stop(guest, stop);
        self.worker.machine.look_after(guest);
    }

    /// Starts a VM anew that stands still, and waits until it begins.
    fn restart(&mut self, guest: &Arc<Guest<B>>) {
        self.stop(guest, Stop::Restart);
        while guest.renews() {
            self.worker.brief_turn();
        }
    }

    /// A VM may go on, unless it is looked at or a person wants it to rest.
    fn let_run(&self, vm: usize, guest: &Guest<B>) {
        if self.kept != Some(vm) && guest.rest() == Rest::No {
            self.worker.machine.let_run(guest);
        }
    }

    /// Waits until the memory of a VM that has ended is free again.
    fn wait_for_memory(&mut self, vm: usize) {
        while self.worker.machine.entries[vm].holders.load(Ordering::SeqCst) != 0 {
            self.worker.brief_turn();
        }
    }

    fn with_view<R>(
        &mut self,
        guest: &Guest<B>,
        f: impl FnOnce(&mut View<'_, B::Virt, HostMemory>) -> R,
    ) -> R {
        let (mut vcpus, contexts): (Vec<_>, Vec<_>) =
            guest.take_all().into_iter().map(|parked| (parked.vcpu, parked.context)).unzip();
        let tsc = cpu::rdtsc();
        let (vm, started) = (&guest.vm, guest.started());
        let result = f(&mut View { vm, vcpus: &mut vcpus, started, tsc, clock: &cpu::rdtsc });
        let parked = vcpus.into_iter().zip(contexts).map(|(vcpu, context)| Parked { vcpu, context });
        guest.park_all(parked.collect());
        result
    }
}

impl<B: Backend> Terminal for AtWork<'_, B> {
    fn key(&mut self) -> Key {
        loop {
            if let Some(key) = self.worker.machine.console.key() {
                return key;
            }
            self.worker.turn();
        }
    }

    fn write(&mut self, byte: u8) {
        self.worker.machine.console.show(byte);
    }
}

impl<B: Backend> Vms for AtWork<'_, B> {
    type Virt = B::Virt;
    type Memory = HostMemory;

    fn count(&self) -> usize {
        self.worker.machine.entries.len()
    }

    fn name(&self, vm: usize) -> &str {
        self.worker.machine.name(vm as u32)
    }

    fn tsc_khz(&self) -> u64 {
        self.worker.machine.host.tsc_khz
    }

    fn console(&self) -> usize {
        self.worker.machine.console.focus() as usize
    }

    fn set_console(&mut self, vm: usize) {
        self.worker.machine.console.set_focus(vm as u32);
    }

    fn state(&self, vm: usize) -> State {
        match self.worker.machine.guest(vm).map(|guest| guest.rest()) {
            None => State::Absent,
            Some(Rest::No) => State::Running,
            Some(Rest::Paused) => State::Paused,
            Some(Rest::Off) => State::Stopped,
        }
    }

    fn keep(&mut self, vm: usize) {
        if self.kept != Some(vm) {
            self.release();
        }
        self.kept = Some(vm);
        let _stands_still = self.still(vm);
    }

    fn release(&mut self) {
        let Some(vm) = self.kept.take() else { return };
        if let Some(guest) = self.worker.machine.guest(vm) {
            self.let_run(vm, &guest);
        }
    }

    fn summary(&mut self, vm: usize) -> Option<Summary> {
        let guest = self.still(vm)?;
        let sched = &self.worker.machine.sched;
        let now = cpu::rdtsc();
        let ran =
            guest.handles.iter().filter_map(|handle| sched.status(*handle, now)).map(|s| s.stats.ran).sum();
        let summary = self.with_view(&guest, |view| Summary {
            vcpus: view.vcpus.len(),
            memory_bytes: view.vm.layout.ram_bytes(),
            mode: view.vm.translation.mode(),
            uptime: view.tsc.wrapping_sub(view.started),
            ran,
            exits: view.vcpus.iter().map(|vcpu| vcpu.exits.total().count).sum(),
        });
        self.let_run(vm, &guest);
        Some(summary)
    }

    fn look(&mut self, vm: usize, f: &mut Look<'_, B::Virt, HostMemory>) -> bool {
        let Some(guest) = self.still(vm) else { return false };
        self.with_view(&guest, f);
        self.let_run(vm, &guest);
        true
    }

    fn act(&mut self, action: Action, vm: usize) -> Result<(), Refused> {
        let machine = self.worker.machine;
        let Some(guest) = self.still(vm) else {
            if action != Action::Start {
                return Err(Refused::Absent);
            }
            self.wait_for_memory(vm);
            machine.start(vm).map_err(Refused::Failed)?;
            // Nobody has the console if all had ended.
            if machine.guest(self.console()).is_none() {
                self.set_console(vm);
            }
            return Ok(());
        };
        let rest = guest.rest();
        match action {
            Action::Start if rest != Rest::Off => {
                self.let_run(vm, &guest);
                return Err(Refused::Runs);
            }
            Action::Pause | Action::Resume if rest == Rest::Off => return Err(Refused::Stopped),
            Action::Start | Action::Restart => self.restart(&guest),
            Action::PowerOff => self.stop(&guest, Stop::PowerOff),
            Action::Destroy => {
                self.stop(&guest, Stop::Destroyed);
                drop(guest);
                self.wait_for_memory(vm);
            }
            Action::Stop => guest.set_rest(Rest::Off),
            Action::Pause => guest.set_rest(Rest::Paused),
            Action::Resume => {
                guest.set_rest(Rest::No);
                self.let_run(vm, &guest);
            }
        }
        // One that has started anew stands still again if the person looks at it.
        if self.kept == Some(vm) {
            let _stands_still = self.still(vm);
        }
        Ok(())
    }
}

impl<B: Backend> Worker<B> {
    /// Serves the person at the console. On the first PCPU.
    pub(super) fn visit(&mut self) {
        let machine = self.machine;
        machine.console.enter_monitor();
        // The person may start again what they have taken away.
        machine.stay();
        let mut monitor = core::mem::take(&mut self.monitor);
        let mut on = AtWork { worker: self, kept: None };
        let pcpus = machine.sched.topology().all().len();
        monitor.enter(&mut on, || host_report(machine.host, pcpus));
        self.monitor = monitor;
        machine.console.leave_monitor();
        self.pcpu.drain_console();
        machine.one_less();
    }
}

/// The host for the monitor; guests run on so many PCPUs.
fn host_report(host: &Host, pcpus: usize) -> HostReport {
    HostReport { tsc_khz: host.tsc_khz, pcpus, frames: frame::stats(), heap_bytes: heap::bytes() }
}
