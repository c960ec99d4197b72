//! Intel VT-x: one [`Vmx`] per VCPU over its VMCS, one [`VmxCpu`] per PCPU.
//!
//! Fields of the guest state are read at their first use after an exit, and written when they changed ([`cache`]). What exits leave in the
//! processor (CR2, DR6, system-call MSRs) stays there: the host uses none of it. When the VCPU leaves its PCPU, all of
//! that is taken out. Intel SDM volume 3, chapters 23 to 31.

mod bitmaps;
mod cache;
mod controls;
mod cpu;
mod debug;
mod decode;
mod entry;
mod features;
mod field;
mod inject;
mod instr;
mod instruction;
mod paging;
mod report;
mod rules;
mod segment;
mod system;
#[cfg(test)]
mod tests;
mod vcpu_state;
mod vpid;

pub use bitmaps::{IoBitmaps, MsrBitmap};
pub use cpu::VmxCpu;
pub use features::{Features, Unsuitable};

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use core::cell::Cell;

use self::cache::{Cache, Field};
use self::cpu::Region;
use self::decode::{event, may_interrupt_delivery, reason};
use self::entry::{SHADOW, work};
use self::inject::Injection;
use self::instr::GuestBlock;
use self::paging::GuestCr;
use self::system::Saved;
use crate::arch::addr::Gva;
use crate::arch::state::{ArchState, Gpr, VcpuState, rflags};
use crate::paging::engine::Engines;
use crate::paging::format::ept::Ept;
use crate::virt::{Ended, Event, Exit, FieldAccesses, Finished, FlushScope, PendingIrq, Roots, Virt};

/// The virtual APIC page. Only the task priority in it is used.
#[repr(C, align(4096))]
struct ApicPage([u8; 4096]);
/// Where the task priority is in the virtual APIC page.
const TASK_PRIORITY: usize = 0x80;

/// One VCPU on VT-x.
pub struct Vmx {
    block: Box<GuestBlock>,
    cache: Cache,
    /// Why an entry or exit is not the common one: see [`work`].
    work: Cell<u16>,
    /// An instruction has been executed in software since the last exit: the interrupt shadow in the VMCS is over.
    ended: Cell<bool>,
    /// What exits do not save is in the processor.
    live: Cell<bool>,
    /// The level-1 data cache is flushed when the host has used the processor.
    flushes_l1d: bool,
    debug_open: bool,
    /// Loads of CR3 exit on nested tables.
    cr3_exits: bool,
    /// INVLPG and INVPCID exit on shadow tables.
    invlpg_exits: bool,
    /// Reason of the last exit.
    reason: u32,
    /// IDT-vectoring information of the last exit, if its reason can interrupt a delivery.
    vectoring: u32,
    /// Interruption information of the last exit, if it is an exception or NMI.
    interruption: u32,
    vpid: u16,
    /// The PCPU that it ran on last.
    home: u64,
    features: Features,
    injection: Injection,
    /// With shadow tables: the control registers that the guest sees.
    guest_cr: Option<GuestCr>,
    /// Page-directory pointers for the next entry.
    pointers: Option<[u64; 4]>,
    saved: Saved,
    /// Of an entry that failed before the VCPU left its PCPU.
    last_report: Option<String>,
    counting: Option<[u64; 2]>, // IA32_PERF_GLOBAL_CTRL in the guest and in the host, if counters are used
    /// Ticks of the TSC after which the guest exits at the latest, where there is a preemption timer.
    slice: u64,
    // The VMCS holds their addresses.
    region: Box<Region>,
    apic_page: Box<ApicPage>,
    io_bitmaps: Arc<IoBitmaps>,
    msr_bitmap: Arc<MsrBitmap>,
}

impl Vmx {
    /// A VCPU in the state after RESET. The bitmaps are shared by the VCPUs of a VM; `tsc_khz` is the host's.
    pub fn new(features: Features, io: Arc<IoBitmaps>, msrs: Arc<MsrBitmap>, tsc_khz: u64) -> Vmx {
        let mut vmx = Vmx {
            block: Box::new(GuestBlock { gprs: [0; 16], host_rsp: 0, launched: 0, moves: 0 }),
            cache: Cache::new(),
            work: Cell::new(work::LOAD),
            ended: Cell::new(false),
            live: Cell::new(false),
            flushes_l1d: false,
            debug_open: false,
            cr3_exits: false,
            invlpg_exits: true,
            reason: reason::INIT,
            vectoring: 0,
            interruption: 0,
            vpid: vpid::next(),
            home: 0,
            features,
            injection: Injection::default(),
            guest_cr: None,
            pointers: None,
            saved: Saved::default(),
            last_report: None,
            counting: None,
            slice: tsc_khz,
            region: Region::new_boxed(features.revision),
            apic_page: Box::new(ApicPage([0; 4096])),
            io_bitmaps: io,
            msr_bitmap: msrs,
        };
        vmx.reset();
        vmx
    }

    /// Asks for `bits` of [`work`] at the next entry.
    #[inline(always)]
    fn request(&self, bits: u16) {
        self.work.set(self.work.get() | bits);
    }

    #[inline(always)]
    fn done(&self, bits: u16) {
        self.work.set(self.work.get() & !bits);
    }

    #[inline(always)]
    fn set(&self, field: Field, value: u64) {
        if self.cache.set(field, value) {
            self.request(work::CHANGED);
        }
    }

    /// Puts the registers into `state`, and forgets events.
    fn start_over(&mut self, state: &ArchState) {
        self.guest_cr = None;
        self.write_masks();
        state.store(self);
        self.set(Field::Interruptibility, 0);
        // Entries check it against the shadow and TF (SDM 3, 26.3.1.5): what waited must go with them.
        self.set(Field::PendingDebug, 0);
        self.pointers = None;
        self.debug_open = false;
        self.injection = Injection::default();
        self.set_task_priority(0);
        self.work.set(self.work.get() & (work::LOAD | work::FLUSH_L1D | work::GUARD));
        self.request(work::FLUSH | work::EVENT | work::CHANGED);
    }
}

impl Virt for Vmx {
    type NestedFormat = Ept;
    type Cpu = VmxCpu;
    const HAS_PDPTRS: bool = true;
    const UNRESTRICTED: bool = false;

    #[inline(always)]
    fn enter(&mut self, cpu: &mut VmxCpu) -> Ended {
        loop {
            if self.work.get() != 0 {
                self.prepare(cpu);
            }
            // SAFETY: in VMX operation (there is a VmxCpu); this VCPU's VMCS is current and complete, its tables come from
            // set_paging. Nothing else refers to the block meanwhile.
            let reason = unsafe { instr::enter(&mut *self.block) };
            self.reason = reason;
            self.cache.forget(); // An exit has written guest fields.
            self.ended.set(false);
            if self.work.get() == 0 {
                if reason == reason::CPUID {
                    return Ended::Cpuid;
                }
                if reason == reason::IO {
                    return Ended::Io(self.io());
                }
            }
            match self.finish(reason) {
                Finished::Plain => return self.decode_plain(),
                Finished::Other => return Ended::Other,
                Finished::Nothing => {}
            }
        }
    }

    fn exit(&self) -> Exit {
        match self.reason {
            reason::IO => Exit::Io(self.io()),
            // SAFETY: after an exit of this VCPU.
            reason => decode::exit(reason, |field| unsafe { self.cache.read(field) }),
        }
    }

    /// Exits give the processor back: they load all of the host's state, and interrupts are closed.
    #[inline(always)]
    fn load_host_state(&mut self, _cpu: &mut VmxCpu) {
        self.request_l1d_flush();
    }

    fn put(&mut self, _cpu: &mut VmxCpu) {
        self.unload();
    }

    fn reset(&mut self) {
        self.start_over(&ArchState::reset());
        for msr in system::MSRS {
            self.write_switched(msr, 0);
        }
        for field in [Field::SysenterCs, Field::SysenterEsp, Field::SysenterEip] {
            self.set(field, 0);
        }
        // SDM 3, 11.12.4: the PAT after RESET.
        self.write_switched(crate::arch::msr::PAT, 0x0007_0406_0007_0406);
    }

    fn init(&mut self) {
        self.start_over(&ArchState::init(self.cr0()));
    }

    #[inline(always)]
    fn next_rip(&self) -> Option<u64> {
        Some(self.after_exit())
    }

    fn inject(&mut self, event: Event) {
        self.queue(event);
    }

    #[inline]
    fn inject_page_fault(&mut self, gva: Gva, error: u32) {
        self.deliver_page_fault(gva, error);
    }

    fn event_pending(&self) -> bool {
        self.injection.event.is_some() || self.injection.interrupted.is_some()
    }

    fn was_delivering(&self) -> bool {
        may_interrupt_delivery(self.reason) && self.vectoring & event::VALID != 0
    }

    fn take_interrupted_event(&mut self) -> Option<Event> {
        self.injection.interrupted.take()
    }

    fn finish_delivery(&mut self) {
        self.end_delivery();
    }

    fn unblock_nmis(&mut self) {
        self.end_nmi_handler();
    }

    #[inline]
    fn set_pending_irq(&mut self, offer: PendingIrq) {
        self.offer(offer);
    }

    #[inline(always)]
    fn interrupt_taken(&mut self) -> Option<u8> {
        self.injection.taken.take()
    }

    fn can_take_interrupt(&self) -> bool {
        self.cache.get(Field::Rflags) & rflags::IF != 0
            && (self.ended.get() || self.cache.get(Field::Interruptibility) & SHADOW == 0)
    }

    fn clear_interrupt_shadow(&mut self) {
        self.ended.set(true);
    }

    #[inline(always)]
    fn end_instruction(&mut self, rip: u64) -> bool {
        // SAFETY: after an exit of this VCPU.
        let flags = unsafe { self.cache.end_at(rip) };
        self.ended.set(true);
        flags & (rflags::RF | rflags::TF) != 0 && self.end_carefully()
    }

    #[inline(always)]
    fn answer_cpuid(&mut self, &[eax, ebx, ecx, edx]: &[u32; 4], rip: u64) -> bool {
        let gprs = &mut self.block.gprs;
        gprs[Gpr::Rax as usize] = eax.into();
        gprs[Gpr::Rbx as usize] = ebx.into();
        gprs[Gpr::Rcx as usize] = ecx.into();
        gprs[Gpr::Rdx as usize] = edx.into();
        self.end_instruction(rip)
    }

    fn can_take_nmi(&self) -> bool {
        self.accepts_nmi()
    }

    fn open_nmi_window(&mut self) -> bool {
        self.watch_for_nmi();
        true
    }

    fn task_priority(&self) -> u8 {
        // SAFETY: a byte of the page that lives as long as this; the processor writes it while the guest runs.
        unsafe { (&raw const self.apic_page.0[TASK_PRIORITY]).read_volatile() >> 4 }
    }

    fn set_task_priority(&mut self, value: u8) {
        // SAFETY: as above.
        unsafe { (&raw mut self.apic_page.0[TASK_PRIORITY]).write_volatile(value << 4) };
        self.request(work::OFFER);
    }

    fn set_paging(&mut self, roots: Roots) {
        self.use_roots(roots);
    }

    fn sets_dirty_bits(&self) -> bool {
        self.features.ept_accessed_dirty
    }

    fn engines(&self) -> Engines {
        self.usable_engines()
    }

    fn set_pointers(&mut self, pointers: [u64; 4]) {
        self.write_pointers(pointers);
    }

    fn flush(&mut self, scope: FlushScope) {
        match scope {
            FlushScope::All => self.request(work::FLUSH),
            FlushScope::NonGlobal => self.flush_non_global(),
            FlushScope::Address(gva) => self.flush_page(gva),
        }
    }

    #[inline(always)]
    fn tsc_offset(&self) -> u64 {
        self.cache.get(Field::TscOffset)
    }

    fn set_tsc_offset(&mut self, offset: u64) {
        self.set(Field::TscOffset, offset);
    }

    fn switched_msr(&self, index: u32) -> Option<u64> {
        self.read_switched(index)
    }

    fn host_pat(&self) -> Option<u64> {
        self.unswitched_pat()
    }

    fn set_switched_msr(&mut self, index: u32, value: u64) -> bool {
        self.write_switched(index, value)
    }

    fn set_cr3_exits(&mut self, exits: bool) {
        if core::mem::replace(&mut self.cr3_exits, exits) != exits {
            self.request(work::CHANGED);
        }
    }

    fn set_invlpg_exits(&mut self, exits: bool) {
        self.change_invlpg_exits(exits);
    }

    fn open_debug_registers(&mut self) {
        self.debug_open = true;
        self.request(work::CHANGED);
    }

    fn exit_report(&self) -> String {
        self.report()
    }

    fn field_accesses(&self) -> Option<FieldAccesses> {
        let accesses = self.cache.accesses();
        Some(FieldAccesses { writes: accesses.writes + 2 * self.block.moves, ..accesses })
    }
}
