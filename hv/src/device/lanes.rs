//! Byte lanes: accesses of 1, 2 or 4 bytes to parts of a 32-bit register.

/// The bits of a value of `size` bytes (1, 2 or 4; larger sizes count as 4).
pub const fn size_mask(size: u8) -> u32 {
    match size {
        0 => 0,
        1 => 0xff,
        2 => 0xffff,
        3 => 0xff_ffff,
        _ => 0xffff_ffff,
    }
}

/// Reads `size` bytes from byte `offset` (modulo 4) of `register`. Bytes beyond its end read as ones, as on an
/// undriven bus.
pub const fn read(register: u32, offset: u32, size: u8) -> u32 {
    let undriven = u32::MAX as u64;
    let wide = (undriven << 32 | register as u64) >> (8 * (offset & 3));
    wide as u32 & size_mask(size)
}

/// A write of `size` bytes at byte `offset` (modulo 4) of a register, brought to the place of the whole: the bits
/// that are written and their values. Bytes beyond the register's end are dropped.
pub const fn write(value: u32, offset: u32, size: u8) -> (u32, u32) {
    let shift = 8 * (offset & 3);
    let mask = size_mask(size) << shift;
    (mask, value << shift & mask)
}

/// `register` after a write of `size` bytes at byte `offset` (modulo 4).
pub const fn merge(register: u32, value: u32, offset: u32, size: u8) -> u32 {
    let (mask, bits) = write(value, offset, size);
    register & !mask | bits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_parts() {
        assert_eq!(read(0x4433_2211, 0, 1), 0x11);
        assert_eq!(read(0x4433_2211, 3, 1), 0x44);
        assert_eq!(read(0x4433_2211, 1, 2), 0x3322);
        assert_eq!(read(0x4433_2211, 0, 4), 0x4433_2211);
        assert_eq!(read(0x4433_2211, 3, 2), 0xff44);
        assert_eq!(read(0x4433_2211, 2, 4), 0xffff_4433);
    }

    #[test]
    fn writes_parts() {
        assert_eq!(merge(0x4433_2211, 0xaa, 2, 1), 0x44aa_2211);
        assert_eq!(merge(0x4433_2211, 0xffff_bbaa, 1, 2), 0x44bb_aa11);
        assert_eq!(merge(0x4433_2211, 0xbbaa, 3, 2), 0xaa33_2211);
        assert_eq!(write(0x1234, 0, 2), (0xffff, 0x1234));
    }
}
