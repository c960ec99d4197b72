//! Which engine translates a VM's addresses: what was requested, what the policy wants, what is in force.
//!
//! One per VM, shared by its VCPUs. A person or the configuration requests a [`Mode`]; its [`Policy`] is asked here and
//! nowhere else, and what it wants is stored. A VCPU that cannot run on an engine in its state *excludes* it; the engine for the
//! next entry ([`Translation::target`]) is the wanted one if no VCPU excludes it. `vcpu::mmu` brings the target into force.
//!
//! What must hold: all VCPUs of a VM use the engine in force, or have not entered the guest since it changed. Otherwise one
//! could write the guest's tables unseen while another runs on shadow tables.
//!
//! Locks: `policy` is a leaf lock, held for a decision. With a policy that needs no events, nothing here is on the way of an
//! exit.

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU64, Ordering};

use spin::{Mutex, MutexGuard};

use crate::arch::counters::CounterEvent;
use crate::paging::engine::{Engine, Engines};
use crate::paging::policy::spaces::Spaces;
use crate::paging::policy::{Event, Mode, Next, Period, Policy, Sample, can_compare};
use crate::paging::shadow::AgileTimes;

/// An engine that several VCPUs read and write.
#[derive(Debug, Default)]
struct AtomicEngine(AtomicU8);

impl AtomicEngine {
    fn load(&self) -> Engine {
        Engine::ALL[usize::from(self.0.load(Ordering::SeqCst))]
    }

    fn swap(&self, engine: Engine) -> Engine {
        Engine::ALL[usize::from(self.0.swap(engine as u8, Ordering::SeqCst))]
    }
}

/// The policy, and the mode that it was made for.
#[derive(Debug)]
struct Asked {
    mode: Mode,
    policy: Policy,
    /// Exits between the last decision and the next.
    period: i32,
    /// The policy is asked at the end of each period of samples.
    at_periods: bool,
    /// The policy needs counters, and the machine has none; it has been said.
    is_blind: bool,
    /// How long, in nanoseconds, only instructions have been counted, as a lab machine does before its model begins. At
    /// [`PATIENCE_NS`] that is said.
    without_counters: u64,
    /// How long, in nanoseconds, the policy has done without page faults that it compares. At [`PATIENCE_NS`] that is said.
    without_page_faults: u64,
    /// The sums at the end of the last period of samples, and what was counted in it.
    samples: Option<(Period, Option<Period>)>,
}

/// What the end of a period of samples has led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct PeriodEnd {
    /// Another engine is wanted now.
    pub changed: bool,
    /// The policy compares counters that this machine does not have, as was not known before.
    pub blind: bool,
    /// The policy compares page faults that have not been counted for a while, as was not known before.
    pub lacks_page_faults: bool,
}

/// How long a policy does without counters that may come before that is said: a guest loads the module that counts page faults
/// after its boot.
const PATIENCE_NS: u64 = 10_000_000_000;

/// Which engine translates a VM's addresses.
#[derive(Debug)]
pub struct Translation {
    asked: Mutex<Asked>,
    /// What the policy has decided.
    wanted: AtomicEngine,
    /// The engine whose tables VCPUs enter the guest with.
    in_force: AtomicEngine,
    /// For each engine, the VCPUs that cannot run on it in their state, a bit for each.
    excluded: [AtomicU64; Engine::COUNT],
    /// The policy is asked after a number of exits.
    counts: AtomicBool,
    /// The engine is chosen for each address space, and what is known of them. A leaf lock.
    by_space: AtomicBool,
    /// Tables above level 1 stay unsync there.
    keeps_upper: AtomicBool,
    spaces: Mutex<Option<Spaces>>,
    /// Exits until then. May fall below zero while a VCPU is deciding: these count for the next period.
    left: AtomicI32,
}

impl Asked {
    fn new(mode: Mode, policy: Policy, samples: Option<(Period, Option<Period>)>) -> Asked {
        Asked {
            mode,
            policy,
            period: 0,
            at_periods: false,
            is_blind: false,
            without_counters: 0,
            without_page_faults: 0,
            samples,
        }
    }
}

impl Default for Translation {
    fn default() -> Translation {
        let mode = Mode::default();
        Translation {
            asked: Mutex::new(Asked::new(mode, Policy::new(mode), None)),
            wanted: AtomicEngine::default(),
            in_force: AtomicEngine::default(),
            excluded: Default::default(),
            counts: AtomicBool::new(false),
            by_space: AtomicBool::new(false),
            keeps_upper: AtomicBool::new(false),
            spaces: Mutex::new(None),
            left: AtomicI32::new(0),
        }
    }
}

impl Translation {
    /// Back to what a VM starts with: nested tables, which every VCPU has after a reset, and no VCPU's exclusions.
    /// No VCPU runs.
    pub fn reset(&self) {
        self.asked.lock().samples = None;
        self.in_force.swap(Engine::Nested);
        self.wanted.swap(Engine::Nested);
        self.excluded.iter().for_each(|vcpus| vcpus.store(0, Ordering::SeqCst));
    }

    /// Gives the VM the policy of this mode and asks it for the first time.
    pub fn request(&self, mode: Mode) {
        self.adopt(mode, Policy::new(mode));
    }

    /// Gives the VM any policy, under the name of a mode.
    pub(crate) fn adopt(&self, mode: Mode, policy: Policy) {
        let mut asked = self.asked.lock();
        *asked = Asked::new(mode, policy, asked.samples);
        let (spaces, keeps_upper) = match mode {
            Mode::Commodity(parameters) => (Some(Spaces::new(parameters)), parameters.upper_ms > 0),
            _ => (None, false),
        };
        self.keeps_upper.store(keeps_upper, Ordering::SeqCst);
        self.by_space.store(spaces.is_some(), Ordering::SeqCst);
        *self.spaces.lock() = spaces;
        self.left.store(0, Ordering::SeqCst);
        self.decide(&mut asked, Event::Start);
    }

    /// What was requested.
    pub fn mode(&self) -> Mode {
        self.asked.lock().mode
    }

    /// When agile paging moves tables.
    pub fn agile_times(&self) -> AgileTimes {
        match self.mode() {
            Mode::Agile(parameters) => parameters.into(),
            _ => abi::policy::Agile::default().into(),
        }
    }

    /// When tables above level 1 stay unsync in address spaces that are shadow, if they do at all.
    pub fn upper_times(&self) -> Option<AgileTimes> {
        let Mode::Commodity(parameters) = self.mode() else { return None };
        let nanos = u64::from(parameters.upper_ms) * 1_000_000;
        (nanos > 0).then_some(AgileTimes { window: nanos, timeout: nanos, start: 0 })
    }

    /// Whether tables above level 1 stay unsync, without a look at the mode.
    #[inline(always)]
    pub fn keeps_upper(&self) -> bool {
        self.keeps_upper.load(Ordering::Relaxed)
    }

    /// Whether the engine is chosen for each address space.
    #[inline(always)]
    pub fn is_by_space(&self) -> bool {
        self.by_space.load(Ordering::Relaxed)
    }

    /// The address spaces, if so.
    pub fn spaces(&self) -> MutexGuard<'_, Option<Spaces>> {
        self.spaces.lock()
    }

    /// The engine that the policy wants.
    pub fn wanted(&self) -> Engine {
        self.wanted.load()
    }

    /// The engine whose tables are used.
    pub fn in_force(&self) -> Engine {
        self.in_force.load()
    }

    /// Whether each exit is to be counted with [`Translation::count_exit`].
    #[inline(always)]
    pub fn counts_exits(&self) -> bool {
        self.counts.load(Ordering::Relaxed)
    }

    /// Counts an exit of any VCPU, and asks the policy if it was the last one of a period. Whether another engine is wanted
    /// now.
    pub fn count_exit(&self) -> bool {
        if !self.counts_exits() || self.left.fetch_sub(1, Ordering::SeqCst) != 1 {
            return false;
        }
        let mut asked = self.asked.lock();
        // A person may have asked for another mode since.
        if self.left.load(Ordering::SeqCst) > 0 {
            return false;
        }
        let before = self.wanted();
        // Other VCPUs may have made more exits than the next period has.
        while self.decide(&mut asked, Event::Exits) {}
        self.wanted() != before
    }

    /// A period of samples is over, with these sums since the VM's start: the policy sees what they have grown by, and decides
    /// if it waits for that.
    pub fn end_period(&self, sums: Period) -> PeriodEnd {
        let mut asked = self.asked.lock();
        let last = asked.samples.map(|(before, _)| sums.since(&before));
        asked.samples = Some((sums, last));
        let mut end = PeriodEnd { changed: false, blind: false, lacks_page_faults: false };
        let Some(period) = last.filter(|_| asked.at_periods) else { return end };
        if asked.mode.needs_counters() && !asked.is_blind && !can_compare(&period) {
            let may_come =
                period.guest.has(CounterEvent::Instructions) && !period.guest.has(CounterEvent::Cycles);
            asked.without_counters = asked.without_counters.saturating_add(period.nanos);
            end.blind = !may_come || asked.without_counters >= PATIENCE_NS;
            asked.is_blind = end.blind;
        }
        let hidden = self.in_force() == Engine::Nested && !period.guest.has(CounterEvent::PageFaults);
        if asked.mode.needs_page_faults() && hidden && !asked.is_blind {
            let before = asked.without_page_faults;
            asked.without_page_faults = before.saturating_add(period.nanos);
            end.lacks_page_faults = before < PATIENCE_NS && asked.without_page_faults >= PATIENCE_NS;
        }
        let before = self.wanted();
        let _no_exits_are_left_over = self.decide(&mut asked, Event::Period);
        end.changed = self.wanted() != before;
        end
    }

    /// The last whole period of samples.
    pub fn last_period(&self) -> Option<Period> {
        self.asked.lock().samples?.1
    }

    /// Asks the policy and stores what it wants; whether it is to be asked again at once.
    fn decide(&self, asked: &mut Asked, event: Event) -> bool {
        let period = asked.samples.and_then(|(_, last)| last);
        let sample = Sample { engine: self.wanted(), exits: asked.period.unsigned_abs(), period };
        let decision = asked.policy.on(event, &sample);
        self.wanted.swap(decision.engine);
        asked.at_periods = decision.next == Next::Period;
        let Next::Exits(exits) = decision.next else {
            self.counts.store(false, Ordering::SeqCst);
            return false;
        };
        asked.period = i32::try_from(exits.get()).unwrap_or(i32::MAX);
        self.counts.store(true, Ordering::SeqCst);
        let before = self.left.fetch_add(asked.period, Ordering::SeqCst);
        before.saturating_add(asked.period) <= 0
    }

    /// Says on which engines VCPU `id` can run in its state, where that has changed from `before`.
    pub fn publish(&self, id: u32, before: Engines, now: Engines) {
        for engine in Engine::ALL {
            let vcpus = &self.excluded[engine as usize];
            match (before.contains(engine), now.contains(engine)) {
                (true, false) => drop(vcpus.fetch_or(1 << id, Ordering::SeqCst)),
                (false, true) => drop(vcpus.fetch_and(!(1 << id), Ordering::SeqCst)),
                _ => {}
            }
        }
    }

    /// The engine for the next entry of a VCPU that can run on `supported`: the wanted one unless a VCPU excludes it.
    /// `None` if `supported` is empty.
    pub fn target(&self, supported: Engines) -> Option<Engine> {
        let free = |engine: Engine| self.excluded[engine as usize].load(Ordering::SeqCst) == 0;
        let for_all = Engine::ALL
            .into_iter()
            .fold(Engines::NONE, |set, engine| set.with(engine, free(engine) && supported.contains(engine)));
        let wanted = self.wanted();
        // Where VCPUs exclude all engines between them, each of them gets its own by turns.
        for_all.choose(wanted).or_else(|| supported.choose(wanted))
    }

    /// Brings `engine` into force; whether another one was before. The caller makes the VM's other VCPUs follow.
    pub fn enforce(&self, engine: Engine) -> bool {
        self.in_force.swap(engine) != engine
    }
}

#[cfg(test)]
mod tests;
