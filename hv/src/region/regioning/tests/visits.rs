//! Visits that are no measure, or say nothing new: by turns, around a merge, and with interrupts.

use super::*;

/// A program with regions of these frames.
fn with(ranges: [Range<u64>; 2]) -> Program {
    let mut program = Program::new(params());
    let [one, other] = ranges.clone().map(|range| range.start);
    program.alternate(ranges, 400, 100);
    assert_ne!(program.region(one), program.region(other));
    assert!(program.regioning.times(program.region(one)).is_some());
    program
}

fn times(program: &Program, gfn: u64) -> Option<(u32, Option<u32>)> {
    program.regioning.times(program.region(gfn))
}

#[test]
fn visits_by_turns_are_no_measure_of_either_region() {
    let mut program = with([0..40, 100..140]);
    let _closed = program.event(Event::Due);
    for _ in 0..20 {
        program.access(Program::data(0), 100);
        program.access(Program::data(100), 100);
    }
    program.access(Program::data(0), 30_000);
    program.access(Program::data(100), 40_000);
    program.access(Program::data(0), 0);
    assert!(matches!(program.event(Event::End), Change::Finish(Round { merges: 0, .. })));
    let access = |gfn| times(&program, gfn).map(|(access_ns, _)| access_ns);
    assert_eq!([0, 100].map(access), [None, Some(40_000)], "only the last visit was one by itself");
}

#[test]
fn what_was_known_of_regions_is_not_true_of_the_one_that_they_become() {
    let mut program = with([0..10, 100..110]);
    let _closed = program.event(Event::Due);
    let _other = program.access(Program::data(200), 100);
    for gfn in [0, 100, 0] {
        program.access(Program::data(gfn), 100);
    }
    assert_eq!(program.region(0), program.region(100));
    assert_eq!(times(&program, 0), None);
    // It was in use before the merge, so its visit is none to count.
    program.now_ns += 20_000;
    program.access(Program::data(200), 20_000);
    assert_eq!(times(&program, 0), None);
    program.access(Program::data(0), 30_000);
    program.access(Program::data(200), 0);
    assert_eq!(times(&program, 0).map(|(access_ns, _)| access_ns), Some(30_000), "the next one does");
}

#[test]
fn a_page_that_is_touched_again_after_interrupts_is_one_page() {
    for interrupts in [true, false] {
        let mut program = with([0..40, 100..140]);
        let _closed = program.event(Event::Due);
        for gfn in [0, 100] {
            program.access(Program::data(gfn), 100);
        }
        // From the last page on: nothing is opened ahead.
        (0..8).for_each(|n| _ = program.access(Program::data(39 - n), 100));
        for n in 0..5 {
            program.access(Program::data(if interrupts { 100 } else { 139 - n }), 100);
            if interrupts {
                assert_eq!(program.event(Event::Interrupt), Change::CloseAll);
            }
        }
        program.access(Program::data(0), 100);
        assert_eq!(program.region(0) != program.region(100), interrupts);
    }
}
