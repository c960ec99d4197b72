//! Instructions of kernels on device registers: tables, selectors, stack frames, far pointers, elements of vectors.

use core::arch::asm;

use super::mmio::{COUNTER, halt_hpet, same_as_ram};
use crate::check::{Case, Check, case};
use crate::machine::insn::*;
use crate::machine::is_palimpsest;
use crate::machine::paging::scratch;

pub const CASES: &[Case] = &[
    case("mmio.system", system),
    case("mmio.descriptors", descriptors),
    case("mmio.frames", frames),
    case("mmio.far", far),
    case("mmio.elements", elements),
];

/// Registers of descriptor tables and the machine status word.
fn system(c: &mut Check) {
    halt_hpet();
    poke(COUNTER, 0x5a5a_5a5a_5a5a_5a5a_u64);
    // The HPET ignores accesses of 2 bytes: what is written shows nowhere, but the guest goes on.
    // SAFETY: stores to a device's register.
    unsafe {
        asm!("smsw [{at}]", "str word ptr [{at}]", "sldt word ptr [{at}]", "mov word ptr [{at}], ss", at = in(reg) COUNTER);
    }
    c.equal("what 2 bytes changed", peek::<u64>(COUNTER), 0x5a5a_5a5a_5a5a_5a5a);
    // Ten bytes; the last eight are the counter.
    let tables = |at: u64| {
        // SAFETY: writes ten bytes of a device or of scratch memory.
        unsafe { asm!("sgdt [{at}]", at = in(reg) at - 2) };
        let gdt = peek::<u64>(at);
        // SAFETY: as above.
        unsafe { asm!("sidt [{at}]", at = in(reg) at - 2) };
        [gdt, peek::<u64>(at)]
    };
    c.equal("SGDT and SIDT", tables(COUNTER), tables(scratch(8)));
}

/// Selectors from memory. The descriptors are the kit's own.
fn descriptors(c: &mut Check) {
    if !is_palimpsest() {
        return c.skip("other HPETs know only accesses of 4 and 8 bytes");
    }
    halt_hpet();
    let (code, data): (u16, u16);
    // SAFETY: reads of registers.
    unsafe { asm!("mov {0:x}, cs", "mov {1:x}, ss", out(reg) code, out(reg) data) };
    for selector in [u64::from(code), u64::from(data), 0, 0xfff8] {
        same_as_ram!(
            c,
            selector,
            0u64,
            [
                "lar eax, word ptr [rdi]; and eax, 0xf0ff00",
                "lsl eax, word ptr [rdi]",
                "verr word ptr [rdi]",
                "verw word ptr [rdi]"
            ]
        );
    }
    same_as_ram!(
        c,
        u64::from(data),
        0u64,
        [
            "mov es, word ptr [rdi]; mov eax, es",
            "mov fs, word ptr [rdi]; mov eax, fs; xor ecx, ecx; mov fs, ecx",
            "mov ss, word ptr [rdi]; mov eax, ss",
        ]
    );
    same_as_ram!(c, 0u64, 0u64, ["mov es, word ptr [rdi]; mov eax, es", "lldt word ptr [rdi]; sldt eax"]);
}

/// Stack frames where the stack or the frame pointer is a device's register.
fn frames(c: &mut Check) {
    halt_hpet();
    same_as_ram!(
        c,
        0x1234_5678_9abc_def0_u64,
        0x1111_2222_3333_4444_u64,
        [
            "mov r8, rsp; mov r9, rbp; lea rsp, [rdi + 8]; mov rbp, rax; enter 0, 0; lea rax, [rbp]; sub rax, rdi; mov rsp, r8; mov rbp, r9",
            "mov r8, rsp; mov r9, rbp; mov rbp, rdi; leave; lea rcx, [rsp]; mov rax, rbp; mov rsp, r8; mov rbp, r9; sub rcx, rdi; add rax, rcx",
            "mov r8, rsp; lea rsp, [rdi + 8]; pushfq; mov rsp, r8",
            "mov qword ptr [rdi], 0; mov r8, rsp; mov rsp, rdi; pop fs; mov rax, rsp; mov rsp, r8; sub rax, rdi",
        ]
    );
}

/// A far pointer is read from the device.
fn far(c: &mut Check) {
    if !is_palimpsest() {
        return c.skip("other HPETs know only accesses of 4 and 8 bytes");
    }
    halt_hpet();
    let start: u64;
    // SAFETY: the pointer leads to the next instruction but one, in the same code segment.
    unsafe {
        asm!(
            "lea {x}, [rip + 2f]", "mov {y:e}, cs", "shl {y}, 32", "or {x}, {y}", "mov [{at}], {x}", "xor {y:e}, {y:e}",
            "jmp fword ptr [{at}]", "mov {y:e}, 1", "2:",
            "lea {x}, [rip + 3f]", "mov {z:e}, cs", "shl {z}, 32", "or {x}, {z}", "mov [{at}], {x}",
            "call fword ptr [{at}]", "jmp 4f", "3:", "add {y:e}, 2", "retf", "4:",
            at = in(reg) COUNTER, x = out(reg) _, y = out(reg) start, z = out(reg) _
        );
    }
    c.equal("JMP and CALL far, and back", start, 2);
}

/// Elements of vectors, checksums, translation.
fn elements(c: &mut Check) {
    halt_hpet();
    same_as_ram!(
        c,
        0x1234_5678_9abc_def0_u64,
        0x1111_2222_3333_4444_u64,
        [
            "movq xmm0, rax; pextrd dword ptr [rdi], xmm0, 1",
            "movq xmm0, rax; pinsrd xmm0, dword ptr [rdi], 1; movq rax, xmm0",
            "movq xmm0, rax; pinsrq xmm0, qword ptr [rdi], 0; movq rax, xmm0",
            "crc32 rax, qword ptr [rdi]",
            "crc32 eax, dword ptr [rdi]",
        ]
    );
}
