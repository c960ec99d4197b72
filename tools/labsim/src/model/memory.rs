//! What the model reads of the machine's memory, and where in a machine memory is.

/// Physical memory that can be read. Values may change at any time: other processors write it.
pub trait Memory {
    /// The 8 bytes at an address that is a multiple of 8; `None` where there is no memory.
    fn read_u64(&self, pa: u64) -> Option<u64>;

    /// The 4 bytes at an address that is a multiple of 4.
    fn read_u32(&self, pa: u64) -> Option<u32> {
        let word = self.read_u64(pa & !7)?;
        Some((word >> (8 * (pa & 4))) as u32)
    }
}

impl<M: Memory + ?Sized> Memory for &M {
    fn read_u64(&self, pa: u64) -> Option<u64> {
        (**self).read_u64(pa)
    }
}

/// Where the RAM of a PC is: from 0, and, what has no place below the devices, from 4 GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    /// Bytes of RAM.
    pub bytes: u64,
    /// Bytes below 4 GiB.
    pub below: u64,
}

impl Split {
    /// QEMU's q35: from 2816 MiB on, 2 GiB are below.
    pub const fn q35(bytes: u64) -> Split {
        let below = if bytes >= 0xb000_0000 { 0x8000_0000 } else { bytes };
        Split { bytes, below }
    }

    /// The offset in RAM of `len` bytes at a physical address.
    #[inline]
    pub const fn offset(&self, pa: u64, len: u64) -> Option<u64> {
        let offset = match pa {
            _ if pa < self.below => {
                if pa + len > self.below {
                    return None;
                }
                pa
            }
            0x1_0000_0000.. => pa - 0x1_0000_0000 + self.below,
            _ => return None,
        };
        match offset.checked_add(len) {
            Some(end) if end <= self.bytes => Some(offset),
            _ => None,
        }
    }

    /// The highest address, and one.
    pub const fn end(&self) -> u64 {
        if self.bytes > self.below { 0x1_0000_0000 + self.bytes - self.below } else { self.bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn small_memory_is_in_one_piece() {
        let split = Split::q35(0xb000_0000 - 4096);
        assert_eq!((split.below, split.end()), (0xb000_0000 - 4096, 0xb000_0000 - 4096));
        assert_eq!(split.offset(0xb000_0000 - 4104, 8), Some(0xb000_0000 - 4104));
        assert_eq!(split.offset(0xb000_0000 - 4096, 8), None);
        assert_eq!(split.offset(4 * GIB, 8), None);
    }

    #[test]
    fn large_memory_goes_on_at_4_gib() {
        let split = Split::q35(5 * GIB);
        assert_eq!((split.below, split.end()), (2 * GIB, 7 * GIB));
        assert_eq!(split.offset(2 * GIB - 8, 8), Some(2 * GIB - 8));
        assert_eq!(split.offset(2 * GIB - 4, 8), None);
        assert_eq!(split.offset(2 * GIB, 8), None);
        assert_eq!(split.offset(4 * GIB, 8), Some(2 * GIB));
        assert_eq!(split.offset(7 * GIB - 8, 8), Some(5 * GIB - 8));
        assert_eq!(split.offset(7 * GIB, 8), None);
        assert_eq!(split.offset(u64::MAX - 7, 8), None);
    }
}
