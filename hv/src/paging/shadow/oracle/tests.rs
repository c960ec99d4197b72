//! The oracle on random traces: the same in each run, unless `ORACLE_CASES` says how many new ones to try.

use super::*;
use crate::arch::addr::PAGE_SIZE;
use crate::arch::state::{cr0, cr4, efer};
use crate::paging::shadow::left_out::Step;
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestError, TestRng, TestRunner};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// With five tests, more than 70 000 operations.
const CASES: u32 = 28;

fn check(kind: Option<PagingKind>) {
    let asked = std::env::var("ORACLE_CASES").ok().and_then(|n| n.parse().ok());
    let cases = asked.unwrap_or(CASES);
    let config = ProptestConfig {
        cases,
        failure_persistence: None,
        max_shrink_iters: 150,
        ..ProptestConfig::default()
    };
    let ops = prop::collection::vec(any::<u64>(), 1..1200);
    let mut runner = match asked {
        Some(_) => TestRunner::new(config),
        None => TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha)),
    };
    let result = runner
        .run(&(any::<u64>(), ops), |(seed, ops)| run(kind, seed, &ops, None).map_err(TestCaseError::fail));
    match result {
        Ok(()) => {}
        Err(TestError::Fail(why, (seed, ops))) => {
            let trace = RefCell::default();
            let _what = catch_unwind(AssertUnwindSafe(|| run(kind, seed, &ops, Some(&trace))));
            panic!("{why}\nseed {seed}, operations {ops:?}\n{}", trace.borrow());
        }
        Err(TestError::Abort(why)) => panic!("{why}"),
    }
}

#[test]
fn engines_agree_without_paging() {
    check(Some(PagingKind::Off));
}

#[test]
fn engines_agree_on_two_levels() {
    check(Some(PagingKind::TwoLevel));
}

#[test]
fn engines_agree_on_pae() {
    check(Some(PagingKind::Pae));
}

#[test]
fn engines_agree_on_four_levels() {
    check(Some(PagingKind::FourLevel));
}

#[test]
fn engines_agree_while_the_kind_of_paging_changes() {
    check(None);
}

/// Random traces until one of them is found to be wrong.
fn is_found_out(omits: Omits, kind: PagingKind) -> bool {
    let mut random = Random(1);
    (0..100).any(|_| {
        let seed = std::iter::repeat_with(|| random.draw()).find(|seed| omits.concerns(*seed)).unwrap_or(0);
        let ops: Vec<u64> = (0..1000).map(|_| random.draw()).collect();
        let run = || run_without(omits, Some(kind), seed, &ops, None);
        catch_unwind(AssertUnwindSafe(run)).map_or(true, |result| result.is_err())
    })
}

#[test]
fn a_machine_that_does_not_zap_what_moves_is_found_out() {
    for kind in [PagingKind::Off, PagingKind::TwoLevel, PagingKind::Pae, PagingKind::FourLevel] {
        assert!(is_found_out(Omits::Zap, kind), "{kind:?}");
    }
}

#[test]
fn a_machine_that_does_not_flush_what_moves_is_found_out() {
    for kind in [PagingKind::Off, PagingKind::TwoLevel, PagingKind::Pae, PagingKind::FourLevel] {
        assert!(is_found_out(Omits::Flush, kind), "{kind:?}");
    }
}

#[test]
fn a_machine_that_does_not_compare_pages_after_nested_tables_is_found_out() {
    for kind in [PagingKind::TwoLevel, PagingKind::Pae, PagingKind::FourLevel] {
        assert!(is_found_out(Omits::Compare, kind), "{kind:?}");
    }
}

#[test]
fn an_engine_that_trusts_marks_of_an_unsync_table_is_found_out_by_accesses() {
    assert!(is_found_out(Omits::Engine(Step::ForgetAbsent), PagingKind::FourLevel));
}

#[test]
fn an_engine_that_protects_a_table_again_without_comparing_it_is_found_out_by_accesses() {
    for kind in [PagingKind::TwoLevel, PagingKind::Pae, PagingKind::FourLevel] {
        assert!(is_found_out(Omits::Engine(Step::CompareProtected), kind), "{kind:?}");
    }
}

#[test]
fn an_engine_that_trusts_marks_of_entries_that_were_written_is_found_out_by_accesses() {
    assert!(is_found_out(Omits::Engine(Step::ForgetWritten), PagingKind::FourLevel));
}

#[test]
fn a_machine_where_invlpg_passes_unsync_tables_is_found_out_by_accesses() {
    for kind in [PagingKind::TwoLevel, PagingKind::FourLevel] {
        assert!(is_found_out(Omits::Invlpg, kind), "{kind:?}");
    }
}

#[test]
fn a_machine_that_does_not_flush_what_is_evicted_is_found_out() {
    for kind in [PagingKind::Off, PagingKind::TwoLevel, PagingKind::Pae, PagingKind::FourLevel] {
        assert!(is_found_out(Omits::EvictFlush, kind), "{kind:?}");
        assert!(is_found_out(Omits::DiscardFlush, kind), "{kind:?}, discarded");
    }
}

#[test]
fn a_machine_that_loses_pages_is_found_out() {
    for kind in [PagingKind::Off, PagingKind::TwoLevel, PagingKind::Pae, PagingKind::FourLevel] {
        assert!(is_found_out(Omits::LosePages, kind), "{kind:?}");
    }
}

#[test]
fn a_machine_that_does_not_flush_what_migrates_is_found_out() {
    for kind in [PagingKind::Off, PagingKind::TwoLevel, PagingKind::Pae, PagingKind::FourLevel] {
        assert!(is_found_out(Omits::MoveFlush, kind), "{kind:?}");
    }
}

#[test]
fn a_machine_that_does_not_copy_what_migrates_is_found_out() {
    for kind in [PagingKind::Off, PagingKind::TwoLevel, PagingKind::Pae, PagingKind::FourLevel] {
        assert!(is_found_out(Omits::LoseCopy, kind), "{kind:?}");
        assert!(is_found_out(Omits::DiscardDirty, kind), "{kind:?}");
    }
}

#[test]
fn an_engine_that_passes_over_nested_tables_is_found_out_by_accesses() {
    for step in [Step::CompareNestedLinks, Step::CompareNestedLeaves] {
        assert!(is_found_out(Omits::Engine(step), PagingKind::FourLevel), "{step:?}");
    }
}

/// A global translation stays over a load of CR3, but not over a change of engines.
#[test]
fn a_change_between_kinds_of_shadow_tables_leaves_no_global_translation() {
    for (kind, pointers) in [(PagingKind::FourLevel, 0x67), (PagingKind::Pae, 1)] {
        for (from, to) in [(Engine::Shadow, Engine::Agile), (Engine::Agile, Engine::Shadow)] {
            let arena = Arena::new(1000);
            let mut oracle = Oracle::<Npt>::new(&arena, Some(kind), 1, false, None);
            let change = |oracle: &mut Oracle<Npt>, to| {
                oracle.translation.adopt(Mode::Shadow, Policy::Fixed(to));
                oracle.exit();
                assert!(oracle.machine.is_shadow);
            };
            change(&mut oracle, from);
            oracle.state = PagingState {
                cr0: cr0::PG | cr0::PE | cr0::WP,
                cr3: 0,
                cr4: cr4::PAE | cr4::PGE,
                efer: if kind == PagingKind::FourLevel { efer::LME | efer::LMA | efer::NXE } else { 0 },
                cpl: 0,
                rflags: 0,
                ..oracle.state
            };
            assert_eq!(oracle.state.kind(), kind);
            // Tables in the first pages, and the page behind them, which is global.
            let levels = if kind == PagingKind::FourLevel { 4 } else { 3 };
            for level in (1..=levels).rev() {
                let table = (levels - level) * PAGE_SIZE;
                let flags = match level {
                    1 => 0x167,
                    _ if level == levels => pointers,
                    _ => 0x67,
                };
                oracle.store(Gpa(table), &((table + PAGE_SIZE) | flags).to_le_bytes(), true);
            }
            oracle.probes[0] = Probe::new(Gva(0));
            oracle.load(true);
            let read = |oracle: &mut Oracle<Npt>| oracle.access(0, Gva(0), Access::READ).unwrap();
            assert_eq!(read(&mut oracle), Some((Hpa(HOST.0 + levels * PAGE_SIZE), false)));
            change(&mut oracle, to);
            // There is no memory at the next root, and so nothing at the address.
            oracle.state.cr3 = RAM + 0x1000;
            oracle.load(false);
            assert_eq!(read(&mut oracle), None, "{kind:?}: from {from:?} to {to:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 30, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_are_a_trace(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        fuzz_one(&bytes);
    }
}
