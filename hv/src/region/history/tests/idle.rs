//! Pieces of which the source tells together that they are idle.

use super::*;

/// The same source, which is asked for each piece, and how often.
struct Single(Accessed, usize);

impl AccessSource for Single {
    fn touched(&mut self, first: Gfn, before: u64) -> u8 {
        self.1 += 1;
        self.0.touched(first, before)
    }

    fn take_accessed(&mut self, first: Gfn, asked: Asked) -> u64 {
        self.0.take_accessed(first, asked)
    }
}

/// The same, which also tells of eight.
struct Eights(Single);

impl AccessSource for Eights {
    fn touched(&mut self, first: Gfn, before: u64) -> u8 {
        self.0.touched(first, before)
    }

    fn is_idle(&self, first: Gfn, before: u64) -> bool {
        self.0.0.is_idle(first, before)
    }

    fn take_accessed(&mut self, first: Gfn, asked: Asked) -> u64 {
        self.0.take_accessed(first, asked)
    }
}

/// Samples of three address spaces at random, of a range that begins and ends within eight pieces, and one behind it. Pieces at those
/// ends are asked for one by one.
#[test]
fn idle_pieces_are_passed_over_and_nothing_else() {
    const RAM: [Range<Gfn>; 2] = [Gfn(600)..Gfn(21_000), Gfn(24_576)..Gfn(32_768)];
    let mut random = crate::paging::random::Random(1);
    let new = || {
        let mut partition = Partition::new(RAM).unwrap();
        let spaces = [(); 2].map(|()| partition.add_space().unwrap());
        partition.start_histories().unwrap();
        (partition, [Space::VM, spaces[0], spaces[1]])
    };
    let ((mut first, spaces), (mut second, _)) = (new(), new());
    let mut single = Single(Accessed::default(), 0);
    let mut eights = Eights(Single(Accessed::default(), 0));
    for round in 0..120 {
        for _ in 0..random.draw() % 4 {
            let gfn = Gfn(random.draw() % 32_768);
            single.0.access(gfn);
            eights.0.0.access(gfn);
            let space = spaces[1 + random.draw() as usize % 2];
            assert_eq!(first.map(gfn, space).is_ok(), second.map(gfn, space).is_ok());
        }
        let (space, most) = (spaces[random.draw() as usize % 3], 1 + random.draw() % 100);
        while !first.scan(space, round, &mut single, most).is_complete {}
        while !second.scan(space, round, &mut eights, most).is_complete {}
        assert_eq!(single.0.frames, eights.0.0.frames, "round {round}");
    }
    let histories = [&first, &second].map(|partition| partition.histories().unwrap());
    let all = || RAM.into_iter().flat_map(|range| (range.start.0..range.end.0).map(Gfn));
    assert!(all().all(|gfn| histories[0].history(gfn) == histories[1].history(gfn)));
    assert!(all().filter(|gfn| histories[0].history(*gfn) != Some(0)).count() > 20);
    [first, second].iter().for_each(|partition| partition.check().unwrap());
    assert!(eights.0.1 * 3 < single.1 * 2, "{} of {}", eights.0.1, single.1);
}
