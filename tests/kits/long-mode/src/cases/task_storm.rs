//! Task switches on several processors at once, and under sabotage: another processor changes TSSs, their descriptors and their
//! pages meanwhile, without a word to the processor that uses them. Nothing is said about what comes of that but that the
//! processor raises exceptions, whose handler puts all right, and goes on; the hypervisor has to live with it.

use super::smp::{LONG, with_all};
use crate::check::{Case, Check, case};
use crate::machine::smp::Processor;
use crate::machine::{Cell, lapic, time, trap};
use crate::say;

core::arch::global_asm!(include_str!("task_storm.s"));

pub const CASES: &[Case] = &[case("smp.tasks", together), case("smp.tasks-sabotage", sabotage)];

/// Processors that switch tasks, at most.
const MOST: usize = 3;
/// Switches to the other task, of each.
const SWITCHES: u32 = 400;
/// Where the pages of the TSSs are: two for each of the two.
const PAGES: u32 = 1 << 30;
/// In its first page a TSS begins here, so that half of it lies in the second: from the word `SECOND` on.
const BEGIN: usize = 4096 - 4 * SECOND;
const SECOND: usize = 13;

/// What task_storm.s knows of a processor.
#[repr(C, align(4096))]
#[derive(Clone, Copy)]
struct Block {
    gdt_pointer: [u16; 4],
    idt_pointer: [u16; 4],
    saved: [u32; 6],
    root: u32,
    left: u32,
    arrivals: u32,
    faults: u32,
    stack: u32,
    table: u32,
    to_other: [u32; 2],
    to_first: [u32; 2],
    gdt: [u64; 8],
    good_descriptors: [u64; 2],
    good_entries: [u32; 4],
    good_tss: [u32; 26],
    idt: [u64; 32],
    stacks: [[u32; 128]; 2],
}

const _: () = {
    assert!(core::mem::offset_of!(Block, gdt) == 80 && core::mem::offset_of!(Block, good_tss) == 176);
    assert!(size_of::<Block>() == 4096 && BEGIN == 0xfcc);
};

/// A processor's tables, and the frames of its TSSs: one more than there are pages.
#[repr(C, align(4096))]
struct Tables {
    directory: Cell<[u32; 1024]>,
    table: Cell<[u32; 1024]>,
    frames: [Cell<[u32; 1024]>; 5],
}

const ZERO: Block = Block {
    gdt_pointer: [0; 4],
    idt_pointer: [0; 4],
    saved: [0; 6],
    root: 0,
    left: 0,
    arrivals: 0,
    faults: 0,
    stack: 0,
    table: 0,
    to_other: [0, 0x30],
    to_first: [0, 0x28],
    gdt: [0; 8],
    good_descriptors: [0; 2],
    good_entries: [0; 4],
    good_tss: [0; 26],
    idt: [0; 32],
    stacks: [[0; 128]; 2],
};

static BLOCKS: [Cell<Block>; MOST] = [const { Cell::new(ZERO) }; MOST];
static TABLES: [Tables; MOST] = [const {
    Tables {
        directory: Cell::new([0; 1024]),
        table: Cell::new([0; 1024]),
        frames: [const { Cell::new([0; 1024]) }; 5],
    }
}; MOST];

unsafe extern "C" {
    fn kit_storm(block: *mut Block);
    fn storm_other();
    fn storm_trap();
}

/// The frames of the pages: neighbours in addresses are none in memory.
const FRAMES: [usize; 4] = [1, 0, 3, 2];

fn tss_descriptor(number: u32) -> u64 {
    let base = u64::from(PAGES + number * 0x2000) + BEGIN as u64;
    103 | (base & 0xff_ffff) << 16 | 0x89 << 40 | (base >> 24) << 56
}

/// Makes everything that processor `n` needs.
fn prepare(n: usize) {
    let (block, tables) = (BLOCKS[n].ptr() as u32, &TABLES[n]);
    let offset = |field: usize| block + field as u32;
    let entry = |frame: usize| tables.frames[frame].ptr() as u32 | 3;
    let stack = |task: usize| offset(core::mem::offset_of!(Block, stacks)) + 512 * (task as u32 + 1);
    let mut it = ZERO;
    let pointer = |at: u32, bytes: u16| [bytes - 1, at as u16, (at >> 16) as u16, 0];
    it.gdt_pointer = pointer(offset(core::mem::offset_of!(Block, gdt)), 64);
    it.idt_pointer = pointer(offset(core::mem::offset_of!(Block, idt)), 256);
    (it.root, it.table) = (tables.directory.ptr() as u32, tables.table.ptr() as u32);
    (it.left, it.stack) = (SWITCHES, stack(0));
    it.good_descriptors = [tss_descriptor(0), tss_descriptor(1)];
    // The last one's limit, in pages, says where the block is.
    let page = u64::from(block >> 12);
    let me = 0x93 << 40 | 1 << 55 | page & 0xffff | (page >> 16) << 48;
    let [first, other] = it.good_descriptors;
    it.gdt = [0, 0x00cf_9b00_0000_ffff, 0x00cf_9300_0000_ffff, 0, 0, first, other, me];
    it.good_entries = FRAMES.map(entry);
    let trap = storm_trap as *const () as u64;
    it.idt = [trap & 0xffff | 0x08 << 16 | 0x8e00 << 32 | (trap >> 16) << 48; 32];
    let mut tss = [0; 26];
    (tss[7], tss[8], tss[9]) = (it.root, storm_other as *const () as u32, 2);
    (tss[14], tss[15]) = (stack(1), block);
    tss[18..24].copy_from_slice(&[0x10, 0x08, 0x10, 0x10, 0x10, 0x10]);
    tss[25] = 104 << 16;
    it.good_tss = tss;
    BLOCKS[n].set(it);

    let mut directory: [u32; 1024] = core::array::from_fn(|n| (n as u32) << 22 | 0x83);
    directory[(PAGES >> 22) as usize] = tables.table.ptr() as u32 | 3;
    tables.directory.set(directory);
    tables.table.set(core::array::from_fn(|n| it.good_entries.get(n).copied().unwrap_or(0)));
    // What is not saved in a TSS must be right in the first one too.
    for (begin, end) in [(FRAMES[0], FRAMES[1]), (FRAMES[2], FRAMES[3]), (4, 4)] {
        let mut frame = [0; 1024];
        frame[BEGIN / 4..].copy_from_slice(&tss[..SECOND]);
        tables.frames[begin].set(frame);
        if end != begin {
            let mut frame = [0; 1024];
            frame[..26 - SECOND].copy_from_slice(&tss[SECOND..]);
            tables.frames[end].set(frame);
        }
    }
}

fn job(_: &'static Processor, n: u64) {
    // SAFETY: the block is prepared, and this processor's alone but for sabotage.
    unsafe { kit_storm(BLOCKS[n as usize].ptr()) };
    trap::load_idt(4095);
}

fn begin(all: &'static [Processor]) -> &'static [Processor] {
    let all = &all[..all.len().min(MOST)];
    (0..all.len()).for_each(prepare);
    all.iter().enumerate().for_each(|(n, processor)| processor.give(job, n as u64));
    all
}

/// Nothing is lost, and nothing faults.
fn together(c: &mut Check) {
    with_all(c, |c, all| {
        for (n, processor) in begin(all).iter().enumerate() {
            c.holds("it is done", processor.is_done(LONG));
            let Block { arrivals, faults, .. } = BLOCKS[n].get();
            c.equal(format_args!("arrivals and faults of processor {n}"), (arrivals, faults), (SWITCHES, 0));
        }
    });
}

/// Words of a TSS that may hold anything without the handler losing its way: the link, registers, data segments, trap. (With an
/// LDT that cannot be loaded the new task has no stack segment yet, and so no handler.)
const WORDS: [usize; 12] = [0, 10, 11, 12, 13, 16, 17, 18, 21, 22, 23, 25];

fn sabotage(c: &mut Check) {
    with_all(c, |c, all| {
        let all = begin(all);
        let (random, done) = (Cell::new(u64::from(lapic::id()) + 0x9e37_79b9_7f4a_7c15), Cell::new(0));
        let ended = time::wait(LONG, || {
            for _ in 0..20 {
                let mut next = random.get();
                next ^= next << 13;
                next ^= next >> 7;
                next ^= next << 17;
                random.set(next);
                harm(next as usize % all.len(), next >> 8);
                done.set(done.get() + 1);
            }
            all.iter().all(|processor| processor.is_done(0))
        });
        c.holds("all are done", ended);
        let faults: u32 = (0..all.len()).map(|n| BLOCKS[n].get().faults).sum();
        let arrivals: u32 = (0..all.len()).map(|n| BLOCKS[n].get().arrivals).sum();
        say!("tasks: {arrivals} arrivals, {faults} faults, {} acts of sabotage", done.get());
        c.holds("sabotage is felt", faults != 0);
        c.holds("switches go on", arrivals != 0);
    });
}

/// One act of sabotage against processor `n`.
fn harm(n: usize, random: u64) {
    let (block, tables) = (BLOCKS[n].ptr(), &TABLES[n]);
    let pick = (random >> 3) as usize;
    // SAFETY: static memory, of which every value is allowed; the processor that uses it is the point.
    unsafe {
        match random % 8 {
            0 | 1 => {
                let word = WORDS[pick % WORDS.len()];
                let tss = 2 * (pick >> 8 & 1);
                let (page, at) =
                    if word < SECOND { (tss, BEGIN / 4 + word) } else { (tss + 1, word - SECOND) };
                let value = [0, 0x10, 0x28, 0x30, 0x38, 1, u32::MAX, (random >> 32) as u32][pick >> 9 & 7];
                tables.frames[FRAMES[page]].ptr().cast::<u32>().add(at).write_volatile(value);
            }
            2..=4 => {
                let page = pick & 3;
                let good = tables.frames[FRAMES[page]].ptr() as u32 | 3;
                let other = tables.frames[4].ptr() as u32 | 3;
                let entry = [good, good & !2, 0, if page == 2 { other } else { good | 0x60 }][pick >> 2 & 3];
                tables.table.ptr().cast::<u32>().add(page).write_volatile(entry);
            }
            5 => {
                let at = (&raw mut (*block).gdt).cast::<u64>().add(5 + (pick & 1));
                // It stays one of 32 bits: in the other layout the stack would be elsewhere.
                let bit = [40, 41, 42, 45, 46, 47, 0, 3, 6][(pick >> 1) % 9];
                at.write_volatile(at.read_volatile() ^ 1 << bit);
            }
            _ => (0..pick & 0xff).for_each(|_| core::hint::spin_loop()),
        }
    }
}
