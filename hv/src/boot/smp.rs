//! Start of the other PCPUs, and what they do until there is work.
//!
//! One after the other: INIT, then start-up interrupts to the code of `ap.s` (Intel SDM 3, 9.4.4; AMD APM 2, 16.5). Each arrives in
//! [`boot_ap`], sets itself up as the first one did, compares clocks with it, and parks: it halts until it is kicked, and does
//! the jobs that [`run`] gives it. One that does not arrive is reported and left out; should it come later, it finds no
//! stack and halts.

use core::arch::global_asm;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use spin::Once;

use super::cmdline::HvOptions;
use super::host::Host;
use super::percpu::{self, Job, PerCpu};
use super::{idt, memory, paging, processor};
use crate::arch::emulator::is_qemu_tcg;
use crate::arch::state::efer;
use crate::hw::mtrr::Mtrrs;
use crate::hw::{cpu, fpu, lapic, msr};
use crate::probe;
use crate::sched::topology::{Location, MAX_PCPUS, PcpuId, Topology};
use crate::smp::first::Numbering;
use crate::smp::mailbox::{self, KickSender, Mailbox};
use crate::smp::skew::Skew;

global_asm!(include_str!("ap.s"), options(att_syntax));

unsafe extern "C" {
    static ap_start: u8;
    static ap_start_end: u8;
    static ap_stack: AtomicU64;
    static ap_root: AtomicU32;
    static ap_efer: AtomicU32;
}

/// From INIT to the start-up interrupt, and from one start-up interrupt to the next (SDM 3, 9.4.4.1).
const INIT_US: u64 = 10_000;
const STARTUP_US: u64 = 200;
/// How long PCPUs are awaited, all that are missing together, and each of them at least.
const PATIENCE_MS: u64 = 5000;
const LEAST_PATIENCE_MS: u64 = 300;
/// After this time without an answer a PCPU is kicked again.
const KICK_MS: u64 = 1;
/// Rounds in which clocks are compared: each narrows the bounds ([`Skew`]). The limit is for machines where a round is slow, as
/// where emulated processors share one processor.
const ROUNDS: u32 = 64;
const ROUNDS_MS: u64 = 20;
/// A difference of clocks that is not worth a warning: less than a microsecond at any frequency.
const SKEW_TICKS: u64 = 500;

/// What the first PCPU tells the others.
struct Common {
    host: &'static Host,
    mtrrs: Option<Mtrrs>,
}

static COMMON: Once<Common> = Once::new();

fn ticks(host: &Host, us: u64) -> u64 {
    host.tsc_khz * us / 1000
}

/// Waits.
fn delay(ticks: u64) {
    let start = cpu::rdtsc();
    while cpu::rdtsc().wrapping_sub(start) < ticks {
        core::hint::spin_loop();
    }
}

static TOPOLOGY: Once<Topology> = Once::new();

/// The first PCPU runs no guests. Set before the first guest is made.
static FIRST_IS_APART: AtomicBool = AtomicBool::new(false);

/// How PCPUs are numbered.
pub fn numbering() -> Numbering {
    Numbering { count: percpu::count(), first_is_apart: FIRST_IS_APART.load(Ordering::Relaxed) }
}

/// The PCPU with this number.
pub fn pcpu(id: PcpuId) -> Option<&'static PerCpu> {
    percpu::get(numbering().index(id))
}

/// Whether the first PCPU should leave guests to others.
fn first_is_for_host(options: &HvOptions) -> bool {
    options.first_pcpu.is_for_host(is_qemu_tcg(cpuid))
}

/// How many PCPUs to start for guests on as many as the command line says.
pub fn to_start(options: &HvOptions) -> usize {
    options.first_pcpu.to_start(options.pcpus, is_qemu_tcg(cpuid))
}

/// Decides whether the first PCPU runs guests, knowing which PCPUs, by their indices, can run them; from now on they have their
/// final numbers. To be called once, before any PCPU has asked for one.
pub fn set_first_apart(options: &HvOptions, can_run: impl Fn(u32) -> bool) -> Numbering {
    let others_can = (1..percpu::count()).any(can_run);
    FIRST_IS_APART.store(first_is_for_host(options) && others_can, Ordering::Relaxed);
    numbering()
}

/// Where the PCPUs are that may run guests, in the order of their numbers.
pub fn guest_topology() -> Topology {
    let numbering = numbering();
    let ids = (0..numbering.numbered()).map(|number| PcpuId(number as u8));
    let pcpus = ids.filter_map(|id| percpu::get(numbering.index(id)));
    Topology::new(pcpus.map(|pcpu| pcpu.place.get().copied().unwrap_or_default()))
}

/// Where all PCPUs are. Once all have started.
pub fn topology() -> &'static Topology {
    TOPOLOGY
        .call_once(|| Topology::new(percpu::all().map(|pcpu| pcpu.place.get().copied().unwrap_or_default())))
}

fn cpuid(leaf: u32, subleaf: u32) -> [u32; 4] {
    let r = cpu::cpuid(leaf, subleaf);
    [r.eax, r.ebx, r.ecx, r.edx]
}

/// Notes where the PCPU that executes this is.
fn find_place(host: &Host, pcpu: &PerCpu) {
    let node = host.acpi.numa.node_of(pcpu.apic_id());
    pcpu.place.call_once(|| Location { node, ..probe::place(&cpuid, pcpu.apic_id()) });
}

/// Starts the PCPUs that the MADT names, `most` and [`MAX_PCPUS`] at most, the first one included.
pub fn start(host: &'static Host, most: usize) {
    find_place(host, host.cpu);
    let wanted = host.acpi.cpus.iter().filter(|id| **id != host.lapic.id);
    let wanted = wanted.take(most.min(MAX_PCPUS).saturating_sub(1));
    if wanted.clone().next().is_none() {
        return;
    }
    let page = memory::low_page(&host.boot);
    let root = paging::root().and_then(|root| u32::try_from(root.0).ok());
    let (Some(page), Some(root)) = (page, root) else {
        log::warn!(
            "no memory {}: one PCPU is used",
            if page.is_none() { "below 640 KiB" } else { "below 4 GiB" }
        );
        return;
    };
    COMMON.call_once(|| Common { host, mtrrs: Mtrrs::read() });
    // SAFETY: the page is RAM without another use, and the code is shorter; the variables are this module's.
    unsafe {
        let code = &raw const ap_start;
        let length = (&raw const ap_start_end as usize) - code as usize;
        core::ptr::copy_nonoverlapping(code, page as *mut u8, length);
        ap_root.store(root, Ordering::Relaxed);
        ap_efer.store((msr::read(msr::EFER) & (efer::LME | efer::NXE)) as u32, Ordering::Relaxed);
    }
    // All at once: the ten milliseconds after INIT are waited for once, not per PCPU.
    wanted.clone().for_each(|id| lapic::send_init(*id));
    delay(ticks(host, INIT_US));
    let end = cpu::rdtsc() + ticks(host, PATIENCE_MS * 1000);
    for id in wanted {
        if let Err(why) = start_one(host, *id, page, end) {
            log::warn!(
                "the PCPU with APIC ID {id} is not used: {why}; if a power cycle does not help, disable it in the firmware setup"
            );
        }
    }
}

/// Starts one. It has until `end`, or a little while from now.
fn start_one(host: &Host, apic_id: u32, page: u64, end: u64) -> Result<(), &'static str> {
    let index = percpu::count();
    let home = percpu::make(index).ok_or("no memory for it")?;
    paging::unmap_guard(home.guard).map_err(|_| "no guard page for its stack")?;
    // SAFETY: within the new stack.
    unsafe { ((home.stack_top - 8) as *mut u64).write(home.pcpu as u64) };
    // SAFETY: a variable of this module.
    let stack = unsafe { &ap_stack };
    stack.store(home.stack_top - 8, Ordering::SeqCst);
    let begin = cpu::rdtsc();
    let is_here = || percpu::count() > index;
    let has_come = || stack.load(Ordering::SeqCst) == 0;
    // The second start-up interrupt is for processors that miss the first (SDM 3, 9.4.4.1).
    for _ in 0..2 {
        if !has_come() {
            lapic::send_startup(apic_id, page);
            delay(ticks(host, STARTUP_US));
        }
    }
    let end = end.max(begin + ticks(host, LEAST_PATIENCE_MS * 1000));
    while !is_here() {
        // The exchange decides: the PCPU has taken its stack and owns it, or this one takes it and the late PCPU halts.
        if cpu::rdtsc() > end && !has_come() && stack.swap(0, Ordering::SeqCst) != 0 {
            return Err("it did not start");
        }
        if cpu::rdtsc() > end + ticks(host, PATIENCE_MS * 1000) {
            return Err("it started, but did not finish its initialization");
        }
        core::hint::spin_loop();
    }
    let pcpu = percpu::get(index).ok_or("it is not listed")?;
    if pcpu.apic_id() != apic_id {
        log::warn!("the PCPU with APIC ID {apic_id} reports APIC ID {}", pcpu.apic_id());
    }
    compare_clocks(host, pcpu);
    Ok(())
}

/// Called by `ap.s` on the new PCPU's own stack.
#[unsafe(no_mangle)]
extern "C" fn boot_ap(pcpu: *mut PerCpu) -> ! {
    let (Some(common), Some(idt)) = (COMMON.get(), percpu::IDT.get()) else { cpu::halt_forever() };
    // SAFETY: the first PCPU made the structure for this one, on the host's final tables.
    let pcpu = unsafe { (*pcpu).install(idt) };
    // SAFETY: once, on this PCPU; nothing else runs on it. The first one's registers are those of a processor of the same kind.
    let apic_id = unsafe {
        if let Some(mtrrs) = common.mtrrs.as_ref().filter(|mtrrs| Mtrrs::read().as_ref() != Some(mtrrs)) {
            // Firmware is to set all processors alike, and some forgets to: memory of one type here and of another there
            // is not coherent.
            mtrrs.write();
        }
        processor::start();
        fpu::start();
        lapic::join(idt::SPURIOUS)
    };
    common.host.timer.install(idt::TIMER);
    pcpu.list(apic_id);
    find_place(common.host, pcpu);
    answer_clocks(pcpu);
    park(pcpu)
}

/// Does jobs for ever; halts when there is none.
fn park(pcpu: &'static PerCpu) -> ! {
    loop {
        // Before the look for a job: a kick that comes after it ends the halt below.
        pcpu.take_pending();
        if let Some(job) = pcpu.take_job() {
            job(pcpu);
            pcpu.end_job();
            continue;
        }
        answer_idle(pcpu);
        // A kick that came since is still to be taken: it ends the halt.
        // SAFETY: the IDT is loaded, and no lock is held.
        unsafe { cpu::wait_for_interrupt() };
    }
}

/// Answers a shootdown on a PCPU on which no guest is to run before all of its translations are dropped anyway.
pub fn answer_idle(pcpu: &PerCpu) {
    if let Some(taken) = pcpu.shootdown.take() {
        pcpu.shootdown.answer(taken);
    }
}

/// The number of the PCPU that executes this.
pub fn here() -> PcpuId {
    // SAFETY: PCPUs are installed before they do anything.
    numbering().id(unsafe { PerCpu::current() }.index)
}

/// Answers what the PCPU that executes this is asked. Before its next entry, its VCPU looks into its mailbox.
pub fn answer_here() {
    // SAFETY: as above.
    answer_idle(unsafe { PerCpu::current() });
}

/// Makes a PCPU look what there is to do: it leaves its guest, or wakes up.
pub fn kick(pcpu: &PerCpu) {
    lapic::send(pcpu.apic_id(), idt::KICK);
}

/// Gives a parked PCPU a job.
///
/// # Panics
/// If it has one.
pub fn run(pcpu: &PerCpu, job: Job) {
    assert!(!pcpu.is_busy(), "PCPU {} has a job", pcpu.index);
    pcpu.set_job(job);
    kick(pcpu);
}

/// Gives all PCPUs but the one that executes this, `me`, a job that returns, does it here too, and waits until all are done.
pub fn run_everywhere(me: &'static PerCpu, job: Job) {
    let others = percpu::all().filter(|pcpu| pcpu.index != me.index);
    others.clone().for_each(|pcpu| run(pcpu, job));
    job(me);
    for pcpu in others {
        while pcpu.is_busy() {
            answer_idle(me);
            core::hint::spin_loop();
        }
    }
}

/// The PCPUs as they ask each other.
#[derive(Clone, Copy)]
pub struct Pcpus;

impl KickSender for Pcpus {
    type Counter = AtomicU64;

    fn mailbox(&self, pcpu: u32) -> &Mailbox {
        &percpu::get(pcpu).expect("a PCPU that has started").shootdown
    }

    fn kick(&self, pcpu: u32) {
        kick(percpu::get(pcpu).expect("a PCPU that has started"));
    }

    fn tsc(&self) -> u64 {
        cpu::rdtsc_unordered()
    }
}

/// Makes `targets` forget translations, and returns when they have. See [`mailbox::shoot`].
pub fn shoot(host: &Host, targets: impl Iterator<Item = u32> + Clone, answer: impl FnMut()) {
    mailbox::shoot(&Pcpus, targets, host.tsc_khz * KICK_MS, answer);
}

/// A comparison of clocks: whose turn it is, and the other one's clock.
static TURN: AtomicU32 = AtomicU32::new(FIRST);
static CLOCK: AtomicU64 = AtomicU64::new(0);
const FIRST: u32 = 0;
const OTHER: u32 = 1;
const NO_MORE: u32 = 2;

/// On the first PCPU: asks the new one for its clock many times.
fn compare_clocks(host: &Host, pcpu: &PerCpu) {
    let mut skew = Skew::default();
    let end = cpu::rdtsc() + ticks(host, ROUNDS_MS * 1000);
    for _ in 0..ROUNDS {
        let before = cpu::rdtsc();
        TURN.store(OTHER, Ordering::Release);
        while TURN.load(Ordering::Acquire) != FIRST {
            core::hint::spin_loop();
        }
        skew.add(before, CLOCK.load(Ordering::Relaxed), cpu::rdtsc());
        if cpu::rdtsc() > end {
            break;
        }
    }
    TURN.store(NO_MORE, Ordering::Release);
    while TURN.load(Ordering::Acquire) != FIRST {
        core::hint::spin_loop();
    }
    log::debug!("PCPU {}: TSC within {} ticks", pcpu.index, skew.uncertainty());
    pcpu.tsc_skew.store(skew.ticks(), Ordering::Relaxed);
    if skew.ticks().unsigned_abs() > SKEW_TICKS {
        log::warn!(
            "the PCPU with APIC ID {}: its TSC differs from the first one's by {} ticks; VCPUs that migrate there see time jump; exclude it by `affinity`",
            pcpu.apic_id(),
            skew.ticks()
        );
    }
}

/// On the new PCPU.
fn answer_clocks(_: &PerCpu) {
    loop {
        match TURN.load(Ordering::Acquire) {
            OTHER => {
                CLOCK.store(cpu::rdtsc(), Ordering::Relaxed);
                TURN.store(FIRST, Ordering::Release);
            }
            NO_MORE => break TURN.store(FIRST, Ordering::Release),
            _ => core::hint::spin_loop(),
        }
    }
}
