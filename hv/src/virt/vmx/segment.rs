//! Segment registers as the VMCS holds them (Intel SDM 3, 24.4.1).

use crate::arch::state::Segment;

/// Access rights: the register cannot be used.
pub const UNUSABLE: u64 = 1 << 16;

/// Access rights from attributes and limit. A segment that is not present counts as unusable. The granularity is that of
/// the limit, as the entry rules demand, where a loader left them in disagreement.
pub fn rights(segment: &Segment) -> u64 {
    if segment.attributes & Segment::PRESENT == 0 {
        // Entries demand that a usable segment is present (SDM 3, 26.3.1.2).
        return UNUSABLE;
    }
    let mut attributes = u64::from(segment.attributes);
    if segment.limit & 0xfff != 0xfff {
        attributes &= !u64::from(Segment::GRANULAR);
    } else if segment.limit >> 20 != 0 {
        attributes |= u64::from(Segment::GRANULAR);
    }
    attributes & 0xff | (attributes & 0xf00) << 4
}

/// Attributes from access rights.
pub fn attributes(rights: u64) -> u16 {
    let present = if rights & UNUSABLE != 0 { !Segment::PRESENT } else { !0 };
    (rights & 0xff | rights >> 4 & 0xf00) as u16 & present
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_move_and_come_back() {
        let code = Segment { selector: 8, attributes: 0xa9b, limit: 0xffff_ffff, base: 0 };
        assert_eq!(rights(&code), 0xa09b);
        assert_eq!(attributes(0xa09b), 0xa9b);
        let none = Segment::default();
        assert_eq!(rights(&none), UNUSABLE);
        assert_eq!(attributes(UNUSABLE | 0x93) & Segment::PRESENT, 0);
    }

    #[test]
    fn granularity_follows_the_limit() {
        let byte = Segment { attributes: 0x893, limit: 0xffff_0000, ..Segment::default() };
        assert_eq!(rights(&byte) & 0x8000, 0);
        assert_eq!(rights(&Segment { limit: 0xffff_ffff, attributes: 0x93, ..byte }), 0x8093);
        assert_eq!(rights(&Segment { limit: 0xf_ffff, attributes: 0x893, ..byte }), 0x8093);
    }
}
