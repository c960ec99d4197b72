//! Table walks in one and two dimensions, with the caches that shorten them.
//!
//! A walk reads every entry afresh from memory, so that it always leads where the tables lead now. What the walk caches
//! and the nested TLB hold only decides which of the references are charged. A guest-dimension walk-cache entry stands
//! for the combined translation: the table that it leads to needs no nested walk (Intel SDM 3, 28.3.1; AMD's page walk
//! cache of system-physical addresses: Bhargava et al., ASPLOS 2008, section 4.2).
//!
//! Formats: AMD APM 2, 5.2 (two-level, PAE) and 5.3 (4-level); 15.25 for nested paging. PAE's four page-directory
//! pointers are registers of the processor and cost no reference.

mod agile;

use super::{
    bank::Bank,
    memory::Memory,
    space::{Spaces, Tag},
};
pub use agile::{Agile, AgileWalk, Root};

/// Entry bits.
const PRESENT: u64 = 1;
const WRITABLE: u64 = 1 << 1;
const LARGE: u64 = 1 << 7;
const GLOBAL: u64 = 1 << 8;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// Kinds of page tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// No paging.
    Off,
    /// Two levels of 4-byte entries; with CR4.PSE, 4 MiB pages.
    TwoLevel {
        /// CR4.PSE.
        pse: bool,
    },
    /// Four pointers and two levels of 8-byte entries.
    Pae,
    /// Four levels.
    Long,
}

/// What a processor translates with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Regime {
    /// The running program's tables.
    pub format: Format,
    /// CR3.
    pub cr3: u64,
    /// CR4.PGE: entries may be global.
    pub global_pages: bool,
    /// The nested CR3, if guest-physical addresses are translated, too. Nested tables have four levels.
    pub nested: Option<u64>,
}

/// Where an address leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translation {
    /// The 4 KiB frame's address.
    pub pa: u64,
    /// The page's size in the program's tables.
    pub guest_shift: u32,
    /// The page's size in the nested tables; the same without them.
    pub nested_shift: u32,
    /// The page is global.
    pub global: bool,
    /// It may be written, and a store has to set a dirty bit first.
    pub clean: bool,
}

impl Translation {
    /// The size of what one TLB entry can hold of it.
    pub fn shift(&self) -> u32 {
        self.guest_shift.min(self.nested_shift)
    }
}

/// The memory system as a walk uses it.
pub trait Environment: Memory {
    /// A reference to a table entry, to be counted and paid for.
    fn reference(&mut self, pa: u64);

    /// The walker uses an entry: it sets the accessed bit if that is clear, and the dirty bit if `dirty`. True if the dirty
    /// bit is clear afterwards.
    fn use_entry(&mut self, pa: u64, dirty: bool) -> bool;
}

/// An entry on the way is not present, or is not in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault;

/// The address to translate.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// The linear address.
    pub va: u64,
    /// A store.
    pub write: bool,
}

/// The tags of walk-cache entries: of the guest's dimension, and of the nested one.
#[derive(Clone, Copy, Debug)]
pub struct WalkTags {
    /// The running address space.
    pub linear: Tag,
    /// Its nested tables.
    pub nested: Tag,
}

/// A processor's page walker and its caches.
#[derive(Default)]
pub struct Walker {
    /// Entries of upper tables, by linear address: class 0 leads to the lowest table.
    pub guest: Bank,
    /// The same of nested tables, by guest-physical address.
    pub nested: Bank,
    /// Guest-physical pages, by the size of their nested page.
    pub nested_tlb: Bank,
}

/// A leaf of the nested tables.
struct NestedLeaf {
    pa: u64,
    shift: u32,
    clean: bool,
    /// What all levels allow, as [`agile`] writes it.
    allows: u64,
}

/// One walk.
struct Walk<'a, E> {
    walker: &'a mut Walker,
    spaces: &'a Spaces,
    tags: WalkTags,
    env: &'a mut E,
    /// References without any cache.
    uncached: u64,
}

impl Walker {
    /// Translates, and returns how many references it would have been without walk caches.
    pub fn walk<E: Environment>(
        &mut self,
        regime: &Regime,
        access: Access,
        tags: WalkTags,
        spaces: &Spaces,
        env: &mut E,
    ) -> (Result<Translation, Fault>, u64) {
        let mut walk = Walk { walker: self, spaces, tags, env, uncached: 0 };
        let found = walk.run(regime, access);
        (found, walk.uncached)
    }

    /// Takes out the upper entries for linear addresses: what INVLPG does.
    pub fn forget_linear(&mut self, tag: Tag) {
        self.guest.remove_if(|key, _| key.tag() == tag);
    }

    /// Empties all.
    pub fn clear(&mut self) {
        self.guest.clear();
        self.nested.clear();
        self.nested_tlb.clear();
    }
}

/// How a format's levels are laid out: index bits, bytes of an entry, the top level.
const fn layout(format: Format) -> (u32, u64, u32) {
    match format {
        Format::Off => (9, 8, 0),
        Format::TwoLevel { .. } => (10, 4, 2),
        Format::Pae => (9, 8, 3),
        Format::Long => (9, 8, 4),
    }
}

impl<E: Environment> Walk<'_, E> {
    fn run(&mut self, regime: &Regime, Access { va, write }: Access) -> Result<Translation, Fault> {
        if regime.format == Format::Off {
            let leaf = self.physical(regime, va, write, true)?;
            let (guest_shift, nested_shift) = (leaf.shift, leaf.shift);
            return Ok(Translation {
                pa: leaf.pa,
                guest_shift,
                nested_shift,
                global: false,
                clean: leaf.clean,
            });
        }
        let (bits, size, top) = layout(regime.format);
        let reach = |level: u32| 12 + bits * (level - 1);
        // The lowest table whose place a walk cache knows.
        let tag = self.tags.linear;
        let known =
            (1..top).find(|level| self.walker.guest.get(level - 1, va >> reach(level + 1), tag).is_some());
        let mut table = match regime.format {
            Format::Pae => regime.cr3 & 0xffff_ffe0,
            Format::TwoLevel { .. } => regime.cr3 & 0xffff_f000,
            _ => regime.cr3 & ADDRESS,
        };
        for level in (1..=top).rev() {
            let register = regime.format == Format::Pae && level == 3;
            let shift = reach(level);
            let charged = known.is_none_or(|known| level <= known) && !register;
            let index = if register { va >> 30 & 3 } else { va >> shift & ((1 << bits) - 1) };
            let gpa = table + index * size;
            let before = self.uncached;
            let at = self.physical(regime, gpa, true, charged && known != Some(level))?.pa | gpa & 0xfff;
            let entry = self.read(at, size)?;
            self.uncached = if register { before } else { self.uncached + 1 };
            if charged {
                self.env.reference(at);
            }
            if entry & PRESENT == 0 {
                return Err(Fault);
            }
            let large = match regime.format {
                Format::TwoLevel { pse } => pse && level == 2,
                Format::Pae => level == 2,
                _ => level == 2 || level == 3,
            };
            if level == 1 || large && entry & LARGE != 0 {
                let dirty_due = self.env.use_entry(at, write) && entry & WRITABLE != 0;
                let base = frame(regime.format, entry, shift);
                let gpa = base | va & ((1 << shift) - 1) & !0xfff;
                let leaf = self.physical(regime, gpa, write, true)?;
                let nested_shift = if regime.nested.is_some() { leaf.shift } else { shift };
                return Ok(Translation {
                    pa: leaf.pa,
                    guest_shift: shift,
                    nested_shift,
                    global: regime.global_pages && entry & GLOBAL != 0,
                    clean: dirty_due || leaf.clean,
                });
            }
            if charged {
                self.env.use_entry(at, false);
                self.keep(Dimension::Guest, level - 2, va >> shift);
            }
            table = entry & ADDRESS;
        }
        Err(Fault)
    }

    /// From guest-physical to physical, by the nested tables if there are any.
    fn physical(
        &mut self,
        regime: &Regime,
        gpa: u64,
        write: bool,
        charged: bool,
    ) -> Result<NestedLeaf, Fault> {
        let Some(root) = regime.nested else {
            return Ok(NestedLeaf { pa: gpa & !0xfff, shift: 12, clean: false, allows: u64::MAX });
        };
        let tag = self.tags.nested;
        let walker = &mut *self.walker;
        let in_tlb = charged
            && (0..3).any(|class| walker.nested_tlb.get(class, gpa >> (12 + 9 * class), tag).is_some());
        let charged = charged && !in_tlb;
        let known = charged
            .then(|| {
                (1..4).find(|level| walker.nested.get(level - 1, gpa >> (12 + 9 * level), tag).is_some())
            })
            .flatten();
        let mut table = root & ADDRESS;
        let mut allowed = u64::MAX;
        for level in (1..=4u32).rev() {
            let shift = 3 + 9 * level;
            let at = table + (gpa >> shift & 511) * 8;
            let entry = self.read(at, 8)?;
            allowed &= agile::allows(entry);
            self.uncached += 1;
            let charged = charged && known.is_none_or(|known| level <= known);
            if charged {
                self.env.reference(at);
            }
            if entry & PRESENT == 0 {
                return Err(Fault);
            }
            if level == 1 || level < 4 && entry & LARGE != 0 {
                let dirty_due = self.env.use_entry(at, write);
                if charged {
                    self.keep(Dimension::NestedPages, super::tlb::class_of(shift), gpa >> shift);
                }
                let pa = frame(Format::Long, entry, shift) | gpa & ((1 << shift) - 1) & !0xfff;
                let clean = dirty_due && entry & WRITABLE != 0;
                return Ok(NestedLeaf { pa, shift, clean, allows: allowed });
            }
            if charged {
                self.env.use_entry(at, false);
                self.keep(Dimension::Nested, level - 2, gpa >> shift);
            }
            table = entry & ADDRESS;
        }
        Err(Fault)
    }

    fn read(&self, at: u64, size: u64) -> Result<u64, Fault> {
        let entry = if size == 4 { self.env.read_u32(at).map(u64::from) } else { self.env.read_u64(at) };
        entry.ok_or(Fault)
    }

    fn keep(&mut self, dimension: Dimension, class: u32, page: u64) {
        let (bank, tag) = match dimension {
            Dimension::Guest => (&mut self.walker.guest, self.tags.linear),
            Dimension::Nested => (&mut self.walker.nested, self.tags.nested),
            Dimension::NestedPages => (&mut self.walker.nested_tlb, self.tags.nested),
        };
        bank.insert(class, page, tag, 0, self.spaces.lives());
    }
}

/// Which cache an entry goes to.
enum Dimension {
    Guest,
    Nested,
    NestedPages,
}

/// The address in a leaf.
fn frame(format: Format, entry: u64, shift: u32) -> u64 {
    let base = entry & ADDRESS & !((1 << shift) - 1);
    match format {
        // PSE-36: bits 39:32 are in bits 20:13.
        Format::TwoLevel { .. } if shift == 22 => base & 0xffc0_0000 | (entry >> 13 & 0xff) << 32,
        _ => base,
    }
}

#[cfg(test)]
#[path = "walk_tests.rs"]
mod tests;
