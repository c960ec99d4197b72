//! A model of a processor that walks nested tables and caches what it finds, for tests.
//!
//! Written from the manuals (AMD APM 2, 15.25; Intel SDM 3, 29.3 and 29.4) and not from
//! [`format`](mod@super::format), so that both can be wrong only in the same way. It keeps translations and
//! table pointers until it is told to forget them, as real processors may: a missing flush shows as a wrong
//! translation, a table freed too early as a panic of the [`Arena`](super::arena::Arena).

use super::format::{NestedAttr, PteFormat, ept::Ept, npt::Npt};
use super::range::{Flush, GpaRange};
use crate::arch::Access;
use crate::arch::addr::{Gpa, Hfn, Hpa};
use crate::mem::table_memory::TableMemory;
use alloc::vec::Vec;

/// Whose tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vendor {
    /// NPT
    Amd,
    /// EPT with A/D bits
    Intel,
}

/// A format that the model walks.
pub trait Modelled: PteFormat<Attr = NestedAttr> {
    /// Whose it is.
    const VENDOR: Vendor;
}

impl Modelled for Npt {
    const VENDOR: Vendor = Vendor::Amd;
}

impl Modelled for Ept {
    const VENDOR: Vendor = Vendor::Intel;
}

/// Why an access did not go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// An entry is not present.
    NotPresent,
    /// An entry forbids the access.
    Forbidden,
    /// An entry that the manual does not allow.
    Reserved,
}

#[derive(Clone, Copy, Debug)]
struct Cached {
    range: GpaRange,
    to: Hpa,
    write: bool,
    execute: bool,
    /// The dirty bit was set when this was cached or since.
    dirty: bool,
}

#[derive(Clone, Copy, Debug)]
struct Pointer {
    range: GpaRange,
    table: Hfn,
    level: u8,
    write: bool,
    execute: bool,
}

/// A processor with caches of unlimited size.
#[derive(Debug)]
pub struct Processor {
    vendor: Vendor,
    translations: Vec<Cached>,
    pointers: Vec<Pointer>,
}

impl Processor {
    /// A processor with empty caches.
    pub fn new(vendor: Vendor) -> Processor {
        Processor { vendor, translations: Vec::new(), pointers: Vec::new() }
    }

    /// Forgets what `flush` names.
    pub fn flush(&mut self, flush: Flush) {
        match flush {
            Flush::None => {}
            Flush::All => {
                self.translations.clear();
                self.pointers.clear();
            }
            Flush::Range(range) => {
                self.translations.retain(|t| t.range.intersect(range).is_empty());
                self.pointers.retain(|p| p.range.intersect(range).is_empty());
            }
        }
    }

    /// Makes an access as hardware may: from the caches where they allow it.
    pub fn access(
        &mut self,
        memory: &impl TableMemory,
        root: Hfn,
        gpa: Gpa,
        access: Access,
    ) -> Result<Hpa, Fault> {
        let usable = |t: &&Cached| {
            t.range.contains(gpa) && (!access.write || (t.write && t.dirty)) && (!access.execute || t.execute)
        };
        if let Some(hit) = self.translations.iter().find(usable) {
            return Ok(Hpa(hit.to.0 + (gpa.0 - hit.range.start.0)));
        }
        let start = self.pointers.iter().filter(|p| p.range.contains(gpa)).min_by_key(|p| p.level).copied();
        let root = Pointer { range: GpaRange::ALL, table: root, level: 4, write: true, execute: true };
        let found = self.walk(memory, start.unwrap_or(root), gpa, access, true)?;
        self.translations.push(found);
        Ok(Hpa(found.to.0 + (gpa.0 - found.range.start.0)))
    }

    /// Where an access goes by the tables as they are now, without any effect.
    pub fn look(
        vendor: Vendor,
        memory: &impl TableMemory,
        root: Hfn,
        gpa: Gpa,
        access: Access,
    ) -> Result<Hpa, Fault> {
        let root = Pointer { range: GpaRange::ALL, table: root, level: 4, write: true, execute: true };
        let found = Processor::new(vendor).walk(memory, root, gpa, access, false)?;
        Ok(Hpa(found.to.0 + (gpa.0 - found.range.start.0)))
    }

    fn walk(
        &mut self,
        memory: &impl TableMemory,
        from: Pointer,
        gpa: Gpa,
        access: Access,
        effects: bool,
    ) -> Result<Cached, Fault> {
        let Pointer { mut table, mut level, mut write, mut execute, .. } = from;
        if gpa.0 >> 48 != 0 {
            // Wider than four levels translate.
            return Err(Fault::NotPresent);
        }
        loop {
            let shift = 12 + 9 * (u32::from(level) - 1);
            let index = (gpa.0 >> shift & 511) as usize;
            let entry = memory.load(table, index);
            let bits = self.bits(entry, level)?;
            write &= bits.write;
            execute &= bits.execute;
            let start = gpa.align_down(1 << shift);
            let range = GpaRange { start, end: Gpa(start.0 + (1 << shift)) };
            if bits.leaf {
                if (access.write && !write) || (access.execute && !execute) {
                    return Err(Fault::Forbidden);
                }
                let set = bits.accessed | if access.write { bits.dirty } else { 0 };
                if effects {
                    let stored = memory.compare_exchange(table, index, entry, entry | set);
                    assert!(stored.is_ok(), "nothing runs in between");
                }
                let dirty = (entry | set) & bits.dirty != 0;
                let to = Hpa(entry & 0x000f_ffff_ffff_f000 & !((1 << shift) - 1));
                return Ok(Cached { range, to, write, execute, dirty });
            }
            if effects {
                let stored = memory.compare_exchange(table, index, entry, entry | bits.accessed);
                assert!(stored.is_ok(), "nothing runs in between");
            }
            (table, level) = (Hfn(entry >> 12 & 0xff_ffff_ffff), level - 1);
            if effects {
                self.pointers.push(Pointer { range, table, level, write, execute });
            }
        }
    }

    fn bits(&self, entry: u64, level: u8) -> Result<Bits, Fault> {
        let low_address = if level > 1 { (1u64 << (12 + 9 * (level - 1))) - 1 } else { 0xfff };
        match self.vendor {
            Vendor::Amd => {
                if entry & 1 == 0 {
                    return Err(Fault::NotPresent);
                }
                let leaf = level == 1 || (entry & 0x80 != 0 && level < 4);
                let misplaced = if leaf && level > 1 { low_address & !0x1fff } else { 0 };
                if entry & misplaced != 0 || (level == 4 && entry & 0x80 != 0) || entry & 4 == 0 {
                    return Err(Fault::Reserved);
                }
                Ok(Bits {
                    leaf,
                    write: entry & 2 != 0,
                    execute: entry >> 63 == 0,
                    accessed: 0x20,
                    dirty: 0x40,
                })
            }
            Vendor::Intel => {
                if entry & 7 == 0 {
                    return Err(Fault::NotPresent);
                }
                let leaf = level == 1 || (entry & 0x80 != 0 && level < 4);
                let misplaced = if leaf { low_address & !0xfff } else { 0xf8 };
                let memory_type = entry >> 3 & 7;
                let bad_type = leaf && !matches!(memory_type, 0 | 1 | 4 | 5 | 6);
                if entry & misplaced != 0 || entry & 3 == 2 || bad_type {
                    return Err(Fault::Reserved);
                }
                if entry & 1 == 0 {
                    return Err(Fault::Forbidden);
                }
                Ok(Bits {
                    leaf,
                    write: entry & 2 != 0,
                    execute: entry & 4 != 0,
                    accessed: 0x100,
                    dirty: 0x200,
                })
            }
        }
    }
}

struct Bits {
    leaf: bool,
    write: bool,
    execute: bool,
    accessed: u64,
    dirty: u64,
}
