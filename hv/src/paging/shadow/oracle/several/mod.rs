//! The oracle for shadow tables that several VCPUs use: random operations on each of them, while the others run on.
//!
//! Each VCPU has a modelled processor that keeps translations and upper entries until *that* VCPU is told to forget them: by its
//! own flushes, or by what others leave in its mailbox. What an access comes to must be one of the walks that are possible on that
//! VCPU with the entries as they were since its last flush of that address (in the guest's sense), and never memory that is not
//! the guest's. Where nothing has changed since, there is one such walk, and accessed and dirty bits must be set. The other VCPUs
//! also run while the engine works ([`World::race`]): they use and change what they can reach without an exit.

mod access;
mod agile_time;
mod closing;
mod cpu;
mod large;
mod moves;
mod nested_time;
mod perform;
mod phases;
mod samples;
#[cfg(test)]
mod tests;
mod world;

use super::fuzz::trace;
use super::layout::{self, HOST, HOST_BYTES, RAM, TABLE_BYTES, TABLES};
use super::migrated::Mover;
use super::paged;
use super::recent;
use super::twins::{Omits, happens_to_memory};
use crate::arch::addr::{Gpa, Gva, Hfn, Hpa, PAGE_SIZE};
use crate::mem::host_access::{HostAccess, VecHost};
use crate::paging::arena::Arena;
use crate::paging::format::{ept::Ept, npt::Npt};
use crate::paging::guest_walk::{PagingKind, PagingState};
use crate::paging::model::Modelled;
use crate::paging::p2m::P2m;
use crate::paging::random::Random;
use crate::paging::range::GpaRange;
use crate::paging::shadow::left_out::LeftOut;
use crate::paging::shadow::model::ShadowProcessor;
use crate::paging::shadow::{AddressSpace, AgileTimes, PageFault, Root, Shadow, ShadowOutcome, TlbFlush};
use crate::paging::tree_key::TreeKey;
use crate::vm::work;
use cpu::{Cpu, Place, Probe};
use std::rc::Rc;
use std::sync::Arc;
use world::{Everyone, Raced, Walkable, World, arena};

type Guest<'a> = P2m<&'a Arena>;
/// What is wrong.
type Fault = String;

/// How often operations are followed by the engine's own check.
const CHECK_EVERY: usize = 32;

/// The engine, and the machine around it.
struct Several<F: Modelled> {
    world: Rc<World>,
    shadow: Shadow<Walkable, F>,
    changes_kind: bool,
    /// If this counts, the emulator does not know every third of the instructions that write to tables.
    unknown: Option<u64>,
    /// What agile paging takes for the time, and its parameters while it is in force.
    now: u64,
    agile: Option<AgileTimes>,
    /// Tables above level 1 stay unsync on shadow tables.
    keeps_upper: bool,
}

/// Runs a trace on several VCPUs; fails with what is wrong. Without a kind of paging, VCPUs change theirs. The seed decides
/// about memory, registers, tuning, and the vendor. With `trace` what happened is told, too.
pub fn run(kind: Option<PagingKind>, seed: u64, ops: &[u64], trace: bool) -> Result<(), Fault> {
    run_without(Omits::Nothing, kind, seed, ops, trace)
}

/// The same of a hypervisor that leaves a step out.
fn run_without(
    omits: Omits,
    kind: Option<PagingKind>,
    seed: u64,
    ops: &[u64],
    trace: bool,
) -> Result<(), Fault> {
    let outcome = if seed.count_ones().is_multiple_of(2) {
        run_on::<Npt>(omits, kind, seed, ops, trace)
    } else {
        run_on::<Ept>(omits, kind, seed, ops, trace)
    };
    World::remove();
    outcome
}

fn run_on<F: Modelled>(
    omits: Omits,
    kind: Option<PagingKind>,
    seed: u64,
    ops: &[u64],
    trace: bool,
) -> Result<(), Fault> {
    let mut oracle = Several::<F>::new(kind, seed, trace);
    let world = oracle.world.clone();
    world.omits.set(omits);
    oracle.shadow.left_out = LeftOut(omits.step());
    let told = |n: usize, what: Fault| {
        let trace = world.trace.borrow();
        format!("{}operation {n}: {what}", trace.as_deref().unwrap_or_default())
    };
    for (n, &number) in ops.iter().enumerate() {
        oracle.perform(n, number).map_err(|what| told(n, what))?;
        if let Some(what) = world.broken.borrow_mut().take() {
            return Err(told(n, what));
        }
        if n + 1 == ops.len() || n % CHECK_EVERY == CHECK_EVERY - 1 {
            oracle.check().map_err(|what| told(n, format!("afterwards: {what}")))?;
        }
    }
    Ok(())
}

impl<F: Modelled> Several<F> {
    fn new(kind: Option<PagingKind>, seed: u64, trace: bool) -> Several<F> {
        let mut random = Random(seed);
        let mut p2m = P2m::new(arena()).expect("the arena is large");
        let ram = GpaRange::new(Gpa(0), RAM).expect("a small range");
        let _no_engine_yet = p2m.map_ram(ram, HOST, true).expect("the arena is large");
        let mut random_for_pager = Random(random.0);
        let (is_paged, migrates) = happens_to_memory(&mut random_for_pager);
        let bytes = if is_paged { paged::BYTES } else { HOST_BYTES };
        let host = VecHost::new(HOST, bytes as usize);
        for at in (0..TABLE_BYTES).step_by(8) {
            host.write(Hpa(HOST.0 + at), &layout::word(&mut random, at).to_le_bytes());
            host.write(Hpa(HOST.0 + RAM + at), &layout::word(&mut random, at).to_le_bytes());
        }
        let pager = is_paged.then(|| {
            let words = (0..TABLE_BYTES).step_by(8).map(|at| (at, host.load(Hpa(HOST.0 + at))));
            paged::start(&mut random_for_pager, &mut p2m, std::slice::from_ref(&host), words)
        });
        let mover = migrates.then(|| Mover::new(&mut p2m, std::slice::from_ref(&host)));
        let (tuning, pages) = layout::tuning(&mut random);
        let first = kind.unwrap_or(PagingKind::FourLevel);
        let addresses = layout::addresses(&mut random);
        let features = random.state(first).features;
        let count = 2 + (random.draw() % 3) as usize;
        // Often all in one address space.
        let (shared, shared_cr3) = (random.state(first), layout::cr3(&mut random, first));
        let cpus = (0..count).map(|_| {
            let same = !random.once_in(4);
            let state = if same { shared } else { random.state(first) };
            let cr3 = if same { shared_cr3 } else { layout::cr3(&mut random, first) };
            let state = PagingState { cr3, features, pdptes: None, ..state };
            let probe = |&gva: &u64| Probe { gva: Gva(gva), since: Some(0), global: false, faulted: None };
            Cpu {
                state,
                processor: ShadowProcessor::default(),
                root: Root { frame: Hfn(0), long: true },
                tree: TreeKey::FIRST,
                has_faulted: false,
                place: Place::Descheduled,
                work: work::RELOAD,
                probes: addresses.iter().map(probe).collect(),
                used: Vec::new(),
            }
        });
        let cpus = cpus.collect();
        let physical_bits = if random.once_in(4) { 52 } else { 51 };
        let mut shadow =
            Shadow::new(Walkable, pages + count - 1, physical_bits, tuning).expect("the arena is large");
        shadow.share(count, Arc::new(Everyone));
        let unknown = random.once_in(2).then_some(0);
        let walks_rom = random.once_in(2);
        let (starts_agile, mut random_for_agile) = (random.once_in(2), Random(random.draw()));
        let mut world = World::new(p2m, host, cpus, random);
        (world.physical_bits, world.walks_rom, world.filters_faults) =
            (physical_bits, walks_rom, F::FILTERS_FAULTS);
        (world.pager, world.mover) = (pager, mover);
        let world = Rc::new(world);
        if trace {
            *world.trace.borrow_mut() = Some(format!("{tuning:?}, {pages} pages, {count} VCPUs\n"));
        }
        World::install(&world);
        let changes_kind = kind.is_none();
        let mut oracle =
            Several { world, shadow, changes_kind, unknown, now: 0, agile: None, keeps_upper: false };
        (0..count).for_each(|v| oracle.begin(v));
        if starts_agile {
            oracle.begin_agile(0, &mut random_for_agile);
        } else {
            oracle.keep_upper(0, &mut random_for_agile);
        }
        oracle
    }

    /// A call of the engine for a VCPU, which then does the flush that is owed.
    fn engine<R>(
        &mut self,
        v: usize,
        call: impl FnOnce(&mut Shadow<Walkable, F>, &Guest, &Raced, &PagingState) -> (R, TlbFlush),
    ) -> R {
        let world = &self.world;
        let state = world.cpus[v].borrow().state;
        let p2m = world.p2m.borrow();
        let memory = Raced { walked: world.walked(&p2m), world };
        world.flush_point.set(world.changes.borrow().len());
        self.shadow.switch_vcpu(v as u32);
        let (result, flush) = call(&mut self.shadow, &p2m, &memory, &state);
        world.log(|| format!("      owed: {flush:x?}"));
        world.cpus[v].borrow_mut().processor.flush(flush);
        result
    }

    /// A page fault: as several VCPUs may handle one at the same time, if that is possible. The engine works for another VCPU or for
    /// this one meanwhile.
    fn fault(&mut self, v: usize, fault: PageFault) -> ShadowOutcome {
        let together = {
            let world = &self.world;
            let state = world.cpus[v].borrow().state;
            let p2m = world.p2m.borrow();
            let memory = Raced { walked: world.walked(&p2m), world };
            self.shadow.fault_together(v as u32, AddressSpace::new(&p2m, &memory, &state), fault)
        };
        together.unwrap_or_else(|| {
            self.engine(v, |shadow, p2m, memory, state| {
                shadow.fault(AddressSpace::new(p2m, memory, state), fault)
            })
        })
    }

    /// The VCPU loads its root; returns whether global translations are gone, too.
    fn load(&mut self, v: usize) -> bool {
        let (root, flush) = self.engine(v, |shadow, p2m, memory, state| {
            let found = recent(shadow, state);
            let (root, flush) = found.unwrap_or_else(|| shadow.load(AddressSpace::new(p2m, memory, state)));
            ((root, flush), flush)
        });
        let mut cpu = self.world.cpus[v].borrow_mut();
        cpu.root = root;
        cpu.used.clear();
        cpu.work &= !(work::RELOAD | work::MMU);
        flush == TlbFlush::All
    }

    /// What must hold between two operations: what the engine's own check says, and that no processor can write to a write-protected
    /// table through a cached translation.
    fn check(&mut self) -> Result<(), Fault> {
        if self.world.omits.get().is_unchecked() {
            return Ok(());
        }
        self.check_phase()?;
        for v in 0..self.world.cpus.len() {
            let has_root = self.world.cpus[v].borrow().work & (work::RELOAD | work::MMU) == 0;
            if !has_root || self.world.mailboxes[v].has_mail() {
                continue;
            }
            self.shadow.switch_vcpu(v as u32);
            let cpu = self.world.cpus[v].borrow();
            let p2m = self.world.p2m.borrow();
            let checked = self.shadow.check(&p2m, &self.world.walked(&p2m), &cpu.state);
            checked.map_err(|what| format!("VCPU {v}: {what}"))?;
            for page in (0..TABLES).chain((RAM / PAGE_SIZE)..(RAM / PAGE_SIZE + TABLES)) {
                let frame = Hfn(HOST.frame().0 + page);
                if self.shadow.pool.is_write_protected(frame) && cpu.processor.can_write(frame.base()) {
                    return Err(format!(
                        "VCPU {v} remembers {frame:?}, a write-protected table, as writable"
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Runs the [`trace`] that `data` stands for. Panics, with the trace, if the engine is wrong.
pub fn fuzz_one(data: &[u8]) {
    const MOST: usize = 2000;
    let Some((kind, numbers)) = trace(data, MOST) else { return };
    let Some((&seed, ops)) = numbers.split_first() else { return };
    if run(kind, seed, ops, false).is_err()
        && let Err(what) = run(kind, seed, ops, true)
    {
        panic!("{what}");
    }
}
