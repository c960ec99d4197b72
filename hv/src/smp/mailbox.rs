//! How a PCPU makes others forget translations (a TLB shootdown), and knows that they have.
//!
//! Each PCPU has a [`Mailbox`]: two counters. A PCPU that has changed tables posts a request to each PCPU that may hold an old
//! translation, interrupts it, and waits until it has answered. The interrupt makes a running guest exit; entries of other
//! guests pay nothing. The owner of a mailbox answers in the run loop, and at every place where it waits.
//!
//! What must hold:
//! - The PCPU that answers ensures that no guest instruction runs on it with what was cached before: it records the
//!   flush where its next entry finds it, *before* it answers. The interrupt alone is not enough: an entry may deliver an
//!   event, which reads memory, before it takes the interrupt.
//! - A PCPU that waits answers its own mailbox meanwhile, and holds no lock for which another PCPU waits without answering:
//!   otherwise two of them could wait for each other.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::sched::topology::{PcpuId, PcpuSet};

/// A counter that several PCPUs share. There is one implementation outside of tests.
pub trait Counter {
    /// The value.
    fn load(&self, order: Ordering) -> u64;
    /// Sets the value.
    fn store(&self, value: u64, order: Ordering);
    /// Adds 1 and returns the value before.
    fn increment(&self, order: Ordering) -> u64;
}

impl Counter for AtomicU64 {
    #[inline(always)]
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

/// Requests to one PCPU, and its answers.
#[derive(Debug)]
pub struct Mailbox<C = AtomicU64> {
    wanted: C,
    done: C,
}

/// What one request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Ticket(u64);

/// Requests that were taken and not answered yet.
#[derive(Debug)]
#[must_use]
pub struct Taken(u64);

impl Mailbox {
    /// Nothing is asked for.
    pub const fn new() -> Mailbox {
        Mailbox { wanted: AtomicU64::new(0), done: AtomicU64::new(0) }
    }
}

impl Default for Mailbox {
    fn default() -> Self {
        Self::new()
    }
}

impl<C: Counter> Mailbox<C> {
    /// The same with these counters, which are 0.
    #[cfg(test)]
    pub(super) fn with(wanted: C, done: C) -> Mailbox<C> {
        Mailbox { wanted, done }
    }

    /// Asks the owner to forget. What the caller wrote before is seen by the owner when it takes the request.
    pub fn ask(&self) -> Ticket {
        // SeqCst: in the one order that all PCPUs see, the change of the tables precedes the request and the choice of its targets.
        Ticket(self.wanted.increment(Ordering::SeqCst) + 1)
    }

    /// Whether the owner has answered.
    pub fn is_done(&self, ticket: Ticket) -> bool {
        self.done.load(Ordering::Acquire) >= ticket.0
    }

    /// For the owner: whether a PCPU waits for its answer. Cheap.
    #[inline(always)]
    pub fn is_asked(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) != self.done.load(Ordering::Relaxed)
    }

    /// For the owner: all requests up to now.
    pub fn take(&self) -> Option<Taken> {
        let wanted = self.wanted.load(Ordering::SeqCst);
        (wanted != self.done.load(Ordering::Relaxed)).then_some(Taken(wanted))
    }

    /// For the owner: no translation that was cached before [`Mailbox::take`] will be used again.
    pub fn answer(&self, taken: Taken) {
        // The flush, or the note that it is due, happened before.
        self.done.store(taken.0, Ordering::Release);
    }
}

/// Sends kicks: the PCPUs with their mailboxes and interrupts.
pub trait KickSender {
    /// What mailboxes count with: [`AtomicU64`] outside of tests.
    type Counter: Counter;
    /// The mailbox of a PCPU.
    fn mailbox(&self, pcpu: u32) -> &Mailbox<Self::Counter>;
    /// Makes it look into its mailbox, if it runs a guest or sleeps.
    fn kick(&self, pcpu: u32);
    /// The time-stamp counter.
    fn tsc(&self) -> u64;
    /// Between two looks for an answer.
    #[inline(always)]
    fn pause(&self) {
        core::hint::spin_loop();
    }
}

/// Makes `targets` forget, and returns when all of them have. `answer` is called while it waits: it answers the caller's own
/// mailbox. An interrupt that has no effect within `patience` ticks is sent again: emulations lose some.
///
/// Any target is asked once; the caller itself is not one of them.
pub fn shoot(
    sender: &impl KickSender,
    targets: impl Iterator<Item = u32> + Clone,
    patience: u64,
    mut answer: impl FnMut(),
) {
    // A PCPU has one mailbox, and answers all at once: the ticket of the last request to it is the latest.
    let ask = |pcpu| {
        let ticket = sender.mailbox(pcpu).ask();
        sender.kick(pcpu);
        (pcpu, ticket)
    };
    // All are asked before any is waited for: the waits overlap.
    let asked: heapless::Vec<(u32, Ticket), AT_ONCE> = targets.clone().take(AT_ONCE).map(ask).collect();
    for (pcpu, ticket) in &asked {
        wait(sender, *pcpu, *ticket, patience, &mut answer);
    }
    for (pcpu, ticket) in targets.skip(AT_ONCE).map(ask) {
        wait(sender, pcpu, ticket, patience, &mut answer);
    }
}

/// Leaves word for each of these VCPUs: what it finds before its next entry. Returns where VCPUs run now: these PCPUs are to be
/// [asked](shoot). One that comes to a PCPU meanwhile is in its place there, for `runs_on`, before it looks for what was left.
pub fn leave_word<V: Copy>(
    vcpus: impl Iterator<Item = V>,
    leave: impl Fn(V),
    runs_on: impl Fn(V) -> Option<PcpuId>,
) -> PcpuSet {
    let mut running = PcpuSet::EMPTY;
    for vcpu in vcpus {
        leave(vcpu);
        // After the word is left: a VCPU that comes to a PCPU later finds it there, and needs no kick.
        if let Some(pcpu) = runs_on(vcpu) {
            running.insert(pcpu);
        }
    }
    running
}

/// PCPUs that are asked before the first answer is awaited, so that their answers overlap: as many as the scheduler has
/// (`sched::topology::MAX_PCPUS`), in a fixed array because a shootdown must not allocate.
const AT_ONCE: usize = 64;

fn wait(sender: &impl KickSender, pcpu: u32, ticket: Ticket, patience: u64, answer: &mut impl FnMut()) {
    let mut asked = sender.tsc();
    while !sender.mailbox(pcpu).is_done(ticket) {
        answer();
        let now = sender.tsc();
        if now.wrapping_sub(asked) >= patience {
            // QEMU's emulation can lose an interrupt at VMRUN (docs/design/0011-smp.md).
            sender.kick(pcpu);
            asked = now;
        }
        sender.pause();
    }
}

#[cfg(test)]
mod coming;
#[cfg(test)]
pub(crate) mod tests;
