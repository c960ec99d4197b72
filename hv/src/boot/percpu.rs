//! What belongs to one PCPU: descriptor tables, interrupt stacks, pending work.
//!
//! Code gets its `&'static PerCpu` as an argument. Only trap handlers find it through the base of GS, which holds it
//! whenever external interrupts and NMIs can arrive (the run loop puts it back by VMLOAD before it opens either).

use core::sync::atomic::{AtomicU32, Ordering};

use super::gdt::{self, Gdt, Tss, ist};
use super::idt::{self, Gate};
use crate::hw::{cpu, msr};

/// Bits of [`PerCpu::pending`].
pub mod work {
    /// The local APIC's timer has fired.
    pub const TIMER: u32 = 1 << 0;
    /// The console's serial port has received something. Its interrupt is edge-triggered: read until it is empty.
    pub const CONSOLE: u32 = 1 << 1;
}

/// Bytes of one interrupt stack.
const STACK: usize = 16 << 10;

#[repr(C, align(4096))]
struct Stack([u8; STACK]);

/// One physical processor. Lives for ever once [`PerCpu::install`] has run.
#[repr(C)]
pub struct PerCpu {
    /// Its own address: what GS:0 reads.
    this: *const PerCpu,
    /// Number of the PCPU, 0 for the one that booted.
    pub index: u32,
    /// ID of its local APIC.
    pub apic_id: u32,
    /// Work noted by interrupt handlers for the run loop: see [`work`].
    pub pending: AtomicU32,
    gdt: Gdt,
    tss: Tss,
    stacks: [Stack; ist::COUNT],
}

// SAFETY: `this` points at the structure itself, and everything else that changes after `install` is atomic.
unsafe impl Sync for PerCpu {}

impl PerCpu {
    /// A PCPU that is not installed yet.
    pub const fn new(index: u32) -> PerCpu {
        PerCpu {
            this: core::ptr::null(),
            index,
            apic_id: 0,
            pending: AtomicU32::new(0),
            gdt: [0; 5],
            tss: Tss::EMPTY,
            stacks: [const { Stack([0; STACK]) }; ist::COUNT],
        }
    }

    /// Loads this PCPU's GDT, TSS, IDT and GS base into the processor that executes this.
    ///
    /// # Safety
    /// Once per processor, with interrupts closed; `idt` stays as it is.
    pub unsafe fn install(&'static mut self, idt: &'static [Gate; 256]) -> &'static PerCpu {
        self.this = self;
        self.apic_id = cpu::cpuid(1, 0).ebx >> 24;
        self.tss = Tss::new(core::array::from_fn(|i| &raw const self.stacks[i] as u64 + STACK as u64));
        self.gdt = gdt::table(&raw const self.tss as u64);
        let gdt = cpu::TablePointer { limit: size_of::<Gdt>() as u16 - 1, base: &raw const self.gdt as u64 };
        let idt = cpu::TablePointer { limit: size_of_val(idt) as u16 - 1, base: idt.as_ptr() as u64 };
        // SAFETY: the tables were just made and, like `self`, live for ever.
        unsafe {
            cpu::load_gdt(&gdt, gdt::CODE, gdt::DATA);
            cpu::load_tr(gdt::TSS);
            cpu::load_idt(&idt);
            msr::write(msr::GS_BASE, self.this as u64);
        }
        self
    }

    /// The PCPU that executes this, for trap handlers.
    ///
    /// # Safety
    /// GS base is the host's: not between #VMEXIT and VMLOAD.
    pub unsafe fn current() -> &'static PerCpu {
        let this: *const PerCpu;
        // SAFETY: GS:0 holds `this` by the caller's promise.
        unsafe {
            core::arch::asm!("mov {}, gs:[0]", out(reg) this, options(readonly, nostack, preserves_flags));
            &*this
        }
    }

    /// Notes work for the run loop.
    pub fn note(&self, bits: u32) {
        self.pending.fetch_or(bits, Ordering::Release);
    }

    /// Takes all noted work.
    pub fn take_pending(&self) -> u32 {
        self.pending.swap(0, Ordering::Acquire)
    }
}

/// The gates, filled once by the first PCPU.
pub static IDT: spin::Once<[Gate; 256]> = spin::Once::new();

/// The IDT over the stubs at `stubs`.
pub fn idt(stubs: u64) -> &'static [Gate; 256] {
    IDT.call_once(|| idt::table(stubs))
}
