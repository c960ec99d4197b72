//! JMP, CALL and RET between code segments, by far pointers in memory and on the stack.
//!
//! AMD APM 2, 4.11 and 4.12. Code segments at the same privilege level; call gates, task gates, task states and returns to outer
//! levels are not executed here.

use super::Memory;
use super::address::is_canonical;
use super::descriptor::{RPL, fault};
use super::execute::{Exec, Flow, Res};
use super::insn::mask;
use crate::arch::state::{Gpr, SegReg, Segment, VcpuState, rflags};
use crate::arch::{Access, Exception, vector};

impl<S: VcpuState, M: Memory> Exec<'_, S, M> {
    /// JMP far.
    pub(super) fn jump_far(&mut self) -> Res<Flow, M> {
        let (rip, selector) = self.far_pointer()?;
        let Some(code) = self.code_segment(selector, rip, false)? else { return Ok(Flow::Unsupported) };
        self.state.set_segment(SegReg::Cs, code);
        Ok(Flow::Jump(rip))
    }

    /// CALL far.
    pub(super) fn call_far(&mut self) -> Res<Flow, M> {
        let (rip, selector) = self.far_pointer()?;
        // Two slots that follow each other: both are probed before anything is marked.
        let size = self.insn.size;
        let top = self.state.gpr(Gpr::Rsp);
        let stack = mask(self.stack_size());
        let slot = |n: u64| top.wrapping_sub(n * u64::from(size)) & stack;
        let (first, second) = (slot(1), slot(2));
        let cs_at = self.data_address(SegReg::Ss, first, size, true)?;
        let rip_at = self.data_address(SegReg::Ss, second, size, true)?;
        let access = Access { write: true, user: self.user, ..Access::READ };
        self.mem.probe(cs_at, size.into(), access)?;
        self.mem.probe(rip_at, size.into(), access)?;
        let Some(code) = self.code_segment(selector, rip, false)? else { return Ok(Flow::Unsupported) };
        let old = self.state.segment(SegReg::Cs).selector;
        self.store(cs_at, size, u64::from(old))?;
        self.store(rip_at, size, self.next_rip())?;
        self.set_stack_pointer(second);
        self.state.set_segment(SegReg::Cs, code);
        Ok(Flow::Jump(rip))
    }

    /// RET far.
    pub(super) fn ret_far(&mut self) -> Res<Flow, M> {
        let size = self.insn.size;
        let stack = mask(self.stack_size());
        let top = self.state.gpr(Gpr::Rsp) & stack;
        let next = top.wrapping_add(u64::from(size)) & stack;
        let rip_at = self.data_address(SegReg::Ss, top, size, false)?;
        let cs_at = self.data_address(SegReg::Ss, next, size, false)?;
        let rip = self.load(rip_at, size, false)?;
        let selector = self.load(cs_at, size, false)? as u16;
        let Some(code) = self.code_segment(selector, rip, true)? else { return Ok(Flow::Unsupported) };
        self.set_stack_pointer(next.wrapping_add(u64::from(size)).wrapping_add(self.insn.imm));
        self.state.set_segment(SegReg::Cs, code);
        Ok(Flow::Jump(rip))
    }

    /// What `selector` puts into CS for execution to go on at `rip`, after all checks; its descriptor is marked. `None`: a
    /// gate, a task, or another privilege level.
    fn code_segment(&mut self, selector: u16, rip: u64, returns: bool) -> Res<Option<Segment>, M> {
        let old = self.state.segment(SegReg::Cs);
        if self.has_no_descriptors() {
            let segment = Segment { selector, base: u64::from(selector) << 4, ..old };
            let v86 = self.state.rflags() & rflags::VM != 0;
            let segment = if v86 { Segment { limit: 0xffff, attributes: 0xf3, ..segment } } else { segment };
            return if rip <= u64::from(segment.limit) {
                Ok(Some(segment))
            } else {
                Err(Exception::GP0.into())
            };
        }
        let (cpl, rpl) = (self.state.cpl(), (selector & RPL) as u8);
        if selector & !RPL == 0 {
            return Err(Exception::GP0.into());
        }
        let refused = || Err(fault(vector::GP, selector).into());
        let Some(mut found) = self.descriptor(selector)? else { return refused() };
        if !found.is_memory() && !returns || returns && rpl > cpl {
            return Ok(None);
        }
        let dpl = found.segment.dpl();
        let allowed = match (found.is_conforming(), returns) {
            (true, _) => dpl <= cpl,
            (false, true) => dpl == cpl,
            (false, false) => dpl == cpl && rpl <= cpl,
        };
        let both = Segment::LONG | Segment::BIG;
        let mixed = self.is_long() && found.segment.attributes & both == both;
        if !found.is_code() || returns && rpl < cpl || !allowed || mixed {
            return refused();
        }
        if !found.is_present() {
            return Err(fault(vector::NP, selector).into());
        }
        let reachable = match self.is_long() && found.segment.attributes & Segment::LONG != 0 {
            true => is_canonical(self.state, rip),
            false => rip <= u64::from(found.segment.limit),
        };
        if !reachable {
            return Err(Exception::GP0.into());
        }
        self.mark_accessed(&mut found)?;
        Ok(Some(Segment { selector: selector & !RPL | u16::from(cpl), ..found.segment }))
    }
}
