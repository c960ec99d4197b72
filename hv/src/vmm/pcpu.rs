//! A PCPU as the run loop sees it: its timer, its interrupts, the console of the guest that it runs.

mod counting;
mod registers;
mod sleepers;

use alloc::vec::Vec;
use core::array;
use core::sync::atomic::Ordering;

use ::records::trace::{Event, What};

use self::counting::MoveCounts;
use super::backend::Backend;
use super::console::Written;
use super::lab_time::{LabTime, PcpuTime};
use super::machine::Machine;
use super::{counters, domains, telemetry};
use crate::arch;
use crate::arch::counters::{BothSides, Spent};
use crate::arch::state::cr4;
use crate::boot::percpu::{PerCpu, work};
use crate::boot::smp;
use crate::device::virtio::switch::Woken;
use crate::hw::pmu::{Counters, Pmu as _, StallDetector};
use crate::hw::{cpu, fpu, msr, speculation};
use crate::paging::tree_key::TreeKey;
use crate::sched::VcpuId;
use crate::sched::topology::{PcpuId, PcpuSet};
use crate::vcpu::host::Host;
use crate::virt::speculation::Turn;
use crate::vm::mailbox::Mailbox;
use crate::vm::work as vcpu_work;

/// One PCPU. `LAB`: time is modelled; otherwise no code asks whether it is.
pub struct Pcpu<B: Backend, const LAB: bool> {
    pub(super) machine: &'static Machine<B>,
    pub(super) cpu: &'static PerCpu,
    id: PcpuId,
    /// Modelled time, if it follows that.
    time: Option<PcpuTime>,
    /// Its cache domain, as VMs count them.
    domain: u8,
    /// The PCPUs of each cache domain.
    domains: [PcpuSet; TreeKey::DOMAINS as usize],
    runs_guests: bool,
    /// The guest whose VCPU it runs.
    guest: u32,
    /// When to ask the scheduler again, in ticks of the TSC.
    until: u64,
    /// When the VCPU was entered first in this turn.
    entered: Option<u64>,
    /// When the timer interrupts; `u64::MAX` if it is not armed.
    pub(super) armed: u64,
    /// What it has done about speculation.
    turn: Turn,
    /// Its performance counters; `None` unless they are used.
    counters: Option<Counters>,
    stall_detector: StallDetector,
    /// Its events are wanted.
    traced: bool,
    /// VCPUs that went to sleep here, and when they want to be woken.
    sleepers: Vec<(u64, VcpuId)>,
    /// What moves to other caches take.
    pub(super) moves: MoveCounts,
}

impl<B: Backend, const LAB: bool> Pcpu<B, LAB> {
    /// The PCPU that executes this.
    pub fn new(machine: &'static Machine<B>, cpu: &'static PerCpu) -> Pcpu<B, LAB> {
        let id = smp::numbering().id(cpu.index);
        // The first one has begun with the clock.
        if let Some(time) = machine.lab_time.as_ref().filter(|_| cpu.index != machine.host.cpu.index) {
            time.resume(cpu.index);
        }
        Pcpu {
            machine,
            cpu,
            id,
            time: machine.lab_time.as_ref().filter(|_| LAB).and_then(|time| time.of(cpu.index)),
            domain: domains::domain_of(machine.sched.topology(), id),
            domains: array::from_fn(|domain| domains::pcpus_of(machine.sched.topology(), domain as u8)),
            runs_guests: machine.sched.topology().location(id).is_some(),
            guest: 0,
            until: 0,
            entered: None,
            armed: u64::MAX,
            turn: Turn::default(),
            counters: counters::start(machine.host, machine.backend, cpu.index),
            stall_detector: StallDetector::default(),
            traced: machine.records.as_ref().is_some_and(|records| records.traces(id)),
            sleepers: Vec::new(),
            moves: MoveCounts::default(),
        }
    }

    /// Its number.
    pub fn id(&self) -> PcpuId {
        self.id
    }

    /// Whether the scheduler gives it VCPUs. The first PCPU may be without.
    pub fn runs_guests(&self) -> bool {
        self.runs_guests
    }

    /// Whether it is the one that has booted, which takes the console's interrupts.
    pub fn is_first(&self) -> bool {
        self.cpu.index == self.machine.host.cpu.index
    }

    /// A turn begins: with a VCPU of this guest, until then. It will look into its mailbox first.
    pub fn begin(&mut self, guest: Option<u32>, until: u64) {
        smp::answer_idle(self.cpu);
        if let Some(time) = self.lab_time() {
            time.check(self.cpu.index);
        }
        self.guest = guest.unwrap_or(u32::MAX);
        self.until = until;
        self.entered = None;
        self.moves.begin();
    }

    /// When the VCPU was entered first in this turn, in ticks of the TSC.
    pub fn entered(&self) -> Option<u64> {
        self.entered
    }

    /// Modelled time, if this PCPU follows it.
    #[inline(always)]
    pub(super) fn lab_time(&self) -> Option<&'static LabTime> {
        if LAB { self.machine.lab_time.as_ref() } else { None }
    }

    /// The same, to read the time.
    #[inline(always)]
    pub(super) fn pcpu_time(&self) -> Option<&PcpuTime> {
        if LAB { self.time.as_ref() } else { None }
    }

    /// Arms the timer for this or what else is due earlier; when that is. `is_halted`: the PCPU will be halted meanwhile.
    #[inline(always)]
    pub(super) fn arm(&mut self, deadline: u64, is_halted: bool) -> u64 {
        let next = self.sleepers.iter().fold(deadline.min(self.until), |next, (at, _)| next.min(*at));
        // Arming costs a write to the APIC, and mostly the same deadline is asked for again. When modelled time comes to the
        // same deadline depends on what is executed.
        if (LAB || next != self.armed) && next != u64::MAX {
            self.armed = next;
            let timer = &self.machine.host.timer;
            match self.pcpu_time() {
                None => timer.arm(next, self.tsc()),
                Some(time) => {
                    let now = cpu::rdtsc_unordered();
                    timer.arm(time.host_deadline(now, next, is_halted), now);
                }
            }
        }
        next
    }

    pub(super) fn has(&self, bits: u32) -> bool {
        self.cpu.pending.load(Ordering::Relaxed) & bits != 0
    }

    pub(super) fn wake_vcpu(&self, mailbox: &Mailbox) {
        let handle = VcpuId(mailbox.handle() as u16);
        let now = self.pcpu_time().map_or_else(cpu::rdtsc, PcpuTime::now);
        self.machine.send(self.machine.sched.wake(handle, now));
    }
}

impl<B: Backend, const LAB: bool> Host for Pcpu<B, LAB> {
    // Elsewhere a count of what exits begin with is not worth its cost.
    const TELLS_EXITS: bool = LAB;

    #[inline(always)]
    fn tsc(&self) -> u64 {
        self.pcpu_time().map_or_else(cpu::rdtsc_unordered, PcpuTime::now)
    }

    #[inline(always)]
    fn tsc_low(&self) -> u32 {
        self.pcpu_time().map_or_else(cpu::rdtsc_low, |time| time.now() as u32)
    }

    fn entering(&mut self) {
        if self.entered.is_none() {
            self.entered = Some(self.tsc());
            self.count_entry();
        }
    }

    fn vm_number(&self) -> u8 {
        self.guest as u8
    }

    fn record_sample(&mut self, record: &[u64]) {
        if let Some(records) = self.machine.sample_records() {
            records.push_sample(record);
            self.machine.record_pcpus(records, self.tsc());
        }
    }

    #[inline]
    fn is_traced(&self) -> bool {
        self.traced
    }

    fn trace(&mut self, what: What, vcpu: u32, tsc: u64, ticks: u64, at: u64) {
        if let Some(records) = &self.machine.records {
            let event = Event { what, vm: self.guest as u8, vcpu: vcpu as u8, tsc, ticks, at };
            records.push_event(self.id, &event.write());
        }
    }

    #[inline]
    fn counters(&mut self) -> Option<BothSides> {
        Some(self.counters.as_mut()?.read())
    }

    fn host_spent(&mut self) -> Option<Spent> {
        self.counters.as_mut()?.host_spent()
    }

    #[inline(always)]
    fn exited(&mut self) {
        self.note_exit();
    }

    fn does_other_work(&mut self) {
        self.moves.expect_none();
    }

    fn spent_at_exit(&mut self) -> Option<Spent> {
        if LAB { self.moves.exited_at } else { self.host_spent() }
    }

    fn arm_timer(&mut self, deadline: u64) -> u64 {
        self.arm(deadline, false)
    }

    fn timer_fired(&mut self) -> bool {
        // The handler has only set the bit: the loop reads the clock and decides.
        let fired = self.has(work::TIMER);
        if fired {
            self.look();
        }
        fired
    }

    fn serve_interrupts(&mut self) {
        // SAFETY: the IDT is loaded and no lock is held that a handler takes (handlers take none).
        unsafe { cpu::interrupt_window() }
        smp::answer_here();
        if self.has(work::CONSOLE) {
            self.look();
        }
    }

    fn interrupt_self(&mut self) {
        smp::kick(self.cpu);
    }

    fn kick(&mut self, mailbox: &Mailbox) {
        self.wake_vcpu(mailbox);
    }

    fn wake(&mut self, vms: Woken) {
        let guests = (0..u64::BITS).filter(|number| vms.0 >> number & 1 != 0);
        for guest in guests.filter_map(|number| self.machine.guest(number as usize)) {
            let first = &guest.vm.mailboxes[0];
            // By the mailbox, so that no VM's lock is taken on behalf of another one.
            first.request(vcpu_work::DEVICES);
            self.wake_vcpu(first);
        }
    }

    fn is_wanted(&mut self) -> bool {
        let now = self.tsc();
        if !self.sleepers.is_empty() {
            self.wake_sleepers(now);
        }
        now >= self.until
            || self.runs_guests && self.machine.sched.wanted(self.id())
            || self.is_first() && self.machine.console.wants_monitor()
    }

    fn others_wait(&self) -> bool {
        self.machine.sched.is_waited_for(self.id())
    }

    fn cache_domain(&self) -> u8 {
        self.domain
    }

    fn place_in(&mut self, mailbox: &Mailbox, domain: u8) -> Option<u8> {
        let pcpus = *self.domains.get(usize::from(domain))?;
        self.machine.sched.place_in(VcpuId(mailbox.handle() as u16), pcpus).map(|pcpu| pcpu.0)
    }

    fn was_taken(&mut self, mailbox: &Mailbox) -> bool {
        self.machine.sched.was_taken(VcpuId(mailbox.handle() as u16))
    }

    #[inline(always)]
    fn console_ready(&self) -> bool {
        self.machine.console.has_input(self.guest)
    }

    fn console_read(&mut self) -> Option<u8> {
        self.machine.console.read(self.guest)
    }

    #[inline]
    fn console_write(&mut self, byte: u8) -> bool {
        let Written { is_full, line } = self.machine.console.write(self.guest, byte);
        if let Some(line) = line {
            telemetry::console(self.machine.name(self.guest), &line);
        }
        !is_full
    }

    fn console_writable(&mut self) -> bool {
        self.machine.console.is_writable(self.guest)
    }

    fn xmm(&self, index: u8) -> u128 {
        fpu::xmm(index)
    }

    fn set_xmm(&mut self, index: u8, value: u128) {
        fpu::set_xmm(index, value);
    }

    fn mmx(&self, index: u8) -> Option<u64> {
        fpu::mmx(index)
    }

    fn set_mmx(&mut self, index: u8, value: u64) {
        fpu::set_mmx(index, value);
    }

    fn xcr0(&self) -> u64 {
        if cpu::cr4() & cr4::OSXSAVE == 0 {
            return 1;
        }
        // SAFETY: CR4.OSXSAVE is set.
        unsafe { cpu::xgetbv(0) }
    }

    fn set_xcr0(&mut self, value: u64) {
        // SAFETY: the caller has checked the value against what the processor has; CR4.OSXSAVE was set at start.
        unsafe { cpu::xsetbv(0, value) }
    }

    fn set_tsc_aux(&mut self, value: u64) {
        // SAFETY: guests are offered TSC_AUX only where the processor has it, and the host does not use it.
        unsafe { msr::write(msr::TSC_AUX, value) }
    }

    fn set_spec_ctrl(&mut self, wanted: u64) {
        if let Some(value) = self.turn.set(&self.machine.plan.measures, wanted) {
            // SAFETY: the processor has the MSR, and guests may write the bits only that it has.
            unsafe { msr::write(arch::msr::SPEC_CTRL, value) }
        }
    }

    fn forget_speculation(&mut self, index: u32) {
        // SAFETY: guests are offered these MSRs only where the processor has them.
        unsafe { speculation::command(index) }
    }

    fn clear_breakpoints(&mut self) {
        cpu::set_breakpoints([0; 4]);
    }
}
