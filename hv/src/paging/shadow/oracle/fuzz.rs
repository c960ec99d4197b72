//! Arbitrary bytes as a trace.

use super::run;
use crate::paging::guest_walk::PagingKind;
use core::cell::RefCell;

/// Operations of one input at most.
const MOST: usize = 4000;

/// The trace that `data` encodes, of at most `most` operations: a byte for the kind of paging, eight for the seed, eight for each
/// operation.
pub(super) fn trace(data: &[u8], most: usize) -> Option<(Option<PagingKind>, Vec<u64>)> {
    let (kind, rest) = data.split_first()?;
    let kinds = [PagingKind::FourLevel, PagingKind::TwoLevel, PagingKind::Pae, PagingKind::Off];
    let number = |chunk: &[u8]| chunk.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte));
    let numbers = rest.chunks(8).take(most + 1).map(number).collect();
    Some((kinds.get(usize::from(kind % 5)).copied(), numbers))
}

/// Runs the [`trace`] that `data` stands for. Panics, with the trace, if the engines disagree.
pub fn fuzz_one(data: &[u8]) {
    let Some((kind, numbers)) = trace(data, MOST) else { return };
    let Some((&seed, ops)) = numbers.split_first() else { return };
    if let Err(what) = run(kind, seed, ops, None) {
        let trace = RefCell::default();
        let _the_same = run(kind, seed, ops, Some(&trace));
        panic!("{what}\n{}", trace.borrow());
    }
}
