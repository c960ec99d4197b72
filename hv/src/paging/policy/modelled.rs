//! A guest of which it is known what each engine costs it, for tests of policies.

use super::*;
use crate::arch::counters::CounterEvent;

/// What a guest does in a million of its instructions.
#[derive(Clone, Copy)]
pub(super) struct Work {
    /// Its page faults, each an exit with shadow paging.
    pub(super) faults: u64,
    /// Misses of its TLB with nested and with shadow paging.
    pub(super) misses: u64,
}

/// Much paging and no misses; misses and no paging; neither.
pub(super) const PAGING: Work = Work { faults: 300, misses: 100 };
pub(super) const MISSES: Work = Work { faults: 1, misses: 20_000 };
pub(super) const NEITHER: Work = Work { faults: 2, misses: 10 };

/// A machine that executes [`Work`]: a fault on shadow tables costs 3000 cycles, a miss 30 with shadow paging and 120 with
/// nested paging, a change of the engine 2 million.
pub(super) struct Machine<P = Policy> {
    pub(super) policy: P,
    pub(super) engine: Engine,
    pub(super) changes: u32,
    /// Cycles that it took, and that each engine alone would have taken.
    pub(super) cycles: u64,
    pub(super) alone: [u64; 2],
    /// Periods spent with shadow paging.
    pub(super) shadow: u32,
    /// Cycles of a change that the next period pays.
    owed: u64,
    /// Cycles of an instruction without faults and misses, in thousandths, 1000 at least; of a miss with nested and with shadow
    /// paging.
    pub(super) base_milli: u64,
    pub(super) miss: [u64; 2],
    /// Whether the guest counts its page faults, and by how many thousandths its speed varies at the most.
    pub(super) counts: bool,
    pub(super) noise_milli: u64,
    random: u64,
}

/// What decides: a policy, or what it is compared with.
pub(super) trait Decide {
    /// As [`Policy::on`].
    fn decide(&mut self, event: Event, sample: &Sample) -> Decision;
}

impl Decide for Policy {
    fn decide(&mut self, event: Event, sample: &Sample) -> Decision {
        self.on(event, sample)
    }
}

impl Machine {
    pub(super) fn new(mode: &str) -> Machine {
        Machine::with(Policy::new(mode.parse().unwrap()))
    }

    pub(super) fn run(mode: &str, works: impl IntoIterator<Item = (Work, u32)>) -> Machine {
        let mut machine = Machine::new(mode);
        machine.work(works);
        machine
    }
}

impl<P: Decide> Machine<P> {
    pub(super) fn with(mut policy: P) -> Machine<P> {
        let decision = policy.decide(Event::Start, &Sample::default());
        Machine {
            policy,
            engine: decision.engine,
            changes: 0,
            cycles: 0,
            alone: [0; 2],
            shadow: 0,
            owed: 0,
            base_milli: 1000,
            miss: [120, 30],
            counts: false,
            noise_milli: 0,
            random: 1,
        }
    }

    /// Ten milliseconds of a processor of 200 MHz and one cycle for an instruction, at best.
    pub(super) fn period(&mut self, work: Work) {
        const MILLIONS: u64 = 2;
        let [nested_miss, shadow_miss] = self.miss;
        let noise = (split_mix(&mut self.random) % (2 * self.noise_milli + 1)) * MILLIONS * 1000;
        let base = MILLIONS * (self.base_milli - 1000) * 1000 + noise;
        let cost = |engine| match engine {
            // No policy here chooses agile paging; some ask what any engine would cost.
            Engine::Shadow | Engine::Agile => {
                base + MILLIONS * (work.faults * 3000 + work.misses * shadow_miss)
            }
            Engine::Nested => base + MILLIONS * work.misses * nested_miss,
        };
        let own = cost(self.engine) + core::mem::take(&mut self.owed);
        let mut guest = Counts::ABSENT;
        guest.set(CounterEvent::Instructions, MILLIONS * 1_000_000);
        guest.set(CounterEvent::Cycles, MILLIONS * 1_000_000);
        guest.set(CounterEvent::DtlbMisses, MILLIONS * work.misses);
        if self.counts {
            guest.set(CounterEvent::PageFaults, MILLIONS * work.faults);
        }
        let mut host = Counts::ABSENT;
        host.set(CounterEvent::Cycles, own);
        let is_shadow = self.engine == Engine::Shadow;
        let seen = if is_shadow { MILLIONS * work.faults } else { 0 };
        let period =
            Period { nanos: 10_000_000, exits: seen, paging_exits: seen, guest_faults: seen, guest, host };
        self.cycles += MILLIONS * 1_000_000 + own;
        for (alone, engine) in self.alone.iter_mut().zip([Engine::Nested, Engine::Shadow]) {
            *alone += MILLIONS * 1_000_000 + cost(engine);
        }
        self.shadow += u32::from(is_shadow);
        let decision = self
            .policy
            .decide(Event::Period, &Sample { engine: self.engine, exits: 0, period: Some(period) });
        assert_eq!(decision.next, Next::Period);
        if decision.engine != self.engine {
            (self.changes, self.owed) = (self.changes + 1, 2_000_000);
        }
        self.engine = decision.engine;
    }

    pub(super) fn work(&mut self, works: impl IntoIterator<Item = (Work, u32)>) {
        for (work, periods) in works {
            (0..periods).for_each(|_| self.period(work));
        }
    }

    /// Cycles beyond those of the better engine alone, in thousandths.
    pub(super) fn loss_milli(&self) -> i64 {
        let best = self.alone.into_iter().min().unwrap() as i64;
        (self.cycles as i64 - best) * 1000 / best
    }
}
