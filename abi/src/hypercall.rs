//! Hypercalls: VMMCALL on AMD, VMCALL on Intel, in KVM's convention: the number in RAX, arguments in RBX, RCX, RDX and RSI, the
//! answer in RAX, a negative one for an error (Linux, `Documentation/virt/kvm/x86/hypercalls.rst`). Outside of 64-bit mode only
//! the low half of each register counts.
//!
//! A guest looks for the signature [`SIGNATURE`] in CPUID leaf [`CPUID_BASE`] first; a hypercall that this version does not
//! have answers [`NOT_IMPLEMENTED`]. CPUID tells guests of KVM's interface too, so numbers that KVM uses keep its meaning; those
//! of Palimpsest's own begin at [`FIRST`].

/// What CPUID leaf [`CPUID_BASE`] has in EBX, ECX and EDX.
pub const SIGNATURE: &[u8; 12] = b"PalimpsestHV";

constants! {
    /// The CPUID leaf with the hypervisor's signature, "PalimpsestHV" in EBX, ECX and EDX.
    CPUID_BASE: u32 = 0x4000_0000;
    /// The first number of Palimpsest's own, "PAL" and a zero byte; KVM counts from 1.
    FIRST: u64 = 0x5041_4c00;
    /// Registers the counter page of this VCPU. RBX: its guest-physical address, aligned to 4096, with bit 0 set; 0 takes the
    /// registration back. RCX: the version of the page's layout. A later call replaces the page of an earlier one. A reset takes
    /// it back, INIT does not, as with MSR_KVM_STEAL_TIME. The hypervisor only reads the page, and only for samples.
    COUNTER_PAGE: u64 = FIRST + 1;
    /// Bit 0 of RBX: the page is registered.
    COUNTER_PAGE_ENABLED: u64 = 1;
    /// Version of the layout of `struct palimpsest_counter_page`. Fields are added in its reserved part without a new one.
    COUNTER_PAGE_VERSION: u64 = 1;
    /// Bytes of a counter page.
    COUNTER_PAGE_BYTES: usize = 4096;
    /// A new region without frames (docs/guest-kit.md); its number, from 1 on, is the answer. A reset of the guest ends all of
    /// its regions.
    ADD_GUEST_REGION: u64 = FIRST + 2;
    /// Ends a region. RBX: its number. Its frames are in none of the guest's then. REGION_EBUSY: some of them are left,
    /// because one call takes out 2^REGION_MAX_ORDER at most; call again.
    DEL_GUEST_REGION: u64 = FIRST + 3;
    /// Puts frames into a region. RBX: the number of the first (its guest-physical address divided by 4096), a multiple of how
    /// many there are; RCX: how many, as an order (2^RCX), up to REGION_MAX_ORDER; RDX: the region. All or none.
    ADD_PAGE: u64 = FIRST + 4;
    /// Takes frames out of a region; arguments as for ADD_PAGE. All or none.
    DEL_PAGE: u64 = FIRST + 5;
    /// Says what part of its hot pages the guest wants in fast memory. RBX: per mille of them, up to TIER_TARGET_MAX; 0: it wants
    /// none in particular. A later call replaces it, whichever VCPU makes it; a reset takes it back. The machine goes by it as far
    /// as no other VM gets less.
    TIER_TARGET: u64 = FIRST + 6;
    /// The largest target: all of its hot pages.
    TIER_TARGET_MAX: u64 = 1000;
    /// The largest order of ADD_PAGE and DEL_PAGE: the largest block of Linux' page allocator, 4 MiB.
    REGION_MAX_ORDER: u64 = 10;
    /// Regions that a guest may have at a time.
    REGIONS_MAX: u64 = 256;
    /// The error for a caller that is not the kernel (CPL is not 0), negated in RAX.
    KVM_EPERM: u64 = 1;
    /// The error for a region that does not exist, or that does not hold all of the frames, negated in RAX.
    REGION_ENOENT: u64 = 2;
    /// The error for a hypervisor without memory for the records of regions, negated in RAX.
    REGION_ENOMEM: u64 = 12;
    /// The error for an address that is not RAM of the guest, negated in RAX.
    KVM_EFAULT: u64 = 14;
    /// The error for a region that has more frames than one call takes out, negated in RAX.
    REGION_EBUSY: u64 = 16;
    /// The error for a frame that is in a region of the guest's already, negated in RAX.
    REGION_EEXIST: u64 = 17;
    /// The error for a VM that uses no fast memory: the machine has none, or the VM is to have none. Negated in RAX.
    TIER_ENODEV: u64 = 19;
    /// The error for an address that is not aligned or has reserved bits set, an order that is out of range, or a target above
    /// TIER_TARGET_MAX, negated in RAX.
    KVM_EINVAL: u64 = 22;
    /// The error for a guest that has as many regions as it may have, negated in RAX.
    REGION_ENOSPC: u64 = 28;
    /// The error for a version of the layout that this hypervisor does not know, and for a target on a machine that divides its
    /// fast memory by another policy than estate-qos, negated in RAX.
    KVM_EOPNOTSUPP: u64 = 95;
    /// The error for a hypercall that does not exist, negated in RAX: KVM's own number (Linux, `kvm_para.h`), not the ENOSYS of
    /// system calls.
    KVM_ENOSYS: u64 = 1000;
}

/// What RAX holds after a hypercall that does not exist.
pub const NOT_IMPLEMENTED: u64 = KVM_ENOSYS.wrapping_neg();

/// The page on which a VCPU's kernel counts, for the hypervisor to read: little-endian 64-bit numbers that only grow. The kernel
/// alone writes it, and it may begin with any values: what is counted is their growth.
#[repr(C, align(4096))]
#[derive(Clone, Copy, Debug)]
pub struct CounterPage {
    /// Page faults of programs, whether the kernel then finds a page or not.
    pub page_faults_user: u64,
    /// Page faults of the kernel itself.
    pub page_faults_kernel: u64,
    /// Zero; counters to come.
    pub reserved: [u64; 510],
}

impl CounterPage {
    /// The counters in their order, as the C header names them.
    pub const NAMES: &'static [&'static str] = &["page_faults_user", "page_faults_kernel"];
}

const _: () = assert!(size_of::<CounterPage>() == COUNTER_PAGE_BYTES);
const _: () = assert!(core::mem::offset_of!(CounterPage, page_faults_kernel) == 8);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_those_of_kvm() {
        assert_eq!(NOT_IMPLEMENTED as i64, -1000);
        assert_eq!([KVM_EPERM, KVM_EFAULT, KVM_EINVAL, KVM_EOPNOTSUPP], [1, 14, 22, 95]);
    }

    #[test]
    fn errors_of_regions_are_those_of_linux() {
        let numbers = [REGION_ENOENT, REGION_ENOMEM, REGION_EBUSY, REGION_EEXIST, REGION_ENOSPC, TIER_ENODEV];
        assert_eq!(numbers, [2, 12, 16, 17, 28, 19]);
    }

    #[test]
    fn numbers_fit_kernels_of_32_bits() {
        assert!(u32::try_from(COUNTER_PAGE).is_ok());
        assert_eq!(FIRST.to_be_bytes()[4..], *b"PAL\0");
    }
}
