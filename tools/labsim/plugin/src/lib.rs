//! The lab machine as a plugin of QEMU's: feeds what a machine executes into [`labsim`]'s model of its processors.
//!
//! What it sees, and how (docs/lab.md has the limits):
//! - loads and stores: a callback for each, after it;
//! - code: a callback for a block that is elsewhere than the last one; instructions are counted without a callback;
//! - the context: MOV to control registers, INVLPG, VMRUN and their like by their bytes; values from QEMU's registers
//!   when the next block begins, because only then it is clear that nothing intercepted the instruction;
//! - #VMEXIT: the block behind a VMRUN is executed.
//!
//! Unsafe code is here and in the other modules of this crate only; `labsim` has none.

mod callbacks;
mod ffi;
mod keeper;
mod memory;
mod options;
mod page_trace;
mod registers;
mod state;
mod translate;
mod vcpu;

use std::ffi::{c_char, c_int};

use state::Plugin;
use vcpu::Vcpu;

/// The interface that this plugin was written for; QEMU looks at it.
#[unsafe(no_mangle)]
#[used]
pub static qemu_plugin_version: c_int = ffi::VERSION;

/// Called by QEMU once. A status other than 0 ends QEMU.
///
/// # Safety
/// `info` and `argv` are what the interface says they are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qemu_plugin_install(
    id: ffi::Id,
    info: *const ffi::Info,
    argc: c_int,
    argv: *const *const c_char,
) -> c_int {
    // SAFETY: by the caller.
    let installed =
        unsafe { options::Options::read(argc, argv).and_then(|options| Plugin::new(options, &*info)) };
    match installed {
        Ok(plugin) => {
            // SAFETY: the plugin is installed just before.
            unsafe {
                plugin.install(id);
                register(id);
            }
            0
        }
        Err(text) => {
            eprintln!("labsim: {text}");
            -1
        }
    }
}

/// Registers what QEMU calls back, of the types that the interface asks for.
///
/// # Safety
/// The plugin is installed, QEMU has given it this number, and none of these is registered.
unsafe fn register(id: ffi::Id) {
    // SAFETY: by the caller.
    unsafe {
        ffi::qemu_plugin_register_vcpu_init_cb(id, Vcpu::start);
        ffi::qemu_plugin_register_vcpu_tb_trans_cb(id, translate::block);
        ffi::qemu_plugin_register_flush_cb(id, translate::flushed);
        ffi::qemu_plugin_register_vcpu_idle_cb(id, keeper::halts);
        ffi::qemu_plugin_register_atexit_cb(id, state::finish, std::ptr::null_mut());
    }
}
