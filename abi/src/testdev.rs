//! The test device's ports and memory, which a VM has with `test_device = true`.
//!
//! Those up to [`IRQ`] and [`MEMORY`] are where QEMU's `pc-testdev` (hw/misc/pc-testdev.c) and `isa-debug-exit` have them, so that
//! kernels made for these run unchanged.

constants! {
    /// A latch of four bytes; what is written is read back.
    LATCH: u16 = 0xe0;
    /// A dword written drops the hypervisor's translations of the page at that guest-physical address; its contents stay.
    FLUSH: u16 = 0xe4;
    /// The latch again.
    LATCH_BYTES: u16 = 0xe8;
    /// A write ends the run with that value.
    EXIT: u16 = 0xf4;
    /// A byte written to IRQ + n drives interrupt line n: 1 raises it, 0 lowers it.
    IRQ: u16 = 0x2000;
    /// Interrupt lines.
    IRQS: u16 = 24;
    /// A dword written takes the page at that guest-physical address away for good.
    UNMAP: u16 = 0x2018;
    /// Device memory: each access exits, and reads return what was written.
    MEMORY: u64 = 0xff00_0000;
    /// Bytes of the device memory.
    MEMORY_BYTES: u64 = 0x1_0000;
}

const _: () = assert!(IRQ + IRQS == UNMAP);
