//! What the lifecycle of a VM asks for ([`super::state`]) is performed here: pause, resume, stop, restart, end.
//!
//! The PCPU that sees the last VCPU of a stopped VM leave performs its end. A restart is work of the VM's first VCPU, in its time
//! slices ([`Machine::restart_step`]). A VM is descheduled once the scheduler says that no PCPU has one of its VCPUs. The monitor's
//! commands come from the first PCPU ([`super::session`]), and apply to descheduled VMs.

use alloc::string::ToString;
use alloc::sync::Arc;
use core::fmt::Display;
use core::sync::atomic::Ordering;

use abi::telemetry::{EndReason, Kind, key};

use super::backend::Backend;
use super::counters;
use super::guest::Guest;
use super::machine::{Machine, STATUS_USAGE};
use super::pcpu::Pcpu;
use super::report::{self, DeathReport};
use super::restart::Step;
use super::state::{Action, End, Event};
use super::telemetry;
use crate::boot::log;
use crate::device::message::Messages;
use crate::guest::build;
use crate::guest::config::VmConfig;
use crate::hw::pm;
use crate::mem::{frame, heap};
use crate::vcpu::host::Host as _;
use crate::vcpu::outcome::Stop;
use crate::vcpu::sampling;

/// A guest died.
const STATUS_DIED: u32 = 3;

impl<B: Backend> Machine<B> {
    /// Pauses the VCPUs of a guest: they leave their PCPUs soon, see [`Machine::is_descheduled`].
    pub fn pause(&self, guest: &Guest<B>) {
        for handle in &guest.handles {
            // A VCPU that is paused already needs no kick.
            if let Ok(kick) = self.sched.pause(*handle, self.now()) {
                self.send(kick);
            }
        }
    }

    /// Whether no PCPU has a VCPU of the guest.
    pub fn is_descheduled(&self, guest: &Guest<B>) -> bool {
        guest.handles.iter().all(|handle| self.sched.runs_on(*handle).is_none())
    }

    /// Resumes the paused VCPUs of a guest, unless it has stopped.
    pub fn resume(&self, guest: &Guest<B>) {
        guest.for_each_runnable(|handle| {
            let now = self.now();
            if let Ok(kick) = self.sched.resume(*handle, now) {
                self.send(kick);
            }
            // Each checks its mailbox and its timers, and may block again.
            self.send(self.sched.wake(*handle, now));
        });
    }

    /// Performs what the lifecycle of a guest asks for.
    pub(super) fn perform(&self, guest: &Guest<B>, action: Action) {
        match action {
            Action::Nothing => {}
            Action::Pause => self.pause(guest),
            Action::Resume => self.resume(guest),
            Action::End(_) | Action::Restart(_) | Action::Step(_) => {
                debug_assert!(false, "{action:?} has a caller of its own");
            }
        }
    }

    /// A guest stops.
    #[cold]
    #[inline(never)]
    pub fn stop(&self, guest: &Guest<B>, stop: Stop) {
        self.perform(guest, guest.on(Event::Stop(stop)));
    }

    /// Ends or restarts a guest that has stopped, once it is descheduled. To be called whenever one of its VCPUs has left a
    /// PCPU.
    #[inline]
    pub fn reap(&self, guest: &Arc<Guest<B>>) {
        if !guest.is_running() && self.is_descheduled(guest) {
            self.finish(guest);
        }
    }

    #[cold]
    #[inline(never)]
    fn finish(&self, guest: &Arc<Guest<B>>) {
        let action = guest.on(Event::Descheduled);
        // Only the monitor can hold the lock here, for a moment: an end or restart is returned to one caller.
        match action {
            Action::End(end) => {
                // The end takes the VCPUs' places and the memory away, which the monitor may be looking at.
                let _lifecycle_lock = guest.lifecycle_lock.lock();
                self.end(guest, end);
            }
            Action::Restart(stop) => {
                let _lifecycle_lock = guest.lifecycle_lock.lock();
                self.perform(guest, guest.on(Event::BeginRestart(stop)));
            }
            other => self.perform(guest, other),
        }
    }

    /// Ends a guest: reports it, and removes it.
    fn end(&self, guest: &Arc<Guest<B>>, end: End) {
        let config = &guest.config;
        let stop = match end {
            End::Stop(stop) => stop,
            End::Failed(why, status) => {
                self.remove(guest);
                return self.report_end(config, EndReason::LoadError, 0, &why, status);
            }
        };
        self.report_run(guest);
        self.remove(guest);
        let reason = report::reason(&stop);
        match stop {
            Stop::Died(death) => self.report_end(config, reason, 0, &DeathReport(&death), STATUS_DIED),
            Stop::TestExit(value) => self.report_end(config, reason, value, &"", pm::STATUS_OK),
            Stop::PowerOff | Stop::Destroyed | Stop::Reset | Stop::Restart => {
                self.report_end(config, reason, 0, &"", pm::STATUS_OK);
            }
        }
    }

    /// Continues the restart of a guest, in a time slice of its first VCPU, while all its VCPUs are descheduled. Returns when the
    /// restart is complete or the PCPU is needed, or the host TSC before which there is nothing to do.
    pub(super) fn restart_step<const LAB: bool>(
        &self,
        guest: &Guest<B>,
        pcpu: &mut Pcpu<B, LAB>,
    ) -> Option<u64> {
        loop {
            let Action::Step(step) = guest.on(Event::Slice(self.now())) else { return None };
            match step {
                Step::Report(stop) => self.report_reset(guest, &stop),
                Step::Wait(due) => return Some(due),
                Step::Clear(piece) => self.clear(guest, piece),
            }
            pcpu.serve_interrupts();
            // Clearing gigabytes takes long, and other VMs' VCPUs wait for this PCPU.
            if pcpu.is_wanted() {
                return None;
            }
        }
    }

    /// Clears the next piece of a guest's memory, or starts the guest after the last one.
    fn clear(&self, guest: &Guest<B>, piece: u64) {
        // The end follows when the VCPU has left its PCPU.
        let failed = |why: &dyn Display, status| {
            self.perform(guest, guest.on(Event::Failed(why.to_string(), status)));
        };
        match build::scrub(&guest.vm, piece) {
            Ok(true) => {}
            Ok(false) => {
                let _lifecycle_lock = guest.lifecycle_lock.lock();
                guest.vm.chipset.lock().reset();
                if let Err(e) = self.begin(guest) {
                    failed(&e, STATUS_USAGE);
                }
            }
            Err(_) => {
                let why = "the test device removed a page of the guest's memory, so it cannot be reset; start it again";
                failed(&why, STATUS_DIED);
            }
        }
    }

    /// Reports the restart of a guest, and its reason.
    fn report_reset(&self, guest: &Guest<B>, stop: &Stop) {
        self.report_run(guest);
        let name = &guest.config.name;
        if let Stop::Died(death) = stop {
            ::log::warn!("{name}: {}: {}", death.cause.reason(), death.what);
        }
        let by = report::reset_by(stop);
        telemetry::record(Kind::Reset, |json| {
            json.text(key::VM, name)?;
            json.text(key::BY, by)
        });
        ::log::info!("{name}: reset");
    }

    /// Flushes the console output of a stopped guest, and reports its statistics.
    fn report_run(&self, guest: &Guest<B>) {
        self.flush_console(guest);
        if let Some(records) = self.sample_records() {
            let number = guest.number as u8;
            let push = |record: &[u64]| records.push_sample(record);
            let _the_vm_has_ended = sampling::close(&guest.vm, number, self.now(), true, push);
        }
        if let Some(records) = &self.records {
            records.send_all();
        }
        if self.running_refs.load(Ordering::SeqCst) == 1 {
            counters::run_ends(self.host);
        }
        if !self.host.options.stats {
            return;
        }
        let now = self.now();
        let mut all = guest.take_vcpus();
        for descheduled in &mut all {
            sampling::add_late_counts(&mut descheduled.vcpu, &guest.vm);
            let handle = guest.handles[descheduled.vcpu.id as usize];
            let time = self.sched.status(handle, now).map(|status| status.stats).unwrap_or_default();
            telemetry::record(Kind::Stats, |json| {
                report::stats(json, &descheduled.vcpu, &guest.vm, now)?;
                report::time(json, &time)?;
                if descheduled.vcpu.id == 0 {
                    let pcpus = self.sched.topology().all().into_iter();
                    report::pcpus(json, pcpus.map(|pcpu| (pcpu, self.sched.pcpu_stats(pcpu, now))))?;
                }
                report::host(json, &frame::stats(), heap::bytes(), now)
            });
        }
        guest.put_vcpus(all);
    }

    /// Flushes a stopped guest's console output, as far as the console takes it in time.
    fn flush_console(&self, guest: &Guest<B>) {
        let finish = |byte| {
            if let Some(line) = self.console.finish(guest.number, byte) {
                telemetry::console(&guest.config.name, &line);
            }
        };
        let mut chipset = guest.vm.chipset.lock();
        // The guest's last words matter most where it died: they leave even if the console had stopped taking them.
        chipset.set_console_ready(true);
        // The guest will not take the interrupt.
        while let Some(byte) = chipset.console_backlog(guest.vm.nanos(self.now()), &mut Messages::new()) {
            finish(Some(byte));
        }
        while let Some(byte) = guest.vm.virtio.console_output() {
            finish(Some(byte));
        }
        finish(None);
    }

    /// Removes an ended guest from the machine. Its memory is freed with the last reference to it.
    pub(super) fn remove(&self, guest: &Arc<Guest<B>>) {
        for handle in &guest.handles {
            self.vcpus.write()[usize::from(handle.0)] = None;
            let gone = self.sched.remove_vcpu(*handle, self.now());
            debug_assert!(gone.is_ok(), "{gone:?}");
        }
        let gone = self.sched.remove_vm(guest.sched_vm);
        debug_assert!(gone.is_ok(), "{gone:?}");
        *self.entries[guest.number as usize].guest.lock() = None;
        if self.console.focus() == guest.number {
            self.pass_console();
        }
    }

    /// Connects the console to the first guest that is left.
    fn pass_console(&self) {
        while let Some(next) = (0..self.entries.len()).find_map(|number| self.guest(number)) {
            self.console.set_focus(next.number);
            // It may have ended before it got the console, and then it has not passed it on.
            if self.guest(next.number as usize).is_some() {
                ::log::info!("the console is connected to {}", next.config.name);
                return;
            }
        }
    }

    /// Reports a guest's end, and ends the machine if it was the last.
    pub(super) fn report_end(
        &self,
        config: &VmConfig,
        reason: EndReason,
        value: u32,
        detail: &dyn Display,
        status: u32,
    ) {
        if status == pm::STATUS_OK {
            ::log::info!("{}: {reason}", config.name);
        } else {
            ::log::error!(target: log::RECORDED, "{}: {}", config.name, detail.to_string());
        }
        telemetry::record(Kind::End, |json| {
            json.text(key::VM, &config.name)?;
            json.text(key::REASON, reason)?;
            json.number(key::VALUE, value)?;
            json.text(key::DETAIL, detail)
        });
        // One exit status for all VMs: the worst.
        self.status.fetch_max(status, Ordering::SeqCst);
        self.put();
    }

    /// Takes a reference that keeps the machine running, also when all guests have ended, until [`Machine::put`].
    pub fn get(&self) {
        self.running_refs.fetch_add(1, Ordering::SeqCst);
    }

    /// Drops a reference that kept the machine running. The last one ends the machine.
    pub fn put(&self) {
        if self.running_refs.fetch_sub(1, Ordering::SeqCst) == 1 {
            // Power-off is at once: what is still in the port's FIFO would be lost.
            log::drain();
            pm::end_machine(self.status.load(Ordering::SeqCst))
        }
    }
}
