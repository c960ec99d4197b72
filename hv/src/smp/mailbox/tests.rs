//! All interleavings of small cases, by loom; and many PCPUs on real threads.

use super::*;
use loom::thread;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// loom's counter.
type Loom = loom::sync::atomic::AtomicU64;

impl Counter for Loom {
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }
    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }
    fn increment(&self, order: Ordering) -> u64 {
        self.fetch_add(1, order)
    }
}

/// A mailbox that loom looks at.
fn mailbox() -> Mailbox<Loom> {
    Mailbox::with(Loom::new(0), Loom::new(0))
}

/// The mailboxes of two PCPUs that read them after each of their steps, so that no kicks are needed.
pub(crate) struct Attentive([Mailbox<Loom>; 2]);

impl Attentive {
    pub(crate) fn new() -> Attentive {
        Attentive([mailbox(), mailbox()])
    }

    /// One look by a PCPU.
    pub(crate) fn look(&self, pcpu: usize) {
        look(&self.0[pcpu]);
    }
}

impl KickSender for Attentive {
    type Counter = Loom;
    fn mailbox(&self, pcpu: u32) -> &Mailbox<Loom> {
        &self.0[pcpu as usize]
    }
    fn kick(&self, _pcpu: u32) {}
    fn tsc(&self) -> u64 {
        0
    }
    fn pause(&self) {
        thread::yield_now();
    }
}

/// A page-table entry, and a PCPU with a TLB of one entry that uses it.
struct Machine {
    entry: loom::sync::atomic::AtomicU64,
    mailbox: Mailbox<Loom>,
}

fn machine() -> loom::sync::Arc<Machine> {
    loom::sync::Arc::new(Machine { entry: loom::sync::atomic::AtomicU64::new(1), mailbox: mailbox() })
}

impl Machine {
    fn change(&self, value: u64) {
        self.entry.store(value, Ordering::Release);
        let ticket = self.mailbox.ask();
        while !self.mailbox.is_done(ticket) {
            thread::yield_now();
        }
    }

    /// One look into the mailbox; what was cached is forgotten before the answer.
    fn look(&self, tlb: &mut Option<u64>) {
        if let Some(taken) = self.mailbox.take() {
            *tlb = None;
            self.mailbox.answer(taken);
        }
    }
}

/// When a change has been answered, the target's accesses see it.
#[test]
fn nothing_old_is_used_after_the_answer() {
    loom::model(|| {
        let machine = machine();
        let over = loom::sync::Arc::new(loom::sync::atomic::AtomicBool::new(false));
        let sender = {
            let (machine, over) = (machine.clone(), over.clone());
            thread::spawn(move || {
                machine.change(2);
                over.store(true, Ordering::Release);
            })
        };
        let mut tlb = None;
        loop {
            let answered = over.load(Ordering::Acquire);
            let used = *tlb.get_or_insert_with(|| machine.entry.load(Ordering::Relaxed));
            assert!(!answered || used == 2, "an old translation was used");
            if answered {
                break;
            }
            machine.look(&mut tlb);
            thread::yield_now();
        }
        sender.join().unwrap();
    });
}

/// One look into a mailbox.
fn look<C: Counter>(mailbox: &Mailbox<C>) {
    if let Some(taken) = mailbox.take() {
        mailbox.answer(taken);
    }
}

/// Two senders at once: one answer may serve both, and none is forgotten.
#[test]
fn answers_serve_all_who_asked_before() {
    loom::model(|| {
        let mailbox = loom::sync::Arc::new(mailbox());
        let senders = [(); 2].map(|()| {
            let mailbox = mailbox.clone();
            thread::spawn(move || mailbox.ask())
        });
        look(&mailbox);
        look(&mailbox);
        let tickets = senders.map(|sender| sender.join().unwrap());
        assert_ne!(tickets[0], tickets[1]);
        look(&mailbox);
        assert!(tickets.iter().all(|ticket| mailbox.is_done(*ticket)));
        assert!(!mailbox.is_asked() && mailbox.take().is_none());
    });
}

/// Two PCPUs ask each other at once, and answer while they wait: after a look of each, both go on.
#[test]
fn those_who_wait_for_each_other_get_on() {
    loom::model(|| {
        let boxes = loom::sync::Arc::new([mailbox(), mailbox()]);
        let ask = |me: usize| {
            let boxes = boxes.clone();
            move || {
                let ticket = boxes[1 - me].ask();
                look(&boxes[me]);
                ticket
            }
        };
        let other = thread::spawn(ask(1));
        let tickets = [ask(0)(), other.join().unwrap()];
        boxes.iter().for_each(look);
        assert!(boxes[1].is_done(tickets[0]) && boxes[0].is_done(tickets[1]));
    });
}

/// PCPUs whose kicks get lost at times.
struct Lossy {
    boxes: Vec<Mailbox>,
    kicked: Vec<AtomicBool>,
    kicks: AtomicU64,
    ticks: AtomicU64,
}

impl KickSender for Lossy {
    type Counter = AtomicU64;
    fn mailbox(&self, pcpu: u32) -> &Mailbox {
        &self.boxes[pcpu as usize]
    }
    fn kick(&self, pcpu: u32) {
        let count = self.kicks.fetch_add(1, Ordering::Relaxed);
        if !count.is_multiple_of(3) {
            self.kicked[pcpu as usize].store(true, Ordering::Release);
        }
    }
    fn tsc(&self) -> u64 {
        self.ticks.fetch_add(1, Ordering::Relaxed)
    }
}

/// Every PCPU shoots at all others again and again, and looks into its mailbox only when it is kicked or waits.
#[test]
fn lost_kicks_are_sent_again() {
    const PCPUS: u32 = 4;
    const ROUNDS: u64 = 200;
    let wire = Arc::new(Lossy {
        boxes: (0..PCPUS).map(|_| Mailbox::new()).collect(),
        kicked: (0..PCPUS).map(|_| AtomicBool::new(false)).collect(),
        kicks: AtomicU64::new(0),
        ticks: AtomicU64::new(0),
    });
    let at_work = Arc::new(AtomicU64::new(PCPUS.into()));
    let threads: Vec<_> = (0..PCPUS)
        .map(|me| {
            let (wire, at_work) = (wire.clone(), at_work.clone());
            std::thread::spawn(move || {
                let mailbox = &wire.boxes[me as usize];
                let mut answers = 0;
                let mut answer = || {
                    if let Some(taken) = mailbox.take() {
                        mailbox.answer(taken);
                        answers += 1;
                    }
                };
                for _ in 0..ROUNDS {
                    shoot(&*wire, (0..PCPUS).filter(|pcpu| *pcpu != me), 100, &mut answer);
                }
                at_work.fetch_sub(1, Ordering::AcqRel);
                while at_work.load(Ordering::Acquire) > 0 {
                    if wire.kicked[me as usize].swap(false, Ordering::Acquire) {
                        answer();
                    }
                    std::thread::yield_now();
                }
                assert!(answers > 0);
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    for mailbox in &wire.boxes {
        assert_eq!(mailbox.wanted.load(Ordering::Relaxed), ROUNDS * u64::from(PCPUS - 1));
        assert!(!mailbox.is_asked());
    }
}

/// More targets than are asked at once.
#[test]
fn all_targets_are_asked_once() {
    struct Prompt(Vec<Mailbox>);
    impl KickSender for Prompt {
        type Counter = AtomicU64;
        fn mailbox(&self, pcpu: u32) -> &Mailbox {
            &self.0[pcpu as usize]
        }
        fn kick(&self, pcpu: u32) {
            let taken = self.0[pcpu as usize].take().expect("kicked without a request");
            self.0[pcpu as usize].answer(taken);
        }
        fn tsc(&self) -> u64 {
            0
        }
    }
    let wire = Prompt((0..150).map(|_| Mailbox::new()).collect());
    shoot(&wire, 1..150, 1, || unreachable!("all have answered"));
    assert_eq!(wire.0[0].done.load(Ordering::Relaxed), 0);
    assert!(wire.0[1..].iter().all(|mailbox| mailbox.done.load(Ordering::Relaxed) == 1));
}
