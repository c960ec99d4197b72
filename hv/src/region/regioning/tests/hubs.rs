//! Pages that data of several regions share.

use super::*;

/// Frames of a part of the program, parts, and accesses to one before the next one is used.
const FRAMES: u64 = 40;
const PARTS: u64 = 6;
const VISIT: u64 = 400;
/// The first page that all parts are used with.
const HUB: u64 = 250;
/// What turns the rule off.
const OFF: u32 = u32::MAX;

fn params(large: u32) -> Params {
    // A loop over a part takes 8 µs with its hub; the parts are idle for 200 µs.
    Params { large, ..super::params() }
}

fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

impl Program {
    /// A phase of a program that uses `parts` by turns, in random order, and `hubs` pages between each two accesses.
    fn parts(&mut self, parts: Range<u64>, hubs: u64) {
        assert_eq!(self.event(Event::Due), Change::CloseAll);
        let end_ns = self.now_ns + u64::from(self.regioning.params().phase_ns);
        let mut state = self.now_ns;
        while self.open.is_some() && self.now_ns < end_ns {
            for part in parts.clone() {
                for n in 0..VISIT {
                    let random = next(&mut state) % FRAMES;
                    let gfn =
                        if n % 2 == 1 && hubs > 0 { HUB + n / 2 % hubs } else { part * FRAMES + random };
                    self.access(Program::data(gfn), 100);
                }
            }
        }
        if self.open.is_some() {
            let _finished = self.event(Event::End);
        }
    }

    /// Regions that the frames of each of the first `parts` parts are in, and how many of them have frames of more than one.
    fn mixed(&self, parts: u64) -> (Vec<usize>, usize) {
        let regions = |part: u64| -> BTreeSet<Rid> {
            let frames = part * FRAMES..(part + 1) * FRAMES;
            frames.map(|gfn| self.region(gfn)).filter(|rid| *rid != Rid::GLOBAL).collect()
        };
        let all: Vec<_> = (0..parts).map(regions).collect();
        let distinct: BTreeSet<_> = all.iter().flatten().collect();
        let counts: Vec<_> = all.iter().map(BTreeSet::len).collect();
        (counts.clone(), counts.iter().sum::<usize>() - distinct.len())
    }
}

#[test]
fn a_page_that_all_parts_are_used_with_joins_none() {
    for hubs in 1..4 {
        let mut program = Program::new(params(16));
        program.parts(0..PARTS, hubs);
        println!("{hubs}: {:?} {:?}", program.sizes(), program.rounds);
        assert_eq!(program.mixed(PARTS), (vec![1; PARTS as usize], 0), "{hubs}: {:?}", program.sizes());
        for hub in 0..hubs {
            assert_eq!(program.region(HUB + hub), Rid::GLOBAL, "{hub} of {hubs}");
        }
        program.partition.check().unwrap();
        // Without the rule it joins them all.
        let mut program = Program::new(params(OFF));
        program.parts(0..PARTS, hubs);
        assert_eq!(program.sizes(), [(PARTS * FRAMES + hubs) as u32], "{hubs}");
    }
}

#[test]
fn regions_that_are_known_stay_apart() {
    let mut program = Program::new(params(16));
    program.parts(0..PARTS, 0);
    assert_eq!(program.sizes(), [FRAMES as u32; PARTS as usize]);
    program.localise_all();
    program.parts(0..PARTS, 1);
    println!("{:?} {:?}", program.sizes(), program.rounds);
    assert_eq!((program.mixed(PARTS), program.region(HUB)), ((vec![1; PARTS as usize], 0), Rid::GLOBAL));
}

#[test]
fn a_page_that_one_part_is_used_with_joins_it() {
    for large in [16, OFF] {
        let mut program = Program::new(params(large));
        for _ in 0..2 {
            program.parts(0..1, 1);
        }
        println!("{large}: {:?} {:?}", program.sizes(), program.rounds);
        assert_eq!(program.sizes(), [FRAMES as u32 + 1], "{large}");
    }
}

#[test]
fn parts_that_are_used_together_are_one_region_in_as_many_touches() {
    let mut touches = [0; 2];
    for (touches, large) in touches.iter_mut().zip([16, OFF]) {
        let mut program = Program::new(params(large));
        program.parts(0..PARTS, 0);
        assert_eq!(program.sizes(), [FRAMES as u32; PARTS as usize]);
        // From now on by turns of 2 µs.
        for _ in 0..2 {
            program.alternate([0..FRAMES, FRAMES..2 * FRAMES], 20, 100);
        }
        assert_eq!(program.sizes()[0], 2 * FRAMES as u32, "{large}: {:?}", program.sizes());
        *touches = program.rounds.iter().map(|round| round.touches).sum();
    }
    println!("{touches:?}");
    assert!(touches[0] < touches[1] * 5 / 4, "{touches:?}");
}

#[test]
fn a_page_is_judged_again_after_some_phases() {
    let mut program = Program::new(params(16));
    program.parts(0..PARTS, 1);
    assert_eq!(program.region(HUB), Rid::GLOBAL);
    // It is a hub no more.
    let phases = (1..100).find(|_| {
        program.parts(2..3, 1);
        program.region(HUB) == program.region(2 * FRAMES)
    });
    assert_eq!(phases, Some(8));
    // And again one.
    program.parts(0..PARTS, 1);
    assert_eq!((program.mixed(PARTS), program.region(HUB)), ((vec![1; PARTS as usize], 0), Rid::GLOBAL));
}

#[test]
fn pages_of_an_address_space_that_is_gone_are_not_judged_again() {
    let mut program = Program::new(params(16));
    program.parts(0..PARTS, 1);
    assert_eq!(program.region(HUB), Rid::GLOBAL);
    // Another one has its number, and the page is global for a reason of its own.
    program.regioning.begin_space(program.space);
    for _ in 0..20 {
        program.parts(2..3, 0);
    }
    assert_eq!(program.region(HUB), Rid::GLOBAL);
}

#[test]
fn a_pass_with_a_page_at_each_step_is_one_region() {
    for large in [16, OFF] {
        let mut program = Program::new(params(large));
        assert_eq!(program.event(Event::Due), Change::CloseAll);
        for pass in 0..2 {
            for n in 0..2000 {
                program.access(Program::data(if n % 2 == 1 { HUB } else { n / 10 }), 100);
            }
            println!("{large} {pass}: {:?}", program.sizes());
        }
        let _finished = program.event(Event::End);
        let sizes = program.sizes();
        assert!(sizes[0] >= 180, "{large}: {sizes:?}");
    }
}

/// Whatever the number of parts and of hubs, each part has a region. What is first seen as the next part comes into use may join that, and
/// where the first touches meet by chance parts may be one until the next phase: in a few of many programs.
#[test]
fn parts_are_found_whatever_their_hubs() {
    let (mut wrong, mut all) = (Vec::new(), 0);
    for (parts, hubs) in (2..=PARTS).flat_map(|parts| (0..4).map(move |hubs| (parts, hubs))) {
        for begin in (0..1000).step_by(75) {
            let mut program = Program::new(params(16));
            program.now_ns = begin;
            program.parts(0..parts, hubs);
            let main = |part: u64| {
                let frames = part * FRAMES..(part + 1) * FRAMES;
                let of = |rid: &Rid| frames.clone().filter(|gfn| program.region(*gfn) == *rid).count();
                frames.clone().map(|gfn| program.region(gfn)).max_by_key(of).unwrap()
            };
            let mains: Vec<Rid> = (0..parts).map(main).collect();
            let is_misplaced =
                |gfn: &u64| ![mains[(gfn / FRAMES) as usize], Rid::GLOBAL].contains(&program.region(*gfn));
            let misplaced = (0..parts * FRAMES).filter(is_misplaced).count() as u64;
            let are_found = misplaced <= if hubs == 0 { 0 } else { parts * 2 }
                && mains.iter().collect::<BTreeSet<_>>().len() as u64 == parts
                && (0..hubs).all(|hub| program.region(HUB + hub) == Rid::GLOBAL);
            all += 1;
            if !are_found {
                wrong.push((parts, hubs, begin, program.sizes()));
            }
            assert_eq!(program.regioning.evidence.check(&program.partition), Ok(()));
            program.partition.check().unwrap();
        }
    }
    println!("{} of {all}: {wrong:?}", wrong.len());
    assert!(wrong.len() * 20 <= all, "{} of {all}: {wrong:?}", wrong.len());
}
