//! Hardware task switches, for processors that leave them to the hypervisor (VT-x always, AMD-V when intercepted).
//!
//! Called by `vcpu::task`, at a task-switch exit. A switch has two halves, because the new task may have other page
//! tables: [`leave`] does everything that can fail in the old task and commits, the caller loads CR3, and [`arrive`]
//! loads the registers. What must hold: a fault of [`leave`] has had no effect; one of [`arrive`] is the new task's, whose
//! TSS, flags, RIP and selectors are loaded by then. Contents of TSSs and descriptors are the guest's and are not
//! trusted. Order and faults: Intel SDM 3, 7.2 and 7.3 (table 7-1); AMD APM 2, 12.3.
//!
//! Files: `tss` (both layouts), `descriptor` (the tables), `segments` (what the new task's selectors load).

mod descriptor;
#[cfg(any(test, feature = "testing"))]
mod fuzz;
mod segments;
#[cfg(test)]
mod tests;
mod tss;

#[cfg(any(test, feature = "testing"))]
pub use fuzz::fuzz_one;

use super::{Fault, Memory};
use crate::arch::addr::Gva;
use crate::arch::state::{cr0, rflags};
use crate::arch::task::{GateEvent, TaskSource, TaskSwitch};
use crate::arch::{Access, Exception, Gpr, SegReg, Segment, VcpuState, vector};
use descriptor::Descriptor;
use tss::{Image, Layout};

/// What a step returns.
type Res<T, M> = Result<T, Fault<<M as Memory>::Stop>>;

/// EFLAGS bits that exist; the others are loaded as zeros.
const FLAGS: u64 = 0x3f_7fd5;

/// DR7: the local breakpoints and LE, which a task switch turns off.
const LOCAL_BREAKPOINTS: u64 = 0x155;

/// A task that the processor has switched to, but for its registers.
#[derive(Clone, Copy, Debug)]
pub struct NewTask {
    request: TaskSwitch,
    layout: Layout,
    image: Image,
}

impl NewTask {
    /// The value for CR3, if the TSS has one; it counts while paging is on.
    pub fn cr3(&self) -> Option<u32> {
        self.image.cr3
    }
}

/// A fault with a selector as its error code.
fn selector_fault<S>(vector: u8, selector: u16, ext: u32) -> Fault<S> {
    let error = Some(u32::from(selector & !3) | ext);
    Fault::Exception(Exception { vector, error, cr2: None })
}

/// The selector in the current TSS of the task to which an IRET returns.
pub fn back_link<S: VcpuState, M: Memory>(state: &S, mem: &mut M) -> Res<u16, M> {
    let mut link = [0; 2];
    mem.read(Gva(state.segment(SegReg::Tr).base & 0xffff_ffff), &mut link, Access::READ)?;
    Ok(u16::from_le_bytes(link))
}

/// Checks the new task's TSS, saves the old task, and makes the new TSS the current one. `next`: RIP of the instruction
/// after the one that asks, if one does. A fault has had no effect.
pub fn leave<S: VcpuState, M: Memory>(
    state: &mut S,
    mem: &mut M,
    request: &TaskSwitch,
    next: u64,
) -> Res<NewTask, M> {
    let ext = request.ext();
    let is_iret = request.source == TaskSource::Iret;
    let wrong = if is_iret { vector::TS } else { vector::GP };
    let fault = |vector| selector_fault(vector, request.selector, ext);
    let global = request.selector & 4 == 0 && request.selector & !7 != 0;
    let at = descriptor::address(&state.gdtr().into(), request.selector).filter(|_| global);
    let at = at.ok_or_else(|| fault(wrong))?;
    let new = Descriptor::read(mem, at)?;
    if new.is_tss() != Some(is_iret) {
        return Err(fault(wrong));
    }
    if !new.is_present() {
        return Err(fault(vector::NP));
    }
    let layout = Layout::of(new.kind());
    if new.limit() < layout.limit() {
        return Err(fault(vector::TS));
    }
    let old = state.segment(SegReg::Tr);
    let old_layout = Layout::of(old.attributes as u8);
    let old_at = descriptor::address(&state.gdtr().into(), old.selector);
    let (Some(old_at), true) = (old_at, old.limit >= old_layout.limit()) else {
        return Err(selector_fault(vector::TS, old.selector, ext));
    };
    // All that follows the first effect has been touched before.
    let image = layout.read(mem, new.base())?;
    old_layout.probe(mem, old.base)?;
    if request.nests() {
        mem.probe(Gva(new.base()), 2, Access::WRITE)?;
    }
    for at in [at, old_at] {
        mem.probe(at, 8, Access::WRITE)?;
    }
    if !request.nests() {
        Descriptor::set_busy(mem, old_at, false)?;
    }
    let rip = if request.is_by_instruction() { next } else { state.rip() };
    old_layout.save(mem, old.base, state, rip as u32, saved_flags(state.rflags(), request))?;
    if request.nests() {
        mem.write(Gva(new.base()), &old.selector.to_le_bytes(), Access::WRITE)?;
    }
    if !is_iret {
        Descriptor::set_busy(mem, at, true)?;
    }
    let tr = new.segment(request.selector);
    state.set_segment(SegReg::Tr, Segment { attributes: tr.attributes | descriptor::BUSY, ..tr });
    Ok(NewTask { request: *request, layout, image })
}

/// EFLAGS in the old task's TSS.
fn saved_flags(flags: u64, request: &TaskSwitch) -> u32 {
    let flags = match request.source {
        TaskSource::Iret => flags & !rflags::NT,
        TaskSource::Gate(GateEvent { fault: true, .. }) => flags | rflags::RF,
        _ => flags,
    };
    flags as u32
}

/// Loads the new task's registers. True: its TSS asks for a debug trap before its first instruction (T). A fault is to be
/// delivered to the new task.
pub fn arrive<S: VcpuState, M: Memory>(state: &mut S, mem: &mut M, task: &NewTask) -> Res<bool, M> {
    let image = &task.image;
    let nested = if task.request.nests() { rflags::NT } else { 0 };
    state.set_rflags(u64::from(image.eflags) & FLAGS | rflags::FIXED | nested);
    state.set_rip(image.eip.into());
    for (reg, value) in Gpr::ALL.into_iter().zip(image.gprs) {
        state.set_gpr(reg, value.into());
    }
    state.set_cr0(state.cr0() | cr0::TS);
    state.set_dr7(state.dr7() & !LOCAL_BREAKPOINTS);
    segments::load(state, mem, image, task.request.ext())?;
    if let TaskSource::Gate(GateEvent { error: Some(error), .. }) = task.request.source {
        push(state, mem, task.layout.word(), error, task.request.ext())?;
    }
    if image.eip > state.segment(SegReg::Cs).limit {
        return Err(Exception { vector: vector::GP, error: Some(task.request.ext()), cr2: None }.into());
    }
    Ok(image.trap)
}

/// Pushes an error code of `size` bytes on the new task's stack.
fn push<S: VcpuState, M: Memory>(state: &mut S, mem: &mut M, size: u32, error: u32, ext: u32) -> Res<(), M> {
    let ss = state.segment(SegReg::Ss);
    let mask = if ss.attributes & Segment::BIG != 0 { u32::MAX } else { 0xffff };
    let before = state.gpr(Gpr::Rsp) as u32;
    let sp = before.wrapping_sub(size) & mask;
    let last = u64::from(sp) + u64::from(size) - 1;
    let user = state.cpl() == 3;
    if !super::address::is_within_limit(&ss, sp.into(), last) {
        return Err(Exception { vector: vector::SS, error: Some(ext), cr2: None }.into());
    }
    let at = Gva(ss.base.wrapping_add(sp.into()) & 0xffff_ffff);
    mem.write(at, &error.to_le_bytes()[..size as usize], Access { user, ..Access::WRITE })?;
    state.set_gpr(Gpr::Rsp, u64::from(before & !mask | sp));
    Ok(())
}
