//! Instructions on device registers that fault, and the rights to the pages that hold them: as on RAM.

use core::arch::asm;

use super::mmio::{COUNTER, HPET, halt_hpet};
use crate::check::{Case, Check, case};
use crate::machine::insn::*;
use crate::machine::paging::{self, P, PW, map, scratch, window as page};
use crate::machine::trap::{self, catch, vector};
use crate::machine::{ioapic, user};

pub const CASES: &[Case] = &[
    case("mmio.faults", faults),
    case("mmio.page-crossing", page_crossing),
    case("mmio.access-rights", access_rights),
    case("mmio.write-protect", write_protect),
];

fn faults(c: &mut Check) {
    // From a device to a page that is not there, and back: CR2, error code, and RIP at the instruction.
    halt_hpet();
    let absent = page(20);
    map(20, 0, 0);
    // The fault's own frame needs a stack when the stack is what is missing: IST 1.
    trap::set_gate(vector::PF, trap::GATE | 1, 0x08);
    let mut fault = |what: &str, want: (u64, u32), body: &mut dyn FnMut()| {
        let trap = catch(&mut *body).unwrap_or_default();
        c.equal(what, (trap.vector, trap.cr2, trap.error), (vector::PF, want.0, want.1));
    };
    // SAFETY: faults.
    unsafe {
        fault("MOVS from a device to nowhere", (absent, 2), &mut || {
            asm!("movsq", inout("rsi") COUNTER => _, inout("rdi") absent => _);
        });
        fault("MOVS from nowhere to a device", (absent, 0), &mut || {
            asm!("movsq", inout("rsi") absent => _, inout("rdi") COUNTER => _);
        });
        fault("PUSH from a device to a stack that is not there", (absent + 0x800 - 8, 2), &mut || {
            asm!("xchg rsp, {stack}", "push qword ptr [{at}]", "xchg rsp, {stack}", stack = inout(reg) absent + 0x800 => _, at = in(reg) COUNTER);
        });
    }
    c.equal("RSP and everything else survived", peek::<u64>(COUNTER), 0);
    c.raises("a non-canonical address", super::GP, || _ = peek::<u64>(1 << 47));
}

fn page_crossing(c: &mut Check) {
    halt_hpet();
    poke(COUNTER, 0u64);
    // The HPET's page, then one that is not there.
    map(30, HPET, PW);
    map(31, 0, 0);
    let at = page(31) - 4;
    let write = catch(|| poke(at, u64::MAX)).unwrap_or_default();
    c.equal("a write across into nowhere", (write.vector, write.cr2, write.error), (vector::PF, page(31), 2));
    let read = catch(|| _ = peek::<u64>(at)).unwrap_or_default();
    c.equal("a read across into nowhere", (read.vector, read.cr2, read.error), (vector::PF, page(31), 0));
    // RAM, then a device: nothing may be written to RAM if the second page is read-only.
    let ram = scratch(0);
    map(30, ram, PW);
    map(31, ioapic::PAGE, P);
    poke(ram + 4092, 0x5a5a_5a5a_u32);
    let write = catch(|| poke(page(31) - 4, u64::MAX)).unwrap_or_default();
    c.equal(
        "a write across into a read-only device",
        (write.vector, write.cr2, write.error),
        (vector::PF, page(31), 3),
    );
    c.equal("nothing is written to the first page", peek::<u32>(ram + 4092), 0x5a5a_5a5a);
    // And if it is writable, both parts arrive.
    map(31, ioapic::PAGE, PW);
    poke(page(31) - 4, 0x0000_0011_6666_6666_u64);
    c.equal(
        "both parts arrive",
        (peek::<u32>(ram + 4092), peek::<u32>(ioapic::PAGE) & 0xff),
        (0x6666_6666, 0x11),
    );
    c.equal("and are read", peek::<u64>(page(31) - 4) & 0xff_ffff_ffff, 0x11_6666_6666);
    poke(ioapic::PAGE, 0u32);
}

#[unsafe(naked)]
unsafe extern "C" fn user_read() {
    core::arch::naked_asm!("mov rax, [rdi]", "int 0x80")
}

#[unsafe(naked)]
unsafe extern "C" fn user_write() {
    core::arch::naked_asm!("mov qword ptr [rdi], 1", "int 0x80")
}

fn access_rights(c: &mut Check) {
    halt_hpet();
    poke(COUNTER, 0x77u64);
    let at = page(40) + 0xf0;
    for (what, flags, read, write) in [
        ("a kernel page", PW, Some(5), Some(7)),
        ("a read-only user page", paging::P | 4, None, Some(7)),
        ("a user page", paging::PWU, None, None),
        ("no page", 0, Some(4), Some(6)),
    ] {
        map(40, HPET, flags);
        for (how, code, want) in
            [("read", user_read as unsafe extern "C" fn(), read), ("write", user_write, write)]
        {
            let trap = user::run(code, at);
            let got = (trap.vector == vector::PF).then_some(trap.error);
            c.equal(format_args!("user {how} of a device in {what}"), got, want);
            if got.is_some() {
                c.equal("CR2", trap.cr2, at);
            }
        }
    }
}

fn write_protect(c: &mut Check) {
    halt_hpet();
    map(40, HPET, P);
    let at = page(40) + 0xf0;
    c.raises("a kernel write to a read-only device page", Some((vector::PF, 3)), || poke(at, 1u64));
    set_cr0(cr0() & !(1 << 16));
    c.raises("the same with CR0.WP clear", None, || poke(at, 0x99u64));
    set_cr0(cr0() | 1 << 16);
    c.equal("it is written", peek::<u64>(COUNTER), 0x99);
    // Accessed and dirty bits of the mapping.
    map(41, HPET, PW);
    let entry = || entry_of(41);
    _ = peek::<u64>(page(41));
    c.equal("A and D after a read", entry() & 0x60, 0x20);
    poke(page(41) + 0xf0, 0u64);
    c.equal("A and D after a write", entry() & 0x60, 0x60);
}

fn entry_of(index: usize) -> u64 {
    // SAFETY: reads an entry of the window's table.
    unsafe { paging::entry(index).read_volatile() }
}
