//! Conversations about one VM.

use super::model::{World, answer, converse};
use crate::arch::addr::{Gfn, Gpa};
use crate::arch::state::{Gpr, SegReg, Segment, VcpuState, cr0, cr4, efer};
use crate::device::{Nanos, layout, message::Messages};
use crate::mem::guest_memory::GuestMemory;
use crate::monitor::Monitor;
use crate::monitor::vms::{Action, State, Vms as _};
use crate::paging::shadow::Limit;
use crate::region::micro::{LastTouches, Reason, Touch, Verdict};
use crate::vcpu::testing::{Scene, TSC_KHZ};
use crate::vm::work;
use abi::telemetry::ExitKind;

/// A guest in 64-bit mode with 2 MiB of RAM at ffffffff80000000 and one page, at 12_3456 in RAM, at 40_0000.
pub fn long_mode() -> Scene {
    let mut scene = Scene::new();
    let memory = scene.vm.memory.read();
    let ram = memory.ram();
    let entries = [
        (0x1000, 0x2027u64), // level 4
        (0x1ff8, 0x3023),
        (0x2000, 0x4027), // level 3
        (0x3ff0, 0x5023),
        (0x4010, 0x6027), // level 2
        (0x5000, 0x0000_00e3 | 1 << 8),
        (0x6000, 0x12_3067), // level 1
        (0x6008, 0xfee0_0067),
    ];
    for (at, entry) in entries {
        ram.write(Gpa(at), &entry.to_le_bytes()).unwrap();
    }
    ram.write(Gpa(0x12_3ff8), b"ABCDEFGH").unwrap();
    drop(memory);
    let regs = &mut scene.vcpu().virt.regs;
    regs.cr3 = 0x1018;
    regs.cr0 = cr0::PE | cr0::PG | cr0::WP;
    regs.cr4 = cr4::PAE | cr4::PGE | cr4::SMAP;
    regs.efer = efer::LME | efer::LMA | efer::NXE;
    regs.set_segment(SegReg::Cs, Segment::flat(0x10, 0xa9b));
    regs.rip = 0xffff_ffff_8000_1234;
    regs.set_gpr(Gpr::Rsp, 0x40_0ff0);
    scene
}

#[test]
fn leaving_lets_the_guest_go_on() {
    for text in ["quit\r", "exit\r", "q\r", "^", "\x04", "resume\r", "\r\rvms\r^", "half a line^"] {
        let mut world = World::new([Scene::new()]);
        let shown = converse(&mut Monitor::default(), &mut world, text);
        assert!(shown.starts_with("\nmonitor: guest is paused"), "{shown}");
        assert!(shown.ends_with("\nmonitor: guest resumed\n"), "{shown}");
        assert_eq!(world.selected, None, "{text:?}");
    }
}

#[test]
fn a_paused_guest_stays_so() {
    let mut world = World::new([Scene::new()]);
    let script = "pause\rvms\rquit\rvms\r^vms\r^\r^resume\r";
    let shown = converse(&mut Monitor::default(), &mut world, script);
    assert_eq!(
        shown.matches("guest is paused; to resume it, press Ctrl-a p and type `resume`").count(),
        4,
        "{shown}"
    );
    assert_eq!(
        shown.matches("guest            paused").count(),
        2,
        "vms typed to the paused guest is not a command\n{shown}"
    );
    assert!(shown.ends_with("monitor: guest resumed\n"));
}

#[test]
fn reset_and_poweroff_end_the_session_and_the_pause() {
    let (mut monitor, mut world) = (Monitor::default(), World::new([Scene::new()]));
    let shown = converse(&mut monitor, &mut world, "pause\rreset\r");
    assert!(shown.ends_with("monitor: guest resumed\n"), "{shown}");
    assert_eq!(world.state(0), State::Running);
    let shown = converse(&mut monitor, &mut world, "poweroff\r");
    assert!(shown.ends_with("monitor: quit\n"), "{shown}");
    assert_eq!(world.done, [(Action::Pause, 0), (Action::Restart, 0), (Action::PowerOff, 0)]);
}

#[test]
fn history_outlives_a_session() {
    let (mut monitor, mut world) = (Monitor::default(), World::new([Scene::new()]));
    converse(&mut monitor, &mut world, "vcpus\r^");
    let shown = converse(&mut monitor, &mut world, "\x1b[A\r^");
    assert!(shown.contains("CPL"), "{shown}");
}

#[test]
fn vms_and_vcpus() {
    let mut scene = long_mode();
    let text = answer(&mut scene, "vms");
    let fields: Vec<_> = text.lines().nth(1).unwrap().split_whitespace().collect();
    let expected = ["*", "guest", "running", "20", "MiB", "1", "1.234", "s", "0.617", "s", "0", "nested"];
    assert_eq!(fields, expected);
    scene.vcpu().request(work::HALTED | work::NMI);
    scene.vcpu().exits.add(ExitKind::Hlt, 7);
    let text = answer(&mut scene, "vcpus");
    let fields: Vec<_> = text.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(fields, ["0", "halted", "64-bit", "0", "0xffffffff80001234", "1", "NMI"]);
}

#[test]
fn registers() {
    let mut scene = long_mode();
    scene.vcpu().virt.msrs.insert(0xc000_0082, 0xabc);
    let text = answer(&mut scene, "regs");
    for part in [
        "RIP ffffffff80001234",
        "RSP 0000000000400ff0",
        "CR3 0000000000001018",
        "CS 0010 base",
        "TR 0000 base",
        "DR6 ffff0ff0 DR7 00000400",
        "LSTAR 0000000000000abc\n",
        "local APIC: TPR 00 PPR 00, no interrupt pending",
    ] {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
    assert_eq!(answer(&mut scene, "regs 1"), "no VCPU 1; guest has 1, numbered from 0\n");
}

#[test]
fn memory_map() {
    let mut scene = Scene::new();
    let text = answer(&mut scene, "p2m");
    for part in [
        "00000000000000-00000001400000         20 MiB  RAM at host 0x10000000\n",
        "000000fee00000-000000fee01000          4 KiB  MMIO\n",
        "nested leaves: 0 of 1 GiB, 10 of 2 MiB, 0 of 4 KiB\n",
        "nested leaves cover 0 bytes accessed, 0 bytes dirty\n",
    ] {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
    assert_eq!(
        answer(&mut scene, "p2m 201234"),
        "0x201234: RAM at host 0x10201234\nnested: 2 MiB leaf from 0x200000, read, write, execute\n"
    );
    assert_eq!(answer(&mut scene, "p2m fee00000"), "0xfee00000: MMIO\nnested: not mapped\n");
    assert_eq!(
        answer(&mut scene, "p2m ffffffffffffffff"),
        "0xffffffffffffffff: unmapped\nnested: not mapped\n"
    );
}

#[test]
fn page_walks() {
    let mut scene = long_mode();
    let text = answer(&mut scene, "walk rip");
    for part in [
        "linear 0xffffffff80001234: 4-level paging, CR3 0x1018\n",
        "  level 4 at 000000001ff8: 0000000000003023 table\n",
        "  level 2 at 000000005000: 00000000000001e3 leaf\n",
        "  guest-physical 0x1234: 2 MiB page, supervisor, write, execute, global, dirty, PAT 0\n",
        "  RAM at host 0x10001234\n",
    ] {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
    assert!(
        answer(&mut scene, "walk rsp").contains("4 KiB page, user, write, execute, dirty"),
        "despite SMAP"
    );
    let text = answer(&mut scene, "walk 500000");
    assert!(text.ends_with("not present\n  not mapped: a read takes #PF with error code 0x0\n"), "{text}");
    assert!(answer(&mut scene, "walk 800000000000").ends_with("not canonical: an access takes #GP\n"));
    scene.vcpu().virt.regs.cr3 = 0xffff_f000;
    assert!(answer(&mut scene, "walk rip").contains("the table at 0xfffffff8 is outside RAM"));
}

#[test]
fn dumps() {
    let mut scene = long_mode();
    assert_eq!(
        answer(&mut scene, "x rsp 24"),
        "0000000000400ff0  00 00 00 00 00 00 00 00 41 42 43 44 45 46 47 48  ........ABCDEFGH\n\
         0x401000: guest-physical 0xfee00000 is not RAM or ROM\n"
    );
    assert_eq!(
        answer(&mut scene, "xp 123ffc 4"),
        format!("0000000000123ffc  45 46 47 48{}  EFGH\n", " ".repeat(36))
    );
    assert_eq!(answer(&mut scene, "xp cr3 1").lines().count(), 1);
    assert_eq!(answer(&mut scene, "x ffffffff80000000 4096").lines().count(), 256);
    assert!(answer(&mut scene, "x 7ffffffffff8").starts_with("0x7ffffffffff8: not mapped"));
    assert!(answer(&mut scene, "x fffffffffffffff8").starts_with("0xfffffffffffffff8: not mapped"));
    assert!(answer(&mut scene, "xp fffffffffffffff8 4096").contains("not RAM or ROM"));
    assert!(answer(&mut scene, "xp fee00000").starts_with("0xfee00000: not RAM or ROM"));
}

#[test]
fn real_mode_addresses_have_segments() {
    let mut scene = Scene::new();
    let text = answer(&mut scene, "walk rip");
    assert!(text.starts_with("linear 0xfffffff0: no paging"), "{text}");
}

#[test]
fn statistics() {
    let mut scene = Scene::new();
    let vcpu = scene.vcpu();
    (0..3).for_each(|_| vcpu.exits.add(ExitKind::Cpuid, 100));
    vcpu.exits.add(ExitKind::Io, 1_234 * TSC_KHZ / 2 - 300);
    vcpu.interrupts.counts.nmis = 9;
    vcpu.faults.filled = 4;
    let text = answer(&mut scene, "stats");
    let row = |name: &str| -> Vec<_> {
        text.lines().find(|line| line.starts_with(name)).unwrap_or("").split_whitespace().skip(1).collect()
    };
    assert_eq!(row("cpuid "), ["3", "300", "100", "0.0", "%"]);
    assert_eq!(row("io "), ["1", "616999700", "616999700", "99.9", "%"]);
    assert_eq!(row("all "), ["4", "617000000", "154250000", "100.0", "%"]);
    for part in ["took 50.0 % of the uptime", "9 NMIs", "4 filled", "unknown MSRs: none", "400-ffff: 0"] {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
    assert!(answer(&mut scene, "host").starts_with("PCPUs: 1; TSC at 1000000 kHz\n"));
}

#[test]
fn modes() {
    let mut scene = long_mode();
    scene.vm.shadow_limit = Limit::pages(16);
    assert!(answer(&mut scene, "shadow").starts_with("no shadow tables so far; `mode shadow` allows "));
    let text = answer(&mut scene, "mode");
    assert!(text.starts_with("mode nested: policy requests nested tables; nested tables in use\n"), "{text}");
    assert!(text.contains("\nVCPU 0: nested tables\n"), "{text}");
    let text = answer(&mut scene, "mode shadow");
    assert!(
        text.starts_with(
            "mode shadow: policy requests shadow tables; shadow tables in use\nVCPU 0: shadow tables\n"
        ),
        "{text}"
    );
    assert!(
        text.contains("to nested tables: 0 times") && text.contains("to shadow tables: 1 times"),
        "{text}"
    );
    assert!(answer(&mut scene, "vms").ends_with("  shadow\n"));
    assert_eq!(answer(&mut scene, "shadow").split_whitespace().take(2).collect::<Vec<_>>(), ["pages", "1"]);
    assert!(answer(&mut scene, "walk rsp").contains("CR3 0x1018\n"), "the guest's");
    let text = answer(&mut scene, "mode switch=7");
    assert!(
        text.starts_with("mode switch=7: policy requests shadow tables; shadow tables in use\n"),
        "{text}"
    );
    let text = answer(&mut scene, "mode nested");
    assert!(text.contains("\nVCPU 0: nested tables\nto nested tables: 1 times"), "{text}");
    assert_eq!(
        answer(&mut scene, "mode both"),
        "`both` is no mode: use nested, shadow, agile, agile,machine=commodity, switch=N with N from 1 on (such as switch=50), or a policy: random, \
             threshold, dsp-sample, dav2m, dsp-offset, asp-svm, bandit, oracle, each with its parameters (such as dav2m,window_inst=50000000)\n"
    );
}

#[test]
fn regions_of_the_guest_are_listed() {
    let mut scene = long_mode();
    assert!(answer(&mut scene, "regions").starts_with("the guest has defined no regions"));
    {
        let mut slot = scene.vm.regions.lock(|| unreachable!("the lock is free"));
        let regions = &mut scene.vm.regions.records(&mut slot, scene.vm.layout).unwrap().guest;
        let nothing = &mut |_| {};
        assert_eq!([regions.add(nothing), regions.add(nothing)], [Ok(1), Ok(2)]);
        regions.add_pages(0x100, 3, 2, nothing).unwrap();
        regions.add_pages(0x100, 0, 1, nothing).unwrap_err();
    }
    let text = answer(&mut scene, "regions");
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[1], ["1", "regular", "all", "0", "0", "bytes", "0", "0", "0"], "{text}");
    assert_eq!(lines[2], ["2", "regular", "all", "8", "32", "KiB", "0", "0", "0"], "{text}");
    assert!(text.contains("\n8 of ") && text.contains("calls performed 3, refused 1;"), "{text}");
}

#[test]
fn regions_are_placed_by_hand() {
    let mut scene = long_mode();
    assert!(answer(&mut scene, "regions 1 0").starts_with("there is no region 1; `regions` lists "));
    {
        let mut slot = scene.vm.regions.lock(|| unreachable!("the lock is free"));
        let regions = &mut scene.vm.regions.records(&mut slot, scene.vm.layout).unwrap().guest;
        let nothing = &mut |_| {};
        assert_eq!(regions.add(nothing), Ok(1));
        regions.add_pages(0x200, 3, 1, nothing).unwrap();
    }
    scene.vm.regions.set_domains(2);
    let at = |scene: &Scene, frame: u64| scene.vm.memory.read().p2m.translate(Gpa(frame << 12)).closed_in(0);
    let text = answer(&mut scene, "regions 1 2");
    assert!(text.starts_with("no such cache domain; this machine has those from 0 to 1"), "{text}");
    assert!(!scene.vm.regions.is_divided());
    let text = answer(&mut scene, "regions 1 1");
    assert!(text.contains("     1  local    1 ") && text.contains("cache domains 2"), "{text}");
    assert_eq!([0x1ff, 0x200, 0x207, 0x208].map(|frame| at(&scene, frame)), [None, Some(1), Some(1), None]);
    assert!(answer(&mut scene, "p2m 200000").contains("mapped to the cache of domain 1"));
    assert!(scene.vm.regions.is_divided());
    let text = answer(&mut scene, "regions 1 global");
    assert!(text.contains("     1  global   all "), "{text}");
    assert_eq!(at(&scene, 0x203), None);
    for line in ["regions x 1", "regions 1", "regions 1 everywhere", "regions 1 1 1"] {
        assert!(!answer(&mut scene, line).contains("caches"), "{line}");
    }
}

#[test]
fn regions_that_were_found_are_placed_by_hand_too() {
    let mut scene = long_mode();
    scene.vm.regions.set_domains(2);
    answer(&mut scene, "regions unify");
    let abi::regions::Regions::On(wanted) = scene.vm.regions.wanted() else { panic!("it is off") };
    let found = {
        let mut slot = scene.vm.regions.lock(|| unreachable!("the lock is free"));
        let records = scene.vm.regions.records(&mut slot, scene.vm.layout).unwrap();
        let _made = records.rounds(wanted).unwrap();
        let partition = records.guest.partition_mut();
        let space = crate::region::Space::VM;
        let _mapped = [0x200, 0x201, 0x202].map(|frame| partition.map(Gfn(frame), space).unwrap());
        let [first, second] = [0x200, 0x201].map(|frame| partition.split(Gfn(frame)).unwrap().0);
        partition.merge(first, second).unwrap().0.number()
    };
    let at = |scene: &Scene, frame: u64| scene.vm.memory.read().p2m.translate(Gpa(frame << 12)).closed_in(0);
    let homes = |scene: &Scene| [0x1ff, 0x200, 0x201, 0x202].map(|frame| at(scene, frame));
    let text = answer(&mut scene, &format!("regions {found} 1"));
    assert!(text.contains(&format!("{found:>6}  local    1 ")), "{text}");
    assert_eq!(homes(&scene), [None, Some(1), Some(1), None]);
    // What collects frames that are not judged yet is not listed, and has no number here.
    let seed = crate::region::Rid::seed(crate::region::Space::VM).number();
    for other in [0, 1, seed.into(), u64::from(found) + (1 << 16), u64::from(found) + 1] {
        let text = answer(&mut scene, &format!("regions {other} 0"));
        assert!(text.starts_with(&format!("there is no region {other};")), "{text}");
    }
    let text = answer(&mut scene, &format!("regions {found} global"));
    assert!(text.contains(&format!("{found:>6}  global   all ")), "{text}");
    assert_eq!(homes(&scene), [None; 4]);
}

#[test]
fn regions_are_looked_for_when_that_is_asked_for() {
    let mut scene = long_mode();
    answer(&mut scene, "regions unify,q_us=7");
    assert!(scene.vm.regions.is_wanted());
    let abi::regions::Regions::On(wanted) = scene.vm.regions.wanted() else { panic!("it is off") };
    assert_eq!(wanted.q_us, 7);
    {
        let mut slot = scene.vm.regions.lock(|| unreachable!("the lock is free"));
        let records = scene.vm.regions.records(&mut slot, scene.vm.layout).unwrap();
        let _made = records.rounds(wanted).unwrap();
        let partition = records.guest.partition_mut();
        let space = crate::region::Space::VM;
        let _mapped = [0x200, 0x201].map(|frame| partition.map(Gfn(frame), space).unwrap());
        let [first, second] = [0x200, 0x201].map(|frame| partition.split(Gfn(frame)).unwrap().0);
        let (rid, _one) = partition.merge(first, second).unwrap();
        records.micro.begin(rid).unwrap();
        let touch = Touch { rid, registers: 0, ran: 0, now: 0, can_move: false, most: 1 };
        for _ in 0..2 {
            let verdict = records.micro.touch(&mut LastTouches::default(), &touch);
            assert_eq!(verdict, Verdict::Globalise(Reason::NoProcessor));
        }
        records.micro.opened_for_idle(rid, 0);
    }
    let text = answer(&mut scene, "regions");
    let shown = text.contains(
        "  regular  all            2            2             -         0           2        1  VM\n",
    );
    assert!(text.contains("VCPUs moved 0, regions globalised 2, opened 1;"), "{text}");
    assert!(shown && text.contains("\n1 regions found in 0 rounds, 0 left out: "), "{text}");
    assert!(text.contains("\nsamples of accesses 0, 0 ticks"), "{text}");
    let text = answer(&mut scene, "regions off");
    assert!(!scene.vm.regions.is_wanted() && !text.contains("found"), "{text}");
    assert!(answer(&mut scene, "regions unify,q_us=0").contains("nor a policy"));
}

#[test]
fn a_mode_without_memory_for_it_is_not_taken() {
    let mut scene = long_mode();
    scene.vm.shadow_limit = Limit::pages(4096);
    scene.vm.memory.read().host.tables.set_limit(0);
    for mode in ["shadow", "switch=3"] {
        let text = answer(&mut scene, &format!("mode {mode}"));
        assert!(text.starts_with("mode not changed: the host has no memory for 4096 shadow pages"), "{text}");
        assert!(text.contains("\nVCPU 0: nested tables\n"), "{text}");
    }
}

#[test]
fn events_reach_the_guest() {
    let mut scene = Scene::new();
    answer(&mut scene, "nmi");
    assert_ne!(scene.vcpu().work & work::NMI, 0);
    assert_eq!(answer(&mut scene, "nmi 9"), "no VCPU 9; guest has 1, numbered from 0\n");
    answer(&mut scene, "press-power-button");
    // PM1_STS.PWRBTN_STS
    let status = scene.vm.chipset.lock().io_read(layout::PM1A_EVENT, 2, Nanos(0), &mut Messages::new());
    assert_eq!(status & 1 << 8, 1 << 8);
}

#[test]
fn help_explains() {
    let mut scene = Scene::new();
    let text = answer(&mut scene, "help");
    for command in crate::monitor::command::COMMANDS {
        assert!(text.contains(&format!("\n  {}", command.name)) || text.starts_with("  help"));
    }
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    assert!(answer(&mut scene, "help walk").contains("example: walk rip"));
    assert!(answer(&mut scene, "frobnicate").starts_with("unknown command `frobnicate`"));
}
