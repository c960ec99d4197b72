//! A kernel that checks the machine it runs on against the architecture manuals.
//!
//! A multiboot1 loader starts it with a command line of case names or their beginnings (`all`: every case that comes
//! back; with a minus sign: not these). Each case prints one line on COM1: `ok NAME`, `FAIL NAME: what: expected …, got …`, `known NAME: …` where
//! the emulation, QEMU's or Bochs', is documented to be wrong, or `skip NAME: why`. The run ends through the test device: port 0xf4 gets the
//! number of failures. `cases` holds what is checked, `torture` what
//! is checked about paging, `machine` what both need.
#![no_std]
#![no_main]

mod cases;
mod check;
mod machine;
mod torture;

use core::ffi::CStr;

use check::{Case, Check};
use machine::{insn, ioapic, lapic, paging, pic, serial, trap};

#[cfg(target_feature = "sse2")]
compile_error!("the kit is built by the end-to-end tests, with the flags of `cargo hv`");

/// The beginning of the multiboot information.
#[repr(C)]
struct Information {
    flags: u32,
    _memory: [u32; 2],
    _boot_device: u32,
    command_line: u32,
}

/// Called by entry.s.
#[unsafe(no_mangle)]
extern "C" fn kit_main(information: &Information, magic: u32) -> ! {
    serial::set_up();
    trap::set_up();
    if magic != 0x2bad_b002 || information.flags & 1 << 2 == 0 {
        say!("FAIL kit: no multiboot1 loader, or no command line");
        end(0xfe);
    }
    // SAFETY: the loader left a terminated string there.
    let line = unsafe { CStr::from_ptr(information.command_line as usize as *const _) };
    let line = line.to_str().unwrap_or_default();
    // The first word is the file's name.
    let words = || line.split(' ').filter(|word| !word.is_empty() && !word.starts_with('/'));
    let option = |name: &str| words().any(|word| word == name);
    torture::set_options(words());
    cases::bulk::set_options(words());
    let (mut failures, mut ran) = (0, 0);
    for case in cases::all() {
        let named = |word: &str| {
            if case.fatal { word == case.name } else { word == "all" || case.name.starts_with(word) }
        };
        let left_out = |word: &str| word.strip_prefix('-').is_some_and(|word| case.name.starts_with(word));
        if words().any(named) && !words().any(left_out) {
            ran += 1;
            failures += run(case, option);
        }
    }
    say!("kit: {ran} cases, {failures} failed");
    end(if ran == 0 { 0xfd } else { failures.min(100) as u8 })
}

/// Runs one case; 1 if it failed.
fn run(case: &Case, option: impl Fn(&str) -> bool) -> u32 {
    let mut check = Check::new(option);
    set_up();
    (case.run)(&mut check);
    insn::cli();
    let name = case.name;
    match check {
        Check { failures: 1.., .. } => say!("FAIL {name}: {}", check.text()),
        Check { skipped: Some(why), .. } => say!("skip {name}: {why}"),
        Check { known: known @ 1.., .. } => {
            say!("known {name}: {known} documented mistakes of the emulation")
        }
        _ => say!("ok {name}"),
    }
    u32::from(check.failures > 0)
}

/// The state in which every case begins.
fn set_up() {
    insn::cli();
    insn::set_cr0(0x8001_0033);
    insn::set_cr4(0x620);
    insn::set_cr8(0);
    insn::set_dr7(0x400);
    insn::set_dr6(0xffff_0ff0);
    trap::reset();
    paging::reset();
    lapic::reset();
    ioapic::reset();
    pic::set_up();
}

/// Ends the run through the test device, or without one as Bochs' machine is switched off; without that, too, stops.
pub fn end(status: u8) -> ! {
    insn::outb(abi::testdev::EXIT, status);
    serial::drain();
    b"Shutdown".iter().for_each(|&letter| insn::outb(0x8900, letter));
    loop {
        insn::cli();
        // SAFETY: waits, if need be for ever.
        unsafe { core::arch::asm!("hlt", options(nostack)) };
    }
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    say!("FAIL kit: {info}");
    end(0xfc)
}
