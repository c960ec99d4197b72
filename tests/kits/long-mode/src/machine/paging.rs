//! Page tables: the identity map of the low 4 GiB, and a window of 512 pages with tables of its own for cases to play with.

use super::Cell;
use super::insn::invlpg;

/// Where the window is.
pub const WINDOW: u64 = 0x80_0000_0000;
/// Present, writable, user.
pub const PWU: u64 = 7;
/// Present, writable.
pub const PW: u64 = 3;
/// Present.
pub const P: u64 = 1;

/// A page table or a page of memory.
#[repr(C, align(4096))]
#[derive(Clone, Copy)]
pub struct Page(pub [u64; 512]);

/// The window's tables: level 3, 2, 1.
static TABLES: [Cell<Page>; 3] = [const { Cell::new(Page([0; 512])) }; 3];
/// Pages for cases to use.
static SCRATCH: [Cell<Page>; 16] = [const { Cell::new(Page([0; 512])) }; 16];

unsafe extern "C" {
    static mut kit_pml4: [u64; 512];
}

/// The physical (and virtual) address of scratch page `i`, 0 to 15; two neighbours are contiguous.
pub fn scratch(i: usize) -> u64 {
    SCRATCH[i].ptr() as u64
}

/// The page-table entry of a page of the window.
pub fn entry(page: usize) -> *mut u64 {
    TABLES[2].ptr().cast::<u64>().wrapping_add(page)
}

/// Where the entry is that leads to the window's page-table entries.
pub fn upper_entry() -> u64 {
    TABLES[1].ptr() as u64
}

/// The address of a page of the window.
pub const fn window(page: usize) -> u64 {
    WINDOW + page as u64 * 4096
}

/// Maps a page of the window, with the entry's flags, and returns its address.
pub fn map(page: usize, physical: u64, flags: u64) -> u64 {
    // SAFETY: an entry of a static table.
    unsafe { entry(page).write_volatile(physical | flags) };
    invlpg(window(page));
    window(page)
}

/// Builds the window, empty, and clears the scratch pages.
pub fn reset() {
    let table = |i: usize| TABLES[i].ptr().cast::<u64>();
    // SAFETY: static tables; the kit itself runs in the identity map.
    unsafe {
        for i in 0..512 {
            entry(i).write_volatile(0);
            invlpg(window(i));
        }
        table(0).write_volatile(table(1) as u64 | PWU);
        table(0).add(1).write_volatile(0);
        table(1).write_volatile(table(2) as u64 | PWU);
        (&raw mut kit_pml4[1]).write_volatile(table(0) as u64 | PWU);
    }
    for page in &SCRATCH {
        page.set(Page([0; 512]));
    }
}

/// Puts a level-2 table of the caller's into the window's level-3 table; returns the first address that it translates.
pub fn hang_level2(table: u64) -> u64 {
    // SAFETY: an entry of a static table, which a later reset clears.
    unsafe { TABLES[0].ptr().cast::<u64>().add(1).write_volatile(table | PWU) };
    invlpg(WINDOW + (1 << 30));
    WINDOW + (1 << 30)
}
