//! Emulators that are not quite the processor that they say they are (docs/design/0006-emulated-svm.md).

/// Whether `cpuid(leaf, subleaf)` is answered by QEMU's software emulation (TCG): the processor has the hypervisor bit, and the
/// hypervisor's signature is `TCGTCGTCGTCG`. On QEMU with KVM the signature is KVM's.
pub fn is_qemu_tcg(cpuid: impl Fn(u32, u32) -> [u32; 4]) -> bool {
    const HYPERVISOR: u32 = 1 << 31;
    let signature = [*b"TCGT", *b"CGTC", *b"GTCG"].map(u32::from_le_bytes);
    cpuid(1, 0)[2] & HYPERVISOR != 0 && cpuid(0x4000_0000, 0)[1..] == signature
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signature_and_the_bit_are_needed() {
        let machine = |bit: u32, signature: &[u8; 12]| {
            let word = |at: usize| u32::from_le_bytes(signature[at..at + 4].try_into().unwrap());
            let words = [0x4000_0001, word(0), word(4), word(8)];
            is_qemu_tcg(move |leaf, _| match leaf {
                1 => [0, 0, bit << 31, 0],
                0x4000_0000 => words,
                _ => [0; 4],
            })
        };
        assert!(machine(1, b"TCGTCGTCGTCG"));
        assert!(!machine(0, b"TCGTCGTCGTCG"), "what a processor without the bit says there is nothing");
        assert!(!machine(1, b"KVMKVMKVM\0\0\0"));
        assert!(!machine(1, b"TCGTCGTCGTC\0"));
    }
}
