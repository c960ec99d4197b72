//! IN and OUT.

use core::arch::asm;

macro_rules! port_access {
    ($input:ident, $output:ident, $type:ty, $register:tt, $width:literal) => {
        #[doc = concat!("Reads ", $width, " from `port`.")]
        ///
        /// # Safety
        /// The device behind the port is the caller's, or reading it has no effect on others.
        pub unsafe fn $input(port: u16) -> $type {
            let value;
            // SAFETY: the caller's promise.
            unsafe {
                asm!(concat!("in ", $register, ", dx"), in("dx") port, out($register) value,
                     options(nostack, preserves_flags));
            }
            value
        }

        #[doc = concat!("Writes ", $width, " to `port`.")]
        ///
        /// # Safety
        /// The device behind the port is the caller's.
        pub unsafe fn $output(port: u16, value: $type) {
            // SAFETY: the caller's promise.
            unsafe {
                asm!(concat!("out dx, ", $register), in("dx") port, in($register) value,
                     options(nostack, preserves_flags));
            }
        }
    };
}

port_access!(in8, out8, u8, "al", "a byte");
port_access!(in16, out16, u16, "ax", "two bytes");
port_access!(in32, out32, u32, "eax", "four bytes");
