//! Which tables translate the guest's addresses: nested ones, or shadow tables, and the way from one to the other.
//!
//! Owned by the VCPU; exit handlers ask it to load a root ([`load`]), handle a page fault ([`fault`]) or change the mode
//! ([`switch`]). The run loop calls [`serve`] before an entry while [`work::MMU`] is set. What must hold when the guest is
//! entered: with shadow tables, the root in the processor is that of the guest's registers, and every flush that the
//! engine owed has been asked for.
//!
//! Locks: the VM's memory, then its shadow tables.

mod fault;
mod fit;
mod paranoia;
mod settle;
mod switch;

use fault::no_memory;
pub use fault::page_fault;
pub use switch::{SwitchCounts, switch};

use core::num::NonZeroU32;

use crate::arch::addr::Gva;
use crate::guest::config::Mode;
use crate::paging::MapError;
use crate::paging::guest_walk::PagingState;
use crate::paging::shadow::{PatEntries, TlbFlush};
use crate::vcpu::Vcpu;
use crate::vcpu::outcome::Stop;
use crate::virt::{FlushScope, Roots, Virt};
use crate::vm::work;
use crate::vm::{HostMemory, Vm};
use paranoia::Paranoia;
use settle::Settling;

/// The tables in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Paging {
    /// The guest's own, and nested ones below.
    #[default]
    Nested,
    /// Shadow tables in the place of the guest's.
    Shadow,
}

impl Paging {
    /// The name in logs and statistics.
    pub const fn name(self) -> &'static str {
        match self {
            Paging::Nested => "nested",
            Paging::Shadow => "shadow",
        }
    }

    /// The one that `as u8` makes this number of.
    const fn from_number(number: u8) -> Paging {
        if number == Paging::Shadow as u8 { Paging::Shadow } else { Paging::Nested }
    }

    /// The other one.
    pub const fn other(self) -> Paging {
        match self {
            Paging::Nested => Paging::Shadow,
            Paging::Shadow => Paging::Nested,
        }
    }
}

/// A short stay with nested tables for an instruction that shadow paging cannot let pass and the emulator does not know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Excursion {
    #[default]
    None,
    /// The next entry executes the instruction.
    Begins,
    /// Its exit has come: back to shadow tables.
    Ends,
}

/// One VCPU's address translation.
#[derive(Debug, Default)]
pub struct Mmu {
    paging: Paging,
    /// Change the tables every so many exits.
    every: Option<NonZeroU32>,
    /// Exits until the next change.
    left: u32,
    excursion: Excursion,
    /// The processor cannot run the guest on the tables that are wanted: the others are in use.
    displaced: bool,
    /// The root must be found again before the next entry.
    reload: bool,
    /// The root lies where the processor cannot reach it.
    out_of_reach: bool,
    settling: Option<Settling>,
    paranoia: Option<Paranoia>,
    /// Changes so far.
    pub switches: SwitchCounts,
}

impl Mmu {
    /// The tables in use.
    pub fn paging(&self) -> Paging {
        self.paging
    }

    /// Whether shadow tables translate.
    #[inline(always)]
    pub fn is_shadow(&self) -> bool {
        self.paging == Paging::Shadow
    }

    /// What a person asked for.
    pub fn mode(&self) -> Mode {
        match (self.every, self.wanted(), self.excursion) {
            (Some(exits), ..) => Mode::Switch(exits),
            (None, Paging::Nested, Excursion::None) => Mode::Nested,
            (None, ..) => Mode::Shadow,
        }
    }
}

impl<V: Virt> Vcpu<V> {
    /// The root of the shadow tables must be found again: registers that it depends on have changed, or it is gone.
    #[inline]
    pub fn request_root(&mut self) {
        if self.mmu.is_shadow() {
            self.mmu.reload = true;
            self.request(work::MMU);
        } else if !V::RUNS_ANYTHING {
            self.request(work::MMU);
        }
    }

    /// Asks for what the shadow engine owes the processor.
    #[inline]
    fn perform_flush(&mut self, flush: TlbFlush) {
        match flush {
            TlbFlush::None => {}
            TlbFlush::Page(gva) => self.virt.flush(FlushScope::Address(gva)),
            TlbFlush::NonGlobal => self.virt.flush(FlushScope::NonGlobal),
            TlbFlush::All => self.virt.flush(FlushScope::All),
        }
    }
}

/// Has the shadow tables checked before every so many entries from now on.
pub fn be_paranoid<V: Virt>(vcpu: &mut Vcpu<V>, every: NonZeroU32) {
    vcpu.mmu.paranoia = Some(Paranoia::new(every));
    vcpu.request(work::MMU);
}

/// Begins to run in `mode`, or changes to it. Fails only for want of host memory; then nothing has changed.
pub fn set_mode<V: Virt, M: HostMemory>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    mode: Mode,
    tsc: impl Fn() -> u64,
) -> Result<(), MapError> {
    // Here, so that no change fails later.
    if mode != Mode::Nested {
        switch::prepare(vcpu, vm)?;
    }
    vcpu.mmu.excursion = Excursion::None;
    vcpu.mmu.displaced = false;
    vcpu.mmu.every = None;
    if !V::RUNS_ANYTHING {
        vcpu.request(work::MMU);
    }
    match mode {
        Mode::Nested => switch(vcpu, vm, Paging::Nested, tsc),
        Mode::Shadow => switch(vcpu, vm, Paging::Shadow, tsc),
        Mode::Switch(exits) => {
            vcpu.mmu.every = Some(exits);
            vcpu.mmu.left = exits.get();
            vcpu.request(work::MMU);
            Ok(())
        }
    }
}

/// Finds the shadow root for the guest's registers and hands it to the processor.
pub fn load<V: Virt, M: HostMemory>(vcpu: &mut Vcpu<V>, vm: &Vm<V::NestedFormat, M>) {
    vcpu.mmu.reload = false;
    let state = PagingState::of(&vcpu.virt, vm.paging_features);
    let memory = vm.read_memory(&mut vcpu.work);
    let mut shadow = vm.lock_shadow(vcpu.id, &mut vcpu.work);
    let Some(shadow) = &mut *shadow else { return };
    let (root, flush) = shadow.load(&memory.p2m, &memory.ram(), &state);
    vcpu.virt.set_paging(Roots::Shadow(root.frame.base()));
    vcpu.perform_flush(flush);
    if !root.is_reachable() {
        vcpu.mmu.out_of_reach = true;
        vcpu.request(work::MMU);
    }
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
}

/// What [`work::MMU`] stands for, once for each entry. The end of a guest for which there is no memory, or whose shadow
/// tables are found to be wrong.
pub fn serve<V: Virt, M: HostMemory>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    tsc: impl Fn() -> u64,
) -> Result<(), Stop> {
    vcpu.work &= !work::MMU;
    switch::follow(vcpu, vm);
    let due = vcpu.mmu.due();
    if !V::RUNS_ANYTHING {
        fit::fit(vcpu, vm, due, &tsc)?;
    } else if let Some(to) = due {
        switch(vcpu, vm, to, &tsc).map_err(|error| no_memory(vcpu, error))?;
    }
    if vcpu.mmu.reload {
        load(vcpu, vm);
    }
    if core::mem::take(&mut vcpu.mmu.out_of_reach) {
        return Err(no_memory(vcpu, MapError::Address));
    }
    paranoia::check(vcpu, vm)?;
    if vcpu.mmu.wants_each_entry() {
        vcpu.request(work::MMU);
    }
    Ok(())
}

impl Mmu {
    /// The tables that would be in use if the processor could run the guest on any.
    fn wanted(&self) -> Paging {
        if self.displaced { self.paging.other() } else { self.paging }
    }

    /// The tables that the next entry is due to use, if they change.
    fn due(&mut self) -> Option<Paging> {
        let now = self.wanted();
        let mut to = now;
        match self.excursion {
            Excursion::None => {}
            // Nothing may come between it and its instruction.
            Excursion::Begins => {
                self.excursion = Excursion::Ends;
                return None;
            }
            Excursion::Ends => {
                self.excursion = Excursion::None;
                to = Paging::Shadow;
            }
        }
        if let Some(exits) = self.every {
            self.left -= 1;
            if self.left == 0 {
                self.left = exits.get();
                to = to.other();
            }
        }
        (to != now).then_some(to)
    }

    /// Whether [`serve`] has something to do before the entry after the next.
    fn wants_each_entry(&self) -> bool {
        self.every.is_some() || self.excursion != Excursion::None || self.displaced || self.paranoia.is_some()
    }
}
