//! The other processors: how they are started and given work, and what they count.
//!
//! A case starts them with [`start`] and ends with [`stop`], after which they wait for a start-up IPI. In between each waits
//! halted for a job and runs it on a stack of its own; a trap there is counted in its [`Processor`], not in
//! [`super::trap`], and a page fault is fatal but in a probe. What jobs share is in atomics.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst};

use super::insn::{cpuid, cr2, sti_hlt};
use super::trap::{Frame, vector};
use super::{lapic, time};
use crate::say;

core::arch::global_asm!(include_str!("ap.s"));

/// The most that start between [`stop`]s: 15, and one of them again.
pub const MOST: usize = 16;
/// Wakes a processor that waits for a job.
pub const WAKE: u8 = 0x7f;
/// The pages at which processors can be told to start, two for a test of the vector.
pub const START_PAGES: [u64; 2] = [0x70000, 0x71000];

const STACK: u64 = 16384;
const INIT: u64 = 5 << 8 | 1 << 14;
const STARTUP: u64 = 6 << 8 | 1 << 14;
const OTHERS: u64 = 3 << 18;

unsafe extern "C" {
    static kit_ap_start: u8;
    static kit_ap_end: u8;
    static kit_ap_stacks: u8;
    static kit_ap_next: AtomicU32;
    static kit_probe_end: u8;
    fn kit_probe_landing();
    fn kit_probe_read(at: u64) -> Probe;
    fn kit_probe_write(at: u64, value: u64) -> Probe;
}

#[repr(C)]
struct Probe {
    value: u64,
    fault: u64,
}

/// What INIT left in registers.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Left {
    pub cr0: u64,
    pub cr4: u64,
    pub edx: u64,
    pub efer: u64,
    pub cr3: u64,
}

/// A processor other than the first.
pub struct Processor {
    /// Its APIC id, once it runs.
    id: AtomicU32,
    job: AtomicUsize,
    argument: AtomicU64,
    left: [AtomicU64; 5],
    counts: [AtomicU32; 256],
    /// What its jobs like to say.
    pub word: AtomicU64,
}

static PROCESSORS: [Processor; MOST] = [const {
    Processor {
        id: AtomicU32::new(u32::MAX),
        job: AtomicUsize::new(0),
        argument: AtomicU64::new(0),
        left: [const { AtomicU64::new(0) }; 5],
        counts: [const { AtomicU32::new(0) }; 256],
        word: AtomicU64::new(0),
    }
}; MOST];

/// What a processor does for a case.
pub type Job = fn(me: &'static Processor, argument: u64);

impl Processor {
    /// Its APIC id.
    pub fn id(&self) -> u32 {
        self.id.load(SeqCst)
    }

    /// How often a vector came since it started.
    pub fn count(&self, vector: u8) -> u32 {
        self.counts[usize::from(vector)].load(SeqCst)
    }

    /// What INIT left in its registers.
    pub fn left(&self) -> Left {
        let [cr0, cr4, edx, efer, cr3] = [0, 1, 2, 3, 4].map(|i| self.left[i].load(SeqCst));
        Left { cr0, cr4, edx, efer, cr3 }
    }

    /// Gives it a job; the one before must be done.
    pub fn give(&self, job: Job, argument: u64) {
        self.argument.store(argument, SeqCst);
        self.job.store(job as usize, SeqCst);
        lapic::send(u64::from(WAKE), self.id());
    }

    /// Whether its job is done, at most `millis` from now.
    pub fn is_done(&self, millis: u64) -> bool {
        time::wait(millis, || self.job.load(SeqCst) == 0)
    }

    /// Forgets what it counted.
    pub fn forget(&self) {
        self.counts.iter().for_each(|count| count.store(0, SeqCst));
    }
}

/// Those that run.
pub fn processors() -> &'static [Processor] {
    // SAFETY: a static of entry code, changed by atomic instructions only.
    let started = unsafe { &*&raw const kit_ap_next }.load(SeqCst) as usize;
    &PROCESSORS[..started.min(MOST)]
}

/// None came when [`start`] was called first. Later calls do not wait again: on a slow emulation that is seconds for each case.
static ALONE: AtomicBool = AtomicBool::new(false);

/// Starts all others and waits until each waits for a job; how many there are.
pub fn start() -> usize {
    if ALONE.load(SeqCst) {
        return 0;
    }
    // They come within milliseconds of each other, but for those that wait for a turn on the machine's processors.
    let came = start_within(500);
    ALONE.store(came == 0, SeqCst);
    came
}

/// The same with this patience, in milliseconds after the last that came.
pub fn start_within(millis: u64) -> usize {
    install();
    stop();
    time::wait(10, || false);
    lapic::send(STARTUP | OTHERS | START_PAGES[0] >> 12, 0);
    let mut known = 0;
    // As many as the processor counts in its package (HTT, and the count beside it, which may be rounded up) do come, but may
    // take long, above all the first: the machine below may have much else to do.
    let [_, ebx, _, edx] = cpuid(1, 0);
    let package = if edx >> 28 & 1 != 0 { ebx as usize >> 16 & 0xff } else { 1 };
    loop {
        let patience = match known {
            0 if package > 1 => millis.max(20_000),
            _ if known + 1 < package => millis.max(5_000),
            _ => millis,
        };
        let more = time::wait(patience, || processors().len() > known);
        known = processors().len();
        if !more {
            break;
        }
    }
    time::wait(20_000, || processors().iter().all(|p| p.id() != u32::MAX));
    known
}

/// Starts one at a page of [`START_PAGES`], after INIT; whether it came.
pub fn start_one(id: u32, page: u64) -> bool {
    install();
    let before = processors().len();
    lapic::send(INIT, id);
    time::wait(10, || false);
    lapic::send(STARTUP | page >> 12, id);
    time::wait(20_000, || processors().len() > before && processors()[before].id() != u32::MAX)
}

/// Lets all others wait for a start-up IPI.
pub fn stop() {
    lapic::send(INIT | OTHERS, 0);
    // SAFETY: as in `processors`; none runs.
    unsafe { &*&raw const kit_ap_next }.store(0, SeqCst);
    for processor in &PROCESSORS {
        processor.id.store(u32::MAX, SeqCst);
        processor.job.store(0, SeqCst);
        processor.forget();
    }
}

/// Puts the first instructions where start-up IPIs lead.
fn install() {
    let (start, end) = (&raw const kit_ap_start, &raw const kit_ap_end);
    for page in START_PAGES {
        // SAFETY: memory below 640 KiB that nothing else uses.
        unsafe { core::ptr::copy(start, page as *mut u8, end as usize - start as usize) };
    }
}

/// Called by ap.s.
#[unsafe(no_mangle)]
extern "C" fn kit_ap(left: &Left) -> ! {
    let me = at(&raw const *left as u64).unwrap_or(&PROCESSORS[0]);
    super::trap::load_idt(4095);
    lapic::reset();
    let Left { cr0, cr4, edx, efer, cr3 } = *left;
    for (to, value) in me.left.iter().zip([cr0, cr4, edx, efer, cr3]) {
        to.store(value, SeqCst);
    }
    me.id.store(lapic::id(), SeqCst);
    loop {
        let job = me.job.load(SeqCst);
        if job == 0 {
            sti_hlt();
            continue;
        }
        // SAFETY: stored by `give`, which takes a job.
        let job: Job = unsafe { core::mem::transmute::<usize, Job>(job) };
        job(me, me.argument.load(SeqCst));
        super::insn::cli();
        me.job.store(0, SeqCst);
    }
}

/// The processor on whose stack this is.
fn at(stack: u64) -> Option<&'static Processor> {
    let offset = stack.wrapping_sub(&raw const kit_ap_stacks as u64);
    PROCESSORS.get((offset / STACK) as usize)
}

/// What a trap does here if it is another processor's, or a probe's; whether it was.
pub fn trap(frame: &mut Frame) -> bool {
    let number = frame.vector as u8;
    let probes = kit_probe_read as *const () as u64..&raw const kit_probe_end as u64;
    if number == vector::PF && probes.contains(&frame.rip) {
        frame.rip = kit_probe_landing as *const () as u64;
        frame.rdx = 1 << 32 | frame.error;
        return true;
    }
    let Some(me) = at(&raw const *frame as u64) else {
        return false;
    };
    me.counts[usize::from(number)].fetch_add(1, SeqCst);
    if number < 32 && number != vector::NMI {
        say!(
            "FAIL kit: processor {}: vector {number}, error {:x} at {:x}, CR2 {:x}",
            me.id(),
            frame.error,
            frame.rip,
            cr2()
        );
        crate::end(0xfb);
    }
    if number >= 32 && number != lapic::SPURIOUS {
        handle(number);
        lapic::eoi();
    }
    true
}

/// The hook of other processors' interrupts, before their EOI.
static HANDLER: AtomicUsize = AtomicUsize::new(0);

/// Sets it; one for all.
pub fn on_interrupt(handler: Option<fn(u8)>) {
    HANDLER.store(handler.map_or(0, |handler| handler as usize), SeqCst);
}

fn handle(number: u8) {
    let handler = HANDLER.load(SeqCst);
    if handler != 0 {
        // SAFETY: stored by `on_interrupt`, which takes such a function.
        unsafe { core::mem::transmute::<usize, fn(u8)>(handler)(number) };
    }
}

/// Reads memory; the error code if that faults.
pub fn try_read(at: u64) -> Result<u64, u32> {
    // SAFETY: a fault comes back.
    let probe = unsafe { kit_probe_read(at) };
    if probe.fault == 0 { Ok(probe.value) } else { Err(probe.fault as u32) }
}

/// Writes memory; the error code if that faults.
pub fn try_write(at: u64, value: u64) -> Result<(), u32> {
    // SAFETY: as above; what is written is the caller's.
    let probe = unsafe { kit_probe_write(at, value) };
    if probe.fault == 0 { Ok(()) } else { Err(probe.fault as u32) }
}
