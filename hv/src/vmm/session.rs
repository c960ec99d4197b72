//! A monitor session, on the first PCPU: the selected VM is paused, the others run.
//!
//! Between keys the PCPU runs VCPUs as usual ([`Worker::turn`]). So it does while it waits for a VM to be descheduled, started or
//! freed, but then it halts only briefly ([`Worker::brief_turn`]), because no interrupt reports these events.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use super::backend::Backend;
use super::guest::{DescheduledVcpu, Guest};
use super::memory::HostMemory;
use super::state::{AdminState, Order};
use super::worker::Worker;
use crate::mem::frame_record::{self, Records};
use crate::mem::tier::Tiers;
use crate::mem::{frame, heap};
use crate::monitor::view::{HostReport, View};
use crate::monitor::vms::{Action, Look, Refused, State, Summary, Vms};
use crate::monitor::{Key, Terminal};
use crate::vcpu::outcome::Stop;

/// The machine as the monitor uses it during a session.
struct Session<'a, B: Backend, const LAB: bool> {
    worker: &'a mut Worker<B, LAB>,
    /// The selected VM, which is paused.
    selected: Option<usize>,
}

impl<B: Backend, const LAB: bool> Session<'_, B, LAB> {
    /// Pauses a VM and waits until it is descheduled; it stays so until [`Session::resume`]. `None`: it is absent.
    fn pause_and_wait(&mut self, vm: usize) -> Option<Arc<Guest<B>>> {
        let machine = self.worker.machine;
        loop {
            let guest = machine.guest(vm)?;
            // A PCPU that restarts or starts it holds the lock and resumes its VCPUs: pause them again after that.
            let is_paused = guest.lifecycle_lock.try_lock().is_some_and(|_lifecycle_lock| {
                machine.pause(&guest);
                // One that is stopping is about to be ended or restarted by the PCPU that its last VCPU leaves: not a
                // moment to look at it.
                machine.is_descheduled(&guest) && !guest.is_stopping()
            });
            if is_paused {
                return Some(guest);
            }
            drop(guest);
            self.worker.brief_turn();
        }
    }

    /// Stops a descheduled VM, and ends or restarts it.
    fn stop(&mut self, guest: &Arc<Guest<B>>, stop: Stop) {
        self.worker.machine.stop(guest, stop);
        self.worker.machine.reap(guest);
    }

    /// Restarts a descheduled VM, and waits until it runs.
    fn restart(&mut self, guest: &Arc<Guest<B>>) {
        self.stop(guest, Stop::Restart);
        // The VM's first VCPU clears its memory, in turns like any other's, on whichever PCPU takes it.
        while guest.is_restarting() {
            self.worker.brief_turn();
        }
    }

    /// Resumes a VM, unless it is selected, paused or powered off.
    fn resume(&self, vm: usize, guest: &Guest<B>) {
        if self.selected != Some(vm) && guest.admin_state() == AdminState::Running {
            self.worker.machine.resume(guest);
        }
    }

    /// Waits until the memory of an ended VM is free.
    fn wait_for_memory(&mut self, vm: usize) {
        while self.worker.machine.entries[vm].memory_refs.load(Ordering::SeqCst) != 0 {
            self.worker.brief_turn();
        }
    }

    /// Calls `f` with a descheduled VM and its VCPUs, which are taken out of their places meanwhile.
    fn with_view<R>(
        &mut self,
        guest: &Guest<B>,
        f: impl FnOnce(&mut View<'_, B::Virt, HostMemory>) -> R,
    ) -> R {
        let (mut vcpus, contexts): (Vec<_>, Vec<_>) =
            guest.take_vcpus().into_iter().map(|descheduled| (descheduled.vcpu, descheduled.context)).unzip();
        let machine = self.worker.machine;
        let tsc = machine.now();
        let (vm, started) = (&guest.vm, guest.started());
        let result = f(&mut View { vm, vcpus: &mut vcpus, started, tsc, clock: &|| machine.now() });
        let descheduled =
            vcpus.into_iter().zip(contexts).map(|(vcpu, context)| DescheduledVcpu { vcpu, context });
        guest.put_vcpus(descheduled.collect());
        result
    }
}

impl<B: Backend, const LAB: bool> Terminal for Session<'_, B, LAB> {
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

impl<B: Backend, const LAB: bool> Vms for Session<'_, B, LAB> {
    type Virt = B::Virt;
    type Memory = HostMemory;

    fn count(&self) -> usize {
        self.worker.machine.entries.len()
    }

    fn name(&self, vm: usize) -> &str {
        self.worker.machine.name(vm as u32)
    }

    fn tsc_khz(&self) -> u64 {
        self.worker.machine.khz
    }

    fn console(&self) -> usize {
        self.worker.machine.console.focus() as usize
    }

    fn set_console(&mut self, vm: usize) {
        self.worker.machine.console.set_focus(vm as u32);
    }

    fn state(&self, vm: usize) -> State {
        match self.worker.machine.guest(vm).map(|guest| guest.admin_state()) {
            None => State::Absent,
            Some(AdminState::Running) => State::Running,
            Some(AdminState::Paused) => State::Paused,
            Some(AdminState::Off) => State::Stopped,
        }
    }

    fn select(&mut self, vm: usize) {
        if self.selected != Some(vm) {
            self.deselect();
        }
        self.selected = Some(vm);
        let _paused = self.pause_and_wait(vm);
    }

    fn deselect(&mut self) {
        let Some(vm) = self.selected.take() else { return };
        if let Some(guest) = self.worker.machine.guest(vm) {
            self.resume(vm, &guest);
        }
    }

    fn summary(&mut self, vm: usize) -> Option<Summary> {
        let guest = self.pause_and_wait(vm)?;
        let sched = &self.worker.machine.sched;
        let now = self.worker.machine.now();
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
        self.resume(vm, &guest);
        Some(summary)
    }

    fn look(&mut self, vm: usize, f: &mut Look<'_, B::Virt, HostMemory>) -> bool {
        let Some(guest) = self.pause_and_wait(vm) else { return false };
        self.with_view(&guest, f);
        self.resume(vm, &guest);
        true
    }

    fn tiers(&self, vm: usize, f: &mut dyn FnMut(&Tiers)) -> bool {
        // The reference to the VM keeps another one from taking its place meanwhile.
        let guest = self.worker.machine.guest(vm);
        let tiers = guest.as_ref().and_then(|guest| guest.vm.tiers.as_deref());
        tiers.map(f).is_some()
    }

    fn act(&mut self, action: Action, vm: usize) -> Result<(), Refused> {
        let machine = self.worker.machine;
        let Some(guest) = self.pause_and_wait(vm) else {
            if action != Action::Start {
                return Err(Refused::Absent);
            }
            // Its name is free at once, its memory only with the last reference; a start in between could fail for want
            // of it.
            self.wait_for_memory(vm);
            machine.start(vm).map_err(Refused::Failed)?;
            // If all VMs had ended, no VM has the console.
            if machine.guest(self.console()).is_none() {
                self.set_console(vm);
            }
            return Ok(());
        };
        let order = guest.admin_state().admit(action);
        // It was paused only to be asked.
        if matches!(order, Err(Refused::Runs)) {
            self.resume(vm, &guest);
        }
        match order? {
            Order::Stop(Stop::Restart) => self.restart(&guest),
            Order::Stop(stop) => {
                self.stop(&guest, stop);
                drop(guest);
                if action == Action::Destroy {
                    self.wait_for_memory(vm);
                }
            }
            Order::Set(admin_state) => {
                guest.set_admin_state(admin_state);
                self.resume(vm, &guest);
            }
        }
        // If the selected VM was restarted, pause it again.
        if self.selected == Some(vm) {
            let _paused = self.pause_and_wait(vm);
        }
        Ok(())
    }
}

impl<B: Backend, const LAB: bool> Worker<B, LAB> {
    /// Runs a monitor session. On the first PCPU.
    pub(super) fn monitor_session(&mut self) {
        let machine = self.machine;
        machine.console.enter_monitor();
        // The machine must not end with its last guest now: the operator may start another.
        machine.get();
        // Its history outlasts the session.
        let mut monitor = core::mem::take(&mut self.monitor);
        let mut on = Session { worker: self, selected: None };
        let pcpus = machine.sched.topology().all().len();
        monitor.enter(&mut on, || host_report(machine.khz, pcpus));
        self.monitor = monitor;
        machine.console.leave_monitor();
        self.pcpu.drain_console();
        machine.put();
    }
}

/// The facts about the host; `pcpus` is the number of PCPUs that run guests.
fn host_report(tsc_khz: u64, pcpus: usize) -> HostReport {
    let kinds = frame_record::all().map(Records::census);
    HostReport { tsc_khz, pcpus, frames: frame::stats(), kinds, heap_bytes: heap::bytes() }
}
