//! Several VCPUs of a VM whose regions the balancer moves between caches at random times: the program reads what it has written, and
//! no VCPU reaches a page that is closed in its domain.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::*;
use crate::mem::host_access::HostAccess;
use crate::paging::random::Random;
use crate::paging::shadow::Shootdown;
use crate::region::Domain;
use crate::vcpu::mmu::{follow_changes, follow_mode};
use crate::vm::regions::Records;

const VCPUS: usize = 3;
const STEPS: u64 = 400;

/// What VCPUs are told by one that waits until they have heard it: each looks before it makes another access.
#[derive(Default)]
struct Others {
    told: [Mutex<u32>; VCPUS],
    /// The VCPU that tells.
    by: AtomicUsize,
    /// A hypervisor that tells no VCPU.
    is_silent: AtomicBool,
}

impl Shootdown for Others {
    fn request(&self, reload: bool) {
        let bits = work::FLUSH | if reload { work::RELOAD } else { 0 };
        let by = self.by.load(Ordering::Relaxed);
        let others = self.told.iter().enumerate().filter(|(v, _)| *v != by);
        if !self.is_silent.load(Ordering::Relaxed) {
            others.for_each(|(_, told)| *told.lock().unwrap() |= bits);
        }
    }

    fn service(&self) {}
}

/// A scene for each VCPU. One of them has the VM, the others a place for it.
struct Several {
    scenes: Vec<Scene>,
    holder: usize,
    others: Arc<Others>,
    random: Random,
    /// What was written last to each frame of the two regions.
    written: [Vec<u64>; 2],
    /// How often regions have changed their caches, by the balancer and by this test.
    moved: [u64; 2],
}

impl Several {
    fn new(mode: Mode, seed: u64) -> Several {
        let policy = "unify,q_us=100,least_us=100,most_us=2000,move_us=4";
        let mut scenes: Vec<_> =
            (0..VCPUS).map(|_| Scene::with(policy, &format!("vcpus = {VCPUS}\n"))).collect();
        let others = Arc::new(Others::default());
        let Machine { vm, vcpu, .. } = &mut scenes[0].machine;
        vm.shootdown.call_once(|| others.clone());
        set_mode(vcpu, vm, mode, || 0).unwrap();
        let written = [(); 2].map(|()| vec![0; FRAMES as usize]);
        let mut several = Several { scenes, holder: 0, others, random: Random(seed), written, moved: [0; 2] };
        for v in 1..VCPUS {
            let Machine { vm, vcpu, .. } = &mut several.on(v).machine;
            vcpu.id = v as u32;
            follow_mode(vcpu, vm, || 0).unwrap();
        }
        several
    }

    /// VCPU `v` does something, at the time that the last one has reached. First it hears what it was told.
    fn on(&mut self, v: usize) -> &mut Scene {
        if v != self.holder {
            let [holder, scene] = self.scenes.get_disjoint_mut([self.holder, v]).unwrap();
            core::mem::swap(&mut holder.machine.vm, &mut scene.machine.vm);
            scene.machine.host.cpu.tsc.set(holder.machine.host.cpu.tsc.get());
            self.holder = v;
        }
        self.others.by.store(v, Ordering::Relaxed);
        let scene = &mut self.scenes[v];
        let told = core::mem::take(&mut *self.others.told[v].lock().unwrap());
        if told != 0 {
            scene.machine.vm.mailboxes[v].request(told);
            scene.exit(None);
        }
        scene
    }

    /// Reads what was written last to a frame of the two regions, and writes something else.
    fn access(&mut self, v: usize, region: usize, n: u64) -> Result<(), String> {
        let frame = REGIONS[region] + n;
        let scene = self.on(v);
        let place = scene.reach(frame);
        let Machine { vm, vcpu, host } = &scene.machine;
        let memory = vm.memory.read();
        let entry = memory.p2m.translate(Gpa(frame << 12));
        let home = entry.closed_in(host.domain).filter(|_| !vcpu.phase.is_on());
        if let Some(home) = home {
            return Err(format!("VCPU {v} in domain {} reaches {frame:#x}, of {home}", host.domain));
        }
        let bytes = memory.host.bytes.clone();
        drop(memory);
        let value = self.random.draw();
        let last = core::mem::replace(&mut self.written[region][n as usize], value);
        let found = bytes.load(place);
        bytes.write(place, &value.to_le_bytes());
        if found == last { Ok(()) } else { Err(format!("frame {frame:#x}: {found:#x}, not {last:#x}")) }
    }

    /// The balancer is asked, or regions are mapped to a cache or opened, on behalf of a VCPU that is in no phase.
    fn balance(&mut self, v: usize) {
        let (what, domain) = (self.random.draw() % 9, Domain::new((self.random.draw() % 2) as u8).unwrap());
        let Machine { vm, vcpu, .. } = &mut self.on(v).machine;
        let mut slot = vm.regions.lock(|| unreachable!("the lock is free"));
        let Some(records) = &mut *slot else { return };
        if records.rounds.as_ref().is_none_or(|rounds| rounds.in_phase().is_some()) {
            return;
        }
        let kinds = |records: &Records| -> Vec<(Rid, Kind)> {
            records.found().map(|(rid, info)| (rid, info.kind)).collect()
        };
        let before = kinds(records);
        match what {
            0..2 => {
                let vm_ns = vm.regions.virtual_ns(0);
                let changes = vm.end_round(vcpu.id, &mut vcpu.work, records, vm_ns);
                follow_changes(vcpu, changes);
            }
            2..4 => {
                let changes = vm.balance_regions(vcpu.id, &mut vcpu.work, records, vm.regions.virtual_ns(0));
                follow_changes(vcpu, changes);
            }
            _ => {
                for (rid, _) in &before {
                    let done = match what {
                        4..7 => vm.localise(vcpu.id, &mut vcpu.work, records, *rid, domain),
                        7 => vm.open_region(vcpu.id, &mut vcpu.work, records, *rid),
                        _ => vm.globalise(vcpu.id, &mut vcpu.work, records, *rid),
                    };
                    if let Ok(changes) = done {
                        follow_changes(vcpu, changes);
                    }
                }
            }
        }
        records.guest.partition().check().unwrap();
        let moved = u64::from(kinds(records) != before);
        drop(slot);
        // It has called from an exit.
        self.scenes[v].exit(None);
        self.moved[usize::from(what >= 4)] += moved;
    }

    fn step(&mut self) -> Result<(), String> {
        let v = self.random.draw() as usize % VCPUS;
        if self.random.once_in(3) {
            self.balance(v);
            return Ok(());
        }
        let (region, count) = ((self.random.draw() % 2) as usize, 1 + self.random.draw() % 400);
        (0..count).try_for_each(|n| self.access(v, region, n % FRAMES))
    }
}

/// How often the balancer and this test have changed caches of regions when they were asked between phases, and how often VCPUs have
/// moved.
fn run_several(mode: Mode, seed: u64, is_silent: bool) -> Result<[u64; 3], String> {
    let mut several = Several::new(mode, seed);
    several.others.is_silent.store(is_silent, Ordering::Relaxed);
    for n in 0..STEPS {
        several.step().map_err(|what| format!("{mode:?}, seed {seed}, step {n}: {what}"))?;
    }
    let machine = &several.scenes[several.holder].machine;
    let slot = machine.vm.regions.lock(|| unreachable!("the lock is free"));
    let records = slot.as_ref().unwrap();
    let [balancer, test] = several.moved;
    Ok([balancer, test, records.micro.counts().moves])
}

fn modes() -> [Mode; 3] {
    [Mode::Nested, Mode::Shadow, Mode::Agile(Agile::default())]
}

#[test]
fn memory_stays_what_it_is_while_the_balancer_moves_it() {
    for mode in modes() {
        let sums = (0..4).map(|seed| run_several(mode, seed, false).unwrap());
        let sums = sums.reduce(|a, b| core::array::from_fn(|n| a[n] + b[n])).unwrap();
        assert!(sums[0] >= 4 && sums[1] >= 4 && sums[2] >= 40, "{mode:?}: {sums:?}");
    }
}

#[test]
fn a_balancer_that_tells_no_other_vcpu_is_found_out() {
    for mode in modes() {
        assert!((0..8).any(|seed| run_several(mode, seed, true).is_err()), "{mode:?}");
    }
}
