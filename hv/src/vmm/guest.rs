//! One VM of the machine with its VCPUs, and its lifecycle behind a lock.
//!
//! A VCPU that no PCPU runs is stored here. The worker that runs one takes it out, and puts it back before it tells the scheduler.
//! So a caller that has seen all VCPUs of the VM descheduled can take all of them.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use spin::Mutex;

use super::backend::Backend;
use super::memory::{Frames, HostMemory};
use super::state::{Action, AdminState, Event, Lifecycle, MemoryRef};
use crate::arch::addr::PAGE_SIZE;
use crate::guest::build::{self, BuildError, HostFacts};
use crate::guest::bundle::Files;
use crate::guest::config::VmConfig;
use crate::guest::cpuid::{CpuidPolicy, CpuidTable};
use crate::hw::context::Context;
use crate::mem::heap;
use crate::mem::pager::Pager;
use crate::mem::vm_ram::VmRam;
use crate::paging::tree_key::TreeKey;
use crate::sched::{VcpuId, VmId};
use crate::vcpu::next_rip::NextRips;
use crate::vcpu::{Vcpu, mmu};
use crate::virt::speculation::Measures;
use crate::virt::{Roots, Virt};
use crate::vm::Vm;
use crate::vm::work;

/// A descheduled VCPU, with the registers that its PCPU held.
pub struct DescheduledVcpu<V: Virt> {
    /// The VCPU.
    pub vcpu: Box<Vcpu<V>>,
    /// Its registers that entries do not switch.
    pub context: Box<Context>,
}

/// The VM of a backend.
pub type VmOf<B> = Vm<<<B as Backend>::Virt as Virt>::NestedFormat, HostMemory>;

/// One VM.
pub struct Guest<B: Backend> {
    /// Its configuration.
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
    vcpus: Vec<Mutex<Option<DescheduledVcpu<B::Virt>>>>,
    lifecycle: Mutex<Lifecycle>,
    /// [`Lifecycle::is_running`] without the lock: checked in each time slice.
    running: AtomicBool,
    /// Held while a PCPU ends, restarts or starts the VM, and by the monitor while it checks that the VM is descheduled. Taken
    /// before all other locks of the VM.
    pub(super) lifecycle_lock: Mutex<()>,
    /// Dropped after everything that uses it.
    _ram: VmRam<Frames>,
    /// Dropped last.
    _memory_ref: MemoryRef,
}

impl<B: Backend> Guest<B> {
    /// Makes a VM without VCPUs.
    pub fn new(
        config: &VmConfig,
        number: u32,
        memory: HostMemory,
        facts: &HostFacts,
        mut ram: VmRam<Frames>,
        memory_ref: MemoryRef,
        measures: Measures,
        pager: Option<Arc<Pager>>,
    ) -> Result<Guest<B>, BuildError> {
        let vm = build::build(config, memory, facts, |bytes| ram.block(bytes), pager)?;
        Ok(Guest {
            config: config.clone(),
            number,
            measures,
            vm,
            sched_vm: VmId(0),
            handles: Vec::new(),
            vcpus: (0..config.vcpus).map(|_| Mutex::new(None)).collect(),
            lifecycle: Mutex::new(Lifecycle::new(config.restart, facts.tsc_khz, facts.tsc)),
            running: AtomicBool::new(false),
            lifecycle_lock: Mutex::new(()),
            _ram: ram,
            _memory_ref: memory_ref,
        })
    }

    /// What a VCPU takes at most: it, what it remembers of instructions, and the pages that the processor wants.
    const VCPU_BYTES: usize = size_of::<Vcpu<B::Virt>>() + NextRips::BYTES + (40 << 10);

    /// Tells its lifecycle of an event; what the caller must do then.
    pub fn on(&self, event: Event) -> Action {
        let mut lifecycle = self.lifecycle.lock();
        let action = lifecycle.on(event);
        self.running.store(lifecycle.is_running(), Ordering::Release);
        action
    }

    /// Loads the kernel and makes new VCPUs, as after RESET; what the caller must do then. The memory is all zeroes; no VCPU is on
    /// a PCPU.
    pub fn begin(
        &self,
        backend: &B,
        files: &impl Files,
        tsc: u64,
        modelled_time: bool,
        cpuid: impl Fn(u32) -> CpuidTable,
    ) -> Result<Action, BuildError> {
        let vm = &self.vm;
        let boot = build::fill(vm, &self.config, files, vm.nanos(tsc))?;
        vm.translation.reset();
        if let Some(shadow) = &mut *vm.shadow.write() {
            // They were made from memory that has been written without a word to them.
            let _new_vcpus_load_roots = shadow.drop_everything();
        }
        vm.sampling.reset();
        // An allocation that fails ends the hypervisor (docs/design/0001-host-memory.md); a VM that does not fit must
        // only be refused.
        if !heap::has_room(size_of::<B::MsrMap>() + PAGE_SIZE as usize) {
            return Err(BuildError::Room("the MSR permission map"));
        }
        let msr_map = backend.msr_map(cpuid(0).limits());
        for (id, place) in (0..).zip(&self.vcpus) {
            // A restart reuses the memory of the old VCPU.
            let is_first = place.lock().take().is_none();
            if is_first && !heap::has_room(Self::VCPU_BYTES) {
                return Err(BuildError::Room("virtual processors"));
            }
            vm.mailboxes[id as usize].reset();
            let mut vcpu = Box::new(Vcpu::new(
                id,
                backend.vcpu(&self.measures, &msr_map),
                cpuid(id),
                vm.clock.tsc_khz(),
            ));
            if id == 0 {
                // The loader stands for the firmware: only the boot processor starts in the kernel, the others wait for
                // INIT and start-up.
                boot.arch.store(&mut vcpu.virt);
            } else {
                vcpu.virt.reset();
            }
            vcpu.virt.set_paging(Roots::Nested(vm.memory.read().nested.root(TreeKey::FIRST)));
            let has_tables = match id {
                0 => mmu::set_mode(&mut vcpu, vm, self.config.mode, || tsc),
                _ => mmu::follow_mode(&mut vcpu, vm, || tsc),
            };
            if let Some(entries) = self.config.audit_shadow {
                mmu::audit_shadow(&mut vcpu, entries);
            }
            // The guest's TSC is 0 at its start, as after RESET.
            vcpu.virt.set_tsc_offset(tsc.wrapping_neg());
            if modelled_time {
                B::intercept_tsc(&mut vcpu.virt);
            }
            *place.lock() = Some(DescheduledVcpu { vcpu, context: Box::new(Context::after_reset()) });
            // Last: each VCPU is in its place, also if the restart fails.
            has_tables.map_err(|_| BuildError::Shadow)?;
        }
        // Each has dropped the shadow tables of those before it, and these are not told if the scheduler says that they run here.
        vm.mailboxes.iter().for_each(|mailbox| mailbox.request(work::RELOAD));
        vm.hlt.reset();
        Ok(self.on(Event::Began(tsc)))
    }

    /// Host TSC at its last start or reset.
    pub fn started(&self) -> u64 {
        self.lifecycle.lock().started()
    }

    /// The operator's request.
    pub fn admin_state(&self) -> AdminState {
        self.lifecycle.lock().admin_state()
    }

    /// Sets the operator's request. The caller pauses or resumes the VCPUs.
    pub fn set_admin_state(&self, admin_state: AdminState) {
        self.lifecycle.lock().set_admin_state(admin_state);
    }

    /// Takes a VCPU to run it.
    ///
    /// # Panics
    /// If it is taken: the scheduler gives a VCPU to one PCPU at a time.
    pub fn take(&self, id: u32) -> DescheduledVcpu<B::Virt> {
        self.vcpus[id as usize].lock().take().expect("a VCPU on two PCPUs")
    }

    /// Puts it back.
    pub fn put_vcpu(&self, id: u32, vcpu: DescheduledVcpu<B::Virt>) {
        *self.vcpus[id as usize].lock() = Some(vcpu);
    }

    /// Takes all VCPUs, which are descheduled.
    pub fn take_vcpus(&self) -> Vec<DescheduledVcpu<B::Virt>> {
        (0..self.config.vcpus).map(|id| self.take(id)).collect()
    }

    /// Puts them back.
    pub fn put_vcpus(&self, all: Vec<DescheduledVcpu<B::Virt>>) {
        (0..).zip(all).for_each(|(id, vcpu)| self.put_vcpu(id, vcpu));
    }

    /// Whether it runs, unless it is paused.
    #[inline]
    pub fn is_running(&self) -> bool {
        self.running.load(Ordering::Acquire)
    }

    /// Whether it restarts.
    pub fn is_restarting(&self) -> bool {
        self.lifecycle.lock().is_restarting()
    }

    /// Whether it has stopped, and is not ended or restarted yet.
    pub fn is_stopping(&self) -> bool {
        self.lifecycle.lock().is_stopping()
    }

    /// Calls `f` with the VCPUs that may run: all of a running VM, the first of one that restarts. The VM cannot stop meanwhile, so
    /// a later stop pauses them all.
    pub fn for_each_runnable(&self, f: impl FnMut(&VcpuId)) {
        let lifecycle = self.lifecycle.lock();
        let count = lifecycle.runnable(self.handles.len());
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
