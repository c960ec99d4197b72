//! A pool beside a set of free frames.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::mem::tier::tests::pool;

#[test]
fn tables_have_their_part_of_the_pool() {
    let pool = pool(200, Sharing::Shares);
    let demand = Some(Demand::new(1, None));
    assert_eq!(pool.publish(0, demand), Ok(200));
    let take = |vm| core::iter::from_fn(|| pool.number(pool.take_for_table(vm)?)).collect::<Vec<_>>();
    assert_eq!(take(0), [199, 198, 197, 196, 195, 194], "the last ones, half of a 16th of all");
    assert_eq!((pool.tables(), pool.for_pages(), pool.free()), (6, 194, 194));
    assert_eq!(pool.publish(0, demand), Ok(194), "more could not be filled, and so nothing would leave");
    pool.give_back_table(0, 198);
    assert_eq!((pool.tables(), pool.for_pages(), pool.free()), (5, 195, 195));
    assert_eq!(take(0), [198], "which has room again");
    // Where pages have all the rest, a table is elsewhere.
    pool.give_back_table(0, 198);
    while pool.take().is_some() {}
    assert_eq!((pool.take_for_table(0), pool.for_pages()), (None, 195));
}

/// However many tables those take that come first, the next VM that begins has some in fast memory.
#[test]
fn tables_are_divided_by_weight() {
    let pool = pool(16 * 60, Sharing::Shares);
    let take = |vm| core::iter::from_fn(|| pool.take_for_table(vm)).count();
    let begin = |vm, weight| pool.publish(vm, Some(Demand::new(weight, None))).is_ok();
    assert!(begin(0, 256));
    assert_eq!(take(0), 30, "as if there were one more like it");
    assert!(begin(3, 256));
    assert_eq!((take(0), take(3)), (0, 20));
    assert!(begin(1, 512));
    assert_eq!((take(1), pool.tables()), (10, 60), "what is left of its 20");
    // The first one ends, and another takes its place.
    (930..960).for_each(|number| pool.give_back_table(0, number));
    assert!(pool.publish(0, None).is_ok());
    assert_eq!((take(3), take(1)), (0, 14), "512 parts of 256 + 2 * 512");
    assert_eq!(take(2), 16, "all that is left: it has asked for nothing yet, and may have a third");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Frames of a pool are taken once, and found by number and address. Pages take the first free one, tables the last, and no more than
    /// their part.
    #[test]
    fn a_pool_is_a_set(frames in 2u64..300, ops in prop::collection::vec((0u8..5, any::<u16>()), 0..300)) {
        let pool = pool(frames, Sharing::Shares);
        let mut free: BTreeSet<u32> = (0..frames as u32).collect();
        let (mut pages, mut tables): (Vec<u32>, Vec<u32>) = Default::default();
        for (op, which) in ops {
            let of = |taken: &Vec<u32>| usize::from(which) % taken.len().max(1);
            match op {
                0 | 1 => {
                    let found = pool.take();
                    prop_assert_eq!(found, free.pop_first());
                    pages.extend(found);
                }
                2 => {
                    let has_room = (tables.len() as u64) < frames / 16 / 2;
                    let last = if has_room { free.pop_last() } else { None };
                    let found = pool.take_for_table(0);
                    prop_assert_eq!(found, last.and_then(|number| pool.frame(number)));
                    prop_assert_eq!(found.and_then(|frame| pool.number(frame)), last);
                    tables.extend(last);
                }
                3 if !tables.is_empty() => {
                    let number = tables.swap_remove(of(&tables));
                    pool.give_back_table(0, number);
                    free.insert(number);
                }
                4 if !pages.is_empty() => {
                    let number = pages.swap_remove(of(&pages));
                    pool.give_back(number);
                    free.insert(number);
                }
                _ => {}
            }
            let counts = [pool.free(), pool.tables(), pool.for_pages()].map(|count| count as usize);
            prop_assert_eq!(counts, [free.len(), tables.len(), frames as usize - tables.len()]);
        }
        prop_assert_eq!((pool.frame(frames as u32), pool.number(Hfn(7))), (None, None));
    }
}
