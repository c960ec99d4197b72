//! Applies the policy to the host's values.

use super::FeatureSet;
use super::mask::{self, ext1, ext8, leaf_d1_eax, leaf1_ecx, leaf1_edx, leaf7};
use super::xsave::XsaveSizes;
use super::{CpuLimits, CpuidTable, HV_BASE, KVM_BASE, KVM_SIGNATURE, LEAVES, ROWS, Regs, SIGNATURE, Slot};
use crate::arch::state::{cr4, efer};
use crate::virt::speculation::spec_ctrl;

/// What a VCPU's CPUID values depend on beside the host.
#[derive(Clone, Copy, Debug)]
pub struct CpuidPolicy {
    /// The VCPU's local APIC id.
    pub apic_id: u32,
    /// VCPUs of the VM, all in one package.
    pub vcpus: u32,
    /// Rate of the guest's TSC, which is also that of the local APIC timer, in kHz.
    pub tsc_khz: u32,
    /// The guest's TSC runs at one rate in all states of the processor.
    pub invariant_tsc: bool,
    /// XCR0 bits whose state is kept per guest; 0 hides XSAVE and all that depends on it.
    pub xcr0: u64,
    /// Offer the KVM-compatible clock.
    pub pv_clock: bool,
    /// What the guest reads from ARCH_CAPABILITIES, if it has that.
    pub arch_capabilities: u64,
    /// Features that the guest must not see, whether the host has them or the hypervisor.
    pub hidden: FeatureSet,
}

const XCR0_AVX: u64 = 0b111;
const XCR0_AVX512: u64 = 0b1110_0111;

/// The values of a leaf without the bits of these features.
fn without(hidden: FeatureSet, leaf: u32, sub: u32, mut regs: Regs) -> Regs {
    if !hidden.is_empty() {
        regs.iter_mut().zip(hidden.bits(leaf, sub)).for_each(|(value, bits)| *value &= !bits);
    }
    regs
}

/// Intermediate state while the rows are laid out.
struct Builder<'a, H> {
    table: CpuidTable,
    policy: &'a CpuidPolicy,
    host: H,
    xcr0: u64,
}

impl CpuidTable {
    /// Builds the table for one VCPU. `host(leaf, sub)` is the processor's own CPUID, called with any leaf.
    pub fn new(policy: &CpuidPolicy, host: impl Fn(u32, u32) -> Regs) -> CpuidTable {
        let (basic, extended) = (host(0, 0)[0], host(0x8000_0000, 0)[0]);
        // Intel processors answer leaves beyond the last with the last one's values.
        let host = |leaf: u32, sub| match leaf {
            0..0x4000_0000 if leaf > basic => [0; 4],
            0x8000_0000.. if extended < 0x8000_0000 || leaf > extended => [0; 4],
            _ => without(policy.hidden, leaf, sub, host(leaf, sub)),
        };
        let has_xsave = host(1, 0)[2] & leaf1_ecx::XSAVE != 0;
        let supported = host(0xd, 0);
        let supported = u64::from(supported[3]) << 32 | u64::from(supported[0]);
        let xcr0 = if has_xsave { supported & policy.xcr0 & (XCR0_AVX | XCR0_AVX512) } else { 0 };
        // State without an instruction that uses it would only make XSAVE areas larger.
        let lacks = |register: u32, bit: u32| register & bit == 0;
        let xcr0 = match (host(1, 0)[2], host(7, 0)[1]) {
            (ecx, _) if lacks(ecx, leaf1_ecx::AVX) => xcr0 & 3,
            (_, ebx) if lacks(ebx, leaf7::EBX_AVX512F) => xcr0 & XCR0_AVX,
            _ => xcr0,
        };
        let table = CpuidTable {
            slots: [Slot::default(); LEAVES],
            kvm: [Slot::default(); 2],
            rows: [[0; 4]; ROWS],
            used: 1,
            limits: CpuLimits::default(),
            xsave: XsaveSizes::new(host),
        };
        let mut b = Builder { table, policy, host, xcr0: if xcr0 & 3 == 3 { xcr0 } else { 0 } };
        b.basic();
        b.hypervisor();
        b.extended();
        b.finish()
    }
}

impl<H: Fn(u32, u32) -> Regs> Builder<'_, H> {
    fn host(&self, leaf: u32) -> Regs {
        (self.host)(leaf, 0)
    }

    /// Adds a leaf without sub-leaves.
    fn put(&mut self, leaf: u32, regs: Regs) {
        self.put_subs(leaf, &[regs]);
    }

    /// Adds a leaf with sub-leaves; those beyond the last given return its values.
    fn put_subs(&mut self, leaf: u32, subs: &[Regs]) {
        let t = &mut self.table;
        let (first, end) = (t.used, t.used + subs.len());
        if subs.is_empty() || end > ROWS {
            return;
        }
        for (sub, (row, regs)) in (0..).zip(t.rows[first..end].iter_mut().zip(subs)) {
            // Again, because some are offered whatever the host has.
            *row = without(self.policy.hidden, leaf, sub, *regs);
        }
        t.used = end;
        let slot = Slot { first: first as u16, last: (subs.len() - 1) as u16 };
        let slots = [leaf.rotate_left(2), leaf.wrapping_sub(KVM_BASE)];
        match (t.slots.get_mut(slots[0] as usize), t.kvm.get_mut(slots[1] as usize)) {
            (Some(to), _) | (None, Some(to)) => *to = slot,
            (None, None) => {}
        }
    }

    fn is_amd(&self) -> bool {
        let [_, ebx, ecx, edx] = self.host(0);
        let vendor = [ebx, edx, ecx].map(u32::to_le_bytes);
        matches!(vendor.as_flattened(), b"AuthenticAMD" | b"HygonGenuine")
    }

    /// `mask`, and `with_avx` and `with_avx512` if the guest has that state.
    fn by_state(&self, mask: u32, with_avx: u32, with_avx512: u32) -> u32 {
        let if_has = |state, bits| if self.xcr0 & state == state { bits } else { 0 };
        mask | if_has(XCR0_AVX, with_avx) | if_has(XCR0_AVX512, with_avx512)
    }

    /// log2 of the number of APIC ids that the package takes.
    fn apic_id_bits(&self) -> u32 {
        self.policy.vcpus.max(1).next_power_of_two().trailing_zeros()
    }

    fn basic(&mut self) {
        let (amd, vcpus) = (self.is_amd(), self.policy.vcpus.max(1));
        let [_, ebx, ecx, edx] = self.host(0);
        self.put(0, [if amd { 0xd } else { 0x16 }, ebx, ecx, edx]);
        self.features();
        if !amd {
            self.put(2, self.host(2));
            self.intel_caches();
        }
        self.put(6, [mask::LEAF6_EAX_ARAT, 0, 0, 0]);
        self.structured_features();

        let id = self.policy.apic_id;
        let threads = [0, 1, 1 << 8, id];
        let cores = [self.apic_id_bits(), vcpus, 2 << 8 | 1, id];
        self.put_subs(0xb, &[threads, cores, [0, 0, 2, id]]);
        self.xsave();
        if let (false, Some(tsc_hz)) = (amd, self.policy.tsc_khz.checked_mul(1000)) {
            // TSC = crystal, because guests take the crystal's rate for the APIC timer's (SDM 3A 10.5.4).
            self.put(0x15, [1, 1, tsc_hz, 0]);
            self.put(0x16, [self.policy.tsc_khz / 1000, self.policy.tsc_khz / 1000, 100, 0]);
        }
    }

    fn features(&mut self) {
        let [eax, ebx, ecx, edx] = self.host(1);
        let vcpus = self.policy.vcpus.max(1);
        let ids = 1u32 << self.apic_id_bits();
        let ebx = ebx & 0xff00 | ids.min(255) << 16 | self.policy.apic_id << 24;
        let mut allowed = self.by_state(leaf1_ecx::ALLOWED, leaf1_ecx::NEED_AVX, 0);
        if self.xcr0 == 0 {
            allowed &= !leaf1_ecx::XSAVE;
        }
        // The local APIC is the hypervisor's own: it has both whatever the processor has.
        let always = leaf1_ecx::X2APIC | leaf1_ecx::TSC_DEADLINE | leaf1_ecx::HYPERVISOR;
        let htt = if vcpus > 1 { leaf1_edx::HTT } else { 0 };
        let edx = edx & leaf1_edx::ALLOWED | leaf1_edx::ALWAYS | htt;
        self.put(1, [eax, ebx, ecx & allowed | always, edx]);
    }

    /// Deterministic cache parameters, with sharing in our topology: all VCPUs share the last level.
    fn intel_caches(&mut self) {
        let mut subs = [[0; 4]; 8];
        let mut count = 0;
        for sub in 0..subs.len() as u32 - 1 {
            let [eax, ebx, ecx, edx] = (self.host)(4, sub);
            if eax & 0x1f == 0 {
                break;
            }
            let (level, ids) = (eax >> 5 & 7, 1 << self.apic_id_bits());
            let sharing: u32 = if level >= 3 { ids } else { 1 };
            let eax = eax & 0x3fff | (sharing - 1).min(0xfff) << 14 | (ids - 1).min(0x3f) << 26;
            subs[count] = [eax, ebx, ecx, edx];
            count += 1;
        }
        self.put_subs(4, &subs[..count + 1]);
    }

    fn structured_features(&mut self) {
        let [max, ebx, ecx, edx] = self.host(7);
        let ebx = ebx & self.by_state(leaf7::EBX, leaf7::EBX_NEED_AVX, leaf7::EBX_NEED_AVX512);
        let ecx = ecx & self.by_state(leaf7::ECX, leaf7::ECX_NEED_AVX, leaf7::ECX_NEED_AVX512);
        let sub1 = if max >= 1 { (self.host)(7, 1)[0] } else { 0 };
        let sub1 = sub1 & self.by_state(leaf7::SUB1_EAX, leaf7::SUB1_EAX_NEED_AVX, 0);
        self.put_subs(7, &[[max.min(1), ebx, ecx, edx & leaf7::EDX], [sub1, 0, 0, 0], [0; 4]]);
    }

    fn xsave(&mut self) {
        let xcr0 = self.xcr0;
        if xcr0 == 0 {
            return;
        }
        let sizes = self.table.xsave;
        let mut subs = [[0; 4]; 11];
        subs[0] = [xcr0 as u32, sizes.standard(3), sizes.standard(xcr0), (xcr0 >> 32) as u32];
        subs[1][0] = (self.host)(0xd, 1)[0] & leaf_d1_eax::ALLOWED;
        for (n, sub) in subs.iter_mut().enumerate().skip(2).filter(|(n, _)| xcr0 >> n & 1 != 0) {
            let [size, offset, flags, _] = (self.host)(0xd, n as u32);
            *sub = [size, offset, flags & 2, 0];
        }
        self.put_subs(0xd, &subs);
    }

    fn hypervisor(&mut self) {
        let signature = |max, text: &[u8; 12]| {
            let word = |i: usize| u32::from_le_bytes([text[i], text[i + 1], text[i + 2], text[i + 3]]);
            [max, word(0), word(4), word(8)]
        };
        self.put(HV_BASE, signature(HV_BASE + 0x10, SIGNATURE));
        self.put(HV_BASE + 0x10, [self.policy.tsc_khz, self.policy.tsc_khz, 0, 0]);
        if self.policy.pv_clock {
            self.put(KVM_BASE, signature(KVM_BASE + 1, KVM_SIGNATURE));
            self.put(KVM_BASE + 1, [mask::KVM_FEATURES, 0, 0, 0]);
        }
    }

    fn extended(&mut self) {
        let (amd, vcpus) = (self.is_amd(), self.policy.vcpus.max(1));
        let [max, ebx, ecx, edx] = self.host(0x8000_0000);
        if max < 0x8000_0001 {
            return;
        }
        let max = max.min(if amd { 0x8000_0021 } else { 0x8000_0008 });
        self.put(0x8000_0000, [max, ebx, ecx, edx]);
        let [eax, ebx, ecx, edx] = self.host(0x8000_0001);
        let cmp_legacy = if amd && vcpus > 1 { ext1::ECX_CMP_LEGACY } else { 0 };
        let ecx = ecx & self.by_state(ext1::ECX, ext1::ECX_NEED_AVX, 0) | cmp_legacy;
        let (edx_allowed, repeated) = match amd {
            true => (ext1::EDX | ext1::EDX_AMD, leaf1_edx::ALWAYS & ext1::EDX_AMD_REPEATED),
            false => (ext1::EDX, 0),
        };
        self.put(0x8000_0001, [eax, ebx, ecx, edx & edx_allowed | repeated]);
        // The brand string, cache and TLB sizes.
        for leaf in [2, 3, 4, 5, 6, 0x19, 0x1a] {
            self.put(0x8000_0000 + leaf, self.host(0x8000_0000 + leaf));
        }
        let invariant = if self.policy.invariant_tsc { mask::EXT7_EDX_INVARIANT_TSC } else { 0 };
        self.put(0x8000_0007, [0, 0, 0, invariant]);
        let [widths, ebx, ..] = self.host(0x8000_0008);
        // Linear addresses of 48 bits; the guest-physical width is the host's.
        let widths = 48 << 8 | self.phys_bits(widths);
        let cores = if amd { self.apic_id_bits() << 12 | (vcpus - 1).min(255) } else { 0 };
        let virt_ssbd = if ebx & ext8::SSBD != 0 { ext8::VIRT_SSBD } else { 0 };
        self.put(0x8000_0008, [widths, ebx & ext8::EBX | virt_ssbd, cores, 0]);
        self.put(0x8000_0021, [self.host(0x8000_0021)[0] & mask::EXT21_EAX, 0, 0, 0]);
    }

    fn phys_bits(&self, widths: u32) -> u32 {
        match widths & 0xff {
            0 => 36,
            bits => bits.min(52),
        }
    }

    fn finish(self) -> CpuidTable {
        let amd = self.is_amd();
        let mut table = self.table;
        let [_, _, ecx1, edx1] = *table.get(1, 0);
        let [_, ebx7, ecx7, edx7] = *table.get(7, 0);
        let ebx8 = table.get(0x8000_0008, 0)[1];
        let [_, _, _, ext_edx] = *table.get(0x8000_0001, 0);
        let set = |pairs: &[(u32, u32, u64)]| {
            pairs.iter().filter(|(value, bit, _)| value & bit != 0).fold(0, |mask, (.., bits)| mask | bits)
        };
        table.limits = CpuLimits {
            cr4: cr4::PCE
                | set(&[
                    (edx1, leaf1_edx::VME, cr4::VME | cr4::PVI),
                    (edx1, leaf1_edx::TSC, cr4::TSD),
                    (edx1, leaf1_edx::DE, cr4::DE),
                    (edx1, leaf1_edx::PSE, cr4::PSE),
                    (edx1, leaf1_edx::PAE, cr4::PAE),
                    (edx1, leaf1_edx::MCE, cr4::MCE),
                    (edx1, leaf1_edx::PGE, cr4::PGE),
                    (edx1, leaf1_edx::FXSR, cr4::OSFXSR),
                    (edx1, leaf1_edx::SSE, cr4::OSXMMEXCPT),
                    (ecx1, leaf1_ecx::PCID, cr4::PCIDE),
                    (ecx1, leaf1_ecx::XSAVE, cr4::OSXSAVE),
                    (ebx7, leaf7::EBX_FSGSBASE, cr4::FSGSBASE),
                    (ebx7, leaf7::EBX_SMEP, cr4::SMEP),
                    (ebx7, leaf7::EBX_SMAP, cr4::SMAP),
                    (ecx7, leaf7::ECX_UMIP, cr4::UMIP),
                ]),
            efer: set(&[
                (ext_edx, ext1::EDX_SYSCALL, efer::SCE),
                (ext_edx, ext1::EDX_LM, efer::LME | efer::LMA),
                (ext_edx, ext1::EDX_NX, efer::NXE),
                (ext_edx, ext1::EDX_FFXSR, efer::FFXSR),
            ]),
            xcr0: self.xcr0,
            phys_bits: match table.get(0x8000_0008, 0)[0] as u8 {
                0 => 36,
                bits => bits,
            },
            sysenter: edx1 & leaf1_edx::SEP != 0,
            tsc_aux: ext_edx & ext1::EDX_RDTSCP != 0 || ecx7 & leaf7::ECX_RDPID != 0,
            amd,
            apic: edx1 & leaf1_edx::APIC != 0,
            x2apic: ecx1 & leaf1_ecx::X2APIC != 0,
            tsc_deadline: ecx1 & leaf1_ecx::TSC_DEADLINE != 0,
            mtrr: edx1 & leaf1_edx::MTRR != 0,
            pat: edx1 & leaf1_edx::PAT != 0,
            mca: edx1 & leaf1_edx::MCA != 0,
            spec_ctrl: set(&[
                (edx7, leaf7::EDX_IBRS_IBPB, spec_ctrl::IBRS),
                (edx7, leaf7::EDX_STIBP, spec_ctrl::STIBP),
                (edx7, leaf7::EDX_SSBD, spec_ctrl::SSBD),
                (ebx8, ext8::IBRS, spec_ctrl::IBRS),
                (ebx8, ext8::STIBP, spec_ctrl::STIBP),
                (ebx8, ext8::SSBD, spec_ctrl::SSBD),
                (ebx8, ext8::PSFD, spec_ctrl::PSFD),
            ]),
            barrier: edx7 & leaf7::EDX_IBRS_IBPB != 0 || ebx8 & ext8::IBPB != 0,
            flush_l1d: edx7 & leaf7::EDX_FLUSH_L1D != 0,
            virt_ssbd: ebx8 & ext8::VIRT_SSBD != 0,
            arch_capabilities: (edx7 & leaf7::EDX_ARCH_CAPABILITIES != 0)
                .then_some(self.policy.arch_capabilities),
        };
        // The values that mirror CR4 and XCR0 are those after RESET.
        table.refresh(0, 1);
        table
    }
}
