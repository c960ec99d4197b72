//! Code that QEMU translates: which callbacks it gets.

use std::{
    ffi::c_void,
    mem::offset_of,
    sync::{Mutex, PoisonError},
};

use labsim::model::{
    decode::{Operation, decode},
    processor::Checking,
};

use crate::{
    callbacks::{self, Instruction},
    ffi, keeper,
    options::Model,
    state::{ASK, Score, plugin},
};

/// A block, for its callback: what most of its executions look at. Two are in a line of the host's cache, and blocks that were
/// translated one after the other are neighbours.
#[repr(C, align(32))]
pub struct Block {
    /// What [`Score::code`] says while it, or another block of the same pages or lines, runs.
    pub code: u64,
    /// Where it begins.
    pub va: u64,
    /// The physical address of its begin if it is on one page of memory, and neither what follows a VMRUN nor compared with QEMU in
    /// any case; otherwise one that no page has.
    pub quick_pa: u64,
    /// The rest.
    pub rest: Box<Rest>,
}

/// What the other executions of a block look at.
pub struct Rest {
    /// It is what follows a VMRUN.
    pub after_vmrun: bool,
    /// Where it ends.
    pub end: u64,
    /// The physical address of its begin, and of its first instruction on its second page with that one's linear address.
    pub pa: [Option<(u64, u64)>; 2],
}

impl Block {
    /// Its lines, where caches are modelled.
    #[inline(always)]
    pub fn lines(&self) -> u64 {
        (self.code & SPANS) + 1
    }
}

/// In [`Block::code`]: how many pages or lines it has beyond its first.
const SPANS: u64 = 0xff;
/// Blocks of a chunk.
const CHUNK: usize = 1024;

/// What callbacks have pointers to: freed when QEMU has dropped all translated code.
#[derive(Default)]
struct Kept {
    /// None is ever moved: chunks are made with the room that they need.
    blocks: Vec<Vec<Block>>,
    instructions: Vec<*mut Instruction>,
    /// Linear and host address of what follows each VMRUN.
    after_vmrun: Vec<(u64, u64)>,
}

impl Kept {
    /// Keeps a block where it stays.
    fn block(&mut self, block: Block) -> &Block {
        if self.blocks.last().is_none_or(|chunk| chunk.len() == CHUNK) {
            self.blocks.push(Vec::with_capacity(CHUNK));
        }
        let chunk = self.blocks.last_mut().expect("there is one");
        chunk.push(block);
        chunk.last().expect("it was pushed")
    }
}

// SAFETY: the pointers are boxes that only this list owns.
unsafe impl Send for Kept {}

static KEPT: Mutex<Option<Kept>> = Mutex::new(None);

/// A block is being translated.
pub extern "C" fn block(_id: ffi::Id, block: *mut ffi::Block) {
    let plugin = plugin();
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    let kept = kept.get_or_insert_default();
    // SAFETY: in this callback the block is valid, and so are its instructions.
    unsafe {
        let count = ffi::qemu_plugin_tb_n_insns(block);
        let word = plugin.word(offset_of!(Score, instructions));
        ffi::qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(block, ffi::ADD, word, count as u64);
        if plugin.model == Model::Count || count == 0 {
            return;
        }
        if plugin.keeper.is_some() || plugin.clock && !plugin.models() {
            // By instructions, and not in the callbacks that are there anyway: a loop within one line has none of these.
            let (word, none) = (plugin.word(offset_of!(Score, since)), std::ptr::null_mut());
            ffi::qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(block, ffi::ADD, word, count as u64);
            let (callback, condition) = (keeper::stride, ffi::AT_LEAST);
            ffi::qemu_plugin_register_vcpu_tb_exec_cond_cb(
                block,
                callback,
                ffi::NO_REGISTERS,
                condition,
                word,
                keeper::STRIDE,
                none,
            );
        }
        let info = describe(block, count, kept);
        let info = kept.block(info);
        // While code is only counted, the context is followed all the same, because what is modelled later begins with it.
        let block_callback =
            if plugin.page_trace.is_some() { callbacks::traced_block } else { callbacks::block };
        let (callback, condition, code): (ffi::Callback, _, _) = if plugin.models() {
            (block_callback, ffi::NOT_EQUAL, info.code)
        } else {
            (callbacks::counted_block, ffi::EQUAL, ASK)
        };
        let (flags, after_vmrun) = (ffi::READS_REGISTERS, info.rest.after_vmrun);
        let info = (&raw const *info).cast_mut().cast();
        if after_vmrun {
            ffi::qemu_plugin_register_vcpu_tb_exec_cb(block, callback, flags, info);
        } else {
            let word = plugin.word(offset_of!(Score, code));
            ffi::qemu_plugin_register_vcpu_tb_exec_cond_cb(
                block, callback, flags, condition, word, code, info,
            );
        }
        for index in 0..count {
            instruction(ffi::qemu_plugin_tb_get_insn(block, index), kept);
        }
    }
}

/// # Safety
/// The block is being translated and has `count` instructions, at least one.
unsafe fn describe(block: *mut ffi::Block, count: usize, kept: &Kept) -> Block {
    let plugin = plugin();
    // SAFETY: by the caller.
    let (places, bytes): (Vec<_>, Vec<_>) = unsafe {
        let instructions = (0..count).map(|index| ffi::qemu_plugin_tb_get_insn(block, index));
        instructions
            .map(|i| {
                let place = (ffi::qemu_plugin_insn_vaddr(i), ffi::qemu_plugin_insn_haddr(i) as u64);
                (place, ffi::qemu_plugin_insn_size(i) as u64)
            })
            .unzip()
    };
    let (va, host) = places[0];
    let end = places[count - 1].0.wrapping_add(bytes[count - 1]);
    let shift = if plugin.model == Model::Full { 6 } else { 12 };
    // Blocks of the same lines (or pages) need no callback between them.
    let spans = (end.wrapping_sub(1) >> shift).wrapping_sub(va >> shift) & SPANS;
    let physical = |place: &(u64, u64)| Some((place.0, plugin.physical(place.1)?));
    let second = places.iter().find(|place| place.0 >> 12 != va >> 12);
    let first = physical(&places[0]);
    let one_page = end.wrapping_sub(1) >> 12 == va >> 12;
    let after_vmrun = host != 0 && kept.after_vmrun.contains(&(va, host));
    let is_quick = one_page && !after_vmrun && plugin.check != Checking::All;
    Block {
        code: (va >> shift) << 8 | spans,
        va,
        quick_pa: first.filter(|_| is_quick).map_or(u64::MAX, |(_, pa)| pa),
        rest: Box::new(Rest { after_vmrun, end, pa: [first, second.and_then(physical)] }),
    }
}

/// # Safety
/// The instruction is being translated.
unsafe fn instruction(instruction: *mut ffi::Instruction, kept: &mut Kept) {
    let plugin = plugin();
    let mut bytes = [0u8; 15];
    // SAFETY: by the caller; at most that many bytes are written.
    let (len, va, host) = unsafe {
        let len = ffi::qemu_plugin_insn_data(instruction, bytes.as_mut_ptr().cast(), bytes.len());
        let va = ffi::qemu_plugin_insn_vaddr(instruction);
        (len.min(bytes.len()), va, ffi::qemu_plugin_insn_haddr(instruction) as u64)
    };
    // A byte from 40 to 4f is a whole instruction in 32-bit code, so that there it is never taken for a prefix.
    let operation = decode(&bytes[..len], true).filter(|operation| !plugin.overlooks(operation));
    let next = va.wrapping_add(len as u64);
    if let Some(operation) = operation {
        let info = Box::into_raw(Box::new(Instruction { operation, next }));
        kept.instructions.push(info);
        // SAFETY: by the caller; the callback's data lives until the code is dropped.
        unsafe {
            let (callback, flags) = (callbacks::instruction, ffi::READS_REGISTERS);
            ffi::qemu_plugin_register_vcpu_insn_exec_cb(instruction, callback, flags, info.cast());
        }
    }
    let callback: ffi::AccessCallback = match (operation, plugin.model) {
        (Some(Operation::Vmrun), _) => {
            let site = (next, host + len as u64);
            if host != 0 && !kept.after_vmrun.contains(&site) {
                kept.after_vmrun.push(site);
            }
            callbacks::vmrun_access
        }
        _ if !plugin.models() => return,
        _ if plugin.page_trace.is_some() => callbacks::traced_access,
        _ if plugin.sees_all() => callbacks::checked_access,
        (_, Model::Full) => callbacks::access::<true>,
        _ => callbacks::access::<false>,
    };
    let (flags, kinds, none) = (ffi::NO_REGISTERS, ffi::LOADS_AND_STORES, std::ptr::null_mut::<c_void>());
    // SAFETY: by the caller.
    unsafe { ffi::qemu_plugin_register_vcpu_mem_cb(instruction, callback, flags, kinds, none) };
}

/// QEMU has dropped all translated code: no callback has a pointer any longer.
pub extern "C" fn flushed(_id: ffi::Id) {
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(kept) = kept.as_mut() else { return };
    kept.blocks.clear();
    // SAFETY: they came from boxes, and leave the list here.
    unsafe { kept.instructions.drain(..).for_each(|instruction| drop(Box::from_raw(instruction))) }
}
