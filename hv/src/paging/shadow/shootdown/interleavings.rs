//! The engine at work for one VCPU while the processor of another one walks its tables and writes to the guest's, in every order of
//! their accesses to memory (with up to three preemptions).
//!
//! Engine, processor and requests are those of the other tests; the entries that both sides use are loom's. Each model is run
//! without the steps that it is about, too, and must fail then.

use super::Shootdown;
use super::tests::{HOST, STATE};
use crate::arch::Access;
use crate::arch::addr::{Gpa, Gva, Hfn, Hpa, PAGE_SIZE};
use crate::mem::guest_memory::{GuestMemory, NotRam};
use crate::mem::table_memory::{ENTRIES, TableMemory};
use crate::paging::arena::Arena;
use crate::paging::format::npt::Npt;
use crate::paging::p2m::P2m;
use crate::paging::range::GpaRange;
use crate::paging::shadow::model::{Registers, ShadowProcessor};
use crate::paging::shadow::{AddressSpace, PageFault, Root, Shadow, ShadowOutcome, TlbFlush, Tuning};
use crate::smp::mailbox::{self, tests::Attentive};
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool as PlainBool, AtomicU64 as Plain, Ordering};
use loom::sync::atomic::{AtomicBool, AtomicU64};
use loom::thread;

/// Shadow pages: the fewest that there can be.
const PAGES: usize = 16;
/// The first frame of shadow pages.
const FIRST: u64 = 0x100;
/// The entries of shadow pages that both sides use: those on the ways of addresses 1 and 2.
const SHARED: [usize; 2] = [1, 2];
const STACK_WORDS: usize = 1 << 17;
/// The guest's pages.
const RAM: u64 = 40;
/// Its tables of levels 4 to 2; those of level 1 follow, then what they lead to.
const UPPER: [u64; 3] = [1, 2, 3];
const LEAVES: u64 = 3;
const DATA: u64 = 20;

/// A step that is left out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Without {
    Nothing,
    /// The other VCPU is not told.
    Word,
    /// The sender does not wait for its answer.
    Wait,
    /// It answers, and does not forget.
    Flush,
}

/// What both sides share.
struct Machine {
    shadow: Vec<([AtomicU64; 2], Vec<Plain>)>,
    /// Frames of what is known about entries, which no processor sees.
    records: Vec<Vec<Plain>>,
    allocated: Plain,
    ram: Vec<Plain>,
    /// The first entry used of the guest's table of level 1 for address 2.
    entry: AtomicU64,
    /// For VCPU 1: forget everything before the next entry.
    mail: AtomicBool,
    requests: Attentive,
    /// VCPU 1 is on its PCPU.
    runs: PlainBool,
    without: Without,
}

/// Where that entry is.
const ENTRY: u64 = (LEAVES + 2) * PAGE_SIZE + 8;

#[derive(Clone)]
struct Handle(Arc<Machine>);

/// An address that the guest uses: the ways of all differ at level 2.
fn gva(n: u64) -> Gva {
    Gva(1 << 39 | 1 << 30 | n << 21 | 1 << 12)
}

impl TableMemory for Handle {
    fn allocate(&self) -> Option<Hfn> {
        Some(Hfn(FIRST + self.0.allocated.fetch_add(1, Ordering::Relaxed)))
    }
    fn free(&self, _: Hfn) {}
    fn load(&self, frame: Hfn, index: usize) -> u64 {
        let frame = (frame.0 - FIRST) as usize;
        if frame >= PAGES {
            return self.0.records[frame - PAGES][index].load(Ordering::Relaxed);
        }
        let (shared, rest) = &self.0.shadow[frame];
        match SHARED.iter().position(|&it| it == index) {
            Some(n) => shared[n].load(Ordering::Acquire),
            None => rest[index].load(Ordering::Relaxed),
        }
    }
    fn store(&self, frame: Hfn, index: usize, value: u64) {
        let frame = (frame.0 - FIRST) as usize;
        if frame >= PAGES {
            return self.0.records[frame - PAGES][index].store(value, Ordering::Relaxed);
        }
        let (shared, rest) = &self.0.shadow[frame];
        match SHARED.iter().position(|&it| it == index) {
            Some(n) => shared[n].store(value, Ordering::Release),
            None => rest[index].store(value, Ordering::Relaxed),
        }
    }
    fn compare_exchange(&self, frame: Hfn, index: usize, old: u64, new: u64) -> Result<(), u64> {
        let (shared, rest) = &self.0.shadow[(frame.0 - FIRST) as usize];
        match SHARED.iter().position(|&it| it == index) {
            // All bits that a processor sets are set.
            Some(_) if old == new => Ok(()),
            Some(n) => shared[n].compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire).map(drop),
            None => rest[index].compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire).map(drop),
        }
    }
}

impl GuestMemory for Handle {
    fn read(&self, gpa: Gpa, buf: &mut [u8]) -> Result<(), NotRam> {
        let word = match gpa.0 {
            ENTRY => self.0.entry.load(Ordering::Acquire),
            at => self.0.ram[at as usize / 8].load(Ordering::Relaxed),
        };
        buf.copy_from_slice(&word.to_le_bytes()[..buf.len()]);
        Ok(())
    }
    fn write(&self, gpa: Gpa, _: &[u8]) -> Result<(), NotRam> {
        Err(NotRam { gpa })
    }
    fn compare_exchange(&self, gpa: Gpa, _: usize, _: u64, _: u64) -> Result<bool, NotRam> {
        // All accessed and dirty bits are set.
        Err(NotRam { gpa })
    }
}

impl Shootdown for Handle {
    fn request(&self, _: bool) {
        let machine = &*self.0;
        if machine.without == Without::Word {
            return;
        }
        machine.mail.fetch_or(true, Ordering::SeqCst);
        if machine.runs.load(Ordering::Relaxed) && machine.without != Without::Wait {
            mailbox::shoot(&machine.requests, core::iter::once(1), u64::MAX, || ());
        }
    }
    fn service(&self) {}
}

impl Handle {
    /// A guest with an entry of level 1 for each address; that of address 1 is `first`.
    fn new(without: Without, first: u64) -> Handle {
        let table = || ([(); 2].map(|()| AtomicU64::new(0)), (0..ENTRIES).map(|_| Plain::new(0)).collect());
        let ram: Vec<Plain> = (0..RAM * PAGE_SIZE / 8).map(|_| Plain::new(0)).collect();
        let set = |page: u64, index: u64, value: u64| {
            ram[(page * PAGE_SIZE / 8 + index) as usize].store(value, Ordering::Relaxed);
        };
        set(UPPER[0], 1, (UPPER[1] * PAGE_SIZE) | 0x67);
        set(UPPER[1], 1, (UPPER[2] * PAGE_SIZE) | 0x67);
        for n in 1..PAGES as u64 {
            set(UPPER[2], n, ((LEAVES + n) * PAGE_SIZE) | 0x67);
            set(LEAVES + n, 1, leaf(n));
        }
        set(LEAVES + 1, 1, first);
        Handle(Arc::new(Machine {
            shadow: (0..PAGES).map(|_| table()).collect(),
            // A pool takes its tables first.
            records: (0..2 * PAGES).map(|_| (0..ENTRIES).map(|_| Plain::new(0)).collect()).collect(),
            allocated: Plain::new(0),
            ram,
            entry: AtomicU64::new(leaf(2)),
            mail: AtomicBool::new(false),
            requests: Attentive::new(),
            runs: PlainBool::new(false),
            without,
        }))
    }

    /// One access by VCPU 1, in the guest, which may write `value` to the entry, and a look at what others want.
    fn step(&self, processor: &mut ShadowProcessor, root: Root, access: Access, value: u64) -> Option<Hpa> {
        let is_asked = self.0.mail.swap(false, Ordering::SeqCst);
        if is_asked && self.0.without != Without::Flush {
            processor.flush(TlbFlush::All);
        }
        let registers = Registers { smep: false, smap: false, ac: false };
        let reached = processor.access(self, root, registers, gva(1), access).ok();
        if access.write && reached.is_some() {
            self.0.entry.store(value, Ordering::Release);
        }
        self.0.requests.look(1);
        reached
    }
}

/// An entry of the guest's that leads to a page of data, for reading.
fn leaf(n: u64) -> u64 {
    ((DATA + n) * PAGE_SIZE) | 0x25
}

/// The page of data.
fn data(n: u64) -> Hpa {
    Hpa(HOST.0 + (DATA + n) * PAGE_SIZE)
}

/// VCPU 0 uses the addresses of `before`; then it uses address 2 while VCPU 1 uses address 1 again and again. `check` is shown what
/// VCPU 1 reached, and in the end what address 2 leads to and what the guest's entry for it says.
fn run(
    without: Without,
    first: u64,
    before: &[u64],
    access: Access,
    seen: fn(Option<Hpa>),
    end: fn(Hpa, u64),
) {
    let handle = Handle::new(without, first);
    let arena = Arena::new(64);
    let mut p2m = P2m::new(&arena).unwrap();
    let _no_engine_yet = p2m.map_ram(GpaRange::new(Gpa(0), RAM * PAGE_SIZE).unwrap(), HOST, true).unwrap();
    // A table that starts unsync is nothing that counts on the others.
    let tuning = Tuning { window: 1, direct_window: 1, unsync_after: 1, ..Tuning::default() };
    let mut shadow = Shadow::<Handle, Npt>::new(handle.clone(), PAGES, 40, tuning).unwrap();
    shadow.share(2, Arc::new(handle.clone()));
    let [root, _] = [1, 0].map(|vcpu| {
        shadow.switch_vcpu(vcpu);
        shadow.load(AddressSpace::new(&p2m, &handle, &STATE)).0
    });
    for &n in before {
        let (outcome, _) = shadow.fault(
            AddressSpace::new(&p2m, &handle, &STATE),
            PageFault::new(gva(n), if n == 1 { access } else { Access::READ }),
        );
        assert_eq!(outcome, ShadowOutcome::Filled { prefetched: 0 });
    }
    handle.0.runs.store(true, Ordering::Relaxed);
    let over = Arc::new(AtomicBool::new(false));
    let other = {
        let (handle, over) = (handle.clone(), over.clone());
        thread::spawn(move || {
            let mut processor = ShadowProcessor::default();
            for n in [3, 4] {
                seen(handle.step(&mut processor, root, access, leaf(n)));
                if !access.write {
                    // Pointers to tables stay.
                    processor.evict(0);
                }
            }
            while !over.load(Ordering::Acquire) {
                handle.0.requests.look(1);
                thread::yield_now();
            }
        })
    };
    let (outcome, _) =
        shadow.fault(AddressSpace::new(&p2m, &handle, &STATE), PageFault::new(gva(2), Access::READ));
    assert_eq!(outcome, ShadowOutcome::Filled { prefetched: 0 });
    over.store(true, Ordering::Release);
    other.join().unwrap();
    let registers = Registers { smep: false, smap: false, ac: false };
    let reached = ShadowProcessor::default().access(&handle, root, registers, gva(2), Access::READ);
    end(reached.unwrap(), handle.0.entry.load(Ordering::Acquire));
}

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.max_branches = 10_000;
    let model = Arc::new(model);
    builder.check(move || {
        let model = model.clone();
        // The stacks of loom's threads are too small for the engine.
        let thread = thread::Builder::new().stack_size(STACK_WORDS).spawn(move || model());
        thread.unwrap().join().unwrap();
    });
}

/// A page of level 1 that VCPU 1 may be walking becomes that of another address.
fn reuse(without: Without) {
    check(move || {
        // All pages, and that of address 1 is the first to go.
        let before: Vec<u64> = core::iter::once(1).chain(3..PAGES as u64 - 1).collect();
        let seen = |reached: Option<Hpa>| {
            assert!(reached.is_none_or(|hpa| hpa == data(1)), "a page that is another one's was walked");
        };
        run(without, leaf(1), &before, Access::READ, seen, |_, _| ());
    });
}

/// A page to which VCPU 1 may be writing becomes a table.
fn become_table(without: Without) {
    check(move || {
        let table = ((LEAVES + 2) * PAGE_SIZE) | 0x67;
        run(
            without,
            table,
            &[1],
            Access::WRITE,
            |_| (),
            |reached, entry| {
                assert_eq!(reached.0 - HOST.0, entry & !0xfff, "a table was written unseen");
            },
        );
    });
}

#[test]
fn no_page_is_walked_that_is_another_one() {
    reuse(Without::Nothing);
}

#[test]
fn no_table_is_written_unseen() {
    become_table(Without::Nothing);
}

macro_rules! fails {
    ($($name:ident: $model:ident($without:ident), $why:literal;)*) => {
        $(#[test]
        #[should_panic(expected = $why)]
        fn $name() {
            $model(Without::$without);
        })*
    };
}

fails! {
    a_page_is_walked_without_a_request: reuse(Word), "another one's";
    a_page_is_walked_if_the_sender_does_not_wait: reuse(Wait), "another one's";
    a_page_is_walked_if_nothing_is_forgotten: reuse(Flush), "another one's";
    a_table_is_written_without_a_request: become_table(Word), "unseen";
    a_table_is_written_if_the_sender_does_not_wait: become_table(Wait), "unseen";
    a_table_is_written_if_nothing_is_forgotten: become_table(Flush), "unseen";
}
