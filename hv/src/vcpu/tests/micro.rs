//! A VCPU that touches memory that is mapped to the cache of another domain.

use std::sync::Arc;

use abi::regions::Regions;

use super::*;
use crate::arch::Access;
use crate::arch::addr::Gpa;
use crate::guest::build::scrub;
use crate::paging::NestedOutcome;
use crate::paging::p2m::P2mEntry;
use crate::paging::tree_key::TreeKey;
use crate::region::caches::Caches;
use crate::region::micro::{Counts, REST_NS, SAME_FAULTS};
use crate::region::rounds::At;
use crate::region::{Domain, Kind, Rid};
use crate::vcpu::outcome::Return;
use crate::vcpu::run::run;
use crate::vcpu::testing::Machine;
use crate::virt::fake::Step;
use crate::virt::{Roots, Virt};
use crate::vm::regions::NotPlaced;
use crate::vm::work;

/// A machine with two cache domains whose guest has a region of 8 frames from each of these on.
fn machine(frames: &[u64], script: &[Step]) -> (Machine, Vec<Rid>) {
    let mut machine = Machine::new(script);
    machine.vm.regions.set_domains(2);
    machine.host.allowed = 3;
    let mut slot = machine.vm.regions.lock(|| unreachable!("the lock is free"));
    let guest = &mut machine.vm.regions.records(&mut slot, machine.vm.layout).unwrap().guest;
    let rids = frames.iter().map(|&frame| {
        let number = guest.add(&mut |_| ()).unwrap();
        guest.add_pages(frame, 3, number.into(), &mut |_| ()).unwrap();
        guest.rid(number.into()).unwrap()
    });
    let rids = rids.collect();
    drop(slot);
    (machine, rids)
}

fn localise(machine: &mut Machine, rid: Rid, domain: u8) -> Result<(), NotPlaced> {
    let Machine { vm, vcpu, .. } = machine;
    let mut slot = vm.regions.lock(|| unreachable!("the lock is free"));
    let records = slot.as_mut().unwrap();
    let changes = vm.localise(0, &mut vcpu.work, records, rid, Domain::new(domain).unwrap())?;
    crate::vcpu::mmu::follow_changes(vcpu, changes);
    Ok(())
}

fn kind(machine: &Machine, rid: Rid) -> Kind {
    let slot = machine.vm.regions.lock(|| unreachable!("the lock is free"));
    slot.as_ref().unwrap().guest.partition().info(rid).unwrap().kind
}

fn counts(machine: &Machine) -> Counts {
    let slot = machine.vm.regions.lock(|| unreachable!("the lock is free"));
    slot.as_ref().unwrap().micro.counts()
}

fn rests(machine: &Machine, rid: Rid, vm_ns: u64) -> bool {
    let slot = machine.vm.regions.lock(|| unreachable!("the lock is free"));
    slot.as_ref().unwrap().micro.rests(rid, vm_ns)
}

fn entry(machine: &Machine, frame: u64) -> P2mEntry {
    machine.vm.memory.read().p2m.translate(Gpa(frame << 12))
}

/// The guest touches the address in `choices`, and tells which root it ran on.
const TOUCH: Step = |f| {
    let gpa = Gpa(f.choices.pop_front().expect("an address"));
    Exit::NestedFault { gpa, access: Access::WRITE, present: false, walk: false }
};

fn root(machine: &Machine, domain: u8) -> Option<Roots> {
    let key = TreeKey::new(domain, 0).unwrap();
    Some(Roots::Nested(machine.vm.memory.read().nested.root(key)))
}

#[test]
fn it_moves_to_the_regions_domain_and_runs_on_the_tables_there() {
    let (mut machine, rids) = machine(&[0x200], &[TOUCH, TOUCH]);
    assert!(!machine.vm.regions.is_divided());
    localise(&mut machine, rids[0], 1).unwrap();
    machine.vcpu.virt.choices = [0x20_3000, 0x20_3000].into();
    machine.play();
    assert_eq!(machine.host.domain, 1);
    assert_eq!(machine.vcpu.virt.roots, root(&machine, 1));
    assert_ne!(root(&machine, 0), root(&machine, 1));
    assert_eq!(counts(&machine), Counts { closed_faults: 1, moves: 1, globalised: 0, opened: 0 });
    assert_eq!(machine.vcpu.faults.spurious, 1, "the second touch was of open memory");
    assert_eq!(kind(&machine, rids[0]), Kind::Local(Domain::new(1).unwrap()));
    assert_eq!(machine.vcpu.virt.entries, 3);
}

/// Where it goes on nothing is done again but for what belongs to the processor: its timer, and what came on the way.
#[test]
fn one_that_arrives_has_its_timer_and_its_mail() {
    let (mut machine, rids) = machine(&[0x200], &[TOUCH]);
    localise(&mut machine, rids[0], 1).unwrap();
    machine.vcpu.virt.choices = [0x20_3000].into();
    let turn = |machine: &mut Machine| run(&mut machine.vcpu, &machine.vm, &mut (), &mut machine.host);
    let end = turn(&mut machine);
    assert!(matches!(end, Return::Move(1)), "{end:?}");
    let (due, ran) = (machine.vcpu.due, machine.vcpu.timers_ran);
    machine.vm.mailboxes[0].request(work::NMI);
    (machine.host.domain, machine.host.armed) = (1, None);
    machine.host.cpu.tsc.set(due - 1000);
    machine.host.wanted_at = Some(due - 1000);
    assert!(matches!(turn(&mut machine), Return::Yield));
    assert_eq!((machine.host.armed, machine.vcpu.armed, machine.vcpu.timers_ran), (Some(due), due, ran));
    assert!(!machine.vm.mailboxes[0].has_mail() && machine.vcpu.virt.event_pending());
    // The next turn is one like any other.
    machine.host.wanted_at = Some(due - 1000);
    assert!(matches!(turn(&mut machine), Return::Yield));
    assert_ne!(machine.vcpu.timers_ran, ran);
}

#[test]
fn a_region_that_no_processor_may_serve_is_opened() {
    let (mut machine, rids) = machine(&[0x200, 0x300], &[TOUCH, TOUCH]);
    machine.host.allowed = 1;
    localise(&mut machine, rids[0], 1).unwrap();
    localise(&mut machine, rids[1], 0).unwrap();
    machine.vcpu.virt.choices = [0x20_3000, 0x20_4000].into();
    machine.play();
    assert_eq!((machine.host.domain, kind(&machine, rids[0])), (0, Kind::Global));
    assert_eq!(counts(&machine), Counts { closed_faults: 1, moves: 0, globalised: 1, opened: 0 });
    assert!(matches!(entry(&machine, 0x203), P2mEntry::Ram { writable: true, .. }));
    assert!(matches!(entry(&machine, 0x303), P2mEntry::Local { home: 0, .. }));
    assert_eq!(machine.vcpu.virt.roots, None, "it has kept its tables");
}

/// One instruction needs both regions: real tables say which of them is closed, and it never completes while one is.
#[test]
fn an_instruction_that_touches_regions_of_two_domains_completes() {
    // Each attempt takes as long as a busy PCPU lets a VCPU wait, or next to nothing.
    for wait in [0, 1000, 40_000_000] {
        let (mut machine, rids) = machine(&[0x200, 0x300], &[]);
        localise(&mut machine, rids[0], 0).unwrap();
        localise(&mut machine, rids[1], 1).unwrap();
        let mut attempts = 0;
        let closed = |machine: &Machine| {
            let memory = machine.vm.memory.read();
            let tree = memory.nested.tree(TreeKey::new(machine.host.domain, 0).unwrap());
            let needs = [0x20_0000, 0x30_0000];
            needs
                .into_iter()
                .find(|&gpa| tree.look(Gpa(gpa), Access::WRITE, &memory.p2m) != Some(NestedOutcome::Spurious))
        };
        while let Some(gpa) = closed(&machine) {
            attempts += 1;
            assert!(attempts <= u32::from(SAME_FAULTS), "no progress after {attempts} attempts");
            machine.vcpu.virt.script = [
                TOUCH,
                (|f| {
                    f.cpu.tsc.set(f.cpu.tsc.get() + 1000);
                    Exit::Interrupt
                }) as Step,
            ]
            .into();
            machine.vcpu.virt.choices = [gpa].into();
            let tsc = machine.host.cpu.tsc.get() + wait;
            machine.host.cpu.tsc.set(tsc);
            machine.host.wanted_at = Some(tsc + 500);
            match run(&mut machine.vcpu, &machine.vm, &mut (), &mut machine.host) {
                Return::Move(domain) => machine.host.domain = domain,
                Return::Yield => {}
                end => panic!("{end:?}"),
            }
        }
        let counts = counts(&machine);
        assert_eq!((counts.globalised, counts.closed_faults), (1, u64::from(attempts)), "{counts:?}");
        assert!(wait > 1000 || attempts <= 6, "{attempts} attempts");
    }
}

#[test]
fn a_processor_that_was_idle_and_took_the_vcpu_opens_its_region_for_a_while() {
    /// What another VCPU of the VM has run, which is more.
    const VM_NS: u64 = 7_000_000_000;
    let (mut machine, rids) = machine(&[0x200], &[TOUCH, |_| Exit::Interrupt]);
    localise(&mut machine, rids[0], 1).unwrap();
    assert_eq!(machine.vm.regions.virtual_ns(VM_NS), VM_NS);
    machine.vcpu.virt.choices = [0x20_3000].into();
    machine.host.wanted_at = Some(machine.host.cpu.tsc.get() + 1);
    let end = run(&mut machine.vcpu, &machine.vm, &mut (), &mut machine.host);
    assert!(matches!(end, Return::Move(1) | Return::Yield), "{end:?}");
    machine.host.domain = 1;
    machine.host.wanted_at = Some(machine.host.cpu.tsc.get());
    let _ran_there = run(&mut machine.vcpu, &machine.vm, &mut (), &mut machine.host);
    (machine.host.domain, machine.host.took) = (0, true);
    machine.host.wanted_at = Some(machine.host.cpu.tsc.get());
    let _taken = run(&mut machine.vcpu, &machine.vm, &mut (), &mut machine.host);
    assert_eq!((kind(&machine, rids[0]), counts(&machine).opened), (Kind::Regular, 1));
    assert!(rests(&machine, rids[0], VM_NS + REST_NS - 1) && !rests(&machine, rids[0], VM_NS + REST_NS));
    assert!(matches!(entry(&machine, 0x203), P2mEntry::Ram { .. }));
}

/// Each rest is twice as long as the one before, also after the balancer has mapped the region to a cache in between.
#[test]
fn the_balancer_leaves_a_region_alone_until_it_has_rested() {
    let (mut machine, rids) = machine(&[0x200], &[]);
    let rid = rids[0];
    let Machine { vm, vcpu, .. } = &mut machine;
    vm.regions.set_place(At { caches: Arc::new(Caches::new([1000, 1000])), vm: 0, weight: 256 });
    let mut slot = vm.regions.lock(|| unreachable!("the lock is free"));
    let records = slot.as_mut().unwrap();
    let Ok(Regions::On(wanted)) = "balance,cache_kib=256".parse() else { panic!() };
    records.rounds(wanted).unwrap();
    let mut is_local = |vm_ns, is_round_over, opens| {
        if opens {
            records.micro.opened_for_idle(rid, vm_ns);
            let _changes = vm.open_region(0, &mut vcpu.work, records, rid).unwrap();
        }
        let _changes = match is_round_over {
            true => vm.end_round(0, &mut vcpu.work, records, vm_ns),
            false => vm.balance_regions(0, &mut vcpu.work, records, vm_ns),
        };
        records.guest.partition().info(rid).unwrap().kind.is_local()
    };
    let mut now = 7;
    assert!(is_local(now, true, false));
    for (n, times) in [1, 2, 4, 8].into_iter().enumerate() {
        let end = now + times * REST_NS;
        assert!(!is_local(now, true, true) && !is_local(now, false, false), "rest {n}");
        assert!(!is_local(end - 1, true, false) && !is_local(end - 1, false, false), "rest {n} of {times}");
        assert!(is_local(end, n % 2 == 0, false), "rest {n} of {times}");
        now = end;
    }
}

#[test]
fn frames_that_join_a_local_region_close_and_those_that_leave_it_open() {
    fn call(f: &mut Fake, number: u64, frame: u64) -> Exit {
        f.set_gpr(Gpr::Rax, number);
        for (gpr, value) in [(Gpr::Rbx, frame), (Gpr::Rcx, 1), (Gpr::Rdx, 1)] {
            f.set_gpr(gpr, value);
        }
        Exit::Hypercall
    }
    let (mut machine, rids) = machine(
        &[0x200],
        &[|f| call(f, abi::hypercall::ADD_PAGE, 0x280), |f| call(f, abi::hypercall::DEL_PAGE, 0x202)],
    );
    localise(&mut machine, rids[0], 1).unwrap();
    machine.vcpu.virt.flushes.clear();
    machine.play();
    assert_eq!(machine.vcpu.virt.gpr(Gpr::Rax), 0);
    let closed =
        [0x201, 0x202, 0x203, 0x204, 0x280, 0x281, 0x282].map(|frame| entry(&machine, frame).closed_in(0));
    assert_eq!(closed, [Some(1), None, None, Some(1), Some(1), Some(1), None]);
    assert!(machine.vcpu.virt.flushes.contains(&crate::virt::FlushScope::All));
}

#[test]
fn a_region_is_mapped_to_no_cache_without_memory_for_that() {
    let (mut machine, rids) = machine(&[0x200], &[]);
    assert_eq!(localise(&mut machine, rids[0], 2), Err(NotPlaced::Domain));
    let tables = machine.vm.memory.read().host.tables.clone();
    tables.set_limit(tables.in_use());
    assert_eq!(localise(&mut machine, rids[0], 1), Err(NotPlaced::NoMemory));
    assert!(!machine.vm.regions.is_divided());
    // Enough for the tables of the domain, and none to split leaves.
    for more in 1..12 {
        tables.set_limit(tables.in_use() + more);
        match localise(&mut machine, rids[0], 1) {
            Ok(()) => break,
            Err(why) => assert_eq!(why, NotPlaced::NoMemory),
        }
        assert!(matches!(entry(&machine, 0x203), P2mEntry::Ram { .. }), "{more} frames");
    }
    assert!(matches!(entry(&machine, 0x203), P2mEntry::Local { home: 1, .. }));
}

#[test]
fn a_reset_ends_it() {
    let (mut machine, rids) = machine(&[0x200], &[]);
    localise(&mut machine, rids[0], 1).unwrap();
    scrub(&machine.vm, 0).unwrap();
    assert!(!machine.vm.regions.is_divided());
    assert!(matches!(entry(&machine, 0x203), P2mEntry::Ram { writable: true, .. }));
    assert!(machine.vm.regions.lock(|| unreachable!("the lock is free")).is_none());
}

#[test]
fn registers_of_an_apic_over_closed_memory_leave_it_closed() {
    let (mut machine, rids) = machine(&[0x200], &[]);
    localise(&mut machine, rids[0], 1).unwrap();
    let vm = &machine.vm;
    let page = Gpa(0x20_3000);
    let cover = |to: bool| {
        let _changes = vm.change_map(0, &mut 0, |p2m, covered| {
            let changed = if to { covered.cover(p2m, page, 0)? } else { covered.uncover(p2m, page, 0) };
            Ok(changed.into_iter().collect())
        });
    };
    cover(true);
    assert_eq!(entry(&machine, 0x203), P2mEntry::Mmio);
    cover(false);
    assert!(matches!(entry(&machine, 0x203), P2mEntry::Local { home: 1, .. }));
    // Opened meanwhile.
    cover(true);
    {
        let mut slot = vm.regions.lock(|| unreachable!("the lock is free"));
        let _changes = vm.globalise(0, &mut 0, slot.as_mut().unwrap(), rids[0]).unwrap();
    }
    cover(false);
    assert!(matches!(entry(&machine, 0x203), P2mEntry::Ram { .. }));
}
