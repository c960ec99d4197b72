//! Instructions on device registers: the HPET's comparators (8 bytes, writable), the I/O APIC's index, the local APIC's TPR.
//! What they must do is what they do on RAM.

use core::arch::asm;

use crate::check::{Case, Check, case};
use crate::machine::insn::*;
use crate::machine::paging::scratch;
use crate::machine::{is_palimpsest, lapic};

pub const CASES: &[Case] = &[
    case("mmio.moves", moves),
    case("mmio.extensions", extensions),
    case("mmio.arithmetic", arithmetic),
    case("mmio.bits", bits),
    case("mmio.exchange", exchange),
    case("mmio.compare-exchange", compare_exchange),
    case("mmio.flags", flags_of),
    case("mmio.strings", strings),
    case("mmio.sse", sse),
    case("mmio.stack", stack),
    case("mmio.addressing", addressing),
    case("mmio.segments", segments),
];

/// Where the HPET's registers are.
pub(super) const HPET: u64 = 0xfed0_0000;
/// HPET counter: 8 bytes of memory while the HPET is halted.
pub(super) const COUNTER: u64 = HPET + 0xf0;

pub(super) fn halt_hpet() {
    poke(HPET + 0x10, 0u64);
    poke(COUNTER, 0u64);
}

fn moves(c: &mut Check) {
    halt_hpet();
    let read: [u64; 2];
    // SAFETY: a device register that holds what is written.
    unsafe {
        asm!("mov qword ptr [{at}], {value}", at = in(reg) COUNTER, value = in(reg) 0x1122_3344_5566_7788_u64);
        c.equal("MOV of 8 bytes", peek::<u64>(COUNTER), 0x1122_3344_5566_7788);
        asm!("mov dword ptr [{at}], 0x55555555", at = in(reg) COUNTER);
        asm!("mov dword ptr [{at} + 4], {value:e}", at = in(reg) COUNTER, value = in(reg) 0x6666_6666_u32);
        c.equal("MOV of 4 bytes, immediate and register", peek::<u64>(COUNTER), 0x6666_6666_5555_5555);
        asm!("mov qword ptr [{at}], -2", at = in(reg) COUNTER);
        c.equal("MOV of a sign-extended immediate", peek::<u64>(COUNTER), u64::MAX - 1);
        let (a, b): (u64, u64);
        asm!("mov {a}, [{at}]", "mov {b:e}, [{at}]", at = in(reg) COUNTER, a = out(reg) a, b = out(reg) b);
        read = [a, b];
    }
    c.equal("MOV into registers of 8 and 4 bytes", read, [u64::MAX - 1, 0xffff_fffe]);
    poke(COUNTER, 0x8877_6655_4433_2211_u64);
    let moffs: u64;
    // SAFETY: reads the register by its absolute address.
    unsafe { asm!("movabs rax, [0xfed000f0]", out("rax") moffs) };
    c.equal("MOV from an absolute address", moffs, 0x8877_6655_4433_2211);
}

fn extensions(c: &mut Check) {
    if !is_palimpsest() {
        return c.skip("other local APICs know only accesses of 4 bytes");
    }
    let (mut z8, mut z16, mut s8, mut s16, mut s32, mut low) = (0u64, 0u64, 0u64, 0u64, 0u64, u64::MAX);
    // SAFETY: reads of the local APIC's SVR.
    unsafe {
        asm!("movzx {z8:e}, byte ptr [{at}]", "movzx {z16}, word ptr [{at}]", "movsx {s8}, byte ptr [{at}]",
             "movsx {s16:e}, word ptr [{at}]", "movsxd {s32}, dword ptr [{at}]", "mov {low:l}, byte ptr [{at}]",
             at = in(reg) lapic::PAGE + 0xf0, z8 = inout(reg) z8, z16 = inout(reg) z16, s8 = inout(reg) s8,
             s16 = inout(reg) s16, s32 = inout(reg) s32, low = inout(reg) low);
    }
    // SVR holds 0x1ff.
    c.equal("zero extensions", [z8, z16], [0xff, 0x1ff]);
    c.equal("sign extensions", [s8, s16, s32], [u64::MAX, 0x1ff, 0x1ff]);
    c.equal("a byte into a register that keeps the rest", low, u64::MAX);
}

/// Runs an instruction on the HPET's counter and the same on RAM; value, flags and register must agree.
macro_rules! same_as_ram {
    ($c:ident, $value:expr, $register:expr, [$($code:literal),+ $(,)?]) => {$({
        const FLAGS: u64 = 0x8d5;
        let mut results = [(0u64, 0u64, 0u64); 2];
        for (result, at) in results.iter_mut().zip([scratch(0), COUNTER]) {
            poke(at, $value);
            let (flags, register): (u64, u64);
            // SAFETY: the instruction under test, on 8 bytes that are memory or behave as memory.
            unsafe {
                asm!("push 0x202", "and qword ptr [rsp], ~0x200", "popfq", $code, "pushfq", "pop {flags}", flags = out(reg) flags,
                     in("rdi") at, inout("rax") $register => register, out("rcx") _, in("r8") 3u64, in("r9") 0x21u64);
            }
            *result = (peek(at), flags & FLAGS, register);
        }
        $c.equal($code, results[1], results[0]);
    })+};
}

pub(super) use same_as_ram;

fn arithmetic(c: &mut Check) {
    halt_hpet();
    for (value, register) in [
        (0x7fff_ffff_ffff_ffff_u64, 1_u64),
        (u64::MAX, u64::MAX),
        (0, 0x8000_0000_0000_0000),
        (0x1234_5678_9abc_def0, 0x0f0f_0f0f_f0f0_f0f0),
    ] {
        same_as_ram!(
            c,
            value,
            register,
            [
                "add [rdi], rax",
                "sub [rdi], rax",
                "and [rdi], rax",
                "or [rdi], rax",
                "xor [rdi], rax",
                "add [rdi], eax",
                "sub [rdi + 4], eax",
                "xor dword ptr [rdi], 0x5a",
                "or qword ptr [rdi], -128",
                "cmp [rdi], rax",
                "cmp rax, [rdi]",
                "test [rdi], rax",
                "test dword ptr [rdi], 0xff00",
                "cmp dword ptr [rdi + 4], 0x1000",
                "add rax, [rdi]",
                "sub eax, [rdi]",
                "and rax, [rdi]",
                "or eax, [rdi]",
                "xor rax, [rdi]",
                "inc qword ptr [rdi]",
                "dec dword ptr [rdi]",
                "not qword ptr [rdi]",
                "neg qword ptr [rdi]",
                "neg dword ptr [rdi]",
                "lock add [rdi], rax",
                "lock inc dword ptr [rdi]",
                "lock not qword ptr [rdi]",
                "stc; adc [rdi], rax",
                "stc; sbb [rdi], rax",
            ]
        );
    }
}

fn bits(c: &mut Check) {
    halt_hpet();
    for value in [0u64, u64::MAX, 0x5555_5555_5555_5555] {
        same_as_ram!(
            c,
            value,
            7u64,
            [
                "bt dword ptr [rdi], 5",
                "bts dword ptr [rdi], 6",
                "btr qword ptr [rdi], 35",
                "btc dword ptr [rdi], 0",
                "bt [rdi], r8d",
                "bts [rdi], r9",
                "btr [rdi], r9d",
                "btc [rdi], r8",
                "lock bts dword ptr [rdi], 1",
                "lock btr qword ptr [rdi], 63",
            ]
        );
    }
}

fn exchange(c: &mut Check) {
    halt_hpet();
    same_as_ram!(
        c,
        0x1234_5678_9abc_def0_u64,
        0x1111_2222_3333_4444_u64,
        [
            "xchg [rdi], rax",
            "xchg [rdi], eax",
            "xchg rax, [rdi]",
            "lock xadd [rdi], rax",
            "xadd dword ptr [rdi], eax",
        ]
    );
}

fn compare_exchange(c: &mut Check) {
    halt_hpet();
    for register in [0x1234_5678_9abc_def0_u64, 5] {
        same_as_ram!(
            c,
            0x1234_5678_9abc_def0_u64,
            register,
            ["cmpxchg [rdi], r8", "lock cmpxchg [rdi], r8", "cmpxchg dword ptr [rdi], r8d",]
        );
    }
}

fn flags_of(c: &mut Check) {
    // Flags that a move leaves alone.
    let flags: u64;
    // SAFETY: reads a register of the local APIC.
    unsafe {
        asm!("push 0x8d7", "popfq", "mov eax, [{at}]", "pushfq", "pop {flags}", at = in(reg) lapic::PAGE + 0x30,
             flags = out(reg) flags, out("eax") _);
    }
    c.equal("flags across MOV", flags & 0x8d5, 0x8d5);
}

fn strings(c: &mut Check) {
    halt_hpet();
    let ram = scratch(0);
    for i in 0..8 {
        poke(ram + i * 8, 0x0101_0101_0101_0101_u64 * (i + 1));
    }
    let (mut source, mut to, mut left): (u64, u64, u64);
    // SAFETY: copies between RAM and the HPET's counter, whose 8 bytes are memory.
    unsafe {
        asm!("movsq", inout("rsi") ram + 8 => source, inout("rdi") COUNTER => to);
        c.equal(
            "MOVSQ to a device",
            (peek::<u64>(COUNTER), source, to),
            (0x0202_0202_0202_0202, ram + 16, COUNTER + 8),
        );
        asm!("rep movsd", inout("rsi") ram + 32 => source, inout("rdi") COUNTER => to, inout("rcx") 2u64 => left);
        c.equal(
            "REP MOVSD to a device",
            (peek::<u64>(COUNTER), source, to, left),
            (0x0505_0505_0505_0505, ram + 40, COUNTER + 8, 0),
        );
        asm!("rep movsd", inout("rsi") COUNTER => source, inout("rdi") ram + 128 => to, inout("rcx") 2u64 => left);
        c.equal(
            "REP MOVSD from a device",
            (peek::<u64>(ram + 128), source, to, left),
            (0x0505_0505_0505_0505, COUNTER + 8, ram + 136, 0),
        );
        poke(COUNTER, 0x1111_2222_3333_4444_u64);
        asm!("std", "rep movsd", "cld", inout("rsi") COUNTER + 4 => source, inout("rdi") ram + 204 => to, inout("rcx") 2u64 => left);
        c.equal(
            "STD, REP MOVSD from a device",
            (peek::<u64>(ram + 200), source, to, left),
            (0x1111_2222_3333_4444, COUNTER - 4, ram + 196, 0),
        );
        asm!("rep stosd", in("eax") 0x5a5a_5a5a, inout("rdi") COUNTER => to, inout("rcx") 2u64 => left);
        c.equal("REP STOSD", (peek::<u64>(COUNTER), to, left), (0x5a5a_5a5a_5a5a_5a5a, COUNTER + 8, 0));
        let value: u64;
        asm!("lodsq", out("rax") value, inout("rsi") COUNTER => source);
        c.equal("LODSQ", (value, source), (0x5a5a_5a5a_5a5a_5a5a, COUNTER + 8));
        poke(ram, 0x5a5a_5a5a_u32);
        poke(ram + 4, 0x1234_u32);
        asm!("repe cmpsd", inout("rsi") COUNTER => source, inout("rdi") ram => to, inout("rcx") 5u64 => left);
        c.equal("REPE CMPSD stops at the difference", (source, to, left), (COUNTER + 8, ram + 8, 3));
        asm!("repne scasd", in("eax") 1, inout("rdi") COUNTER => to, inout("rcx") 2u64 => left);
        c.equal("REPNE SCASD", (to, left), (COUNTER + 8, 0));
        asm!("rep movsq", inout("rsi") ram => source, inout("rdi") COUNTER => to, inout("rcx") 0u64 => left);
        c.equal("REP with count 0", (source, to, left), (ram, COUNTER, 0));
    }
}

fn sse(c: &mut Check) {
    halt_hpet();
    let ram = scratch(0);
    poke(ram, [0x1122_3344_5566_7788_u64, 0x99aa_bbcc_ddee_ff00]);
    poke(ram + 16, [0u64, 0]);
    // SAFETY: CR4.OSFXSR is set; the kit's own code uses no XMM register.
    unsafe {
        asm!("movdqu xmm3, [{ram}]", "movq [{at}], xmm3", ram = in(reg) ram, at = in(reg) COUNTER);
        c.equal("MOVQ to a device", peek::<u64>(COUNTER), 0x1122_3344_5566_7788);
        asm!("movd dword ptr [{at}], xmm3", at = in(reg) COUNTER + 4);
        c.equal("MOVD to a device", peek::<u64>(COUNTER), 0x5566_7788_5566_7788);
        asm!("movq xmm9, [{at}]", "movdqu [{ram}], xmm9", ram = in(reg) ram + 16, at = in(reg) COUNTER);
        c.equal(
            "MOVQ from a device clears the upper half",
            peek::<[u64; 2]>(ram + 16),
            [0x5566_7788_5566_7788, 0],
        );
        // The capability register and its neighbour, 16 bytes that do not change.
        let want: [u64; 2] = [peek(HPET), peek(HPET + 8)];
        for which in 0..3 {
            poke(ram + 32, [0u64; 2]);
            match which {
                0 => {
                    asm!("movaps xmm1, [{at}]", "movaps [{ram}], xmm1", at = in(reg) HPET, ram = in(reg) ram + 32)
                }
                1 => {
                    asm!("movdqa xmm12, [{at}]", "movdqa [{ram}], xmm12", at = in(reg) HPET, ram = in(reg) ram + 32)
                }
                _ => {
                    asm!("movups xmm1, [{at}]", "movups [{ram}], xmm1", at = in(reg) HPET, ram = in(reg) ram + 32)
                }
            }
            c.equal(format_args!("16 bytes from a device ({which})"), peek::<[u64; 2]>(ram + 32), want);
        }
        c.raises(
            "MOVAPS from a device, not aligned",
            super::GP,
            || asm!("movaps xmm1, [{at}]", at = in(reg) HPET + 8),
        );
    }
}

fn stack(c: &mut Check) {
    halt_hpet();
    let value: u64;
    // SAFETY: pushes from and pops to a device register.
    unsafe {
        poke(COUNTER, 0x1234_5678_9abc_def0_u64);
        asm!("push qword ptr [{at}]", "pop {value}", at = in(reg) COUNTER, value = out(reg) value);
        c.equal("PUSH from a device", value, 0x1234_5678_9abc_def0);
        asm!("push {value}", "pop qword ptr [{at}]", at = in(reg) COUNTER, value = in(reg) 0x4242_4242_4242_4242_u64);
        c.equal("POP to a device", peek::<u64>(COUNTER), 0x4242_4242_4242_4242);
    }
}

fn addressing(c: &mut Check) {
    halt_hpet();
    poke(COUNTER, 0x1234_5678_9abc_def0_u64);
    let (mut a, mut b, mut d) = (0u64, 0u64, 0u64);
    // SAFETY: reads of the counter by different addressing forms.
    unsafe {
        asm!("mov {a}, [{base} + {index} * 8]", "mov {b}, [{top} - 0x10]", "mov {d}, [{base:e} + {index:e} * 8]",
             base = in(reg) HPET, index = in(reg) 0x1e_u64, top = in(reg) HPET + 0x100, a = inout(reg) a, b = inout(reg) b,
             d = inout(reg) d);
    }
    c.equal("base, index, displacement, 32-bit", [a, b, d], [0x1234_5678_9abc_def0; 3]);
}

fn segments(c: &mut Check) {
    halt_hpet();
    poke(COUNTER, 0x1234_5678_9abc_def0_u64);
    let (a, b): (u64, u64);
    wrmsr(0xc000_0101, HPET);
    wrmsr(0xc000_0100, HPET + 0x1000);
    // SAFETY: reads through FS and GS, which the kit does not use.
    unsafe {
        asm!("mov {a}, gs:[0xf0]", "mov {b}, fs:[{minus}]", a = out(reg) a, b = out(reg) b, minus = in(reg) 0xf0_i64 - 0x1000);
    }
    wrmsr(0xc000_0101, 0);
    wrmsr(0xc000_0100, 0);
    c.equal("through GS and FS", [a, b], [0x1234_5678_9abc_def0; 2]);
}
