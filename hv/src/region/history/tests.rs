//! Random samples and moves, beside a model that keeps a word for each frame and counts everything again.

mod cleared;
mod idle;

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::arch::addr::PAGE_SIZE;
use crate::region::partition::Partition;
use crate::region::{Domain, Kind, Owner};

/// Two ranges with borders inside of a group, one that shares a group with the one before, and one in two pieces, of which a third has more.
const RAM: [Range<Gfn>; 4] =
    [Gfn(10)..Gfn(80), Gfn(100)..Gfn(140), Gfn(1000)..Gfn(1050), Gfn(1500)..Gfn(1510)];

/// Access bits that were set since the last sample, of frames and of groups, as processors and shadow tables note them.
#[derive(Debug, Default)]
struct Accessed {
    frames: BTreeSet<Gfn>,
    groups: BTreeSet<u64>,
    /// These are no RAM: no sample may ask for them.
    no_ram: Range<u64>,
    /// Parts until it can be asked, of the sample that was begun, and of those that follow.
    not_ready: u64,
    takes: u64,
}

impl Accessed {
    fn of(frames: impl IntoIterator<Item = Gfn>) -> Accessed {
        let mut all = Accessed::default();
        frames.into_iter().for_each(|gfn| all.access(gfn));
        all
    }

    fn access(&mut self, gfn: Gfn) {
        self.frames.insert(gfn);
        self.groups.insert(gfn.0 / GROUP);
    }
}

impl AccessSource for Accessed {
    fn begin(&mut self, _number: u64, is_first: bool) -> bool {
        self.not_ready = if is_first { self.takes } else { self.not_ready - 1 };
        self.not_ready == 0
    }

    fn touched(&mut self, first: Gfn, _before: u64) -> u8 {
        assert_eq!(self.not_ready, 0, "it cannot be asked yet");
        assert_eq!(first.0 % PIECE, 0);
        let groups = (0..8).filter(|n| self.groups.remove(&(first.0 / GROUP + n)));
        groups.fold(0, |all, n| all | 1 << n)
    }

    fn is_idle(&self, first: Gfn, _before: u64) -> bool {
        assert_eq!(first.0 % (TOGETHER * PIECE), 0);
        self.groups.range(first.0 / GROUP..(first.0 + TOGETHER * PIECE) / GROUP).next().is_none()
    }

    fn take_accessed(&mut self, first: Gfn, Asked { wanted, .. }: Asked) -> u64 {
        assert_eq!(first.0 % GROUP, 0);
        assert!(
            self.no_ram.clone().all(|gfn| gfn & !(GROUP - 1) != first.0 || wanted >> (gfn % GROUP) & 1 == 0)
        );
        (0..64)
            .filter(|bit| wanted >> bit & 1 == 1 && self.frames.remove(&Gfn(first.0 + bit)))
            .fold(0, |m, b| m | 1 << b)
    }
}

fn frames() -> impl Iterator<Item = Gfn> {
    RAM.into_iter().flat_map(|range| (range.start.0..range.end.0).map(Gfn))
}

/// What thesis 2.4 says, word by word.
fn naive_working_set(histories: impl Iterator<Item = u32>) -> u64 {
    let quarters = |history: u32| match history.count_ones() {
        26.. => 4,
        20..=25 => 3,
        14..=19 => 2,
        8..=13 => 1,
        _ => 0,
    };
    histories.map(quarters).sum()
}

struct Model {
    real: Partition,
    spaces: Vec<Space>,
    histories: BTreeMap<Gfn, u32>,
    /// Where each frame is, and whose sample it takes part in.
    places: BTreeMap<Gfn, (Rid, Space)>,
    source: Accessed,
    /// Accesses that no sample has found yet.
    due: BTreeSet<Gfn>,
    /// Samples ask for the pool, too.
    has_pool: bool,
}

impl Model {
    fn new(has_pool: bool) -> Model {
        let mut real = Partition::new(RAM).unwrap();
        let spaces = (0..3).map(|_| real.add_space().unwrap()).collect();
        if has_pool { real.start_histories() } else { real.start_histories_of_mapped() }.unwrap();
        Model {
            real,
            spaces,
            histories: frames().map(|gfn| (gfn, 0)).collect(),
            places: frames().map(|gfn| (gfn, (Rid::POOL, Space::VM))).collect(),
            source: Accessed { no_ram: 80..100, ..Accessed::default() },
            due: BTreeSet::new(),
            has_pool,
        }
    }

    fn region(&self, n: u64) -> Rid {
        let regions: Vec<Rid> = self.real.regions().map(|(rid, _)| rid).collect();
        regions[n as usize % regions.len()]
    }

    /// A region that may be merged with another one, if there is any.
    fn grouped(&self, n: u64) -> Rid {
        let is_grouped = |kind| matches!(kind, Kind::Regular | Kind::Local(_));
        let regions: Vec<Rid> =
            self.real.regions().filter(|(_, info)| is_grouped(info.kind)).map(|(rid, _)| rid).collect();
        if regions.is_empty() { Rid::POOL } else { regions[n as usize % regions.len()] }
    }

    /// One transition or sample; refused ones change nothing. Frames are mapped and split in runs, so that there is something to merge.
    fn step(&mut self, op: u8, n: u64, m: u64) {
        let all = frames().count();
        let run = || frames().skip(n as usize % all).take(12);
        let gfn = frames().nth(n as usize % all).unwrap();
        let space = self.spaces[m as usize % self.spaces.len()];
        let domain = Domain::new((m % 4) as u8).unwrap();
        match op {
            0 | 1 => run().for_each(|gfn| drop(self.real.map(gfn, space))),
            2 => run().take(4).for_each(|gfn| drop(self.real.unmap(gfn, space))),
            3 | 4 => run().for_each(|gfn| drop(self.real.split(gfn))),
            5..8 => drop(self.real.merge(self.grouped(n), self.grouped(m))),
            8 => drop(self.real.exclude(gfn)),
            9 => drop(self.real.localise(self.region(n), domain)),
            10 => drop(self.real.tear_down(self.grouped(n))),
            11 => drop(self.real.add_guest(1)),
            12 => drop(self.real.claim(gfn, self.region(m))),
            13 => drop(self.real.release(gfn, self.region(m))),
            // Some at a time, so that those of 32 samples ago are replaced.
            _ => (0..1 + (n >> 56) as u32 % 4)
                .for_each(|k| self.sample(if op == 14 { Space::VM } else { space }, n.rotate_left(7 * k), m)),
        }
        self.follow();
    }

    /// What changes the address space, or dies, has no history.
    fn follow(&mut self) {
        for gfn in frames() {
            let rid = self.real.region_of(gfn).unwrap();
            let owner = match self.real.info(rid).unwrap().owner {
                Owner::Space(space) => space,
                Owner::Vm | Owner::Guest(_) => Space::VM,
            };
            let before = self.places.insert(gfn, (rid, owner)).unwrap();
            if before.1 != owner || before.0 != rid && rid == Rid::POOL {
                self.histories.insert(gfn, 0);
            } else if before.0 == Rid::POOL && !self.has_pool {
                self.histories.insert(gfn, self.real.histories().unwrap().history(gfn).unwrap());
            }
        }
    }

    /// Runs of frames are accessed, of those that the sample does not ask for, too; it is taken in parts.
    fn sample(&mut self, space: Space, n: u64, m: u64) {
        // An eighth of all runs, half of them, or all: histories come to the bounds of working sets, and leave them.
        let mask = [7, 1, 1, 0][(n >> 62) as usize];
        for gfn in frames().filter(|gfn| (n ^ m.rotate_left(gfn.0 as u32 / 8)) & mask == 0) {
            self.source.access(gfn);
            self.due.insert(gfn);
        }
        let is_asked = |gfn: &Gfn| self.places[gfn].1 == space && self.is_known(gfn);
        for gfn in frames().filter(is_asked).collect::<Vec<_>>() {
            let is_due = self.due.remove(&gfn);
            self.histories
                .entry(gfn)
                .and_modify(|history| *history = *history >> 1 | u32::from(is_due) << 31);
        }
        let mut parts = 0;
        self.source.takes = m / 3 % 3;
        while !self.real.scan(space, 0, &mut self.source, 1 + m % 3).is_complete {
            parts += 1;
            assert!(parts < 12);
        }
        let is_left = |gfn: &Gfn| self.places[gfn].0 != Rid::POOL || self.source.frames.contains(gfn);
        self.due.retain(is_left);
    }

    /// Whether each sample of its address space asks for a frame. Those of the pool are asked for where others of their group are.
    fn is_known(&self, gfn: &Gfn) -> bool {
        self.has_pool || self.places[gfn].0 != Rid::POOL
    }

    fn compare(&self) {
        self.real.check().unwrap();
        assert_eq!(self.due, self.source.frames);
        let histories = self.real.histories().unwrap();
        for (gfn, history) in self.histories.iter().filter(|(gfn, _)| self.is_known(gfn)) {
            assert_eq!(histories.history(*gfn), Some(*history), "{gfn:?}");
            assert_eq!(histories.ones(*gfn), Some(history.count_ones() as u8));
            let recent = histories.recent(Gfn(gfn.0 & !(GROUP - 1))).map(|mask| mask >> (gfn.0 % GROUP) & 1);
            let is_in = |samples| u64::from(history.leading_zeros() < samples);
            assert_eq!(recent, [1, 2, 4, 8, 16, 32].map(is_in), "{gfn:?} {history:#x}");
        }
        for (rid, info) in self.real.regions().filter(|(rid, _)| self.has_pool || *rid != Rid::POOL) {
            let of_region = || self.real.frames_of(rid).map(|gfn| self.histories[&gfn]);
            assert_eq!(self.real.working_set(rid), naive_working_set(of_region()), "{rid:?} {info:?}");
        }
        let mut expected = [0; SAMPLES];
        for (gfn, history) in &self.histories {
            // What no sample asks for is not in the model.
            let known = if self.is_known(gfn) { *history } else { histories.history(*gfn).unwrap() };
            expected[known.count_ones().min(31) as usize] += u32::from(known != 0);
        }
        assert_eq!(histories.histogram(1), expected);
        let mut frequent = expected;
        frequent[..9].fill(0);
        assert_eq!(histories.histogram(9), frequent);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn histories_are_those_of_a_word_for_each_frame(ops in proptest::collection::vec((0u8..30, any::<u64>(), any::<u64>()), 0..150), has_pool in any::<bool>()) {
        let mut model = Model::new(has_pool);
        for (op, n, m) in ops {
            model.step(op, n, m);
            model.compare();
        }
    }
}

#[test]
fn a_sample_in_progress_is_seen_by_those_that_it_has_reached() {
    let mut partition = Partition::new([Gfn(0)..Gfn(1024)]).unwrap();
    partition.start_histories().unwrap();
    let mut source = Accessed::of([Gfn(1), Gfn(600)]);
    let part = partition.scan(Space::VM, 5, &mut source, 1);
    assert_eq!((part.groups, part.changed, part.is_complete), (8, 1, false));
    let histories = partition.histories().unwrap();
    assert_eq!([1, 600].map(|n| histories.history(Gfn(n))), [Some(1 << 31), Some(0)]);
    // Its next part is due in a millisecond, and when it is complete the next sample after a further 100 ms.
    assert!(!histories.is_due(Space::VM, 1_000_004) && histories.is_due(Space::VM, 1_000_005));
    assert_eq!(histories.due_ns(Space::VM), 1_000_005);
    let rest = partition.scan(Space::VM, 6, &mut source, 10);
    assert_eq!((rest.groups, rest.changed, rest.is_complete), (8, 1, true));
    let histories = partition.histories().unwrap();
    assert_eq!(histories.history(Gfn(600)), Some(1 << 31));
    assert!(!histories.is_due(Space::VM, SAMPLE_NS + 4) && histories.is_due(Space::VM, SAMPLE_NS + 5));
    assert_eq!(histories.history(Gfn(1024)), None);
}

/// Samples of a VM whose memory is large take parts, between which others come.
#[test]
fn what_a_sample_in_progress_clears_is_kept_for_those_that_have_begun_since() {
    let mut partition = Partition::new([Gfn(0)..Gfn(1024)]).unwrap();
    partition.start_histories().unwrap();
    let space = partition.add_space().unwrap();
    let _effects = partition.map(Gfn(600), space).unwrap();
    let mut source = Accessed::default();
    for now_ns in [SAMPLE_NS, 2 * SAMPLE_NS] {
        let begun = partition.scan(Space::VM, now_ns, &mut source, 1);
        let own = partition.scan(space, now_ns, &mut source, u64::MAX);
        source.access(Gfn(600));
        let rest = partition.scan(Space::VM, now_ns, &mut source, u64::MAX);
        assert_eq!([begun, own, rest].map(|scan| scan.is_complete), [false, true, true]);
        assert_eq!(source.groups.len(), 0, "it has cleared the one bit of both");
    }
    let _complete = partition.scan(space, 3 * SAMPLE_NS, &mut source, u64::MAX);
    assert_eq!(partition.histories().unwrap().history(Gfn(600)), Some(3 << 30));
}

#[test]
fn what_is_not_touched_ages() {
    let mut partition = Partition::new([Gfn(0)..Gfn(512)]).unwrap();
    partition.start_histories().unwrap();
    let mut source = Accessed::of([Gfn(5)]);
    for sample in 0..33 {
        let _complete = partition.scan(Space::VM, 0, &mut source, u64::MAX);
        let expected = if sample < 32 { 1 << (31 - sample) } else { 0 };
        assert_eq!(partition.histories().unwrap().history(Gfn(5)), Some(expected));
        partition.check().unwrap();
    }
}

#[test]
fn samples_that_take_long_come_later_and_cost_their_share() {
    const SHARE_NS: u64 = SAMPLE_NS / 100;
    let mut partition = Partition::new([Gfn(0)..Gfn(1024)]).unwrap();
    partition.start_histories().unwrap();
    let space = partition.add_space().unwrap();
    let mut source = Accessed::default();
    // What each sample takes, and after how many of its shares the next one is due.
    for (n, (took, due)) in
        [(9, 1), (1, 1), (5, 1), (4, 4), (7, 4), (2, 2), (1, 1), (90, 1)].into_iter().enumerate()
    {
        let now_ns = 1000 * SAMPLE_NS * n as u64;
        // In two parts.
        let part = partition.scan(Space::VM, now_ns, &mut source, 1);
        assert!(!part.is_complete && !partition.sample_took(Space::VM, (took - 1) * SHARE_NS));
        assert!(partition.scan(Space::VM, now_ns + 5, &mut source, u64::MAX).is_complete);
        assert_eq!(partition.sample_took(Space::VM, SHARE_NS), due > 1, "{n}");
        let histories = partition.histories().unwrap();
        assert_eq!(histories.due_ns(Space::VM), now_ns + due * SAMPLE_NS, "{n}");
        assert_eq!(histories.due_ns(space), SAMPLE_NS, "each has its own");
    }
}

/// Samples of the VM, which has frame 100, clear the one bit of the 2 MiB and leave that of frame 5, which is another's.
#[test]
fn what_comes_to_an_address_space_is_asked_for_in_its_next_sample() {
    for is_pool in [false, true] {
        let mut partition = Partition::new([Gfn(0)..Gfn(512)]).unwrap();
        partition.start_histories_of_mapped().unwrap();
        let space = partition.add_space().unwrap();
        let exclude = |partition: &mut Partition, frame| {
            let _effects = partition.map(frame, space).unwrap();
            let _effects = partition.exclude(frame).unwrap();
        };
        exclude(&mut partition, Gfn(100));
        if !is_pool {
            let _effects = partition.map(Gfn(5), space).unwrap();
        }
        let mut source = Accessed::of([Gfn(5)]);
        for _ in 0..2 {
            let _complete = partition.scan(Space::VM, 0, &mut source, u64::MAX);
        }
        assert_eq!((source.groups.len(), source.frames.len()), (0, 1));
        match is_pool {
            false => _ = partition.exclude(Gfn(5)).unwrap(),
            true => partition.start_histories().unwrap(),
        }
        let _complete = partition.scan(Space::VM, 0, &mut source, u64::MAX);
        assert_eq!(partition.histories().unwrap().history(Gfn(5)), Some(1 << 31), "{is_pool}");
    }
}

#[test]
fn a_working_set_weighs_frames_by_their_use() {
    let mut partition = Partition::new([Gfn(0)..Gfn(64)]).unwrap();
    partition.start_histories().unwrap();
    // Frame n is accessed in n of 32 samples.
    for sample in 0..32 {
        let mut source = Accessed::of((sample + 1..64).map(Gfn));
        let _complete = partition.scan(Space::VM, 0, &mut source, 1);
    }
    let histogram = partition.histories().unwrap().histogram(1);
    // From frame 32 on all have 32 ones, and frame 31 has 31.
    assert_eq!((histogram[1..31].to_vec(), histogram[31]), (vec![1; 30], 33));
    assert_eq!(partition.working_set(Rid::POOL), 4 * (5 + 33) + 3 * 6 + 2 * 6 + 6);
    assert_eq!(partition.info(Rid::POOL).unwrap().kind, Kind::Seed);
    // What is not used any more leaves the working set.
    for _ in 0..32 {
        let _complete = partition.scan(Space::VM, 0, &mut Accessed::default(), 1);
        partition.check().unwrap();
    }
    assert_eq!(partition.working_set(Rid::POOL), 0);
}

/// The goal is 16 bytes for a frame.
#[test]
fn histories_take_few_bytes_for_a_frame() {
    for megabytes in [64, 128, 512, 4096, 65_536] {
        let frames = (megabytes << 20) / PAGE_SIZE as usize;
        let each = Partition::history_bytes_for(frames) as f64 / frames as f64;
        println!("{megabytes} MiB: {each:.2} bytes for a frame");
        assert!(each <= 16.0, "{megabytes} MiB: {each:.2}");
    }
}

/// A table that leads to each frame of a range, with the access bits of a pattern, as nested tables would have them.
struct Table(u64);

impl AccessSource for Table {
    fn touched(&mut self, _first: Gfn, _before: u64) -> u8 {
        u8::MAX
    }

    fn take_accessed(&mut self, first: Gfn, Asked { wanted, .. }: Asked) -> u64 {
        self.0.rotate_left((first.0 / GROUP % 64) as u32) & wanted
    }
}

/// Frames that are accessed always or never cost a 64th of a visit; figures of a release build are in the design note.
#[test]
fn a_scan_touches_single_frames_only_where_something_changes() {
    const FRAMES: u64 = if cfg!(debug_assertions) { 1 << 13 } else { 1 << 18 };
    let mut partition = Partition::new([Gfn(0)..Gfn(FRAMES)]).unwrap();
    partition.start_histories().unwrap();
    let mut run = |name: &str, pattern: &dyn Fn(u64) -> u64, samples: u64| {
        let (mut scan, start) = (Scan::default(), std::time::Instant::now());
        for sample in 0..samples {
            scan = partition.scan(Space::VM, 0, &mut Table(pattern(sample)), u64::MAX);
        }
        let ns = start.elapsed().as_nanos() as f64 / (samples * FRAMES) as f64;
        println!("{name}: {ns:.2} ns for a frame and sample, {} of {FRAMES} changed", scan.changed);
        scan
    };
    let first = run("all for the first time", &|_| u64::MAX, 32);
    assert_eq!((first.groups, first.changed), (FRAMES / GROUP, FRAMES));
    assert_eq!(run("all in each sample", &|_| u64::MAX, 32).changed, 0);
    let random = run("half of them at random", &|n| 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(n * n + 1), 64);
    assert!((FRAMES / 4..FRAMES).contains(&random.changed));
}

#[test]
fn frames_have_one_clock_where_samples_of_one_address_space_ask_for_them() {
    let mut partition = Partition::new([Gfn(0)..Gfn(640)]).unwrap();
    partition.start_histories_of_mapped().unwrap();
    let spaces = [(); 2].map(|()| partition.add_space().unwrap());
    let is_one = |partition: &Partition| {
        [0..128, 128..640].map(|all| partition.has_one_clock(Gfn(all.start)..Gfn(all.end)))
    };
    assert_eq!(is_one(&partition), [true; 2]);
    for frame in [70, 127, 600] {
        let _effects = partition.map(Gfn(frame), spaces[0]).unwrap();
    }
    assert_eq!(is_one(&partition), [true; 2], "the pool is not asked for");
    let _effects = partition.map(Gfn(130), spaces[1]).unwrap();
    assert_eq!(is_one(&partition), [true, false], "two programs");
    // The VM's samples ask for what is global, and leave the bits of joined leaves alone.
    let _effects = partition.map(Gfn(3), spaces[0]).unwrap();
    let _effects = partition.exclude(Gfn(3)).unwrap();
    assert_eq!(is_one(&partition), [true, false]);
    partition.start_histories().unwrap();
    assert_eq!(is_one(&partition), [false; 2], "they ask for the pool");
}

/// The groups that are asked for, and whether by a second address space.
struct Groups(Vec<(u64, bool)>);

impl AccessSource for Groups {
    fn touched(&mut self, _first: Gfn, _before: u64) -> u8 {
        u8::MAX
    }

    fn take_accessed(&mut self, first: Gfn, asked: Asked) -> u64 {
        self.0.push((first.0 / GROUP, asked.is_second));
        0
    }
}

#[test]
fn samples_of_the_vm_are_second_where_an_address_space_has_frames_within_2_mib() {
    let mut partition = Partition::new([Gfn(0)..Gfn(1536)]).unwrap();
    partition.start_histories_of_mapped().unwrap();
    let space = partition.add_space().unwrap();
    for frame in [0, 511, 512, 1535] {
        let _effects = partition.map(Gfn(frame), space).unwrap();
    }
    for frame in [0, 512, 1535] {
        let _effects = partition.exclude(Gfn(frame)).unwrap();
    }
    let scan = |partition: &mut Partition, space, now_ns| {
        let mut groups = Groups(Vec::new());
        let _scan = partition.scan(space, now_ns, &mut groups, u64::MAX);
        groups.0
    };
    assert_eq!(scan(&mut partition, Space::VM, SAMPLE_NS), [(0, true), (8, false), (23, false)]);
    assert_eq!(scan(&mut partition, space, SAMPLE_NS), [(7, false)]);
    partition.start_histories().unwrap();
    let all: Vec<_> = (0..24).map(|group| (group, false)).collect();
    assert_eq!(scan(&mut partition, Space::VM, 2 * SAMPLE_NS), all, "with the pool no leaf has two");
}

#[test]
fn the_pool_is_sampled_where_that_is_wanted() {
    let mut partition = Partition::new([Gfn(0)..Gfn(6400)]).unwrap();
    partition.start_histories_of_mapped().unwrap();
    let space = partition.add_space().unwrap();
    let scan = |partition: &mut Partition, now_ns| {
        let mut source = Accessed::of((0..6400).map(Gfn));
        partition.scan(Space::VM, now_ns, &mut source, u64::MAX).groups
    };
    assert_eq!(scan(&mut partition, SAMPLE_NS), 0, "all frames are in the pool");
    // What two address spaces share, or what is global, has the VM's samples.
    let _effects = partition.map(Gfn(70), space).unwrap();
    let _effects = partition.exclude(Gfn(70)).unwrap();
    partition.check().unwrap();
    assert_eq!(scan(&mut partition, 2 * SAMPLE_NS), 1);
    assert_eq!(partition.histories().unwrap().history(Gfn(70)).unwrap() >> 31, 1);
    partition.start_histories().unwrap();
    // Of the last piece the second half is no RAM.
    assert_eq!(scan(&mut partition, 3 * SAMPLE_NS), 104);
    partition.check().unwrap();
}
