//! A model of a processor that runs on shadow tables, for tests. Written from the manuals (AMD APM 2, 5.2 to
//! 5.6; Intel SDM 3, 4.4 to 4.6 and 4.10): it keeps translations and pointers to tables until it is told to
//! forget them, or takes a page fault at their address.

use super::{Root, TlbFlush};
use crate::arch::Access;
use crate::arch::addr::{Gva, Hfn, Hpa};
use crate::mem::table_memory::TableMemory;
use alloc::vec::Vec;

/// The registers that matter.
#[derive(Clone, Copy, Debug)]
pub struct Registers {
    pub smep: bool,
    pub smap: bool,
    /// RFLAGS.AC counts for this access.
    pub ac: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct Cached {
    pub start: u64,
    pub shift: u32,
    pub to: u64,
    pub write: bool,
    user: bool,
    execute: bool,
    global: bool,
    /// The dirty bit was set when this was cached.
    dirty: bool,
}

#[derive(Clone, Copy, Debug)]
struct Pointer {
    start: u64,
    shift: u32,
    table: Hfn,
    level: u32,
    write: bool,
    user: bool,
    execute: bool,
}

fn covers(start: u64, shift: u32, gva: Gva) -> bool {
    gva.0 >> shift == start >> shift
}

/// A processor with large caches that are replaced in order.
#[derive(Debug, Default)]
pub struct ShadowProcessor {
    pub translations: Vec<Cached>,
    pointers: Vec<Pointer>,
    /// PAE's page-directory pointers, read when CR3 was loaded.
    directories: Option<[u64; 4]>,
    next: usize,
}

const CAPACITY: usize = 48;

impl ShadowProcessor {
    pub fn flush(&mut self, flush: TlbFlush) {
        if matches!(flush, TlbFlush::NonGlobal | TlbFlush::All) {
            self.directories = None;
        }
        match flush {
            TlbFlush::None => {}
            TlbFlush::Page(gva) => self.forget(gva),
            TlbFlush::NonGlobal => {
                self.translations.retain(|it| it.global);
                self.pointers.clear();
            }
            TlbFlush::All => {
                self.translations.clear();
                self.pointers.clear();
            }
        }
    }

    /// Whether it remembers a translation that writes to this page.
    pub fn can_write(&self, page: Hpa) -> bool {
        let within = |it: &Cached| (it.to..it.to + (1 << it.shift)).contains(&page.0);
        self.translations.iter().any(|it| it.write && within(it))
    }

    /// Replaces one of the translations, as processors do for want of room; pointers to tables stay.
    pub fn evict(&mut self, n: usize) {
        if !self.translations.is_empty() {
            self.translations.swap_remove(n % self.translations.len());
        }
    }

    /// Where a write to this address goes by what it remembers.
    pub fn remembered_write(&self, gva: Gva) -> Option<Hpa> {
        self.translations.iter().find(|it| it.write && covers(it.start, it.shift, gva)).map(|it| it.at(gva))
    }

    fn forget(&mut self, gva: Gva) {
        self.translations.retain(|it| !covers(it.start, it.shift, gva));
        self.pointers.retain(|it| !covers(it.start, it.shift, gva));
    }

    /// Where an access leads, or the error code of its page fault. Fails on what the manuals reserve and the engine has no use for.
    pub fn access(
        &mut self,
        memory: &impl TableMemory,
        root: Root,
        registers: Registers,
        gva: Gva,
        access: Access,
    ) -> Result<Hpa, u32> {
        let gva = if root.long { gva } else { Gva(gva.0 & 0xffff_ffff) };
        // The first write through a translation walks again, to set the dirty bit.
        let hit = |it: &&Cached| {
            covers(it.start, it.shift, gva) && it.allows(registers, access) && (it.dirty || !access.write)
        };
        if let Some(it) = self.translations.iter().find(hit) {
            return Ok(it.at(gva));
        }
        let top = Pointer {
            start: 0,
            shift: 63,
            table: root.frame,
            level: if root.long { 4 } else { 3 },
            write: true,
            user: true,
            execute: true,
        };
        let known =
            self.pointers.iter().filter(|it| covers(it.start, it.shift, gva)).min_by_key(|it| it.level);
        let from = known.copied().unwrap_or(top);
        match self.walk(memory, root, registers, from, gva, access) {
            Ok(it) => {
                if self.translations.len() < CAPACITY {
                    self.translations.push(it);
                } else {
                    self.next = (self.next + 1) % CAPACITY;
                    self.translations[self.next] = it;
                }
                if self.pointers.len() > CAPACITY {
                    self.pointers.drain(..CAPACITY / 2);
                }
                Ok(it.at(gva))
            }
            Err(code) => {
                // A fault ends what is cached for its address.
                self.forget(gva);
                // With EFER.NXE set.
                Err(code
                    | u32::from(access.write) << 1
                    | u32::from(access.user) << 2
                    | u32::from(access.execute) << 4)
            }
        }
    }

    fn walk(
        &mut self,
        memory: &impl TableMemory,
        root: Root,
        registers: Registers,
        from: Pointer,
        gva: Gva,
        access: Access,
    ) -> Result<Cached, u32> {
        let mut now = from;
        loop {
            let shift = 12 + 9 * (now.level - 1);
            let index = (gva.0 >> shift & 511) as usize;
            let entry = if !root.long && now.level == 3 {
                let load = || core::array::from_fn(|n| memory.load(now.table, n));
                self.directories.get_or_insert_with(load)[index & 3]
            } else {
                memory.load(now.table, index)
            };
            let set = |bits: u64| {
                let stored = memory.compare_exchange(now.table, index, entry, entry | bits);
                assert!(stored.is_ok(), "nothing runs in between");
            };
            if entry & 1 == 0 {
                return Err(0);
            }
            if !root.long && now.level == 3 {
                assert_eq!(entry & 0xfff8_0000_0000_01e6, 0, "reserved bits in a page-directory pointer");
            } else {
                if entry & 1 << 51 != 0 {
                    return Err(0b1001);
                }
                let ignored = if root.long && now.level > 1 { abi::agile::SWITCHING } else { 0 };
                assert_eq!(entry & 0x7ff0_0000_0000_0000 & !ignored, 0, "reserved bits for PAE");
                now.write &= entry & 2 != 0;
                now.user &= entry & 4 != 0;
                now.execute &= entry >> 63 == 0;
            }
            let start = gva.0 >> shift << shift;
            if now.level == 1 || (now.level == 2 && entry & 0x80 != 0) {
                let to = entry & 0x000f_ffff_ffff_f000;
                let to = if now.level == 2 { to & !0x1000 } else { to };
                assert_eq!(to & ((1 << shift) - 1), 0, "a misplaced leaf");
                let Pointer { write, user, execute, .. } = now;
                let global = entry & 0x100 != 0;
                let dirty = access.write || entry & 0x40 != 0;
                let found = Cached { start, shift, to, write, user, execute, global, dirty };
                let allowed = found.allows(registers, access);
                if allowed {
                    set(if access.write { 0x60 } else { 0x20 });
                }
                return if allowed { Ok(found) } else { Err(1) };
            }
            assert!(entry & 0x180 == 0, "a reserved bit above the leaf");
            if root.long || now.level < 3 {
                set(0x20);
            }
            now = Pointer {
                start,
                shift,
                table: Hfn(entry >> 12 & 0xff_ffff_ffff),
                level: now.level - 1,
                ..now
            };
            self.pointers.push(now);
        }
    }
}

impl Cached {
    fn at(&self, gva: Gva) -> Hpa {
        Hpa(self.to | gva.0 & ((1 << self.shift) - 1))
    }

    /// With CR0.WP and EFER.NXE set.
    fn allows(&self, registers: Registers, access: Access) -> bool {
        let mode = if access.user {
            self.user
        } else if access.execute {
            !(self.user && registers.smep)
        } else {
            !(self.user && registers.smap && !registers.ac)
        };
        mode && (!access.write || self.write) && (!access.execute || self.execute)
    }
}
