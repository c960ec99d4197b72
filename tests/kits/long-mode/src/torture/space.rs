//! The memory that the torture plays with: tables and targets at fixed places, and their mirror, where effects are predicted.
//!
//! Everything lies between 18 and 48 MiB. Tables begin where a large page that a table's entry is mistaken for has
//! reserved bits set.

use super::model::{Kind, Setup};
use crate::machine::insn::{cr3, peek, poke, set_cr3};

/// The first table. Bits 13 and 21 are set.
pub const TABLES: u64 = 0x120_2000;
/// Tables.
pub const TABLE_PAGES: u64 = 62;
/// What is mapped: aligned to 4 MiB, so that pages of all sizes have it at the same offset.
pub const TARGET: u64 = 0x140_0000;
/// Pages of it that the mirror holds.
pub const TARGET_PAGES: u64 = 16;
/// The first byte of the second 4 MiB beyond [`TARGET`], for what needs much memory.
pub const BULK: u64 = 0x200_0000;
/// The end of all of it.
pub const END: u64 = 0x300_0000;
/// Mirror of tables and targets.
const MIRROR: u64 = 0x180_0000;
/// Where lists of steps are, and what is wanted of them.
pub const STEPS: u64 = 0x1a0_0000;
/// The second half of the same.
pub const WANTS: u64 = 0x1c0_0000;

/// Where user mode sees low memory in the torture's 4-level tables.
pub const USER_BASE: u64 = 6 << 39;
/// The same in tables of 32-bit modes.
pub const USER_BASE_32: u64 = 0x8000_0000;

/// Offset of a function that returns [`MAGIC`], in each target page.
pub const CODE: u64 = 0x200;
/// Offset of user code that comes back with [`MAGIC`].
pub const USER_CODE: u64 = 0x210;
/// What the code returns, plus the page's number.
pub const MAGIC: u64 = 0x7031_7000;

/// Where [`TARGET`] is mapped.
pub const fn linear(kind: Kind) -> u64 {
    match kind {
        Kind::Off => TARGET,
        Kind::Two | Kind::Pae => 1 << 30 | TARGET,
        Kind::Four => 5 << 39 | TARGET,
    }
}

/// Where the mirror holds a word, if it does.
fn mirrored(at: u64) -> Option<u64> {
    if (TABLES..TABLES + TABLE_PAGES * 4096).contains(&at) {
        return Some(MIRROR + (at - TABLES));
    }
    (TARGET..TARGET + TARGET_PAGES * 4096).contains(&at).then(|| MIRROR + 0x10_0000 + (at - TARGET))
}

/// Memory as it will be.
pub fn predicted(at: u64, bytes: u64) -> u64 {
    let at = mirrored(at).unwrap_or(at);
    if bytes == 4 { peek::<u32>(at).into() } else { peek(at) }
}

/// Foretells a store; one outside of the mirrored memory is none.
pub fn predict(at: u64, bytes: u64, value: u64) {
    match (mirrored(at), bytes) {
        (Some(at), 4) => poke(at, value as u32),
        (Some(at), _) => poke(at, value),
        (None, _) => {}
    }
}

/// Tables and targets of the torture.
pub struct Space {
    /// How tables are made.
    pub kind: Kind,
    /// CR3
    pub root: u64,
    used: u64,
    before: u64,
}

impl Space {
    /// Fresh tables of a kind, in which the kit itself is mapped (accessed and dirty before);
    /// nothing is mapped at [`linear`] yet.
    pub fn new(kind: Kind) -> Self {
        let mut space = Space { kind, root: 0, used: 0, before: cr3() & !0xfff };
        for page in 0..TARGET_PAGES {
            fill_target(page);
        }
        space.root = space.make_root(kind);
        if kind == Kind::Four {
            set_cr3(space.root);
        }
        space
    }

    /// A cleared page for a table.
    pub fn table(&mut self) -> u64 {
        assert!(self.used < TABLE_PAGES);
        let at = TABLES + self.used * 4096;
        self.used += 1;
        clear(at);
        at
    }

    /// The page of another root table, in which the kit is mapped.
    pub fn make_root(&mut self, kind: Kind) -> u64 {
        let root = self.table();
        match kind {
            Kind::Off => {}
            Kind::Two => self.map_kit_two(root),
            Kind::Pae => self.map_kit_pae(cr3_of(kind, root)),
            Kind::Four => {
                let low = peek::<u64>(self.before) & !0xfff;
                poke(root, low | 0x23);
                poke(root + 6 * 8, low | 0x27);
            }
        }
        root
    }

    /// CR3
    pub fn cr3(&self) -> u64 {
        cr3_of(self.kind, self.root)
    }

    fn map_kit_two(&mut self, root: u64) {
        let (low, tables) = (self.table(), [self.table(), self.table(), self.table(), self.table()]);
        identity(low, 0, 1024, 4, 0x67);
        poke(root, low as u32 | 0x23);
        poke(root + (USER_BASE_32 >> 22) * 4, low as u32 | 0x27);
        // 16 to 32 MiB: tables, steps.
        for (i, table) in (4..).zip(tables) {
            identity(table, i << 22, 1024, 4, 0x63);
            poke(root + i * 4, table as u32 | 0x23);
        }
    }

    fn map_kit_pae(&mut self, pointers: u64) {
        let (low, user) = (self.table(), self.table());
        for i in 0..16 {
            poke(low + i * 8, i << 21 | 0xe3);
            poke(user + i * 8, i << 21 | 0xe7);
        }
        poke(pointers, low | 1);
        poke(pointers + 16, user | 1);
    }

    /// Copies memory to the mirror.
    pub fn look(&self) {
        self.each_word(|at, mirror| poke(mirror, peek::<u64>(at)));
    }

    /// Calls `word(address, address in the mirror)` for all words of tables and targets in use.
    pub fn each_word(&self, mut word: impl FnMut(u64, u64)) {
        for (start, pages) in [(TABLES, self.used), (TARGET, TARGET_PAGES)] {
            for at in (start..start + pages * 4096).step_by(8) {
                word(at, mirrored(at).unwrap_or(at));
            }
        }
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        if self.kind == Kind::Four {
            set_cr3(self.before);
        }
    }
}

/// CR3 for a root table's page: PAE's pointers do not lie at its beginning.
pub fn cr3_of(kind: Kind, root: u64) -> u64 {
    if kind == Kind::Pae { root + 0x60 } else { root }
}

/// The registers in which a kind's tables are used in long mode.
pub fn is_long(setup: &Setup) -> bool {
    setup.kind == Kind::Four
}

/// Clears a page.
pub fn clear(at: u64) {
    for word in 0..512 {
        poke(at + word * 8, 0u64);
    }
}

/// Gives a target page its contents: data that tells where it is, and code.
pub fn fill_target(page: u64) {
    let at = TARGET + page * 4096;
    for word in (0..4096).step_by(4) {
        poke(at + word, (at + word) as u32 ^ 0x5a5a_0000);
    }
    let magic = (MAGIC + page) as u32;
    poke(at + CODE, 0xb8u8);
    poke(at + CODE + 1, magic);
    poke(at + CODE + 5, 0xc3u8);
    poke(at + USER_CODE, 0xb8u8);
    poke(at + USER_CODE + 1, magic);
    poke(at + USER_CODE + 5, [0xcdu8, 0x80]);
}

/// Entries that map memory to itself.
fn identity(table: u64, first: u64, count: u64, bytes: u64, flags: u64) {
    for i in 0..count {
        let entry = (first + i * 4096) | flags;
        if bytes == 4 { poke(table + i * 4, entry as u32) } else { poke(table + i * 8, entry) }
    }
}
