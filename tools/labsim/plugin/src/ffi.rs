//! QEMU's plugin interface, version 4 (QEMU 9.2 and newer), by hand: what this plugin uses of it.
//!
//! Handles are opaque pointers that QEMU owns; they are valid during the callback that hands them out, unless said
//! otherwise. The functions are QEMU's own, found in the program that loads the plugin.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// The version of the interface that is written down here.
pub const VERSION: c_int = 4;

/// A plugin's number.
pub type Id = u64;
/// What QEMU tells of an access, opaque but for [`qemu_plugin_mem_is_store`] and its like.
pub type MemInfo = u32;

/// A block of code while it is translated.
#[repr(C)]
pub struct Block {
    _opaque: [u8; 0],
}

/// An instruction of it.
#[repr(C)]
pub struct Instruction {
    _opaque: [u8; 0],
}

/// Where an access went; valid until the end of the callback.
#[repr(C)]
pub struct Address {
    _opaque: [u8; 0],
}

/// A register of a processor; valid as long as that is.
#[repr(C)]
pub struct Register {
    _opaque: [u8; 0],
}

/// Words of each processor that translated code can change by itself.
#[repr(C)]
pub struct Scoreboard {
    _opaque: [u8; 0],
}

/// A word in a scoreboard.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ScoreWord {
    /// The scoreboard.
    pub score: *mut Scoreboard,
    /// The word's offset.
    pub offset: usize,
}

/// GLib's arrays.
#[repr(C)]
pub struct GArray {
    /// The elements.
    pub data: *mut u8,
    /// Their number.
    pub len: c_uint,
}

/// An element of [`qemu_plugin_get_registers`].
#[repr(C)]
pub struct RegisterDescription {
    /// For [`qemu_plugin_read_register`].
    pub handle: *mut Register,
    /// Its name.
    pub name: *const c_char,
    /// The group that it belongs to.
    pub feature: *const c_char,
}

/// The version numbers in [`Info`].
#[repr(C)]
pub struct InfoVersions {
    /// The oldest interface that QEMU still has.
    pub min: c_int,
    /// The newest.
    pub cur: c_int,
}

/// What QEMU says of itself when it loads a plugin.
#[repr(C)]
pub struct Info {
    /// The architecture's name.
    pub target_name: *const c_char,
    /// Of the interface.
    pub version: InfoVersions,
    /// A whole machine is emulated.
    pub system_emulation: bool,
    /// Processors at the start.
    pub smp_vcpus: c_int,
    /// Processors at most.
    pub max_vcpus: c_int,
}

/// Called for a block, an instruction, or at the end.
pub type Callback = extern "C" fn(vcpu: c_uint, data: *mut c_void);
/// Called after a load or store.
pub type AccessCallback = extern "C" fn(vcpu: c_uint, info: MemInfo, va: u64, data: *mut c_void);

/// The callback reads no registers.
pub const NO_REGISTERS: c_int = 0;
/// The callback may read registers.
pub const READS_REGISTERS: c_int = 1;
/// Loads and stores.
pub const LOADS_AND_STORES: c_int = 3;
/// Call if the word is equal to the immediate value.
pub const EQUAL: c_int = 2;
/// Call if the word is not equal to the immediate value.
pub const NOT_EQUAL: c_int = 3;
/// Call if the word is at least the immediate value.
pub const AT_LEAST: c_int = 7;
/// Add the immediate value to the word.
pub const ADD: c_int = 0;

/// The logarithm of an access's bytes, as `qemu_plugin_mem_size_shift` tells it, without a call: QEMU 10.0 has it above four bits of
/// an index. Its interface does not promise that, so the function has to be asked sometimes, too.
#[inline(always)]
pub fn size_shift(info: MemInfo) -> c_uint {
    info >> 4 & 7
}

unsafe extern "C" {
    pub fn qemu_plugin_reset(id: Id, callback: extern "C" fn(Id));
    pub fn qemu_plugin_register_vcpu_init_cb(id: Id, callback: extern "C" fn(Id, c_uint));
    pub fn qemu_plugin_register_vcpu_tb_trans_cb(id: Id, callback: extern "C" fn(Id, *mut Block));
    pub fn qemu_plugin_register_vcpu_idle_cb(id: Id, callback: extern "C" fn(Id, c_uint));
    pub fn qemu_plugin_register_flush_cb(id: Id, callback: extern "C" fn(Id));
    pub fn qemu_plugin_register_atexit_cb(
        id: Id,
        callback: extern "C" fn(Id, *mut c_void),
        data: *mut c_void,
    );
    pub fn qemu_plugin_register_vcpu_tb_exec_cb(
        b: *mut Block,
        callback: Callback,
        flags: c_int,
        data: *mut c_void,
    );
    pub fn qemu_plugin_register_vcpu_tb_exec_cond_cb(
        block: *mut Block,
        callback: Callback,
        flags: c_int,
        condition: c_int,
        word: ScoreWord,
        immediate: u64,
        data: *mut c_void,
    );
    pub fn qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(
        block: *mut Block,
        operation: c_int,
        word: ScoreWord,
        immediate: u64,
    );
    pub fn qemu_plugin_register_vcpu_insn_exec_cb(
        instruction: *mut Instruction,
        callback: Callback,
        flags: c_int,
        data: *mut c_void,
    );
    pub fn qemu_plugin_register_vcpu_mem_cb(
        instruction: *mut Instruction,
        callback: AccessCallback,
        flags: c_int,
        kinds: c_int,
        data: *mut c_void,
    );
    pub fn qemu_plugin_tb_n_insns(block: *const Block) -> usize;
    pub fn qemu_plugin_tb_get_insn(block: *const Block, index: usize) -> *mut Instruction;
    pub fn qemu_plugin_insn_data(instruction: *const Instruction, into: *mut c_void, len: usize) -> usize;
    pub fn qemu_plugin_insn_size(instruction: *const Instruction) -> usize;
    pub fn qemu_plugin_insn_vaddr(instruction: *const Instruction) -> u64;
    pub fn qemu_plugin_insn_haddr(instruction: *const Instruction) -> *mut c_void;
    pub fn qemu_plugin_mem_size_shift(info: MemInfo) -> c_uint;
    pub fn qemu_plugin_mem_is_store(info: MemInfo) -> bool;
    pub fn qemu_plugin_get_hwaddr(info: MemInfo, va: u64) -> *mut Address;
    pub fn qemu_plugin_hwaddr_is_io(address: *const Address) -> bool;
    pub fn qemu_plugin_hwaddr_phys_addr(address: *const Address) -> u64;
    pub fn qemu_plugin_get_registers() -> *mut GArray;
    pub fn qemu_plugin_read_register(register: *mut Register, into: *mut GArray) -> c_int;
    pub fn qemu_plugin_scoreboard_new(bytes: usize) -> *mut Scoreboard;
    pub fn qemu_plugin_scoreboard_find(score: *mut Scoreboard, vcpu: c_uint) -> *mut c_void;
    // GLib's, which QEMU is linked with.
    pub fn g_byte_array_new() -> *mut GArray;
    pub fn g_byte_array_set_size(array: *mut GArray, len: c_uint) -> *mut GArray;
}
