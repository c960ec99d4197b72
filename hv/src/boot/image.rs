//! Where the hypervisor's image lies: the linker script's symbols. Also the ELF note with its version, for tools that read
//! the file; the linker adds a second note with a hash of the whole file (the build ID).

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

/// Both: what is never written.
pub fn constant() -> Range<u64> {
    address_of!(__image_start)..address_of!(__rodata_end)
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

/// The version's text, with a zero byte at least.
const VERSION: [u8; 16] = {
    let text = env!("CARGO_PKG_VERSION").as_bytes();
    let mut padded = [0; 16];
    let mut at = 0;
    while at < text.len() {
        padded[at] = text[at];
        at += 1;
    }
    assert!(text.len() < padded.len());
    padded
};

/// An ELF note (System V ABI, "Note Section").
#[repr(C)]
struct Note {
    name_size: u32,
    size: u32,
    kind: u32,
    name: [u8; 12],
    contents: [u8; 16],
}

#[used]
#[unsafe(link_section = ".note.palimpsest")]
static NOTE: Note = Note { name_size: 11, size: 16, kind: 1, name: *b"Palimpsest\0\0", contents: VERSION };
