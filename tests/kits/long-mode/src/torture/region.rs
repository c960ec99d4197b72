//! One table of each level, which map the target's pages.

use super::model::{Kind, entry_at, entry_bytes, shifts};
use super::script::Script;
use super::space::{CODE, Space, TARGET, USER_CODE, linear};
use crate::machine::step::{EXECUTE, USER};

/// Present, writable, user.
pub const ALL: u64 = 7;
/// The pages that a region maps.
pub const PAGES: u64 = 16;

/// The tables, and where they translate.
pub struct Region {
    kind: Kind,
    /// From the root down.
    pub tables: [u64; 4],
}

impl Region {
    /// Empty tables; the root is the space's.
    pub fn new(space: &mut Space) -> Self {
        let (kind, cr3) = (space.kind, space.cr3());
        Region::under(space, kind, cr3)
    }

    /// The same under another root.
    pub fn under(space: &mut Space, kind: Kind, cr3: u64) -> Self {
        let mut tables = [cr3; 4];
        for table in &mut tables[1..shifts(kind).len()] {
            *table = space.table();
        }
        Region { kind, tables }
    }

    /// The number of levels.
    pub fn levels(&self) -> usize {
        shifts(self.kind).len()
    }

    /// The last table.
    pub fn leaf_table(&self) -> u64 {
        self.tables[self.levels() - 1]
    }

    /// Where the entry of a level (0 is the root's) for an address is.
    pub fn entry(&self, level: usize, address: u64) -> u64 {
        entry_at(self.kind, shifts(self.kind)[level], self.tables[level], address)
    }

    /// Where the last table's entry for a page is.
    pub fn leaf(&self, page: u64) -> u64 {
        self.entry(self.levels() - 1, self.page(page))
    }

    /// The address of a page.
    pub fn page(&self, page: u64) -> u64 {
        linear(self.kind) + page * 4096
    }

    /// An address in a page that suits an access.
    pub fn at(&self, page: u64, op: u32) -> u64 {
        self.page(page) + offset(op)
    }

    /// The flags of an entry that points to a table and allows everything.
    pub fn pointer_flags(&self, level: usize) -> u64 {
        if self.kind == Kind::Pae && level == 0 { 1 } else { ALL }
    }

    /// Stores the last table's entry for a page.
    pub fn store(&self, script: &mut Script<'_>, page: u64, entry: u64) {
        script.store_sized(self.leaf(page), entry_bytes(self.kind), entry);
    }

    /// Stores entries for all levels but the last.
    pub fn link(&self, script: &mut Script<'_>) {
        for level in 0..self.levels() - 1 {
            let entry = self.tables[level + 1] | self.pointer_flags(level);
            script.store_sized(self.entry(level, self.page(0)), entry_bytes(self.kind), entry);
        }
    }

    /// Maps page by page, with everything allowed, and loads CR3.
    pub fn map(&self, script: &mut Script<'_>) {
        self.fill(script);
        script.reload();
    }

    /// Maps page by page, with everything allowed, without a flush.
    pub fn fill(&self, script: &mut Script<'_>) {
        self.link(script);
        for page in 0..PAGES {
            self.store(script, page, target(page) | ALL);
        }
    }
}

/// The address of a target page.
pub const fn target(page: u64) -> u64 {
    TARGET + page * 4096
}

/// Where in a page an access of a kind goes.
pub const fn offset(op: u32) -> u64 {
    match op & 3 {
        EXECUTE if op & USER != 0 => USER_CODE,
        EXECUTE => CODE,
        other => 0x100 + other as u64 * 8,
    }
}
