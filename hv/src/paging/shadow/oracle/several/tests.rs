//! The oracle on random traces: the same in each run, unless `ORACLE_CASES` says how many new ones to try.

use super::*;
use crate::paging::guest_walk::PagingKind::{FourLevel, Off};
use crate::paging::shadow::left_out::Step;
use crate::paging::shadow::oracle::twins::assert_found_out;
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestError, TestRng, TestRunner};

const CASES: u32 = 6;

fn check(kind: Option<PagingKind>) {
    let asked = std::env::var("ORACLE_CASES").ok().and_then(|n| n.parse().ok());
    let config = ProptestConfig {
        cases: asked.unwrap_or(CASES),
        failure_persistence: None,
        max_shrink_iters: 200,
        ..ProptestConfig::default()
    };
    let ops = prop::collection::vec(any::<u64>(), 1..600);
    let mut runner = match asked {
        Some(_) => TestRunner::new(config),
        None => TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha)),
    };
    let result = runner
        .run(&(any::<u64>(), ops), |(seed, ops)| run(kind, seed, &ops, false).map_err(TestCaseError::fail));
    match result {
        Ok(()) => {}
        Err(TestError::Fail(why, (seed, ops))) => {
            let told = std::panic::catch_unwind(|| run(kind, seed, &ops, true));
            let trace = told.ok().and_then(Result::err).unwrap_or_default();
            panic!("{trace}\n{why}\nseed {seed}, operations {ops:?}");
        }
        Err(TestError::Abort(why)) => panic!("{why}"),
    }
}

#[test]
fn vcpus_without_paging() {
    check(Some(PagingKind::Off));
}

#[test]
fn vcpus_on_two_levels() {
    check(Some(PagingKind::TwoLevel));
}

#[test]
fn vcpus_on_pae() {
    check(Some(PagingKind::Pae));
}

#[test]
fn vcpus_on_four_levels() {
    check(Some(PagingKind::FourLevel));
}

#[test]
fn vcpus_that_change_the_kind_of_paging() {
    check(None);
}

/// Fails unless a trace finds it out, without tables and with the most: for one VCPU there are all kinds. Each kind of paging comes with the number of one that does.
fn is_found_out(omits: Omits, kinds: &[(PagingKind, u64)]) {
    assert_found_out(omits, 600, kinds, |kind, seed, ops| {
        run_without(omits, Some(kind), seed, ops, false).is_err()
    });
}

#[test]
fn a_hypervisor_that_does_not_zap_what_moves_is_found_out() {
    is_found_out(Omits::Zap, &[(Off, 1), (FourLevel, 0)]);
}

#[test]
fn a_hypervisor_that_does_not_shoot_down_what_moves_is_found_out() {
    is_found_out(Omits::Flush, &[(Off, 21), (FourLevel, 0)]);
}

#[test]
fn a_hypervisor_that_does_not_zap_what_closes_is_found_out() {
    is_found_out(Omits::Close, &[(Off, 5), (FourLevel, 1)]);
}

#[test]
fn a_hypervisor_that_does_not_compare_what_was_kept_is_found_out() {
    is_found_out(Omits::Compare, &[(FourLevel, 0)]);
}

#[test]
fn a_hypervisor_that_does_not_flush_what_is_evicted_is_found_out() {
    is_found_out(Omits::EvictFlush, &[(Off, 6), (FourLevel, 0)]);
    is_found_out(Omits::DiscardFlush, &[(Off, 6), (FourLevel, 63)]);
}

#[test]
fn a_hypervisor_that_loses_pages_is_found_out() {
    is_found_out(Omits::LosePages, &[(Off, 0), (FourLevel, 0)]);
}

#[test]
fn a_hypervisor_that_does_not_flush_after_a_sample_is_found_out() {
    is_found_out(Omits::SampleFlush, &[(FourLevel, 2)]);
}

#[test]
fn a_hypervisor_that_does_not_flush_what_migrates_is_found_out() {
    is_found_out(Omits::MoveFlush, &[(Off, 12), (FourLevel, 0)]);
}

#[test]
fn a_hypervisor_that_does_not_copy_what_migrates_is_found_out() {
    is_found_out(Omits::LoseCopy, &[(Off, 0), (FourLevel, 0)]);
    is_found_out(Omits::DiscardDirty, &[(Off, 0), (FourLevel, 0)]);
    is_found_out(Omits::StaleCopy, &[(Off, 0), (FourLevel, 0)]);
}

#[test]
fn a_vcpu_that_keeps_what_closes_in_its_phase_is_found_out() {
    is_found_out(Omits::PhaseClose, &[(Off, 3), (FourLevel, 2)]);
    is_found_out(Omits::PhaseFlush, &[(Off, 9), (FourLevel, 6)]);
    is_found_out(Omits::PhaseEnd, &[(Off, 10), (FourLevel, 14)]);
}

#[test]
fn a_vcpu_that_finds_what_it_has_flushed_in_other_tables_is_found_out() {
    is_found_out(Omits::Engine(Step::CompareOtherTrees), &[(FourLevel, 8)]);
    is_found_out(Omits::Engine(Step::CompareAfterFault), &[(FourLevel, 148)]);
}

#[test]
fn entries_that_are_filled_although_they_are_closed_are_found_out() {
    is_found_out(Omits::Engine(Step::AskPrefetched), &[(Off, 0), (FourLevel, 0)]);
    is_found_out(Omits::Engine(Step::AskFollowed), &[(FourLevel, 40)]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_are_a_trace(bytes in prop::collection::vec(any::<u8>(), 0..1500)) {
        fuzz_one(&bytes);
    }
}
