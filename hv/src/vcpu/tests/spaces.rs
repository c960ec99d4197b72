//! Address spaces that are nested or shadow as a whole.

use crate::arch::addr::Gva;
use crate::arch::state::{Gpr, SegReg, Segment, VcpuState, cr0, cr4, efer};
use crate::arch::{Exception, RegMove};
use crate::paging::engine::{Engine, Engines};
use crate::paging::policy::Mode;
use crate::paging::shadow::{Shadow, Statistics};
use crate::vcpu::mmu::{serve, set_mode};
use crate::vcpu::outcome::Return;
use crate::vcpu::run::run;
use crate::vcpu::testing::{CODE, Machine, START, TSC_KHZ};
use crate::virt::fake::{Fake, Step};
use crate::virt::{Exit, FlushScope, Roots};

fn mode(parameters: &str) -> Mode {
    alloc::format!("agile,machine=commodity{parameters}").parse().unwrap()
}

/// MOV CR3 to this root, `ms` later.
fn load(f: &mut Fake, ms: u64, cr3: u64) -> Exit {
    f.cpu.tsc.set(f.cpu.tsc.get() + ms * TSC_KHZ);
    f.set_gpr(Gpr::Rax, cr3);
    f.next_rip = Some(CODE);
    Exit::ControlReg(RegMove { index: 3, write: true, gpr: Some(Gpr::Rax) })
}

/// On tables of 32 bits at 5000 from the start.
fn machine(script: &[Step], parameters: &str) -> Machine {
    let mut machine = Machine::with("shadow_pages = 16\n", script);
    machine.host.cpu.tsc.set(START);
    machine.vcpu.virt.regs.cr3 = 0x5000;
    machine.vcpu.virt.regs.cr0 |= cr0::PG;
    set_mode(&mut machine.vcpu, &machine.vm, mode(parameters), || START).unwrap();
    machine
}

fn is_nested(f: &Fake) -> bool {
    matches!(f.roots, Some(Roots::Nested(_)) | None)
}

#[test]
fn each_address_space_runs_on_the_engine_that_it_has_come_to() {
    let mut machine = machine(
        &[
            // Young; without a shadow address space loads of CR3 do not exit.
            |f| (assert!(is_nested(f) && !f.cr3_exits), load(f, 1, 0x5000)).1,
            |f| {
                assert!(is_nested(f) && f.flushes.contains(&FlushScope::NonGlobal));
                load(f, 100, 0x6000)
            },
            // 5000 has had its time. Its neighbour has not.
            |f| (assert!(is_nested(f) && f.cr3_exits), load(f, 50, 0x5000)).1,
            |f| (assert!(!is_nested(f)), load(f, 10, 0x6000)).1,
            |f| (assert!(is_nested(f) && f.cr3_exits), load(f, 10, 0x5000)).1,
            |f| {
                assert!(!is_nested(f));
                Exit::Shutdown
            },
        ],
        ",start_ms=100",
    );
    machine.play();
    let spaces = machine.vm.translation.spaces();
    let spaces = spaces.as_ref().unwrap();
    let known: Vec<_> =
        spaces.iter().map(|space| (space.root, space.engine, space.total.ran / 1_000_000)).collect();
    assert_eq!(known, [(0x5000, Engine::Shadow, 111), (0x6000, Engine::Nested, 60)]);
    assert_eq!(spaces.counts.nested_loads, 4);
    assert_eq!(machine.vcpu.mmu.switches.to_shadow.count, 2);
}

#[test]
fn another_mode_begins_with_its_own_engine_and_ends_the_exits() {
    let mut machine = machine(&[], ",start_ms=0");
    let Machine { vm, vcpu, .. } = &mut machine;
    serve(vcpu, vm, || START).unwrap();
    assert!(!is_nested(&vcpu.virt), "shadow from the start");
    vcpu.virt.regs.cr0 &= !cr0::PG;
    serve(vcpu, vm, || START).unwrap();
    assert!(is_nested(&vcpu.virt), "no address space");
    set_mode(vcpu, vm, Mode::Shadow, || START).unwrap();
    assert!(!is_nested(&vcpu.virt) && vm.translation.spaces().is_none());
    serve(vcpu, vm, || START).unwrap();
    assert!(!is_nested(&vcpu.virt), "nothing keeps it from shadow tables any more");
    set_mode(vcpu, vm, mode(",start_ms=0"), || START).unwrap();
    serve(vcpu, vm, || START).unwrap();
    set_mode(vcpu, vm, Mode::Nested, || START).unwrap();
    serve(vcpu, vm, || START).unwrap();
    assert!(is_nested(&vcpu.virt) && !vcpu.virt.cr3_exits);
}

#[test]
fn a_halted_vcpu_keeps_no_other_from_shadow_tables() {
    let mut machine = machine(&[|_| Exit::Hlt], ",start_ms=100");
    let Machine { vm, vcpu, host } = &mut machine;
    serve(vcpu, vm, || START).unwrap();
    assert_eq!(vm.translation.target(Engines::ALL), Some(Engine::Nested), "its address space is young");
    assert!(matches!(run(vcpu, vm, &mut (), host), Return::Idle));
    assert_eq!(vm.translation.target(Engines::ALL), Some(Engine::Shadow));
}

/// One address space becomes shadow and fills its tables; its neighbour runs on nested tables, becomes shadow in its turn, and
/// makes way for the first one again.
const NEIGHBOURS: [Step; 7] = [
    |f| load(f, 1, 0x5000),
    |f| load(f, 100, 0xa000),
    |f| load(f, 50, 0x5000),
    |f| {
        assert!(!is_nested(f));
        Exit::Exception(Exception::page_fault(Gva(0x8000), 0))
    },
    |f| load(f, 10, 0xa000),
    |f| (assert!(is_nested(f)), load(f, 100, 0xa000)).1,
    |f| (assert!(!is_nested(f)), load(f, 1, 0x5000)).1,
];

/// What the shadow engine has counted after this many of the steps.
fn after(steps: usize, sets_dirty_bits: bool) -> Statistics {
    let mut machine = machine(&NEIGHBOURS[..steps], ",start_ms=100");
    machine.vcpu.virt.sets_dirty_bits = sets_dirty_bits;
    for (root, table) in [(0x5000, 0x6000u32), (0xa000, 0xb000)] {
        machine.write(root, &(table | 0x27).to_le_bytes());
        machine.write(u64::from(table) + 4 * 8, &0x0002_0067u32.to_le_bytes());
    }
    machine.play();
    let shadow = machine.vm.shadow.write();
    shadow.as_ref().map(Shadow::statistics).unwrap()
}

#[test]
fn one_that_becomes_shadow_leaves_the_others_their_shadow_pages() {
    let [filled, nested, both, back] = [4, 5, 6, 7].map(|steps| after(steps, true));
    assert!(filled.pages >= 2 && filled.filled == 1, "a root and a table: {filled:?}");
    assert_eq!(nested.pages, filled.pages, "kept while its neighbour is nested");
    let made = both.pages_made - filled.pages_made;
    assert!(made > 0 && both.roots_made == filled.roots_made + 1, "{both:?}");
    assert_eq!(both.pages, filled.pages + made, "all pages of the first one, and those of its neighbour");
    assert_eq!((back.pages_made, back.pages), (both.pages_made, both.pages), "nothing is made again");
    assert_eq!(back.roots_found, both.roots_found + 1);
    // Where nothing tells what was written meanwhile, all pages go.
    assert!(after(6, false).pages < both.pages);
}

/// A write to the table of level 2, by an instruction at 1000.
fn write_table(f: &mut Fake) -> Exit {
    f.regs.rip = CODE;
    f.set_gpr(Gpr::Rcx, f.gpr(Gpr::Rcx) + 1);
    Exit::Exception(Exception::page_fault(Gva(0x8100), 3))
}

/// What stands in a table of level 2 after ten writes to it, of which each writes its number, how often the guest was let go on with
/// the table its own, and whether it is still so after its timeout: by what is emulated, as nothing here executes instructions.
fn written(parameters: &str) -> (u8, u64, u64) {
    let mut script = [write_table as Step; 12];
    script[10..].fill(|f| load(f, 2001, 0x2_0000));
    let mut machine = Machine::with("shadow_pages = 16\n", &script);
    // Tables of levels 4 to 1 at 20000: the code, and at 8000 that of level 2.
    for (at, entry) in [
        (0x2_0000, 0x2_1067),
        (0x2_1000, 0x2_2067),
        (0x2_2000, 0x2_3067),
        (0x2_3008, CODE | 0x67),
        (0x2_3040, 0x2_2067),
    ] {
        machine.write(at, &u64::to_le_bytes(entry));
    }
    // MOV [RAX], CL
    machine.code(&[0x88, 0x08]);
    let regs = &mut machine.vcpu.virt.regs;
    regs.cr0 |= cr0::PG | cr0::WP;
    regs.cr4 |= cr4::PAE;
    regs.efer = efer::LME | efer::LMA | efer::NXE;
    regs.cr3 = 0x2_0000;
    regs.segments[SegReg::Cs as usize] = Segment::flat(8, 0xa9b);
    machine.vcpu.virt.set_gpr(Gpr::Rax, 0x8100);
    set_mode(&mut machine.vcpu, &machine.vm, mode(parameters), || START).unwrap();
    machine.play();
    let [byte] = machine.read(0x2_2100);
    let shadow = machine.vm.shadow.write();
    let counts = shadow.as_ref().map(Shadow::upper_counts).unwrap();
    assert_eq!(counts.unsync, counts.to_unsync - counts.protected);
    (byte, counts.to_unsync, counts.protected)
}

#[test]
fn a_table_above_level_1_that_is_written_eight_times_is_left_to_the_guest() {
    assert_eq!(written(",start_ms=0,upper_ms=0"), (10, 0, 0));
    assert_eq!(written(",start_ms=0,upper_ms=60000"), (7, 1, 0), "seven are emulated");
    assert_eq!(written(",start_ms=0,upper_ms=2000"), (7, 1, 1), "it does not change any more");
}
