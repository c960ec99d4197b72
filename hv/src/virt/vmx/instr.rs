//! The instructions of VMX, and the switch to the guest and back.
//!
//! Tests have a [`modelled`] processor in their place.

#[cfg(not(test))]
mod host;
#[cfg(test)]
pub mod modelled;
#[cfg(not(test))]
mod real;

#[cfg(not(test))]
pub use host::write_host_state;
#[cfg(test)]
pub use modelled::*;
#[cfg(not(test))]
pub use real::*;

/// A VMX instruction failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed;

/// What the switch to the guest needs, at fixed offsets.
#[repr(C)]
#[derive(Debug)]
pub struct GuestBlock {
    /// General-purpose registers in encoding order; that of RSP is unused (the VMCS holds it).
    pub gprs: [u64; 16],
    /// The host's RSP as it is in the VMCS.
    pub host_rsp: u64,
    /// The VMCS has been launched: VMRESUME from now on.
    pub launched: u64,
    /// How often the host's RSP and RIP were written to the VMCS.
    pub moves: u64,
}

const _: () = assert!(core::mem::offset_of!(GuestBlock, host_rsp) == 128);
const _: () = assert!(core::mem::offset_of!(GuestBlock, launched) == 136);
const _: () = assert!(core::mem::offset_of!(GuestBlock, moves) == 144);

/// VMLAUNCH or VMRESUME failed without a VMCS to say why.
pub const FAIL_INVALID: u32 = 0xffff_fff0;
/// VMLAUNCH or VMRESUME failed; the VMCS says why.
pub const FAIL_VALID: u32 = 0xffff_fff1;
