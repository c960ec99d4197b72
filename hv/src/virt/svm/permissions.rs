//! I/O and MSR permission maps (AMD APM 2, 15.10.1 and 15.11).

/// One bit per port, set = intercept; the last three bytes cover accesses that cross 0xffff.
#[repr(C, align(4096))]
pub struct IoMap([u8; 3 * 4096]);

impl IoMap {
    /// Intercepts every port.
    pub fn intercept_all() -> IoMap {
        IoMap([0xff; 3 * 4096])
    }
}

/// Two bits per MSR (read, write), set = intercept, for the three ranges of [`MsrMap::RANGES`]; all others are always
/// intercepted.
#[repr(C, align(4096))]
pub struct MsrMap([u8; 2 * 4096]);

impl MsrMap {
    /// First MSR of each range of 0x2000.
    pub const RANGES: [u32; 3] = [0, 0xc000_0000, 0xc001_0000];

    /// Intercepts every MSR.
    pub fn intercept_all() -> MsrMap {
        MsrMap([0xff; 2 * 4096])
    }

    /// Intercepts every MSR but these.
    pub fn opening(msrs: &[u32]) -> MsrMap {
        let mut map = MsrMap::intercept_all();
        for &msr in msrs {
            map.pass_through(msr);
        }
        map
    }

    /// Lets the guest read and write `msr` without an exit. MSRs outside the map stay intercepted.
    fn pass_through(&mut self, msr: u32) {
        if let Some(bit) = Self::bit(msr) {
            self.0[bit / 8] &= !(3 << (bit % 8));
        }
    }

    /// Whether a read (bit 0) or write (bit 1) of `msr` exits.
    pub fn intercepts(&self, msr: u32) -> u8 {
        Self::bit(msr).map_or(3, |bit| self.0[bit / 8] >> (bit % 8) & 3)
    }

    fn bit(msr: u32) -> Option<usize> {
        let (range, first) = Self::RANGES.iter().enumerate().rfind(|&(_, &first)| msr >= first)?;
        let index = (msr - first) as usize;
        (index < 0x2000).then_some(range * 0x800 * 8 + index * 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn msr_bits_lie_where_the_manual_puts_them() {
        assert_eq!(MsrMap::bit(0), Some(0));
        assert_eq!(MsrMap::bit(0x1fff), Some(0x7ff * 8 + 6));
        assert_eq!(MsrMap::bit(0x2000), None);
        assert_eq!(MsrMap::bit(0xc000_0080), Some(0x800 * 8 + 0x100));
        assert_eq!(MsrMap::bit(0xc001_0117), Some(0x1000 * 8 + 0x22e));
        assert_eq!(MsrMap::bit(0x4b56_4d00), None);
    }

    #[test]
    fn pass_through_opens_one_msr() {
        let mut map = MsrMap::intercept_all();
        map.pass_through(0xc000_0102);
        assert_eq!(map.intercepts(0xc000_0102), 0);
        assert_eq!(map.intercepts(0xc000_0101), 3);
        assert_eq!(map.intercepts(0xc000_0103), 3);
        map.pass_through(0x4b56_4d00);
        assert_eq!(map.intercepts(0x4b56_4d00), 3);
    }
}
