//! VCPUs of a VM that take its shadow tables, change them, and have each other forget, in every order of their steps (with up to
//! two preemptions): no VCPU waits for ever, and none uses a translation after its shootdown.

use super::*;
use crate::smp::mailbox;
use crate::smp::mailbox::tests::Attentive;
use core::sync::atomic::Ordering;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU64};
use loom::thread;

/// A spin lock like that of the crate: readers, [`WRITER`], [`NEXT`].
struct Spin(AtomicU64);

const WRITER: u64 = 1 << 32;
/// A writer waits for the present readers.
const NEXT: u64 = 1 << 33;

struct Guard<'a>(&'a AtomicU64, u64);

impl Spin {
    fn new() -> Spin {
        Spin(AtomicU64::new(0))
    }

    fn try_write(&self) -> Option<Guard<'_>> {
        let taken = self.0.compare_exchange(0, WRITER, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok().then(|| Guard(&self.0, WRITER))
    }

    fn try_read(&self) -> Option<Guard<'_>> {
        let before = self.0.fetch_add(1, Ordering::Acquire);
        let guard = Guard(&self.0, 1);
        (before & (WRITER | NEXT) == 0).then_some(guard)
    }

    /// New readers wait from now on.
    fn try_be_next(&self) -> Option<()> {
        (self.0.fetch_or(NEXT, Ordering::Acquire) & (WRITER | NEXT) == 0).then_some(())
    }

    fn try_upgrade(&self) -> Option<Guard<'_>> {
        let taken = self.0.compare_exchange(NEXT, WRITER, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok().then(|| Guard(&self.0, WRITER))
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        match self.1 {
            WRITER => self.0.fetch_and(!(WRITER | NEXT), Ordering::Release),
            readers => self.0.fetch_sub(readers, Ordering::Release),
        };
    }
}

/// A VM with two VCPUs, each on its PCPU.
struct Vm {
    memory: Spin,
    shadow: Spin,
    /// A leaf of the shadow tables lets the guest write to one of its own tables.
    writable: AtomicBool,
    /// That table.
    table: AtomicU64,
    /// For the VCPUs: forget everything before the next entry.
    mail: [AtomicBool; 2],
    requests: Attentive,
}

impl Vm {
    fn new() -> Arc<Vm> {
        Arc::new(Vm {
            memory: Spin::new(),
            shadow: Spin::new(),
            writable: AtomicBool::new(true),
            table: AtomicU64::new(0),
            mail: [(); 2].map(|()| AtomicBool::new(false)),
            requests: Attentive::new(),
        })
    }

    fn lock_shadow(&self, me: usize) -> Guard<'_> {
        take(|| self.shadow.try_write(), || self.answer(me))
    }

    fn answer(&self, me: usize) {
        self.requests.look(me);
        thread::yield_now();
    }

    fn read_memory(&self, me: usize) -> Guard<'_> {
        take(|| self.memory.try_read(), || self.answer(me))
    }

    fn lock_memory(&self, me: usize) -> Guard<'_> {
        take(|| self.memory.try_be_next(), || self.answer(me));
        take(|| self.memory.try_upgrade(), || self.answer(me))
    }

    /// Takes the right to write to the table, has the other VCPU forget, and reads the table.
    fn watch(&self, me: usize) -> u64 {
        let _memory = self.read_memory(me);
        self.protect(me)
    }

    /// The same by a VCPU that holds the memory for reading.
    fn protect(&self, me: usize) -> u64 {
        let _tables = self.lock_shadow(me);
        self.writable.store(false, Ordering::Release);
        let other = 1 - me;
        self.mail[other].fetch_or(true, Ordering::SeqCst);
        mailbox::shoot(&self.requests, core::iter::once(other as u32), u64::MAX, || self.requests.look(me));
        self.table.load(Ordering::Relaxed)
    }

    /// A stay in the guest, which writes to the table if it remembers that it may, or finds that it may.
    fn run(&self, me: usize, tlb: &mut Option<bool>, value: u64) {
        if self.mail[me].swap(false, Ordering::SeqCst) {
            *tlb = None;
        }
        if *tlb.get_or_insert_with(|| self.writable.load(Ordering::Acquire)) {
            self.table.store(value, Ordering::Relaxed);
        }
        self.requests.look(me);
    }

    /// Until the others are done.
    fn idle(&self, me: usize, over: &AtomicBool) {
        while !over.load(Ordering::Acquire) {
            self.requests.look(me);
            thread::yield_now();
        }
    }
}

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.max_branches = 10_000;
    builder.check(model);
}

/// What one VCPU reads of a table that it has protected is what stays there.
#[test]
fn a_table_is_not_written_unseen() {
    check(|| {
        let vm = Vm::new();
        let over = Arc::new(AtomicBool::new(false));
        let guest = {
            let (vm, over) = (vm.clone(), over.clone());
            thread::spawn(move || {
                let mut tlb = None;
                vm.run(1, &mut tlb, 1);
                // A fault, which changes nothing that matters here.
                drop(vm.lock_shadow(1));
                vm.run(1, &mut tlb, 2);
                vm.idle(1, &over);
            })
        };
        let seen = vm.watch(0);
        over.store(true, Ordering::Release);
        guest.join().unwrap();
        assert_eq!(vm.table.load(Ordering::Relaxed), seen);
    });
}

/// Both VCPUs take the tables and have the other one forget.
#[test]
fn two_that_want_the_tables_get_on() {
    check(|| {
        let vm = Vm::new();
        let over = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let other = {
            let (vm, over) = (vm.clone(), over.clone());
            thread::spawn(move || {
                vm.watch(1);
                over[0].store(true, Ordering::Release);
                vm.idle(1, &over[1]);
            })
        };
        vm.watch(0);
        over[1].store(true, Ordering::Release);
        vm.idle(0, &over[0]);
        other.join().unwrap();
    });
}

/// One has the tables, for which it has the memory, too; the other one wants to change the memory.
#[test]
fn one_that_wants_the_memory_answers() {
    check(|| {
        let vm = Vm::new();
        let over = Arc::new(AtomicBool::new(false));
        let other = {
            let (vm, over) = (vm.clone(), over.clone());
            thread::spawn(move || {
                drop(vm.lock_memory(1));
                vm.idle(1, &over);
            })
        };
        vm.watch(0);
        over.store(true, Ordering::Release);
        other.join().unwrap();
    });
}

/// A VCPU tries to read the memory behind a waiting writer, which waits for a VCPU that holds the memory and the tables.
#[test]
fn one_that_lets_a_writer_go_first_answers() {
    check(|| {
        let vm = Vm::new();
        let over = Arc::new(AtomicBool::new(false));
        let memory = vm.read_memory(0);
        vm.memory.try_be_next().expect("no other writer");
        let reader = {
            let (vm, over) = (vm.clone(), over.clone());
            thread::spawn(move || {
                drop(vm.read_memory(1));
                vm.idle(1, &over);
            })
        };
        vm.protect(0);
        drop(memory);
        drop(take(|| vm.memory.try_upgrade(), thread::yield_now));
        over.store(true, Ordering::Release);
        reader.join().unwrap();
    });
}

/// Two read by turns, so that one of them always does, until a writer has been in.
#[test]
fn readers_do_not_keep_a_writer_out() {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    let (memory, writers) = (spin::RwLock::new(()), Writers::default());
    let (written, readings) = (AtomicBool::new(false), AtomicUsize::new(0));
    let pause = std::thread::yield_now;
    let reader = || {
        while !written.load(Ordering::Acquire) {
            let reading = take(|| memory.try_read(), || writers.let_pass(pause));
            // Until the other one reads, too: if it does not wait for the writer, as it ought to.
            let now = readings.fetch_add(1, Ordering::AcqRel);
            let alone = (0..10_000).take_while(|_| readings.load(Ordering::Acquire) == now + 1);
            alone.for_each(|_| pause());
            drop(reading);
            assert!(now < 100_000, "the writer starves");
        }
    };
    std::thread::scope(|scope| {
        let _readers = [scope.spawn(reader), scope.spawn(reader)];
        while readings.load(Ordering::Acquire) < 100 {
            pause();
        }
        drop(writers.write(&memory, pause));
        written.store(true, Ordering::Release);
    });
}
