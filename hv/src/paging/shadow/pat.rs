//! Memory types where the processor keeps a PAT of its own while it runs on shadow tables.
//!
//! Guests name the types of their memory by entries of their PAT. AMD's processors switch the PAT with nested tables only:
//! shadow leaves then name the entry of the host's PAT that has the same type. AMD APM 2, 7.8 and 15.25.8; Intel SDM 3,
//! 12.12.

use crate::paging::format::x86::{PAT, PAT_LARGE, PCD, PWT, pat_bits, pat_index};

/// For each entry of the guest's PAT the one of the host's that means the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PatEntries([u8; 8]);

/// Uncacheable, in an entry of the PAT: right for all memory, if slow.
const UNCACHEABLE: u8 = 0;

impl PatEntries {
    /// For these values of IA32_PAT; `None`: every entry is itself.
    pub fn new(guest: u64, host: u64) -> Option<PatEntries> {
        let (guest, host) = (guest.to_le_bytes(), host.to_le_bytes());
        let find = |kind: u8| host.iter().position(|&other| other & 7 == kind);
        let mut entries = [0; 8];
        for (n, entry) in entries.iter_mut().enumerate() {
            let kind = guest[n] & 7;
            let same = (host[n] & 7 == kind).then_some(n);
            let found = same.or_else(|| find(kind)).or_else(|| find(UNCACHEABLE));
            // Firmware's PAT has uncacheable entries, and so has ours.
            *entry = found.unwrap_or(n) as u8;
        }
        (entries != [0, 1, 2, 3, 4, 5, 6, 7]).then_some(PatEntries(entries))
    }

    /// A leaf of `level` that names the host's entry instead of the guest's.
    pub(super) fn translate(self, raw: u64, level: u8) -> u64 {
        let high = if level == 1 { PAT } else { PAT_LARGE };
        let entry = self.0[usize::from(pat_index(raw, level)) & 7];
        raw & !(PWT | PCD | high) | pat_bits(entry, level)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As after RESET: WB, WT, UC-, UC, twice.
    const RESET: u64 = 0x0007_0406_0007_0406;
    /// The same with WC in entry 6.
    const HOST: u64 = 0x0001_0406_0007_0406;
    /// Linux': WB, WC, UC-, UC, WB, WP, UC-, WT.
    const LINUX: u64 = 0x0407_0506_0007_0106;

    #[test]
    fn equal_types_need_no_translation() {
        assert_eq!(PatEntries::new(RESET, RESET), None);
        assert_eq!(PatEntries::new(HOST, HOST), None);
    }

    #[test]
    fn entries_are_found_by_type_and_unknown_types_are_uncacheable() {
        // WP is nowhere in the host's: entry 3 is UC.
        assert_eq!(PatEntries::new(LINUX, HOST), Some(PatEntries([0, 6, 2, 3, 4, 3, 2, 1])));
        assert_eq!(PatEntries::new(RESET, HOST), Some(PatEntries([0, 1, 2, 3, 4, 5, 2, 7])));
    }

    #[test]
    fn leaves_keep_all_but_the_entry() {
        let map = PatEntries::new(LINUX, HOST).unwrap();
        for level in [1, 2] {
            for index in 0..8 {
                let raw = 0x8000_0000_4000_0167 | pat_bits(index, level);
                let translated = map.translate(raw, level);
                assert_eq!(pat_index(translated, level), map.0[usize::from(index)]);
                assert_eq!(translated & !pat_bits(7, level), raw & !pat_bits(7, level));
            }
        }
    }
}
