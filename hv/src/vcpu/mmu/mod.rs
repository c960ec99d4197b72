//! The tables with which a VCPU enters the guest, and the change from one engine's to another's.
//!
//! Owned by the VCPU; which engine the VM is to use stands in its `translation`. Exit handlers ask for a root ([`load`]),
//! handle a page fault ([`fault`]) or change the engine ([`switch`]). The run loop calls [`serve`] before an entry while [`work::MMU`] is set. What must hold when the guest is
//! entered: with shadow tables, the root in the processor is that of the guest's registers, and every flush that the
//! engine owed has been asked for.
//!
//! Locks: the VM's memory, then its shadow tables.

mod agile;
mod audit;
mod choose;
pub mod decisions;
mod fault;
mod guard;
mod phase;
mod refill_window;
pub(super) mod spaces;
mod switch;

use agile::AgileEntry;
pub use agile::AgileExits;
use decisions::Decisions;
use fault::no_memory;
pub use fault::{execute_on_nested, page_fault};
pub use switch::{SwitchCounts, follow_changes, set_tree, switch};

use core::num::NonZeroU32;

use crate::arch::addr::Gva;
use crate::arch::state::cr4;
use crate::mem::table_memory::TableMemory;
use crate::paging::MapError;
use crate::paging::engine::{Engine, Engines};
use crate::paging::format::PteFormat;
use crate::paging::guest_walk::PagingState;
use crate::paging::policy::{Mode, engines_of};
use crate::paging::shadow::{AddressSpace, PatEntries, Registers, Shadow, TlbFlush};
use crate::paging::tree_key::TreeKey;
use crate::vcpu::Vcpu;
use crate::vcpu::outcome::Stop;
use crate::vcpu::overcommit;
use crate::virt::{FlushScope, Roots, Virt};
use crate::vm::work;
use crate::vm::{HostMemory, Vm};
use audit::Audit;
use refill_window::RefillWindow;
use spaces::SpaceEntry;

/// The execution of a single instruction on nested tables, where shadow paging cannot let it pass and the emulator does not
/// know it. For its time the VCPU excludes all other engines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum NestedStep {
    #[default]
    None,
    /// The next entry executes the instruction.
    Armed,
    /// Its exit has come.
    Done,
}

/// One VCPU's address translation.
#[derive(Debug)]
pub struct Mmu {
    /// The engine whose tables the processor has.
    engine: Engine,
    /// The engines on which the guest can run in its state, as the VM's `translation` was told.
    supported: Engines,
    nested_step: NestedStep,
    /// The set of tables that it uses, of either engine.
    tree: TreeKey,
    /// The root must be found again before the next entry.
    reload: bool,
    /// Exceptions that the guest had taken when unsync tables were compared last, or a later number without faults in between.
    faults_in_step: u64,
    /// The root lies where the processor cannot reach it.
    out_of_reach: bool,
    /// The page that the shadow tables guard for this VCPU.
    guarded: Option<Gva>,
    refill_window: Option<RefillWindow>,
    /// What agile paging keeps for a VCPU.
    pub agile: AgileEntry,
    /// What is kept where the engine is chosen for each address space.
    space: SpaceEntry,
    audit: Option<Audit>,
    /// What agile paging has decided since the last entry.
    decisions: Decisions,
    /// Changes so far.
    pub switches: SwitchCounts,
}

impl Default for Mmu {
    fn default() -> Mmu {
        Mmu {
            engine: Engine::Nested,
            supported: Engines::ALL,
            nested_step: NestedStep::None,
            tree: TreeKey::FIRST,
            reload: false,
            faults_in_step: 0,
            out_of_reach: false,
            guarded: None,
            refill_window: None,
            agile: AgileEntry::default(),
            space: SpaceEntry::default(),
            audit: None,
            decisions: Decisions::default(),
            switches: SwitchCounts::default(),
        }
    }
}

impl Mmu {
    /// The engine whose tables the processor has.
    pub fn engine(&self) -> Engine {
        self.engine
    }

    /// The set of tables that it uses, of either engine.
    pub fn tree(&self) -> TreeKey {
        self.tree
    }

    /// Whether shadow tables translate.
    #[inline(always)]
    pub fn is_shadow(&self) -> bool {
        self.engine.is_shadow()
    }
}

impl<V: Virt> Vcpu<V> {
    /// The root of the shadow tables must be found again: registers that it depends on have changed, or it is gone.
    #[inline]
    pub fn request_root(&mut self) {
        if self.mmu.is_shadow() {
            self.mmu.reload = true;
            self.request(work::MMU);
        } else if !V::UNRESTRICTED {
            self.request(work::MMU);
        }
    }

    /// Asks for what the shadow engine owes the processor.
    #[inline(always)]
    fn perform_flush(&mut self, flush: TlbFlush) {
        match flush {
            TlbFlush::None => {}
            TlbFlush::Page(gva) => self.virt.flush(FlushScope::Address(gva)),
            TlbFlush::NonGlobal => self.virt.flush(FlushScope::NonGlobal),
            TlbFlush::All => self.virt.flush(FlushScope::All),
        }
    }
}

/// Has the shadow tables checked before every `every`-th entry from now on.
pub fn audit_shadow<V: Virt>(vcpu: &mut Vcpu<V>, every: NonZeroU32) {
    vcpu.mmu.audit = Some(Audit::new(every));
    vcpu.request(work::MMU);
}

/// Milliseconds between samples where only a policy asks for them.
const SAMPLES_MS: u64 = 10;

/// Has the VM run in `mode` from now on; for one of its VCPUs, the others come by [`follow_mode`]. Fails only for want of host
/// memory; then nothing has changed.
pub fn set_mode<V: Virt, M: HostMemory>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    mode: Mode,
    tsc: impl Fn() -> u64,
) -> Result<(), MapError> {
    // Here, so that no change fails later.
    if engines_of(mode).uses_shadow() {
        switch::prepare(vcpu, vm)?;
    }
    if mode.needs_samples() || matches!(mode, Mode::Commodity(_)) {
        vm.sampling.start(SAMPLES_MS * vm.clock.tsc_khz(), tsc());
    }
    vm.translation.request(mode);
    follow_mode(vcpu, vm, tsc)
}

/// Has the VCPU use the engine that the VM's mode asks for, as far as its state allows that when it enters the guest.
pub fn follow_mode<V: Virt, M: HostMemory>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    tsc: impl Fn() -> u64,
) -> Result<(), MapError> {
    vcpu.mmu.nested_step = NestedStep::None;
    if vm.sampling.is_on() {
        // The first sample may be due before the timer that it has armed so far.
        vcpu.request(work::TIMERS);
    }
    if !V::UNRESTRICTED || vm.translation.counts_exits() {
        vcpu.request(work::MMU);
    }
    spaces::end(vcpu, vm);
    switch::follow_upper(vcpu, vm);
    if vm.translation.is_by_space() {
        // Each address space has its own, from the next entry on.
        vcpu.request(work::MMU);
        return Ok(());
    }
    switch(vcpu, vm, vm.translation.wanted(), tsc)?;
    if !engines_of(vm.translation.mode()).uses_shadow() {
        switch::give_back(vcpu, vm);
    }
    Ok(())
}

/// The guest's registers as the shadow engine is told them: with CR4.PGE, whatever the guest has there. The processor has the
/// guest's own PGE, and without it ignores the G bits of entries; so the same tables serve both, and no change of PGE, by
/// which kernels flush, needs another root.
pub(super) fn shadowed_state<V: Virt, M: HostMemory>(
    vcpu: &Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
) -> PagingState {
    let state = PagingState::of(&vcpu.virt, vm.paging_features);
    PagingState { cr4: state.cr4 | cr4::PGE, ..state }
}

/// Those registers of it that a root depends on, with this CR0.
#[inline(always)]
fn shadowed_registers<V: Virt>(vcpu: &Vcpu<V>, cr0: u64) -> Registers {
    Registers { cr0, cr3: vcpu.virt.cr3(), cr4: vcpu.virt.cr4() | cr4::PGE, efer: vcpu.virt.efer() }
}

/// Finds the shadow root for the guest's registers and hands it to the processor.
pub fn load<V: Virt, M: HostMemory>(vcpu: &mut Vcpu<V>, vm: &Vm<V::NestedFormat, M>) {
    vcpu.mmu.reload = false;
    let state = shadowed_state(vcpu, vm);
    let memory = vm.read_memory(&mut vcpu.work);
    let mut shadow = vm.lock_shadow(vcpu.id, &mut vcpu.work);
    let Some(shadow) = &mut *shadow else { return };
    let (root, flush) = shadow.load(AddressSpace::new(&memory.p2m, &memory.ram(), &state));
    vcpu.virt.set_paging(Roots::Shadow(root.frame.base()));
    vcpu.perform_flush(flush);
    follow_unsync(vcpu, shadow);
    overcommit::note(vcpu, vm);
    if !root.is_reachable() {
        vcpu.mmu.out_of_reach = true;
        vcpu.request(work::MMU);
    }
}

/// The same for a guest with this CR0, if it is a root that was in use lately and nothing must be done for it but to load it. False:
/// nothing has changed.
#[inline(always)]
pub fn load_recent<V: Virt, M: HostMemory>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    cr0: u64,
) -> bool {
    // Without the VM's memory: the root is looked up, not made, and a change of the P2m takes the shadow tables after it.
    let Some(mut shadow) = vm.shadow.try_write() else { return false };
    let Some(shadow) = &mut *shadow else { return false };
    shadow.switch_vcpu(vcpu.id);
    let Some((root, flush)) = shadow.load_recent(&shadowed_registers(vcpu, cr0)) else { return false };
    vcpu.mmu.reload = false;
    vcpu.virt.set_paging(Roots::Shadow(root.frame.base()));
    vcpu.perform_flush(flush);
    true
}

/// A flush of everything by the guest, which the caller asks the processor for: whether that is all, because the guest has not
/// changed its tables unseen. False: the root must be loaded.
#[inline(always)]
pub fn flushed_by_guest<V: Virt, M: HostMemory>(vcpu: &Vcpu<V>, vm: &Vm<V::NestedFormat, M>) -> bool {
    // Without the VM's memory, as above.
    let Some(mut shadow) = vm.shadow.try_write() else { return false };
    let Some(shadow) = &mut *shadow else { return false };
    shadow.switch_vcpu(vcpu.id);
    shadow.is_in_step()
}

/// The guest's PAT may have changed, or shadow tables are about to be used: memory keeps the types that the guest gives it.
pub fn follow_pat<V: Virt, M: HostMemory>(vcpu: &mut Vcpu<V>, vm: &Vm<V::NestedFormat, M>) {
    if !vcpu.mmu.is_shadow() {
        return;
    }
    let guest = vcpu.virt.switched_msr(crate::arch::msr::PAT);
    let pat = guest.zip(vcpu.virt.host_pat()).and_then(|(guest, host)| PatEntries::new(guest, host));
    let changed = {
        let mut shadow = vm.lock_shadow(vcpu.id, &mut vcpu.work);
        shadow.as_mut().map(|shadow| shadow.set_pat(pat))
    };
    let Some((reload, flush)) = changed else { return };
    vcpu.perform_flush(flush);
    if reload.is_some() {
        vcpu.request_root();
    }
}

/// INVLPG by the guest.
pub fn invlpg<V: Virt, M: HostMemory>(vcpu: &mut Vcpu<V>, vm: &Vm<V::NestedFormat, M>, gva: Gva) {
    let memory = vm.read_memory(&mut vcpu.work);
    let mut shadow = vm.lock_shadow(vcpu.id, &mut vcpu.work);
    let Some(shadow) = &mut *shadow else { return };
    let flush = shadow.invlpg(&memory.ram(), gva);
    vcpu.perform_flush(flush);
    follow_unsync(vcpu, shadow);
}

/// Has the guest's INVLPG exit or not, as the tables are now: after whatever may have made one of them unsync, before the guest
/// goes on. What brings them in step need not be followed at once.
#[inline(always)]
fn follow_unsync<V: Virt, M: TableMemory>(vcpu: &mut Vcpu<V>, shadow: &Shadow<M, V::NestedFormat>) {
    if V::NestedFormat::FILTERS_FAULTS {
        vcpu.virt.set_invlpg_exits(!shadow.passes_invlpg());
    }
}

/// Another VCPU has changed the tables, or dropped all of them.
#[cold]
pub fn forget<V: Virt>(vcpu: &mut Vcpu<V>) {
    if vcpu.work & work::RELOAD != 0 {
        vcpu.request_root();
    }
    vcpu.work &= !(work::FLUSH | work::RELOAD);
    vcpu.virt.flush(FlushScope::All);
}

/// A flush of everything by the guest.
pub fn flush_all<V: Virt, M: HostMemory>(vcpu: &mut Vcpu<V>, vm: &Vm<V::NestedFormat, M>) {
    let memory = vm.read_memory(&mut vcpu.work);
    let mut shadow = vm.lock_shadow(vcpu.id, &mut vcpu.work);
    let Some(shadow) = &mut *shadow else { return };
    let flush = shadow.flush_all(&memory.ram());
    vcpu.perform_flush(flush);
    follow_unsync(vcpu, shadow);
}

/// What [`work::MMU`] stands for, once for each entry. The end of a guest for which there is no memory, or whose shadow
/// tables are found to be wrong.
pub fn serve<V: Virt, M: HostMemory>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    tsc: impl Fn() -> u64,
) -> Result<(), Stop> {
    vcpu.work &= !work::MMU;
    let begun = if vcpu.mmu.engine == Engine::Agile { tsc() } else { 0 };
    switch::follow(vcpu, vm);
    let is_by_space = vm.translation.is_by_space();
    if is_by_space {
        spaces::follow(vcpu, vm, tsc());
    }
    if let Some(to) = choose::choose(vcpu, vm)? {
        switch(vcpu, vm, to, &tsc).map_err(|error| no_memory(vcpu, error))?;
    }
    if is_by_space {
        spaces::watch_loads(vcpu, vm);
        if vm.translation.keeps_upper() {
            spaces::protect_unwritten(vcpu, vm, tsc());
        }
    }
    guard::follow(vcpu, vm);
    if vcpu.mmu.reload {
        load(vcpu, vm);
    }
    if core::mem::take(&mut vcpu.mmu.out_of_reach) {
        return Err(no_memory(vcpu, MapError::Address));
    }
    if vcpu.mmu.engine == Engine::Agile {
        agile::prepare_entry(vcpu, vm, begun, &tsc);
    }
    audit::check(vcpu, vm)?;
    if choose::wants_each_entry(vcpu, vm) || vcpu.mmu.audit.is_some() || vcpu.mmu.guarded.is_some() {
        vcpu.request(work::MMU);
    }
    Ok(())
}
