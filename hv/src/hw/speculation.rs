//! What empties the processor of what it has learnt or fetched: see `virt::speculation`, which decides about it.

use core::arch::asm;

use super::msr;

/// Clears the buffers that data sampling reads, on processors where VERW does so (MD_CLEAR); elsewhere it changes flags only.
/// Intel SDM 3, 27.2 and "Microarchitectural Data Sampling" in Intel's guidance.
pub fn clear_buffers() {
    // The memory form alone clears; any selector does, and the null one is never looked up.
    let null: u16 = 0;
    // SAFETY: VERW looks at a selector and sets ZF.
    unsafe { asm!("verw word ptr [{}]", in(reg) &null, options(nostack, readonly)) }
}

/// Writes bit 0 of PRED_CMD or FLUSH_CMD.
///
/// # Safety
/// The processor has that MSR.
pub unsafe fn command(index: u32) {
    // SAFETY: the caller's promise; what is forgotten is learnt again.
    unsafe { msr::write(index, 1) }
}
