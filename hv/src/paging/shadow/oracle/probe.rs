//! The addresses that the guest uses, and what is known about each.

use super::Oracle;
use super::layout::{TABLE_BYTES, TABLES};
use super::machine::linear;
use crate::arch::Access;
use crate::arch::addr::{Gpa, Gva, PAGE_SIZE};
use crate::arch::state::cr4;
use crate::mem::guest_memory::GuestMemory;
use crate::mem::host_access::HostAccess;
use crate::paging::guest_walk::{PagingKind, PagingState, Translation, peek, walk};
use crate::paging::model::Modelled;
use crate::paging::vm_memory::VmMemory;

/// An address that the guest uses.
pub struct Probe {
    /// The address.
    pub gva: Gva,
    /// The guest has flushed it since the last change on its way.
    pub fresh: bool,
    /// The entries that a walk reads now, up to the first that stops it, as aligned 8 bytes.
    pub path: Vec<u64>,
    /// If not fresh: log2 of the size of the only page that can be cached for it.
    old_shift: Option<u8>,
    /// If not fresh: the number of changes when it last was; `None` if its old translations may be those of another
    /// root.
    pub since: Option<usize>,
    /// A global translation of it may be cached.
    global: bool,
}

impl Probe {
    /// Of which nothing is known yet.
    pub fn new(gva: Gva) -> Probe {
        Probe { gva, fresh: true, path: Vec::new(), old_shift: None, since: Some(0), global: false }
    }
}

impl<F: Modelled> Oracle<'_, F> {
    /// Follows the way of a probe again.
    fn follow(&mut self, n: usize) {
        let mut path = core::mem::take(&mut self.probes[n].path);
        path.clear();
        // Pointers in registers do not change with memory.
        let skip = if self.state.pdptes.is_some() { 3 } else { 0 };
        let gva = self.probes[n].gva;
        let _any = walk(&self.state, &self.walked(), gva, Access::READ, false, |step| {
            if step.level != skip {
                path.push(step.at.0 & !7);
            }
        });
        self.probes[n].path = path;
    }

    /// The ways may have changed, without anything that can be cached.
    pub(super) fn follow_all(&mut self) {
        (0..self.probes.len()).for_each(|n| self.follow(n));
    }

    fn mark_fresh(&mut self, n: usize) {
        self.follow(n);
        let since = Some(self.changes.len());
        let probe = &mut self.probes[n];
        (probe.fresh, probe.old_shift, probe.since, probe.global) = (true, None, since, false);
    }

    /// Everything has been flushed.
    pub(super) fn all_fresh(&mut self) {
        (0..self.probes.len()).for_each(|n| self.mark_fresh(n));
    }

    /// All but global translations have been flushed.
    pub(super) fn non_global_fresh(&mut self) {
        for n in 0..self.probes.len() {
            if self.probes[n].global {
                self.follow(n);
                let probe = &mut self.probes[n];
                (probe.fresh, probe.old_shift, probe.since) = (false, None, None);
            } else {
                self.mark_fresh(n);
            }
        }
    }

    /// The way of everything is unknown, until the pointers are loaded again.
    pub(super) fn none_fresh(&mut self) {
        for n in 0..self.probes.len() {
            self.follow(n);
            let probe = &mut self.probes[n];
            (probe.fresh, probe.old_shift, probe.since) = (false, None, None);
        }
    }

    /// The guest has flushed the address of a probe.
    pub(super) fn flushed(&mut self, n: usize) {
        if self.pointers_changed {
            return;
        }
        let kind = self.state.kind();
        let at = linear(kind, self.probes[n].gva).0;
        self.mark_fresh(n);
        for other in 0..self.probes.len() {
            let probe = &self.probes[other];
            let gva = linear(kind, probe.gva).0;
            if probe.old_shift.is_some_and(|shift| gva >> shift == at >> shift) {
                self.mark_fresh(other);
            }
        }
    }

    /// An access has gone through at the address of a probe; `found`: by this guest page, if that is known.
    pub(super) fn accessed(&mut self, gva: Gva, found: Option<Translation>) {
        let kind = self.state.kind();
        let gva = linear(kind, gva).0;
        for probe in &mut self.probes {
            let other = linear(kind, probe.gva).0;
            probe.global |= match found {
                Some(found) => found.global && gva >> found.page_shift == other >> found.page_shift,
                None => self.state.cr4 & cr4::PGE != 0,
            };
        }
    }

    /// The guest's page at an address, whatever the rights.
    pub(super) fn page_at(&self, gva: Gva) -> Option<Translation> {
        let open = PagingState { cr4: self.state.cr4 & !(cr4::SMAP | cr4::SMEP), cpl: 0, ..self.state };
        peek(&open, &self.walked(), gva, Access::READ).ok()
    }

    /// Where page-directory pointers are read from memory: eight bytes that are one in use.
    fn is_pointer(&self, word: u64) -> bool {
        let kind = self.state.kind();
        kind == PagingKind::Pae && self.state.pdptes.is_none() && word & !31 == self.state.cr3 & 0xffff_ffe0
    }

    /// The pointers in use by the plain walker, if they are read from memory.
    pub(super) fn pointers(&self) -> Option<[u64; 4]> {
        let first = Gpa(self.state.cr3 & 0xffff_ffe0);
        let hpa = self.p2m.translate(first).readable().filter(|_| self.is_pointer(first.0))?;
        let mut all = [0; 32];
        self.software.read(hpa, &mut all);
        Some(core::array::from_fn(|n| u64::from_le_bytes(core::array::from_fn(|byte| all[8 * n + byte]))))
    }

    /// The guest writes to memory unseen, or a device or the emulator with a report to the engines (`told`). No effect outside RAM.
    pub(super) fn store(&mut self, gpa: Gpa, bytes: &[u8], told: bool) {
        let words: Vec<u64> = (gpa.0 & !7..gpa.0 + bytes.len() as u64).step_by(8).collect();
        let place = |at: u64| self.p2m.promised(Gpa(at)).writable();
        // Behind the tables everything stays zero, so that nothing but they must be compared.
        if !words.iter().all(|&word| word < TABLE_BYTES && place(word).is_some()) {
            return;
        }
        let load = |oracle: &Self, word: u64| {
            let hpa = oracle.p2m.translate(Gpa(word)).readable();
            hpa.map_or(0, |hpa| oracle.machine.host.load(hpa))
        };
        let old: Vec<u64> = words.iter().map(|&word| load(self, word)).collect();
        let is_on_way = |probe: &Probe| probe.path.iter().any(|at| words.contains(at));
        let shift = |probe: &Probe| self.page_at(probe.gva).map(|page| page.page_shift);
        let shifts: Vec<_> =
            self.probes.iter().map(|probe| if is_on_way(probe) { shift(probe) } else { None }).collect();
        for host in [&self.machine.host, &self.software] {
            let done = VmMemory::new(&self.p2m, host).write(gpa, bytes);
            debug_assert!(done.is_ok(), "all of it is RAM");
        }
        if told {
            self.machine.written(&self.p2m, gpa, bytes.len() as u64);
        }
        for (&word, &old) in words.iter().zip(&old) {
            let new = load(self, word);
            if new != old {
                self.log(|| {
                    format!("    {word:#x}: {old:#x} -> {new:#x}{}", if told { ", told" } else { "" })
                });
                self.changed(word, old, new, &shifts);
            }
        }
        self.follow_all();
    }

    /// A word of memory has changed.
    fn changed(&mut self, word: u64, old: u64, new: u64, shifts: &[Option<u8>]) {
        // Accessed and dirty bits that come to an entry are no change, but in pointers.
        let bits = 0x60 | if self.state.kind() == PagingKind::TwoLevel { 0x60 << 32 } else { 0 };
        if !self.is_pointer(word) && (old ^ new) & !bits == 0 && old & bits & !new == 0 {
            return;
        }
        self.changes.push((word, old));
        for (probe, &shift) in self.probes.iter_mut().zip(shifts) {
            if probe.path.contains(&word) {
                probe.old_shift = if probe.fresh { shift } else { None };
                if probe.fresh {
                    probe.since = Some(self.changes.len() - 1);
                }
                probe.fresh = false;
            }
        }
        self.pointers_changed |= self.is_pointer(word);
    }

    /// Where a frame of host memory is in the guest's tables.
    pub(super) fn table_at(&self, hpa: crate::arch::addr::Hpa) -> Option<Gpa> {
        let all = (0..TABLES).map(|page| Gpa(page * PAGE_SIZE + hpa.offset()));
        all.into_iter().find(|&gpa| self.p2m.peek(gpa).writable() == Some(hpa))
    }
}
