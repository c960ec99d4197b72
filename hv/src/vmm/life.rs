//! What becomes of a VM: it stands still and goes on, stops, starts anew, ends. And what a person can do to it.
//!
//! Any PCPU does this, whoever gets there, but for the work of a new start: that is done in the turns of the VM's first VCPU
//! ([`Machine::renew`]). A VM stands still once the scheduler says that no PCPU has one of its VCPUs; a person's commands come from the
//! monitor, on the first PCPU ([`super::visit`]), and concern VMs that stand still.

use alloc::string::ToString;
use alloc::sync::Arc;
use core::fmt::Display;
use core::sync::atomic::Ordering;

use super::backend::Backend;
use super::guest::{End, Guest};
use super::machine::{Machine, STATUS_USAGE};
use super::pcpu::Pcpu;
use super::renewal::Step;
use super::report::{self, DeathReport};
use super::telemetry;
use crate::boot::log;
use crate::device::message::Messages;
use crate::guest::build;
use crate::guest::config::VmConfig;
use crate::hw::{cpu, pm};
use crate::mem::{frame, heap};
use crate::vcpu::host::Host as _;
use crate::vcpu::outcome::Stop;

/// A guest died.
const STATUS_DIED: u32 = 3;

impl<B: Backend> Machine<B> {
    /// Makes the VCPUs of a guest leave their PCPUs, some time soon.
    pub fn hold(&self, guest: &Guest<B>) {
        for handle in &guest.handles {
            // One that is paused already stays so.
            if let Ok(kick) = self.sched.pause(*handle, cpu::rdtsc()) {
                self.send(kick);
            }
        }
    }

    /// Whether no PCPU has a VCPU of the guest.
    pub fn is_off(&self, guest: &Guest<B>) -> bool {
        guest.handles.iter().all(|handle| self.sched.runs_on(*handle).is_none())
    }

    /// Lets the VCPUs of a guest run that were held, as far as it has not stopped.
    pub fn let_run(&self, guest: &Guest<B>) {
        guest.for_those_that_may_run(|handle| {
            let now = cpu::rdtsc();
            if let Ok(kick) = self.sched.resume(*handle, now) {
                self.send(kick);
            }
            // Each looks whether there is anything to do.
            self.send(self.sched.wake(*handle, now));
        });
    }

    /// A guest stops.
    #[cold]
    #[inline(never)]
    pub fn stop(&self, guest: &Guest<B>, stop: Stop) {
        guest.stop(stop);
        self.hold(guest);
    }

    /// Sees to the end or new start of a guest that has stopped, once it stands still. To be called whenever one of its VCPUs
    /// has left a PCPU.
    #[inline]
    pub fn look_after(&self, guest: &Arc<Guest<B>>) {
        if !guest.lives() && self.is_off(guest) {
            self.see_to(guest);
        }
    }

    #[cold]
    #[inline(never)]
    fn see_to(&self, guest: &Arc<Guest<B>>) {
        let Some(end) = guest.take_stop() else { return };
        // Nobody who waits for this lock has taken the stop: it is the monitor, for a moment.
        let _steer = guest.steer.lock();
        let stop = match end {
            End::Stop(stop) => stop,
            End::Failed(why, status) => {
                self.forget(guest);
                return self.report_end(&guest.config, "load-error", 0, &why, status);
            }
        };
        let reason = report::reason(&stop);
        let end = |value, detail: &dyn Display, status| {
            self.report_run(guest);
            self.forget(guest);
            self.report_end(&guest.config, reason, value, detail, status);
        };
        match stop {
            Stop::Reset | Stop::Restart => self.start_anew(guest, stop),
            Stop::Died(_) if guest.config.restart => self.start_anew(guest, stop),
            Stop::TestExit(value) => end(value, &"", pm::STATUS_OK),
            Stop::Died(death) => end(0, &DeathReport(&death), STATUS_DIED),
            Stop::PowerOff | Stop::Destroyed => end(0, &"", pm::STATUS_OK),
        }
    }

    fn start_anew(&self, guest: &Guest<B>, stop: Stop) {
        guest.renew(stop);
        self.let_run(guest);
    }

    /// Goes on with starting a guest anew, in a turn of its first VCPU, while all of them are in their places: until that is done, or the PCPU is
    /// wanted for something else, or there is nothing to do before the host TSC that is returned.
    pub(super) fn renew(&self, guest: &Guest<B>, pcpu: &mut Pcpu<B>) -> Option<u64> {
        loop {
            match guest.next_step(cpu::rdtsc())? {
                Step::Report(stop) => self.report_reset(guest, &stop),
                Step::Wait(due) => return Some(due),
                Step::Clear(piece) => self.clear(guest, piece),
            }
            pcpu.serve_interrupts();
            if pcpu.is_wanted() {
                return None;
            }
        }
    }

    /// Clears a piece of a guest's memory, or lets it begin if there are no more.
    fn clear(&self, guest: &Guest<B>, piece: u64) {
        // The end follows when the VCPU has left its PCPU.
        let failed = |why: &dyn Display, status| {
            guest.fail(why.to_string(), status);
            self.hold(guest);
        };
        match build::scrub(&guest.vm, piece) {
            Ok(true) => {}
            Ok(false) => {
                let _steer = guest.steer.lock();
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

    /// Reports that a guest starts anew, and why.
    fn report_reset(&self, guest: &Guest<B>, stop: &Stop) {
        self.report_run(guest);
        let name = &guest.config.name;
        if let Stop::Died(death) = stop {
            ::log::warn!("{name}: {}: {}", death.cause.name(), death.what);
        }
        let by = report::reset_by(stop);
        telemetry::record("reset", |json| {
            json.text("vm", name)?;
            json.text("by", by)
        });
        ::log::info!("{name}: reset");
    }

    /// Reports the last of what a stopped guest has said, and what it has been through.
    fn report_run(&self, guest: &Guest<B>) {
        self.flush_console(guest);
        if !self.host.options.stats {
            return;
        }
        let now = cpu::rdtsc();
        let all = guest.take_all();
        for parked in &all {
            let handle = guest.handles[parked.vcpu.id as usize];
            let time = self.sched.status(handle, now).map(|status| status.stats).unwrap_or_default();
            telemetry::record("stats", |json| {
                report::stats(json, &parked.vcpu, &guest.vm, now)?;
                report::time(json, &time)?;
                if parked.vcpu.id == 0 {
                    let pcpus = self.sched.topology().all().into_iter();
                    report::pcpus(json, pcpus.map(|pcpu| (pcpu, self.sched.pcpu_stats(pcpu, now))))?;
                }
                report::host(json, &frame::stats(), heap::bytes())
            });
        }
        guest.park_all(all);
    }

    /// Sends the last of a stopped guest's console output, as far as the console takes it in time.
    fn flush_console(&self, guest: &Guest<B>) {
        let finish = |byte| {
            if let Some(line) = self.console.finish(guest.number, byte) {
                telemetry::console(&guest.config.name, &line);
            }
        };
        let mut chipset = guest.vm.chipset.lock();
        chipset.set_console_ready(true);
        // The guest will not take the interrupt.
        while let Some(byte) = chipset.console_backlog(guest.vm.nanos(cpu::rdtsc()), &mut Messages::new()) {
            finish(Some(byte));
        }
        while let Some(byte) = guest.vm.virtio.console_output() {
            finish(Some(byte));
        }
        finish(None);
    }

    /// A guest has ended: nothing leads to it any more but what the caller holds. Its memory goes when that goes.
    pub(super) fn forget(&self, guest: &Arc<Guest<B>>) {
        for handle in &guest.handles {
            self.vcpus.write()[usize::from(handle.0)] = None;
            let gone = self.sched.remove_vcpu(*handle, cpu::rdtsc());
            debug_assert!(gone.is_ok(), "{gone:?}");
        }
        let gone = self.sched.remove_vm(guest.sched_vm);
        debug_assert!(gone.is_ok(), "{gone:?}");
        *self.entries[guest.number as usize].guest.lock() = None;
        if self.console.focus() == guest.number {
            self.pass_console();
        }
    }

    /// The guest that had the console has ended: the first of those that live gets it.
    fn pass_console(&self) {
        while let Some(next) = (0..self.entries.len()).find_map(|number| self.guest(number)) {
            self.console.set_focus(next.number);
            // One that has ended meanwhile may not know that it had the console.
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
        reason: &str,
        value: u32,
        detail: &dyn Display,
        status: u32,
    ) {
        if status == pm::STATUS_OK {
            ::log::info!("{}: {reason}", config.name);
        } else {
            ::log::error!(target: log::RECORDED, "{}: {}", config.name, detail.to_string());
        }
        telemetry::record("end", |json| {
            json.text("vm", &config.name)?;
            json.text("reason", reason)?;
            json.number("value", value)?;
            json.text("detail", detail)
        });
        self.status.fetch_max(status, Ordering::SeqCst);
        self.one_less();
    }

    /// The machine goes on, also if all guests end, until [`Machine::one_less`].
    pub fn stay(&self) {
        self.left.fetch_add(1, Ordering::SeqCst);
    }

    /// One that kept the machine going does so no longer. The last one ends it.
    pub fn one_less(&self) {
        if self.left.fetch_sub(1, Ordering::SeqCst) == 1 {
            log::drain();
            pm::end_machine(self.status.load(Ordering::SeqCst))
        }
    }
}
