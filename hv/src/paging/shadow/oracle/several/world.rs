//! What the VCPUs share, and what happens on those that run while one is served.
//!
//! The engine is called for one VCPU at a time. Meanwhile the others run: whenever it touches the guest's memory or writes an
//! entry, and before and after it has them forget, one of them may take a [step](World::race) with what it remembers or finds in
//! the tables. Requests go through the mailboxes of VCPUs and PCPUs as in the hypervisor (`vmm::others`).

use super::cpu::{Cpu, Place};
use super::phases::Phase;
use super::{Fault, Guest};
use crate::arch::Access;
use crate::arch::addr::{Gpa, Hfn, Hpa, PAGE_SIZE};
use crate::mem::guest_memory::{GuestMemory, NotRam};
use crate::mem::host_access::{HostAccess, VecHost};
use crate::mem::pager::Pager;
use crate::mem::table_memory::TableMemory;
use crate::paging::arena::Arena;
use crate::paging::random::Random;
use crate::paging::shadow::Shootdown;
use crate::paging::shadow::oracle::layout::{self, TABLE_BYTES, TABLES};
use crate::paging::shadow::oracle::migrated::Mover;
use crate::paging::shadow::oracle::stale::Change;
use crate::paging::shadow::oracle::twins::Omits;
use crate::paging::shadow::oracle::{Outcome, Walked};
use crate::smp::mailbox::{self, KickSender};
use crate::vm::mailbox::Mailbox;
use crate::vm::work;
use core::cell::{Cell, RefCell};
use core::sync::atomic::AtomicU64;
use std::rc::Rc;
use std::sync::Arc;

thread_local! {
    /// The memory of all tables of this thread's oracles.
    static ARENA: &'static Arena = Box::leak(Box::new(Arena::new(4000)));
    /// The machine of this thread, for callbacks that get no reference to it.
    static WORLD: RefCell<Option<Rc<World>>> = const { RefCell::new(None) };
}

/// The memory of tables that are not walked meanwhile.
pub fn arena() -> &'static Arena {
    ARENA.with(|arena| *arena)
}

/// The machine but for the engine.
pub struct World {
    pub p2m: RefCell<Guest<'static>>,
    pub host: VecHost,
    pub cpus: Vec<RefCell<Cpu>>,
    /// What others leave for each VCPU.
    pub mailboxes: Vec<Mailbox>,
    /// What PCPUs ask each other: each VCPU has one to itself.
    pub requests: Vec<mailbox::Mailbox>,
    /// Changes of tables so far.
    pub changes: RefCell<Vec<Change>>,
    /// How many there were when the engine was called last: a flush in that call may stand for that moment.
    pub flush_point: Cell<usize>,
    /// The VCPU that is served.
    pub served: Cell<usize>,
    /// Delivers faults without exits.
    pub filters_faults: bool,
    /// Of the processors.
    pub physical_bits: u8,
    /// Tables in ROM are walked.
    pub walks_rom: bool,
    pub random: RefCell<Random>,
    /// The first mistake that was seen.
    pub broken: RefCell<Option<Fault>>,
    pub trace: RefCell<Option<String>>,
    racing: Cell<bool>,
    /// How many changes there were when the hypervisor wrote last: until the engine has been told, the write is not complete.
    written_point: Cell<usize>,
    /// The P2m has changed, and the shootdown has not been sent yet.
    pub is_changing: Cell<bool>,
    /// Holds guest memory, in half of the machines.
    pub pager: Option<Arc<Pager>>,
    /// Moves its pages, in some of the others.
    pub mover: Option<Mover>,
    /// The phase of regioning that a VCPU is in.
    pub phase: RefCell<Option<Phase>>,
    /// What the hypervisor leaves out of each change of the P2m.
    pub omits: Cell<Omits>,
}

impl World {
    pub fn new(p2m: Guest<'static>, host: VecHost, cpus: Vec<Cpu>, random: Random) -> World {
        World {
            p2m: RefCell::new(p2m),
            host,
            mailboxes: (0..cpus.len() as u32).map(Mailbox::new).collect(),
            requests: cpus.iter().map(|_| mailbox::Mailbox::new()).collect(),
            cpus: cpus.into_iter().map(RefCell::new).collect(),
            changes: RefCell::default(),
            flush_point: Cell::new(0),
            served: Cell::new(0),
            filters_faults: false,
            physical_bits: 51,
            walks_rom: false,
            random: RefCell::new(random),
            broken: RefCell::default(),
            trace: RefCell::new(None),
            racing: Cell::new(false),
            written_point: Cell::new(0),
            is_changing: Cell::new(false),
            pager: None,
            mover: None,
            phase: RefCell::default(),
            omits: Cell::default(),
        }
    }

    /// Makes it the machine of this thread.
    pub fn install(world: &Rc<World>) {
        WORLD.set(Some(world.clone()));
    }

    /// The end of this thread's machine.
    pub fn remove() {
        WORLD.set(None);
    }

    pub fn log(&self, line: impl FnOnce() -> String) {
        if let Some(trace) = &mut *self.trace.borrow_mut() {
            trace.push_str(&line());
            trace.push('\n');
        }
    }

    /// Guest memory for walks by the oracle.
    pub fn walked<'a>(&'a self, p2m: &'a Guest<'a>) -> Walked<'a> {
        Walked::new(p2m, &self.host, !self.walks_rom)
    }

    pub fn once_in(&self, n: u64) -> bool {
        self.random.borrow_mut().once_in(n)
    }

    pub fn draw(&self) -> u64 {
        self.random.borrow_mut().draw()
    }

    /// Something happens on other VCPUs, once in `n` times.
    fn race_once_in(&self, n: u64) {
        if !self.racing.get() && self.once_in(n) {
            self.race();
        }
    }

    /// Steps of other VCPUs that run.
    pub fn race(&self) {
        self.racing.set(true);
        let v = self.draw() as usize % self.cpus.len();
        if v != self.served.get()
            && let Ok(mut cpu) = self.cpus[v].try_borrow_mut()
        {
            for _ in 0..1 + self.draw() % 3 {
                if let Err(what) = self.step(v, &mut cpu) {
                    self.broken.borrow_mut().get_or_insert(what);
                }
            }
        }
        self.racing.set(false);
    }

    /// The number of the first change that may not be complete yet: those of the hypervisor's write, while the engine is told.
    pub fn unfinished_from(&self) -> usize {
        if self.racing.get() { self.written_point.get() } else { self.changes.borrow().len() }
    }

    /// A VCPU that is not served reads what it has read before, if it is in the guest or can go there.
    pub fn read_again(&self, v: usize, probe: usize) -> Result<(), Fault> {
        self.racing.set(true);
        let mut cpu = self.cpus[v].borrow_mut();
        let done = match self.is_in_guest(v, &mut cpu) {
            true => self.touch(v, &mut cpu, probe, Access::READ),
            false => Ok(()),
        };
        self.racing.set(false);
        done
    }

    /// Whether a VCPU is in the guest, perhaps since now: not if it has to take the lock first.
    fn is_in_guest(&self, v: usize, cpu: &mut Cpu) -> bool {
        if cpu.place == Place::Host {
            cpu.collect(&self.mailboxes[v]);
            if cpu.work & (work::RELOAD | work::MMU) == 0 {
                cpu.place = Place::Guest;
            }
        }
        cpu.place == Place::Guest
    }

    /// A VCPU that is not served runs a little.
    fn step(&self, v: usize, cpu: &mut Cpu) -> Result<(), Fault> {
        if !self.is_in_guest(v, cpu) {
            return Ok(());
        }
        if self.once_in(4) {
            cpu.processor.evict(self.draw() as usize);
        }
        let mut probe = self.draw() as usize % cpu.probes.len();
        let mut access = self.random.borrow_mut().access(cpu.state.cpl);
        if self.once_in(2)
            && let Some(writer) = cpu.writer(self, probe)
        {
            // By what it remembers, which may be what was just taken away.
            probe = writer;
            access = Access { write: true, execute: false, ..access };
        }
        self.touch(v, cpu, probe, access)
    }

    /// A VCPU that is in the guest accesses a probe.
    fn touch(&self, v: usize, cpu: &mut Cpu, probe: usize, access: Access) -> Result<(), Fault> {
        match cpu.touch(probe, access) {
            _ if self.is_changing.get() => {}
            Ok(hpa) => {
                self.log(|| {
                    format!("        VCPU {v} meanwhile: {} {access:?}: {hpa}", cpu.probes[probe].gva)
                });
                cpu.judge(self, probe, access, Outcome::Done(hpa), None)?;
                cpu.accessed(self, probe);
                if access.write && self.once_in(2) {
                    self.change_at(cpu.aim(self, hpa), self.draw());
                }
            }
            Err(code) if cpu.delivers(self, code) => {
                cpu.judge(self, probe, access, Outcome::PageFault(code), None)?;
                cpu.faulted(self, probe);
            }
            // It waits for the tables.
            Err(_) => cpu.place = Place::Waits,
        }
        Ok(())
    }

    /// What is at `hpa` changes, if it is a table; where.
    pub fn change_at(&self, hpa: Hpa, random: u64) -> Option<Gpa> {
        let at = Hpa(hpa.0 & !7);
        let gpa = self.table_at(at)?;
        let old = self.host.load(at);
        let new = layout::change(&mut Random(random), gpa.0, old);
        self.host.write(at, &new.to_le_bytes());
        self.note(gpa.0, old, new);
        Some(gpa)
    }

    /// Eight bytes of a table have changed.
    pub fn note(&self, word: u64, old: u64, new: u64) {
        if old != new {
            self.log(|| format!("        {word:#x}: {old:#x} -> {new:#x}"));
            self.changes.borrow_mut().push((word, old));
        }
    }

    /// Where a frame of host memory is in the guest's tables.
    pub fn table_at(&self, hpa: Hpa) -> Option<Gpa> {
        let p2m = self.p2m.borrow();
        let all = (0..TABLES).map(|page| Gpa(page * PAGE_SIZE + hpa.offset()));
        all.into_iter().find(|&gpa| p2m.peek(gpa).writable() == Some(hpa))
    }

    /// A device, or the emulator, writes; false: that is no memory.
    pub fn write(&self, gpa: Gpa, bytes: &[u8]) -> bool {
        let p2m = self.p2m.borrow();
        let words: Vec<u64> = (gpa.0 & !7..gpa.0 + bytes.len() as u64).step_by(8).collect();
        if !words.iter().all(|&word| word < TABLE_BYTES && p2m.promised(Gpa(word)).writable().is_some()) {
            return false;
        }
        let load = |word: u64| p2m.translate(Gpa(word)).readable().map_or(0, |hpa| self.host.load(hpa));
        let old: Vec<u64> = words.iter().map(|&word| load(word)).collect();
        self.written_point.set(self.changes.borrow().len());
        let done = self.walked(&p2m).write(gpa, bytes);
        debug_assert!(done.is_ok(), "all of it is RAM");
        words.iter().zip(old).for_each(|(&word, old)| self.note(word, old, load(word)));
        true
    }

    /// Has all VCPUs but the one that is served forget: what `vmm::others` does.
    pub fn request(&self, reload: bool) {
        self.log(|| format!("      all others forget, reload: {reload}"));
        if self.omits.get() == Omits::Flush && self.is_changing.get() {
            return;
        }
        (0..3).for_each(|_| self.race_once_in(2));
        let bits = work::FLUSH | if reload { work::RELOAD } else { 0 };
        let mut targets = Vec::new();
        for (v, cpu) in self.cpus.iter().enumerate() {
            if v == self.served.get() {
                continue;
            }
            self.mailboxes[v].request(bits);
            if cpu.borrow().place != Place::Descheduled {
                targets.push(v as u32);
            }
        }
        mailbox::shoot(self, targets.iter().copied(), 1, || ());
        (0..3).for_each(|_| self.race_once_in(2));
    }
}

impl KickSender for World {
    type Counter = AtomicU64;

    fn mailbox(&self, pcpu: u32) -> &mailbox::Mailbox {
        &self.requests[pcpu as usize]
    }

    fn kick(&self, pcpu: u32) {
        self.race_once_in(2);
        let mut cpu = self.cpus[pcpu as usize].borrow_mut();
        if cpu.place == Place::Guest {
            cpu.place = Place::Host;
        }
        // A PCPU that answers also reads the VCPU's mailbox before it goes on.
        if let Some(taken) = self.requests[pcpu as usize].take() {
            self.requests[pcpu as usize].answer(taken);
        }
    }

    fn tsc(&self) -> u64 {
        0
    }
}

fn with_world(f: impl FnOnce(&World)) {
    // Not while the machine itself goes.
    if let Ok(Some(world)) = WORLD.try_with(|world| world.borrow().clone()) {
        f(&world);
    }
}

/// The VCPUs of this thread's machine.
pub struct Everyone;

impl Shootdown for Everyone {
    fn request(&self, reload: bool) {
        with_world(|world| world.request(reload));
    }

    fn service(&self) {}
}

/// The memory of the shadow tables, which other VCPUs walk meanwhile.
#[derive(Clone, Copy, Debug)]
pub struct Walkable;

impl TableMemory for Walkable {
    fn allocate(&self) -> Option<Hfn> {
        arena().allocate()
    }
    fn free(&self, frame: Hfn) {
        arena().free(frame);
    }
    fn load(&self, frame: Hfn, index: usize) -> u64 {
        arena().load(frame, index)
    }
    fn store(&self, frame: Hfn, index: usize, value: u64) {
        with_world(|world| world.race_once_in(24));
        arena().store(frame, index, value);
    }
    fn compare_exchange(&self, frame: Hfn, index: usize, old: u64, new: u64) -> Result<(), u64> {
        arena().compare_exchange(frame, index, old, new)
    }
}

/// The guest's memory as the engine sees it.
pub struct Raced<'a> {
    pub walked: Walked<'a>,
    pub world: &'a World,
}

impl GuestMemory for Raced<'_> {
    fn read(&self, gpa: Gpa, buf: &mut [u8]) -> Result<(), NotRam> {
        let read = self.walked.read(gpa, buf);
        self.world.race_once_in(8);
        read
    }
    fn write(&self, gpa: Gpa, buf: &[u8]) -> Result<(), NotRam> {
        self.walked.write(gpa, buf)
    }
    fn compare_exchange(&self, gpa: Gpa, size: usize, old: u64, new: u64) -> Result<bool, NotRam> {
        self.world.race_once_in(4);
        self.walked.compare_exchange(gpa, size, old, new)
    }
}
