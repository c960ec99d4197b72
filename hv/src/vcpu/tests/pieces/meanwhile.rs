//! What comes to a piece while it is copied where it is in use: small leaves of shadow tables, guest tables, another engine, and a cache
//! domain for a part of it.

use super::*;
use crate::arch::addr::Gva;
use crate::arch::state::cr0;
use crate::paging::engine::Engine;
use crate::vcpu::mmu::{page_fault, shadowed_state, switch};
use crate::vcpu::outcome::Outcome;

/// The guest's page directory, and its table of the first 4 MiB, through which it reaches the piece.
const DIRECTORY: u64 = 0x5000;
const TABLE: u64 = 0x6000;
/// The page of the piece that becomes a table, and where it leads.
const OWN_TABLE: u64 = 9;
const THERE: u64 = 20;

impl Scene {
    /// A guest that pages: all pages of the piece are at their numbers.
    fn paging() -> Scene {
        let mut scene = Scene::with("test_device = true\nshadow_pages = 64\n");
        let entry = |page: u64, bits: u64| (AT + page * PAGE_SIZE) | bits;
        scene.machine.write(DIRECTORY, &(TABLE as u32 | 0x27).to_le_bytes());
        scene.machine.write(DIRECTORY + 4, &(entry(OWN_TABLE, 0x27) as u32).to_le_bytes());
        (0..PIECE).for_each(|n| scene.machine.write(TABLE + 4 * n, &(entry(n, 0x67) as u32).to_le_bytes()));
        scene.write(OWN_TABLE, entry(THERE, 0x67));
        scene.machine.vcpu.virt.regs.cr3 = DIRECTORY;
        scene.machine.vcpu.virt.regs.cr0 |= cr0::PG;
        scene
    }

    fn on(&mut self, engine: Engine) {
        switch(&mut self.machine.vcpu, &self.machine.vm, engine, || 0).unwrap();
        self.machine.vm.translation.enforce(engine);
    }

    /// The guest accesses an address on shadow tables.
    fn access(&mut self, at: u64, write: bool) {
        let Machine { vm, vcpu, host } = &mut self.machine;
        let outcome = page_fault(vcpu, vm, host, Gva(at), if write { 2 } else { 0 }, false, 0);
        assert!(matches!(outcome, Outcome::Resume));
    }

    /// Where shadow tables lead at a page of the piece.
    fn leaf(&self, page: u64) -> Option<Hfn> {
        self.machine.vm.code(Gva(page * PAGE_SIZE), true).map(Hpa::frame)
    }

    /// What shadow tables say is right, and no more than the P2m allows.
    #[track_caller]
    fn check(&self) {
        let vm = &self.machine.vm;
        let state = shadowed_state(&self.machine.vcpu, vm);
        let memory = vm.memory.read();
        if let Some(shadow) = &*vm.shadow.read() {
            shadow.check(&memory.p2m, &memory.ram(), &state).unwrap_or_else(|wrong| panic!("{wrong}"));
        }
    }

    fn own_table(&self) -> (u64, u64) {
        (OWN_TABLE, (AT + THERE * PAGE_SIZE) | 0x67)
    }
}

#[test]
fn small_leaves_of_shadow_tables_stay_and_lead_to_the_copy() {
    for back in [false, true] {
        let mut scene = Scene::paging();
        scene.on(Engine::Shadow);
        let (from, to) = if back { (scene.fast().0, scene.home) } else { (scene.home, scene.fast().0) };
        if back {
            scene.pass();
            scene.finish();
            scene.write(7, 8);
            scene.tiers().set_state(Some(EState::LEAST)).unwrap();
        }
        (0..PIECE).for_each(|n| scene.access(n * PAGE_SIZE, n % 3 > 0));
        let is_filled =
            |scene: &Scene, first: Hfn| (0..PIECE).all(|n| scene.leaf(n) == Some(Hfn(first.0 + n)));
        assert!(is_filled(&scene, from));
        let faults = |scene: &Scene| scene.machine.vm.shadow.read().as_ref().unwrap().statistics().faults;
        let before = faults(&scene);
        scene.pass();
        for parts in 0.. {
            scene.check();
            scene.part();
            if !scene.tiers().has_moves() {
                break;
            }
            assert!(is_filled(&scene, from), "after {parts} parts");
        }
        assert!(is_filled(&scene, to) && faults(&scene) == before, "without a fault");
        scene.check();
        assert_eq!(scene.place(), Some((to, !back)));
        // A write is seen, and from then on it can be written.
        scene.access(5 * PAGE_SIZE, true);
        assert_eq!(scene.place(), Some((to, false)));
        scene.check();
        scene.holds(&[scene.own_table()]);
    }
}

#[test]
fn a_table_that_appears_in_a_piece_while_it_is_copied_keeps_it_where_it_is() {
    for after in [1, 20, 33] {
        let mut scene = Scene::paging();
        scene.on(Engine::Shadow);
        scene.access(0, false);
        scene.pass();
        (0..after).for_each(|_| scene.part());
        assert!(matches!(scene.stage(), Some(Stage::Protected(_))));
        // Its bits say that it was accessed, so that nothing is written.
        scene.access(4 << 20, false);
        assert!(scene.machine.vm.shadow.read().as_ref().unwrap().is_table(Hfn(scene.home.0 + OWN_TABLE)));
        scene.check();
        scene.finish();
        scene.is_given_up();
        assert_eq!((scene.counts().pieces_in, scene.counts().pinned), (0, 512));
        scene.check();
        // What the guest maps through it is still seen.
        scene.access(THERE * PAGE_SIZE, true);
        scene.check();
        scene.holds(&[scene.own_table()]);
    }
}

#[test]
fn another_engine_in_the_midst_of_a_copy_reads_the_copy_and_its_writes_end_it() {
    for (first, second) in [(Engine::Nested, Engine::Shadow), (Engine::Shadow, Engine::Nested)] {
        for (after, writes) in [(1, false), (1, true), (20, false), (20, true), (33, false), (33, true)] {
            let mut scene = Scene::paging();
            scene.on(Engine::Shadow);
            (0..64).for_each(|n| scene.access(n * PAGE_SIZE, true));
            scene.on(first);
            scene.pass();
            (0..after).for_each(|_| scene.part());
            scene.on(second);
            if second == Engine::Shadow {
                (0..96).for_each(|n| scene.access(n * PAGE_SIZE, false));
            }
            scene.check();
            assert_eq!(scene.place(), Some((scene.home, true)), "reads change nothing");
            if writes && second == Engine::Shadow {
                scene.access(3 * PAGE_SIZE, true);
            } else if writes {
                let mut memory = scene.machine.vm.memory.write();
                let crate::vm::Memory { p2m, nested, .. } = &mut *memory;
                let at = Gpa(AT + 3 * PAGE_SIZE);
                let _flush = nested.tree_mut(TreeKey::FIRST).fault(at, Access::WRITE, p2m).unwrap();
            }
            scene.finish();
            let place = if writes { (scene.home, false) } else { scene.fast() };
            assert_eq!((scene.place(), scene.counts().pieces_written), (Some(place), u64::from(writes)));
            scene.check();
            for engine in [first, second, Engine::Shadow] {
                scene.on(engine);
                scene.check();
                let leads = |n: u64| scene.leaf(n).is_none_or(|frame| frame == Hfn(place.0.0 + n));
                assert!(engine != Engine::Shadow || (0..PIECE).all(leads));
                let nested = (0..PIECE).filter_map(|n| scene.nested(n).map(|(to, _)| (n, to.frame())));
                nested.for_each(|(n, frame)| assert_eq!(frame, Hfn(place.0.0 + n)));
            }
            scene.holds(&[scene.own_table()]);
        }
    }
}

#[test]
fn a_cache_domain_for_a_part_of_a_piece_ends_its_copy_and_one_for_all_of_it_does_not() {
    for (pages, after) in [(3, 1), (3, 20), (3, 33), (PIECE, 1), (PIECE, 20), (PIECE, 33)] {
        let scene = Scene::new();
        scene.pass();
        (0..after).for_each(|_| scene.part());
        let range = GpaRange::new(Gpa(AT), pages * PAGE_SIZE).unwrap();
        let edit = |p2m: &mut crate::paging::p2m::P2m<_>, _: &mut _| {
            p2m.set_home(range, Some(1)).map(|change| vec![change])
        };
        let _flushes = scene.machine.vm.change_map(0, &mut 0, edit).unwrap();
        let copied = scene.copies.load(Ordering::Relaxed);
        scene.finish();
        let moves = pages == PIECE;
        assert_eq!((scene.counts().pieces_in, scene.counts().pinned), if moves { (1, 0) } else { (0, 512) });
        if !moves {
            assert_eq!((scene.copies.load(Ordering::Relaxed), scene.pool.free()), (copied, FRAMES as u32));
        }
        let memory = scene.machine.vm.memory.read();
        for n in 0..PIECE {
            let page = Gpa(AT + n * PAGE_SIZE);
            let place = if moves { scene.fast() } else { (scene.home, false) };
            assert_eq!(memory.p2m.movable(page), Some((Hfn(place.0.0 + n), place.1)), "page {n}");
            assert_eq!(memory.p2m.peek(page).closed_in(9), (n < pages).then_some(1));
        }
        drop(memory);
        scene.holds(&[]);
    }
}
