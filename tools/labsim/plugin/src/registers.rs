//! A processor's registers, as far as the model needs them.

use std::ffi::CStr;

use labsim::model::{context::Control, decode::Operand};

use crate::ffi;

/// The names, by which QEMU knows them. The first sixteen are in the order of their encoding.
const NAMES: [&str; 23] = [
    "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14",
    "r15", "cr0", "cr3", "cr4", "efer", "fs_base", "gs_base", "rip",
];
const CR0: usize = 16;
const FS_BASE: usize = 20;
/// RIP, without its segment's base.
pub const RIP: usize = 22;
/// RAX.
pub const RAX: usize = 0;
/// RCX.
pub const RCX: usize = 1;

/// Handles of one processor's registers.
pub struct Registers {
    handles: [*mut ffi::Register; NAMES.len()],
    buffer: *mut ffi::GArray,
}

impl Registers {
    /// Finds them; the error is the name of one that QEMU does not have.
    ///
    /// # Safety
    /// Called on the processor's own thread, from the callback of its start.
    pub unsafe fn new() -> Result<Registers, &'static str> {
        // SAFETY: by the caller. The array holds that many descriptions and stays as it is; names end with a zero.
        let known = unsafe {
            let array = ffi::qemu_plugin_get_registers();
            std::slice::from_raw_parts(
                (*array).data.cast::<ffi::RegisterDescription>(),
                (*array).len as usize,
            )
        };
        let mut handles = [std::ptr::null_mut(); NAMES.len()];
        for (handle, name) in handles.iter_mut().zip(NAMES) {
            // SAFETY: as above.
            let found = known
                .iter()
                .find(|register| unsafe { CStr::from_ptr(register.name) }.to_bytes() == name.as_bytes());
            *handle = found.ok_or(name)?.handle;
        }
        // SAFETY: allocates; the array lives as long as the processor.
        Ok(Registers { handles, buffer: unsafe { ffi::g_byte_array_new() } })
    }

    /// A register's value.
    ///
    /// # Safety
    /// Called on the processor's own thread, in a callback that may read registers.
    pub unsafe fn get(&self, register: usize) -> u64 {
        let mut bytes = [0; 8];
        // SAFETY: the buffer is this processor's own, and QEMU appends as many bytes as it returns.
        unsafe {
            ffi::g_byte_array_set_size(self.buffer, 0);
            let len = ffi::qemu_plugin_read_register(self.handles[register], self.buffer);
            let len = usize::try_from(len).unwrap_or(0).min(bytes.len());
            std::ptr::copy_nonoverlapping((*self.buffer).data, bytes.as_mut_ptr(), len);
        }
        u64::from_le_bytes(bytes)
    }

    /// The registers that decide about translation.
    ///
    /// # Safety
    /// As for [`get`](Self::get).
    pub unsafe fn control(&self) -> Control {
        // SAFETY: by the caller.
        let [cr0, cr3, cr4, efer] = [0, 1, 2, 3].map(|register| unsafe { self.get(CR0 + register) });
        Control { cr0, cr3, cr4, efer }
    }

    /// The address of an operand; `None` if it is not worked out. `next`: where the following instruction is.
    ///
    /// # Safety
    /// As for [`get`](Self::get).
    pub unsafe fn address(&self, operand: &Operand, next: u64, wide: bool) -> Option<u64> {
        if operand.unusual {
            return None;
        }
        // SAFETY: by the caller.
        let get = |register: u8| unsafe { self.get(usize::from(register)) };
        let base = operand.base.map_or(0, get);
        let index = operand.index.map_or(0, get) << operand.scale;
        let mut address = base.wrapping_add(index).wrapping_add(operand.displacement as u64);
        if operand.relative && wide {
            address = address.wrapping_add(next);
        }
        if operand.segment != 0 {
            // SAFETY: by the caller.
            address = address.wrapping_add(unsafe { self.get(FS_BASE + usize::from(operand.segment) - 1) });
        }
        Some(if wide { address } else { address & 0xffff_ffff })
    }
}
