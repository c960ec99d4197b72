//! A TSS that lies on two pages, which are no neighbours in memory; and what these allow when a task switch needs them. Intel
//! SDM 3, 7.2.1 and 7.3: what faults before the new task's state is loaded, faults in the old task.

use super::tasks::*;
use crate::check::{Case, Check, case};
use crate::machine::Cell;
use crate::machine::step::{CR0, EXECUTE, INVLPG, NONE, STORE4, Step};

pub const CASES: &[Case] = &[case("tasks.two-pages", two_pages), case("tasks.bad-pages", bad_pages)];

unsafe extern "C" {
    fn task_stays();
}

const PF: u32 = 14;
/// The pages' addresses, and that of the TSS: its words from 13 on are in the second page.
const UP: u64 = 1 << 30;
const SECOND_PAGE: u64 = UP + 4096;
const SECOND: usize = 13;
const AT: u64 = SECOND_PAGE - 4 * SECOND as u64;

/// PAE tables: the lowest GiB is mapped to itself, at the next one are two pages.
#[repr(C, align(4096))]
struct Tables {
    low: Cell<[u64; 512]>,
    high: Cell<[u64; 512]>,
    table: Cell<[u64; 512]>,
    frames: [Cell<[u32; 1024]>; 2],
    pointers: Cell<[u64; 4]>,
}

static TABLES: Tables = Tables {
    low: Cell::new([0; 512]),
    high: Cell::new([0; 512]),
    table: Cell::new([0; 512]),
    frames: [const { Cell::new([0; 1024]) }; 2],
    pointers: Cell::new([0; 4]),
};

/// The entry of a page, which is in the other frame than its number suggests.
fn entry(page: usize) -> u64 {
    TABLES.frames[1 - page].ptr() as u64 | 3
}

/// A word of the TSS.
fn word(n: usize) -> u32 {
    if n < SECOND { TABLES.frames[1].get()[1024 - SECOND + n] } else { TABLES.frames[0].get()[n - SECOND] }
}

/// The other task has its TSS on these pages, and stays where it is.
fn scene() -> Scene {
    let mut scene = Scene::new();
    let root = TABLES.pointers.ptr() as u32;
    scene.pae = Some(root);
    (scene.tss[CR3], scene.tss[EIP]) = (root, address(task_stays) as u32);
    scene.descriptor(OTHER, system(AT, 103, 0x89));
    let (mut first, mut second) = ([0; 1024], [0; 1024]);
    first[1024 - SECOND..].copy_from_slice(&scene.tss[..SECOND]);
    second[..26 - SECOND].copy_from_slice(&scene.tss[SECOND..]);
    TABLES.frames[1].set(first);
    TABLES.frames[0].set(second);
    TABLES.low.set(core::array::from_fn(|n| (n as u64) << 21 | 0xe3));
    TABLES.high.set(core::array::from_fn(|n| if n == 0 { TABLES.table.ptr() as u64 | 3 } else { 0 }));
    TABLES.table.set(core::array::from_fn(|n| if n < 2 { entry(n) } else { 0 }));
    TABLES.pointers.set([TABLES.low.ptr() as u64 | 1, TABLES.high.ptr() as u64 | 1, 0, 0]);
    scene
}

fn jump_to(selector: u64) -> Step {
    Step::new(EXECUTE, address(task_jump), to(selector))
}

fn tr() -> Step {
    Step::new(EXECUTE, address(task_tr), 0)
}

fn two_pages(c: &mut Check) {
    let back = u64::from(FIRST);
    let steps = [jump_to(OTHER), tr(), jump_to(back), tr(), jump_to(OTHER), tr(), jump_to(back), tr()];
    let steps = scene().perform(steps);
    for (n, step) in steps.iter().enumerate() {
        c.equal(format_args!("step {n}"), step.vector, NONE);
    }
    c.equal("TR", [1, 3, 5, 7].map(|n| steps[n].value), [OTHER, back, OTHER, back]);
    c.equal("saved EIP", word(EIP), address(task_jump) as u32 + 2);
    c.equal("saved CS and SS", (word(SELECTORS + 1), word(SELECTORS + 2)), (0x08, 0x10));
}

fn bad_pages(c: &mut Check) {
    const WP: u64 = 0x8001_0031;
    let at = [UP, SECOND_PAGE];
    let place = |page: usize| TABLES.table.ptr() as u64 + 8 * page as u64;
    let set =
        |page: usize, entry: u64| [Step::new(STORE4, place(page), entry), Step::new(INVLPG, at[page], 0)];
    // What a switch to it needs, and then what a switch away from it needs.
    for (leaves, page, rights) in
        [(false, 0, 0), (false, 1, 0), (true, 0, 0), (true, 0, 1), (true, 1, 0), (true, 1, 1)]
    {
        let what = format_args!("leaves {leaves}, page {page}, rights {rights}");
        let bad = if rights == 0 { 0 } else { entry(page) & !2 };
        let [bad, flush_bad] = set(page, bad);
        let [good, flush_good] = set(page, entry(page));
        let (first, second) = if leaves { (OTHER, FIRST.into()) } else { (FIRST.into(), OTHER) };
        let wp = Step::new(CR0, 0, WP);
        // Where it is not to be left, it has been there already.
        let begin = if leaves { jump_to(OTHER) } else { tr() };
        let steps =
            [wp, begin, bad, flush_bad, jump_to(second), tr(), good, flush_good, jump_to(second), tr()];
        let steps = scene().perform(steps);
        let (fault, after) = (&steps[4], &steps[9]);
        c.equal(format_args!("{what}: begins"), steps[1].vector, NONE);
        // Whether the processor reads first where it is to write, the manuals do not say.
        let (ignored, error) = if rights == 0 { (2, 0) } else { (0, 3) };
        c.equal(format_args!("{what}"), (fault.vector, fault.error & !ignored), (PF, error));
        c.equal(format_args!("{what}: CR2"), fault.cr2 & !0xfff, at[page]);
        c.equal(format_args!("{what}: TR"), steps[5].value, first);
        c.equal(format_args!("{what}: again"), (steps[8].vector, after.value), (NONE, second));
    }
}
