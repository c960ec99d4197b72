//! Regions that are found and mapped to caches by themselves: a program on a modelled processor, whose faults the run loop gets.

mod samples;
mod several;
mod spaces;

use std::collections::BTreeSet;
use std::sync::Arc;

use abi::policy::Agile;

use super::*;
use crate::arch::addr::{Gfn, Gpa, Gva, Hpa, PageSize};
use crate::arch::state::efer;
use crate::arch::{Access, Exception};
use crate::guest::build::scrub;
use crate::paging::engine::Engine;
use crate::paging::guest_walk::error_code;
use crate::paging::model::{Processor, Vendor};
use crate::paging::policy::Mode;
use crate::paging::shadow::model::{Registers, ShadowProcessor};
use crate::paging::shadow::{Root, TlbFlush};
use crate::paging::table::Found;
use crate::paging::tree_key::TreeKey;
use crate::region::caches::Caches;
use crate::region::rounds::{At, Counts};
use crate::region::{Kind, Owner, Rid};
use crate::vcpu::mmu::{set_mode, set_tree, switch};
use crate::vcpu::outcome::Return;
use crate::vcpu::regions::{before_entry, tick};
use crate::vcpu::run::run;
use crate::vcpu::testing::{Machine, TSC_KHZ};
use crate::virt::fake::Step;
use crate::virt::{FlushScope, Roots};
use crate::vm::regions::PHASE;
use crate::vm::{Memory, work};

/// Frames of the program's stack and of its two regions.
const STACK: u64 = 0x80;
const REGIONS: [u64; 2] = [0x200, 0x300];
const FRAMES: u64 = 48;
/// Nanoseconds of an access, which are as many ticks.
const ACCESS: u64 = 1000;

/// The guest touches the address in `choices`.
const TOUCH: Step = |f| {
    let gpa = Gpa(f.choices.pop_front().expect("an address"));
    Exit::NestedFault { gpa, access: Access::WRITE, present: false, walk: false }
};
/// The same on shadow tables, without paging.
const TOUCH_SHADOWED: Step = |f| {
    let gva = Gva(f.choices.pop_front().expect("an address"));
    Exit::Exception(Exception::page_fault(gva, error_code::WRITE | error_code::USER))
};

struct Scene {
    machine: Machine,
    processor: Processor,
    shadow_processor: ShadowProcessor,
    at: u64,
    /// The first frames of the running program's regions.
    regions: [u64; 2],
}

impl Scene {
    /// Two cache domains of 64 frames each; a guest at CPL 3.
    fn new(policy: &str) -> Scene {
        Scene::with(policy, "")
    }

    /// The same with more lines in the VM's configuration.
    fn with(policy: &str, more: &str) -> Scene {
        let regions = format!("{more}regions = \"{policy},cache_kib=256,period_ms=20,phase_ms=4\"\n");
        let mut machine = Machine::with(if policy.is_empty() { more } else { &regions }, &[]);
        machine.vm.regions.set_domains(2);
        machine.vm.regions.set_place(At { caches: Arc::new(Caches::new([1000, 1000])), vm: 0, weight: 256 });
        machine.host.allowed = 3;
        machine.vcpu.virt.sets_dirty_bits = true;
        machine.vcpu.virt.regs.cpl = 3;
        machine.vcpu.virt.set_gpr(Gpr::Rsp, (STACK << 12) + 0x800);
        let (processor, shadow_processor) = (Processor::new(Vendor::Amd), ShadowProcessor::default());
        let mut scene = Scene { machine, processor, shadow_processor, at: 0, regions: REGIONS };
        // The timer is armed.
        scene.exit(None);
        scene
    }

    /// The same in a mode.
    fn in_mode(policy: &str, mode: Mode) -> Scene {
        let mut scene = Scene::new(policy);
        let Machine { vm, vcpu, .. } = &mut scene.machine;
        set_mode(vcpu, vm, mode, || 0).unwrap();
        scene
    }

    /// The guest exits: at a fault, or because the timer has come.
    fn exit(&mut self, fault: Option<Gpa>) {
        let vcpu = &self.machine.vcpu;
        let touch = if vcpu.mmu.is_shadow() { TOUCH_SHADOWED } else { TOUCH };
        self.exit_by(fault.map(|gpa| (touch, gpa.0)));
    }

    /// The same, with one exit before, and what it chooses.
    fn exit_by(&mut self, first: Option<(Step, u64)>) {
        let Machine { vm, vcpu, host } = &mut self.machine;
        let interrupt: Step = |f| {
            f.cpu.tsc.set(f.cpu.tsc.get() + 10);
            Exit::Interrupt
        };
        vcpu.virt.script = first.map(|first| first.0).into_iter().chain([interrupt]).collect();
        vcpu.virt.choices = first.map(|first| first.1).into_iter().collect();
        host.wanted_at = Some(host.cpu.tsc.get() + 5);
        match run(vcpu, vm, &mut (), host) {
            Return::Move(domain) => host.domain = domain,
            Return::Yield => {}
            end => panic!("{end:?}"),
        }
        vcpu.virt.script.clear();
        if !core::mem::take(&mut vcpu.virt.flushes).is_empty() {
            self.processor.flush(crate::paging::range::Flush::All);
            self.shadow_processor.flush(TlbFlush::All);
        }
    }

    /// The program accesses a frame.
    fn access(&mut self, frame: u64) {
        let _its_place = self.reach(frame);
    }

    /// The same; it is led to this memory of the host's.
    fn reach(&mut self, frame: u64) -> Hpa {
        let gpa = Gpa(frame << 12);
        let mut attempts = 0..100;
        let place = loop {
            assert!(attempts.next().is_some(), "frame {frame:#x} faults for ever");
            if self.machine.host.cpu.tsc.get() >= self.machine.vcpu.due {
                self.exit(None);
            }
            let Machine { vm, vcpu, .. } = &self.machine;
            let tables = vm.memory.read().host.clone();
            let mut nested =
                |root: Hpa| self.processor.access(&tables, root.frame(), gpa, Access::WRITE).ok();
            let place = match vcpu.virt.roots {
                Some(Roots::Nested(root)) => nested(root),
                None => nested(vm.memory.read().nested.root(TreeKey::FIRST)),
                Some(Roots::Shadow(root)) => {
                    let long = vcpu.virt.regs.efer & efer::LMA != 0;
                    let root = Root { frame: root.frame(), long };
                    let registers = Registers { smep: false, smap: false, ac: false };
                    let (gva, access) = (Gva(gpa.0), Access { user: true, ..Access::WRITE });
                    self.shadow_processor.access(&tables, root, registers, gva, access).ok()
                }
            };
            if let Some(place) = place {
                break place;
            }
            self.exit(Some(gpa));
        };
        // The instruction has completed.
        let rax = self.machine.vcpu.virt.gpr(Gpr::Rax);
        self.machine.vcpu.virt.set_gpr(Gpr::Rax, rax + 1);
        let tsc = &self.machine.host.cpu.tsc;
        tsc.set(tsc.get() + ACCESS);
        place
    }

    /// Visits of `visit` accesses each, in a loop over each region by turns, with one to the stack at each begin.
    fn memlat(&mut self, visits: u64, visit: u64) {
        for n in 0..visits {
            self.access(STACK);
            for _ in 0..visit {
                self.at += 1;
                self.access(self.regions[n as usize % 2] + self.at % FRAMES);
            }
        }
    }

    /// Goes on until a phase that may be running is over: it has torn a region down.
    fn end_phase(&mut self) {
        while self.machine.vcpu.phase.is_on() {
            self.memlat(2, 400);
        }
    }

    fn counts(&self) -> Counts {
        let slot = self.machine.vm.regions.lock(|| unreachable!("the lock is free"));
        slot.as_ref().unwrap().rounds.as_ref().unwrap().counts()
    }

    /// Kinds of the regions in which these frames are.
    fn kinds(&self, frames: impl Iterator<Item = u64>) -> Vec<Kind> {
        let slot = self.machine.vm.regions.lock(|| unreachable!("the lock is free"));
        let partition = slot.as_ref().unwrap().guest.partition();
        partition.check().unwrap();
        let rids: BTreeSet<Rid> = frames.map(|frame| partition.region_of(Gfn(frame)).unwrap()).collect();
        rids.into_iter().map(|rid| partition.info(rid).unwrap().kind).collect()
    }

    fn has_phase_tables(&self) -> bool {
        self.machine.vm.memory.read().nested.get(PHASE).is_some()
    }

    fn trees(&self) -> usize {
        self.machine.vm.memory.read().nested.iter().count()
    }
}

#[test]
fn two_regions_of_a_program_are_found_and_mapped_to_two_caches() {
    for mode in [Mode::Nested, Mode::Shadow, Mode::Agile(Agile::default())] {
        regions_are_found_and_mapped(mode);
    }
}

fn regions_are_found_and_mapped(mode: Mode) {
    let mut scene = Scene::in_mode("unify,q_us=100,least_us=100,most_us=2000,move_us=4", mode);
    let engine = scene.machine.vcpu.mmu.engine();
    // Each region is one, and they are mapped to different caches. A round in which one of them was not seen for long may take
    // that back until the next.
    let found = |scene: &Scene| REGIONS.map(|first| scene.kinds(first..first + FRAMES));
    let are_apart = |scene: &Scene| {
        let [first, second] = found(scene);
        first.len() == 1
            && second.len() == 1
            && first[0].is_local()
            && second[0].is_local()
            && first != second
    };
    scene.memlat(400, 400);
    scene.end_phase();
    for _ in 0..10 {
        if are_apart(&scene) {
            break;
        }
        scene.memlat(50, 400);
        scene.end_phase();
    }
    assert!(are_apart(&scene), "{:?} {:?}", found(&scene), scene.counts());
    assert_eq!(scene.machine.vcpu.mmu.engine(), engine);
    assert_eq!(scene.kinds(STACK..STACK + 1), [Kind::Global]);
    let counts = scene.counts();
    assert!(counts.rounds >= 4 && counts.spread >= 1 && counts.given_up == 0, "{counts:?}");
    // From now on the VCPU goes where its memory is.
    let slot = scene.machine.vm.regions.lock(|| unreachable!("the lock is free"));
    let records = slot.as_ref().unwrap();
    assert!(records.micro.counts().moves > 100, "{:?}", records.micro.counts());
    assert!(records.scans.samples >= 1, "{:?}", records.scans);
    let memory = scene.machine.vm.memory.read();
    let closed = |frame: u64| memory.p2m.translate(Gpa(frame << 12)).closed_in(0).is_some();
    assert_ne!(closed(REGIONS[0]), closed(REGIONS[1]));
}

#[test]
fn balance_keeps_a_vm_together() {
    let mut scene = Scene::new("balance,q_us=100");
    scene.memlat(200, 400);
    scene.end_phase();
    let all = scene.kinds(REGIONS.into_iter().flat_map(|first| first..first + FRAMES));
    assert!(all.len() == 2 && all[0] == all[1] && all[0].is_local(), "{all:?} {:?}", scene.counts());
}

#[test]
fn nothing_happens_while_it_is_off() {
    let mut scene = Scene::new("");
    scene.memlat(50, 400);
    assert!(scene.machine.vm.regions.lock(|| unreachable!("the lock is free")).is_none());
    assert_eq!((scene.trees(), scene.machine.vcpu.virt.roots), (1, None));
    assert!(!scene.machine.vcpu.phase.is_on());
}

/// Brings the VCPU into a phase.
fn in_phase(policy: &str) -> Scene {
    in_phase_on(policy, Mode::Nested)
}

/// The same in a mode.
fn in_phase_on(policy: &str, mode: Mode) -> Scene {
    let mut scene = Scene::in_mode(policy, mode);
    for n in 0.. {
        assert!(n < 10_000, "no phase begins");
        scene.memlat(1, 10);
        if scene.machine.vcpu.phase.is_on() {
            break;
        }
    }
    assert_eq!((scene.machine.vcpu.mmu.tree(), scene.trees()), (PHASE, 2));
    scene
}

#[test]
fn an_instruction_that_needs_regions_which_do_not_merge_completes_in_a_phase() {
    let mut scene = in_phase("unify");
    {
        let mut slot = scene.machine.vm.regions.lock(|| unreachable!("the lock is free"));
        let guest = &mut slot.as_mut().unwrap().guest;
        for first in REGIONS {
            let number = guest.add(&mut |_| ()).unwrap();
            guest.add_pages(first, 3, number.into(), &mut |_| ()).unwrap();
        }
    }
    // Its registers stay the same until both are open.
    let both_open = |scene: &Scene| {
        let memory = scene.machine.vm.memory.read();
        REGIONS.iter().all(|first| {
            let found = memory.nested.tree(PHASE).find(Gpa(first << 12));
            matches!(found, Found::Leaf(_))
        })
    };
    for attempt in 0.. {
        assert!(attempt < 5 && scene.machine.vcpu.phase.is_on());
        scene.exit(Some(Gpa(REGIONS[attempt % 2] << 12)));
        if both_open(&scene) {
            break;
        }
    }
    // Another instruction closes the one that it leaves.
    scene.machine.vcpu.virt.set_gpr(Gpr::Rax, 7);
    let owner = |scene: &Scene| {
        let slot = scene.machine.vm.regions.lock(|| unreachable!("the lock is free"));
        let partition = slot.as_ref().unwrap().guest.partition();
        partition.info(partition.region_of(Gfn(0x400)).unwrap()).unwrap().owner
    };
    scene.exit(Some(Gpa(0x40_0000)));
    assert!(!both_open(&scene) && owner(&scene) == Owner::Space(crate::region::Space::VM));
}

#[test]
fn a_phase_ends_once_the_hypervisor_has_taken_three_times_as_long() {
    let mut scene = in_phase("unify");
    // It has 4 ms.
    scene.machine.vcpu.phase.leave_out(11 * TSC_KHZ);
    scene.exit(None);
    assert!(scene.machine.vcpu.phase.is_on() && scene.counts().rounds == 0);
    scene.machine.vcpu.phase.leave_out(TSC_KHZ);
    scene.exit(None);
    assert!(!scene.machine.vcpu.phase.is_on() && !scene.has_phase_tables());
    assert_eq!(scene.counts().rounds, 1);
}

#[test]
fn an_interrupt_closes_the_current_region() {
    let mut scene = in_phase("unify");
    scene.exit(Some(Gpa(REGIONS[0] << 12)));
    let is_open = |scene: &Scene| {
        let memory = scene.machine.vm.memory.read();
        matches!(memory.nested.tree(PHASE).find(Gpa(REGIONS[0] << 12)), Found::Leaf(_))
    };
    assert!(is_open(&scene));
    scene.machine.vcpu.interrupts.counts.interrupts += 1;
    scene.exit(None);
    assert!(!is_open(&scene) && scene.machine.vcpu.phase.is_on());
}

#[test]
fn with_agile_paging_a_phase_is_on_nested_tables() {
    let mut scene = in_phase_on("unify", Mode::Agile(Agile::default()));
    let engines = |scene: &Scene| (scene.machine.vcpu.mmu.engine(), scene.machine.vm.translation.in_force());
    assert_eq!(engines(&scene), (Engine::Nested, Engine::Nested));
    let Some(Roots::Nested(root)) = scene.machine.vcpu.virt.roots else { panic!("shadow tables") };
    assert_eq!(root, scene.machine.vm.memory.read().nested.root(PHASE));
    scene.end_phase();
    scene.access(STACK);
    assert_eq!(engines(&scene), (Engine::Agile, Engine::Agile));
    assert_eq!((scene.has_phase_tables(), scene.counts().rounds), (false, 1));
}

#[test]
fn a_phase_ends_with_other_tables_a_reset_or_no_memory() {
    // Agile paging, by the operator.
    let mut scene = in_phase("unify");
    let Machine { vm, vcpu, host } = &mut scene.machine;
    switch(vcpu, vm, Engine::Agile, || 0).unwrap();
    // It has flushed, and runs on these tables when the phase ends: then it flushes again.
    vcpu.virt.flushes.clear();
    before_entry(vcpu, vm, host);
    assert!(vcpu.virt.flushes.contains(&FlushScope::All));
    assert!(!scene.machine.vcpu.phase.is_on() && scene.machine.vcpu.mmu.tree() == TreeKey::FIRST);
    assert_eq!((scene.has_phase_tables(), scene.counts().rounds), (false, 1));
    // A reset: the VCPU is another one afterwards.
    let scene = in_phase("unify");
    scrub(&scene.machine.vm, 0).unwrap();
    assert_eq!(scene.trees(), 1);
    assert!(scene.machine.vm.regions.lock(|| unreachable!("the lock is free")).is_none());
    // No frame for the phase's tables.
    let mut scene = in_phase("unify");
    let tables = scene.machine.vm.memory.read().host.tables.clone();
    tables.set_limit(tables.in_use());
    scene.exit(Some(Gpa(0x100_0000)));
    assert!(!scene.machine.vcpu.phase.is_on() && !scene.has_phase_tables());
    scene.access(REGIONS[0]);
}

#[test]
fn no_phase_begins_while_a_vcpu_may_use_the_tables_of_one_that_is_over() {
    let mut scene = in_phase("unify");
    // It is not entered for a while; another one learns first that regions are to be found in another way.
    let Machine { vm, vcpu, .. } = &mut scene.machine;
    let first = core::mem::take(&mut vcpu.phase);
    set_tree(vcpu, vm, TreeKey::FIRST);
    let wanted = "unify,q_us=7,cache_kib=256,period_ms=20,phase_ms=4";
    vm.regions.want(wanted.parse().unwrap());
    scene.memlat(150, 400);
    assert!(!scene.machine.vcpu.phase.is_on() && scene.counts().rounds == 0, "{:?}", scene.counts());
    // Then phases go on.
    let Machine { vm, vcpu, .. } = &mut scene.machine;
    vcpu.phase = first;
    set_tree(vcpu, vm, PHASE);
    vcpu.request(work::PHASE);
    scene.exit(None);
    assert!(!scene.machine.vcpu.phase.is_on() && !scene.has_phase_tables());
    scene.memlat(150, 400);
    assert!(scene.counts().rounds > 0);
}

#[test]
fn turns_come_as_often_as_is_wanted_now() {
    let mut scene = Scene::new("unify");
    let next = |scene: &mut Scene, wanted: &str| {
        let Machine { vm, vcpu, host } = &mut scene.machine;
        vm.regions.want(wanted.parse().unwrap());
        // No samples are taken, so turns alone are waited for.
        vcpu.virt.sets_dirty_bits = false;
        let tsc = &host.cpu.tsc;
        tsc.set(tsc.get() + 20_000 * ACCESS);
        let now = tsc.get();
        tick(vcpu, vm, host, now) - now
    };
    let is_about = |ns: u64, ms: u64| (ms * 500_000..=ms * 1_000_000).contains(&ns);
    let ns = next(&mut scene, "unify,spaces=vm,period_ms=50");
    assert!(is_about(ns, 50), "{ns}");
    // Where programs have address spaces of their own, their time is charged more often.
    scene.machine.host.cpu.tsc.set(scene.machine.host.cpu.tsc.get() + ns);
    let ns = next(&mut scene, "unify,period_ms=1000");
    assert!(is_about(ns, 100), "{ns}");
}

#[test]
fn a_phase_goes_on_with_other_tables() {
    let mut scene = in_phase("unify");
    scene.access(REGIONS[0]);
    let is_open = |scene: &Scene, frame: u64| {
        let memory = scene.machine.vm.memory.read();
        memory.nested.tree(PHASE).is_open(Gfn(frame))
    };
    assert!(is_open(&scene, REGIONS[0]));
    for engine in [Engine::Shadow, Engine::Nested, Engine::Shadow] {
        switch(&mut scene.machine.vcpu, &scene.machine.vm, engine, || 0).unwrap();
        scene.access(REGIONS[0]);
        assert!(is_open(&scene, REGIONS[0]) && scene.machine.vcpu.phase.is_on(), "{engine:?}");
        // Closed on these tables and the others: the next access is seen.
        scene.machine.vcpu.interrupts.counts.interrupts += 1;
        scene.exit(None);
        assert!(!is_open(&scene, REGIONS[0]) && scene.machine.vcpu.phase.is_on(), "{engine:?}");
    }
}

#[test]
fn a_visit_has_newer_tables_tell_of_each_page() {
    let mut scene = in_phase("unify,q_us=1");
    // Of another piece of 2 MiB.
    let visited = [REGIONS[0], 0x800];
    visited.into_iter().for_each(|frame| scene.access(frame));
    let key = TreeKey::new(1, 0).unwrap();
    {
        let mut memory = scene.machine.vm.memory.write();
        let Memory { p2m, nested, host, .. } = &mut *memory;
        nested.add(key, host.clone(), p2m).unwrap();
    }
    let size =
        |scene: &Scene| match scene.machine.vm.memory.read().nested.tree(key).find(Gpa(REGIONS[0] << 12)) {
            Found::Leaf(leaf) => Some(leaf.size),
            Found::Hole(_) => None,
        };
    assert_eq!(size(&scene), Some(PageSize::Size2M));
    // So long that the regions do not merge.
    (0..10).for_each(|_| scene.access(visited[1]));
    scene.access(visited[0]);
    assert!(scene.machine.vcpu.phase.is_on() && scene.kinds(visited.into_iter()).len() == 2);
    assert_eq!(size(&scene), Some(PageSize::Size4K));
}

#[test]
fn a_phase_on_shadow_tables_leaves_nothing_behind() {
    let shadow_pages = |scene: &Scene| scene.machine.vm.shadow.write().as_ref().unwrap().statistics().pages;
    let in_use = || {
        let mut scene = in_phase_on("unify", Mode::Shadow);
        scene.access(REGIONS[0]);
        let before = shadow_pages(&scene);
        (scene, before)
    };
    let (mut scene, before) = in_use();
    scene.machine.vm.regions.want(abi::regions::Regions::Off);
    scene.exit(None);
    assert!(!scene.machine.vcpu.phase.is_on() && !scene.has_phase_tables());
    assert!(shadow_pages(&scene) < before);
    scene.access(REGIONS[0]);
    // A reset.
    let (scene, before) = in_use();
    scrub(&scene.machine.vm, 0).unwrap();
    assert!(shadow_pages(&scene) < before);
}

#[test]
fn what_was_found_is_open_again_when_it_is_turned_off() {
    let mut scene = Scene::new("unify,q_us=100,least_us=100,most_us=2000,move_us=4");
    scene.memlat(400, 400);
    {
        let Machine { vm, vcpu, .. } = &mut scene.machine;
        vm.regions.want(abi::regions::Regions::Off);
        let mut slot = vm.regions.lock(|| unreachable!("the lock is free"));
        let records = slot.as_mut().unwrap();
        let changes = vm.give_up_regions(0, &mut vcpu.work, records);
        crate::vcpu::mmu::follow_changes(vcpu, changes);
        assert_eq!(records.found().filter(|(_, info)| info.kind.is_local()).count(), 0);
    }
    let before = scene.machine.host.domain;
    scene.memlat(20, 400);
    assert_eq!(scene.machine.host.domain, before);
    let memory = scene.machine.vm.memory.read();
    assert!(REGIONS.iter().all(|frame| memory.p2m.translate(Gpa(frame << 12)).closed_in(9).is_none()));
}
