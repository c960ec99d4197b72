//! Walks of agile paging, as the processor would make them that the paper proposes (Gandhi, Hill, Swift, ISCA 2016): from the
//! shadow root, and, from an entry with the switching bit on, in the guest's tables with nested translation.
//!
//! `abi::agile` is what the hypervisor says. In the place of a nested guest table the shadow tree has a *stand-in*, which the
//! hypervisor fills on demand and the emulated processor walks. A real entry with the switching bit would hold the host address of
//! the guest's table and the rights of the levels above; here both are found by following the guest's own tables from its
//! CR3, and cost nothing.

use abi::{
    agile::{SWITCHING, Words},
    lab::NESTED_FROM_CR3,
};

use super::{
    ADDRESS, Access, Dimension, Environment, Fault, Format, GLOBAL, LARGE, PRESENT, Regime, Spaces,
    Translation, WRITABLE, Walk, WalkTags, Walker, frame,
};

const USER: u64 = 1 << 2;
const NO_EXECUTE: u64 = 1 << 63;

/// Where a walk begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Root {
    /// In the shadow root.
    Shadow,
    /// In the guest's root table, whose host address the register of the shadow root holds.
    Switching,
    /// At the guest's CR3, which has to be translated first.
    Nested,
}

/// What the proposed processor has beside the shadow root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agile {
    /// The guest's CR3.
    pub guest_cr3: u64,
    /// The root of the nested tables.
    pub nested_root: u64,
    /// Where walks begin.
    pub root: Root,
    /// The guest's CR0.WP. Without it a hypervisor's shadow tables may allow writes that the guest's do not.
    pub write_protect: bool,
}

impl Agile {
    /// What the words of a VMCB say; `None` if agile paging is not in force.
    pub fn of(words: &Words, write_protect: bool) -> Option<Agile> {
        let root = match words {
            _ if words.is_root_nested() => Root::Nested,
            _ if words.is_root_switching() => Root::Switching,
            _ => Root::Shadow,
        };
        let Words { guest_cr3, nested_root, .. } = *words;
        words.is_valid().then_some(Agile { guest_cr3, nested_root, root, write_protect })
    }

    /// The same two dimensions without shadow tables.
    pub fn nested(&self, regime: &Regime) -> Regime {
        Regime { cr3: self.guest_cr3, nested: Some(self.nested_root), ..*regime }
    }
}

/// What a walk came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgileWalk {
    /// What a TLB keeps: where there is a stand-in, the page that the emulated processor uses.
    pub found: Result<Translation, Fault>,
    /// References without walk caches.
    pub uncached: u64,
    /// Where it switched: an index of [`abi::lab::SWITCHES`].
    pub switch: usize,
    /// The stand-in leads elsewhere than the guest's tables do, or allows more: the guest has changed them since it was
    /// filled, or one of the two is wrong.
    pub disagrees: bool,
}

/// What one table entry allows, or several with `&`.
pub(super) const fn allows(entry: u64) -> u64 {
    (entry ^ NO_EXECUTE) & (WRITABLE | USER | NO_EXECUTE)
}

/// A table on the way.
#[derive(Clone, Copy)]
enum Table {
    /// One of the shadow tables, at this address.
    Shadow(u64),
    /// One of the guest's, at this guest-physical address.
    Guest(u64),
    /// The guest's first one, whose host address is in the entry that leads to it.
    First(u64),
}

/// Where a stand-in, or the tables behind it, lead.
struct Leaf {
    translation: Translation,
    allows: u64,
}

impl Walker {
    /// Translates in a context of agile paging; `regime` has the shadow root. The shadow tables have four levels.
    pub fn walk_agile<E: Environment>(
        &mut self,
        regime: &Regime,
        agile: &Agile,
        access: Access,
        (tags, spaces): (WalkTags, &Spaces),
        env: &mut E,
    ) -> AgileWalk {
        debug_assert!(regime.format == Format::Long && regime.nested.is_none());
        let mut walk = Walk { walker: self, spaces, tags, env, uncached: 0 };
        let mut switch = 0;
        let found = walk.run_agile(regime, agile, access, &mut switch);
        let uncached = walk.uncached;
        let plain = |found| AgileWalk { found, uncached, switch, disagrees: false };
        if switch == 0 {
            return plain(found.map(|leaf| leaf.translation));
        }
        let Some(stand_in) = walk.stand_in(regime.cr3 & ADDRESS, access.va) else {
            // Nothing is there any longer: the emulated processor has it from a TLB of its own.
            return plain(found.map(|leaf| leaf.translation));
        };
        let Ok(Leaf { translation, allows }) = found else {
            return AgileWalk { found: Ok(stand_in.translation), uncached, switch, disagrees: true };
        };
        let more = stand_in.allows & !allows & if agile.write_protect { u64::MAX } else { NO_EXECUTE };
        let is_same = stand_in.translation.pa == translation.pa;
        let global = translation.global && stand_in.translation.global;
        let kept = if is_same { Translation { global, ..translation } } else { stand_in.translation };
        AgileWalk { found: Ok(kept), uncached, switch, disagrees: !is_same || more != 0 }
    }
}

impl<E: Environment> Walk<'_, E> {
    fn run_agile(
        &mut self,
        regime: &Regime,
        agile: &Agile,
        Access { va, write }: Access,
        switch: &mut usize,
    ) -> Result<Leaf, Fault> {
        let nested = agile.nested(regime);
        let tag = self.tags.linear;
        let known =
            (1..4u32).find(|level| self.walker.guest.get(level - 1, va >> (12 + 9 * level), tag).is_some());
        let mut allowed = u64::MAX;
        let mut table = match agile.root {
            Root::Shadow => Table::Shadow(regime.cr3 & ADDRESS),
            Root::Switching => Table::First(agile.guest_cr3 & ADDRESS),
            Root::Nested => Table::Guest(agile.guest_cr3 & ADDRESS),
        };
        *switch = match agile.root {
            Root::Shadow => 0,
            Root::Switching => 4,
            Root::Nested => NESTED_FROM_CR3,
        };
        for level in (1..=4u32).rev() {
            let shift = 3 + 9 * level;
            let offset = (va >> shift & 511) * 8;
            let charged = known.is_none_or(|known| level <= known);
            let at = match table {
                Table::Shadow(table) => table + offset,
                Table::First(gpa) => self.look(agile, gpa)? + offset,
                Table::Guest(gpa) => {
                    self.physical(&nested, gpa, true, charged && known != Some(level))?.pa + offset
                }
            };
            let entry = self.read(at, 8)?;
            self.uncached += 1;
            if charged {
                self.env.reference(at);
            }
            if entry & PRESENT == 0 {
                return Err(Fault);
            }
            let in_guest = !matches!(table, Table::Shadow(_));
            if in_guest {
                allowed &= allows(entry);
            }
            if level == 1 || level < 4 && entry & LARGE != 0 {
                let dirty_due = self.env.use_entry(at, write) && entry & WRITABLE != 0;
                let base = frame(Format::Long, entry, shift) | va & ((1 << shift) - 1) & !0xfff;
                let global = regime.global_pages && entry & GLOBAL != 0;
                let (guest_shift, clean) = (shift, dirty_due);
                if !in_guest {
                    let translation =
                        Translation { pa: base, guest_shift, nested_shift: shift, global, clean };
                    return Ok(Leaf { translation, allows: allowed });
                }
                let leaf = self.physical(&nested, base, write, true)?;
                let (pa, nested_shift, clean) = (leaf.pa, leaf.shift, clean || leaf.clean);
                let translation = Translation { pa, guest_shift, nested_shift, global, clean };
                return Ok(Leaf { translation, allows: allowed & (leaf.allows | USER) });
            }
            if charged {
                self.env.use_entry(at, false);
                self.keep(Dimension::Guest, level - 2, va >> shift);
            }
            table = match table {
                Table::Shadow(_) if entry & SWITCHING != 0 => {
                    *switch = level as usize - 1;
                    let (gpa, above) = self.guest_table(agile, va, level - 1)?;
                    allowed &= above;
                    Table::First(gpa)
                }
                Table::Shadow(_) => Table::Shadow(entry & ADDRESS),
                Table::First(_) | Table::Guest(_) => Table::Guest(entry & ADDRESS),
            };
        }
        Err(Fault)
    }

    /// The guest's table of this level for an address, and what the levels above allow: by its own tables, free of charge.
    fn guest_table(&self, agile: &Agile, va: u64, level: u32) -> Result<(u64, u64), Fault> {
        let (mut gpa, mut allowed) = (agile.guest_cr3 & ADDRESS, u64::MAX);
        for above in (level + 1..=4).rev() {
            let at = self.look(agile, gpa)? + (va >> (3 + 9 * above) & 511) * 8;
            let entry = self.read(at, 8)?;
            if entry & PRESENT == 0 || above < 4 && entry & LARGE != 0 {
                return Err(Fault);
            }
            gpa = entry & ADDRESS;
            allowed &= allows(entry);
        }
        Ok((gpa, allowed))
    }

    /// The address of a guest's frame, free of charge.
    fn look(&self, agile: &Agile, gpa: u64) -> Result<u64, Fault> {
        self.follow(agile.nested_root & ADDRESS, gpa).map(|leaf| leaf.translation.pa).ok_or(Fault)
    }

    /// What the shadow tables have for an address, with the stand-ins below a switching bit.
    fn stand_in(&self, root: u64, va: u64) -> Option<Leaf> {
        self.follow(root, va)
    }

    /// Where four levels of tables lead, free of charge.
    fn follow(&self, mut table: u64, address: u64) -> Option<Leaf> {
        let mut allowed = u64::MAX;
        for level in (1..=4u32).rev() {
            let shift = 3 + 9 * level;
            let entry = self.read(table + (address >> shift & 511) * 8, 8).ok()?;
            allowed &= allows(entry);
            if entry & PRESENT == 0 {
                return None;
            }
            if level == 1 || level < 4 && entry & LARGE != 0 {
                let pa = frame(Format::Long, entry, shift) | address & ((1 << shift) - 1) & !0xfff;
                let global = entry & GLOBAL != 0;
                let translation =
                    Translation { pa, guest_shift: shift, nested_shift: shift, global, clean: false };
                return Some(Leaf { translation, allows: allowed });
            }
            table = entry & ADDRESS;
        }
        None
    }
}

#[cfg(test)]
#[path = "agile_tests.rs"]
mod tests;
