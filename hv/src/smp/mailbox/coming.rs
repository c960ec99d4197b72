//! A VCPU comes to a PCPU, runs its guest, and leaves, while another one has it forget: in every order of their steps (with up to
//! three preemptions), and without each of the steps that matter.

use super::tests::Attentive;
use super::*;
use loom::sync::atomic::{AtomicBool, AtomicU64};
use loom::sync::{Arc, Mutex};
use loom::thread;

/// What is done in the wrong order.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wrong {
    Nothing,
    /// The sender of the shootdown reads where VCPUs run before it posts.
    RunsFirst,
    /// The VCPU reads its mailbox before it publishes where it runs.
    LooksFirst,
}

/// The PCPU of the VCPU.
const PCPU: PcpuId = PcpuId(1);

struct Machine {
    /// An entry of a table: 1, and 2 once it has changed.
    entry: AtomicU64,
    /// The scheduler's place of the VCPU, under the lock of its queue: on the PCPU.
    runs: Mutex<bool>,
    /// For the VCPU: forget before the next entry.
    mail: AtomicBool,
    requests: Attentive,
    /// The shootdown is over: the old entry must not be used any more.
    is_over: AtomicBool,
    wrong: Wrong,
}

impl Machine {
    fn new(wrong: Wrong) -> Machine {
        Machine {
            entry: AtomicU64::new(1),
            runs: Mutex::new(false),
            mail: AtomicBool::new(false),
            requests: Attentive::new(),
            is_over: AtomicBool::new(false),
            wrong,
        }
    }

    fn put(&self, runs: bool) {
        *self.runs.lock().unwrap() = runs;
    }

    fn runs_on(&self) -> Option<PcpuId> {
        self.runs.lock().unwrap().then_some(PCPU)
    }

    fn request(&self) {
        self.mail.fetch_or(true, Ordering::SeqCst);
    }

    /// Changes the entry and has the VCPU forget.
    fn change(&self) {
        self.entry.store(2, Ordering::Release);
        let vcpus = core::iter::once(());
        let targets = if self.wrong == Wrong::RunsFirst {
            let ran = self.runs_on();
            leave_word(vcpus, |()| self.request(), |()| ran)
        } else {
            leave_word(vcpus, |()| self.request(), |()| self.runs_on())
        };
        shoot(&self.requests, targets.into_iter().map(|pcpu| pcpu.0.into()), u64::MAX, || ());
        self.is_over.store(true, Ordering::Release);
    }

    /// The VCPU's time on the PCPU. What the processor remembers outlives it.
    fn take_requests(&self, tlb: &mut Option<u64>) {
        let early = self.wrong == Wrong::LooksFirst && self.mail.swap(false, Ordering::SeqCst);
        self.put(true);
        let is_asked = self.wrong != Wrong::LooksFirst && self.mail.swap(false, Ordering::SeqCst);
        if early || is_asked {
            *tlb = None;
        }
        let is_over = self.is_over.load(Ordering::Acquire);
        let used = *tlb.get_or_insert_with(|| self.entry.load(Ordering::Acquire));
        assert!(!is_over || used == 2, "an old translation was used");
        self.requests.look(PCPU.0 as usize);
        self.put(false);
        thread::yield_now();
    }
}

fn run(wrong: Wrong) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.max_branches = 10_000;
    builder.check(move || {
        let machine = Arc::new(Machine::new(wrong));
        let vcpu = {
            let machine = machine.clone();
            thread::spawn(move || {
                let mut tlb = None;
                machine.take_requests(&mut tlb);
                machine.take_requests(&mut tlb);
                while !machine.is_over.load(Ordering::Acquire) {
                    machine.requests.look(PCPU.0 as usize);
                    thread::yield_now();
                }
            })
        };
        machine.change();
        vcpu.join().unwrap();
    });
}

#[test]
fn a_vcpu_that_comes_or_leaves_forgets_or_is_waited_for() {
    run(Wrong::Nothing);
}

#[test]
#[should_panic(expected = "an old translation")]
fn not_if_who_tells_looks_for_it_first() {
    run(Wrong::RunsFirst);
}

#[test]
#[should_panic(expected = "an old translation")]
fn not_if_it_looks_before_it_is_in_its_place() {
    run(Wrong::LooksFirst);
}
