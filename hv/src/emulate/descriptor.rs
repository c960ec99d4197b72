//! Segment registers, LDTR and TR from memory: descriptors as the processor reads and checks them.
//!
//! AMD APM 2, 4.7 to 4.11 (descriptors, privilege checks), 6.1.3 (LAR, LSL, VERR, VERW); APM 3 for each instruction. The
//! processor reads descriptors and sets their accessed and busy bits as a supervisor, whatever the CPL is.

use super::address::{is_canonical, is_real_or_v86};
use super::execute::{Exec, Flow, Res};
use super::insn::{Descriptor, Mode, Operand, mask};
use super::{Fault, Memory};
use crate::arch::addr::Gva;
use crate::arch::state::rflags::{self, ZF};
use crate::arch::state::{SegReg, Segment, VcpuState, efer};
use crate::arch::{Access, Exception, vector};

/// The requested privilege level of a selector.
pub(super) const RPL: u16 = 3;
/// Attribute bit of code that is conforming (or data that expands down).
const CONFORMING: u16 = 1 << 2;
/// Attribute bit of code (or not data).
const CODE: u16 = 1 << 3;
/// Attribute bit of data that can be written, or code that can be read.
const ACCESSIBLE: u16 = 1 << 1;
/// Attribute bit of a segment that was used, or a 16-bit or 32-bit task state that is in use (with [`BUSY`]).
const ACCESSED: u16 = 1 << 0;
/// Attribute bit of a task state that is in use.
const BUSY: u16 = 1 << 1;

/// System descriptor types.
const LDT: u16 = 2;
const AVAILABLE_TASK_16: u16 = 1;
const AVAILABLE_TASK: u16 = 9;

/// A descriptor that was found.
#[derive(Clone, Copy)]
pub(super) struct Found {
    /// The segment that it describes, under the selector that named it.
    pub segment: Segment,
    /// Where it is.
    at: Gva,
}

impl Found {
    pub(super) fn is_present(&self) -> bool {
        self.segment.attributes & Segment::PRESENT != 0
    }

    /// Code or data.
    pub(super) fn is_memory(&self) -> bool {
        self.segment.attributes & Segment::NON_SYSTEM != 0
    }

    pub(super) fn is_code(&self) -> bool {
        self.is_memory() && self.segment.attributes & CODE != 0
    }

    pub(super) fn is_conforming(&self) -> bool {
        self.is_code() && self.segment.attributes & CONFORMING != 0
    }

    fn is_readable(&self) -> bool {
        self.is_memory() && (!self.is_code() || self.segment.attributes & ACCESSIBLE != 0)
    }

    fn is_writable(&self) -> bool {
        self.is_memory() && !self.is_code() && self.segment.attributes & ACCESSIBLE != 0
    }

    /// The type of a system descriptor.
    fn kind(&self) -> u16 {
        self.segment.attributes & 0xf
    }
}

/// An exception whose error code is a selector's.
pub(super) fn fault(vector: u8, selector: u16) -> Exception {
    Exception { vector, error: Some(u32::from(selector & !RPL)), cr2: None }
}

fn parse(selector: u16, raw: u64) -> Segment {
    let limit = (raw & 0xffff | raw >> 32 & 0xf_0000) as u32;
    let attributes = (raw >> 40 & 0xff | raw >> 44 & 0xf00) as u16;
    let scaled = if attributes & Segment::GRANULAR != 0 { limit << 12 | 0xfff } else { limit };
    Segment { selector, attributes, limit: scaled, base: raw >> 16 & 0xff_ffff | raw >> 32 & 0xff00_0000 }
}

impl<S: VcpuState, M: Memory> Exec<'_, S, M> {
    /// Long mode, compatibility mode included.
    pub(super) fn is_long(&self) -> bool {
        self.state.efer() & efer::LMA != 0
    }

    /// Real mode or virtual-8086 mode.
    pub(super) fn has_no_descriptors(&self) -> bool {
        is_real_or_v86(self.state)
    }

    /// The descriptor that a selector names; `None` for the null selector and one beyond its table.
    pub(super) fn descriptor(&mut self, selector: u16) -> Res<Option<Found>, M> {
        if selector & !RPL == 0 {
            return Ok(None);
        }
        let (base, limit) = if selector & 4 == 0 {
            let table = self.state.gdtr();
            (table.base, u32::from(table.limit))
        } else {
            let table = self.state.segment(SegReg::Ldtr);
            if table.attributes & Segment::PRESENT == 0 {
                return Ok(None);
            }
            (table.base, table.limit)
        };
        let offset = u32::from(selector & !7);
        let at = Gva(self.wrapped(base.wrapping_add(u64::from(offset))));
        if offset + 7 > limit {
            return Ok(None);
        }
        let mut segment = parse(selector, self.descriptor_word(at)?);
        if self.is_long() && segment.attributes & Segment::NON_SYSTEM == 0 {
            // LDTs, task states and call gates have 16 bytes.
            if offset + 15 > limit {
                return Ok(None);
            }
            segment.base |= self.descriptor_word(Gva(at.0.wrapping_add(8)))? << 32;
        }
        Ok(Some(Found { segment, at }))
    }

    /// A linear address that the processor computes by itself.
    fn wrapped(&self, at: u64) -> u64 {
        if self.is_long() { at } else { at & mask(4) }
    }

    fn descriptor_word(&mut self, at: Gva) -> Res<u64, M> {
        let mut bytes = [0; 8];
        self.mem.read(at, &mut bytes, Access::READ)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Sets bits in the descriptor's type, as the processor notes there that it uses it.
    fn mark(&mut self, found: &mut Found, bits: u16) -> Res<(), M> {
        if found.segment.attributes & bits != bits {
            found.segment.attributes |= bits;
            // By the kernel's rights whatever the CPL: descriptor tables are system structures, and their accesses
            // implicit ones (SDM 3, 4.6.1).
            let access = Access { write: true, ..Access::READ };
            self.mem.write(Gva(found.at.0.wrapping_add(5)), &[found.segment.attributes as u8], access)?;
        }
        Ok(())
    }

    /// Marks a code or data segment as used.
    pub(super) fn mark_accessed(&mut self, found: &mut Found) -> Res<(), M> {
        self.mark(found, ACCESSED)
    }

    /// What a selector puts into ES, SS, DS, FS or GS, after all checks; its descriptor is marked. The register is the
    /// caller's to set.
    pub(super) fn checked_segment(&mut self, reg: SegReg, selector: u16) -> Res<Segment, M> {
        if self.has_no_descriptors() {
            let old = self.state.segment(reg);
            let base = u64::from(selector) << 4;
            // Real mode keeps limit and attributes.
            return Ok(match self.state.rflags() & rflags::VM {
                0 => Segment { selector, base, ..old },
                _ => Segment { selector, base, limit: 0xffff, attributes: 0xf3 },
            });
        }
        // In the order of the manuals' pseudocode (MOV, LSS): where several faults are due, the guest gets the first.
        let (cpl, rpl) = (self.state.cpl(), (selector & RPL) as u8);
        if selector & !RPL == 0 {
            let usable = reg != SegReg::Ss || self.insn.mode == Mode::Bits64 && cpl != 3 && rpl == cpl;
            // The privilege level of SS is the CPL even then.
            let attributes = if reg == SegReg::Ss { u16::from(cpl) << 5 } else { 0 };
            let none = Segment { selector, attributes, ..Segment::default() };
            return if usable { Ok(none) } else { Err(Exception::GP0.into()) };
        }
        let Some(mut found) = self.descriptor(selector)? else {
            return Err(fault(vector::GP, selector).into());
        };
        let dpl = found.segment.dpl();
        let allowed = match reg {
            SegReg::Ss => found.is_writable() && rpl == cpl && dpl == cpl,
            _ => found.is_readable() && (found.is_conforming() || dpl >= cpl.max(rpl)),
        };
        if !allowed {
            return Err(fault(vector::GP, selector).into());
        }
        if !found.is_present() {
            let vector = if reg == SegReg::Ss { vector::SS } else { vector::NP };
            return Err(fault(vector, selector).into());
        }
        // Last: a load that faults leaves the descriptor as it was.
        self.mark_accessed(&mut found)?;
        Ok(found.segment)
    }

    /// MOV to a segment register, `dst`.
    pub(super) fn load_segment(&mut self) -> Res<Flow, M> {
        let Operand::Segment(reg) = self.insn.dst else { return Ok(Flow::Unsupported) };
        let selector = self.get(self.insn.src, 2)? as u16;
        let segment = self.checked_segment(reg, selector)?;
        self.state.set_segment(reg, segment);
        Ok(Flow::Next)
    }

    /// LES, LDS, LSS, LFS, LGS: a pointer of `size` bytes and a selector behind it.
    pub(super) fn load_far(&mut self, reg: SegReg) -> Res<Flow, M> {
        let (offset, selector) = self.far_pointer()?;
        let segment = self.checked_segment(reg, selector)?;
        self.state.set_segment(reg, segment);
        self.set_register(self.insn.dst, self.insn.size, offset);
        Ok(Flow::Next)
    }

    /// The far pointer that is the memory operand: an offset of `size` bytes, a selector.
    pub(super) fn far_pointer(&mut self) -> Res<(u64, u16), M> {
        let size = self.insn.size;
        let m = &self.insn.mem;
        let first = self.effective(m);
        let at = self.linear(m.segment, first, u64::from(size) + 2, false)?;
        let offset = self.load(at, size, false)?;
        let selector = self.load(at.wrapping_add(u64::from(size)), 2, false)?;
        Ok((offset, selector as u16))
    }

    /// #UD where there are no descriptors, #GP unless this is the kernel.
    fn check_system(&self) -> Res<(), M> {
        if self.has_no_descriptors() {
            return Err(Exception::UD.into());
        }
        self.check_supervisor()
    }

    /// #GP unless CPL is 0.
    pub(super) fn check_supervisor(&self) -> Res<(), M> {
        if self.state.cpl() == 0 { Ok(()) } else { Err(Exception::GP0.into()) }
    }

    /// LLDT.
    pub(super) fn load_ldt(&mut self) -> Res<Flow, M> {
        self.check_system()?;
        let selector = self.get(self.insn.src, 2)? as u16;
        let segment = match selector & !RPL {
            0 => Segment { selector, attributes: LDT, ..Segment::default() },
            _ => self.system_segment(selector, |kind| kind == LDT)?.segment,
        };
        self.state.set_segment(SegReg::Ldtr, segment);
        Ok(Flow::Next)
    }

    /// LTR.
    pub(super) fn load_task(&mut self) -> Res<Flow, M> {
        self.check_system()?;
        let selector = self.get(self.insn.src, 2)? as u16;
        if selector & !RPL == 0 {
            return Err(Exception::GP0.into());
        }
        let long = self.is_long();
        let is_task = |kind| kind == AVAILABLE_TASK || kind == AVAILABLE_TASK_16 && !long;
        let mut found = self.system_segment(selector, is_task)?;
        self.mark(&mut found, BUSY)?;
        self.state.set_segment(SegReg::Tr, found.segment);
        Ok(Flow::Next)
    }

    /// The system segment that a selector of the GDT names, of an accepted type and present.
    fn system_segment(&mut self, selector: u16, accepts: impl Fn(u16) -> bool) -> Res<Found, M> {
        let refused: Fault<M::Stop> = fault(vector::GP, selector).into();
        if selector & 4 != 0 {
            return Err(refused);
        }
        let Some(found) = self.descriptor(selector)? else { return Err(refused) };
        if found.is_memory() || !accepts(found.kind()) || !is_canonical(self.state, found.segment.base) {
            return Err(refused);
        }
        if found.is_present() { Ok(found) } else { Err(fault(vector::NP, selector).into()) }
    }

    /// LAR, LSL, VERR, VERW: ZF says whether the descriptor may be used so.
    pub(super) fn inspect(&mut self, what: Descriptor) -> Res<Flow, M> {
        if self.has_no_descriptors() {
            return Err(Exception::UD.into());
        }
        let selector = self.get(self.insn.src, 2)? as u16;
        let value = match self.descriptor(selector)? {
            Some(found) if self.may_inspect(what, &found, selector) => Some(match what {
                Descriptor::Limit => u64::from(found.segment.limit),
                // The second word of the descriptor, but for its base.
                _ => self.descriptor_word(found.at)? >> 32 & 0xff_ff00,
            }),
            _ => None,
        };
        let flags = self.state.rflags() & !ZF;
        if let Some(value) = value {
            if matches!(what, Descriptor::Rights | Descriptor::Limit) {
                self.set_register(self.insn.dst, self.insn.size, value);
            }
            self.state.set_rflags(flags | ZF);
        } else {
            self.state.set_rflags(flags);
        }
        Ok(Flow::Next)
    }

    /// ARPL: raises the requested privilege level of the selector `dst` to that of `src`.
    pub(super) fn adjust_level(&mut self) -> Res<Flow, M> {
        if self.has_no_descriptors() {
            return Err(Exception::UD.into());
        }
        let wanted = self.get(self.insn.src, 2)? & u64::from(RPL);
        let flags = self.state.rflags() & !ZF;
        let raise = |selector: u64| {
            let level = selector & u64::from(RPL);
            if level < wanted { selector & !u64::from(RPL) | wanted } else { selector }
        };
        let Some(old) = self.modify(2, 0, raise)? else { return Ok(Flow::Retry) };
        self.state.set_rflags(if raise(old) != old { flags | ZF } else { flags });
        Ok(Flow::Next)
    }

    fn may_inspect(&self, what: Descriptor, found: &Found, selector: u16) -> bool {
        let level = self.state.cpl().max((selector & RPL) as u8);
        let privileged = found.is_conforming() || found.segment.dpl() >= level;
        let known: &[u16] = match (what, self.is_long()) {
            (Descriptor::Rights, true) => &[2, 9, 11, 12],
            (Descriptor::Rights, false) => &[1, 2, 3, 4, 5, 9, 11, 12],
            (_, true) => &[2, 9, 11],
            (_, false) => &[1, 2, 3, 9, 11],
        };
        privileged
            && match what {
                Descriptor::Rights | Descriptor::Limit => found.is_memory() || known.contains(&found.kind()),
                Descriptor::Readable => found.is_readable(),
                Descriptor::Writable => found.is_writable(),
            }
    }
}
