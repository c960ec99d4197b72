//! Two programs on one VCPU, each with page tables of its own.

use super::*;
use crate::arch::RegMove;
use crate::arch::state::{SegReg, Segment, cr0, cr4};
use crate::region::spaces::Counts as SpaceCounts;
use crate::vcpu::testing::CODE;

/// Roots of the programs and of the kernel, and the tables below all of them.
const ROOTS: [u64; 2] = [0x90_0000, 0x91_0000];
const KERNEL: u64 = 0x92_0000;
const POINTERS: u64 = 0x93_0000;
const DIRECTORY: u64 = 0x94_0000;
/// The regions of each program, and a frame of both.
const OF: [[u64; 2]; 2] = [REGIONS, [0x500, 0x600]];
const COMMON: u64 = 0x700;

/// MOV CR3 to the value in `choices`.
const LOAD: Step = |f| {
    let cr3 = f.choices.pop_front().expect("a root");
    f.set_gpr(Gpr::Rax, cr3);
    f.next_rip = Some(CODE);
    Exit::ControlReg(RegMove { index: 3, write: true, gpr: Some(Gpr::Rax) })
};

/// A guest with four levels of tables, in which programs reach all memory at its own addresses.
fn scene(policy: &str, mode: Mode) -> Scene {
    let mut scene = Scene::new(policy);
    let machine = &mut scene.machine;
    let write = |at: u64, entry: u64| machine.write(at, &entry.to_le_bytes());
    ROOTS.into_iter().chain([KERNEL]).for_each(|root| write(root, POINTERS | 0x67));
    write(POINTERS, DIRECTORY | 0x67);
    (0..8).for_each(|n| write(DIRECTORY + 8 * n, n << 21 | 0xe7));
    let regs = &mut machine.vcpu.virt.regs;
    regs.cr0 |= cr0::PG;
    regs.cr4 |= cr4::PAE;
    regs.efer = efer::LME | efer::LMA;
    regs.cr3 = ROOTS[0];
    regs.segments[SegReg::Cs as usize] = Segment::flat(8, 0xa9b);
    set_mode(&mut machine.vcpu, &machine.vm, mode, || 0).unwrap();
    scene
}

impl Scene {
    /// The guest's kernel has another program run, or itself. Where that exits, it does.
    fn load(&mut self, root: u64) {
        let vcpu = &mut self.machine.vcpu;
        if !vcpu.mmu.is_shadow() {
            vcpu.virt.regs.cr3 = root;
            return;
        }
        vcpu.virt.regs.cpl = 0;
        self.exit_by(Some((LOAD, root)));
        self.machine.vcpu.virt.regs.cpl = 3;
        assert_eq!(self.machine.vcpu.virt.regs.cr3, root);
    }

    /// Both programs run by turns, `slices` times each.
    fn both(&mut self, slices: u64) {
        for n in 0..2 * slices as usize {
            self.load(ROOTS[n % 2]);
            self.regions = OF[n % 2];
            self.access(COMMON);
            self.memlat(4, 400);
        }
    }

    fn space_counts(&self) -> SpaceCounts {
        let slot = self.machine.vm.regions.lock(|| unreachable!("the lock is free"));
        slot.as_ref().unwrap().rounds.as_ref().unwrap().space_counts()
    }

    /// The root of the address space that a frame's region belongs to.
    fn root_of(&self, frame: u64) -> Option<u64> {
        let slot = self.machine.vm.regions.lock(|| unreachable!("the lock is free"));
        let records = slot.as_ref().unwrap();
        let info = records.guest.partition().info_of(Gfn(frame)).unwrap();
        records.rounds.as_ref().unwrap().root(info.owner)
    }

    fn is_open(&self, frame: u64) -> bool {
        self.machine.vm.memory.read().nested.tree(PHASE).is_open(Gfn(frame))
    }
}

#[test]
fn each_program_is_mapped_to_a_cache_of_its_own() {
    for mode in [Mode::Nested, Mode::Shadow] {
        let mut scene = scene("balance,q_us=100,spaces=cr3", mode);
        let home = |scene: &Scene, program: usize| {
            let frames = OF[program].into_iter().flat_map(|first| first..first + FRAMES);
            let kinds: BTreeSet<_> = scene.kinds(frames).iter().map(|kind| format!("{kind:?}")).collect();
            (kinds.len() == 1)
                .then(|| kinds.into_iter().next().unwrap())
                .filter(|kind| kind.starts_with("Local"))
        };
        let are_apart = |scene: &Scene| {
            let [first, second] = [0, 1].map(|program| home(scene, program));
            first.is_some() && second.is_some() && first != second
        };
        for _ in 0..20 {
            scene.both(20);
            scene.end_phase();
            if are_apart(&scene) {
                break;
            }
        }
        assert!(are_apart(&scene), "{mode:?}: {:?} {:?}", [0, 1].map(|n| home(&scene, n)), scene.counts());
        for (frames, root) in OF.into_iter().zip(ROOTS) {
            let roots: Vec<_> = frames.iter().map(|first| scene.root_of(first + 1)).collect();
            assert_eq!(roots, [Some(root); 2], "{mode:?}");
        }
        assert_eq!(scene.kinds(COMMON..COMMON + 1), [Kind::Shared]);
        let counts = scene.space_counts();
        assert_eq!((counts.used, counts.made, counts.refused), (2, 2, 0), "{mode:?}");
        // Without regions all is open, and in the pool.
        let Machine { vm, vcpu, .. } = &mut scene.machine;
        vm.regions.want(abi::regions::Regions::Off);
        {
            let mut slot = vm.regions.lock(|| unreachable!("the lock is free"));
            let changes = vm.give_up_regions(0, &mut vcpu.work, slot.as_mut().unwrap());
            crate::vcpu::mmu::follow_changes(vcpu, changes);
        }
        assert_eq!(
            scene.kinds(OF.into_iter().flatten().flat_map(|first| first..first + FRAMES)),
            [Kind::Seed]
        );
        let memory = scene.machine.vm.memory.read();
        let is_closed = |frame: u64| memory.p2m.translate(Gpa(frame << 12)).closed_in(9).is_some();
        assert!(!(0..0x1000).any(is_closed), "{mode:?}");
    }
}

#[test]
fn leaves_are_joined_for_a_time_where_one_program_has_all_of_a_piece() {
    let mut scene = scene("balance", Mode::Nested);
    // The first regions of both are in one piece of 2 MiB. No cache is so small that they are mapped to one.
    const MIXED: [[u64; 2]; 2] = [[0x200, 0x600], [0x300, 0xa00]];
    let want = |scene: &Scene, times: &str| {
        let wanted = format!("balance,q_us=100,spaces=cr3,cache_kib=65536,{times}");
        scene.machine.vm.regions.want(wanted.parse().unwrap());
    };
    let run_both = |scene: &mut Scene, n: usize| {
        scene.load(ROOTS[n % 2]);
        scene.regions = MIXED[n % 2];
        scene.memlat(4, 400);
    };
    let sizes = |scene: &Scene| {
        let memory = scene.machine.vm.memory.read();
        [0x200, 0x600, 0xa00].map(|frame| match memory.nested.tree(TreeKey::FIRST).find(Gpa(frame << 12)) {
            Found::Leaf(leaf) => leaf.size,
            Found::Hole(_) => panic!("{frame:#x} is closed"),
        })
    };
    const OFTEN: &str = "period_ms=20,phase_ms=4";
    want(&scene, OFTEN);
    (0..100).for_each(|n| run_both(&mut scene, n));
    scene.end_phase();
    for (frames, root) in MIXED.into_iter().zip(ROOTS) {
        assert_eq!(frames.map(|first| scene.root_of(first + 1)), [Some(root); 2]);
    }
    assert_eq!(sizes(&scene), [PageSize::Size4K; 3]);
    // Two samples of each, and no phase in between.
    want(&scene, "period_ms=60000");
    (0..320).for_each(|n| run_both(&mut scene, n));
    assert_eq!(sizes(&scene), [PageSize::Size4K, PageSize::Size2M, PageSize::Size2M]);
    want(&scene, OFTEN);
    let before = scene.counts().rounds;
    for n in 0.. {
        assert!(n < 500, "no round ends");
        run_both(&mut scene, n);
        if scene.counts().rounds > before {
            break;
        }
    }
    assert_eq!(sizes(&scene), [PageSize::Size4K; 3]);
}

#[test]
fn the_vm_is_one_address_space_if_that_is_wanted() {
    let mut scene = scene("balance,q_us=100,spaces=vm", Mode::Nested);
    scene.both(30);
    scene.end_phase();
    let all = scene.kinds(OF.into_iter().flatten().flat_map(|first| first..first + FRAMES));
    assert!(all.len() >= 2 && all.iter().all(|kind| *kind == all[0] && kind.is_local()), "{all:?}");
    assert_eq!((scene.space_counts(), scene.root_of(OF[1][0])), (SpaceCounts::default(), None));
}

#[test]
fn a_program_finds_closed_what_another_one_has_open() {
    for mode in [Mode::Nested, Mode::Shadow] {
        let mut scene = scene("balance,spaces=cr3", mode);
        for n in 0.. {
            assert!(n < 10_000, "no phase begins");
            scene.memlat(1, 10);
            if scene.machine.vcpu.phase.is_on() {
                break;
            }
        }
        scene.access(OF[0][0]);
        assert!(scene.is_open(OF[0][0]) && scene.root_of(OF[0][0]) == Some(ROOTS[0]));
        // The kernel, on tables of its own, is no program, and ends no program's turn.
        scene.load(KERNEL);
        scene.machine.vcpu.virt.regs.cpl = 0;
        for frame in [OF[0][1], 0x800] {
            scene.exit(Some(Gpa(frame << 12)));
        }
        scene.machine.vcpu.virt.regs.cpl = 3;
        assert_eq!(scene.space_counts().made, 1, "{mode:?}");
        assert!(scene.is_open(OF[0][0]), "{mode:?}");
        scene.load(ROOTS[1]);
        scene.access(OF[1][0]);
        assert!(scene.is_open(OF[1][0]) && !scene.is_open(OF[0][0]), "{mode:?}");
        assert_eq!((scene.space_counts().made, scene.root_of(OF[1][0])), (2, Some(ROOTS[1])));
        // What the second touches of the first's is both's.
        scene.access(OF[0][0]);
        assert_eq!(scene.kinds(OF[0][0]..OF[0][0] + 1), [Kind::Shared]);
        assert!(scene.machine.vcpu.phase.is_on(), "{mode:?}");
    }
}

#[test]
fn the_kernel_on_unknown_tables_waits_for_a_program() {
    let mut scene = scene("balance,spaces=cr3", Mode::Nested);
    let runs = |scene: &mut Scene, root: u64, cpl: u8, us: u64| {
        scene.load(root);
        scene.machine.vcpu.virt.regs.cpl = cpl;
        let mut all = 0..us / 10;
        all.any(|_| {
            scene.memlat(1, 10);
            scene.machine.vcpu.phase.is_on()
        })
    };
    // Three periods of 20 ms, and after them no more than a phase's length until the turn comes again.
    assert!(!runs(&mut scene, KERNEL, 0, 60_000), "a phase of the kernel");
    assert!(runs(&mut scene, ROOTS[0], 3, 5_000), "the program's turn has not come");
    while scene.machine.vcpu.phase.is_on() {
        scene.memlat(2, 400);
    }
    assert_eq!((scene.space_counts().made, scene.root_of(REGIONS[0])), (1, Some(ROOTS[0])));
    // On known tables it serves the program, whose turn it is.
    assert!(runs(&mut scene, ROOTS[0], 0, 60_000));
}

#[test]
fn memory_of_a_program_that_has_ended_is_the_next_ones() {
    let mut scene = scene("balance,q_us=100,spaces=cr3", Mode::Nested);
    scene.memlat(200, 400);
    assert_eq!(scene.root_of(OF[0][0]), Some(ROOTS[0]));
    // The kernel empties the tables, and gives the memory away.
    scene.machine.write(ROOTS[0], &[0; 8]);
    scene.load(ROOTS[1]);
    scene.memlat(200, 400);
    scene.end_phase();
    let roots: BTreeSet<_> = (OF[0][0]..OF[0][0] + FRAMES).map(|frame| scene.root_of(frame)).collect();
    assert_eq!(roots, BTreeSet::from([Some(ROOTS[1])]), "{:?}", scene.space_counts());
    // Of the first nothing is left after a while.
    scene.memlat(1000, 400);
    let counts = scene.space_counts();
    assert_eq!((counts.used, counts.ended), (1, 1));
}
