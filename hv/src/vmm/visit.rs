//! A person's visit to the monitor: the guest that has the console stands still, the others go on.

use alloc::vec::Vec;

use super::backend::Backend;
use super::guest::Parked;
use super::worker::Worker;
use crate::boot::host::Host;
use crate::boot::percpu;
use crate::mem::{frame, heap};
use crate::monitor::view::{HostReport, View};
use crate::monitor::{Key, Terminal};
use crate::vcpu::host::Host as _;

/// The terminal of a monitor whose PCPU goes on working while it waits for keys.
struct AtWork<'a, B: Backend>(&'a mut Worker<B>);

impl<B: Backend> Terminal for AtWork<'_, B> {
    fn now(&self) -> u64 {
        self.0.pcpu.tsc()
    }

    fn key(&mut self) -> Key {
        loop {
            if let Some(key) = self.0.machine.console.key() {
                return key;
            }
            self.0.turn();
        }
    }

    fn write(&mut self, byte: u8) {
        self.0.machine.console.show(byte);
    }
}

impl<B: Backend> Worker<B> {
    /// Serves the person at the console. On the first PCPU.
    pub(super) fn visit(&mut self) {
        let machine = self.machine;
        machine.console.enter_monitor();
        let number = machine.console.focus() as usize;
        if let Some(guest) = machine.guest(number) {
            machine.hold(&guest);
            // The first turn puts away what this PCPU ran; the others have been interrupted.
            while !machine.is_off(&guest) {
                self.turn();
            }
            if !guest.has_stopped() {
                let (mut vcpus, contexts): (Vec<_>, Vec<_>) =
                    guest.take_all().into_iter().map(|parked| (parked.vcpu, parked.context)).unzip();
                let mut monitor = core::mem::take(&mut self.monitor);
                let tsc = self.pcpu.tsc();
                let mut view = View {
                    vm: &guest.vm,
                    vcpus: &mut vcpus,
                    started: guest.started(),
                    tsc,
                    host: host_report(machine.host),
                };
                let stop = monitor.enter(&mut AtWork(self), &mut view);
                self.monitor = monitor;
                let parked = vcpus.into_iter().zip(contexts).map(|(vcpu, context)| Parked { vcpu, context });
                guest.park_all(parked.collect());
                match stop {
                    None => machine.let_run(&guest),
                    Some(stop) => machine.stop(&guest, stop),
                }
            }
        }
        machine.console.leave_monitor();
    }
}

/// The host for the monitor.
fn host_report(host: &Host) -> HostReport {
    HostReport {
        tsc_khz: host.tsc_khz,
        pcpus: percpu::count() as usize,
        frames: frame::stats(),
        heap_bytes: heap::bytes(),
    }
}
