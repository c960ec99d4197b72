//! One function per instruction. Faulting ones are to be called under [`super::trap::catch`].

use core::arch::asm;

macro_rules! ports {
    ($($input:ident $output:ident $type:ty, $reg:tt, $in:literal, $out:literal;)*) => {$(
        /// Reads a port.
        pub fn $input(port: u16) -> $type {
            let value: $type;
            // SAFETY: the machine is this program's.
            unsafe { asm!($in, in("dx") port, out($reg) value, options(nostack)) };
            value
        }
        /// Writes a port.
        pub fn $output(port: u16, value: $type) {
            // SAFETY: the machine is this program's.
            unsafe { asm!($out, in("dx") port, in($reg) value, options(nostack)) };
        }
    )*};
}

ports! {
    inb outb u8, "al", "in al, dx", "out dx, al";
    inw outw u16, "ax", "in ax, dx", "out dx, ax";
    inl outl u32, "eax", "in eax, dx", "out dx, eax";
}

macro_rules! registers {
    ($($read:ident $write:ident $name:literal;)*) => {$(
        /// Reads the register.
        pub fn $read() -> u64 {
            let value: u64;
            // SAFETY: the machine is this program's.
            unsafe { asm!(concat!("mov {}, ", $name), out(reg) value, options(nostack)) };
            value
        }
        /// Writes the register.
        pub fn $write(value: u64) {
            // SAFETY: the machine is this program's.
            unsafe { asm!(concat!("mov ", $name, ", {}"), in(reg) value, options(nostack)) };
        }
    )*};
}

registers! {
    cr0 set_cr0 "cr0";
    cr2 set_cr2 "cr2";
    cr3 set_cr3 "cr3";
    cr4 set_cr4 "cr4";
    cr8 set_cr8 "cr8";
    dr0 set_dr0 "dr0";
    dr1 set_dr1 "dr1";
    dr2 set_dr2 "dr2";
    dr3 set_dr3 "dr3";
    dr6 set_dr6 "dr6";
    dr7 set_dr7 "dr7";
}

/// RDMSR
pub fn rdmsr(index: u32) -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: the machine is this program's.
    unsafe { asm!("rdmsr", in("ecx") index, out("eax") low, out("edx") high, options(nostack)) };
    u64::from(high) << 32 | u64::from(low)
}

/// WRMSR
pub fn wrmsr(index: u32, value: u64) {
    // SAFETY: the machine is this program's.
    unsafe {
        asm!("wrmsr", in("ecx") index, in("eax") value as u32, in("edx") (value >> 32) as u32, options(nostack))
    };
}

/// CPUID: EAX, EBX, ECX, EDX
pub fn cpuid(leaf: u32, sub: u32) -> [u32; 4] {
    let r = core::arch::x86_64::__cpuid_count(leaf, sub);
    [r.eax, r.ebx, r.ecx, r.edx]
}

/// RDTSC between fences.
pub fn rdtsc() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: CR4.TSD is clear.
    unsafe { asm!("lfence", "rdtsc", "lfence", out("eax") low, out("edx") high, options(nostack)) };
    u64::from(high) << 32 | u64::from(low)
}

/// XSETBV
pub fn xsetbv(index: u32, value: u64) {
    // SAFETY: the machine is this program's.
    unsafe {
        asm!("xsetbv", in("ecx") index, in("eax") value as u32, in("edx") (value >> 32) as u32, options(nostack))
    };
}

/// XGETBV
pub fn xgetbv(index: u32) -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: the machine is this program's.
    unsafe { asm!("xgetbv", in("ecx") index, out("eax") low, out("edx") high, options(nostack)) };
    u64::from(high) << 32 | u64::from(low)
}

/// INVLPG
pub fn invlpg(at: u64) {
    // SAFETY: the machine is this program's.
    unsafe { asm!("invlpg [{}]", in(reg) at, options(nostack)) };
}

/// INVPCID
pub fn invpcid(kind: u64, pcid: u64, at: u64) {
    let descriptor = [pcid, at];
    // SAFETY: the machine is this program's.
    unsafe { asm!("invpcid {}, [{}]", in(reg) kind, in(reg) &descriptor, options(nostack)) };
}

/// CLI
pub fn cli() {
    // SAFETY: the machine is this program's.
    unsafe { asm!("cli", options(nostack)) };
}

/// STI, one instruction in its shadow, and one on which pending interrupts come.
pub fn sti() {
    // SAFETY: the machine is this program's.
    unsafe { asm!("sti", "nop", "nop", options(nostack)) };
}

/// Opens the interrupt flag for a moment.
pub fn window() {
    // SAFETY: the machine is this program's.
    unsafe { asm!("sti", "nop", "nop", "cli", options(nostack)) };
}

/// Waits for an interrupt; the flag is clear before and afterwards.
pub fn sti_hlt() {
    // SAFETY: the machine is this program's.
    unsafe { asm!("sti", "hlt", "cli", options(nostack)) };
}

/// Reads memory, once.
pub fn peek<T: Copy>(at: u64) -> T {
    // SAFETY: a bad address is a trap that the caller expects.
    unsafe { (at as *const T).read_volatile() }
}

/// Writes memory, once.
pub fn poke<T: Copy>(at: u64, value: T) {
    // SAFETY: as above.
    unsafe { (at as *mut T).write_volatile(value) }
}

/// The functions that compiled code expects.
mod runtime {
    use core::arch::asm;

    #[unsafe(no_mangle)]
    unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, len: usize) -> *mut u8 {
        // SAFETY: as C's memcpy.
        unsafe {
            asm!("rep movsb", inout("rcx") len => _, inout("rdi") to => _, inout("rsi") from => _, options(nostack))
        };
        to
    }

    #[unsafe(no_mangle)]
    unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, len: usize) -> *mut u8 {
        if (to as usize).wrapping_sub(from as usize) >= len {
            // SAFETY: as C's memmove; forwards is right here.
            return unsafe { memcpy(to, from, len) };
        }
        // SAFETY: the overlap allows only this direction; len is not 0.
        unsafe {
            asm!("std", "rep movsb", "cld", inout("rcx") len => _, inout("rdi") to.add(len - 1) => _,
                 inout("rsi") from.add(len - 1) => _, options(nostack));
        }
        to
    }

    #[unsafe(no_mangle)]
    unsafe extern "C" fn memset(to: *mut u8, byte: i32, len: usize) -> *mut u8 {
        // SAFETY: as C's memset.
        unsafe {
            asm!("rep stosb", inout("rcx") len => _, inout("rdi") to => _, in("al") byte as u8, options(nostack))
        };
        to
    }

    #[unsafe(no_mangle)]
    unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, len: usize) -> i32 {
        for i in 0..len {
            // SAFETY: as C's memcmp.
            let (x, y) = unsafe { (a.add(i).read_volatile(), b.add(i).read_volatile()) };
            if x != y {
                return i32::from(x) - i32::from(y);
            }
        }
        0
    }

    #[unsafe(no_mangle)]
    unsafe extern "C" fn bcmp(a: *const u8, b: *const u8, len: usize) -> i32 {
        // SAFETY: the caller's promise.
        unsafe { memcmp(a, b, len) }
    }

    #[unsafe(no_mangle)]
    unsafe extern "C" fn strlen(text: *const u8) -> usize {
        let mut len = 0;
        // SAFETY: as C's strlen; volatile, so that this is not compiled to a call of itself.
        while unsafe { text.add(len).read_volatile() } != 0 {
            len += 1;
        }
        len
    }

    #[unsafe(no_mangle)]
    extern "C" fn rust_eh_personality() {}
}
