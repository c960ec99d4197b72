//! MSRs that belong to the guest: those with a field in the VMCS, and those that stay in the processor, because the host has
//! no use for them (Intel SDM 3, 24.4.1).

use super::cache::{Field, Part};
use super::entry::work;
use super::{Vmx, instr};
use crate::arch::msr as index;
use crate::arch::state::SegReg;
use crate::hw::msr::IA32_PAT;

/// MSRs without a field.
pub(super) const MSRS: [u32; 5] =
    [index::STAR, index::LSTAR, index::CSTAR, index::SFMASK, index::KERNEL_GS_BASE];

/// The guest's values of what entries do not switch, before its first entry.
#[derive(Debug, Default)]
pub(super) struct Saved {
    /// The guest's PAT, where entries do not switch it.
    pub pat: u64,
    pub cr2: u64,
    pub dr6: u64,
    pub msrs: [u64; 5],
}

/// Where an MSR is.
enum Place {
    Field(Field),
    Base(SegReg),
    Processor(usize),
}

fn place(msr: u32) -> Option<Place> {
    Some(match msr {
        index::SYSENTER_CS => Place::Field(Field::SysenterCs),
        index::SYSENTER_ESP => Place::Field(Field::SysenterEsp),
        index::SYSENTER_EIP => Place::Field(Field::SysenterEip),
        index::PAT => Place::Field(Field::Pat),
        index::FS_BASE => Place::Base(SegReg::Fs),
        index::GS_BASE => Place::Base(SegReg::Gs),
        _ => Place::Processor(MSRS.iter().position(|&index| index == msr)?),
    })
}

impl Vmx {
    /// The processor's PAT while the guest runs, if it is not the guest's.
    pub(super) fn unswitched_pat(&self) -> Option<u64> {
        // SAFETY: every processor with VT-x has a PAT.
        (!self.features.switches_pat).then(|| unsafe { instr::read_msr(IA32_PAT) })
    }

    pub(super) fn read_switched(&self, msr: u32) -> Option<u64> {
        if msr == index::PAT && !self.features.switches_pat {
            return Some(self.saved.pat);
        }
        Some(match place(msr)? {
            Place::Field(field) => self.cache.get(field),
            Place::Base(seg) => self.cache.segment(seg, Part::Base),
            // SAFETY: every processor with long mode has them.
            Place::Processor(slot) if self.live.get() => unsafe { instr::read_msr(MSRS[slot]) },
            Place::Processor(slot) => self.saved.msrs[slot],
        })
    }

    pub(super) fn write_switched(&mut self, msr: u32, value: u64) -> bool {
        if msr == index::PAT {
            self.saved.pat = value;
        }
        match place(msr) {
            None => return false,
            Some(Place::Field(field)) => self.set(field, value),
            Some(Place::Base(seg)) => self.set_part(seg, Part::Base, value),
            Some(Place::Processor(slot)) => {
                self.saved.msrs[slot] = value;
                if self.live.get() {
                    // SAFETY: as above; the caller has validated the value, and the host does not use the MSR.
                    unsafe { instr::write_msr(MSRS[slot], value) };
                }
            }
        }
        true
    }

    /// Sets a part of a segment register.
    pub(super) fn set_part(&self, seg: SegReg, part: Part, value: u64) {
        if self.cache.set_segment(seg, part, value) {
            self.request(work::CHANGED);
        }
    }
}
