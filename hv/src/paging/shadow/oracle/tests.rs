//! The oracle on random traces: the same in each run, unless `ORACLE_CASES` says how many new ones to try.

use super::*;
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestError, TestRng, TestRunner};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// With five tests, more than 100 000 operations.
const CASES: u32 = 40;

fn check(kind: Option<PagingKind>) {
    let asked = std::env::var("ORACLE_CASES").ok().and_then(|n| n.parse().ok());
    let cases = asked.unwrap_or(CASES);
    let config = ProptestConfig {
        cases,
        failure_persistence: None,
        max_shrink_iters: 3000,
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

proptest! {
    #![proptest_config(ProptestConfig { cases: 30, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_are_a_trace(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        fuzz_one(&bytes);
    }
}
