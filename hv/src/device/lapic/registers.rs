//! The local APIC's registers as the guest reads and writes them: by offset in a page (xAPIC) or as MSRs
//! (x2APIC).
//!
//! Both views number the registers alike (offset / 16 = MSR - 0x800) and differ in the ID, the logical
//! destination, the ICR and in what happens to a wrong access: #GP, or a bit in the ESR.
//!
//! Intel SDM 3, tables 11-1 (xAPIC) and 11-6 (x2APIC), 11.12.1.2–3.

use super::lvt::{self, Entry};
use super::{Lapic, LapicEffect, SVR_ENABLED, SVR_SUPPRESS_EOI, esr, icr};
use crate::device::message::widen_dest;
use crate::device::{Gp, Tsc};

const ID: u32 = 0x02;
const VERSION: u32 = 0x03;
const TPR: u32 = 0x08;
const ARBITRATION: u32 = 0x09;
const PPR: u32 = 0x0a;
const EOI: u32 = 0x0b;
const REMOTE_READ: u32 = 0x0c;
const LDR: u32 = 0x0d;
const DFR: u32 = 0x0e;
const SVR: u32 = 0x0f;
const ISR: u32 = 0x10;
const ISR_END: u32 = 0x17;
const TMR: u32 = 0x18;
const TMR_END: u32 = 0x1f;
const IRR: u32 = 0x20;
const IRR_END: u32 = 0x27;
const ESR: u32 = 0x28;
const ICR: u32 = 0x30;
const ICR_HIGH: u32 = 0x31;
const LVT_TIMER: u32 = 0x32;
const LVT_THERMAL: u32 = 0x33;
const LVT_ERROR: u32 = 0x37;
const INITIAL_COUNT: u32 = 0x38;
const CURRENT_COUNT: u32 = 0x39;
const DIVIDE: u32 = 0x3e;
const SELF_IPI: u32 = 0x3f;

/// Version 0x14, highest LVT entry 5, EOI-broadcast suppression.
const VERSION_VALUE: u32 = 1 << 24 | (lvt::ENTRIES as u32) << 16 | 0x14;
/// Vector, enable, focus checking, EOI-broadcast suppression.
const SVR_WRITABLE: u32 = SVR_SUPPRESS_EOI | 1 << 9 | SVR_ENABLED | 0xff;

const MSR_FIRST: u32 = 0x800;

/// The LVT entry that this register shows, other than the timer's.
const fn lvt_entry(register: u32) -> Option<Entry> {
    Some(match register {
        LVT_THERMAL => Entry::Thermal,
        0x34 => Entry::Performance,
        0x35 => Entry::Lint0,
        0x36 => Entry::Lint1,
        LVT_ERROR => Entry::Error,
        _ => return None,
    })
}

/// The bits of this register that can be written, in both modes; `None` if it is not written in the same way in
/// both.
const fn writable(register: u32) -> Option<u32> {
    Some(match register {
        TPR => 0xff,
        SVR => SVR_WRITABLE,
        ESR => 0,
        LVT_TIMER => lvt::TIMER_MODE | lvt::MASKED | 0xff,
        LVT_ERROR => lvt::MASKED | 0xff,
        LVT_THERMAL | 0x34 => lvt::MASKED | lvt::MODE | 0xff,
        // Polarity is bit 13: stored, because lines are logical levels.
        0x35 | 0x36 => lvt::MASKED | lvt::LEVEL | 1 << 13 | lvt::MODE | 0xff,
        INITIAL_COUNT => u32::MAX,
        DIVIDE => 0xb,
        _ => return None,
    })
}

/// The bits of this register that exist but are read-only: writing them is no error.
const fn read_only(register: u32) -> u32 {
    match register {
        0x35 | 0x36 => lvt::BUSY | lvt::REMOTE_IRR,
        LVT_TIMER..=LVT_ERROR => lvt::BUSY,
        _ => 0,
    }
}

impl Lapic {
    /// A read of 32 bits at this offset in the APIC's page, in xAPIC mode. Only multiples of 16 have registers.
    pub fn read(&mut self, offset: u32, now: Tsc) -> u32 {
        if self.mmio_page().is_none() || !offset.is_multiple_of(16) {
            return 0;
        }
        let register = offset / 16;
        match register {
            ID => self.physical_id() << 24,
            ARBITRATION => self.arbitration_priority().into(),
            EOI | REMOTE_READ => 0,
            LDR => self.logical_id() << 24,
            DFR => self.dfr,
            ICR => self.icr as u32,
            ICR_HIGH => (self.icr >> 32) as u32,
            _ => self.read_common(register, now).unwrap_or_else(|| {
                self.error(esr::ILLEGAL_REGISTER);
                0
            }),
        }
    }

    /// A write of 32 bits at this offset, in xAPIC mode. Read-only registers and bits keep their values.
    pub fn write(&mut self, offset: u32, value: u32, now: Tsc) -> LapicEffect {
        if self.mmio_page().is_none() || !offset.is_multiple_of(16) {
            return LapicEffect::None;
        }
        let register = offset / 16;
        match register {
            // Any value ends the interrupt here; in x2APIC mode only 0 does (SDM 3, 11.12.1.2).
            EOI => return self.eoi(),
            ICR => {
                self.icr = self.icr & !0xffff_ffff | u64::from(value & icr::WRITABLE);
                // Writing the lower half sends: software writes the upper half first (SDM 3, 11.6.1).
                return self.send_ipi(value, widen_dest((self.icr >> 56) as u8));
            }
            ICR_HIGH => self.icr = u64::from(value & 0xff00_0000) << 32 | self.icr & 0xffff_ffff,
            LDR => {
                self.ldr = (value >> 24) as u8;
                return LapicEffect::Readdressed;
            }
            DFR => {
                self.dfr = value | 0x0fff_ffff;
                return LapicEffect::Readdressed;
            }
            _ => match writable(register) {
                Some(mask) => {
                    let mask = mask & !self.missing(register);
                    return self.write_common(register, value & mask, now);
                }
                None if self.is_read_only(register) => {}
                None => self.error(esr::ILLEGAL_REGISTER),
            },
        }
        LapicEffect::None
    }

    /// RDMSR of 0x800 to 0x8ff: #GP outside of x2APIC mode, for write-only registers and where there is none.
    pub fn read_msr(&mut self, index: u32, now: Tsc) -> Result<u64, Gp> {
        if !self.is_x2apic() {
            return Err(Gp);
        }
        match index.wrapping_sub(MSR_FIRST) {
            ID => Ok(self.physical_id().into()),
            LDR => Ok(self.logical_id().into()),
            ICR => Ok(self.icr),
            register => self.read_common(register, now).map(u64::from).ok_or(Gp),
        }
    }

    /// WRMSR of 0x800 to 0x8ff: #GP outside of x2APIC mode, for read-only registers, where there is none, and
    /// for reserved bits.
    #[inline]
    pub fn write_msr(&mut self, index: u32, value: u64, now: Tsc) -> Result<LapicEffect, Gp> {
        if !self.is_x2apic() {
            return Err(Gp);
        }
        let register = index.wrapping_sub(MSR_FIRST);
        match register {
            EOI if value == 0 => Ok(self.eoi()),
            ICR if value as u32 & !(icr::WRITABLE | icr::BUSY) == 0 => {
                self.icr = value & !u64::from(icr::BUSY);
                Ok(self.send_ipi(value as u32, (value >> 32) as u32))
            }
            SELF_IPI if value <= 0xff => Ok(self.send_to_self(value as u8)),
            // The fourth mode is reserved, and reserved bits fault in x2APIC mode; in xAPIC mode the timer does not run
            // in it.
            LVT_TIMER if value as u32 & lvt::TIMER_MODE == lvt::TIMER_MODE => Err(Gp),
            _ => {
                let mask = writable(register).ok_or(Gp)? & !self.missing(register);
                if value & !u64::from(mask | read_only(register)) != 0 {
                    return Err(Gp);
                }
                Ok(self.write_common(register, value as u32 & mask, now))
            }
        }
    }

    /// The writable bits of this register that this APIC does not have.
    #[inline]
    fn missing(&self, register: u32) -> u32 {
        if register == LVT_TIMER && !self.abilities.tsc_deadline { lvt::TSC_DEADLINE } else { 0 }
    }

    /// The registers that read alike in both modes.
    fn read_common(&mut self, register: u32, now: Tsc) -> Option<u32> {
        Some(match register {
            VERSION => VERSION_VALUE,
            TPR => self.tpr.into(),
            PPR => self.ppr.into(),
            SVR => self.svr,
            ISR..=ISR_END => self.isr.word((register - ISR) as u8),
            TMR..=TMR_END => self.tmr.word((register - TMR) as u8),
            IRR..=IRR_END => self.irr.word((register - IRR) as u8),
            ESR => self.esr,
            LVT_TIMER => self.timer.lvt(),
            LVT_THERMAL..=LVT_ERROR => self.lvt(lvt_entry(register)?),
            INITIAL_COUNT => self.timer.initial_count(),
            CURRENT_COUNT => {
                self.tick(now);
                self.timer.current_count(now)
            }
            DIVIDE => self.timer.divide(),
            _ => return None,
        })
    }

    /// The registers that [`writable`] names; `value` is stripped of the other bits.
    fn write_common(&mut self, register: u32, value: u32, now: Tsc) -> LapicEffect {
        match register {
            TPR => self.set_tpr(value as u8),
            SVR => {
                // What expired a moment ago is raised before the APIC may be disabled.
                self.tick(now);
                return self.set_svr(value);
            }
            // A write latches the errors since the last write, whatever is written (SDM 3, 11.5.3).
            ESR => self.esr = core::mem::take(&mut self.errors),
            LVT_TIMER => {
                self.tick(now);
                let forced = if self.software_enabled() { 0 } else { lvt::MASKED };
                self.timer.set_lvt(value | forced);
            }
            INITIAL_COUNT => {
                self.tick(now);
                self.timer.set_initial_count(value, now);
            }
            DIVIDE => {
                self.tick(now);
                self.timer.set_divide(value, now);
            }
            _ => {
                if let Some(entry) = lvt_entry(register) {
                    self.set_lvt(entry, value);
                }
            }
        }
        LapicEffect::None
    }

    fn set_svr(&mut self, value: u32) -> LapicEffect {
        let changed = self.svr ^ value;
        self.svr = value;
        if value & SVR_ENABLED == 0 {
            // Disabling sets all mask bits, and they stay set when the APIC is enabled again (SDM 3, 11.4.7.2).
            self.timer.mask();
            for entry in &mut self.lvt {
                *entry |= lvt::MASKED;
            }
        }
        if changed & SVR_ENABLED != 0 { LapicEffect::Readdressed } else { LapicEffect::None }
    }

    /// Registers that can only be read: writing them in xAPIC mode is no error.
    fn is_read_only(&self, register: u32) -> bool {
        matches!(register, ID | VERSION | ARBITRATION | PPR | REMOTE_READ | CURRENT_COUNT)
            || matches!(register, ISR..=ISR_END | TMR..=TMR_END | IRR..=IRR_END)
    }
}
