//! The machine from a kernel's side: instructions, traps, page tables, user mode, interrupt controllers, the console.
//!
//! Everything here is static and belongs to the first processor; nothing locks. Only `smp` knows of others. The wrappers of privileged
//! instructions are safe functions: to break the machine is the program's purpose, and it is the only program.

pub mod insn;
pub mod ioapic;
pub mod lapic;
pub mod legacy;
pub mod paging;
pub mod pic;
pub mod serial;
pub mod smp;
pub mod step;
pub mod time;
pub mod trap;
pub mod user;

core::arch::global_asm!(include_str!("entry.s"));

/// A static variable of a machine with one processor, where traps are the only concurrency.
pub struct Cell<T>(core::cell::UnsafeCell<T>);

// SAFETY: one processor; values are copied in and out as a whole, volatile.
unsafe impl<T> Sync for Cell<T> {}

impl<T: Copy> Cell<T> {
    /// A variable with a value.
    pub const fn new(value: T) -> Self {
        Cell(core::cell::UnsafeCell::new(value))
    }

    /// Its value, read from memory.
    pub fn get(&self) -> T {
        // SAFETY: the pointer is valid, and no reference to the contents exists.
        unsafe { self.0.get().read_volatile() }
    }

    /// Writes a value to memory.
    pub fn set(&self, value: T) {
        // SAFETY: as above.
        unsafe { self.0.get().write_volatile(value) }
    }

    /// Where it is.
    pub const fn ptr(&self) -> *mut T {
        self.0.get()
    }
}

/// Whether the hypervisor beneath is this project's.
pub fn is_palimpsest() -> bool {
    let [_, b, c, d] = insn::cpuid(0x4000_0000, 0);
    [b, c, d] == [*b"Pali", *b"mpse", *b"stHV"].map(u32::from_le_bytes)
}

/// Whether the processor calls itself Intel's, and so differs where AMD's do from them; anything else counts as AMD's.
pub fn is_intel() -> bool {
    let [_, b, c, d] = insn::cpuid(0, 0);
    [b, d, c] == [*b"Genu", *b"ineI", *b"ntel"].map(u32::from_le_bytes)
}
