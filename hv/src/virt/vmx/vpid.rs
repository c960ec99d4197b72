//! Tags of VCPUs in the TLB (Intel SDM 3, 28.1): given out in turn, from 1, because 0 is the host's.
//!
//! [`Vmx`](super::Vmx) takes one when it is made and keeps it. There are fewer tags than VCPUs may be made in the life of a machine:
//! once they [`repeat`], a VCPU has its tag flushed whenever it is loaded, for another one may have used it on the PCPU.

use core::sync::atomic::{AtomicU64, Ordering};

/// Tags of VCPUs.
const TAGS: u64 = 0xffff;

/// VCPUs made since the start.
static MADE: AtomicU64 = AtomicU64::new(0);

/// A tag for a new VCPU.
pub(super) fn next() -> u16 {
    tag(MADE.fetch_add(1, Ordering::Relaxed))
}

/// Whether two VCPUs may have the same tag.
pub(super) fn repeat() -> bool {
    repeat_after(MADE.load(Ordering::Relaxed))
}

fn tag(before: u64) -> u16 {
    (before % TAGS) as u16 + 1
}

fn repeat_after(made: u64) -> bool {
    made > TAGS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_vcpu_has_a_tag_of_its_own_until_they_repeat() {
        assert!((0..TAGS).map(tag).eq(1..=u16::MAX));
        assert!(!repeat_after(TAGS));
        assert_eq!((tag(TAGS), repeat_after(TAGS + 1)), (1, true));
    }
}
