//! The walk that the processor proposed by agile paging would make, by the lab machine's model, beside what the machine under test
//! came to: through the same three trees, from the shadow root over the switching bits into the guest's tables.
//!
//! Only an access for which a fault has just been handled is compared: what was filled before may be older than the guest's
//! tables, for which the guest owes a flush. What must hold then: the walk finds the same frame, with no more rights in the
//! stand-in than in the guest's tables, all entries of the guest's on its way are accessed and for a write dirty, and where
//! the guest's tables have nothing, it finds nothing in them.

use super::Guest;
use super::layout::{HOST, HOST_BYTES, TABLE_BYTES};
use super::machine::Machine;
use crate::arch::Access;
use crate::arch::addr::{Gpa, Gva, Hfn, Hpa, PAGE_SIZE};
use crate::arch::state::{cr0, cr4};
use crate::mem::host_access::{HostAccess, VecHost};
use crate::mem::table_memory::TableMemory;
use crate::paging::arena::Arena;
use crate::paging::format::x86::{ACCESSED, DIRTY};
use crate::paging::guest_walk::{PagingKind, PagingState};
use crate::paging::model::{Modelled, Vendor};
use labsim::model::memory::Memory;
use labsim::model::space::{Kind, Spaces};
use labsim::model::walk::{Access as Wanted, Agile, Environment, Format, Regime, WalkTags, Walker};

/// The machine's memory as the walker reads it, and the guest's entries that it has used.
struct Physical<'a> {
    arena: &'a Arena,
    host: &'a VecHost,
    /// Where they are, and whether for a store.
    used: Vec<(Hpa, bool)>,
}

/// Whether an address is in the guest's memory.
fn is_guests(at: u64) -> bool {
    (HOST.0..HOST.0 + HOST_BYTES).contains(&at)
}

impl Memory for Physical<'_> {
    fn read_u64(&self, pa: u64) -> Option<u64> {
        if is_guests(pa) {
            return Some(self.host.load(Hpa(pa)));
        }
        Some(self.arena.load(Hfn(pa / PAGE_SIZE), (pa % PAGE_SIZE / 8) as usize))
    }
}

impl Environment for Physical<'_> {
    fn reference(&mut self, _: u64) {}

    fn use_entry(&mut self, pa: u64, dirty: bool) -> bool {
        if is_guests(pa) {
            self.used.push((Hpa(pa), dirty));
        }
        false
    }
}

impl<F: Modelled> Machine<'_, F> {
    /// Compares an access that has been answered after a fault: with the frame and offset that it reached, or `None` where the
    /// guest's tables lead nowhere. The model knows the tables of AMD's processors, and agile paging those of four levels.
    ///
    /// # Errors
    /// What differs.
    pub(super) fn compare_walk(
        &self,
        p2m: &Guest,
        state: &PagingState,
        gva: Gva,
        access: Access,
        reached: Option<Hpa>,
    ) -> Result<(), String> {
        let is_modelled = F::VENDOR == Vendor::Amd && state.kind() == PagingKind::FourLevel;
        // Nested tables lack pages that have moved or come back, until they are touched there. Where the engine is broken on
        // purpose, accesses alone must tell.
        let is_complete = !p2m.may_be_absent() && !self.omits.is_unchecked();
        if !is_modelled || !is_complete || !self.shadow.is_modelled() {
            return Ok(());
        }
        let regime = Regime {
            format: Format::Long,
            cr3: self.root.frame.base().0,
            global_pages: state.cr4 & cr4::PGE != 0,
            nested: None,
        };
        let words =
            abi::agile::Words::new(false, self.shadow.is_root_nested(), state.cr3, self.nested.root().0);
        let agile = Agile::of(&words, state.cr0 & cr0::WP != 0).ok_or("the words say nothing")?;
        let spaces = Spaces::default();
        let tags = WalkTags { linear: spaces.tag(1, Kind::Linear), nested: spaces.tag(1, Kind::Nested) };
        let mut physical = Physical { arena: self.arena, host: &self.host, used: Vec::new() };
        let wanted = Wanted { va: gva.0, write: access.write };
        let walk = Walker::default().walk_agile(&regime, &agile, wanted, (tags, &spaces), &mut physical);
        let told = |what: &str| Err(format!("{gva:?} {access:?}: {what}: {walk:x?}, the access {reached:?}"));
        let Some(reached) = reached else {
            // A stand-in that did not allow the access may be older than the guest's entry, for which the guest owes a flush.
            let is_found = walk.found.is_ok() && !walk.disagrees;
            return if is_found { told("the modelled walk finds something") } else { Ok(()) };
        };
        if walk.found.map(|found| found.pa) != Ok(reached.frame().base().0) {
            return told("the modelled walk leads elsewhere");
        }
        if walk.disagrees {
            return told("a stand-in allows more than the guest's tables, or leads elsewhere");
        }
        for (at, dirty) in physical.used {
            let bits = ACCESSED | if dirty { DIRTY } else { 0 };
            // Of a table in ROM they cannot be set, and where such tables are walked at all that is no reason to stop.
            let is_rom = || {
                let pages = (0..TABLE_BYTES).step_by(PAGE_SIZE as usize).map(|at| p2m.peek(Gpa(at)));
                !pages.filter_map(|page| page.writable()).any(|page| page.frame() == at.frame())
            };
            if self.host.load(at) & bits != bits && !is_rom() {
                return told("an entry of the guest's lacks its accessed or dirty bit");
            }
        }
        Ok(())
    }
}
