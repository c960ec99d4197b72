//! One VM of the machine with its VCPUs: how it is made, how it begins, how it ends.
//!
//! Its VCPUs are in their places here while no PCPU runs them; the worker that runs one takes it out, and puts it back
//! before it tells the scheduler. So whoever has seen all of them off their PCPUs can have all of them.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use spin::Mutex;

use super::backend::Backend;
use super::memory::{Frames, HostMemory};
use super::renewal::{Renewal, Step};
use crate::guest::build::{self, BuildError, HostFacts};
use crate::guest::bundle::Files;
use crate::guest::config::VmConfig;
use crate::guest::cpuid::{CpuidPolicy, CpuidTable};
use crate::hw::context::Context;
use crate::mem::heap;
use crate::mem::lent::Lent;
use crate::sched::{VcpuId, VmId};
use crate::vcpu::next_rip::NextRips;
use crate::vcpu::outcome::Stop;
use crate::vcpu::{Vcpu, mmu};
use crate::virt::speculation::Measures;
use crate::virt::{Roots, Virt};
use crate::vm::Vm;
use crate::vm::work;

/// A VCPU that no PCPU runs, with what it leaves in one.
pub struct Parked<V: Virt> {
    /// The VCPU.
    pub vcpu: Box<Vcpu<V>>,
    /// Its registers that entries do not switch.
    pub context: Box<Context>,
}

/// Whether a VM runs.
#[derive(Debug)]
enum Life {
    /// It does, unless it is paused.
    Lives,
    /// It has stopped, and stands still as soon as its VCPUs have left their PCPUs.
    Stops(End),
    /// Somebody sees to what follows.
    IsSeenTo,
    /// It starts anew, in the turns of its first VCPU; the others stand still.
    Renews(Renewal),
}

/// Why a VM has stopped.
#[derive(Debug)]
pub enum End {
    /// It ran, and stopped.
    Stop(Stop),
    /// It could not be started anew: why, and the run's exit status.
    Failed(String, u32),
}

/// What a person has asked for that lasts when they have left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// Nothing: it runs.
    No,
    /// It stands still, and can go on.
    Paused,
    /// It is switched off; its memory stays as it was.
    Off,
}

/// Counts a guest until its memory has been given back.
#[derive(Debug)]
pub struct Holder(&'static AtomicU32);

impl Holder {
    /// Counts in this word.
    pub fn new(count: &'static AtomicU32) -> Holder {
        count.fetch_add(1, Ordering::SeqCst);
        Holder(count)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The VM of a backend.
pub type VmOf<B> = Vm<<<B as Backend>::Virt as Virt>::NestedFormat, HostMemory>;

/// One VM.
pub struct Guest<B: Backend> {
    /// What was asked for.
    pub config: VmConfig,
    /// Its number in the configuration.
    pub number: u32,
    /// What is done so that it learns nothing of others by speculation.
    pub measures: Measures,
    /// What its VCPUs share.
    pub vm: VmOf<B>,
    /// Its number in the scheduler.
    pub sched_vm: VmId,
    /// The numbers of its VCPUs in the scheduler.
    pub handles: Vec<VcpuId>,
    parked: Vec<Mutex<Option<Parked<B::Virt>>>>,
    life: Mutex<Life>,
    /// Whether it says `Lives`: each turn asks.
    lives: AtomicBool,
    /// Held by whoever sees to its end, until it is gone, or lets it start anew or begin; and by the monitor while it makes sure that the
    /// VM stands still. Taken before all others of the VM.
    pub(super) steer: Mutex<()>,
    rest: Mutex<Rest>,
    started: AtomicU64,
    /// Dropped after all that uses it.
    _ram: Lent<Frames>,
    /// Dropped last.
    _holder: Holder,
}

impl<B: Backend> Guest<B> {
    /// Makes a VM without VCPUs.
    pub fn new(
        config: &VmConfig,
        number: u32,
        memory: HostMemory,
        facts: &HostFacts,
        mut ram: Lent<Frames>,
        holder: Holder,
        measures: Measures,
    ) -> Result<Guest<B>, BuildError> {
        let vm = build::build(config, memory, facts, |bytes| ram.block(bytes))?;
        Ok(Guest {
            config: config.clone(),
            number,
            measures,
            vm,
            sched_vm: VmId(0),
            handles: Vec::new(),
            parked: (0..config.vcpus).map(|_| Mutex::new(None)).collect(),
            life: Mutex::new(Life::IsSeenTo),
            lives: AtomicBool::new(false),
            steer: Mutex::new(()),
            rest: Mutex::new(Rest::No),
            started: AtomicU64::new(facts.tsc),
            _ram: ram,
            _holder: holder,
        })
    }

    /// What a VCPU takes at most: it, what it remembers of instructions, and the pages that the processor wants.
    const VCPU_BYTES: usize = size_of::<Vcpu<B::Virt>>() + NextRips::BYTES + (40 << 10);

    /// Loads the kernel and parks new VCPUs, as after RESET. The memory is all zeroes; no VCPU is on a PCPU.
    pub fn begin(
        &self,
        backend: &B,
        files: &impl Files,
        tsc: u64,
        cpuid: impl Fn(u32) -> CpuidTable,
    ) -> Result<(), BuildError> {
        let vm = &self.vm;
        let boot = build::fill(vm, &self.config, files, vm.nanos(tsc))?;
        vm.translation.reset();
        for (id, place) in (0..).zip(&self.parked) {
            // The old one leaves room for the new one.
            let is_first = place.lock().take().is_none();
            if is_first && !heap::has_room(Self::VCPU_BYTES) {
                return Err(BuildError::Room("virtual processors"));
            }
            vm.mailboxes[id as usize].reset();
            let mut vcpu =
                Box::new(Vcpu::new(id, backend.vcpu(&self.measures), cpuid(id), vm.clock.tsc_khz()));
            if id == 0 {
                boot.arch.store(&mut vcpu.virt);
            } else {
                vcpu.virt.reset();
            }
            vcpu.virt.set_paging(Roots::Nested(vm.memory.read().nested.root()));
            let has_tables = match id {
                0 => mmu::set_mode(&mut vcpu, vm, self.config.mode, || tsc),
                _ => mmu::follow_mode(&mut vcpu, vm, || tsc),
            };
            if let Some(entries) = self.config.paranoid {
                mmu::be_paranoid(&mut vcpu, entries);
            }
            vcpu.virt.set_tsc_offset(tsc.wrapping_neg());
            *place.lock() = Some(Parked { vcpu, context: Box::new(Context::after_reset()) });
            // Last: whoever had a VCPU here finds one, also if the guest cannot begin anew.
            has_tables.map_err(|_| BuildError::Shadow)?;
        }
        // Each has dropped the shadow tables of those before it, and these are not told if the scheduler says that they run here.
        vm.mailboxes.iter().for_each(|mailbox| mailbox.request(work::RELOAD));
        vm.hlt.reset();
        self.started.store(tsc, Ordering::Relaxed);
        self.set_rest(Rest::No);
        let mut life = self.life.lock();
        *life = Life::Lives;
        self.lives.store(true, Ordering::Release);
        Ok(())
    }

    /// Host TSC at its last start or reset.
    pub fn started(&self) -> u64 {
        self.started.load(Ordering::Relaxed)
    }

    /// What a person has asked for.
    pub fn rest(&self) -> Rest {
        *self.rest.lock()
    }

    /// A person asks for this. The caller makes the VCPUs stand still, or lets them run.
    pub fn set_rest(&self, rest: Rest) {
        *self.rest.lock() = rest;
    }

    /// Takes a VCPU to run it.
    ///
    /// # Panics
    /// If it is taken: the scheduler gives a VCPU to one PCPU at a time.
    pub fn take(&self, id: u32) -> Parked<B::Virt> {
        self.parked[id as usize].lock().take().expect("a VCPU on two PCPUs")
    }

    /// Puts it back.
    pub fn park(&self, id: u32, parked: Parked<B::Virt>) {
        *self.parked[id as usize].lock() = Some(parked);
    }

    /// Takes all VCPUs, which stand still.
    pub fn take_all(&self) -> Vec<Parked<B::Virt>> {
        (0..self.config.vcpus).map(|id| self.take(id)).collect()
    }

    /// Puts them back.
    pub fn park_all(&self, all: Vec<Parked<B::Virt>>) {
        (0..).zip(all).for_each(|(id, parked)| self.park(id, parked));
    }

    /// The VM stops for this reason, unless it has stopped already. Its VCPUs must be made to stand still.
    pub fn stop(&self, stop: Stop) {
        let mut life = self.life.lock();
        if matches!(*life, Life::Lives | Life::Renews(_)) {
            *life = Life::Stops(End::Stop(stop));
            self.lives.store(false, Ordering::Release);
        }
    }

    /// Its new start has failed: why, and the run's exit status. Its first VCPU must be made to stand still.
    pub fn fail(&self, why: String, status: u32) {
        *self.life.lock() = Life::Stops(End::Failed(why, status));
    }

    /// Why it has stopped; to one caller, who sees to what follows.
    pub fn take_stop(&self) -> Option<End> {
        let mut life = self.life.lock();
        match core::mem::replace(&mut *life, Life::IsSeenTo) {
            Life::Stops(end) => Some(end),
            other => {
                *life = other;
                None
            }
        }
    }

    /// It starts anew. Its first VCPU must be let run.
    pub fn renew(&self, stop: Stop) {
        let renewal = Renewal::new(stop, self.started(), self.vm.clock.tsc_khz());
        *self.life.lock() = Life::Renews(renewal);
    }

    /// What the first VCPU has to do, at this host TSC, for the VM to start anew; `None`: it does not.
    pub fn next_step(&self, now: u64) -> Option<Step> {
        match &mut *self.life.lock() {
            Life::Renews(renewal) => Some(renewal.next(now)),
            _ => None,
        }
    }

    /// Whether it runs, unless it is paused.
    #[inline]
    pub fn lives(&self) -> bool {
        self.lives.load(Ordering::Acquire)
    }

    /// Whether it starts anew.
    pub fn renews(&self) -> bool {
        matches!(*self.life.lock(), Life::Renews(_))
    }

    /// Whether its end or new start is still to be seen to.
    pub fn has_stopped(&self) -> bool {
        matches!(*self.life.lock(), Life::Stops(_) | Life::IsSeenTo)
    }

    /// Calls `f` with the VCPUs that may run: all of a VM that lives, the first of one that starts anew. It does not stop meanwhile, so
    /// whoever stops it afterwards has them stand still.
    pub fn for_those_that_may_run(&self, f: impl FnMut(&VcpuId)) {
        let life = self.life.lock();
        let count = match &*life {
            Life::Lives => self.handles.len(),
            Life::Renews(_) => 1,
            Life::Stops(_) | Life::IsSeenTo => 0,
        };
        self.handles.iter().take(count).for_each(f);
    }
}

/// The CPUID answers of a guest's VCPUs.
pub fn cpuid_policy(
    config: &VmConfig,
    id: u32,
    tsc_khz: u64,
    xcr0: u64,
    arch_capabilities: u64,
) -> CpuidPolicy {
    CpuidPolicy {
        apic_id: id,
        vcpus: config.vcpus,
        tsc_khz: tsc_khz as u32,
        invariant_tsc: true,
        xcr0,
        pv_clock: config.pv_clock,
        arch_capabilities,
        hidden: config.hidden,
    }
}
