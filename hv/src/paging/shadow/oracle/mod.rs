//! The oracle for the paging engines: one trace of what a guest, its devices and the hypervisor do drives
//!
//! - the plain software walker, on memory of its own, and
//! - one machine with nested and shadow tables, which uses either and switches between them,
//!
//! and after each access both must agree: where it went, how it faulted, and which accessed and dirty bits it left. The
//! processors of the machine are models that keep what they are not told to forget, and the guest does not always
//! flush. For each address of a set the trace knows whether the guest has flushed since it last changed an entry on the
//! way (the address is *fresh*). Then everything must be equal. Until then an old translation may be used, but only one
//! that some mixture of the entries since the last flush allows; faults are those of the tables as they are, but for
//! those that the processor delivers without an exit, for which it may have used upper entries that it remembered.
//!
//! [`run`] is deterministic: a seed for memory, registers and tuning, and one number for each operation ([`Op`]).

mod fuzz;
mod layout;
mod machine;
mod migrated;
#[cfg(test)]
mod modelled_walk;
mod op;
mod paged;
mod perform;
mod probe;
pub mod several;
mod shadow_access;
mod stale;
#[cfg(test)]
mod tests;
mod twins;
mod two_dimensional;

pub use fuzz::fuzz_one;

use super::left_out::LeftOut;
use super::{PatEntries, Root, Shadow, TlbFlush};
use crate::arch::Access;
use crate::arch::addr::{Gpa, Gva, Hpa};
use crate::mem::guest_memory::{GuestMemory, NotRam};
use crate::mem::host_access::{HostAccess, VecHost};
use crate::mem::pager::Pager;
use crate::mem::table_memory::TableMemory;
use crate::paging::arena::Arena;
use crate::paging::engine::{Engine, Engines};
use crate::paging::format::{PteFormat, ept::Ept, npt::Npt};
use crate::paging::guest_walk::{PagingKind, PagingState, WalkError, translate};
use crate::paging::model::Modelled;
use crate::paging::p2m::{P2m, P2mEntry};
use crate::paging::policy::{Mode, Policy};
use crate::paging::random::Random;
use crate::paging::range::GpaRange;
use crate::paging::vm_memory::VmMemory;
use crate::vm::translation::Translation;
use core::cell::RefCell;
use core::num::NonZeroU32;
#[cfg(test)]
pub(super) use layout::copy_page;
use layout::{HOST, HOST_BYTES, RAM, TABLE_BYTES};
use machine::{Machine, Stopped};
use migrated::Mover;
use op::Op;
use probe::Probe;
use stale::Change;
use std::sync::Arc;
use twins::{Omits, happens_to_memory};

type Guest<'a> = P2m<&'a Arena>;

/// What became of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Done(Hpa),
    PageFault(u32),
    /// Not memory, or memory that cannot be written: the access itself, or the walk of the tables.
    Stopped(Gpa, P2mEntry),
}

/// What an access that reaches `gpa` comes to, by the P2m alone.
fn by_p2m(p2m: &Guest, gpa: Gpa, access: Access) -> Outcome {
    match p2m.promised(gpa).opened() {
        entry @ (P2mEntry::Ram { writable: false, .. } | P2mEntry::Rom { .. }) if access.write => {
            Outcome::Stopped(gpa, entry)
        }
        P2mEntry::Ram { hpa, .. } | P2mEntry::Rom { hpa } => Outcome::Done(hpa),
        entry => Outcome::Stopped(gpa, entry),
    }
}

/// Guest memory for page walks. `strict`: tables that cannot be written are not walked, as under nested paging, where
/// walks count as writes.
struct Walked<'a> {
    memory: VmMemory<'a, &'a Arena, VecHost>,
    p2m: &'a Guest<'a>,
    strict: bool,
}

impl<'a> Walked<'a> {
    fn new(p2m: &'a Guest<'a>, host: &'a VecHost, strict: bool) -> Walked<'a> {
        Walked { memory: VmMemory::new(p2m, host), p2m, strict }
    }
}

impl GuestMemory for Walked<'_> {
    fn read(&self, gpa: Gpa, buf: &mut [u8]) -> Result<(), NotRam> {
        self.memory.check(gpa, buf.len() as u64, self.strict)?;
        self.memory.read(gpa, buf)
    }
    fn write(&self, gpa: Gpa, buf: &[u8]) -> Result<(), NotRam> {
        self.memory.write(gpa, buf)
    }
    fn compare_exchange(&self, gpa: Gpa, size: usize, old: u64, new: u64) -> Result<bool, NotRam> {
        self.memory.compare_exchange(gpa, size, old, new)
    }
}

/// Everything.
struct Oracle<'a, F: Modelled> {
    p2m: Guest<'a>,
    state: PagingState,
    /// The memory of the plain walker.
    software: VecHost,
    machine: Machine<'a, F>,
    probes: Vec<Probe>,
    /// Changes of tables so far.
    changes: Vec<Change>,
    /// The page-directory pointers of PAE paging have changed since they were loaded.
    pointers_changed: bool,
    /// The hypervisor loads those pointers into registers with CR3, as with VT-x.
    loads_pointers: bool,
    /// The kind of paging changes.
    changes_kind: bool,
    /// Which engine is in force: the machine's one VCPU makes an exit after each operation.
    translation: Translation,
    /// The engines that the VCPU can run on in its state.
    supported: Engines,
    /// Holds guest memory, in half of the machines.
    pager: Option<Arc<Pager>>,
    /// Moves its pages, in some of the others.
    mover: Option<Mover>,
    trace: Option<&'a RefCell<String>>,
}

/// How often operations are followed by a comparison of all tables: more bits could have been set than on the way.
const COMPARE_EVERY: usize = 16;
/// How often they are followed by the engine's own check.
const CHECK_EVERY: usize = 64;

/// Runs a trace; fails with what disagrees. Without a kind of paging, the kinds alternate. What happens is added to
/// `trace`. The seed decides about the vendor of the nested tables, too.
pub fn run(
    kind: Option<PagingKind>,
    seed: u64,
    ops: &[u64],
    trace: Option<&RefCell<String>>,
) -> Result<(), String> {
    run_without(Omits::Nothing, kind, seed, ops, trace)
}

/// The same of a machine that leaves a step out.
fn run_without(
    omits: Omits,
    kind: Option<PagingKind>,
    seed: u64,
    ops: &[u64],
    trace: Option<&RefCell<String>>,
) -> Result<(), String> {
    if seed.count_ones().is_multiple_of(2) {
        run_on::<Npt>(omits, kind, seed, ops, trace)
    } else {
        run_on::<Ept>(omits, kind, seed, ops, trace)
    }
}

fn run_on<F: Modelled>(
    omits: Omits,
    kind: Option<PagingKind>,
    seed: u64,
    ops: &[u64],
    trace: Option<&RefCell<String>>,
) -> Result<(), String> {
    let arena = Arena::new(1000);
    // What the engine leaves out by itself takes long to find; a pager only makes such traces rarer.
    let mut oracle = Oracle::<F>::new(&arena, kind, seed, !omits.is_unchecked(), trace);
    oracle.machine.omits = omits;
    oracle.machine.shadow.left_out = LeftOut(omits.step());
    for (n, &number) in ops.iter().enumerate() {
        let op = Op::decode(number, oracle.probes.len());
        oracle.log(|| format!("{n}: {op:x?}"));
        oracle.perform(op).map_err(|what| format!("operation {n}: {what}"))?;
        let at_end = n + 1 == ops.len();
        if at_end || n % COMPARE_EVERY == COMPARE_EVERY - 1 {
            oracle.compare().map_err(|what| format!("after operation {n}: {what}"))?;
        }
        if at_end || n % CHECK_EVERY == CHECK_EVERY - 1 {
            let checked = oracle.machine.check(&oracle.p2m, &oracle.state);
            checked.map_err(|what| format!("after operation {n}: {what}"))?;
        }
    }
    Ok(())
}

impl<'a, F: Modelled> Oracle<'a, F> {
    fn new(
        arena: &'a Arena,
        kind: Option<PagingKind>,
        seed: u64,
        may_page: bool,
        trace: Option<&'a RefCell<String>>,
    ) -> Oracle<'a, F> {
        let mut random = Random(seed);
        let mut p2m = P2m::new(arena).expect("the arena is large");
        let ram = GpaRange::new(Gpa(0), RAM).expect("a small range");
        let _no_engine_yet = p2m.map_ram(ram, HOST, true).expect("the arena is large");
        let mut random_for_pager = Random(random.0);
        let (is_paged, migrates) = happens_to_memory(&mut random_for_pager);
        let is_paged = is_paged && may_page;
        let bytes = if is_paged { paged::BYTES } else { HOST_BYTES } as usize;
        let [software, host] = [VecHost::new(HOST, bytes), VecHost::new(HOST, bytes)];
        for at in (0..TABLE_BYTES).step_by(8) {
            let word = layout::word(&mut random, at).to_le_bytes();
            software.write(Hpa(HOST.0 + at), &word);
            software.write(Hpa(HOST.0 + RAM + at), &layout::word(&mut random, at).to_le_bytes());
        }
        copy_tables(&software, &host);
        let pager = is_paged.then(|| {
            let words = (0..TABLE_BYTES).step_by(8).map(|at| (at, software.load(Hpa(HOST.0 + at))));
            paged::start(&mut random_for_pager, &mut p2m, &[software.clone(), host.clone()], words)
        });
        let mover = migrates.then(|| Mover::new(&mut p2m, &[software.clone(), host.clone()]));
        let (tuning, pages) = layout::tuning(&mut random);
        let first = kind.unwrap_or(PagingKind::FourLevel);
        let mut state = PagingState { pdptes: None, ..random.state(first) };
        state.cr3 = layout::cr3(&mut random, first);
        let loads_pointers = random.once_in(2);
        let walks_rom = random.once_in(2);
        let probes = layout::addresses(&mut random).into_iter().map(|gva| Probe::new(Gva(gva))).collect();
        // Linux' PAT and one that lacks a type of it, or the same in both.
        let pat = random.once_in(2).then(|| PatEntries::new(0x0407_0506_0007_0106, 0x0001_0406_0007_0406));
        // Without a reserved bit to spare all faults exit.
        let physical_bits = if random.once_in(4) { 52 } else { 51 };
        let mut shadow = Shadow::new(arena, pages, physical_bits, tuning).expect("the arena is large");
        let _nothing_is_there_yet = shadow.set_pat(pat.flatten());
        let mut machine = Machine::new(arena, &p2m, &state, host, shadow, walks_rom, physical_bits);
        if random.once_in(2) {
            machine.emulate_less();
        }
        machine.sets_dirty_bits = !random.once_in(4);
        let probes: Vec<Probe> = probes;
        for probe in probes.iter().filter(|_| random.once_in(8)).take(2) {
            machine.guard(probe.gva);
        }
        let mut oracle = Oracle {
            p2m,
            state,
            software,
            machine,
            probes,
            changes: Vec::new(),
            pointers_changed: false,
            loads_pointers,
            changes_kind: kind.is_none(),
            translation: Translation::default(),
            supported: Engines::ALL,
            pager,
            mover,
            trace,
        };
        // The machine begins on shadow tables, and most stay there for a while.
        let first = if random.once_in(2) { Engine::Agile } else { Engine::Shadow };
        oracle.translation.adopt(Mode::Shadow, Policy::Fixed(first));
        oracle.translation.enforce(first);
        oracle.machine.times = layout::agile_times(&mut random);
        oracle.machine.keeps_upper = Random(seed.rotate_left(32)).once_in(2);
        oracle.machine.switch(&oracle.p2m, &oracle.state, first);
        if random.once_in(4) {
            oracle.take_policy(&mut random);
        }
        oracle.log(|| format!("{tuning:?}, {pages} pages, tables in ROM are walked: {walks_rom}"));
        oracle.load(true);
        oracle
    }

    fn log(&self, line: impl FnOnce() -> String) {
        if let Some(trace) = self.trace {
            let mut trace = trace.borrow_mut();
            trace.push_str(&line());
            trace.push('\n');
        }
    }

    /// The VM gets a policy.
    fn take_policy(&mut self, random: &mut Random) {
        let policy = match random.draw() % 6 {
            0 => Policy::Fixed(Engine::Nested),
            1 => Policy::Fixed(Engine::Shadow),
            4 | 5 => Policy::Fixed(Engine::Agile),
            2 => {
                let exits = NonZeroU32::MIN.saturating_add(random.draw() as u32 % 50);
                // All engines in turn: agile paging for short times, with what is kept of the last one.
                Policy::new(if random.once_in(2) { Mode::SwitchAll(exits) } else { Mode::Switch(exits) })
            }
            _ => Policy::Wild(random.draw()),
        };
        self.log(|| format!("    {policy:?}"));
        self.translation.adopt(Mode::default(), policy);
        if random.once_in(2) {
            let keeps = random.once_in(2);
            self.log(|| format!("    tables above level 1 may stay unsync: {keeps}"));
            self.machine.keep_upper(&self.p2m, &self.state, keeps);
        }
    }

    fn walked(&self) -> Walked<'_> {
        Walked::new(&self.p2m, &self.machine.host, self.machine.is_strict())
    }

    /// What the plain walker says.
    fn expected(&self, gva: Gva, access: Access) -> Outcome {
        let memory = Walked::new(&self.p2m, &self.software, self.machine.is_strict());
        match translate(&self.state, &memory, gva, access) {
            Ok(found) => by_p2m(&self.p2m, found.gpa, access),
            Err(WalkError::PageFault(code)) => Outcome::PageFault(code),
            Err(WalkError::NotRam { table }) => by_p2m(&self.p2m, table, Access::WRITE),
            Err(WalkError::Contended) => Outcome::PageFault(u32::MAX),
        }
    }
}

/// The root for these registers as a VCPU finds it that changes them and changes them back: half of the time.
fn recent<M: TableMemory, F: PteFormat>(
    shadow: &mut Shadow<M, F>,
    state: &PagingState,
) -> Option<(Root, TlbFlush)> {
    if shadow.statistics().faults.is_multiple_of(2) {
        return None;
    }
    let PagingState { cr0, cr3, cr4, efer, .. } = *state;
    shadow.load_recent(&super::Registers { cr0, cr3, cr4, efer })
}

/// Both places of all tables.
fn tables(host: &VecHost) -> Vec<u8> {
    let mut bytes = vec![0; 2 * TABLE_BYTES as usize];
    let (first, second) = bytes.split_at_mut(TABLE_BYTES as usize);
    host.read(HOST, first);
    host.read(Hpa(HOST.0 + RAM), second);
    bytes
}

fn copy_tables(from: &VecHost, to: &VecHost) {
    let bytes = tables(from);
    let (first, second) = bytes.split_at(TABLE_BYTES as usize);
    to.write(HOST, first);
    to.write(Hpa(HOST.0 + RAM), second);
}
