//! Histories that are forgotten.

use super::*;

#[test]
fn a_history_that_is_forgotten_counts_for_its_region_no_more() {
    let mut partition = Partition::new([Gfn(0)..Gfn(64)]).unwrap();
    let space = partition.add_space().unwrap();
    partition.start_histories().unwrap();
    (0..4).for_each(|gfn| drop(partition.map(Gfn(gfn), space).unwrap()));
    for n in 1..=8 {
        let mut accessed = Accessed::of((0..4).map(Gfn));
        assert!(partition.scan(space, n * SAMPLE_NS, &mut accessed, u64::MAX).is_complete);
    }
    let working_set = |partition: &Partition| partition.histories().unwrap().working_set(Rid::seed(space));
    assert_eq!(working_set(&partition), 4, "a quarter of each");
    partition.clear_histories([Gfn(1), Gfn(2)].into_iter());
    assert_eq!(working_set(&partition), 2);
    partition.check().unwrap();
}
