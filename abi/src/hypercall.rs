//! Hypercalls: VMMCALL on AMD, VMCALL on Intel, in KVM's convention: the number in RAX, arguments in RBX, RCX, RDX and RSI, the
//! answer in RAX, a negative one for an error (Linux, `Documentation/virt/kvm/x86/hypercalls.rst`).
//!
//! There are none yet. Their numbers are to be declared here; CPUID tells guests of KVM's interface, so numbers that KVM uses keep
//! its meaning.

constants! {
    /// The error for a hypercall that does not exist, negated in RAX: KVM's own number (Linux, `kvm_para.h`), not the ENOSYS of
    /// system calls.
    KVM_ENOSYS: u64 = 1000;
}

/// What RAX holds after a hypercall that does not exist.
pub const NOT_IMPLEMENTED: u64 = KVM_ENOSYS.wrapping_neg();

#[cfg(test)]
mod tests {
    #[test]
    fn a_missing_hypercall_answers_as_kvm_does() {
        assert_eq!(super::NOT_IMPLEMENTED as i64, -1000);
    }
}
