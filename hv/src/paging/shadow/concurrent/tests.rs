//! Threads that handle faults of one VM's VCPUs at the same time.

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::thread;

use crate::arch::Access;
use crate::arch::addr::{Gpa, Gva, Hfn, PAGE_SIZE};
use crate::mem::guest_memory::GuestMemory;
use crate::mem::host_access::VecHost;
use crate::mem::table_memory::{ENTRIES, TableMemory};
use crate::paging::format::npt::Npt;
use crate::paging::guest_walk::PagingState;
use crate::paging::p2m::P2m;
use crate::paging::random::Random;
use crate::paging::range::GpaRange;
use crate::paging::shadow::tests::{HOST, STATE, Silent};
use crate::paging::shadow::{AddressSpace, PageFault, Shadow, ShadowOutcome, Tuning};
use crate::paging::vm_memory::VmMemory;

/// Table frames that threads may use at the same time.
struct Frames {
    tables: Vec<[AtomicU64; ENTRIES]>,
    free: Mutex<Vec<usize>>,
}

impl Frames {
    fn new(count: usize) -> Frames {
        let table = |_| core::array::from_fn(|_| AtomicU64::new(0));
        Frames { tables: (0..count).map(table).collect(), free: Mutex::new((1..count).collect()) }
    }

    fn at(&self, frame: Hfn, index: usize) -> &AtomicU64 {
        &self.tables[frame.0 as usize][index]
    }
}

impl TableMemory for Frames {
    fn allocate(&self) -> Option<Hfn> {
        let frame = Hfn(self.free.lock().unwrap().pop()? as u64);
        (0..ENTRIES).for_each(|index| self.store(frame, index, 0));
        Some(frame)
    }

    fn free(&self, frame: Hfn) {
        self.free.lock().unwrap().push(frame.0 as usize);
    }

    fn load(&self, frame: Hfn, index: usize) -> u64 {
        self.at(frame, index).load(Ordering::Acquire)
    }

    fn store(&self, frame: Hfn, index: usize, value: u64) {
        self.at(frame, index).store(value, Ordering::Release);
    }

    fn compare_exchange(&self, frame: Hfn, index: usize, old: u64, new: u64) -> Result<(), u64> {
        let order = Ordering::AcqRel;
        self.at(frame, index).compare_exchange(old, new, order, Ordering::Acquire).map(|_| ())
    }
}

const VCPUS: u32 = 4;
/// Tables of level 1, from this page on; pages behind them are data.
const TABLES: core::ops::Range<u64> = 8..12;
const RAM: u64 = 64;
/// What a kernel maps: present, writable, and sometimes accessed and dirty.
const PTE: u64 = 0x7;
const USED: u64 = 0x60;

struct Guest<'a> {
    p2m: P2m<&'a Frames>,
    host: VecHost,
    shadow: RwLock<Shadow<&'a Frames, Npt>>,
}

impl<'a> Guest<'a> {
    /// All of whose VCPUs have the same root; entries of level 1 lead to few pages, so that lists of the reverse maps are long.
    fn new(frames: &'a Frames, random: &mut Random) -> Guest<'a> {
        let mut p2m = P2m::new(frames).unwrap();
        let _no_engine_yet =
            p2m.map_ram(GpaRange::new(Gpa(0), RAM * PAGE_SIZE).unwrap(), HOST, true).unwrap();
        let host = VecHost::new(HOST, (RAM * PAGE_SIZE) as usize);
        let memory = VmMemory::new(&p2m, &host);
        let write = |at: u64, entry: u64| memory.write(Gpa(at), &entry.to_le_bytes()).unwrap();
        write(PAGE_SIZE, (2 * PAGE_SIZE) | PTE);
        write(2 * PAGE_SIZE, (3 * PAGE_SIZE) | PTE);
        for (n, table) in (0..).zip(TABLES) {
            write(3 * PAGE_SIZE + 8 * n, (table * PAGE_SIZE) | PTE);
            for index in 0..ENTRIES as u64 {
                let bits = random.draw() % 8;
                let present = if bits & 6 == 0 { 0 } else { PTE };
                let used = if bits & 1 == 0 { 0 } else { USED };
                let data = TABLES.end + random.draw() % (RAM - TABLES.end);
                write(table * PAGE_SIZE + 8 * index, (data * PAGE_SIZE) | present | used);
            }
        }
        let mut shadow = Shadow::new(frames, 64, 40, Tuning::default()).unwrap();
        shadow.share(VCPUS as usize, Arc::new(Silent));
        let guest = Guest { p2m, host, shadow: RwLock::new(shadow) };
        (0..VCPUS).for_each(|vcpu| guest.load(vcpu, &STATE));
        guest
    }

    /// A VCPU loads its root.
    fn load(&self, vcpu: u32, state: &PagingState) {
        let memory = VmMemory::new(&self.p2m, &self.host);
        let mut shadow = self.shadow.write().unwrap();
        shadow.switch_vcpu(vcpu);
        let _processor_is_not_modelled = shadow.load(AddressSpace::new(&self.p2m, &memory, state));
    }

    /// A fault of a VCPU as the run loop handles it. Whether it was handled while others could handle theirs.
    fn fault(&self, vcpu: u32, fault: PageFault) -> (ShadowOutcome, bool) {
        self.fault_in(vcpu, &STATE, fault)
    }

    fn fault_in(&self, vcpu: u32, state: &PagingState, fault: PageFault) -> (ShadowOutcome, bool) {
        let memory = VmMemory::new(&self.p2m, &self.host);
        let space = AddressSpace::new(&self.p2m, &memory, state);
        if let Some(outcome) = self.shadow.read().unwrap().fault_together(vcpu, space, fault) {
            return (outcome, true);
        }
        let mut shadow = self.shadow.write().unwrap();
        shadow.switch_vcpu(vcpu);
        (shadow.fault(space, fault).0, false)
    }

    /// A VCPU that touches pages at random, and now and then flushes one, or takes back a page's memory as a pager does.
    fn run(&self, vcpu: u32, mut random: Random) -> u32 {
        let mut together = 0;
        for _ in 0..800 {
            let gva =
                (random.draw() % (TABLES.end - TABLES.start)) << 21 | (random.draw() % ENTRIES as u64) << 12;
            let access = if random.once_in(2) { Access::WRITE } else { Access::READ };
            let (outcome, was_together) = self.fault(vcpu, PageFault::new(Gva(gva), access));
            together += u32::from(was_together);
            assert!(
                matches!(
                    outcome,
                    ShadowOutcome::Filled { .. } | ShadowOutcome::GuestFault(_) | ShadowOutcome::Retry
                ),
                "{outcome:?}"
            );
            if random.once_in(16) {
                let mut shadow = self.shadow.write().unwrap();
                shadow.switch_vcpu(vcpu);
                let _processor_is_not_modelled =
                    shadow.invlpg(&VmMemory::new(&self.p2m, &self.host), Gva(gva));
                if random.once_in(4) {
                    shadow.pool.unmap(HOST.frame(), RAM);
                }
            }
        }
        together
    }
}

#[test]
fn lists_and_entries_are_right_after_threads_have_raced() {
    for seed in 0..6 {
        let frames = Frames::new(400);
        let mut random = Random(seed);
        let guest = Guest::new(&frames, &mut random);
        let together: u32 = thread::scope(|scope| {
            let guest = &guest;
            let run = |vcpu| scope.spawn(move || guest.run(vcpu, Random(seed << 8 | u64::from(vcpu))));
            let threads: Vec<_> = (0..VCPUS).map(run).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        let memory = VmMemory::new(&guest.p2m, &guest.host);
        let shadow = guest.shadow.into_inner().unwrap();
        shadow.check(&guest.p2m, &memory, &STATE).unwrap();
        assert!(together > 1000, "{together} faults were handled together");
        assert_eq!(shadow.statistics().concurrent, u64::from(together));
    }
}

#[test]
fn what_needs_the_tables_exclusively_is_refused() {
    let frames = Frames::new(400);
    let guest = Guest::new(&frames, &mut Random(1));
    let memory = VmMemory::new(&guest.p2m, &guest.host);
    let write = |index: u64, entry: u64| {
        memory.write(Gpa(TABLES.start * PAGE_SIZE + 8 * index), &entry.to_le_bytes()).unwrap();
    };
    let data = TABLES.end * PAGE_SIZE;
    write(0, data | PTE | USED);
    // Read-only, absent, a guest's table, and far enough away not to be filled ahead.
    write(100, data | (PTE & !2));
    write(101, 0);
    write(102, (TABLES.start * PAGE_SIZE) | PTE | USED);
    write(500, data | PTE | USED);
    // Not filled ahead, as it was not accessed.
    write(501, data | PTE);
    let fault = |vcpu, index: u64, access| guest.fault(vcpu, PageFault::new(Gva(index << 12), access));
    // No page is known yet; then there is no record for these 64 entries.
    assert!(matches!(fault(0, 0, Access::READ), (ShadowOutcome::Filled { .. }, false)));
    assert!(matches!(fault(0, 500, Access::READ), (ShadowOutcome::Filled { .. }, false)));
    // What a VCPU knows another one need not.
    assert!(matches!(fault(1, 501, Access::READ), (_, false)));
    // The guest's own.
    assert_eq!(fault(0, 101, Access::READ), (ShadowOutcome::GuestFault(0), true));
    assert_eq!(fault(1, 100, Access::WRITE), (ShadowOutcome::GuestFault(3), true));
    // Its processor reads first: a page that is not dirty is filled without the right to write, and the write comes to an entry that
    // is present.
    write(502, data | PTE);
    assert!(matches!(fault(0, 502, Access::READ), (ShadowOutcome::Filled { .. }, true)));
    assert!(matches!(fault(0, 502, Access::WRITE), (ShadowOutcome::Filled { .. }, false)));
    // A table is write-protected.
    assert!(matches!(fault(0, 102, Access::WRITE), (_, false)));
    guest.shadow.read().unwrap().check(&guest.p2m, &memory, &STATE).unwrap();
}

/// The page that a VCPU found last is of an address space that it has left, and that another VCPU is in.
#[test]
fn a_fault_is_handled_in_the_vcpus_own_address_space() {
    let frames = Frames::new(400);
    let guest = Guest::new(&frames, &mut Random(1));
    let memory = VmMemory::new(&guest.p2m, &guest.host);
    let write = |at: u64, entry: u64| memory.write(Gpa(at), &entry.to_le_bytes()).unwrap();
    // In the other address space the second table of level 1 is the first.
    write(4 * PAGE_SIZE, (5 * PAGE_SIZE) | PTE);
    write(5 * PAGE_SIZE, (6 * PAGE_SIZE) | PTE);
    write(6 * PAGE_SIZE, ((TABLES.start + 1) * PAGE_SIZE) | PTE);
    let other = PagingState { cr3: 4 * PAGE_SIZE, ..STATE };
    let data = TABLES.end * PAGE_SIZE;
    for (table, entry) in [(TABLES.start, 0), (TABLES.start + 1, data | PTE | USED)] {
        write(table * PAGE_SIZE + 8 * 100, entry);
    }
    write(TABLES.start * PAGE_SIZE + 8 * 120, data | PTE | USED);
    let at = |index: u64| PageFault::new(Gva(index << 12), Access::READ);
    assert!(matches!(guest.fault(0, at(120)), (ShadowOutcome::Filled { .. }, false)));
    assert_eq!(guest.fault(0, at(100)), (ShadowOutcome::GuestFault(0), true));
    guest.load(0, &other);
    guest.load(1, &STATE);
    assert!(matches!(guest.fault_in(0, &other, at(100)), (ShadowOutcome::Filled { .. }, false)));
    guest.shadow.read().unwrap().check(&guest.p2m, &memory, &other).unwrap();
}
