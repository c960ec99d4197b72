//! What happens while the machine runs.

use std::ffi::{c_uint, c_void};

use labsim::model::{
    context::{Control, Vmcb},
    decode::Operation,
    hierarchy::LINE,
    memory::Memory,
    processor::{Place, Quick, Request, Truth},
    walk::Format,
    witness::GuestFlush,
};

use crate::{
    ffi,
    state::plugin,
    translate::Block,
    vcpu::{Pending, Vcpu},
};

/// An instruction that changes the context.
pub struct Instruction {
    /// What it does.
    pub operation: Operation,
    /// Where the next one is.
    pub next: u64,
}

/// The x2APIC's interrupt command register (APM 2, 16.11).
const X2APIC_ICR: u64 = 0x830;

/// A load or store.
pub extern "C" fn access<const CACHES: bool>(vcpu: c_uint, info: ffi::MemInfo, va: u64, _data: *mut c_void) {
    let last = va.wrapping_add((1 << ffi::size_shift(info)) - 1);
    if (last ^ va) >> LINE != 0 {
        return crossing_access(vcpu, info, va);
    }
    // SAFETY: a callback of this processor.
    let state = unsafe { Vcpu::of(vcpu) };
    if state.is_physical(info) {
        return;
    }
    match state.processor.quick::<CACHES>(va) {
        Quick::Done => {}
        Quick::Line(pa) => state.processor.touch(pa),
        Quick::Unknown => {
            slow_access(vcpu, info, va);
        }
    }
}

/// A load or store that ends in another line than it begins. Apart from the others, which then need no stack.
#[inline(never)]
fn crossing_access(vcpu: c_uint, info: ffi::MemInfo, va: u64) {
    let last = va.wrapping_add((1 << ffi::size_shift(info)) - 1);
    // SAFETY: a callback of this processor, and of this access.
    let (state, is_store) = unsafe { (Vcpu::of(vcpu), ffi::qemu_plugin_mem_is_store(info)) };
    if !state.is_physical(info) && !state.processor.quick_crossing(va, last, is_store) {
        slow_access(vcpu, info, va);
    }
}

/// A load or store that is compared with QEMU's translation in any case.
pub extern "C" fn checked_access(vcpu: c_uint, info: ffi::MemInfo, va: u64, _data: *mut c_void) {
    slow_access(vcpu, info, va);
}

/// A load or store that belongs to the trace of pages. Where it crosses pages, only the first one is in the trace.
pub extern "C" fn traced_access(vcpu: c_uint, info: ffi::MemInfo, va: u64, _data: *mut c_void) {
    let place = slow_access(vcpu, info, va);
    if let (Some(Place::Memory(pa)), Some(trace)) = (place, &plugin().page_trace) {
        // SAFETY: a callback of this processor.
        trace.access(unsafe { Vcpu::of(vcpu) }.processor.in_guest(), pa);
    }
}

/// Where it went; `None` if it is none of the guest's or the hypervisor's own.
#[inline(never)]
fn slow_access(vcpu: c_uint, info: ffi::MemInfo, va: u64) -> Option<Place> {
    // SAFETY: a callback of this processor, and of this access.
    let (state, shift, write) = unsafe {
        (Vcpu::of(vcpu), ffi::qemu_plugin_mem_size_shift(info), ffi::qemu_plugin_mem_is_store(info))
    };
    // Each page's first access comes here, so that what `access` relies on is known to hold from the beginning.
    if shift != ffi::size_shift(info) {
        eprintln!("labsim: this QEMU describes accesses in another way: use version 10.0");
        std::process::exit(1);
    }
    let len = 1 << shift;
    if state.is_physical(info) {
        return None;
    }
    let user = state.processor.in_guest() && is_low(state, va);
    let request = Request { va, len, write, user };
    let place = state.processor.access(request, &|va| truth(info, va));
    if place == Place::Doorbell {
        state.processor.sync(state.instructions());
        if write {
            state.run_ends();
        }
    }
    Some(place)
}

/// Whether a guest's address is in the half that kernels leave to programs.
fn is_low(state: &Vcpu, va: u64) -> bool {
    match state.processor.control().format() {
        Some(Format::Long) => va >> 47 == 0,
        Some(Format::Off) | None => false,
        Some(_) => va < 3 << 30,
    }
}

fn truth(info: ffi::MemInfo, va: u64) -> Truth {
    // SAFETY: in the callback of this access; the answer is used at once.
    unsafe {
        let address = ffi::qemu_plugin_get_hwaddr(info, va);
        if address.is_null() {
            return Truth::Unknown;
        }
        let pa = ffi::qemu_plugin_hwaddr_phys_addr(address);
        // ROM and the like are no devices to QEMU, but no RAM of the file's either.
        let device = ffi::qemu_plugin_hwaddr_is_io(address) || plugin().ram.read_u64(pa & !7).is_none();
        if device { Truth::Device } else { Truth::At(pa) }
    }
}

/// VMRUN's own accesses: the first one to the control block shows how QEMU marks accesses by physical address.
pub extern "C" fn vmrun_access(vcpu: c_uint, info: ffi::MemInfo, va: u64, _data: *mut c_void) {
    // SAFETY: a callback of this processor.
    let state = unsafe { Vcpu::of(vcpu) };
    if va >> 12 == state.vmcb >> 12 {
        state.physical_mark = info & 15;
    }
}

/// A block begins whose code is elsewhere than the last one's, or which has to look at what happened before.
pub extern "C" fn block(vcpu: c_uint, data: *mut c_void) {
    // SAFETY: a callback of this processor, with the data of its registration.
    let (state, block) = unsafe { (Vcpu::of(vcpu), &*data.cast::<Block>()) };
    // SAFETY: this processor's words.
    unsafe { (*state.score()).code = block.code };
    if !state.pending.any && state.processor.quick_fetch(block.va, block.quick_pa, block.lines()) {
        return;
    }
    follow(state, block);
    let moved = moved(state, block);
    state.processor.fetch(block.va.wrapping_add(moved), block.rest.end.wrapping_add(moved), &|va: u64| {
        let at_first = va.wrapping_sub(moved);
        let known = block.rest.pa.iter().flatten().find(|(at, _)| at >> 12 == at_first >> 12);
        known.map_or(Truth::Unknown, |(_, pa)| Truth::At((pa & !0xfff) | (va & 0xfff)))
    });
}

/// The same where pages are traced. Code is in the trace when it goes to another line, or page if caches are not modelled.
pub extern "C" fn traced_block(vcpu: c_uint, data: *mut c_void) {
    block(vcpu, data);
    // SAFETY: a callback of this processor, with the data of its registration.
    let (state, block) = unsafe { (Vcpu::of(vcpu), &*data.cast::<Block>()) };
    if let Some(trace) = &plugin().page_trace {
        for (_, pa) in block.rest.pa.iter().flatten() {
            trace.access(state.processor.in_guest(), *pa);
        }
    }
}

/// A block begins that is counted and not modelled: what happened before it is looked at.
pub extern "C" fn counted_block(vcpu: c_uint, data: *mut c_void) {
    // SAFETY: a callback of this processor, with the data of its registration.
    let (state, block) = unsafe { (Vcpu::of(vcpu), &*data.cast::<Block>()) };
    // SAFETY: this processor's words. No block asks for this one.
    unsafe { (*state.score()).code = 0 };
    follow(state, block);
}

/// Brings the context up to what the last instructions did, in a callback that may read registers.
fn follow(state: &mut Vcpu, block: &Block) {
    if block.rest.after_vmrun && state.processor.in_guest() {
        leave(state);
        let instructions = state.instructions();
        state.processor.vmexit(instructions);
    }
    if state.pending.any {
        // SAFETY: by the caller.
        apply(state, |state| unsafe { state.registers.control() });
    }
}

/// QEMU has one translation of code for all linear addresses that it is mapped to, and tells the one at which it was
/// translated. This is how far the block is from there: 0, unless the page at that address is not the block's.
fn moved(state: &mut Vcpu, block: &Block) -> u64 {
    let expected = block.rest.pa[0].map(|(_, pa)| pa >> 12);
    if expected.is_none() || state.processor.quick_code(block.va) == expected {
        return 0;
    }
    // SAFETY: in a callback that may read registers.
    let moved = unsafe { state.registers.get(crate::registers::RIP) }.wrapping_sub(block.va);
    // RIP lacks the base of its segment: 0 wherever there is paging, but for programs of another age.
    if moved & 0xfff == 0 && state.processor.control().format() != Some(Format::Off) { moved } else { 0 }
}

/// The guest has been left. What is pending was intercepted, and not executed; or it was executed, and an interrupt came before
/// the next block.
fn leave(state: &mut Vcpu) {
    let memory = &plugin().ram;
    let executed = state.pending.any && Vmcb::intercepted(memory, state.vmcb) == Some(false);
    if let Some(guest) = Vmcb::read(memory, state.vmcb).filter(|_| executed) {
        apply(state, |_| guest.control);
    }
    // The hypervisor flushes for the guest. What INVLPG flushes is not always known.
    if state.pending.cr3 {
        state.processor.guest_flushes(GuestFlush::NonGlobal);
    }
    if let Some(Some(va)) = state.pending.invlpg {
        state.processor.guest_flushes(GuestFlush::Page(va));
    }
    if state.pending.invpcid {
        state.processor.guest_flushes(GuestFlush::All);
    }
    state.pending = Pending::default();
}

/// Applies what the last instructions did. `control` reads the control registers as they are after them.
#[cold]
fn apply(state: &mut Vcpu, control: impl FnOnce(&Vcpu) -> Control) {
    let pending = std::mem::take(&mut state.pending);
    let control = pending.control.then(|| control(state));
    let processor = &mut state.processor;
    if pending.cr3 {
        processor.write_cr3();
    }
    if let Some(control) = control {
        processor.set_control(control);
    }
    match pending.invlpg {
        Some(Some(va)) => processor.invlpg(va),
        Some(None) => processor.invpcid(),
        None => {}
    }
    if let Some((va, asid)) = pending.invlpga {
        processor.invlpga(va, asid);
    }
    if pending.invpcid {
        processor.invpcid();
    }
    if pending.ipi {
        processor.ipi();
    }
}

/// An instruction that changes the context is about to be executed.
pub extern "C" fn instruction(vcpu: c_uint, data: *mut c_void) {
    use crate::registers::{RAX, RCX};
    // SAFETY: a callback of this processor that may read registers, with the data of its registration.
    let (state, instruction) = unsafe { (Vcpu::of(vcpu), &*data.cast::<Instruction>()) };
    // SAFETY: as above.
    let get = |state: &Vcpu, register| unsafe { state.registers.get(register) };
    if instruction.operation == Operation::Model {
        plugin().begin_to_model();
        return;
    }
    if let Operation::Begin | Operation::End = instruction.operation {
        // The instructions of the whole block count already.
        let number = get(state, RAX);
        state.processor.sync(state.instructions());
        let record = state.processor.record();
        match instruction.operation {
            Operation::Begin => state.regions.begin(number, record),
            _ => state.regions.end(number, record),
        }
        return;
    }
    let mut pending = std::mem::take(&mut state.pending);
    pending.any = true;
    match &instruction.operation {
        Operation::MovCr(register) => {
            pending.control = true;
            pending.cr3 |= *register == 3;
        }
        Operation::Invlpg(operand) => {
            let wide = state.processor.control().format() == Some(Format::Long);
            // SAFETY: as above.
            pending.invlpg = Some(unsafe { state.registers.address(operand, instruction.next, wide) });
        }
        Operation::Invlpga => pending.invlpga = Some((get(state, RAX), get(state, RCX) as u32)),
        Operation::Invpcid => pending.invpcid = true,
        Operation::Wrmsr => {
            pending.ipi |= get(state, RCX) as u32 as u64 == X2APIC_ICR;
            // EFER may be what is written.
            pending.control = true;
        }
        Operation::Vmrun => {
            state.pending = pending;
            enter(state, get(state, RAX));
            state.ask();
            return;
        }
        // They change nothing.
        Operation::Begin | Operation::End | Operation::Model => {}
    }
    state.pending = pending;
    state.ask();
}

fn enter(state: &mut Vcpu, vmcb: u64) {
    if state.processor.in_guest() {
        // A guest's own: it is intercepted, always.
        return;
    }
    // What came before in the same block.
    // SAFETY: in a callback that may read registers.
    apply(state, |state| unsafe { state.registers.control() });
    state.vmcb = vmcb;
    let instructions = state.instructions();
    let host = state.processor.control();
    match Vmcb::read(&plugin().ram, vmcb) {
        Some(vmcb) => state.processor.vmrun(&vmcb, host, instructions),
        None => eprintln!("labsim: VMRUN with its control block at {vmcb:#x}, where there is no memory"),
    }
}
