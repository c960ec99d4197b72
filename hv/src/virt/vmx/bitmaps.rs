//! I/O and MSR bitmaps (Intel SDM 3, 24.6.4 and 24.6.9).

/// Bitmaps A (ports below 0x8000) and B, set = exit.
#[repr(C, align(4096))]
pub struct IoBitmaps(pub(super) [[u8; 4096]; 2]);

impl IoBitmaps {
    /// Every port exits.
    pub fn exit_on_all() -> IoBitmaps {
        IoBitmaps([[0xff; 4096]; 2])
    }
}

/// One bit for each read and each write of the MSRs of [`MsrBitmap::RANGES`], set = exit; all others always exit.
#[repr(C, align(4096))]
pub struct MsrBitmap([u8; 4096]);

impl MsrBitmap {
    /// First MSR of each range of 0x2000.
    pub const RANGES: [u32; 2] = [0, 0xc000_0000];
    /// Where the bits for writes begin.
    const WRITES: usize = 0x800;

    /// Every MSR exits but these. MSRs outside of the ranges exit all the same.
    pub fn opening(msrs: &[u32]) -> MsrBitmap {
        let mut map = MsrBitmap([0xff; 4096]);
        for (byte, bit) in msrs.iter().filter_map(|&msr| Self::place(msr)) {
            map.0[byte] &= !bit;
            map.0[byte + Self::WRITES] &= !bit;
        }
        map
    }

    /// Byte (of the bits for reads) and bit of an MSR.
    fn place(msr: u32) -> Option<(usize, u8)> {
        let (range, first) = Self::RANGES.iter().enumerate().rfind(|&(_, &first)| msr >= first)?;
        let index = (msr - first) as usize;
        (index < 0x2000).then_some((range * 0x400 + index / 8, 1 << (index % 8)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn msr_bits_lie_where_the_manual_puts_them() {
        assert_eq!(MsrBitmap::place(0), Some((0, 1)));
        assert_eq!(MsrBitmap::place(0x1fff), Some((0x3ff, 0x80)));
        assert_eq!(MsrBitmap::place(0x2000), None);
        assert_eq!(MsrBitmap::place(0xc000_0082), Some((0x410, 4)));
        assert_eq!(MsrBitmap::place(0xc001_0000), None);
    }

    #[test]
    fn opens_reads_and_writes_of_one_msr() {
        let map = MsrBitmap::opening(&[0xc000_0102, 0x4b56_4d00]);
        assert_eq!((map.0[0x420], map.0[0xc20]), (0xfb, 0xfb));
        assert_eq!(map.0.iter().filter(|byte| **byte != 0xff).count(), 2);
    }
}
