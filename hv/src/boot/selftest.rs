//! Tests of the running host, asked for on the command line (`selftest=`) by end-to-end tests.
//!
//! Most break a rule on purpose: the panic that follows proves that the rule is enforced and reported.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::arch::asm;
use core::hint::black_box;

use super::host::Host;
use super::percpu::work;
use super::{image, log};
use crate::boot::cmdline::SelfTest;
use crate::hw::fpu::{self, FpuState};
use crate::hw::{cpu, pm};
use crate::mem::frame::{self, Node};

/// ID of an APIC that is not there.
pub const ABSENT: u32 = 0xfd;

/// Runs the test; returns after `quick` only.
pub fn run(test: SelfTest, host: &'static Host) {
    match test {
        SelfTest::Quick => {
            memory();
            fpu_state();
            timer(host);
            ::log::info!("selftest: passed");
        }
        SelfTest::Console => console(host),
        SelfTest::Smp | SelfTest::AbsentPcpu => super::selftest_smp::run(host),
        SelfTest::PanicElsewhere => super::selftest_smp::panic_elsewhere(host),
        SelfTest::Panic => panic!("on request"),
        SelfTest::Null => {
            // SAFETY: the page is not mapped: the read faults.
            black_box(unsafe { (black_box(0u64) as *const u64).read_volatile() });
        }
        // SAFETY: the page is not writable: the write faults.
        SelfTest::WriteCode => unsafe { (image::text().start as *mut u64).write_volatile(0) },
        SelfTest::ExecuteData => {
            let data = [0xc3u8; 16];
            // SAFETY: the page is not executable: the call faults. (The byte is RET.)
            unsafe { asm!("call {}", in(reg) black_box(&data), clobber_abi("C")) }
        }
        // SAFETY: CR0.TS is set: the instruction faults.
        SelfTest::Sse => unsafe { hv_fpu_tripwire() },
        SelfTest::Stack => {
            black_box(recurse(1));
        }
        SelfTest::Heap => drop(black_box(Vec::<u8>::with_capacity(1 << 46))),
    }
    if test != SelfTest::Quick {
        panic!("selftest: {test:?} had no effect");
    }
}

fn memory() {
    let before = frame::stats();
    let blocks: Vec<_> =
        (0..10).filter_map(|order| frame::alloc_zeroed(order, Node(0)).map(|at| (at, order))).collect();
    assert_eq!(blocks.len(), 10);
    for (at, order) in &blocks {
        assert!(at.is_aligned(4096 << order));
        // SAFETY: the block is ours and has at least 512 words.
        let words = unsafe { core::slice::from_raw_parts_mut(at.0 as *mut u64, 512 << order) };
        assert!(words.iter().all(|word| *word == 0));
        words.fill(at.0);
    }
    let boxes: Vec<Box<[u64; 64]>> = (0..15_000).map(|n| Box::new([n; 64])).collect();
    assert!(boxes.iter().zip(0..).all(|(b, n)| b.iter().all(|word| *word == n)), "heap blocks overlap");
    drop(boxes);
    for (at, order) in blocks {
        // SAFETY: the block is ours and no longer used.
        unsafe { frame::free(at, order) };
    }
    let all = frame::alloc_all((3 << 20) + 1, Node(0)).expect("3 MiB");
    assert_eq!(all.iter().map(|block| block.bytes()).sum::<u64>(), (3 << 20) + 4096);
    // SAFETY: the blocks are ours and not used.
    all.iter().for_each(|block| unsafe { frame::free(block.start, block.order) });
    assert!(frame::alloc_all(before.free * 4096 + 4096, Node(0)).is_none(), "more memory than there is");
    // The last frames are the heap's.
    assert!(frame::alloc_all(frame::stats().free * 4096, Node(0)).is_none(), "nothing is kept");
    let heap = before.free - frame::stats().free;
    assert!(heap < 16 << 8, "the heap kept {heap} frames");
}

fn fpu_state() {
    let value = |n: u8| 0x0123_4567_89ab_cdef_1111_2222_3333_4400 + u128::from(n);
    let xcr0 = (cpu::cr4() & crate::arch::state::cr4::OSXSAVE != 0).then_some(3);
    let mut state = FpuState::new();
    // SAFETY: x87 and SSE state exist on every processor with XSAVE; no guest has state in the registers yet.
    unsafe {
        xcr0.inspect(|xcr0| cpu::xsetbv(0, *xcr0));
        (0..16).for_each(|n| fpu::set_xmm(n, value(n)));
        state.save();
        (0..16).for_each(|n| fpu::set_xmm(n, 0));
        state.restore();
    }
    assert!((0..16).all(|n| fpu::xmm(n) == value(n)), "FPU state was not restored");
    // SAFETY: as above.
    unsafe {
        FpuState::new().restore();
        xcr0.inspect(|_| cpu::xsetbv(0, 1));
    }
    assert!((0..16).all(|n| fpu::xmm(n) == 0), "FPU state was not cleared");
}

fn timer(host: &Host) {
    let start = cpu::rdtsc();
    let deadline = start + 5 * host.tsc_khz;
    while cpu::rdtsc() < deadline {
        host.timer.arm(deadline, cpu::rdtsc());
        // SAFETY: bring-up is complete, and no lock is held.
        unsafe { cpu::wait_for_interrupt() };
        assert!(host.cpu.take_pending() & work::TIMER != 0, "woken by something else");
    }
    let late_us = (cpu::rdtsc() - deadline) * 1000 / host.tsc_khz;
    ::log::info!("selftest: the timer was {late_us} us late");
}

fn console(host: &Host) -> ! {
    ::log::info!("selftest: type");
    loop {
        // SAFETY: bring-up is complete, and no lock is held.
        unsafe { cpu::wait_for_interrupt() };
        if host.cpu.take_pending() & work::CONSOLE != 0 {
            while let Some(byte) = log::console().try_read() {
                ::log::info!("selftest: got {byte:#x}");
                if byte == b'q' {
                    pm::end_machine(pm::STATUS_OK)
                }
            }
        }
    }
}

#[inline(never)]
fn recurse(n: u64) -> u64 {
    let words = [n; 64];
    black_box(&words);
    if black_box(n) == 0 { 0 } else { recurse(n + 1) + words[5] }
}

unsafe extern "C" {
    fn hv_fpu_tripwire();
}

core::arch::global_asm!(
    ".section .text.selftest,\"ax\"",
    ".global hv_fpu_tripwire",
    "hv_fpu_tripwire: xorps xmm0, xmm0",
    "ret"
);
