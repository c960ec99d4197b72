//! The oracle on random traces: the same in each run, unless `ORACLE_CASES` says how many new ones to try.

use super::twins::assert_found_out;
use super::*;
use crate::arch::addr::PAGE_SIZE;
use crate::arch::state::{cr0, cr4, efer};
use crate::paging::guest_walk::PagingKind::{FourLevel, Off, Pae, TwoLevel};
use crate::paging::shadow::left_out::Step;
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestError, TestRng, TestRunner};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// With five tests, more than 50 000 operations.
const CASES: u32 = 20;

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

/// Fails unless a trace finds it out; each kind of paging comes with the number of one that does.
fn is_found_out(omits: Omits, kinds: &[(PagingKind, u64)]) {
    assert_found_out(omits, 1000, kinds, |kind, seed, ops| {
        run_without(omits, Some(kind), seed, ops, None).is_err()
    });
}

#[test]
fn a_machine_that_does_not_zap_what_moves_is_found_out() {
    is_found_out(Omits::Zap, &[(Off, 2), (TwoLevel, 0), (Pae, 0), (FourLevel, 0)]);
}

#[test]
fn a_machine_that_does_not_flush_what_moves_is_found_out() {
    is_found_out(Omits::Flush, &[(Off, 9), (TwoLevel, 0), (Pae, 0), (FourLevel, 0)]);
}

#[test]
fn a_machine_that_does_not_compare_pages_after_nested_tables_is_found_out() {
    is_found_out(Omits::Compare, &[(TwoLevel, 6), (Pae, 7), (FourLevel, 15)]);
}

#[test]
fn an_engine_that_trusts_marks_of_an_unsync_table_is_found_out_by_accesses() {
    is_found_out(Omits::Engine(Step::ForgetAbsent), &[(FourLevel, 90)]);
}

#[test]
fn an_engine_that_protects_a_table_again_without_comparing_it_is_found_out_by_accesses() {
    is_found_out(Omits::Engine(Step::CompareProtected), &[(TwoLevel, 2), (Pae, 3), (FourLevel, 0)]);
}

#[test]
fn an_engine_that_trusts_marks_of_entries_that_were_written_is_found_out_by_accesses() {
    is_found_out(Omits::Engine(Step::ForgetWritten), &[(FourLevel, 1)]);
}

#[test]
fn a_machine_where_invlpg_passes_unsync_tables_is_found_out_by_accesses() {
    is_found_out(Omits::Invlpg, &[(TwoLevel, 0), (FourLevel, 1)]);
}

#[test]
fn a_machine_that_does_not_flush_what_is_evicted_is_found_out() {
    is_found_out(Omits::EvictFlush, &[(Off, 0), (TwoLevel, 0), (Pae, 0), (FourLevel, 0)]);
    is_found_out(Omits::DiscardFlush, &[(Off, 15), (TwoLevel, 10), (Pae, 11), (FourLevel, 11)]);
}

#[test]
fn a_machine_that_loses_pages_is_found_out() {
    is_found_out(Omits::LosePages, &[(Off, 0), (TwoLevel, 0), (Pae, 0), (FourLevel, 0)]);
}

#[test]
fn a_machine_that_does_not_flush_what_migrates_is_found_out() {
    is_found_out(Omits::MoveFlush, &[(Off, 11), (TwoLevel, 0), (Pae, 0), (FourLevel, 0)]);
}

#[test]
fn a_machine_that_does_not_copy_what_migrates_is_found_out() {
    is_found_out(Omits::LoseCopy, &[(Off, 0), (TwoLevel, 0), (Pae, 0), (FourLevel, 0)]);
    is_found_out(Omits::DiscardDirty, &[(Off, 0), (TwoLevel, 0), (Pae, 0), (FourLevel, 0)]);
    is_found_out(Omits::StaleCopy, &[(Off, 0), (TwoLevel, 0), (Pae, 0), (FourLevel, 0)]);
}

#[test]
fn an_engine_that_passes_over_nested_tables_is_found_out_by_accesses() {
    is_found_out(Omits::Engine(Step::CompareNestedLinks), &[(FourLevel, 4)]);
    is_found_out(Omits::Engine(Step::CompareNestedLeaves), &[(FourLevel, 31)]);
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
