//! Instruction emulation for accesses that the processor could not complete: MMIO, string I/O, writes to write-protected
//! page tables. iced-x86 decodes, this module executes; it must be exact on RAM too, because an instruction
//! may touch both.
//!
//! Called by exit dispatch, with the VCPU's registers ([`VcpuState`]) and a [`Memory`] that walks the guest's
//! tables and routes each access to RAM or to a device. [`emulate`] runs one instruction (one bounded chunk of a
//! repeated string instruction) and says what happened as an [`Outcome`]; it never touches memory, ports or registers
//! otherwise.
//!
//! What must hold:
//! - A fault leaves registers and memory as they were, except for the finished iterations of a repeated string
//!   instruction (AMD APM 3, section 1.2.6). So all accesses that can fault are done, or probed, before the first effect.
//! - Everything is architectural: partial registers, flags (undefined ones as Intel's and AMD's processors leave
//!   them, which is unchanged or cleared), segment limits, canonical addresses, #AC, the order of faults.
//! - Decoding never trusts bytes read earlier: a cached form is used only if the bytes are still the same.
//!
//! Not covered: far transfers through gates and to other privilege levels, IRET, POPF, x87, arithmetic of vectors, AVX, and
//! data breakpoints (DR7) on emulated accesses; `tests/forms.rs` has the list. Those instructions end in
//! [`Outcome::Unsupported`], with no effect. MOV SS and POP SS open no interrupt shadow.
//!
//! Files: `insn` (the compact form), `opcode` and `decode` (iced to compact form), `cache` (decoded forms by
//! address), `fetch`, `address` (segmentation), `operand` (reading and writing operands), `flags` (arithmetic),
//! `execute` (the choice among operations and the simple ones), `multiply`, `strings`, `stack`, `vector`, `port`,
//! `descriptor` (segment registers), `far` (far transfers), `tables` (GDTR, IDTR and so on), `special` (the rest),
//! `system` (operands of CR, DR and INVLPG instructions for processors without decode assists), `task` (task switches).

mod address;
mod cache;
mod decode;
mod descriptor;
mod execute;
mod far;
mod fetch;
mod flags;
#[cfg(any(test, feature = "testing"))]
mod fuzz;
mod insn;
mod kinds;
mod multiply;
mod opcode;
mod operand;
mod port;
mod special;
mod stack;
mod strings;
mod system;
mod tables;
pub mod task;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod vector;

pub use cache::{DecodeCache, Fetched, Key};
pub use decode::{DecodeError, MAX_LEN, decode, instruction_length, prepare_decoder};
pub use fetch::{current_key, fetch};
#[cfg(any(test, feature = "testing"))]
pub use fuzz::fuzz_one;
pub use insn::*;
pub use system::{advance, invlpg_address, invpcid_operands, read_msw, register_move, write_msw};

use crate::arch::addr::Gva;
use crate::arch::state::VcpuState;
use crate::arch::{Access, Exception};

/// Why an access was not made. Nothing has happened when it is returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault<S> {
    /// The guest's fault, complete with error code and CR2.
    Exception(Exception),
    /// The caller's own reason; handed through as [`Outcome::Stop`].
    Stop(S),
}

impl<S> From<Exception> for Fault<S> {
    fn from(exception: Exception) -> Self {
        Fault::Exception(exception)
    }
}

/// What the emulator needs besides registers. Addresses are linear; paging, protection (by `access`, and for
/// supervisor accesses RFLAGS.AC under SMAP) and the routing to RAM or devices are the implementation's part.
///
/// Accesses have 1, 2, 4, 8 or 16 bytes and may cross a page; addresses then continue modulo 2^64. An access is all
/// or nothing: both pages are translated before the first byte is read or written. Aligned accesses of up to 8
/// bytes to RAM are single-copy atomic. A device sees each access once, with its size.
pub trait Memory {
    /// A reason of the caller's own to give up an access.
    type Stop;

    /// Fetches instruction bytes; never crosses a page.
    fn fetch(&mut self, at: Gva, buf: &mut [u8], user: bool) -> Result<(), Fault<Self::Stop>>;

    /// Reads. `access.write` says that the same bytes will be written afterwards: the page must be writable, and a
    /// fault reports a write.
    fn read(&mut self, at: Gva, buf: &mut [u8], access: Access) -> Result<(), Fault<Self::Stop>>;

    /// Writes.
    fn write(&mut self, at: Gva, data: &[u8], access: Access) -> Result<(), Fault<Self::Stop>>;

    /// The fault that a read or write of `len` bytes would take; no effect on memory and devices, but accessed and
    /// dirty bits may be set.
    fn probe(&mut self, at: Gva, len: usize, access: Access) -> Result<(), Fault<Self::Stop>>;

    /// Atomically replaces `old` with `new` (equal lengths) if memory holds `old`; says whether it did. On a device:
    /// writes, and says yes.
    fn compare_exchange(
        &mut self,
        at: Gva,
        old: &[u8],
        new: &[u8],
        access: Access,
    ) -> Result<bool, Fault<Self::Stop>>;

    /// Reads `size` bytes (1, 2 or 4) from a port.
    fn io_in(&mut self, port: u16, size: u8) -> Result<u32, Fault<Self::Stop>>;

    /// Writes the low `size` bytes (1, 2 or 4) of `value` to a port.
    fn io_out(&mut self, port: u16, size: u8, value: u32) -> Result<(), Fault<Self::Stop>>;

    /// Whether a repeated string instruction shall pause here ([`Outcome::Continue`]): asked after each iteration. An
    /// access may have left something to do that must not wait for the following ones, or have taken long.
    fn wants_pause(&self) -> bool {
        false
    }

    /// Reads XMM0 to XMM15. CR0 and CR4 have been checked.
    fn xmm(&mut self, index: u8) -> Result<u128, Fault<Self::Stop>>;

    /// Writes XMM0 to XMM15, keeping the wider register's upper part. Does not fail after a successful [`Memory::xmm`].
    fn set_xmm(&mut self, index: u8, value: u128) -> Result<(), Fault<Self::Stop>>;

    /// Reads MM0 to MM7; #MF if an x87 exception is pending.
    fn mmx(&mut self, index: u8) -> Result<u64, Fault<Self::Stop>>;

    /// Writes MM0 to MM7 with the instruction's effect on the x87 tag word. Does not fail after a successful [`Memory::mmx`].
    fn set_mmx(&mut self, index: u8, value: u64) -> Result<(), Fault<Self::Stop>>;
}

/// The bytes of an instruction, for a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bytes {
    /// The bytes; the first `len` count.
    pub bytes: [u8; MAX_LEN],
    /// How many there are.
    pub len: u8,
}

impl Bytes {
    /// The bytes that count.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len).min(MAX_LEN)]
    }
}

/// What came out of one call, and what the caller must do.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome<S> {
    /// The instruction has finished: RIP is at the next one, RF is clear. The interrupt shadow of an earlier
    /// instruction ends; no emulated instruction opens one.
    Done {
        /// RFLAGS.TF was set: set DR6.BS and deliver #DB. With TF set a repeated string instruction stops
        /// after each iteration, so RIP may still be at the instruction (RF is set then).
        single_step: bool,
    },
    /// A repeated string instruction has more to do, or a locked one lost a race: RIP is at the instruction, registers are
    /// architectural. Serve pending events (RF is set, as an interrupt here demands) and enter the guest or
    /// call again.
    Continue,
    /// Deliver this exception with RIP at the instruction. RF in the pushed image is for the delivery to set.
    Fault(Exception),
    /// [`Fault::Stop`] from the caller's [`Memory`], with RIP at the instruction.
    Stop(S),
    /// Not an instruction that is executed here; nothing has happened.
    Unsupported(Bytes),
}

/// Executes the instruction at CS:RIP.
pub fn emulate<S: VcpuState, M: Memory>(
    state: &mut S,
    mem: &mut M,
    cache: &mut DecodeCache,
) -> Outcome<M::Stop> {
    let fetched = match fetch(state, mem, cache) {
        Ok(fetched) => fetched,
        Err(outcome) => return outcome,
    };
    execute(&fetched.insn, state, mem).unwrap_or(Outcome::Unsupported(fetched.bytes))
}

/// Executes `insn`, which was decoded from the bytes at CS:RIP in the present mode. `None`: not executed here,
/// nothing has happened.
pub fn execute<S: VcpuState, M: Memory>(insn: &Insn, state: &mut S, mem: &mut M) -> Option<Outcome<M::Stop>> {
    let user = state.cpl() == 3;
    let mut exec = execute::Exec { insn, state, mem, user };
    let result = exec.run();
    exec.finish(result)
}
