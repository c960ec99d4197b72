//! What this processor's VT-x offers, and why it may not be usable (Intel SDM 3, 23.6, 23.7 and appendix A).

use core::fmt;

use super::controls::{Missing, Word, adjust, entry, exit, pin, processor, secondary};
use crate::hw::msr;
use crate::virt::feature::{Feature, Listed};

/// MSRs that describe VMX.
#[allow(missing_docs)]
pub mod index {
    pub const BASIC: u32 = 0x480;
    pub const MISC: u32 = 0x485;
    pub const CR0_FIXED0: u32 = 0x486;
    pub const CR4_FIXED0: u32 = 0x488;
    pub const CR4_FIXED1: u32 = 0x489;
    pub const SECONDARY: u32 = 0x48b;
    pub const EPT_VPID: u32 = 0x48c;
    /// Pin-based, processor-based, exit, entry; those that tell the truth about the bits that once had to be 1 are 12 on.
    pub const WORDS: [u32; 4] = [0x481, 0x482, 0x483, 0x484];
}

/// Feature control: locked until the next power cycle.
const LOCK: u64 = 1 << 0;
/// Feature control: VMX in SMX operation (TXT).
const VMX_IN_SMX: u64 = 1 << 1;
/// Feature control: VMX outside of SMX operation.
const VMX: u64 = 1 << 2;

/// The VT-x features that the backend uses where present, and the controls that the processor accepts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// What a VMCS and the VMXON region begin with.
    pub revision: u32,
    /// Extended page tables.
    pub ept: bool,
    /// Their leaves of 2 MiB.
    pub ept_2m: bool,
    /// Their leaves of 1 GiB.
    pub ept_1g: bool,
    /// Their accessed and dirty bits.
    pub ept_accessed_dirty: bool,
    /// INVEPT of one set of tables.
    pub invept_context: bool,
    /// Guests without paging or protection.
    pub unrestricted: bool,
    /// Tags in the TLB.
    pub vpid: bool,
    /// INVVPID of one address.
    pub invvpid_address: bool,
    /// INVVPID of one tag.
    pub invvpid_context: bool,
    /// The same, but for global translations.
    pub invvpid_non_global: bool,
    /// The timer that ends the guest counts every 2^n ticks of the TSC.
    pub preemption_timer: Option<u8>,
    /// Entries and exits switch EFER.
    pub switches_efer: bool,
    /// Entries and exits switch the PAT.
    pub switches_pat: bool,
    /// Entries and exits can switch performance counters.
    pub switches_counters: bool,
    /// Bits of physical addresses.
    pub physical_bits: u8,
    /// Accepted secondary controls.
    pub secondary: u32,
    /// Accepted pin-based controls.
    pub pin: u32,
    /// Accepted processor-based controls.
    pub processor: u32,
    /// Accepted exit controls.
    pub exit: u32,
    /// Accepted entry controls.
    pub entry: u32,
    /// CR0 bits that must be 1 in VMX operation.
    pub cr0_ones: u64,
    /// CR4 bits that must be 1 in VMX operation.
    pub cr4_ones: u64,
    /// CR4 bits that may be 1 in VMX operation.
    pub cr4_allowed: u64,
}

/// Why VT-x cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsuitable {
    /// CPUID does not report VMX.
    NoVmx,
    /// Firmware locked VMX off.
    LockedOff,
    /// Firmware locked VMX to SMX operation.
    SmxOnly,
    /// The processor lacks what the backend cannot do without.
    Lacks(Missing),
    /// VMXON failed for no reason that can be predicted.
    VmxonFailed,
}

impl fmt::Display for Unsuitable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Unsuitable::NoVmx => {
                "this processor has no VT-x (CPUID 1 ECX bit 5 is clear); run on a machine with VT-x, and if this is a \
                 virtual machine, allow it nested virtualization"
            }
            Unsuitable::LockedOff => {
                "VT-x is disabled and locked by firmware (IA32_FEATURE_CONTROL bit 2 is clear); enable it in the firmware \
                 setup (VT-x, Intel Virtualization Technology) and power-cycle"
            }
            Unsuitable::SmxOnly => {
                "firmware allows VT-x in trusted execution only (IA32_FEATURE_CONTROL bit 1 is set, bit 2 clear); disable \
                 TXT or enable VT-x outside of SMX in the firmware setup, and power-cycle"
            }
            Unsuitable::VmxonFailed => {
                "VMXON failed although VT-x is enabled; the firmware's settings of CR0, CR4 or A20 do not allow it"
            }
            Unsuitable::Lacks(missing) => {
                return write!(f, "this processor's VT-x is too old: it lacks {missing}");
            }
        })
    }
}

/// What to do with the feature control, if VT-x may be used.
fn feature_control(value: u64) -> Result<Option<u64>, Unsuitable> {
    match (value & LOCK != 0, value & VMX != 0) {
        (true, true) => Ok(None),
        (false, _) => Ok(Some(value | LOCK | VMX)),
        _ if value & VMX_IN_SMX != 0 => Err(Unsuitable::SmxOnly),
        _ => Err(Unsuitable::LockedOff),
    }
}

/// What the processor says of the pin-based, primary processor-based, exit and entry controls: the lower half must be 1, the upper
/// half may be.
pub fn control_words(rdmsr: impl Fn(u32) -> u64) -> [u64; 4] {
    let truth = if rdmsr(index::BASIC) & 1 << 55 != 0 { 12 } else { 0 };
    index::WORDS.map(|index| rdmsr(index + truth))
}

impl Features {
    /// Reads the features through `cpuid(leaf, subleaf) -> [eax, ebx, ecx, edx]`; `rdmsr` reads MSRs that the processor
    /// has. The value that must be written to the feature control (which firmware left open) comes with them.
    pub fn detect(
        cpuid: impl Fn(u32, u32) -> [u32; 4],
        rdmsr: impl Fn(u32) -> u64,
    ) -> Result<(Features, Option<u64>), Unsuitable> {
        if cpuid(1, 0)[2] & 1 << 5 == 0 {
            return Err(Unsuitable::NoVmx);
        }
        let unlock = feature_control(rdmsr(msr::IA32_FEATURE_CONTROL))?;
        let features = Features::read(rdmsr).map_err(Unsuitable::Lacks)?;
        let physical_bits = cpuid(0x8000_0008, 0)[0] as u8;
        Ok((Features { physical_bits, ..features }, unlock))
    }

    fn read(rdmsr: impl Fn(u32) -> u64) -> Result<Features, Missing> {
        let basic = rdmsr(index::BASIC);
        let [pin, processor, exit, entry] = control_words(&rdmsr);
        // A register is switched whole, or not at all: exits save the guest's and load the host's, entries load the guest's.
        let may = |capability: u64, bits: u32| (capability >> 32) as u32 & bits == bits;
        let switch = |at_exit: u32, at_entry: u32| match may(exit, at_exit) && may(entry, at_entry) {
            true => (at_exit, at_entry),
            false => (0, 0),
        };
        let efer = switch(exit::SAVE_EFER | exit::LOAD_EFER, entry::LOAD_EFER);
        let pat = switch(exit::SAVE_PAT | exit::LOAD_PAT, entry::LOAD_PAT);
        let counters = switch(exit::LOAD_PERF_GLOBAL_CTRL, entry::LOAD_PERF_GLOBAL_CTRL);
        let needed = pin::EXTERNAL_INTERRUPTS | pin::NMI | pin::VIRTUAL_NMI;
        let pin = adjust(Word::Pin, needed, pin::PREEMPTION_TIMER, pin)?;
        let needed = processor::TSC_OFFSET
            | processor::HLT
            | processor::MWAIT
            | processor::RDPMC
            | processor::TPR_SHADOW
            | processor::MOV_DR
            | processor::IO_BITMAPS
            | processor::MSR_BITMAPS
            | processor::MONITOR;
        let processor = adjust(Word::Processor, needed, processor::SECONDARY, processor)?;
        let mut optional = efer.0 | pat.0;
        if pin & pin::PREEMPTION_TIMER != 0 {
            optional |= exit::SAVE_TIMER;
        }
        let exit = adjust(Word::Exit, exit::SAVE_DEBUG | exit::HOST_64BIT, optional, exit)?;
        // IA-32e mode is the guest's choice, entry by entry.
        let entry = adjust(Word::Entry, entry::LOAD_DEBUG, efer.1 | pat.1, entry)? & !entry::IA32E_GUEST;
        let mut features = Features {
            revision: basic as u32 & 0x7fff_ffff,
            preemption_timer: (pin & pin::PREEMPTION_TIMER != 0).then(|| rdmsr(index::MISC) as u8 & 0x1f),
            switches_efer: efer != (0, 0),
            switches_pat: pat != (0, 0),
            switches_counters: counters != (0, 0),
            pin,
            processor,
            exit,
            entry,
            cr0_ones: rdmsr(index::CR0_FIXED0),
            cr4_ones: rdmsr(index::CR4_FIXED0),
            cr4_allowed: rdmsr(index::CR4_FIXED1),
            ..Features::default()
        };
        if processor & processor::SECONDARY != 0 {
            features.read_secondary(rdmsr)?;
        }
        Ok(features)
    }

    fn read_secondary(&mut self, rdmsr: impl Fn(u32) -> u64) -> Result<(), Missing> {
        let paging = secondary::EPT | secondary::VPID | secondary::UNRESTRICTED;
        let optional =
            paging | secondary::RDTSCP | secondary::INVPCID | secondary::PAUSE_LOOP | secondary::WBINVD;
        let word = adjust(Word::Processor, 0, optional, rdmsr(index::SECONDARY))?;
        let capability =
            if word & (secondary::EPT | secondary::VPID) != 0 { rdmsr(index::EPT_VPID) } else { 0 };
        let has = |bit: u32| capability >> bit & 1 != 0;
        // Walks of four levels, write-back tables, INVEPT of either kind; and a guest's own EFER.
        self.ept = self.switches_efer
            && word & secondary::EPT != 0
            && has(6)
            && has(14)
            && has(20)
            && (has(25) || has(26));
        self.ept_2m = self.ept && has(16);
        self.ept_1g = self.ept && has(17);
        self.ept_accessed_dirty = self.ept && has(21);
        self.invept_context = has(25);
        self.unrestricted = self.ept && word & secondary::UNRESTRICTED != 0;
        // All tags at once, if not one.
        self.vpid = word & secondary::VPID != 0 && has(32) && (has(41) || has(42));
        self.invvpid_address = self.vpid && has(40);
        self.invvpid_context = self.vpid && has(41);
        self.invvpid_non_global = self.vpid && has(43);
        self.secondary = word & !paging;
        if self.vpid {
            self.secondary |= secondary::VPID;
        }
        Ok(())
    }

    /// CPUID's answer without the instructions that guests cannot execute here: they raise #UD where their control is missing.
    pub fn executable(
        &self,
        leaf: u32,
        subleaf: u32,
        [eax, mut ebx, mut ecx, mut edx]: [u32; 4],
    ) -> [u32; 4] {
        const INVPCID: u32 = 1 << 10;
        const RDPID: u32 = 1 << 22;
        const RDTSCP: u32 = 1 << 27;
        match (leaf, subleaf) {
            (7, 0) if self.secondary & secondary::INVPCID == 0 => ebx &= !INVPCID,
            _ => {}
        }
        if self.secondary & secondary::RDTSCP == 0 {
            match (leaf, subleaf) {
                (7, 0) => ecx &= !RDPID,
                (0x8000_0001, _) => edx &= !RDTSCP,
                _ => {}
            }
        }
        [eax, ebx, ecx, edx]
    }

    /// Whether loops of PAUSE exit.
    pub fn notices_loops(&self) -> bool {
        self.secondary & secondary::PAUSE_LOOP != 0
    }

    /// Each feature for the log, telemetry and the hardware report.
    pub fn list(&self) -> [Feature; 12] {
        let feature = |name, id, present, without| Feature { name, id, present, without };
        let timer = self.preemption_timer.is_some();
        let invpcid = self.secondary & secondary::INVPCID != 0;
        let loops = self.notices_loops();
        let wbinvd = self.secondary & secondary::WBINVD != 0;
        [
            feature("EPT", "ept", self.ept, "shadow paging only"),
            feature(
                "EPT accessed and dirty bits",
                "ept-ad",
                self.ept_accessed_dirty,
                "no record of the pages that a guest uses",
            ),
            feature("EPT leaves of 2 MiB", "ept-2m", self.ept_2m, "leaves of 4 KiB"),
            feature("EPT leaves of 1 GiB", "ept-1g", self.ept_1g, "leaves of 2 MiB"),
            feature("unrestricted guest", "unrestricted-guest", self.unrestricted, "no guests in real mode"),
            feature("VPID", "vpid", self.vpid, "every entry and exit empties the TLB"),
            feature(
                "preemption timer",
                "preemption-timer",
                timer,
                "the host's timer alone ends a guest's turn",
            ),
            feature(
                "EFER switch",
                "efer-switch",
                self.switches_efer,
                "guests share the host's EFER but for SCE",
            ),
            feature("PAT switch", "pat-switch", self.switches_pat, "shadow tables name the host's entries"),
            feature("INVPCID", "invpcid", invpcid, "guests do without"),
            feature("PAUSE-loop exiting", "pause-loop", loops, "spinning guests are not noticed"),
            feature("WBINVD exiting", "wbinvd", wbinvd, "a guest's WBINVD empties the host's caches"),
        ]
    }
}

impl fmt::Display for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VMCS revision {:#x}, {}", self.revision, Listed(&self.list()))
    }
}

#[cfg(test)]
#[path = "features_tests.rs"]
mod tests;
