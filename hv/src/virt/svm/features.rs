//! What this processor's SVM offers, and why it may not be usable (AMD APM 2, 15.4; CPUID Fn8000_000A).

use core::fmt;

use crate::arch::emulator::is_qemu_tcg;
use crate::virt::feature::{Feature, Listed};

/// The SVM features that the backend uses where present.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Number of address space identifiers, the host's included.
    pub asids: u32,
    /// Nested paging.
    pub nested_paging: bool,
    /// #VMEXIT stores the next RIP.
    pub next_rip: bool,
    /// Operands of register moves and fetched bytes at nested faults.
    pub decode_assists: bool,
    /// TLB flushes of one ASID.
    pub flush_by_asid: bool,
    /// VMCB clean bits.
    pub clean_bits: bool,
    /// PAUSE filter.
    pub pause_filter: bool,
    /// Virtual NMIs, whose blocking the processor tracks.
    pub virtual_nmi: bool,
    /// VMRUN switches SPEC_CTRL (APM 2, 15.37): the guest has it for itself.
    pub spec_ctrl: bool,
    /// The processor ignores the interrupt shadow in the VMCB at VMRUN (QEMU's emulation does), so that it must be
    /// honoured in software.
    pub ignores_interrupt_shadow: bool,
    /// The processor lets virtual interrupts of the class in CR8 pass, and fails when a guest writes CR8 while one is
    /// offered (QEMU's emulation does both), so that CR8 must be compared in software.
    pub misjudges_task_priority: bool,
    /// The processor may intercept every MOV from a control register by CR0's bit alone, and report CR0 (QEMU's
    /// emulation does from version 9.1 on), so that reads of CR0 must be intercepted wherever those of another one are. Writes
    /// are told apart.
    pub takes_reads_for_cr0: bool,
    /// The processor executes task switches although they are intercepted, and loads CR3 from the TSS (QEMU's emulation does),
    /// which replaces the root of shadow tables.
    pub misses_task_switches: bool,
    /// The processor may go on executing code that has been overwritten, until it is written again (QEMU's emulation before version
    /// 8.1 does, whose version nothing tells).
    pub keeps_old_code: bool,
}

/// Why SVM cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsuitable {
    /// CPUID does not report SVM.
    NoSvm,
    /// Firmware disabled SVM.
    DisabledByFirmware,
}

impl fmt::Display for Unsuitable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Unsuitable::NoSvm => {
                "this processor has no AMD-V (CPUID 8000_0001h ECX bit 2 is clear); run on an AMD-V machine, or in QEMU \
                 with -cpu EPYC,+svm,+npt"
            }
            Unsuitable::DisabledByFirmware => {
                "AMD-V is disabled by firmware (VM_CR.SVMDIS is set); enable SVM in the firmware setup and power-cycle"
            }
        })
    }
}

const VM_CR_SVMDIS: u64 = 1 << 4;

impl Features {
    /// Reads the features through `cpuid(leaf, subleaf) -> [eax, ebx, ecx, edx]`; `vm_cr` reads MSR C001_0114h.
    pub fn detect(
        cpuid: impl Fn(u32, u32) -> [u32; 4],
        vm_cr: impl FnOnce() -> u64,
    ) -> Result<Features, Unsuitable> {
        if cpuid(0x8000_0000, 0)[0] < 0x8000_000a || cpuid(0x8000_0001, 0)[2] & 1 << 2 == 0 {
            return Err(Unsuitable::NoSvm);
        }
        // Whether it is locked as well (APM 2, 15.30.1) makes no difference: only firmware can tell why it is off.
        if vm_cr() & VM_CR_SVMDIS != 0 {
            return Err(Unsuitable::DisabledByFirmware);
        }
        let [_, asids, _, edx] = cpuid(0x8000_000a, 0);
        let is_tcg = is_qemu_tcg(cpuid);
        Ok(Features {
            asids,
            nested_paging: edx & 1 << 0 != 0,
            next_rip: edx & 1 << 3 != 0,
            clean_bits: edx & 1 << 5 != 0,
            flush_by_asid: edx & 1 << 6 != 0,
            decode_assists: edx & 1 << 7 != 0,
            pause_filter: edx & 1 << 10 != 0,
            virtual_nmi: edx & 1 << 25 != 0,
            spec_ctrl: edx & 1 << 20 != 0,
            // No CPUID bit says these: they are mistakes of the emulation (docs/design/0006-emulated-svm.md), and its
            // signature stands for them.
            ignores_interrupt_shadow: is_tcg,
            misjudges_task_priority: is_tcg,
            takes_reads_for_cr0: is_tcg,
            misses_task_switches: is_tcg,
            keeps_old_code: is_tcg,
        })
    }
}

impl Features {
    /// Each feature for the log, telemetry and the hardware report.
    pub fn list(&self) -> [Feature; 7] {
        let feature = |name, id, present, without| Feature { name, id, present, without };
        [
            feature("nested paging", "npt", self.nested_paging, "required"),
            feature("next RIP", "nrip", self.next_rip, "lengths of instructions are decoded and remembered"),
            feature("decode assists", "decode-assists", self.decode_assists, "operands are decoded"),
            feature("flush by ASID", "flush-by-asid", self.flush_by_asid, "a flush takes a new ASID"),
            feature("VMCB clean bits", "vmcb-clean", self.clean_bits, "every entry loads the whole VMCB"),
            feature("PAUSE filter", "pause-filter", self.pause_filter, "each PAUSE exits while others wait"),
            feature(
                "virtual NMI",
                "vnmi",
                self.virtual_nmi,
                "the IRET of an NMI handler exits, and is stepped over",
            ),
        ]
    }
}

impl fmt::Display for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ASIDs, {}", self.asids, Listed(&self.list()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpu(svm: bool, edx: u32) -> impl Fn(u32, u32) -> [u32; 4] {
        move |leaf, _| match leaf {
            0x8000_0000 => [0x8000_001f, 0, 0, 0],
            0x8000_0001 => [0, 0, u32::from(svm) << 2, 0],
            0x8000_000a => [1, 16, 0, edx],
            _ => [0; 4],
        }
    }

    #[test]
    fn says_which_obstacle_there_is() {
        assert_eq!(
            Features::detect(cpu(false, 0), || panic!("VM_CR does not exist")),
            Err(Unsuitable::NoSvm)
        );
        assert_eq!(Features::detect(cpu(true, 4), || 0x18), Err(Unsuitable::DisabledByFirmware));
    }

    #[test]
    fn reads_the_feature_bits() {
        let f = Features::detect(cpu(true, 1 | 1 << 3 | 1 << 7), || 8).unwrap();
        assert!(f.nested_paging && f.next_rip && f.decode_assists);
        assert!(!f.clean_bits && !f.flush_by_asid && !f.ignores_interrupt_shadow);
        assert_eq!(
            alloc::format!("{f}"),
            "16 ASIDs, nested paging, next RIP, decode assists; missing: flush by ASID, VMCB clean bits, PAUSE filter, \
             virtual NMI"
        );
    }
}
