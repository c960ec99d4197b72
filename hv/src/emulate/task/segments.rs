//! What the new task's selectors load, and the faults of that (Intel SDM 3, table 7-1; AMD APM 2, 12.3.3 and 4.9).

use super::super::Memory;
use super::descriptor::{self, Descriptor, Table};
use super::tss::{Image, SELECTORS};
use super::{Res, selector_fault};
use crate::arch::addr::Gva;
use crate::arch::state::rflags;
use crate::arch::{SegReg, Segment, VcpuState, vector};

/// Attributes of a segment of virtual-8086 mode.
const VIRTUAL_8086: u16 = 0xf3;

/// Loads LDTR and all segment registers. A fault leaves the rest unusable, with the selectors of the new task.
pub fn load<S: VcpuState, M: Memory>(state: &mut S, mem: &mut M, image: &Image, ext: u32) -> Res<(), M> {
    let is_virtual = u64::from(image.eflags) & rflags::VM != 0;
    let cpl = if is_virtual { 3 } else { image.selectors[1] as u8 & 3 };
    place(state, image, is_virtual, cpl);
    load_ldt(state, mem, image.ldt, ext)?;
    if is_virtual {
        return Ok(());
    }
    let mut loader = Loader { ldt: state.segment(SegReg::Ldtr), state, mem, cpl, ext };
    loader.code(image.selectors[1])?;
    loader.stack(image.selectors[2])?;
    for n in [0, 3, 4, 5] {
        loader.data(SELECTORS[n], image.selectors[n])?;
    }
    Ok(())
}

/// Gives all registers their selectors, and the processor a state in which it can deliver a fault: code of the new privilege
/// level, and a stack that takes nothing. Its selector has that level, too, whatever the TSS says: not every processor with
/// VT-x is entered with another one (SDM 3, 27.3.1.2).
fn place<S: VcpuState>(state: &mut S, image: &Image, is_virtual: bool, cpl: u8) {
    let dpl = u16::from(cpl) << 5;
    for (reg, selector) in SELECTORS.into_iter().zip(image.selectors) {
        let segment = match reg {
            _ if is_virtual => {
                Segment { selector, attributes: VIRTUAL_8086, limit: 0xffff, base: u64::from(selector) << 4 }
            }
            SegReg::Cs => Segment::flat(selector, 0xc9b | dpl),
            SegReg::Ss => {
                let selector = selector & !3 | u16::from(cpl);
                Segment { selector, attributes: 0x93 | dpl, limit: 0, base: 0 }
            }
            _ => Segment { selector, ..Segment::default() },
        };
        state.set_segment(reg, segment);
    }
}

fn load_ldt<S: VcpuState, M: Memory>(state: &mut S, mem: &mut M, selector: u16, ext: u32) -> Res<(), M> {
    state.set_segment(SegReg::Ldtr, Segment { selector, ..Segment::default() });
    if selector & !3 == 0 {
        return Ok(());
    }
    let fault = || selector_fault(vector::TS, selector, ext);
    let at = descriptor::address(&state.gdtr().into(), selector).filter(|_| selector & 4 == 0);
    let descriptor = Descriptor::read(mem, at.ok_or_else(fault)?)?;
    if !descriptor.is_ldt() || !descriptor.is_present() {
        return Err(fault());
    }
    state.set_segment(SegReg::Ldtr, descriptor.segment(selector));
    Ok(())
}

struct Loader<'a, S, M> {
    state: &'a mut S,
    mem: &'a mut M,
    ldt: Segment,
    cpl: u8,
    ext: u32,
}

impl<S: VcpuState, M: Memory> Loader<'_, S, M> {
    /// The descriptor of a selector that is not null, and where it is.
    fn find(&mut self, selector: u16) -> Res<(Gva, Descriptor), M> {
        let table = match selector & 4 {
            0 => self.state.gdtr().into(),
            _ if self.ldt.attributes & Segment::PRESENT != 0 => {
                Table { base: self.ldt.base, limit: self.ldt.limit }
            }
            _ => Table { base: 0, limit: 0 },
        };
        let at = descriptor::address(&table, selector).filter(|_| selector & !3 != 0);
        let at = at.ok_or_else(|| selector_fault(vector::TS, selector, self.ext))?;
        Ok((at, Descriptor::read(self.mem, at)?))
    }

    /// Loads a register whose descriptor is valid, unless it is not present.
    fn set(
        &mut self,
        reg: SegReg,
        selector: u16,
        (at, found): (Gva, Descriptor),
        valid: bool,
        absent: u8,
    ) -> Res<(), M> {
        if !valid {
            return Err(selector_fault(vector::TS, selector, self.ext));
        }
        if !found.is_present() {
            return Err(selector_fault(absent, selector, self.ext));
        }
        let found = found.access(self.mem, at)?;
        self.state.set_segment(reg, found.segment(selector));
        Ok(())
    }

    fn code(&mut self, selector: u16) -> Res<(), M> {
        let found = self.find(selector)?;
        let descriptor = found.1;
        let level = if descriptor.is_conforming() {
            descriptor.dpl() <= self.cpl
        } else {
            descriptor.dpl() == self.cpl
        };
        self.set(SegReg::Cs, selector, found, descriptor.is_code() && level, vector::NP)
    }

    fn stack(&mut self, selector: u16) -> Res<(), M> {
        let found = self.find(selector)?;
        let level = selector as u8 & 3 == self.cpl && found.1.dpl() == self.cpl;
        self.set(SegReg::Ss, selector, found, found.1.is_writable_data() && level, vector::SS)
    }

    fn data(&mut self, reg: SegReg, selector: u16) -> Res<(), M> {
        if selector & !3 == 0 {
            return Ok(());
        }
        let found = self.find(selector)?;
        let level = found.1.is_conforming() || found.1.dpl() >= self.cpl.max(selector as u8 & 3);
        self.set(reg, selector, found, found.1.is_readable() && level, vector::NP)
    }
}
