//! Arbitrary bytes as a trace.

use super::run;
use crate::paging::guest_walk::PagingKind;
use core::cell::RefCell;

/// Operations of one input at most.
const MOST: usize = 4000;

/// Runs the trace that `data` stands for: a byte for the kind of paging, eight for the seed, eight for each operation.
/// Panics, with the trace, if the engines disagree.
pub fn fuzz_one(data: &[u8]) {
    let Some((kind, rest)) = data.split_first() else { return };
    let kinds = [PagingKind::FourLevel, PagingKind::TwoLevel, PagingKind::Pae, PagingKind::Off];
    let kind = kinds.get(usize::from(kind % 5)).copied();
    let numbers: Vec<u64> = rest
        .chunks(8)
        .take(MOST + 1)
        .map(|chunk| chunk.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)))
        .collect();
    let Some((&seed, ops)) = numbers.split_first() else { return };
    if let Err(what) = run(kind, seed, ops, None) {
        let trace = RefCell::default();
        let _the_same = run(kind, seed, ops, Some(&trace));
        panic!("{what}\n{}", trace.borrow());
    }
}
