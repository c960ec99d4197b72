//! The arrays against a naive model: a list for each set, in the order of uses.

use proptest::prelude::*;

use super::*;

/// One array, as lists of (key, value), newest first.
struct Naive {
    geometry: Geometry,
    sets: Vec<Vec<(u64, u64)>>,
}

impl Naive {
    fn new(geometry: Geometry) -> Naive {
        Naive { geometry, sets: vec![vec![]; geometry.entries / geometry.ways] }
    }

    fn get(&mut self, page: u64) -> Option<u64> {
        let count = self.sets.len() as u64;
        let set = &mut self.sets[(page % count) as usize];
        let at = set.iter().position(|entry| entry.0 == page)?;
        let entry = set[at];
        if self.geometry.policy == Policy::Lru {
            set.remove(at);
            set.insert(0, entry);
        }
        Some(entry.1)
    }

    fn insert(&mut self, page: u64, value: u64) {
        let count = self.sets.len() as u64;
        let set = &mut self.sets[(page % count) as usize];
        set.retain(|entry| entry.0 != page);
        set.truncate(self.geometry.ways - 1);
        set.insert(0, (page, value));
    }

    fn remove(&mut self, page: u64) {
        self.sets.iter_mut().for_each(|set| set.retain(|entry| entry.0 != page));
    }
}

const TAG: Tag = Tag(5);

fn geometry() -> impl Strategy<Value = Geometry> {
    let policy = prop_oneof![Just(Policy::Lru), Just(Policy::Fifo)];
    // More than `SEARCHED` ways, too.
    (1usize..9, 1usize..13, policy).prop_map(|(sets, ways, policy)| Geometry {
        entries: sets * ways,
        ways,
        policy,
        classes: 1,
    })
}

proptest! {
    #[test]
    fn behaves_as_lists(geometry in geometry(), trace in prop::collection::vec((0u8..8, 0u64..64), 1..400)) {
        let (mut bank, mut naive) = (Bank::new([geometry]), Naive::new(geometry));
        for (time, (what, page)) in trace.into_iter().enumerate() {
            match what {
                0 => {
                    bank.remove(0, page, TAG);
                    naive.remove(page);
                }
                _ => {
                    let found = bank.get(0, page, TAG).map(|found| found.1);
                    prop_assert_eq!(found, naive.get(page), "page {}", page);
                    if found.is_none() {
                        bank.insert(0, page, TAG, time as u64, (0, |_| true));
                        naive.insert(page, time as u64);
                    }
                }
            }
        }
    }

    /// Dead entries are replaced before live ones: a flush by generations leaves what an emptied array would have.
    #[test]
    fn dead_entries_are_empty_places(
        geometry in geometry(),
        trace in prop::collection::vec((0u8..20, 0u64..64), 1..400),
    ) {
        let (mut bank, mut emptied) = (Bank::new([geometry]), Bank::new([geometry]));
        let mut generation = 0;
        for (what, page) in trace {
            if what == 0 {
                generation += 1;
                emptied.clear();
                continue;
            }
            let found = bank.get(0, page, Tag(generation)).is_some();
            prop_assert_eq!(found, emptied.get(0, page, TAG).is_some());
            if !found {
                bank.insert(0, page, Tag(generation), 0, (u64::from(generation), |tag| tag == Tag(generation)));
                emptied.insert(0, page, TAG, 0, (0, |_| true));
            }
        }
    }
}

#[test]
fn classes_have_arrays_of_their_own() {
    let array = |entries, classes| Geometry { entries, ways: entries, policy: Policy::Lru, classes };
    let mut bank = Bank::new([array(2, 0b001), array(4, 0b110)]);
    assert!(bank.holds(0) && bank.holds(1) && bank.holds(2));
    assert!((0..3).all(|page| bank.insert(0, page, TAG, page, (0, |_| true)).is_some()));
    assert!((0..4).all(|page| bank.insert(1 + page as u32 % 2, page, TAG, page, (0, |_| true)).is_some()));
    let present = |class| (0..4).filter(|page| bank.find(class, *page, TAG).is_some()).collect::<Vec<_>>();
    assert_eq!([present(0), present(1), present(2)], [vec![1, 2], vec![0, 2], vec![1, 3]]);
    assert_eq!(Bank::new([array(2, 0b001)]).insert(1, 0, TAG, 0, (0, |_| true)), None);
}

#[test]
fn keys_do_not_alias() {
    let key = Key::new(2, 0xf_1234_5678, Tag(0x3ff_fffe));
    assert_eq!((key.class(), key.page(), key.tag()), (2, 0xf_1234_5678, Tag(0x3ff_fffe)));
    assert_ne!(Key::new(0, 1, Tag(1)), Key::new(1, 1, Tag(1)));
}

#[test]
fn a_bank_without_arrays_holds_nothing() {
    let mut bank = Bank::default();
    assert!(bank.is_empty() && bank.get(0, 0, TAG).is_none());
    assert_eq!(bank.insert(0, 0, TAG, 0, (0, |_| true)), None);
}
