//! The processor that a scripted machine runs on.

/// A processor with what the tests need: XSAVE with AVX, SMEP, NX, long mode.
pub fn cpuid(leaf: u32, sub: u32) -> [u32; 4] {
    match (leaf, sub) {
        (0, _) => [0xd, 0x6874_7541, 0x444d_4163, 0x6974_6e65],
        (1, _) => [0x00a0_0f11, 0x0080_0800, 0x7efa_320b, 0x178b_fbff],
        (7, 0) => [0, 0x219c_97a9, 0x0040_069c, 0x10],
        (0xd, 0) => [7, 0x240, 0x340, 0],
        (0xd, 2) => [0x100, 0x240, 0, 0],
        (0x8000_0000, _) => [0x8000_0008, 0x6874_7541, 0x444d_4163, 0x6974_6e65],
        (0x8000_0001, _) => [0x00a0_0f11, 0, 0x75c2_37ff, 0x2fd3_fbff],
        // IBPB, IBRS, SSBD.
        (0x8000_0008, _) => [0x3030, 1 << 12 | 1 << 14 | 1 << 24, 0, 0],
        _ => [0; 4],
    }
}
