//! Where the hypervisor's image lies: the linker script's symbols.

use core::ops::Range;

unsafe extern "C" {
    static __image_start: u8;
    static __text_end: u8;
    static __rodata_end: u8;
    static __image_end: u8;
    static boot_stack_guard: u8;
}

macro_rules! address_of {
    ($symbol:ident) => {
        &raw const $symbol as u64
    };
}

/// The whole image, its .bss and boot stack included.
pub fn all() -> Range<u64> {
    address_of!(__image_start)..address_of!(__image_end)
}

/// Code.
pub fn text() -> Range<u64> {
    address_of!(__image_start)..address_of!(__text_end)
}

/// Constants.
pub fn rodata() -> Range<u64> {
    address_of!(__text_end)..address_of!(__rodata_end)
}

/// Variables.
pub fn data() -> Range<u64> {
    address_of!(__rodata_end)..address_of!(__image_end)
}

/// The page below the boot stack, which is never mapped.
pub fn stack_guard() -> u64 {
    address_of!(boot_stack_guard)
}

/// Whether two words at `address` are in the image's variables, where the boot stack is.
pub fn holds_stack(address: u64) -> bool {
    data().start <= address && address < data().end - 16
}
