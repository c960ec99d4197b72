//! What becomes of a VM: it stands still and goes on, stops, starts anew, ends. And what a person can do to it.
//!
//! Any PCPU does this, whoever gets there. A VM stands still once the scheduler says that no PCPU has one of its VCPUs; a person's
//! commands ([`Machine::start_again`] and the like) come from the monitor, on the first PCPU, and concern VMs that stand still.

use alloc::string::ToString;
use alloc::sync::Arc;
use core::fmt::Display;
use core::sync::atomic::Ordering;

use super::backend::Backend;
use super::guest::{End, Guest};
use super::machine::{Machine, STATUS_USAGE};
use super::report::{self, DeathReport};
use super::telemetry;
use crate::boot::log;
use crate::device::message::Messages;
use crate::guest::build;
use crate::guest::config::VmConfig;
use crate::hw::{cpu, pm};
use crate::mem::{frame, heap};
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

    /// Lets the VCPUs of a guest run that were held.
    pub fn let_run(&self, guest: &Guest<B>) {
        for handle in &guest.handles {
            let now = cpu::rdtsc();
            if let Ok(kick) = self.sched.resume(*handle, now) {
                self.send(kick);
            }
            // Each looks whether there is anything to do.
            self.send(self.sched.wake(*handle, now));
        }
    }

    /// A guest that stands still stops.
    pub fn stop(&self, guest: &Arc<Guest<B>>, stop: Stop) {
        guest.stop(stop);
        self.hold(guest);
        self.look_after(guest);
    }

    /// Sees to the end or new start of a guest that has stopped, once it stands still. To be called whenever one of its VCPUs
    /// has left a PCPU.
    pub fn look_after(&self, guest: &Arc<Guest<B>>) {
        if guest.has_stopped() && self.is_off(guest) {
            self.see_to(guest);
        }
    }

    /// Sees to the end or new start of a guest that has stopped and whose VCPUs are in their places. The scheduler may believe that one
    /// of them runs here, if the guest starts anew: it is charged for the work then.
    pub(super) fn see_to(&self, guest: &Arc<Guest<B>>) {
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
        self.flush_console(guest);
        if self.host.options.stats {
            let now = cpu::rdtsc();
            let all = guest.take_all();
            for parked in &all {
                let handle = guest.handles[parked.vcpu.id as usize];
                let time = self.sched.status(handle, now).map(|status| status.stats).unwrap_or_default();
                telemetry::record("stats", |json| {
                    report::stats(json, &parked.vcpu, &guest.vm, now)?;
                    report::time(json, &time)?;
                    report::host(json, &frame::stats(), heap::bytes())
                });
            }
            guest.park_all(all);
        }
        let end = |value, detail: &dyn Display, status| {
            self.forget(guest);
            self.report_end(&guest.config, report::reason(&stop), value, detail, status);
        };
        match &stop {
            Stop::Died(death) if guest.config.restart => {
                ::log::warn!("{}: {}: {}", guest.config.name, death.cause.name(), death.what);
                self.reset(guest);
            }
            Stop::TestExit(value) => end(*value, &"", pm::STATUS_OK),
            Stop::Died(death) => end(0, &DeathReport(death), STATUS_DIED),
            Stop::PowerOff | Stop::Destroyed => end(0, &"", pm::STATUS_OK),
            Stop::Reset => self.reset(guest),
        }
    }

    /// Starts a guest anew that has reset its machine.
    fn reset(&self, guest: &Arc<Guest<B>>) {
        let config = &guest.config;
        telemetry::record("reset", |json| json.text("vm", &config.name));
        ::log::info!("{}: reset", config.name);
        // The end follows once the scheduler knows as well that none of its VCPUs runs.
        let failed = |why: &dyn Display, status| guest.fail(why.to_string(), status);
        if build::scrub(&guest.vm).is_err() {
            let why = "a page of the guest's memory was taken away by its test device; start it anew";
            return failed(&why, STATUS_DIED);
        }
        guest.vm.chipset.lock().reset();
        if let Err(e) = self.begin(guest) {
            failed(&e, STATUS_USAGE);
        }
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
                ::log::info!("the console is that of {} now", next.config.name);
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
