//! What RDMSR and WRMSR do in a guest.
//!
//! Three kinds of MSR. Those in [`PASS_THROUGH`] belong to the guest alone and never exit; `virt` opens them
//! in its permission map. Those of devices (local APIC, TSC) are named as a [`DeviceMsr`] and the caller asks
//! the device. All others are decided here: [`MsrState`] keeps what they hold, and what a write changes
//! elsewhere is returned as an [`MsrEffect`]; those that hold nothing are a table ([`promised`]). An unknown MSR is #GP(0),
//! or zero and ignored if the guest's configuration is permissive; both are counted. `docs/msrs.md` has the list. Manuals: AMD
//! APM 2 appendix A, Intel SDM 4 chapter 2.

mod mtrr;
#[cfg(test)]
mod page;
mod promised;
#[cfg(test)]
mod tests;
mod unknown;

use mtrr::Mtrrs;
use promised::Answer;
pub use unknown::UnknownMsrs;

use super::cpuid::CpuLimits;
use crate::arch::msr as index;
use crate::arch::state::{cr0, efer};
use crate::virt::speculation;

/// MSRs that a guest reads and writes directly if its CPUID has the feature that they belong to: its own SYSENTER, SYSCALL
/// and segment base registers, which are switched with the guest.
pub const PASS_THROUGH: [u32; 10] = [
    index::SYSENTER_CS,
    index::SYSENTER_ESP,
    index::SYSENTER_EIP,
    index::STAR,
    index::LSTAR,
    index::CSTAR,
    index::SFMASK,
    index::FS_BASE,
    index::GS_BASE,
    index::KERNEL_GS_BASE,
];

/// Those of [`PASS_THROUGH`] that a guest with these limits has. The others exit and raise #GP, as on a processor
/// without the feature.
pub fn pass_through(limits: &CpuLimits) -> impl Iterator<Item = u32> {
    let limits = *limits;
    PASS_THROUGH.into_iter().filter(move |msr| match *msr {
        index::SYSENTER_CS | index::SYSENTER_ESP | index::SYSENTER_EIP => limits.sysenter,
        index::STAR | index::LSTAR | index::CSTAR | index::SFMASK => limits.efer & efer::SCE != 0,
        _ => limits.efer & efer::LME != 0,
    })
}

/// An MSR that a device answers for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceMsr {
    /// `APIC_BASE`
    ApicBase,
    /// The x2APIC register with this offset from 0x800: the xAPIC offset divided by 16.
    X2apic(u8),
    /// `TSC_DEADLINE`
    TscDeadline,
    /// The guest's time-stamp counter.
    Tsc,
}

/// What RDMSR does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum MsrRead {
    /// Returns this value.
    Value(u64),
    /// Returns eight bytes of CPUID's brand string, these from 0 to 5.
    Name(u8),
    /// Asks a device.
    Device(DeviceMsr),
    /// #GP(0)
    Fault,
}

/// What WRMSR does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum MsrWrite {
    /// Nothing more.
    Done,
    /// Asks a device.
    Device(DeviceMsr),
    /// Changes something outside of [`MsrState`].
    Effect(MsrEffect),
    /// #GP(0)
    Fault,
}

/// A validated write that the caller performs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum MsrEffect {
    /// The new EFER; what is cached of page tables must go if NXE changed.
    Efer(u64),
    /// The new page attribute table.
    Pat(u64),
    /// The new `TSC_AUX`.
    TscAux(u64),
    /// What SPEC_CTRL is to hold while the guest runs.
    SpecCtrl(u64),
    /// Write bit 0 to this MSR now: PRED_CMD or FLUSH_CMD.
    Command(u32),
    /// The paravirtual clock's address and enable bit (bit 0).
    KvmSystemTime(u64),
    /// Write the wall clock at this address, now.
    KvmWallClock(u64),
}

/// What the answer depends on beside the MSRs' own state.
#[derive(Clone, Copy, Debug)]
pub struct MsrContext<'a> {
    /// What the guest's CPUID allows.
    pub limits: &'a CpuLimits,
    /// The guest's CR0.
    pub cr0: u64,
    /// The guest's EFER.
    pub efer: u64,
    /// Unknown MSRs are zero instead of #GP.
    pub permissive: bool,
    /// The guest has the paravirtual clock.
    pub pv_clock: bool,
}

/// The MSRs of one VCPU that no device and no processor register holds.
#[derive(Clone, Debug)]
pub struct MsrState {
    pat: u64,
    tsc_aux: u32,
    mtrrs: Mtrrs,
    misc_enable: u64,
    debugctl: u64,
    hwcr: u64,
    kvm_system_time: u64,
    kvm_wall_clock: u64,
    spec_ctrl: u64,
    virt_spec_ctrl: u64,
    unknown: UnknownMsrs,
}

/// The page attribute table after RESET: WB, WT, UC-, UC, twice.
const PAT_RESET: u64 = 0x0007_0406_0007_0406;
/// `MISC_ENABLE`: fast strings; branch trace storage and PEBS unavailable.
const MISC_ENABLE_RESET: u64 = 1 | 1 << 11 | 1 << 12;
/// `HWCR.TscFreqSel`: the TSC counts at the P0 frequency, always.
const HWCR_TSC_FREQ_SEL: u64 = 1 << 24;

impl Default for MsrState {
    fn default() -> Self {
        MsrState {
            pat: PAT_RESET,
            tsc_aux: 0,
            mtrrs: Mtrrs::default(),
            misc_enable: MISC_ENABLE_RESET,
            debugctl: 0,
            hwcr: HWCR_TSC_FREQ_SEL,
            kvm_system_time: 0,
            kvm_wall_clock: 0,
            spec_ctrl: 0,
            virt_spec_ctrl: 0,
            unknown: UnknownMsrs::default(),
        }
    }
}

impl MsrState {
    /// RDMSR.
    pub fn read(&mut self, msr: u32, ctx: &MsrContext<'_>) -> MsrRead {
        if let Some(device) = device(msr, ctx.limits) {
            return MsrRead::Device(device);
        }
        if let Some(value) = self.value(msr, ctx) {
            return MsrRead::Value(value);
        }
        if is_command(msr, ctx.limits) {
            return MsrRead::Fault;
        }
        match promised::answer(msr, ctx.limits.amd) {
            Some(Answer::Ignored(value) | Answer::Fixed(value)) => MsrRead::Value(value),
            Some(Answer::Name(part)) => MsrRead::Name(part),
            Some(Answer::WriteOnly) => MsrRead::Fault,
            None => {
                self.unknown.count(msr);
                if ctx.permissive { MsrRead::Value(0) } else { MsrRead::Fault }
            }
        }
    }

    /// WRMSR.
    pub fn write(&mut self, msr: u32, value: u64, ctx: &MsrContext<'_>) -> MsrWrite {
        if let Some(device) = device(msr, ctx.limits) {
            return MsrWrite::Device(device);
        }
        if is_command(msr, ctx.limits) {
            return match value {
                0 => MsrWrite::Done,
                speculation::COMMAND => MsrWrite::Effect(MsrEffect::Command(msr)),
                _ => MsrWrite::Fault,
            };
        }
        if self.value(msr, ctx).is_some() {
            return self.store(msr, value, ctx).unwrap_or(MsrWrite::Fault);
        }
        match promised::answer(msr, ctx.limits.amd) {
            Some(Answer::Fixed(_)) => MsrWrite::Fault,
            Some(_) => MsrWrite::Done,
            None => {
                self.unknown.count(msr);
                if ctx.permissive { MsrWrite::Done } else { MsrWrite::Fault }
            }
        }
    }

    /// The unknown MSRs that the guest touched.
    pub fn unknown(&self) -> &UnknownMsrs {
        &self.unknown
    }

    /// The page attribute table.
    pub fn pat(&self) -> u64 {
        self.pat
    }

    /// What SPEC_CTRL is to hold while the guest runs: both of its MSRs ask for it.
    #[inline]
    pub fn spec_ctrl(&self) -> u64 {
        self.spec_ctrl | self.virt_spec_ctrl
    }

    /// `TSC_AUX`
    pub fn tsc_aux(&self) -> u32 {
        self.tsc_aux
    }

    /// The value of an MSR that exists; `None` for others.
    fn value(&self, msr: u32, ctx: &MsrContext<'_>) -> Option<u64> {
        let amd = ctx.limits.amd;
        Some(match msr {
            index::EFER => ctx.efer & ctx.limits.efer,
            index::PAT if ctx.limits.pat => self.pat,
            index::TSC_AUX if ctx.limits.tsc_aux => self.tsc_aux.into(),
            index::SPEC_CTRL if ctx.limits.spec_ctrl != 0 => self.spec_ctrl,
            index::VIRT_SPEC_CTRL if ctx.limits.virt_ssbd => self.virt_spec_ctrl,
            index::ARCH_CAPABILITIES => ctx.limits.arch_capabilities?,
            index::KVM_SYSTEM_TIME if ctx.pv_clock => self.kvm_system_time,
            index::KVM_WALL_CLOCK if ctx.pv_clock => self.kvm_wall_clock,
            index::MCG_CAP | index::MCG_STATUS if ctx.limits.mca => 0,
            index::DEBUGCTL => self.debugctl,
            index::HWCR if amd => self.hwcr,
            index::MISC_ENABLE if !amd => self.misc_enable,
            _ if ctx.limits.mtrr => self.mtrrs.read(msr)?,
            _ => return None,
        })
    }

    /// Writes an MSR that exists; `None` is #GP(0).
    fn store(&mut self, msr: u32, value: u64, ctx: &MsrContext<'_>) -> Option<MsrWrite> {
        match msr {
            index::EFER => return checked_efer(value, ctx).map(|v| MsrWrite::Effect(MsrEffect::Efer(v))),
            index::PAT => {
                let valid = value.to_le_bytes().iter().all(|t| matches!(t, 0 | 1 | 4..=7));
                self.pat = valid.then_some(value)?;
                return Some(MsrWrite::Effect(MsrEffect::Pat(value)));
            }
            index::TSC_AUX => {
                // AMD ignores the upper half, Intel refuses it.
                if !ctx.limits.amd && value >> 32 != 0 {
                    return None;
                }
                self.tsc_aux = value as u32;
                return Some(MsrWrite::Effect(MsrEffect::TscAux(self.tsc_aux.into())));
            }
            index::SPEC_CTRL => {
                self.spec_ctrl = (value & !ctx.limits.spec_ctrl == 0).then_some(value)?;
                return Some(MsrWrite::Effect(MsrEffect::SpecCtrl(self.spec_ctrl())));
            }
            index::VIRT_SPEC_CTRL => {
                // Other bits are reserved, and ignored (AMD, "Speculative Store Bypass Disable").
                self.virt_spec_ctrl = value & speculation::spec_ctrl::SSBD;
                return Some(MsrWrite::Effect(MsrEffect::SpecCtrl(self.spec_ctrl())));
            }
            index::ARCH_CAPABILITIES => return None,
            index::KVM_SYSTEM_TIME => {
                self.kvm_system_time = value;
                return Some(MsrWrite::Effect(MsrEffect::KvmSystemTime(value)));
            }
            index::KVM_WALL_CLOCK => {
                self.kvm_wall_clock = value;
                return Some(MsrWrite::Effect(MsrEffect::KvmWallClock(value)));
            }
            index::MCG_CAP => return None,
            index::MCG_STATUS => return (value == 0).then_some(MsrWrite::Done),
            // LBR and BTF are remembered but have no effect; nothing else exists.
            index::DEBUGCTL => self.debugctl = (value & !3 == 0).then_some(value)?,
            index::HWCR => self.hwcr = (value >> 32 == 0).then_some(value | HWCR_TSC_FREQ_SEL)?,
            index::MISC_ENABLE => self.misc_enable = value & 1 | MISC_ENABLE_RESET & !1,
            _ => self.mtrrs.write(msr, value, ctx.limits.phys_bits)?,
        }
        Some(MsrWrite::Done)
    }
}

/// An MSR that is only written, to have something done.
fn is_command(msr: u32, limits: &CpuLimits) -> bool {
    msr == index::PRED_CMD && limits.barrier || msr == index::FLUSH_CMD && limits.flush_l1d
}

fn device(msr: u32, limits: &CpuLimits) -> Option<DeviceMsr> {
    match msr {
        index::X2APIC_FIRST..=index::X2APIC_LAST if limits.x2apic => Some(DeviceMsr::X2apic(msr as u8)),
        index::TSC_DEADLINE if limits.tsc_deadline => Some(DeviceMsr::TscDeadline),
        index::APIC_BASE if limits.apic => Some(DeviceMsr::ApicBase),
        index::TSC => Some(DeviceMsr::Tsc),
        _ => None,
    }
}

/// EFER as it becomes, `None` for #GP (APM 2, 3.1.7): reserved bits, or a change of LME while paging is on.
/// LMA is the processor's: a written value is ignored.
fn checked_efer(value: u64, ctx: &MsrContext<'_>) -> Option<u64> {
    let changed = value ^ ctx.efer;
    if value & !ctx.limits.efer != 0 || changed & efer::LME != 0 && ctx.cr0 & cr0::PG != 0 {
        return None;
    }
    Some(value & !efer::LMA | ctx.efer & efer::LMA)
}

/// Drives reads and writes with arbitrary indices and values: no panic, and the state stays within its rules.
#[cfg(any(test, feature = "testing"))]
pub fn fuzz_one(data: &[u8]) {
    let mut state = MsrState::default();
    for (i, op) in data.chunks_exact(13).enumerate() {
        let limits = CpuLimits {
            efer: 0xd01,
            phys_bits: op[0] % 53,
            amd: i % 2 == 0,
            tsc_aux: true,
            apic: true,
            x2apic: true,
            tsc_deadline: op[0] & 2 != 0,
            mtrr: op[0] & 4 != 0,
            pat: op[0] & 8 != 0,
            mca: true,
            spec_ctrl: 7,
            barrier: true,
            virt_ssbd: true,
            ..CpuLimits::default()
        };
        let ctx = MsrContext { limits: &limits, cr0: 0, efer: 0, permissive: op[0] & 1 != 0, pv_clock: true };
        let msr = u32::from_le_bytes([op[1], op[2], op[3], op[4]]);
        let value = u64::from_le_bytes([op[5], op[6], op[7], op[8], op[9], op[10], op[11], op[12]]);
        let before = state.read(msr, &ctx);
        let written = state.write(msr, value, &ctx);
        if let (MsrWrite::Effect(MsrEffect::Efer(v)), _) = (written, before) {
            assert_eq!(v & !limits.efer, 0);
        }
        if written == MsrWrite::Fault && !ctx.permissive {
            assert_eq!(state.read(msr, &ctx), before, "a faulting write changes nothing");
        }
        assert!(state.pat().to_le_bytes().iter().all(|t| matches!(t, 0 | 1 | 4..=7)));
    }
}
