//! Cases that end the guest, or must not: each runs alone, and the end-to-end tests judge by how the run ends.

use core::arch::asm;

use crate::check::{Case, Check, fatal};
use crate::machine::insn::*;
use crate::machine::trap::{self, set_gate, vector};
use crate::machine::{lapic, paging, serial};
use crate::say;

pub const CASES: &[Case] = &[
    fatal("dies.triple-fault", triple_fault),
    fatal("dies.triple-fault-injected", triple_fault_injected),
    fatal("dies.halted", halted),
    fatal("dies.jump-to-hole", jump_to_hole),
    fatal("dies.jump-to-device", jump_to_device),
    fatal("dies.stack-in-hole", stack_in_hole),
    fatal("dies.unknown-instruction", unknown_instruction),
    fatal("dies.flood", flood),
    fatal("dies.port-flood", flood_port),
    fatal("dies.interrupt-storm", interrupt_storm),
];

/// No handler for #DF.
fn break_delivery() {
    set_gate(vector::DF, 0, 0);
    set_gate(vector::GP, 0, 0);
    set_gate(vector::NP, 0, 0);
    set_gate(vector::UD, 0, 0);
}

fn triple_fault(_: &mut Check) {
    break_delivery();
    // SAFETY: ends the guest.
    unsafe { asm!("mov rbx, 0x1122334455667788", "ud2", options(noreturn)) }
}

fn triple_fault_injected(_: &mut Check) {
    break_delivery();
    set_cr4(0);
    say!("FAIL dies.triple-fault-injected: it goes on");
}

fn halted(_: &mut Check) {
    say!("kit: halt");
    // SAFETY: ends the guest.
    unsafe { asm!("cli", "hlt") };
    say!("FAIL dies.halted: it goes on");
}

fn jump_to_hole(_: &mut Check) {
    // SAFETY: ends the guest.
    unsafe { asm!("jmp {}", in(reg) 0xd000_0000_u64, options(noreturn)) }
}

fn jump_to_device(_: &mut Check) {
    // SAFETY: ends the guest.
    unsafe { asm!("jmp {}", in(reg) lapic::PAGE, options(noreturn)) }
}

fn stack_in_hole(_: &mut Check) {
    // Pushes are lost and pops read ones; the return goes to -1, which is canonical and not mapped: #PF, whose frame
    // is lost as well, and whose handler finds no stack either. Whatever happens, nothing may hang.
    trap::hook(vector::PF, |_| {
        say!("kit: page fault");
        crate::end(0);
    });
    // SAFETY: ends the guest.
    unsafe { asm!("mov rsp, {}", "call 2f", "2: ret", in(reg) 0xd000_1000_u64, options(noreturn)) }
}

fn unknown_instruction(_: &mut Check) {
    // x87 on a device register: no compiler emits that, and the emulator does not execute it.
    // SAFETY: ends the guest.
    unsafe { asm!("fld qword ptr [{}]", in(reg) 0xfed0_00f0_u64) };
    say!("FAIL dies.unknown-instruction: it goes on");
}

/// A quarter of a MiB of console output in lines of 64 bytes, as fast as the port takes it: whenever it is empty, a FIFO full.
fn flood(_: &mut Check) {
    for i in 0..256 * 1024 / 64 {
        let mut line = [b'a' + (i % 26) as u8; 64];
        line[63] = b'\n';
        for burst in line.chunks(16) {
            serial::write_burst(burst);
        }
    }
    say!("kit: flooded");
    crate::end(0);
}

/// 4 MiB to the debug port, in blocks.
fn flood_port(_: &mut Check) {
    let from = paging::scratch(0);
    for _ in 0..4 * 1024 * 1024 / 4096 {
        // SAFETY: a page of zeroes to a port that no device has.
        unsafe { asm!("rep outsd", inout("rsi") from => _, inout("rcx") 1024u64 => _, in("dx") 0x80_u16) };
    }
    say!("kit: flooded");
    crate::end(0);
}

fn interrupt_storm(_: &mut Check) {
    // The handler's EOI brings the next interrupt at once; the guest never gets on, but time limits hold.
    say!("kit: storm");
    trap::hook(0x61, |_| {
        lapic::send_self(0x61);
        lapic::eoi();
    });
    lapic::send_self(0x61);
    loop {
        sti();
    }
}
