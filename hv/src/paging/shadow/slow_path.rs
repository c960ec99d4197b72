//! Page faults: what the guest's tables and the P2m say becomes shadow entries.

use super::fault::{AddressSpace, PageFault};
use super::phase::IsOpen;
use super::pool::PageId;
use super::role::{Allowed, Controls, HOST_WRITABLE, Key, Role, Source};
use super::root::root_key;
use super::{Shadow, ShadowOutcome, TlbFlush};
use crate::arch::addr::{Gfn, Gva, Hpa, PageSize};
use crate::mem::guest_memory::GuestMemory;
use crate::mem::table_memory::TableMemory;
use crate::paging::format::PteFormat;
use crate::paging::format::x86::{ACCESSED, DIRTY, LongMode, NO_EXECUTE, PRESENT, PageAttr, USER, WRITE};
use crate::paging::guest_walk::{PagingKind, PagingState, Step, Translation, WalkError, walk};
use crate::paging::p2m::{P2m, P2mEntry};
use crate::paging::tree_key::TreeKey;

/// The entries of the guest that a walk used, by level.
#[derive(Default)]
struct Path([Option<Step>; 4]);

impl Path {
    fn see(&mut self, step: Step) {
        // A walk that starts again comes back to a level.
        self.0[..usize::from(step.level)].fill(None);
        self.0[usize::from(step.level) - 1] = Some(step);
    }

    fn at(&self, level: u8) -> Option<Step> {
        self.0[usize::from(level) - 1]
    }

    fn leaf(&self) -> Option<Step> {
        self.0.iter().flatten().next().copied()
    }
}

/// One fault, and what the guest's tables say about it.
struct GuestWalk<'a> {
    state: &'a PagingState,
    controls: Controls,
    fault: PageFault,
    /// The entries on the path.
    path: Path,
    /// Where they lead.
    found: Translation,
}

impl GuestWalk<'_> {
    /// The rights of a leaf with this guest translation, on memory that can be written if `writable`.
    fn attr(&self, writable: bool) -> PageAttr {
        let found = &self.found;
        let mut attr = PageAttr {
            write: found.writable && found.dirty,
            user: found.user,
            execute: found.executable,
            global: found.global,
            pat: found.pat,
        };
        if !found.writable && found.dirty && self.is_override() {
            // Without CR0.WP the supervisor writes to read-only pages. The processor runs with it: the page is
            // writable, and out of the user's reach until the user's next access. It must not look like a
            // supervisor page to SMEP.
            attr.write = true;
            attr.user = false;
            attr.execute &= !(found.user && self.controls.contains(Controls::SMEP));
        }
        attr.write &= writable;
        attr
    }

    /// A supervisor write without CR0.WP.
    fn is_override(&self) -> bool {
        self.fault.access.write && !self.fault.access.user && !self.controls.contains(Controls::WRITE_PROTECT)
    }

    /// The entry of a shadow page of `level` for the address.
    fn index(&self, level: u8) -> usize {
        index(self.fault.gva, level)
    }
}

/// The entry of a shadow page of `level` for `gva`; at the top of three levels the address has 32 bits.
pub(super) fn index(gva: Gva, level: u8) -> usize {
    (gva.0 >> (12 + 9 * (u32::from(level) - 1)) & 511) as usize
}

impl<M: TableMemory, F: PteFormat> Shadow<M, F> {
    /// Handles a page fault of the processor. The guest's accessed and dirty bits are set as the processor would.
    #[inline(always)]
    pub fn fault(
        &mut self,
        space: AddressSpace<'_, impl TableMemory, impl GuestMemory>,
        fault: PageFault,
    ) -> (ShadowOutcome, TlbFlush) {
        self.begin();
        let fault = fault.within(self.linear);
        let known = self.known_leaf(fault.gva).copied();
        let outcome = match known {
            Some(leaf) => self.exclusive_fast_path(space, fault, leaf),
            None => None,
        };
        let outcome = match outcome {
            Some(outcome) => outcome,
            None => self.find_or_walk(space, fault, known.is_some()),
        };
        self.statistics.count_fault(outcome);
        (outcome, self.pool.take_owed_and(TlbFlush::None))
    }

    /// The rest of it: the fast path where its page must be found first, and the slow path. `is_known`: the fast path has failed.
    #[inline(never)]
    fn find_or_walk(
        &mut self,
        space: AddressSpace<'_, impl TableMemory, impl GuestMemory>,
        fault: PageFault,
        is_known: bool,
    ) -> ShadowOutcome {
        if self.tree.is_of_phase() {
            return ShadowOutcome::InPhase;
        }
        if !is_known {
            let outcome = match self.find_leaf(space, fault) {
                Ok(leaf) => self.exclusive_fast_path(space, fault, leaf),
                Err(outcome) => outcome,
            };
            if let Some(outcome) = outcome {
                return outcome;
            }
        }
        self.walk_and_fill(space, fault, None)
    }

    /// The slow path: a walk of the guest's tables from the root. `is_open`: in a [phase](super::phase).
    #[inline(never)]
    pub(super) fn walk_and_fill(
        &mut self,
        space: AddressSpace<'_, impl TableMemory, impl GuestMemory>,
        fault: PageFault,
        is_open: Option<IsOpen>,
    ) -> ShadowOutcome {
        let (AddressSpace { p2m, ram, state }, PageFault { gva, access }) = (space, fault);
        // Until a table on the path is write-protected for all VCPUs, another one can change what the walk has read. A shootdown
        // during the descent says that this was the case for some table; the walk is then done again.
        let shootdowns = self.pool.shootdowns();
        let mut path = Path::default();
        let found = match walk(state, ram, gva, access, true, |step| path.see(step)) {
            Ok(found) => found,
            Err(WalkError::PageFault(code)) => return ShadowOutcome::GuestFault(code),
            Err(WalkError::NotRam { table }) => return ShadowOutcome::TableNotRam(table),
            Err(WalkError::Contended) => return ShadowOutcome::Retry,
        };
        let gpa = found.gpa;
        let walk = GuestWalk { state, controls: Controls::of(state), fault, path, found };
        let entry = if access.write { p2m.translate_to_write(gpa) } else { p2m.translate(gpa) };
        if let Some(home) = entry.closed_in(self.tree.domain())
            && is_open.is_none()
        {
            return ShadowOutcome::Closed(gpa, home);
        }
        match entry.opened() {
            P2mEntry::Hole | P2mEntry::Absent { .. } => return ShadowOutcome::NotMapped(gpa),
            P2mEntry::Mmio => return ShadowOutcome::Mmio(gpa),
            P2mEntry::Rom { .. } if access.write => return ShadowOutcome::RomWrite(gpa),
            P2mEntry::Ram { writable: false, .. } if access.write => {
                return ShadowOutcome::WriteProtected(gpa);
            }
            P2mEntry::Ram { .. } if is_open.is_some_and(|is_open| !is_open(gpa.frame())) => {
                let user = walk.found.user && state.kind() != PagingKind::Off;
                return ShadowOutcome::Touched { gpa, user };
            }
            P2mEntry::Ram { hpa, .. } if access.write => {
                let smap = walk.controls.contains(Controls::SMAP) && walk.found.user && !walk.found.writable;
                // Out of the user's reach would also be out of SMAP's.
                if smap || !self.is_writable_by_guest(ram, hpa, access) {
                    return ShadowOutcome::EmulateWrite(gpa);
                }
            }
            _ => {}
        }
        let table = self.descend(p2m, ram, &walk, shootdowns);
        if self.pool.shootdowns() != shootdowns {
            // Until then others could change what the walk has seen.
            return ShadowOutcome::Retry;
        }
        let prefetched = match table {
            Some(table) => {
                self.fill(p2m, table, &walk);
                let own = index(gva, 1);
                let key = self.pool.page(table).key;
                if access.write && self.guards(key, own) {
                    return ShadowOutcome::EmulateWrite(gpa);
                }
                if let Some(is_open) = is_open {
                    let prefetched = match walk.is_override() {
                        true => 0,
                        false => self.prefetch_open(p2m, ram, table, own, is_open),
                    };
                    return ShadowOutcome::Filled { prefetched };
                }
                match self.find_leaf(space, fault) {
                    _ if walk.is_override() || key.is_guarded() => 0,
                    Ok(leaf) => self.prefetch(p2m, ram, &leaf, own),
                    // Below a nested table: the walk has just gone there.
                    Err(_) if self.agile.is_some() && (key.is_nestable() || key.is_direct()) => {
                        self.prefetch(p2m, ram, &self.leaf_of(table), own)
                    }
                    Err(_) => 0,
                }
            }
            None => 0,
        };
        ShadowOutcome::Filled { prefetched }
    }

    /// Links the pages down to the page of level 1 that the leaf belongs in; `None` if a large leaf was made instead,
    /// or if there were more than `shootdowns` of them, to write-protect one of the tables: what the walk has read may be out of date.
    fn descend(
        &mut self,
        p2m: &P2m<impl TableMemory>,
        ram: &impl GuestMemory,
        walk: &GuestWalk,
        shootdowns: u64,
    ) -> Option<PageId> {
        let (key, gfn) = root_key(p2m, walk.state, self.current_vcpu, self.tree);
        let mut table = match self.pool.root() {
            // In use since a flush by the guest: what nested tables below it hold need not be newer, so they are not compared.
            Some(root) if self.pool.page(root).key == key => {
                self.pool.touch(root);
                root
            }
            _ => self.page(key, gfn, ram),
        };
        let mut allowed = Allowed::all();
        let mut level = key.level();
        while level > 1 {
            if self.pool.shootdowns() != shootdowns {
                return None;
            }
            let guarded = self.guards(self.pool.page(table).key, walk.index(level));
            let may_be_large =
                level == 2 && walk.path.at(1).is_none() && !guarded && !key.tree().is_of_phase();
            if may_be_large && self.fill_large(p2m, table, walk) {
                return None;
            }
            if let Some(step) = walk.path.at(level)
                && !(walk.state.kind() == PagingKind::Pae && level == 3)
            {
                // Rights of upper entries are part of the key below, and shadow links allow everything: so one shadow page serves
                // all paths that allow the same, and a change of an upper entry's rights leads to another page.
                allowed.set(Allowed::WRITE, allowed.contains(Allowed::WRITE) && step.raw & WRITE != 0);
                allowed.set(Allowed::USER, allowed.contains(Allowed::USER) && step.raw & USER != 0);
                let execute = walk.state.kind() == PagingKind::TwoLevel || step.raw & NO_EXECUTE == 0;
                allowed.set(Allowed::EXECUTE, allowed.contains(Allowed::EXECUTE) && execute);
            }
            let (key, gfn) = child_key(p2m, walk, level - 1, allowed, (self.tree, guarded));
            let child = match self.pool.child(table, walk.index(level)) {
                // In use under this link: flushes by the guest have reached it.
                Some(linked) if self.pool.page(linked).key == key => {
                    self.pool.touch(linked);
                    linked
                }
                _ => {
                    self.note_parent(table);
                    let child = self.page(key, gfn, ram);
                    self.connect(table, walk.index(level), child);
                    child
                }
            };
            // The guest uses the table: it is no data page that is only written, which a flood would take it for.
            self.pool.page_mut(child).writes = 0;
            (table, level) = (child, level - 1);
        }
        Some(table)
    }

    /// Links `child` below `table`.
    #[inline(never)]
    pub(super) fn connect(&mut self, table: PageId, index: usize, child: PageId) {
        // What was there is no reason to flush: it led to the same memory, with other rights, or the guest has changed it by itself.
        if self.pool.page(table).is_present(index) {
            self.pool.zap(table, index);
        }
        let frame = self.pool.page(child).frame;
        let raw = if self.pool.page(table).key.is_top() {
            // The processor may have loaded the pointers with CR3; no other one has these.
            self.pool.owed = TlbFlush::All;
            frame.base().0 | PRESENT
        } else {
            LongMode::table(frame) | ACCESSED
        };
        // Also while nothing is nested: what a page knows of nested ones below it has to hold for all above it.
        let raw = if self.agile.is_some() { raw | self.pool.note_link(table, child) } else { raw };
        self.pool.link(table, index, raw, child);
    }

    /// Makes a 2 MiB leaf, if the guest's page is as large, its memory is contiguous, and no guest table in
    /// it must be protected.
    fn fill_large(&mut self, p2m: &P2m<impl TableMemory>, table: PageId, walk: &GuestWalk) -> bool {
        let size = PageSize::Size2M.bytes();
        let Some(entry) = p2m.large(walk.found.gpa) else { return false };
        let Some(to) = entry.readable().filter(|to| to.is_aligned(size)) else { return false };
        let attr = walk.attr(entry.writable().is_some());
        // One leaf has one right to write: over a guest table it would let the guest write to that unseen.
        if attr.write && self.pool.has_tables_near(to.frame()) {
            return false;
        }
        self.put_leaf(table, 2, walk, LongMode::leaf(to, 2, attr));
        true
    }

    /// Makes the leaf of level 1, if the address leads to memory.
    fn fill(&mut self, p2m: &P2m<impl TableMemory>, table: PageId, walk: &GuestWalk) {
        let entry = p2m.translate(walk.found.gpa);
        let Some(to) = entry.readable().map(|to: Hpa| to.align_down(1 << 12)) else { return };
        let host_writable =
            entry.writable().is_some() && !self.guards(self.pool.page(table).key, walk.index(1));
        let writable = host_writable && !self.pool.is_write_protected(to.frame());
        let attr = walk.attr(writable);
        let takes = if host_writable { HOST_WRITABLE } else { 0 };
        self.put_leaf(table, 1, walk, LongMode::leaf(to, 1, attr) | takes);
    }

    fn put_leaf(&mut self, table: PageId, level: u8, walk: &GuestWalk, raw: u64) {
        let gva = walk.fault.gva;
        // As it is now: the walk has set these bits. A guest that clears them is to see them set again.
        let dirty = if walk.found.dirty { DIRTY } else { 0 };
        let guest_pte = walk.path.leaf().map_or(0, |step| step.raw) | ACCESSED | dirty;
        let index = index(gva, level);
        // The processor never needs to set these.
        let raw = self.typed(raw, level) | ACCESSED | DIRTY;
        let old = self.pool.entry(table, index);
        // The guest sees no reason to flush: its own entry may be as it was (the dirty bit or CR0.WP made the difference). Without
        // a flush of ours the processor could go on with the old leaf, which is what has just faulted.
        if old & PRESENT != 0 && old != raw {
            let large = self.pool.child(table, index).is_some();
            if large {
                self.pool.flush_split();
            } else {
                self.pool.owed = self.pool.owed.and(TlbFlush::Page(gva));
            }
        }
        self.pool.zap(table, index);
        self.pool.map(table, index, raw, guest_pte);
    }
}

/// The key of the shadow page of `level` on the path of a walk.
fn child_key(
    p2m: &P2m<impl TableMemory>,
    walk: &GuestWalk,
    level: u8,
    allowed: Allowed,
    (tree, guarded): (TreeKey, bool),
) -> (Key, Gfn) {
    let kind = walk.state.kind();
    if let Some(step) = walk.path.at(level)
        && let Some(hpa) = p2m.translate(step.at).readable()
    {
        let quadrant = match (kind, level) {
            (PagingKind::TwoLevel, 2) => walk.fault.gva.0 >> 30 & 3,
            (PagingKind::TwoLevel, 1) => walk.fault.gva.0 >> 21 & 1,
            _ => 0,
        };
        let quadrant = quadrant as u8;
        let (controls, source) = (walk.controls, Source::Table);
        let role = Role { level, kind, quadrant, controls, allowed, source, tree, guarded };
        return (Key::new(hpa.frame().0, role), step.at.frame());
    }
    // Under a large page. All that its leaves depend on is in the key; the memory is the P2m's.
    let attr = walk.attr(true);
    let allowed = Allowed::of(attr.write, attr.user, attr.execute);
    let role = Role {
        level,
        kind: PagingKind::Off,
        quadrant: 0,
        controls: Controls::empty(),
        allowed,
        source: Source::Direct(attr.pat | u8::from(attr.global) << 3),
        tree,
        guarded,
    };
    let base = walk.found.gpa.align_down(1 << (12 + 9 * u32::from(level)));
    (Key::new(base.frame().0, role), base.frame())
}
