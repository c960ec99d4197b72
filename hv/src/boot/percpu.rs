//! What belongs to one PCPU: descriptor tables, stacks, pending work, what others ask of it.
//!
//! Code gets its `&'static PerCpu` as an argument. Trap handlers and panics find it by the GDT, of which each PCPU has its own and
//! which is never a guest's while the host runs.

use core::mem::offset_of;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU32, Ordering};

use spin::{Mutex, Once};

use super::gdt::{self, Gdt, Tss, ist};
use super::idt::{self, Gate};
use super::image;
use crate::arch::addr::PAGE_SIZE;
use crate::hw::cpu;
use crate::mem::frame::{self, Node};
use crate::sched::topology::{Location, MAX_PCPUS};
use crate::smp::mailbox::Mailbox;

/// Bits of [`PerCpu::pending`].
pub mod work {
    /// The local APIC's timer has fired.
    pub const TIMER: u32 = 1 << 0;
    /// The console's serial port has received something. Its interrupt is edge-triggered: read until it is empty.
    pub const CONSOLE: u32 = 1 << 1;
    /// Another PCPU wants something: see [`super::PerCpu::shootdown`] and [`super::PerCpu::set_job`].
    pub const KICK: u32 = 1 << 2;
}

/// Something that a PCPU is to do. It may return.
pub type Job = &'static (dyn Fn(&'static PerCpu) + Sync);

/// Bytes of one interrupt stack.
const STACK: usize = 16 << 10;

#[repr(C, align(4096))]
struct Stack([u8; STACK]);

/// One physical processor. Lives for ever once [`PerCpu::install`] has run.
#[repr(C)]
pub struct PerCpu {
    /// Number of the PCPU, 0 for the one that booted; less than [`count`] once all have started.
    pub index: u32,
    apic_id: AtomicU32,
    /// Work noted by interrupt handlers for the run loop: see [`work`].
    pub pending: AtomicU32,
    /// What other PCPUs want forgotten.
    pub shootdown: Mailbox,
    /// By how many ticks this PCPU's time-stamp counter is ahead of the first one's; 0 if none is found.
    pub tsc_skew: AtomicI64,
    /// Where it is.
    pub place: Once<Location>,
    /// It has stopped for ever, because another one panicked.
    pub stopped: AtomicBool,
    job: Mutex<Option<Job>>,
    busy: AtomicBool,
    /// Addresses of its main stack; the boot stack is in the image.
    stack: Range<u64>,
    gdt: Gdt,
    tss: Tss,
    stacks: [Stack; ist::COUNT],
}

impl PerCpu {
    /// A PCPU that is not installed yet.
    pub const fn new(index: u32) -> PerCpu {
        PerCpu {
            index,
            apic_id: AtomicU32::new(0),
            pending: AtomicU32::new(0),
            shootdown: Mailbox::new(),
            tsc_skew: AtomicI64::new(0),
            place: Once::new(),
            stopped: AtomicBool::new(false),
            job: Mutex::new(None),
            busy: AtomicBool::new(false),
            stack: 0..0,
            gdt: [0; 5],
            tss: Tss::EMPTY,
            stacks: [const { Stack([0; STACK]) }; ist::COUNT],
        }
    }

    /// Loads this PCPU's GDT, TSS and IDT into the processor that executes this.
    ///
    /// # Safety
    /// Once per processor, with interrupts closed; `idt` stays as it is.
    pub unsafe fn install(&'static mut self, idt: &'static [Gate; 256]) -> &'static PerCpu {
        self.tss = Tss::new(core::array::from_fn(|i| &raw const self.stacks[i] as u64 + STACK as u64));
        self.gdt = gdt::table(&raw const self.tss as u64);
        let gdt = cpu::TablePointer { limit: size_of::<Gdt>() as u16 - 1, base: &raw const self.gdt as u64 };
        let idt = cpu::TablePointer { limit: size_of_val(idt) as u16 - 1, base: idt.as_ptr() as u64 };
        // SAFETY: the tables were just made and, like `self`, live for ever.
        unsafe {
            cpu::load_gdt(&gdt, gdt::CODE, gdt::DATA);
            cpu::load_tr(gdt::TSS);
            cpu::load_idt(&idt);
        }
        self
    }

    /// The PCPU that executes this.
    ///
    /// # Safety
    /// It is installed.
    pub unsafe fn current() -> &'static PerCpu {
        let this = cpu::gdt_base() - offset_of!(PerCpu, gdt) as u64;
        // SAFETY: the GDT is part of the structure, which lives for ever.
        unsafe { &*(this as *const PerCpu) }
    }

    /// ID of its local APIC.
    pub fn apic_id(&self) -> u32 {
        self.apic_id.load(Ordering::Relaxed)
    }

    /// Notes the ID of its local APIC and lists it: others may send it interrupts from now on. In the order of the indices.
    pub fn list(&'static self, apic_id: u32) {
        self.apic_id.store(apic_id, Ordering::Relaxed);
        // Before the count, by which others look here.
        PCPUS[self.index as usize].store(core::ptr::from_ref(self).cast_mut(), Ordering::Release);
        COUNT.store(self.index + 1, Ordering::Release);
    }

    /// Notes work for the run loop.
    pub fn note(&self, bits: u32) {
        self.pending.fetch_or(bits, Ordering::Release);
    }

    /// Takes all noted work.
    pub fn take_pending(&self) -> u32 {
        self.pending.swap(0, Ordering::Acquire)
    }

    /// Hands it a job, to be kicked awake for. The last one must have been taken.
    pub(super) fn set_job(&self, job: Job) {
        // Before the job is there: a waiter must not see it idle in between.
        self.busy.store(true, Ordering::Release);
        *self.job.lock() = Some(job);
    }

    /// For the PCPU itself: its next job.
    pub(super) fn take_job(&self) -> Option<Job> {
        self.job.lock().take()
    }

    /// For the PCPU itself: the job is done.
    pub(super) fn end_job(&self) {
        self.busy.store(false, Ordering::Release);
    }

    /// Whether it has a job that is not done.
    pub fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Acquire)
    }
}

static PCPUS: [AtomicPtr<PerCpu>; MAX_PCPUS] = [const { AtomicPtr::new(core::ptr::null_mut()) }; MAX_PCPUS];
static COUNT: AtomicU32 = AtomicU32::new(0);

/// How many PCPUs have started.
pub fn count() -> u32 {
    COUNT.load(Ordering::Acquire)
}

/// A PCPU by its number.
pub fn get(index: u32) -> Option<&'static PerCpu> {
    let pcpu = PCPUS.get(index as usize)?.load(Ordering::Acquire);
    // SAFETY: what is listed lives for ever.
    (!pcpu.is_null()).then(|| unsafe { &*pcpu })
}

/// All PCPUs that have started.
pub fn all() -> impl Iterator<Item = &'static PerCpu> + Clone {
    (0..count()).filter_map(get)
}

/// The number of the PCPU that executes this, if it is listed: at any time.
pub fn current_index() -> Option<u32> {
    let gdt = cpu::gdt_base();
    all().find(|pcpu| &raw const pcpu.gdt as u64 == gdt).map(|pcpu| pcpu.index)
}

/// Whether two words at `address` lie where a PCPU's stacks may be.
pub fn holds_stack(address: u64) -> bool {
    let own = |pcpu: &PerCpu| {
        let end = core::ptr::from_ref(pcpu) as u64 + size_of::<PerCpu>() as u64;
        pcpu.stack.start <= address && address < end - 16
    };
    image::holds_stack(address) || all().filter(|pcpu| !pcpu.stack.is_empty()).any(own)
}

/// The pages below the PCPUs' stacks.
pub fn guards() -> impl Iterator<Item = u64> {
    let own = all().filter(|pcpu| !pcpu.stack.is_empty()).map(|pcpu| pcpu.stack.start - PAGE_SIZE);
    own.chain([image::stack_guard()])
}

/// log2 of the frames that a PCPU lives in: a guard page, its stack, its [`PerCpu`].
const HOME_ORDER: u8 = 6;
/// The same in bytes.
pub const HOME_BYTES: u64 = PAGE_SIZE << HOME_ORDER;
const _: () = assert!(size_of::<PerCpu>() as u64 + (128 << 10) < HOME_BYTES);

/// A PCPU on frames of its own. Its first frame is the guard page, still mapped.
pub struct Home {
    /// The page below the stack.
    pub guard: u64,
    /// The PCPU.
    pub pcpu: *mut PerCpu,
    /// Top of the stack: a multiple of 16.
    pub stack_top: u64,
}

/// Memory for homes before that of the frame allocator.
static OWN: Mutex<Range<u64>> = Mutex::new(0..0);

/// Has PCPUs that are made from now on live in this memory, as long as it lasts.
///
/// # Safety
/// It is mapped as RAM, and of no other use.
pub unsafe fn live_in(range: Range<u64>) {
    *OWN.lock() = range;
}

/// The next home in [`OWN`], zeroed.
fn take_own() -> Option<u64> {
    let mut own = OWN.lock();
    let at = own.start;
    if own.end - at < HOME_BYTES {
        return None;
    }
    own.start += HOME_BYTES;
    // SAFETY: the promise of `live_in`, and this part of it is given away once.
    unsafe { core::ptr::write_bytes(at as *mut u8, 0, HOME_BYTES as usize) };
    Some(at)
}

/// Makes a PCPU; `None` if there is no memory.
pub fn make(index: u32) -> Option<Home> {
    let guard = take_own().or_else(|| Some(frame::alloc_zeroed(HOME_ORDER, Node(0))?.0))?;
    let stack_top = guard + HOME_BYTES - size_of::<PerCpu>() as u64;
    let pcpu = stack_top as *mut PerCpu;
    // SAFETY: the frames are ours; the address is aligned, because the size is a multiple of the alignment.
    unsafe {
        pcpu.write(PerCpu::new(index));
        (*pcpu).stack = guard + PAGE_SIZE..stack_top;
    }
    Some(Home { guard, pcpu, stack_top })
}

/// The gates, filled once by the first PCPU.
pub static IDT: spin::Once<[Gate; 256]> = spin::Once::new();

/// The IDT over the stubs at `stubs`.
pub fn idt(stubs: u64) -> &'static [Gate; 256] {
    IDT.call_once(|| idt::table(stubs))
}
