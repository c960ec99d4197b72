//! The only code that touches FPU and SSE registers, which hold a guest's values all the time.
//!
//! CR0.TS is set while the host runs, so that any other use raises #NM. Each routine here clears it (CLTS), does its
//! work and sets it again. A test on the linked image allows vector registers in this module only.
//! Intel SDM 1, chapters 10 and 13; AMD APM 2, 11.4 and 11.5.

use alloc::vec::Vec;
use core::arch::asm;

use super::cpu::{self, CpuidResult};
use crate::arch::state::{cr0, cr4};

/// Runs `work` with the FPU usable.
#[inline(always)]
fn with_fpu<R>(work: impl FnOnce() -> R) -> R {
    // SAFETY: CLTS and setting TS again concern this module's instructions only.
    unsafe {
        asm!("clts", options(nomem, nostack, preserves_flags));
        let result = work();
        cpu::set_cr0(cpu::cr0() | cr0::TS);
        result
    }
}

macro_rules! xmm {
    ($index:expr, $before:literal, $after:literal, $address:expr, [$($n:literal)*]) => {
        match $index & 15 {
            // SAFETY: moves between memory that is ours and a register that only guests use.
            $($n => unsafe {
                asm!(concat!("movups ", $before, "xmm", $n, $after), in(reg) $address,
                     options(nostack, preserves_flags))
            },)*
            _ => {}
        }
    };
}

/// The value of XMM`index` (bits 3:0 count) of the guest whose FPU state is in the processor.
#[inline(never)]
pub fn xmm(index: u8) -> u128 {
    let mut value = 0u128;
    let to = &raw mut value;
    with_fpu(|| xmm!(index, "[{0}], ", "", to, [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15]));
    value
}

/// Sets XMM`index` (bits 3:0 count); the wider register's upper part stays.
#[inline(never)]
pub fn set_xmm(index: u8, value: u128) {
    let from = &raw const value;
    with_fpu(|| xmm!(index, "", ", [{0}]", from, [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15]));
}

/// Sets XCR0 to what it is between guests, x87 alone, on the PCPU that executes this.
///
/// # Safety
/// No guest's state is in its registers.
pub unsafe fn start() {
    if cpu::cr4() & cr4::OSXSAVE != 0 {
        // SAFETY: x87 alone is always valid.
        unsafe { cpu::xsetbv(0, 1) };
    }
}

/// Alignment that XSAVE demands.
const ALIGN: usize = 64;
/// Bytes of FXSAVE's image.
const FXSAVE_BYTES: usize = 512;

/// The state components that the processor supports: the largest XCR0. CR4.OSXSAVE is set.
fn supported_components() -> u64 {
    let leaf = cpu::cpuid(0xd, 0);
    u64::from(leaf.edx) << 32 | u64::from(leaf.eax)
}

/// Whether FXRSTOR and XRSTOR leave what was there in the pointers to the last x87 instruction and its operand (FOP, FIP, FDP), unless
/// an exception waits in the image: AMD's processors do, but for those that deny it (AMD APM 2, 11.4.4; CVE-2006-1056).
fn leaves_pointers(cpuid: impl Fn(u32) -> CpuidResult) -> bool {
    const ERROR_POINTERS: u32 = 1 << 2;
    let CpuidResult { ebx, ecx, edx, .. } = cpuid(0);
    let vendor = [ebx, edx, ecx].map(u32::to_le_bytes);
    matches!(vendor.as_flattened(), b"AuthenticAMD" | b"HygonGenuine")
        && (cpuid(0x8000_0000).eax < 0x8000_0008 || cpuid(0x8000_0008).ebx & ERROR_POINTERS == 0)
}

/// One VCPU's FPU and vector registers while it is not running.
#[derive(Debug)]
pub struct FpuState {
    words: Vec<u64>,
    /// Components that XSAVE stores; 0 where the processor has FXSAVE only.
    components: u64,
    /// XRSTOR may leave the x87 pointers of the previous VCPU, which must be cleared: see [`leaves_pointers`].
    clears: bool,
}

impl FpuState {
    /// The state after reset, for everything that the processor supports.
    pub fn new() -> FpuState {
        let xsave = cpu::cr4() & cr4::OSXSAVE != 0;
        let leaf = if xsave { Some(cpu::cpuid(0xd, 0)) } else { None };
        let bytes = leaf.map_or(FXSAVE_BYTES, |leaf| leaf.ecx as usize).max(FXSAVE_BYTES) + ALIGN;
        let components = leaf.map_or(0, |leaf| u64::from(leaf.edx) << 32 | u64::from(leaf.eax));
        let clears = leaves_pointers(|leaf| cpu::cpuid(leaf, 0));
        let mut state = FpuState { words: alloc::vec![0; bytes.div_ceil(8)], components, clears };
        let area = state.area();
        // SAFETY: within the area: FCW and MXCSR as after FNINIT and reset; a zero XSAVE header means initial values.
        unsafe {
            (area as *mut u16).write(0x37f);
            (area.add(24) as *mut u32).write(0x1f80);
        }
        state
    }

    /// The components of XCR0 that are stored here: all that the processor supports. 0 where it has no XSAVE.
    pub fn components(&self) -> u64 {
        self.components
    }

    fn area(&mut self) -> *mut u8 {
        let start = self.words.as_mut_ptr().cast::<u8>();
        // SAFETY: `words` has room for the alignment.
        unsafe { start.add(start.align_offset(ALIGN)) }
    }

    /// Stores the processor's registers here.
    ///
    /// # Safety
    /// XCR0 holds all components that the VCPU uses.
    #[inline(never)]
    pub unsafe fn save(&mut self) {
        let (area, low, high) = (self.area(), self.components as u32, (self.components >> 32) as u32);
        // SAFETY: the area is aligned and large enough.
        with_fpu(|| unsafe {
            match self.components {
                0 => asm!("fxsave64 [{}]", in(reg) area, options(nostack, preserves_flags)),
                _ => asm!("xsave64 [{}]", in(reg) area, in("eax") low, in("edx") high,
                          options(nostack, preserves_flags)),
            }
        });
    }

    /// Loads the processor's registers from here.
    ///
    /// # Safety
    /// XCR0 holds all components that the VCPU uses, and the registers' old values are saved or not needed.
    #[inline(never)]
    pub unsafe fn restore(&mut self) {
        let (area, low, high) = (self.area(), self.components as u32, (self.components >> 32) as u32);
        // SAFETY: the area holds what `new` or `save` wrote.
        with_fpu(|| unsafe {
            if self.clears {
                // Clears the pointers, whichever exception waits.
                asm!("fninit", options(nomem, nostack, preserves_flags));
            }
            match self.components {
                0 => asm!("fxrstor64 [{}]", in(reg) area, options(nostack, preserves_flags)),
                _ => asm!("xrstor64 [{}]", in(reg) area, in("eax") low, in("edx") high,
                          options(nostack, preserves_flags)),
            }
        });
    }
}

/// Whether XSAVEC stores AVX state where XRSTOR looks for it, which Bochs' does not. True where there is none of either.
/// XCR0 is 1 afterwards, and all registers are as after reset.
///
/// # Safety
/// The registers' values are not needed.
#[inline(never)]
pub unsafe fn is_xsavec_sound() -> bool {
    const AVX: u64 = 1 << 2;
    const USED: u64 = AVX | 3;
    const XSAVEC: u32 = 1 << 1;
    // In words: the header's XSTATE_BV, and where AVX state begins in either form.
    const HEADER: usize = 512 / 8;
    const BEGIN: usize = 576 / 8;
    const PATTERN: u64 = 0x0123_4567_89ab_cdef;
    let has_both = cpu::cr4() & cr4::OSXSAVE != 0
        && supported_components() & USED == USED
        && cpu::cpuid(0xd, 1).eax & XSAVEC != 0;
    if !has_both {
        return true;
    }
    let mut image = FpuState { components: USED, ..FpuState::new() };
    let mut compacted = FpuState::new();
    let (from, to) = (image.area().cast::<u64>(), compacted.area().cast::<u64>());
    // SAFETY: the processor has these components and instructions; the images are large enough for all components.
    unsafe {
        cpu::xsetbv(0, USED);
        from.add(HEADER).write(AVX);
        from.add(BEGIN).write(PATTERN);
        image.restore();
        with_fpu(|| {
            asm!("xsavec64 [{}]", in(reg) to, in("eax") USED as u32, in("edx") 0,
                 options(nostack, preserves_flags))
        });
        let sound = to.add(HEADER).read() & AVX != 0 && to.add(BEGIN).read() == PATTERN;
        FpuState { components: USED, ..FpuState::new() }.restore();
        cpu::xsetbv(0, 1);
        sound
    }
}

impl Default for FpuState {
    fn default() -> Self {
        Self::new()
    }
}

/// FXSAVE's image (AMD APM 2, 11.4.4), for the MMX registers, whose place depends on the top of the x87 stack.
#[repr(C, align(16))]
struct FxImage([u8; FXSAVE_BYTES]);

impl FxImage {
    const STATUS_HIGH: usize = 3;
    const TAGS: usize = 4;
    const STACK: core::ops::Range<usize> = 32..160;

    #[inline(never)]
    fn save() -> FxImage {
        let mut image = FxImage([0; FXSAVE_BYTES]);
        let to = &raw mut image;
        // SAFETY: the image is aligned and large enough.
        with_fpu(|| unsafe { asm!("fxsave64 [{}]", in(reg) to, options(nostack, preserves_flags)) });
        image
    }

    #[inline(never)]
    fn restore(&self) {
        let from = &raw const *self;
        // SAFETY: the image is what FXSAVE wrote, but for x87 registers, tags and the stack top, which take any value.
        with_fpu(|| unsafe { asm!("fxrstor64 [{}]", in(reg) from, options(nostack, preserves_flags)) });
    }

    /// Number of the register at the top of the x87 stack.
    fn top(&self) -> usize {
        usize::from(self.0[Self::STATUS_HIGH] >> 3 & 7)
    }
}

/// The value of MM`index` (bits 2:0 count); `None` if an unmasked x87 exception is pending (#MF).
pub fn mmx(index: u8) -> Option<u64> {
    const EXCEPTION_SUMMARY: u8 = 1 << 7;
    let image = FxImage::save();
    if image.0[FxImage::STATUS_HIGH - 1] & EXCEPTION_SUMMARY != 0 {
        return None;
    }
    let slot = usize::from(index & 7).wrapping_sub(image.top()) & 7;
    let at = FxImage::STACK.start + slot * 16;
    image.0[at..].first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

/// Sets MM`index` (bits 2:0 count) with the effects of an MMX instruction (AMD APM 1, 5.10): the exponent becomes all
/// ones, all tags valid, the stack top 0.
pub fn set_mmx(index: u8, value: u64) {
    let mut image = FxImage::save();
    // The image is ordered from the top of the stack, which becomes register 0.
    let distance = image.top() * 16;
    image.0[FxImage::STACK].rotate_right(distance);
    let at = FxImage::STACK.start + usize::from(index & 7) * 16;
    image.0[at..at + 8].copy_from_slice(&value.to_le_bytes());
    image.0[at + 8..at + 10].fill(0xff);
    image.0[FxImage::STATUS_HIGH] &= !0x38;
    image.0[FxImage::TAGS] = 0xff;
    image.restore();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A processor with this name, largest extended leaf, and EBX of leaf 8000_0008.
    fn processor(name: &[u8; 12], last: u32, ext8: u32) -> bool {
        let word =
            |at: usize| name[at..at + 4].iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
        leaves_pointers(|leaf| {
            let [eax, ebx, ecx, edx] = match leaf {
                0 => [13, word(0), word(8), word(4)],
                0x8000_0000 => [last, 0, 0, 0],
                0x8000_0008 if last >= leaf => [0, ext8, 0, 0],
                _ => [u32::MAX; 4],
            };
            CpuidResult { eax, ebx, ecx, edx }
        })
    }

    #[test]
    fn knows_who_leaves_the_x87_pointers() {
        assert!(processor(b"AuthenticAMD", 0x8000_001b, 0), "before Zen");
        assert!(processor(b"AuthenticAMD", 0x8000_001e, !4), "another bit");
        assert!(processor(b"AuthenticAMD", 0x8000_0007, 4), "before the leaf");
        assert!(processor(b"HygonGenuine", 0x8000_001f, 0));
        assert!(!processor(b"AuthenticAMD", 0x8000_001f, 4), "Zen");
        assert!(!processor(b"GenuineIntel", 0x8000_0008, 0));
    }
}
