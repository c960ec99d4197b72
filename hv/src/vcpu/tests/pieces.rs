//! A piece of 2 MiB that moves in parts, as `Vm::tier_batch` does it, and what comes in between.

mod meanwhile;

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};

use abi::tiers::{HotPolicy, Sharing};

use crate::arch::Access;
use crate::arch::addr::{Gfn, Gpa, Hfn, Hpa, PAGE_SIZE};
use crate::guest::build::scrub;
use crate::mem::guest_memory::GuestMemory;
use crate::mem::host_access::{HostAccess, VecHost};
use crate::mem::pager::Span;
use crate::mem::tier::migration::{CopyFrame, PIECE};
use crate::mem::tier::parts::{PART, Stage};
use crate::mem::tier::pool::FastPool;
use crate::mem::tier::sharing::{Demand, EState};
use crate::mem::tier::tests::Table;
use crate::mem::tier::{Counts, Tiers};
use crate::paging::format::NestedAttr;
use crate::paging::range::GpaRange;
use crate::paging::table::Found;
use crate::paging::tree_key::TreeKey;
use crate::vcpu::testing::Machine;

/// Fast memory, behind the guest's RAM.
const FAST: Hpa = Hpa(0x1000_0000 + (20 << 20));
/// Frames of fast memory: two pieces.
const FRAMES: u64 = 1024;
/// Where the piece is.
const AT: u64 = 4 << 20;

/// Copies in the machine's memory, and counts.
#[derive(Debug)]
struct Copier {
    bytes: VecHost,
    copies: Arc<AtomicU64>,
}

impl CopyFrame for Copier {
    fn copy(&self, from: Hfn, to: Hfn) {
        let mut page = [0; PAGE_SIZE as usize];
        self.bytes.read(from.base(), &mut page);
        self.bytes.write(to.base(), &page);
        self.copies.fetch_add(1, Ordering::Relaxed);
    }

    fn wipe(&self, frame: Hfn) {
        self.bytes.fill(frame.base(), PAGE_SIZE, 0);
    }
}

struct Scene {
    machine: Machine,
    pool: Arc<FastPool>,
    copies: Arc<AtomicU64>,
    home: Hfn,
}

/// Moments of a move for [`Scene::go_to`].
const MOMENTS: [(bool, u64); 6] = [(false, 1), (false, 20), (false, 33), (true, 1), (true, 20), (true, 33)];

impl Scene {
    /// The piece is on its way since some parts: in use where it is, or absent, because `written` was written to its page 1 the time before.
    fn go_to(&self, is_absent: bool, after: u64, written: u64) {
        self.pass();
        if is_absent {
            self.part();
            self.write(1, written);
            self.finish();
            self.pass();
        }
        (0..after).for_each(|_| self.part());
    }

    /// A VM whose pages from [`AT`] on hold their numbers.
    fn new() -> Scene {
        Scene::with("test_device = true\n")
    }

    fn with(options: &str) -> Scene {
        let mut machine = Machine::with(options, &[]);
        let pool = [FAST.frame()..Hfn(FAST.frame().0 + FRAMES)];
        let pool = Arc::new(FastPool::new(pool, Sharing::Shares).unwrap());
        let copies = Arc::new(AtomicU64::new(0));
        let bytes = VecHost::clone(&machine.vm.memory.read().host.bytes);
        let copier = Box::new(Copier { bytes, copies: copies.clone() });
        let span = Span { low: 20 << 8, high_start: Gfn(1 << 20), high: 0 };
        let demand = Demand::new(1, None);
        let tiers = Tiers::new(pool.clone(), 0, demand, span, HotPolicy::Threshold, copier).unwrap();
        machine.vm.memory.get_mut().p2m.set_migration(&tiers.migration);
        machine.vm.tiers = Some(Arc::new(tiers));
        let (home, is_clean) = machine.vm.memory.read().p2m.movable_piece(Gpa(AT)).unwrap();
        assert!(!is_clean);
        let scene = Scene { machine, pool, copies, home };
        (0..PIECE).for_each(|n| scene.write(n, n + 1));
        scene
    }

    fn tiers(&self) -> &Tiers {
        self.machine.vm.tiers.as_ref().unwrap()
    }

    fn counts(&self) -> Counts {
        self.tiers().view().counts
    }

    /// A sample says that all of the piece is hot.
    fn pass(&self) {
        let mut table = Table::default();
        (AT / PAGE_SIZE..AT / PAGE_SIZE + PIECE).for_each(|page| table.set(page, u32::MAX));
        table.large.extend(0..10);
        assert!(self.tiers().pass(&table, &table.histogram(), 0).is_empty());
    }

    /// A page holds this from now on, as a device writes it.
    fn write(&self, page: u64, value: u64) {
        let memory = self.machine.vm.memory.read();
        memory.ram().write(Gpa(AT + page * PAGE_SIZE), &value.to_le_bytes()).unwrap();
    }

    fn read(&self, page: u64) -> u64 {
        let mut bytes = [0; 8];
        self.machine.vm.memory.read().ram().read(Gpa(AT + page * PAGE_SIZE), &mut bytes).unwrap();
        u64::from_le_bytes(bytes)
    }

    /// The VCPU is away for the next part. What it copied at most.
    #[track_caller]
    fn part(&self) {
        let before = self.copies.load(Ordering::Relaxed);
        let _flushes = self.machine.vm.tier_batch(0, &mut 0);
        assert!(self.copies.load(Ordering::Relaxed) - before <= PART, "the VCPU was away for too long");
    }

    fn finish(&self) -> u32 {
        let mut parts = 0;
        while self.tiers().has_moves() {
            self.part();
            parts += 1;
        }
        parts
    }

    fn stage(&self) -> Option<Stage> {
        self.tiers().moving().map(|moving| moving.stage)
    }

    /// Where all of the piece is, and whether it is clean there.
    fn place(&self) -> Option<(Hfn, bool)> {
        self.machine.vm.memory.read().p2m.movable_piece(Gpa(AT))
    }

    fn fast(&self) -> (Hfn, bool) {
        (Hfn(FAST.frame().0 + PIECE), true)
    }

    /// What nested tables say of a page.
    fn nested(&self, page: u64) -> Option<(Hpa, NestedAttr)> {
        let at = Gpa(AT + page * PAGE_SIZE);
        match self.machine.vm.memory.read().nested.tree(TreeKey::FIRST).find(at) {
            Found::Leaf(leaf) => Some((Hpa(leaf.to.0 + (at.0 - leaf.gpa.0)), leaf.attr)),
            Found::Hole(_) => None,
        }
    }

    /// All pages hold their numbers, but for these.
    #[track_caller]
    fn holds(&self, others: &[(u64, u64)]) {
        for page in 0..PIECE {
            let other = others.iter().find(|(other, _)| *other == page);
            assert_eq!(self.read(page), other.map_or(page + 1, |(_, value)| *value), "page {page}");
        }
    }

    /// The first write has made the piece what it was.
    #[track_caller]
    fn is_given_up(&self) {
        assert_eq!((self.place(), self.pool.free()), (Some((self.home, false)), FRAMES as u32));
    }

    /// Everything is in fast memory, and was written since: it has to go back by a copy.
    fn in_fast() -> Scene {
        let scene = Scene::new();
        scene.pass();
        scene.finish();
        scene.write(7, 0x7777);
        assert_eq!(scene.place(), Some((scene.fast().0, false)));
        scene.tiers().set_state(Some(EState::LEAST)).unwrap();
        scene.pass();
        scene
    }
}

#[test]
fn what_is_not_written_can_be_read_all_the_time_and_moves_in_parts() {
    let scene = Scene::new();
    scene.pass();
    scene.part();
    assert_eq!((scene.stage(), scene.pool.free()), (Some(Stage::Protected(0)), FRAMES as u32 - 512));
    assert_eq!(scene.nested(3).map(|(_, attr)| attr), Some(NestedAttr::ROM), "no processor can write it");
    while scene.stage() != Some(Stage::Protected(PIECE)) {
        assert_eq!((scene.place(), scene.read(9)), (Some((scene.home, true)), 10));
        scene.part();
        // A pass leaves it alone.
        scene.pass();
    }
    scene.part();
    assert_eq!((scene.stage(), scene.place()), (None, Some(scene.fast())));
    assert_eq!(scene.nested(0).map(|(to, attr)| (to.frame(), attr)), Some((scene.fast().0, NestedAttr::ROM)));
    scene.holds(&[]);
    let counts = scene.counts();
    assert_eq!((counts.pieces_in, counts.pieces_written, counts.moved_in), (1, 0, 512));
    assert_eq!(scene.copies.load(Ordering::Relaxed), PIECE, "each page once");
    assert_eq!(scene.finish(), 0);
}

#[test]
fn a_write_at_any_time_is_kept_and_ends_the_copy() {
    for after in 0..=PIECE / PART + 1 {
        let scene = Scene::new();
        scene.pass();
        (0..after).for_each(|_| scene.part());
        // The last page is copied last.
        for page in [0, 300, PIECE - 1] {
            scene.write(page, 0xabc);
        }
        let copied = scene.copies.load(Ordering::Relaxed);
        let written = [(0, 0xabc), (300, 0xabc), (PIECE - 1, 0xabc)];
        scene.holds(&written);
        scene.finish();
        scene.holds(&written);
        if after == 0 {
            assert_eq!(scene.place(), Some(scene.fast()), "nothing had begun");
            continue;
        }
        assert_eq!(scene.counts().pieces_written, 1, "after {after} parts");
        assert!(scene.copies.load(Ordering::Relaxed) - copied <= PART, "it looks");
        scene.is_given_up();
        // Nested tables follow at the next fault.
        let mut memory = scene.machine.vm.memory.write();
        let crate::vm::Memory { p2m, nested, .. } = &mut *memory;
        let _flush = nested.tree_mut(TreeKey::FIRST).fault(Gpa(AT), Access::WRITE, p2m).unwrap();
        drop(memory);
        assert_eq!(scene.nested(5).map(|(_, attr)| attr), Some(NestedAttr::RAM));
    }
}

#[test]
fn one_that_was_written_comes_page_by_page_and_is_one_leaf_in_the_end() {
    for accesses in [false, true] {
        let scene = Scene::new();
        scene.pass();
        scene.part();
        scene.write(1, 0x1111);
        scene.finish();
        scene.pass();
        scene.part();
        assert_eq!((scene.stage(), scene.place()), (Some(Stage::Absent), None));
        let mut written = vec![(1, 0x1111)];
        let mut parts = 0;
        while scene.tiers().has_moves() {
            scene.part();
            parts += 1;
            scene.pass();
            if accesses && scene.tiers().has_moves() {
                let page = PIECE - 1 - 5 * parts;
                scene.write(page, 0x2222 + page);
                written.push((page, 0x2222 + page));
                assert_eq!(scene.read(page - 1), page, "it is there at once");
            }
        }
        assert_eq!(scene.place(), Some((scene.fast().0, !accesses)));
        assert_eq!(scene.copies.load(Ordering::Relaxed), PIECE, "each page once, accessed or not");
        scene.holds(&written);
        let counts = scene.counts();
        assert_eq!((counts.pieces_in, counts.pieces_written, counts.busy), (1, 1, 0));
        // Small leaves of nested tables have become one, too.
        let memory = scene.machine.vm.memory.read();
        let found = memory.nested.tree(TreeKey::FIRST).find(Gpa(AT));
        assert!(
            matches!(found, Found::Leaf(leaf) if leaf.to.frame() == scene.fast().0 && leaf.size.bytes() == 2 << 20)
        );
    }
}

#[test]
fn what_goes_home_is_copied_in_parts_and_a_write_meanwhile_is_not_discarded() {
    let scene = Scene::in_fast();
    let before = scene.copies.load(Ordering::Relaxed);
    assert_eq!(scene.finish(), 2 + (PIECE / PART) as u32);
    assert_eq!(
        (scene.place(), scene.copies.load(Ordering::Relaxed) - before),
        (Some((scene.home, false)), PIECE)
    );
    assert_eq!((scene.counts().pieces_out, scene.counts().discarded), (1, 0));
    assert_eq!(scene.pool.free(), FRAMES as u32);
    scene.holds(&[(7, 0x7777)]);
    for after in [1, 5, 33] {
        let scene = Scene::in_fast();
        (0..after).for_each(|_| scene.part());
        scene.write(2, 0x2222);
        scene.finish();
        assert_eq!((scene.place(), scene.counts().pieces_written), (Some((scene.fast().0, false)), 1));
        scene.holds(&[(7, 0x7777), (2, 0x2222)]);
        // It goes all the same, with the next pass.
        scene.pass();
        scene.part();
        scene.write(3, 0x3333);
        scene.finish();
        assert_eq!((scene.place(), scene.counts().pieces_out), (Some((scene.home, false)), 1));
        scene.holds(&[(7, 0x7777), (2, 0x2222), (3, 0x3333)]);
        assert_eq!((scene.counts().discarded, scene.pool.free()), (0, FRAMES as u32));
    }
}

#[test]
fn a_change_of_the_map_meanwhile_leaves_the_rest_as_it_was() {
    for after in [1, 7, 33] {
        let scene = Scene::new();
        scene.pass();
        (0..after).for_each(|_| scene.part());
        let page = GpaRange::page(Gpa(AT + 3 * PAGE_SIZE));
        let edit =
            |p2m: &mut crate::paging::p2m::P2m<_>, _: &mut _| p2m.map_mmio(page).map(|change| vec![change]);
        let _flushes = scene.machine.vm.change_map(0, &mut 0, edit).unwrap();
        scene.finish();
        assert_eq!((scene.counts().pinned, scene.counts().pieces_in), (512, 0));
        assert_eq!(scene.pool.free(), FRAMES as u32);
        let memory = scene.machine.vm.memory.read();
        for n in (0..PIECE).filter(|n| *n != 3) {
            let at = memory.p2m.movable(Gpa(AT + n * PAGE_SIZE));
            assert_eq!(at, Some((Hfn(scene.home.0 + n), false)), "page {n} is plain");
        }
    }
}

#[test]
fn a_reset_meanwhile_clears_all_of_it() {
    for (is_absent, after) in MOMENTS {
        let scene = Scene::new();
        scene.go_to(is_absent, after, 1);
        assert!(scene.stage().is_some());
        let mut piece = 0;
        while scrub(&scene.machine.vm, piece).unwrap() {
            piece += 1;
        }
        let zeroes: Vec<(u64, u64)> = (0..PIECE).map(|page| (page, 0)).collect();
        scene.holds(&zeroes);
        scene.finish();
        scene.holds(&zeroes);
        let (at, is_clean) = scene.place().unwrap();
        assert!(!is_clean && at == if is_absent { scene.fast().0 } else { scene.home });
    }
}

#[test]
fn the_end_of_the_vm_meanwhile_gives_all_frames_back_without_its_contents() {
    for back in [false, true] {
        for (is_absent, after) in MOMENTS {
            let scene = if back { Scene::in_fast() } else { Scene::new() };
            scene.go_to(is_absent, after, 2);
            assert!(scene.stage().is_some() && scene.pool.free() == FRAMES as u32 - 512);
            let Scene { machine, pool, .. } = scene;
            let bytes = VecHost::clone(&machine.vm.memory.read().host.bytes);
            drop(machine);
            assert_eq!(pool.free(), FRAMES as u32);
            let mut fast = vec![1; (FRAMES * PAGE_SIZE) as usize];
            bytes.read(FAST, &mut fast);
            assert!(fast.iter().all(|byte| *byte == 0));
        }
    }
}
