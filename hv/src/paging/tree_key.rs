//! Which of a VM's sets of tables a VCPU runs on, apart from its registers.
//!
//! A VM may have several sets of nested tables, and several shadow roots for the same registers: one for each cache domain that
//! its VCPUs run in, and one for each phase of its execution. Both engines find a root by this key. All VMs start with
//! [`TreeKey::FIRST`] alone. The owner of a key is the VCPU (`vcpu::mmu`), which hands it to both engines.

/// A small number with two parts. Six bits, which is what a shadow page's key has room for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct TreeKey(u8);

impl TreeKey {
    /// Bits of the number.
    pub const BITS: u32 = 6;
    /// Cache domains that can be told apart.
    pub const DOMAINS: u8 = 16;
    /// Phases that can be told apart.
    pub const PHASES: u8 = 4;
    /// Domain 0, phase 0: the only one of most VMs.
    pub const FIRST: TreeKey = TreeKey(0);

    /// The key of a cache domain and a phase; `None` if a number is out of range.
    pub const fn new(domain: u8, phase: u8) -> Option<TreeKey> {
        if domain < TreeKey::DOMAINS && phase < TreeKey::PHASES {
            Some(TreeKey(phase << 4 | domain))
        } else {
            None
        }
    }

    /// The cache domain.
    pub const fn domain(self) -> u8 {
        self.0 & 15
    }

    /// The phase.
    pub const fn phase(self) -> u8 {
        self.0 >> 4
    }

    /// Whether it is that of tables in which pages are opened one by one, in a phase of regioning.
    pub const fn is_of_phase(self) -> bool {
        self.phase() != 0
    }

    /// The number.
    pub const fn number(self) -> u8 {
        self.0
    }

    /// The key of the lowest [`TreeKey::BITS`] bits of a number.
    pub(super) const fn from_number(number: u64) -> TreeKey {
        TreeKey(number as u8 & ((1 << TreeKey::BITS) - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_a_domain_and_a_phase() {
        for number in 0..1 << TreeKey::BITS {
            let key = TreeKey::from_number(number);
            assert_eq!(TreeKey::new(key.domain(), key.phase()), Some(key));
            assert_eq!(u64::from(key.number()), number);
        }
        assert_eq!((TreeKey::new(16, 0), TreeKey::new(0, 4)), (None, None));
    }
}
