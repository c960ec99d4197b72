use super::*;
use proptest::prelude::*;

const KHZ: u64 = 2_800_000;
const HOST_KHZ: u64 = 1_000_000;
const START: u64 = 5_000_000;

/// PCPUs with counters, and a host clock that passes as it likes.
struct World {
    clock: ModelledClock,
    cycles: Vec<u64>,
    halted: Vec<bool>,
    stopped: Vec<bool>,
    tsc: u64,
}

impl World {
    /// All PCPUs are busy, and were charged something before.
    fn new(pcpus: usize) -> World {
        let mut world = World {
            clock: ModelledClock::new(pcpus, KHZ, HOST_KHZ, START),
            cycles: (0..pcpus as u64).map(|pcpu| 1_000_000_000 * (pcpu + 1)).collect(),
            halted: vec![true; pcpus],
            stopped: vec![false; pcpus],
            tsc: START,
        };
        (0..pcpus).for_each(|pcpu| world.resume(pcpu));
        world
    }

    /// The PCPU executes a little, as all code between two readings does.
    fn at(&mut self, pcpu: usize) -> Reading {
        self.run(pcpu, 1);
        Reading { cycles: self.cycles[pcpu], tsc: self.tsc }
    }

    fn run(&mut self, pcpu: usize, cycles: u64) {
        if !self.stopped[pcpu] {
            self.cycles[pcpu] += cycles;
        }
    }

    fn now(&mut self, pcpu: usize) -> u64 {
        let at = self.at(pcpu);
        self.clock.now(pcpu, at)
    }

    fn halt(&mut self, pcpu: usize) {
        let at = self.at(pcpu);
        self.clock.halt(pcpu, at);
        self.halted[pcpu] = true;
    }

    fn resume(&mut self, pcpu: usize) {
        let at = self.at(pcpu);
        self.clock.resume(pcpu, at);
        self.halted[pcpu] = false;
    }
}

#[test]
fn on_one_pcpu_the_clock_is_the_counter() {
    let mut world = World::new(1);
    let begin = world.now(0);
    assert!((START..START + 10).contains(&begin), "charges from before do not count: {begin}");
    world.run(0, 123_456);
    world.tsc += 77;
    assert_eq!(world.now(0), begin + 123_457, "however fast the host's clock is");
    world.tsc += 1 << 40;
    assert_eq!(world.now(0), begin + 123_458);
}

#[test]
fn time_of_a_halt_is_the_hosts_unless_another_pcpu_executes() {
    let mut world = World::new(2);
    world.halt(1);
    let begin = world.now(0);
    world.tsc += 50_000_000;
    world.run(0, 1000);
    world.resume(1);
    assert_eq!(world.now(1), begin + 1, "PCPU 0 has not read the clock since");
    assert_eq!(world.now(0), begin + 1001);
    world.halt(1);
    world.halt(0);
    let idle_from = world.clock.latest.load(Ordering::Relaxed);
    world.tsc += HOST_KHZ;
    world.resume(1);
    let after = world.now(1);
    assert!((idle_from + KHZ..idle_from + KHZ + 10).contains(&after), "a millisecond: {after}");
    world.tsc += HOST_KHZ;
    world.resume(0);
    assert!(world.now(0) <= after + 10, "PCPU 1 was busy meanwhile");
}

/// A VCPU goes from one PCPU to the other: the time that the host's thread takes to wake up is not the machine's.
#[test]
fn a_pcpu_that_is_woken_is_not_halted_any_more() {
    let mut world = World::new(2);
    world.halt(1);
    let begin = world.now(0);
    world.clock.wake(1);
    world.clock.wake(1);
    world.halt(0);
    world.tsc += 10 * HOST_KHZ;
    world.resume(1);
    assert!(world.now(1) <= begin + 10, "ten milliseconds on the host");
    // It counts once: when it is halted, too, time passes.
    world.halt(1);
    world.tsc += HOST_KHZ;
    world.resume(0);
    assert!((begin + KHZ..begin + KHZ + 20).contains(&world.now(0)));
    world.resume(1);
    // An interrupt between the last look and the halt ends that at once.
    let begin = world.now(1);
    world.clock.look(1);
    world.clock.wake(1);
    world.halt(1);
    world.halt(0);
    world.tsc += 10 * HOST_KHZ;
    world.resume(1);
    assert!(world.now(1) <= begin + 10);
    // One before the look was seen by that.
    world.clock.wake(1);
    world.clock.look(1);
    world.halt(1);
    world.tsc += HOST_KHZ;
    world.resume(0);
    assert!((begin + KHZ..begin + KHZ + 20).contains(&world.now(0)));
}

#[test]
fn who_is_far_behind_moves_up() {
    let mut world = World::new(2);
    world.run(0, LAG + 1_000_000);
    let ahead = world.now(0);
    assert_eq!(world.now(1), ahead);
    world.run(1, LAG - 501);
    assert_eq!(world.now(1), ahead, "it has to catch up");
    world.run(1, 1000);
    assert_eq!(world.now(1), ahead + 501, "and goes on from there");
    assert_eq!(world.now(0), ahead + 501);
}

/// PCPUs that execute by turns, as threads of a host with fewer processors do, take as long as if they executed at the same time.
#[test]
fn turns_are_no_time() {
    let mut world = World::new(4);
    let begin = world.now(0);
    for _ in 0..100 {
        for pcpu in 0..4 {
            for _ in 0..10 {
                world.run(pcpu, LAG / 20);
                world.now(pcpu);
            }
        }
    }
    let passed = world.now(3) - begin;
    assert!((50 * LAG..51 * LAG).contains(&passed), "{passed} cycles, not {}", 50 * LAG);
}

#[test]
fn a_stopped_counter_leaves_the_hosts_clock() {
    let mut world = World::new(2);
    world.run(0, 1_000_000);
    let reached = world.now(0);
    world.stopped[1] = true;
    for _ in 0..STOPPED_AFTER {
        assert!(!world.clock.take_failure());
        world.tsc += HOST_KHZ;
        assert!(world.now(1) >= reached);
    }
    assert!(world.now(1) >= reached && world.clock.take_failure());
    assert!(!world.clock.take_failure(), "it is reported once");
    let before = world.now(0);
    world.tsc += 10 * HOST_KHZ;
    world.run(0, 1 << 40);
    let [now, other] = [world.now(0), world.now(1)];
    assert_eq!((now, other), (before + 10 * KHZ, now), "on all PCPUs");
    let at = world.at(0);
    assert_eq!(
        world.clock.of(0).unwrap().host_deadline(at.tsc, now + KHZ, false),
        world.tsc + HOST_KHZ - 1,
        "rounded down"
    );
}

/// The timer of a PCPU whose modelled cycles cost this many host ticks: how late the modelled time is when the deadline is noticed,
/// and how many interrupts it took.
fn wait(world: &mut World, deadline: u64, ticks_per_kilocycle: u64, is_halted: bool) -> (u64, u32) {
    for interrupts in 0..10_000 {
        let at = world.at(0);
        let (now, armed) =
            (world.clock.now(0, at), world.clock.of(0).unwrap().host_deadline(at.tsc, deadline, is_halted));
        if now >= deadline {
            return (now - deadline, interrupts);
        }
        assert!(armed > world.tsc);
        let ticks = armed - world.tsc;
        if is_halted {
            world.halt(0);
            world.tsc = armed;
            world.resume(0);
        } else {
            world.tsc = armed;
            world.run(0, ticks * 1000 / ticks_per_kilocycle);
        }
    }
    panic!("the timer never came to {deadline}")
}

#[test]
fn timers_are_soon_as_exact_as_the_rate_is_steady() {
    for ticks_per_kilocycle in [5, 357, 1000, 40_000] {
        let mut world = World::new(1);
        for round in 0..20 {
            let deadline = world.now(0) + 4 * KHZ;
            let (late, interrupts) = wait(&mut world, deadline, ticks_per_kilocycle, false);
            if round >= 10 {
                let what = format!("{ticks_per_kilocycle}: late by {late} after {interrupts} interrupts");
                // 10 µs of 4 ms, and the rounding of slow host clocks.
                assert!(late <= KHZ * NEAR_US / 1000 + 400 && interrupts <= 8, "{what}");
            }
        }
        let deadline = world.now(0) + 4 * KHZ;
        let (late, interrupts) = wait(&mut world, deadline, ticks_per_kilocycle, true);
        assert!(late < 20 && interrupts <= 4, "halted: late by {late} after {interrupts} interrupts");
    }
}

#[test]
fn a_rate_that_jumps_makes_timers_a_millisecond_late_at_most() {
    let mut world = World::new(1);
    let mut worst = (0, 0);
    for round in 0..200u64 {
        // From code that stalls on memory to code that is translated for the first time, and back.
        let ticks_per_kilocycle = if round % 7 < 3 { 500 } else { 25_000 };
        let deadline = world.now(0) + 4 * KHZ;
        let (late, interrupts) = wait(&mut world, deadline, ticks_per_kilocycle, false);
        if round >= 7 {
            worst = (late.max(worst.0), interrupts.max(worst.1));
        }
    }
    assert!(worst.0 <= KHZ * (LATE_US + 500) / 1000, "late by {} cycles", worst.0);
    assert!(worst.1 < 200, "{} interrupts in 4 ms", worst.1);
}

#[test]
fn threads_never_see_time_run_backwards() {
    let clock = ModelledClock::new(4, KHZ, HOST_KHZ, START);
    let seen = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for pcpu in 0..4 {
            let (clock, seen) = (&clock, &seen);
            scope.spawn(move || {
                clock.resume(pcpu, Reading { cycles: 0, tsc: START });
                for step in 1..20_000u64 {
                    let cycles = step * (7 + 13 * pcpu as u64);
                    let before = seen.load(Ordering::SeqCst);
                    let now = clock.now(pcpu, Reading { cycles, tsc: START + step });
                    assert!(now >= before, "PCPU {pcpu} reads {now} after {before}");
                    seen.fetch_max(now, Ordering::SeqCst);
                }
            });
        }
    });
}

#[derive(Clone, Debug)]
enum Step {
    Run(usize, u64),
    HostTime(u64),
    Read(usize),
    Toggle(usize),
    Wake(usize),
    Arm(usize, u64),
    Stop(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let amount = || prop_oneof![0u64..50, 0u64..5_000_000, 0u64..1 << 40];
    prop_oneof![
        6 => (0usize..4, amount()).prop_map(|(pcpu, n)| Step::Run(pcpu, n)),
        4 => amount().prop_map(Step::HostTime),
        8 => (0usize..4).prop_map(Step::Read),
        3 => (0usize..4).prop_map(Step::Toggle),
        2 => (0usize..4).prop_map(Step::Wake),
        3 => (0usize..4, amount()).prop_map(|(pcpu, n)| Step::Arm(pcpu, n)),
        1 => (0usize..40).prop_map(Step::Stop),
    ]
}

proptest! {
    /// Whatever PCPUs execute, wait, migrate VCPUs to each other or stop to count: no reading is before an earlier one, so that
    /// a VCPU's TSC, which is a reading plus what is its own, never is either; and a PCPU that is alone is exact
    /// as soon as it has caught up.
    #[test]
    fn time_never_runs_backwards(steps in prop::collection::vec(step(), 1..400)) {
        let mut world = World::new(4);
        let mut last = 0;
        for step in steps {
            match step {
                Step::Run(pcpu, cycles) if !world.halted[pcpu] => {
                    let alone = (0..4).all(|other| other == pcpu || world.halted[other]);
                    let before = world.now(pcpu);
                    let base = world.clock.parts[pcpu].base.load(Ordering::Relaxed);
                    let behind = before.wrapping_sub(base.wrapping_add(world.cycles[pcpu]));
                    world.run(pcpu, cycles);
                    let after = world.now(pcpu);
                    if alone && !world.stopped[pcpu] && !world.clock.is_plain.load(Ordering::Relaxed) {
                        prop_assert!(behind <= LAG);
                        prop_assert_eq!(after - before, (cycles + 1).saturating_sub(behind));
                    }
                }
                Step::HostTime(ticks) => world.tsc += ticks,
                Step::Toggle(pcpu) if world.halted[pcpu] => world.resume(pcpu),
                Step::Toggle(pcpu) => world.halt(pcpu),
                Step::Wake(pcpu) => world.clock.wake(pcpu),
                Step::Arm(pcpu, ahead) if !world.halted[pcpu] => {
                    let at = world.at(pcpu);
                    let now = world.clock.now(pcpu, at);
                    let armed = world.clock.of(pcpu).unwrap().host_deadline(at.tsc, now.saturating_add(ahead), false);
                    prop_assert!(armed >= world.tsc);
                }
                Step::Stop(pcpu) if pcpu < 4 => world.stopped[pcpu] = true,
                _ => {}
            }
            let reader = (0..4).find(|pcpu| !world.halted[*pcpu]);
            if let Some(pcpu) = reader {
                let now = world.now(pcpu);
                prop_assert!(now >= last, "{} after {}", now, last);
                last = now;
            }
            if let Step::Read(pcpu) = step && !world.halted[pcpu] {
                let now = world.now(pcpu);
                prop_assert!(now >= last, "PCPU {} reads {} after {}", pcpu, now, last);
                last = now;
            }
        }
    }
}
