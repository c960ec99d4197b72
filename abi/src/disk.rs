//! How a disk says that it is for evicted pages.

/// Its first bytes. A disk without them is not touched.
pub const SIGNATURE: &[u8] = b"PALIMPSEST-PAGES";
/// Where the pages begin, in bytes; nothing is kept between.
pub const FIRST_BYTE: u64 = 64 << 10;
