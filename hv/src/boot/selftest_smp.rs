//! Tests of several PCPUs at once: see [`super::selftest`].

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::host::Host;
use super::percpu::{self, Job, PerCpu, work};
use super::{log, report, smp};
use crate::arch::state::cr0;
use crate::hw::mtrr::Mtrrs;
use crate::hw::{cpu, fpu, lapic, pm};
use crate::mem::frame::{self, Node};

/// Shootdowns that all PCPUs together ask of all others.
const SHOTS: u64 = 80;

/// Runs all of them and ends the machine.
pub fn run(host: &'static Host) -> ! {
    let job = |job: Box<dyn Fn(&'static PerCpu) + Sync>| -> Job { Box::leak(job) };
    let me = host.cpu;
    smp::run_everywhere(me, job(Box::new(move |pcpu| processor(host, pcpu))));
    let before = frame::stats().free;
    smp::run_everywhere(me, job(Box::new(memory)));
    let kept = before - frame::stats().free;
    assert!(kept < u64::from(percpu::count()) * 16 << 8, "the heap kept {kept} frames");
    smp::run_everywhere(me, job(Box::new(move |pcpu| timer(host, pcpu))));
    shootdowns(host, job(Box::new(move |pcpu| shoot(host, pcpu))));
    let failures = super::start::selftest_virtualization(host);
    assert_eq!(failures, 0, "virtualization");
    ::log::info!("selftest: passed on {} PCPUs", percpu::count());
    if host.options.probe {
        report::probe(host)
    }
    log::drain();
    pm::end_machine(pm::STATUS_OK)
}

/// Each PCPU is set up as the first one.
fn processor(host: &Host, pcpu: &'static PerCpu) {
    // SAFETY: it is installed, or else this would not run.
    let current = unsafe { PerCpu::current() };
    assert!(core::ptr::eq(current, pcpu) && percpu::current_index() == Some(pcpu.index));
    assert_eq!(lapic::id(), pcpu.apic_id());
    assert!(cpu::cr0() & cr0::TS != 0, "CR0.TS is the tripwire");
    let registers = [cpu::cr0(), cpu::cr3(), cpu::cr4()];
    static FIRST: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];
    for (first, value) in FIRST.iter().zip(registers) {
        // The first PCPU sets the value that all others must have.
        if let Err(other) = first.compare_exchange(0, value, Ordering::SeqCst, Ordering::SeqCst) {
            assert_eq!(other, value, "control registers differ");
        }
    }
    if let Some(mtrrs) = Mtrrs::read() {
        // SAFETY: its own values again.
        unsafe { mtrrs.write() };
        assert_eq!(Mtrrs::read(), Some(mtrrs));
    }
    // Traps unless the stack is a multiple of 16 where functions are called.
    let _any_value = fpu::mmx(0);
    let skew = pcpu.tsc_skew.load(Ordering::Relaxed);
    ::log::info!(
        "selftest: PCPU {} of {}: TSC skew {skew}, {} kHz",
        pcpu.index,
        percpu::count(),
        host.tsc_khz
    );
}

/// Frames and heap, with many at once.
fn memory(pcpu: &'static PerCpu) {
    for round in 0..20u64 {
        let tag = u64::from(pcpu.index) << 32 | round;
        let blocks: Vec<_> =
            (0..6).filter_map(|order| Some((frame::alloc(order, Node(0))?, order))).collect();
        for (at, order) in &blocks {
            // SAFETY: the block is ours.
            unsafe { core::slice::from_raw_parts_mut(at.0 as *mut u64, 512 << order) }.fill(tag);
        }
        let boxes: Vec<Box<[u64; 24]>> = (0..200).map(|n| Box::new([tag ^ n; 24])).collect();
        assert!(
            boxes.iter().zip(0..).all(|(b, n)| b.iter().all(|word| *word == tag ^ n)),
            "heap blocks overlap"
        );
        for (at, order) in blocks {
            // SAFETY: the block is ours, and no longer used afterwards.
            unsafe {
                let words = core::slice::from_raw_parts(at.0 as *const u64, 512 << order);
                assert!(words.iter().all(|word| *word == tag), "frames were handed out twice");
                frame::free(at, order);
            }
        }
    }
}

/// The PCPU's own timer.
fn timer(host: &Host, pcpu: &'static PerCpu) {
    let deadline = cpu::rdtsc() + 2 * host.tsc_khz;
    pcpu.take_pending();
    while cpu::rdtsc() < deadline {
        host.timer.arm(deadline, cpu::rdtsc());
        // SAFETY: it is installed, and no lock is held.
        unsafe { cpu::wait_for_interrupt() };
    }
    assert!(pcpu.take_pending() & work::TIMER != 0, "PCPU {} was not woken by its timer", pcpu.index);
}

static ANSWERS: AtomicU64 = AtomicU64::new(0);
static TICKS: AtomicU64 = AtomicU64::new(0);
static AT_WORK: AtomicU32 = AtomicU32::new(0);

/// All ask all.
fn shootdowns(host: &'static Host, shoot: Job) {
    AT_WORK.store(percpu::count(), Ordering::SeqCst);
    smp::run_everywhere(host.cpu, shoot);
    let shots = SHOTS / u64::from(percpu::count()) * u64::from(percpu::count());
    let ns = TICKS.load(Ordering::Relaxed) * 1_000_000 / host.tsc_khz / shots.max(1);
    ::log::info!("selftest: {} shootdowns, {ns} ns each, {} answers", shots, ANSWERS.load(Ordering::Relaxed));
}

fn shoot(host: &'static Host, me: &'static PerCpu) {
    let answer = || {
        if let Some(taken) = me.shootdown.take() {
            ANSWERS.fetch_add(1, Ordering::Relaxed);
            me.shootdown.answer(taken);
        }
    };
    for _ in 0..SHOTS / u64::from(percpu::count()) {
        let begin = cpu::rdtsc();
        smp::shoot(host, (0..percpu::count()).filter(|other| *other != me.index), answer);
        TICKS.fetch_add(cpu::rdtsc() - begin, Ordering::Relaxed);
        // SAFETY: it is installed, and no lock is held.
        unsafe { cpu::interrupt_window() };
    }
    AT_WORK.fetch_sub(1, Ordering::SeqCst);
    while AT_WORK.load(Ordering::SeqCst) > 0 {
        answer();
        core::hint::spin_loop();
    }
}

/// One PCPU panics while the others are at work; some with a lock of the log, one in a panic of its own.
pub fn panic_elsewhere(host: &'static Host) {
    let last = percpu::count() - 1;
    let busy: Job = Box::leak(Box::new(move |pcpu: &'static PerCpu| {
        let start = cpu::rdtsc();
        while cpu::rdtsc() - start < 100 * host.tsc_khz {
            ::log::info!("selftest: PCPU {} is running", pcpu.index);
        }
        if pcpu.index == last {
            panic!("on request, on PCPU {last}");
        }
        if pcpu.index == last / 2 {
            while cpu::rdtsc() - start < 103 * host.tsc_khz {}
            panic!("another one");
        }
        loop {
            ::log::info!("selftest: PCPU {} is running", pcpu.index);
        }
    }));
    smp::run_everywhere(host.cpu, busy);
}
