//! What a PCPU does: it asks the scheduler which VCPU to run, runs it, and asks again. One worker per PCPU; it never returns.

use alloc::sync::Arc;

use records::trace::What;

use super::backend::Backend;
use super::guest::{DescheduledVcpu, Guest};
use super::machine::Machine;
use super::pcpu::Pcpu;
use crate::boot::percpu::PerCpu;
use crate::monitor::Monitor;
use crate::sched::{PcpuId, VcpuId, Why};
use crate::vcpu::host::Host as _;
use crate::vcpu::outcome::Return;
use crate::vcpu::run::run;
use crate::vcpu::sampling;
use crate::virt::Virt;
use crate::virt::speculation::Load;

/// The VCPU in a PCPU.
struct Loaded<B: Backend> {
    handle: VcpuId,
    guest: Arc<Guest<B>>,
    id: u32,
    taken: DescheduledVcpu<B::Virt>,
}

/// One PCPU at work. `LAB`: see [`Pcpu`].
pub struct Worker<B: Backend, const LAB: bool> {
    pub(super) machine: &'static Machine<B>,
    cpu: <B::Virt as Virt>::Cpu,
    pub(super) pcpu: Pcpu<B, LAB>,
    loaded: Option<Loaded<B>>,
    /// What to tell the scheduler about the VCPU that ran last.
    why: Why,
    /// The monitor, on the first PCPU.
    pub(super) monitor: Monitor,
}

impl<B: Backend, const LAB: bool> Worker<B, LAB> {
    /// The worker of the PCPU that executes this, on which virtualization is on.
    pub fn new(
        machine: &'static Machine<B>,
        pcpu: &'static PerCpu,
        cpu: <B::Virt as Virt>::Cpu,
    ) -> Worker<B, LAB> {
        Worker {
            machine,
            cpu,
            pcpu: Pcpu::new(machine, pcpu),
            loaded: None,
            why: Why::Preempt,
            monitor: Monitor::default(),
        }
    }

    /// Works for ever.
    pub fn run(mut self) -> ! {
        loop {
            if self.pcpu.is_first() && self.machine.console.wants_monitor() {
                self.monitor_session();
            }
            self.turn();
        }
    }

    /// Runs one VCPU until it waits or its time is up, or waits until something happens.
    pub(super) fn turn(&mut self) {
        if !self.step() {
            self.pcpu.idle();
        }
    }

    /// The same for a caller that polls for an event without an interrupt: it returns within a millisecond or a time slice.
    pub(super) fn brief_turn(&mut self) {
        if !self.step() {
            self.pcpu.idle_briefly();
        }
    }

    /// Runs one VCPU until it waits or its time is up. False: there is none to run.
    fn step(&mut self) -> bool {
        if !self.pcpu.runs_guests() {
            self.pcpu.begin(None, u64::MAX);
            return false;
        }
        let now = self.pcpu.tsc();
        let why = core::mem::replace(&mut self.why, Why::Preempt);
        let decision = self.machine.sched.schedule(self.pcpu.id(), why, now);
        // One that another PCPU has made has taken no time of this one.
        let decided = if decision.is_settled { now } else { self.pcpu.tsc() };
        // The scheduler's own time is not the VCPU's.
        if let Some(loaded) = &mut self.loaded {
            loaded.taken.vcpu.end_turn(now);
        }
        // The VCPU that ran stays loaded if it goes on: most turns switch nothing.
        let mut left = None;
        if decision.run != self.loaded.as_ref().map(|loaded| loaded.handle) {
            left = self.unload();
            if let Some(handle) = decision.run {
                self.load(handle);
            }
        }
        // Until here no other PCPU may take the VCPU that left: its registers were in this one.
        if !decision.is_settled {
            self.machine.send(self.machine.sched.context_saved(self.pcpu.id(), now));
        }
        if let Some(guest) = &left {
            self.count_leaving(guest);
        }
        let switches = left.is_some();
        // It may have been the last VCPU to leave a VM that has stopped.
        if let Some(guest) = left {
            self.machine.reap(&guest);
        }
        self.pcpu.begin(self.loaded.as_ref().map(|loaded| loaded.guest.number), decision.until);
        let Some(Loaded { handle, guest, id, taken }) = &mut self.loaded else {
            if self.pcpu.is_traced() {
                self.pcpu.trace(What::Idle, 0, now, decided.wrapping_sub(now), 0);
            }
            return false;
        };
        if !guest.is_running() {
            self.continue_restart();
            return true;
        }
        taken.vcpu.turn_began = decided;
        if self.pcpu.is_traced() {
            self.pcpu.trace(What::Run, *id, now, decided.wrapping_sub(now), 0);
        }
        // Counters are the PCPU's. What they count between these two readings is the VCPU's.
        if self.pcpu.has_counters() {
            self.pcpu.begin_counts(&mut taken.vcpu.counts);
        }
        if taken.vcpu.moves.is_counted() {
            self.pcpu.moves.expect_entry();
        }
        let end = run(&mut taken.vcpu, &guest.vm, &mut self.cpu, &mut self.pcpu);
        // One that goes on elsewhere does not wait for this.
        if !matches!(end, Return::Move(_)) {
            if self.pcpu.has_counters() {
                self.pcpu.end_counts(&mut taken.vcpu.counts);
            }
            if guest.vm.sampling.is_on() {
                let tsc = self.pcpu.tsc();
                sampling::publish(&mut taken.vcpu, &guest.vm, &mut self.pcpu, tsc);
            }
        }
        if guest.vm.regions.is_divided()
            && let Some(entered) = self.pcpu.entered()
        {
            taken.vcpu.moves.entered(entered, self.pcpu.moves.entry_took.take());
        }
        let turns = &mut taken.vcpu.turns;
        turns.decisions.add(decided.wrapping_sub(now));
        if let Some(entered) = self.pcpu.entered().filter(|_| switches) {
            turns.switches.add(entered.wrapping_sub(decided));
        }
        match end {
            Return::Idle => {
                self.pcpu.sleep(*handle, taken.vcpu.due);
                self.why = Why::Block;
            }
            Return::Yield => {}
            Return::Spin => self.why = Why::Yield,
            Return::Move(pcpu) => self.why = self.hand_over(PcpuId(pcpu)),
            Return::Stop(stop) => self.machine.stop(guest, stop),
        }
        true
    }

    /// The VCPU that has just run goes on at another PCPU, which is told before this one looks for something else to run. What the
    /// scheduler is to be asked then: it does not always let the VCPU go, which stays loaded then.
    #[cold]
    #[inline(never)]
    fn hand_over(&mut self, to: PcpuId) -> Why {
        let Some(loaded) = &mut self.loaded else { return Why::Preempt };
        let now = loaded.taken.vcpu.last_exit_ended;
        loaded.taken.vcpu.end_turn(now);
        // If it stays, its turn is ended once more.
        loaded.taken.vcpu.turn_began = now;
        let (handle, id) = (loaded.handle, loaded.id);
        let begun = loaded.taken.vcpu.counts.begun().copied();
        let Some(guest) = self.unload() else { return Why::Preempt };
        let kick = self.machine.sched.hand_over(self.pcpu.id(), to, now);
        if let Some(kick) = kick {
            self.machine.send(kick);
            self.count_leaving(&guest);
        }
        self.pcpu.end_counts_late(begun, &guest.vm.mailboxes[id as usize]);
        if kick.is_none() {
            self.load(handle);
            return Why::MoveTo(to);
        }
        // It may have been the last VCPU to leave a VM that has stopped.
        self.machine.reap(&guest);
        Why::Preempt
    }

    /// Counts what was executed since the registers of a VCPU were saved that goes to another PCPU, if one does.
    #[inline(always)]
    fn count_leaving(&mut self, guest: &Guest<B>) {
        if let Some(from) = self.pcpu.moves.left_at.take()
            && let Some(to) = self.pcpu.host_spent()
        {
            guest.vm.regions.count_leaving(to.since(from));
        }
    }

    /// The guest of the loaded VCPU has stopped: the VCPU leaves, or it is the first one and continues the restart.
    #[cold]
    #[inline(never)]
    fn continue_restart(&mut self) {
        let Some(Loaded { handle, .. }) = &self.loaded else { return };
        let handle = *handle;
        let Some(guest) = self.unload() else { return };
        if let Some(due) = self.machine.restart_step(&guest, &mut self.pcpu) {
            self.pcpu.sleep(handle, due);
            self.why = Why::Block;
        }
        self.load(handle);
    }

    /// Takes the VCPU out of the PCPU, if there is one; its guest. Part of each switch.
    #[inline(always)]
    fn unload(&mut self) -> Option<Arc<Guest<B>>> {
        let Loaded { guest, id, mut taken, .. } = self.loaded.take()?;
        taken.vcpu.virt.put(&mut self.cpu);
        self.pcpu.save(&mut taken.context);
        if taken.vcpu.moves.is_counted() {
            self.pcpu.moves.left_at = self.pcpu.host_spent();
            taken.vcpu.moves.left(self.pcpu.moves.left_at);
        }
        guest.put_vcpu(id, taken);
        Some(guest)
    }

    /// Puts a VCPU into the PCPU. Part of each switch.
    #[inline(always)]
    fn load(&mut self, handle: VcpuId) {
        let (guest, id) = self.machine.vcpu(handle).expect("the scheduler knows VCPUs that there are");
        let mut taken = guest.take(id);
        self.pcpu.restore(&mut taken.context);
        // After the registers: what the last guest has left in the processor's predictors and buffers must not be of use to this
        // one.
        let wanted = Load { vm: guest.number, spec_ctrl: taken.vcpu.msrs.spec_ctrl() };
        self.pcpu.part_from_last(&guest.measures, wanted);
        self.loaded = Some(Loaded { handle, guest, id, taken });
    }
}
