//! A self-test of shootdowns: PCPUs run guests that never exit by themselves, and are requested to flush their translations. Before
//! that, the entry of a guest with invalid state fails, and the log says why.
//!
//! It measures how long a kick takes to end a guest, and how many have no effect (docs/design/0011-smp.md).

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::backend::Backend;
use crate::arch::addr::{Gpa, PAGE_SIZE, PageSize};
use crate::arch::state::{ArchState, VcpuState, rflags};
use crate::boot::host::Host;
use crate::boot::percpu::{self, PerCpu};
use crate::boot::smp::{self, Pcpus};
use crate::guest::cpuid::CpuLimits;
use crate::hw::cpu;
use crate::mem::frame::{self, Node};
use crate::mem::tables::HostTables;
use crate::paging::format::NestedAttr;
use crate::paging::range::{Flush, GpaRange};
use crate::paging::table::Table;
use crate::smp::mailbox::{self, KickSender, Mailbox};
use crate::virt::speculation::Measures;
use crate::virt::{Ended, Exit, FlushScope, PendingIrq, Roots, Virt};

/// The page that holds the first instruction after RESET, and where in it that is.
const PAGE: Gpa = Gpa(0xffff_f000);
const ENTRY: u64 = 0xff0;
/// Kicks of each kind. More would tell nothing new, and each takes Bochs a sixth of a second of its time where the guest has interrupts
/// disabled and exits often: it looks for the kick no sooner.
const ROUNDS: usize = 8;
/// A kick is repeated after this time.
const PATIENCE_MS: u64 = 20;

/// What a guest does.
struct Guest {
    name: &'static str,
    code: &'static [u8],
    flags: u64,
    offer: PendingIrq,
}

const GUESTS: [Guest; 4] = [
    Guest { name: "a loop", code: &[0xeb, 0xfe], flags: rflags::IF, offer: PendingIrq::None },
    Guest { name: "a loop with interrupts disabled", code: &[0xeb, 0xfe], flags: 0, offer: PendingIrq::None },
    Guest {
        name: "a loop of CPUID",
        code: &[0x0f, 0xa2, 0xeb, 0xfc],
        flags: rflags::IF,
        offer: PendingIrq::None,
    },
    Guest {
        name: "a loop of CPUID with a pending interrupt",
        code: &[0x0f, 0xa2, 0xeb, 0xfc],
        flags: 0,
        offer: PendingIrq::Vector(0x40),
    },
];

/// Which of the guests is to run; beyond the last it is over.
static WHICH: AtomicU32 = AtomicU32::new(0);
static RUNNING: AtomicU32 = AtomicU32::new(0);
static FAILED: AtomicBool = AtomicBool::new(false);

/// Runs on every PCPU: the first one kicks the others. False: something else than a kick ended a guest.
pub fn run<B: Backend>(host: &Host, backend: &B, pcpu: &PerCpu, cpu: &mut <B::Virt as Virt>::Cpu) -> bool {
    if pcpu.index == 0 && !is_refused(backend, cpu) {
        FAILED.store(true, Ordering::SeqCst);
    }
    for (number, guest) in (0..).zip(&GUESTS) {
        if pcpu.index == 0 {
            kick(host, number, guest);
        } else {
            spin(backend, pcpu, cpu, number, guest);
        }
    }
    !FAILED.load(Ordering::SeqCst)
}

/// The tables of a guest: without memory at first.
fn tables<B: Backend>() -> Table<<B::Virt as Virt>::NestedFormat, HostTables> {
    Table::new(HostTables::default(), PageSize::Size4K).expect("memory for tables")
}

/// Enters a guest with a register that no processor accepts, and shows what the backend says of that.
fn is_refused<B: Backend>(backend: &B, cpu: &mut <B::Virt as Virt>::Cpu) -> bool {
    let tables = tables::<B>();
    let mut virt = Box::new(backend.vcpu(&Measures::default(), &backend.msr_map(&CpuLimits::default())));
    let state = ArchState::reset();
    ArchState { cr0: state.cr0 | 1 << 32, ..state }.store(&mut *virt);
    virt.set_paging(Roots::Nested(tables.root().base()));
    let _other = virt.enter(cpu);
    let refused = virt.exit() == Exit::InvalidState;
    // The report is still to be had when the processor is another VCPU's.
    virt.put(cpu);
    log::info!("selftest: guest with invalid state: {}", virt.exit_report());
    refused
}

/// The PCPUs as the test asks them.
struct Counted<'a> {
    kicks: &'a Cell<u32>,
}

impl KickSender for Counted<'_> {
    type Counter = AtomicU64;

    fn mailbox(&self, pcpu: u32) -> &Mailbox {
        Pcpus.mailbox(pcpu)
    }
    fn kick(&self, pcpu: u32) {
        self.kicks.set(self.kicks.get() + 1);
        Pcpus.kick(pcpu);
    }
    fn tsc(&self) -> u64 {
        Pcpus.tsc()
    }
}

/// Asks the other PCPUs one by one while they run the guest.
fn kick(host: &Host, number: u32, guest: &Guest) {
    while RUNNING.load(Ordering::SeqCst) < percpu::count() - 1 {
        core::hint::spin_loop();
    }
    let kicks = Cell::new(0);
    let mut ticks: Vec<u64> = Vec::with_capacity(ROUNDS);
    for (round, target) in (0..ROUNDS).zip((1..percpu::count()).cycle()) {
        // Not always at the same place in the guest's loop.
        (0..round % 64).for_each(|_| core::hint::spin_loop());
        let begin = cpu::rdtsc();
        let patience = host.tsc_khz * PATIENCE_MS;
        mailbox::shoot(&Counted { kicks: &kicks }, core::iter::once(target), patience, || {});
        ticks.push(cpu::rdtsc() - begin);
    }
    RUNNING.store(0, Ordering::SeqCst);
    WHICH.store(number + 1, Ordering::SeqCst);
    percpu::all().skip(1).for_each(smp::kick);
    ticks.sort_unstable();
    let ns = |ticks: Option<&u64>| ticks.map_or(0, |ticks| ticks * 1_000_000 / host.tsc_khz);
    log::info!(
        "selftest: {}: shootdown latency: median {} ns, longest {} ns; {} kicks for {}",
        guest.name,
        ns(ticks.get(ticks.len() / 2)),
        ns(ticks.last()),
        kicks.get(),
        ticks.len()
    );
}

/// Runs the guest until the test goes on.
fn spin<B: Backend>(
    backend: &B,
    pcpu: &PerCpu,
    cpu: &mut <B::Virt as Virt>::Cpu,
    number: u32,
    guest: &Guest,
) {
    let Some(page) = frame::alloc_zeroed(0, Node(0)) else { return FAILED.store(true, Ordering::SeqCst) };
    // SAFETY: the frame is ours, and no guest runs in it yet.
    let bytes = unsafe { core::slice::from_raw_parts_mut(page.0 as *mut u8, PAGE_SIZE as usize) };
    bytes[ENTRY as usize..][..guest.code.len()].copy_from_slice(guest.code);
    let mut tables = tables::<B>();
    let _unused_yet: Flush =
        tables.map(GpaRange::page(PAGE), page, NestedAttr::RAM).expect("memory for tables");
    let mut virt = Box::new(backend.vcpu(&Measures::default(), &backend.msr_map(&CpuLimits::default())));
    let mut state = ArchState::reset();
    state.rflags |= guest.flags;
    state.store(&mut *virt);
    virt.set_paging(Roots::Nested(tables.root().base()));
    virt.set_pending_irq(guest.offer);
    RUNNING.fetch_add(1, Ordering::SeqCst);
    let mut turns = 0u32;
    while WHICH.load(Ordering::SeqCst) == number {
        let quick = virt.enter(cpu) == Ended::Cpuid;
        match if quick { Exit::Cpuid } else { virt.exit() } {
            Exit::Cpuid => {
                let next = virt.rip() + 2;
                virt.answer_cpuid(&[0; 4], next);
                // Bochs lets its processors run in turn, for a fixed number of instructions, and a guest with interrupts
                // disabled sees a kick only if such a turn ends in the guest. A loop of fixed length might never.
                turns = turns.wrapping_add(1);
                (0..turns % 16).for_each(|_| core::hint::spin_loop());
            }
            Exit::Interrupt => {
                virt.load_host_state(cpu);
                // SAFETY: it is installed, and no lock is held.
                unsafe { cpu::interrupt_window() };
                if let Some(taken) = pcpu.shootdown.take() {
                    virt.flush(FlushScope::All);
                    pcpu.shootdown.answer(taken);
                }
            }
            other => {
                log::error!("PCPU {}: {}: {other:?}, {}", pcpu.index, guest.name, virt.exit_report());
                FAILED.store(true, Ordering::SeqCst);
                break;
            }
        }
    }
    virt.load_host_state(cpu);
    while WHICH.load(Ordering::SeqCst) == number {
        smp::answer_idle(pcpu);
        core::hint::spin_loop();
    }
    drop(virt);
    // SAFETY: no guest uses it any more; it was never in any other's tables.
    unsafe { frame::free(page, 0) };
}
