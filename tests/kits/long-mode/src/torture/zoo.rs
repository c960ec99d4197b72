//! Writes to tables in use by all sorts of instructions, those that no emulator knows among them.
//!
//! An instruction must do to a table what it does to any other memory: it runs on a copy first, then on the table. Then the
//! translations must follow the table.

use core::arch::asm;

use super::Random;
use super::model::{Cpu, Kind, Setup, walk};
use super::options;
use super::region::{ALL, PAGES, Region, target};
use super::script::Script;
use super::sharing::rounds;
use super::space::{Space, TARGET, TARGET_PAGES};
use crate::check::Check;
use crate::machine::insn::{cpuid, cr3, cr4, invlpg, peek, poke, set_cr3, set_cr4};
use crate::machine::step::READ;
use crate::machine::trap::catch;

/// Its name, and what runs it on an address and returns what else it changed.
type Writer = (&'static str, fn(u64) -> u64);

/// Functions of (RDI = address, RSI = some memory, RAX, RDX = some numbers, RCX = 3; R8 to R11 are free).
macro_rules! writers {
    ($($name:literal: $($line:literal),+;)*) => {
        &[$(($name, |at: u64| {
            let (a, d, flags): (u64, u64, u64);
            // SAFETY: writes at most 1 KiB at the address, which the caller owns; SSE registers hold nothing of the kit's.
            unsafe {
                asm!(
                    "xor r8d, r8d", "stc", $($line,)+ "pushfq", "pop r8",
                    inout("rdi") at => _, inout("rsi") TARGET + 0x400 => _, inout("rcx") 3u64 => _,
                    inout("rax") 0x1122_3344_0120_5667u64 => a, inout("rdx") 0x8877_6655_0140_3027u64 => d,
                    out("r8") flags, out("r9") _, out("r10") _, out("r11") _,
                );
            }
            // CF and ZF; the others are undefined here and there.
            a ^ d.rotate_left(17) ^ (flags & 0x41) * CF
        })),*]
    };
}

/// Where a writer's result has CF.
const CF: u64 = 1 << 32;

const WRITERS: &[Writer] = writers! {
    "MOV 1": "mov [rdi], al";
    "MOV 1, AH": "mov [rdi + 1], ah";
    "MOV 2": "mov [rdi], ax";
    "MOV 4": "mov [rdi], eax";
    "MOV 8": "mov [rdi], rax";
    "MOV imm": "mov qword ptr [rdi], 0x1407067";
    "MOV 8 unaligned": "mov [rdi + 5], rax";
    "MOV segment": "mov [rdi], ss";
    "MOVNTI 4": "movnti [rdi], eax";
    "MOVNTI 8": "movnti [rdi], rax";
    "MOVBE": "movbe [rdi], rax";
    "XCHG": "xchg [rdi], rax";
    "XCHG 1": "xchg [rdi + 3], al";
    "LOCK XADD": "lock xadd [rdi], rax";
    "LOCK CMPXCHG, different": "lock cmpxchg [rdi], rdx";
    "LOCK CMPXCHG, equal": "mov rax, [rdi]", "lock cmpxchg [rdi], rdx";
    "CMPXCHG 4, equal": "mov eax, [rdi]", "cmpxchg [rdi], edx";
    "CMPXCHG 1": "mov al, [rdi]", "cmpxchg [rdi], dl";
    "LOCK CMPXCHG8B, different": "mov r9, rbx", "mov ebx, 0x1405067", "mov ecx, 0", "lock cmpxchg8b [rdi]", "mov rbx, r9";
    "LOCK CMPXCHG8B, equal":
        "mov r9, rbx", "mov ebx, 0x1405067", "mov ecx, 0", "mov eax, [rdi]", "mov edx, [rdi + 4]",
        "lock cmpxchg8b [rdi]", "mov rbx, r9";
    "LOCK CMPXCHG16B, different": "mov r9, rbx", "mov ebx, 0x1405067", "mov ecx, 7", "lock cmpxchg16b [rdi]", "mov rbx, r9";
    "LOCK CMPXCHG16B, equal":
        "mov r9, rbx", "mov ebx, 0x1405067", "mov ecx, 7", "mov rax, [rdi]", "mov rdx, [rdi + 8]",
        "lock cmpxchg16b [rdi]", "mov rbx, r9";
    "LOCK BTS": "lock bts qword ptr [rdi], 6";
    "LOCK BTR": "lock btr qword ptr [rdi], 0";
    "LOCK BTC": "lock btc dword ptr [rdi], 1";
    "BTS register": "mov eax, 77", "bts [rdi], eax";
    "LOCK BTR register": "mov rax, 65", "lock btr [rdi], rax";
    "ADD": "add [rdi], rax";
    "ADC": "adc [rdi], eax";
    "SUB": "sub [rdi], rax";
    "SBB": "sbb [rdi], rax";
    "AND": "and qword ptr [rdi], -3";
    "OR": "or byte ptr [rdi], 0x60";
    "LOCK OR": "lock or byte ptr [rdi], 0x60";
    "XOR": "xor dword ptr [rdi], 0x1067";
    "INC": "inc qword ptr [rdi]";
    "LOCK DEC": "lock dec dword ptr [rdi]";
    "NOT": "not qword ptr [rdi]";
    "NEG": "neg dword ptr [rdi]";
    "SHL": "shl qword ptr [rdi], 4";
    "ROR CL": "ror qword ptr [rdi], cl";
    "RCL": "rcl qword ptr [rdi], 1";
    "SHLD": "shld [rdi], rax, 12";
    "SETC": "setc byte ptr [rdi]";
    "MOVSB": "movsb";
    "REP MOVSB": "mov ecx, 29", "rep movsb";
    "REP MOVSD": "mov ecx, 7", "rep movsd";
    "REP MOVSQ": "mov ecx, 20", "rep movsq";
    "REP MOVSQ down": "std", "add rdi, 64", "add rsi, 64", "mov ecx, 6", "rep movsq", "cld";
    "STOSB": "stosb";
    "STOSQ": "stosq";
    "REP STOSB": "mov ecx, 13", "rep stosb";
    "REP STOSD": "mov ecx, 9", "rep stosd";
    "REP STOSQ": "mov ecx, 33", "rep stosq";
    "PUSH": "mov r9, rsp", "lea rsp, [rdi + 8]", "push rax", "mov rsp, r9";
    "PUSH imm": "mov r9, rsp", "lea rsp, [rdi + 8]", "push 0x67", "mov rsp, r9";
    "PUSH memory": "mov r9, rsp", "lea rsp, [rdi + 8]", "push qword ptr [rsi]", "mov rsp, r9";
    "PUSHFQ": "mov r9, rsp", "lea rsp, [rdi + 8]", "pushfq", "mov rsp, r9";
    "CALL": "mov r9, rsp", "lea rsp, [rdi + 8]", "call 2f", "2:", "mov rsp, r9";
    "CALL register": "mov r9, rsp", "lea r10, [rip + 2f]", "lea rsp, [rdi + 8]", "call r10", "2:", "mov rsp, r9";
    "ENTER": "mov r9, rsp", "mov r10, rbp", "mov rbp, 0x1403067", "lea rsp, [rdi + 8]", "enter 0, 0", "mov rsp, r9", "mov rbp, r10";
    "POP memory": "push rdx", "pop qword ptr [rdi]";
    "MOVD": "movq xmm0, rax", "movd [rdi], xmm0";
    "MOVQ": "movq xmm0, rax", "movq qword ptr [rdi], xmm0";
    "MOVSS": "movq xmm0, rax", "movss dword ptr [rdi], xmm0";
    "MOVUPS": "movups xmm0, [rsi]", "movups [rdi + 4], xmm0";
    "MOVAPS": "movups xmm0, [rsi]", "movaps [rdi], xmm0";
    "MOVDQA": "movups xmm1, [rsi + 3]", "movdqa [rdi], xmm1";
    "MOVNTDQ": "movups xmm2, [rsi]", "movntdq [rdi], xmm2";
    "MOVNTPS": "movups xmm3, [rsi]", "movntps [rdi], xmm3";
    "MOVHPS": "movups xmm0, [rsi]", "movhps qword ptr [rdi], xmm0";
    "MASKMOVDQU": "movups xmm0, [rsi]", "movq xmm1, rdx", "maskmovdqu xmm0, xmm1";
    "MOVQ MMX": "movq mm0, rax", "movq [rdi], mm0", "emms";
    "MOVNTQ": "movq mm0, rax", "movntq [rdi], mm0", "emms";
    "MASKMOVQ": "movq mm0, rax", "movq mm1, rdx", "maskmovq mm0, mm1", "emms";
    "PEXTRQ": "movq xmm0, rax", "pextrq [rdi], xmm0, 0";
    "STMXCSR": "stmxcsr [rdi]";
    "FXSAVE": "fninit", "fxsave64 [rdi]";
    "FNSAVE": "fninit", "fnsave [rdi]";
    "FNSTENV": "fninit", "fnstenv [rdi]";
    "FNSTCW": "fninit", "fnstcw [rdi]";
    "FSTP 10": "fninit", "fld1", "fstp tbyte ptr [rdi]";
    "FIST": "fninit", "fldpi", "fistp qword ptr [rdi]";
    "FBSTP": "fninit", "fild qword ptr [rsi]", "fld1", "fbstp [rdi]", "fninit";
    "SGDT": "sgdt [rdi]";
    "SIDT": "sidt [rdi]";
    "SLDT": "sldt [rdi]";
    "STR": "str word ptr [rdi]";
    "SMSW": "smsw [rdi]";
    "CLFLUSH": "clflush [rdi]";
    "PREFETCHW": "prefetchw [rdi]";
};

/// Whether this processor has the instruction: some came late.
fn has((name, _): &&Writer) -> bool {
    let [_, _, common, _] = cpuid(1, 0);
    let [_, _, extended, _] = cpuid(0x8000_0001, 0);
    match *name {
        "MOVBE" => common >> 22 & 1 != 0,
        "PEXTRQ" => common >> 19 & 1 != 0,
        "PREFETCHW" => extended >> 8 & 1 != 0,
        "XSAVE" => common >> 26 & 1 != 0,
        _ => true,
    }
}

/// Where in the table: at entries in use, at others, and across the table's end.
const OFFSETS: [u64; 4] = [0, 0x30, 0x400, 0xff0];

/// All writers, on the table of the last level.
pub fn run(c: &mut Check) {
    let xsave: &[Writer] = writers! { "XSAVE": "xor edx, edx", "mov eax, 3", "xsave64 [rdi]"; };
    let mut space = Space::new(Kind::Four);
    let region = Region::new(&mut space);
    // Behind the last table: a page that is none. Then the two copies.
    let behind = space.table();
    let copy = space.table();
    let _second = space.table();
    c.equal("pages follow each other", behind, region.leaf_table() + 4096);
    set_up(c, &mut space, &region);
    if has(&&xsave[0]) {
        set_cr4(cr4() | 1 << 18);
    }
    let mut random = Random::new(options().seed + 13);
    for round in 0..rounds(4) {
        for writer in WRITERS.iter().chain(xsave).filter(has) {
            for offset in OFFSETS {
                // What is written whole must be aligned, and fit.
                let offset = if offset == 0xff0 && !straddles(writer.0) { 0xe00 - 0x40 } else { offset };
                let offset = if writer.0 == "XSAVE" { offset & !0x3f } else { offset };
                try_writer(c, &region, copy, writer, offset, round, &mut random);
            }
        }
    }
    set_cr4(cr4() & !(1 << 18));
}

/// Whether to move it across the table's end, by 4 bytes more.
fn straddles(name: &str) -> bool {
    ["MOV 8 unaligned", "REP", "FNSAVE", "FNSTENV", "MOVUPS", "BTS register", "SGDT"]
        .iter()
        .any(|n| name.starts_with(n))
}

fn set_up(c: &mut Check, space: &mut Space, region: &Region) {
    let mut script = Script::new(c, space, Setup::new(Kind::Four));
    region.map(&mut script);
}

fn try_writer(
    c: &mut Check,
    region: &Region,
    copy: u64,
    &(name, writer): &Writer,
    offset: u64,
    round: u32,
    random: &mut Random,
) {
    let table = region.leaf_table();
    // The table in use, in a state that depends on the round: just loaded, written before, read through.
    for page in 0..PAGES {
        poke(region.leaf(page), target(page) | ALL);
    }
    set_cr3(cr3());
    for page in 0..PAGES {
        let _: u32 = peek(region.page(page));
        if round & 1 != 0 {
            poke(region.page(page) + 0x800, 1u32);
        }
    }
    for word in PAGES * 8..1024 {
        if word % 64 == 0 || round == 0 {
            poke(table + word * 8, random.next());
        }
    }
    for word in 0..1024 {
        poke(copy + word * 8, peek::<u64>(table + word * 8));
    }
    let want = writer(copy + offset);
    let got = writer(table + offset);
    registers(c, name, offset, got, want);
    let differs = (0..1024).find(|word| peek::<u64>(table + word * 8) != peek::<u64>(copy + word * 8));
    if let Some(word) = differs {
        let (got, want): (u64, u64) = (peek(table + word * 8), peek(copy + word * 8));
        content(c, name, offset, word, got, want);
    }
    follow(c, region, name);
}

/// All writers, on the table above the last one: around the entry in use, and elsewhere. Such a table stays write-protected, and
/// what no emulator knows must reach it nevertheless.
pub fn upper(c: &mut Check) {
    let mut space = Space::new(Kind::Four);
    let region = Region::new(&mut space);
    let copy = space.table();
    set_up(c, &mut space, &region);
    let level = region.levels() - 2;
    let (table, entry) = (region.tables[level], region.entry(level, region.page(0)));
    // Aligned for all, and with room for the longest.
    let offsets = [entry - table & !0x3f, 0x800, 0xdc0].map(|offset| offset.min(0xdc0));
    for &(name, writer) in WRITERS.iter().filter(has) {
        for offset in offsets {
            for word in (0..512).filter(|&word| peek::<u64>(table + word * 8) != 0) {
                poke(table + word * 8, 0u64);
            }
            poke(entry, region.leaf_table() | ALL);
            set_cr3(cr3());
            (0..PAGES).for_each(|page| _ = peek::<u32>(region.page(page)));
            for word in 0..512 {
                poke(copy + word * 8, peek::<u64>(table + word * 8));
            }
            let want = writer(copy + offset);
            let got = writer(table + offset);
            registers(c, name, offset, got, want);
            let differs = (0..512).find(|word| peek::<u64>(table + word * 8) != peek::<u64>(copy + word * 8));
            if let Some(word) = differs {
                let (got, want) = (peek::<u64>(table + word * 8), peek::<u64>(copy + word * 8));
                content(c, name, offset, word, got, want);
            }
            follow(c, &region, name);
        }
    }
}

/// What a writer left in registers and flags.
///
/// The emulation loses CF in some if the store faults, which it does on a write-protected table; the hypervisor's emulator does not.
/// Any table can be write-protected: a change of the mode comes at any exit, the one before the writer's own too.
fn registers(c: &mut Check, name: &str, offset: u64, got: u64, want: u64) {
    let what = format_args!("{name} at {offset:x}: registers");
    if ["CMPXCHG8B", "CMPXCHG16B", "RCL"].iter().any(|lossy| name.contains(lossy)) {
        c.equal_but_tcg(what, got, want, want ^ CF)
    } else {
        c.equal(what, got, want)
    }
}

/// What a writer left in a word of the table. RCL rotates the CF that [`registers`] speaks of into its lowest bit.
fn content(c: &mut Check, name: &str, offset: u64, word: u64, got: u64, want: u64) {
    let what = format_args!("{name} at {offset:x}: word {word}");
    if name.contains("RCL") { c.equal_but_tcg(what, got, want, want ^ 1) } else { c.equal(what, got, want) }
}

/// What the entries in use now say must be what the processor does.
fn follow(c: &mut Check, region: &Region, name: &str) {
    let cpu = Cpu::here(c.tcg);
    let setup = Setup { pse: false, ..Setup::new(Kind::Four) };
    for page in 0..PAGES {
        let at = region.at(page, READ);
        invlpg(at);
        let memory = |at, _| peek::<u64>(at);
        let wanted = walk(&setup, &cpu, cr3(), memory, READ, at).result;
        // Anything may stand there by now; only what leads to the target can be read.
        match wanted {
            Ok(to) if !(TARGET..TARGET + TARGET_PAGES * 4096).contains(&to) => continue,
            _ => {}
        }
        let mut value = 0;
        let fault = catch(|| value = peek::<u32>(at)).map(|trap| trap.error | 1);
        match wanted {
            Ok(to) => c.equal(format_args!("{name}: page {page}"), (fault, value), (None, peek(to))),
            Err(error) => c.equal(format_args!("{name}: page {page}: fault"), fault, Some(error | 1)),
        }
    }
}

/// Code that rewrites the entry under which it runs.
pub fn own_table(c: &mut Check) {
    let mut space = Space::new(Kind::Four);
    let region = Region::new(&mut space);
    set_up(c, &mut space, &region);
    // mov [rdi], rsi; invlpg [rdx]; mov eax, imm32; ret
    let code = |page: u64| {
        let at = target(page) + 0x300;
        poke(at, [0x48u8, 0x89, 0x37, 0x0f, 0x01, 0x3a, 0xb8]);
        poke(at + 7, page as u32);
        poke(at + 11, 0xc3u8);
    };
    (0..PAGES).for_each(code);
    let call = |page: u64, entry: u64| {
        let at = region.page(page) + 0x300;
        let mut result = 0u64;
        let trap = catch(|| {
            // SAFETY: the code above changes RAX only, or faults.
            unsafe {
                asm!("call {}", in(reg) at, in("rdi") region.leaf(page), in("rsi") entry, in("rdx") at, out("rax") result);
            }
        });
        (trap.map(|trap| (trap.error, trap.cr2)), result)
    };
    for round in 0..rounds(40) as u64 {
        let (page, other) = (round % PAGES, (round * 5 + 3) % PAGES);
        invlpg(region.page(page));
        // It goes on in another page, which has the same code up to here.
        c.equal("code that moves itself", call(page, target(other) | ALL), (None, other));
        c.equal("and back", call(page, target(page) | 3), (None, page));
        c.equal("code that makes its page read-only", call(page, target(page) | 1), (None, page));
        // The fault comes behind the INVLPG; or before it, if the translation was not cached any more.
        let after = region.page(page) + 0x306;
        let early = |fault: Option<(u32, u64)>| {
            fault.map(|(error, at)| (error, if at == after - 3 { after } else { at }))
        };
        c.equal("code that takes its page away", early(call(page, 0).0), Some((0x10, after)));
        poke(region.leaf(page), target(page) | ALL);
        let forbidden = call(page, target(page) | 3 | 1 << 63).0;
        c.equal("code that forbids itself", early(forbidden), Some((0x11, after)));
        poke(region.leaf(page), target(page) | ALL);
    }
}
