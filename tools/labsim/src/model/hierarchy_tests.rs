//! The latency of a pointer chase shows each level at its size, and memory its tiers.

use super::super::policy::Policy;
use super::*;

fn hierarchy(prefetcher: Option<Prefetcher>) -> Hierarchy {
    let cache = |kib: usize, ways| Cache::new(kib * 1024 / 64, ways, Policy::Lru);
    let level = |kib, ways, latency| Level { cache: Arc::new(cache(kib, ways)), latency };
    let range = |gib: u64, tier| Range { start: gib << 30, end: (gib + 1) << 30, tier, channel: None };
    let (slow, remote) = (range(1, Tier::Slow), range(2, Tier::Node(1)));
    Hierarchy {
        first: [cache(32, 8), cache(32, 4)],
        first_latency: 4,
        levels: vec![level(256, 8, 10), level(2048, 16, 40)],
        walks_use_first: false,
        prefetcher,
        memory: Arc::new(MemoryMap { ranges: vec![slow, remote], latency: [200, 300, 900] }),
        node: 0,
        clock: None,
    }
}

/// Mean cycles of a step through all lines of an area, again and again, `stride` lines at a time.
fn chase(hierarchy: &mut Hierarchy, base: u64, kib: u64, stride: u64) -> u64 {
    let lines = kib * 1024 / 64;
    let mut counters = Counters::default();
    let mut round = || {
        let steps = (0..lines).map(|step| base + step * stride % lines * 64);
        steps.map(|pa| hierarchy.access(Port::Data, pa, &mut counters)).sum::<u64>()
    };
    round();
    round() / lines
}

#[test]
fn each_level_shows_at_its_size() {
    // An odd stride visits all lines and follows no stream within a page.
    let at = |kib| chase(&mut hierarchy(None), 0, kib, 101);
    assert_eq!([16, 32].map(at), [0, 0]);
    assert_eq!([64, 128, 256].map(at), [10, 10, 10]);
    assert_eq!([512, 1024, 2048].map(at), [40, 40, 40]);
    assert_eq!([4096, 8192].map(at), [200, 200]);
}

#[test]
fn memory_has_tiers() {
    let mut machine = hierarchy(None);
    assert_eq!(chase(&mut machine, 1 << 30, 4096, 101), 900);
    assert_eq!(chase(&mut machine, 2 << 30, 4096, 101), 300);
    machine.node = 1;
    assert_eq!(chase(&mut machine, 2 << 30, 4096, 101), 200);
    assert_eq!(chase(&mut machine, 0, 4096, 101), 300);
}

#[test]
fn the_prefetcher_hides_streams_and_nothing_else() {
    let prefetcher = || Some(Prefetcher::new(16, 4));
    assert!(chase(&mut hierarchy(prefetcher()), 0, 8192, 1) < 25);
    assert_eq!(chase(&mut hierarchy(prefetcher()), 0, 8192, 101), 200);
}

#[test]
fn misses_are_counted_where_they_happen() {
    let (mut machine, mut counters) = (hierarchy(None), Counters::default());
    assert_eq!(machine.access(Port::Data, 0x1000, &mut counters), 200);
    assert_eq!(machine.access(Port::Code, 0x1000, &mut counters), 10);
    assert_eq!(machine.walk(0x1000, 0, &mut counters), 10);
    machine.walks_use_first = true;
    assert_eq!(machine.walk(0x1000, 0, &mut counters), 4);
    let expected = Counters {
        l1d_misses: 1,
        l1i_misses: 1,
        l2_misses: 1,
        llc_misses: 1,
        memory_local: 1,
        ..Counters::default()
    };
    assert_eq!(counters, expected);

    // What the second level has lost is in the last one still.
    let mut counters = Counters::default();
    for line in 0..=8 {
        machine.access(Port::Data, 0x1000 + line * (256 << 10) / 8, &mut counters);
    }
    assert_eq!(machine.access(Port::Data, 0x1000, &mut counters), 40);
    assert_eq!((counters.llc_hits, counters.llc_misses, counters.l2_misses), (1, 8, 9));
}

#[test]
fn shared_levels_are_shared() {
    let (mut one, mut other) = (hierarchy(None), hierarchy(None));
    other.levels[1] = Level { cache: Arc::clone(&one.levels[1].cache), latency: 40 };
    let mut counters = Counters::default();
    one.access(Port::Data, 0, &mut counters);
    assert_eq!(other.access(Port::Data, 0, &mut counters), 40);
}

/// The same machine, whose slow memory carries a line in `cycles`.
fn with_channel(prefetcher: Option<Prefetcher>, cycles: u64) -> Hierarchy {
    let mut machine = hierarchy(prefetcher);
    let memory = Arc::get_mut(&mut machine.memory).unwrap();
    memory.ranges[0].channel = Some(Channel::new(64_000 / cycles, 1000));
    machine.clock = Some(Clock::default());
    machine
}

fn carried(machine: &Hierarchy) -> super::super::channel::Carried {
    machine.memory.ranges[0].channel.as_ref().unwrap().carried()
}

#[test]
fn lines_wait_for_their_channel() {
    let (mut machine, mut counters) = (with_channel(None, 1000), Counters::default());
    let slow = 1 << 30;
    assert_eq!(machine.access(Port::Data, slow, &mut counters), 900);
    // Still at 0: the first line is on its way. Another range's are not in its way.
    assert_eq!(machine.access(Port::Data, slow + 64, &mut counters), 1900);
    assert_eq!(machine.access(Port::Data, 64, &mut counters), 200);
    counters.stall_cycles = 1900;
    // A walk whose references took 50 cycles, and one that begins on a side whose stalls are elsewhere.
    assert_eq!(machine.walk(slow + 128, 50, &mut counters), 950);
    machine.clock.as_mut().unwrap().elsewhere = 1080;
    assert_eq!(machine.access(Port::Code, slow + 192, &mut counters), 920);
    assert_eq!(counters.memory_slow, 4);
    let carried = carried(&machine);
    assert_eq!((carried.lines, carried.waits, carried.wait_cycles), (4, 3, 1070));
}

#[test]
fn a_stream_gets_the_bandwidth_and_no_more() {
    // Without a channel a line of a stream takes a few cycles, because the prefetcher hides the others.
    let through = |cycles| {
        let mut machine = with_channel(Some(Prefetcher::new(16, 4)), cycles);
        let (lines, mut counters) = (64 * 1024, Counters::default());
        for line in 0..lines {
            let cycles = machine.access(Port::Data, (1 << 30) + line * 64, &mut counters);
            counters.stall_cycles += 1 + cycles;
        }
        let carried = carried(&machine);
        assert_eq!(carried.lines + carried.prefetched, lines);
        counters.stall_cycles / lines
    };
    assert_eq!(through(1), through(8));
    // Beside that, the latency of the first three lines of each page, during which nothing else is asked for.
    for cycles in [100, 400] {
        assert!(
            (cycles..=cycles + 3 * 900 / 64).contains(&through(cycles)),
            "{} of {cycles}",
            through(cycles)
        );
    }
}
