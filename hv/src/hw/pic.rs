//! The two 8259 interrupt controllers, which firmware leaves live: silenced for ever.

use super::port::out8;

/// Moves the PICs' vectors away from the exceptions and masks every line, spurious ones included.
///
/// # Safety
/// Nothing in the host uses the PICs.
pub unsafe fn silence(first_vector: u8) {
    // SAFETY: the standard initialization sequence (8259A data sheet, ICW1 to ICW4, OCW1).
    unsafe {
        for (command, data, vector, wiring) in
            [(0x20, 0x21, first_vector, 4), (0xa0, 0xa1, first_vector.wrapping_add(8), 2)]
        {
            // Masked before and after: the initialization clears the mask.
            out8(data, 0xff);
            out8(command, 0x11);
            out8(data, vector);
            out8(data, wiring);
            out8(data, 0x01);
            out8(data, 0xff);
        }
    }
}
