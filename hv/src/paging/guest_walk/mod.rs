//! Walks the guest's page tables in software, exactly as the processor would: same translations, same faults
//! with the same error codes, accessed and dirty bits set in the same cases.
//!
//! Callers: the instruction emulator ([`translate`]), the monitor ([`peek`]), the shadow engine
//! ([`walk`], which shows every entry). It keeps nothing between calls. Every kind of paging is one
//! monomorphic loop.
//!
//! Rules (Intel SDM 3, chapter 4; AMD APM 2, chapter 5). Reserved bits are checked in each entry before it is
//! used. The accessed bit of an entry that points to a table is set when the walk goes on through it, even if
//! it faults further down; the bits of the leaf only if the access is allowed. Protection keys and 5-level
//! paging are hidden from guests. Writes to tables in ROM are lost, as on a real machine.

mod entry;
mod kind;
mod state;
#[cfg(test)]
mod tests;

#[cfg(any(test, feature = "testing"))]
mod fuzz;
#[cfg(any(test, feature = "testing"))]
pub use fuzz::fuzz_one;
#[cfg(any(test, feature = "testing"))]
pub mod reference;
pub use entry::{Meaning, meaning};
pub use state::{PagingFeatures, PagingKind, PagingState, Rights};

use super::format::x86;
use crate::arch::Access;
use crate::arch::addr::{Gfn, Gpa, Gva};
use crate::arch::state::cr4;
use crate::mem::guest_memory::GuestMemory;
use kind::{FourLevel, Kind, Pae, TwoLevel};

/// Bits of a page fault's error code.
#[allow(missing_docs)]
pub mod error_code {
    pub const PRESENT: u32 = 1 << 0;
    pub const WRITE: u32 = 1 << 1;
    pub const USER: u32 = 1 << 2;
    pub const RESERVED: u32 = 1 << 3;
    pub const FETCH: u32 = 1 << 4;
}

/// How often a walk starts again because another VCPU changed an entry under it.
const RETRIES: u32 = 16;

/// Where a guest-virtual address leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translation {
    /// The guest-physical address.
    pub gpa: Gpa,
    /// log2 of the guest page's size: 12, 21, 22 or 30; 32 with paging off.
    pub page_shift: u8,
    /// Every level allows writes.
    pub writable: bool,
    /// Every level allows CPL 3.
    pub user: bool,
    /// No level forbids fetches.
    pub executable: bool,
    /// The leaf is global and CR4.PGE is set.
    pub global: bool,
    /// The leaf's dirty bit, after the walk.
    pub dirty: bool,
    /// The leaf's PAT index, 0 to 7.
    pub pat: u8,
}

/// Why a walk has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkError {
    /// The guest takes #PF with this error code.
    PageFault(u32),
    /// A table lies where there is no memory.
    NotRam {
        /// The entry's address.
        table: Gpa,
    },
    /// Other VCPUs kept changing the tables: let the guest try again.
    Contended,
}

/// An entry that a walk used or stopped at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Its level; 1 holds 4 KiB leaves.
    pub level: u8,
    /// Where it is.
    pub at: Gpa,
    /// What it held when it was read, before this walk set bits in it.
    pub raw: u64,
    /// Present and a leaf.
    pub leaf: bool,
}

/// The bits that must be zero in a present entry of level 1, or in one of `level` that points to a table.
pub fn reserved(state: &PagingState, level: u8) -> u64 {
    match state.kind() {
        PagingKind::Off => 0,
        PagingKind::TwoLevel => TwoLevel::reserved(state, level, level == 1),
        PagingKind::Pae => Pae::reserved(state, level, level == 1),
        PagingKind::FourLevel => FourLevel::reserved(state, level, level == 1),
    }
}

/// The bits that must be zero in a present page-directory pointer of PAE paging.
pub fn pointer_reserved(state: &PagingState) -> u64 {
    Pae::reserved(state, 3, false)
}

/// The page directory that PAE paging uses for `gva`, if its pointer is valid.
pub fn pdpte(state: &PagingState, memory: &impl GuestMemory, gva: Gva) -> Option<Gfn> {
    let at = Pae::entry(Pae::root(state), Gva(gva.0 & 0xffff_ffff), 3);
    let raw = match state.pdptes {
        Some(loaded) => loaded[(at.0 >> 3 & 3) as usize],
        None => memory.read_u64(at).ok()?,
    };
    let valid = raw & x86::PRESENT != 0 && raw & Pae::reserved(state, 3, false) == 0;
    valid.then(|| Gpa(raw & x86::ADDRESS).frame())
}

/// Translates `gva` for `access` and sets accessed and dirty bits. `gva` is canonical ([`is_canonical`](crate::arch::addr::is_canonical)).
pub fn translate(
    state: &PagingState,
    memory: &impl GuestMemory,
    gva: Gva,
    access: Access,
) -> Result<Translation, WalkError> {
    walk(state, memory, gva, access, true, |_| ())
}

/// Translates `gva` for `access` without any effect.
pub fn peek(
    state: &PagingState,
    memory: &impl GuestMemory,
    gva: Gva,
    access: Access,
) -> Result<Translation, WalkError> {
    walk(state, memory, gva, access, false, |_| ())
}

/// Translates `gva` for `access`; sets accessed and dirty bits if `update`. `visit` is shown each entry, from
/// the root down; if the walk starts again, it is shown the root again.
pub fn walk(
    state: &PagingState,
    memory: &impl GuestMemory,
    gva: Gva,
    access: Access,
    update: bool,
    visit: impl FnMut(Step),
) -> Result<Translation, WalkError> {
    let walker = Walker { state, memory, access, update };
    let low = Gva(gva.0 & 0xffff_ffff);
    match state.kind() {
        PagingKind::Off => Ok(Translation {
            gpa: Gpa(low.0),
            page_shift: 32,
            writable: true,
            user: true,
            executable: true,
            global: false,
            dirty: true,
            pat: 0,
        }),
        PagingKind::TwoLevel => walker.run::<TwoLevel>(low, visit),
        PagingKind::Pae => walker.run::<Pae>(low, visit),
        PagingKind::FourLevel => walker.run::<FourLevel>(gva, visit),
    }
}

/// Why one attempt of a walk ended.
enum Stop {
    /// An entry changed between its reading and its update.
    Changed,
    Error(WalkError),
}

impl From<WalkError> for Stop {
    fn from(error: WalkError) -> Stop {
        Stop::Error(error)
    }
}

struct Walker<'a, G> {
    state: &'a PagingState,
    memory: &'a G,
    access: Access,
    update: bool,
}

impl<G: GuestMemory> Walker<'_, G> {
    fn run<K: Kind>(&self, gva: Gva, mut visit: impl FnMut(Step)) -> Result<Translation, WalkError> {
        for _ in 0..RETRIES {
            match self.attempt::<K>(gva, &mut visit) {
                Ok(found) => return Ok(found),
                Err(Stop::Error(error)) => return Err(error),
                Err(Stop::Changed) => {}
            }
        }
        Err(WalkError::Contended)
    }

    fn attempt<K: Kind>(&self, gva: Gva, visit: &mut impl FnMut(Step)) -> Result<Translation, Stop> {
        let mut table = K::root(self.state);
        let mut rights = Rights { writable: true, user: true, executable: true };
        let mut level = K::ROOT_LEVEL;
        loop {
            let at = K::entry(table, gva, level);
            let raw = self.read::<K>(at, level)?;
            let present = raw & x86::PRESENT != 0;
            let leaf = present && K::is_leaf(self.state, raw, level);
            visit(Step { level, at, raw, leaf });
            if !present {
                return Err(self.fault(0).into());
            }
            if raw & K::reserved(self.state, level, leaf) != 0 {
                return Err(self.fault(error_code::PRESENT | error_code::RESERVED).into());
            }
            if K::has_rights(level) {
                rights.writable &= raw & x86::WRITE != 0;
                rights.user &= raw & x86::USER != 0;
                rights.executable &= raw & x86::NO_EXECUTE == 0;
            }
            if leaf {
                return self.finish::<K>(gva, level, at, raw, rights);
            }
            if K::has_rights(level) {
                self.set::<K>(at, raw, x86::ACCESSED)?;
            }
            table = Gpa(raw & x86::ADDRESS);
            level -= 1;
        }
    }

    fn finish<K: Kind>(
        &self,
        gva: Gva,
        level: u8,
        at: Gpa,
        raw: u64,
        rights: Rights,
    ) -> Result<Translation, Stop> {
        if !self.state.allows(self.access, rights) {
            return Err(self.fault(error_code::PRESENT).into());
        }
        let bits = if self.access.write { x86::ACCESSED | x86::DIRTY } else { x86::ACCESSED };
        let raw = self.set::<K>(at, raw, bits)?;
        let shift = K::shift(level);
        let page = if level == 1 { raw & x86::ADDRESS } else { K::large_address(raw, level) };
        Ok(Translation {
            gpa: Gpa(page | gva.0 & ((1 << shift) - 1)),
            page_shift: shift as u8,
            writable: rights.writable,
            user: rights.user,
            executable: rights.executable,
            global: raw & x86::GLOBAL != 0 && self.state.cr4 & cr4::PGE != 0,
            dirty: raw & x86::DIRTY != 0,
            pat: x86::pat_index(raw, level),
        })
    }

    /// A #PF of this access; `code` holds P and RSVD.
    fn fault(&self, code: u32) -> WalkError {
        WalkError::PageFault(self.state.fault_code(self.access, code))
    }

    fn read<K: Kind>(&self, at: Gpa, level: u8) -> Result<u64, WalkError> {
        if K::ROOT_LEVEL == 3
            && level == 3
            && let Some(loaded) = self.state.pdptes
        {
            return Ok(loaded[(at.0 >> 3 & 3) as usize]);
        }
        self.memory.read_entry(at, K::ENTRY_BYTES).map_err(|_| WalkError::NotRam { table: at })
    }

    /// Sets accessed and dirty bits in an entry that was `raw`; returns what it is then, as far as the walk is
    /// concerned.
    fn set<K: Kind>(&self, at: Gpa, raw: u64, bits: u64) -> Result<u64, Stop> {
        if !self.update || raw & bits == bits {
            return Ok(raw);
        }
        match self.memory.compare_exchange(at, K::ENTRY_BYTES as usize, raw, raw | bits) {
            Ok(true) => Ok(raw | bits),
            Ok(false) => Err(Stop::Changed),
            // It was readable a moment ago: memory that does not take writes. They are lost, and the access goes on.
            Err(_) => Ok(raw | bits),
        }
    }
}
