//! Searches of small arrays on the hot path.

/// The first of `len` places for which this holds. Eight are looked at without a branch between them: where it ends
/// cannot be foreseen, and a mispredicted branch costs more than the other seven.
#[inline(always)]
pub fn position(len: usize, holds: impl Fn(usize) -> bool) -> Option<usize> {
    let mut from = 0;
    while from + 8 <= len {
        let found = (0..8).fold(0, |found, at| found | u32::from(holds(from + at)) << at);
        if found != 0 {
            return Some(from + found.trailing_zeros() as usize);
        }
        from += 8;
    }
    (from..len).find(|at| holds(*at))
}

#[cfg(test)]
mod tests {
    use super::position;

    #[test]
    fn the_first_of_all_lengths() {
        for len in 0..40usize {
            assert_eq!(position(len, |_| false), None);
            for first in 0..len {
                assert_eq!(position(len, |at| at >= first && (at - first).is_multiple_of(3)), Some(first));
            }
        }
    }
}
