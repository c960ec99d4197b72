//! AMD-V (SVM): one [`Svm`] per VCPU over its VMCB, one [`SvmCpu`] per PCPU.
//!
//! The VMCB is the place of truth for all state that VMRUN switches; accessors read and write it directly. FS, GS, TR,
//! LDTR and the system-call MSRs stay in the processor across exits ([`VmloadState`]) and are saved to the VMCB only when a
//! handler accesses them or the host needs its own. AMD APM volume 2, chapter 15.

mod asid;
mod cpu;
mod decode;
mod entry;
mod features;
mod inject;
mod instr;
mod nmi;
mod paging;
mod permissions;
mod spin;
mod step;
mod switched;
#[cfg(test)]
mod tests;
mod time;
mod vcpu_state;
mod vmcb;

pub use cpu::SvmCpu;
pub use features::{Features, Unsuitable};
pub use permissions::{IoMap, MsrMap};

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::cell::Cell;

use self::asid::Asid;
use self::entry::{VmloadState, end, work};
use self::inject::Injection;
use self::instr::GuestBlock;
use self::paging::GuestCr;
use self::switched::{switched, switched_mut};
use self::vmcb::{Vmcb, clean, event, int_ctl, misc1, misc2};
use crate::arch::addr::{Gva, Hpa};
use crate::arch::state::{ArchState, VcpuState, rflags};
use crate::hw;
use crate::paging::format::npt::Npt;
use crate::virt::{Ended, Event, Exit, Finished, FlushScope, PendingIrq, Roots, Virt, exit};

/// What the processor reaches by physical address (and not, say, a box around it).
trait Block {}
impl Block for Vmcb {}
impl Block for IoMap {}
impl Block for MsrMap {}

/// The physical address of a control block. It is on the heap, which is identity-mapped; code and constants may not be.
fn pa<T: Block>(block: &T) -> Hpa {
    Hpa(core::ptr::from_ref(block) as u64)
}

/// One VCPU on AMD-V.
pub struct Svm {
    block: Box<GuestBlock>,
    vmload: Cell<VmloadState>,
    features: Features,
    asid: Asid,
    /// The PCPU that it ran on last.
    home: u64,
    /// Why an entry or exit is not the common one: see [`work`].
    work: Cell<u8>,
    injection: Injection,
    /// With shadow tables: the control registers that the guest sees.
    guest_cr: Option<GuestCr>,
    /// PAUSEs in this run.
    pauses: u8,
    // The VMCB holds their addresses.
    _io_map: Arc<IoMap>,
    _msr_map: Arc<MsrMap>,
}

impl Svm {
    /// A VCPU in the state after RESET. The maps are shared by the VCPUs of a VM.
    pub fn new(features: Features, io_map: Arc<IoMap>, msr_map: Arc<MsrMap>) -> Svm {
        let mut block = GuestBlock::new_boxed();
        let vmcb = &mut block.vmcb;
        vmcb.iopm_base = pa(&*io_map).0;
        vmcb.msrpm_base = pa(&*msr_map).0;
        vmcb.intercept_misc1 = misc1::ALWAYS;
        // SVM's own instructions must not exist for the guest, whose CPUID has no SVM: they raise #UD. The others would
        // act on caches or registers of the host (docs/design/0005-svm.md has the reason for each).
        vmcb.intercept_misc2 = misc2::VMRUN
            | misc2::VMMCALL
            | misc2::VMLOAD
            | misc2::VMSAVE
            | misc2::STGI
            | misc2::CLGI
            | misc2::SKINIT
            | misc2::WBINVD
            | misc2::MONITOR
            | misc2::MWAIT
            | misc2::XSETBV
            | misc2::RDPRU;
        vmcb.intercept_cr = paging::ALWAYS;
        // #PF is added with shadow tables (`paging`), those that IRET can raise while one is stepped over (`step`).
        vmcb.intercept_exceptions = exit::EXCEPTIONS as u32;
        if features.pause_filter {
            vmcb.intercept_misc1 |= misc1::PAUSE;
            vmcb.pause_filter_count = spin::FILTER;
        }
        let virtual_nmi = if features.virtual_nmi { int_ctl::V_NMI_ENABLE } else { 0 };
        // The guest's IF masks virtual interrupts only; physical ones end the guest by the host's IF.
        vmcb.int_ctl = int_ctl::V_INTR_MASKING | virtual_nmi;
        let mut svm = Svm {
            block,
            vmload: Cell::new(VmloadState::InVmcb),
            features,
            asid: Asid::default(),
            home: 0,
            // The default ASID is of no generation, so the first entry allocates one; and VMRUN alone would not load FS,
            // GS, TR and LDTR.
            work: Cell::new(work::FLUSH | work::HIDDEN),
            injection: Injection::default(),
            guest_cr: None,
            pauses: 0,
            _io_map: io_map,
            _msr_map: msr_map,
        };
        svm.reset();
        svm
    }

    #[inline(always)]
    fn dirty(&mut self, bits: u64) {
        self.block.vmcb.clean &= !bits;
    }

    /// Puts the registers into `state`, and forgets events.
    fn start_over(&mut self, state: &ArchState) {
        state.store(self);
        let vmcb = self.hidden_mut();
        // What waited does not survive an INIT: V_IRQ, a virtual NMI, and CR8 (in V_TPR) become 0.
        vmcb.int_ctl &= int_ctl::V_INTR_MASKING | int_ctl::V_NMI_ENABLE;
        vmcb.int_state = 0;
        vmcb.event_inj = 0;
        vmcb.exit_int_info = 0;
        // DR0..7 are loaded lazily: see open_debug_registers.
        vmcb.intercept_dr = 0xffff_ffff;
        vmcb.intercept_misc1 &= !(misc1::IRET | misc1::VINTR);
        self.injection = Injection::default();
        self.work.set(work::FLUSH | work::HIDDEN);
        self.request(work::FLUSH);
        // Every register has changed.
        self.block.vmcb.clean = 0;
    }

    /// Asks for `bits` of [`work`] at the next entry.
    #[inline(always)]
    fn request(&self, bits: u8) {
        self.work.set(self.work.get() | bits);
    }

    #[inline(always)]
    fn done(&self, bits: u8) {
        self.work.set(self.work.get() & !bits);
    }
}

impl Virt for Svm {
    type NestedFormat = Npt;
    type Cpu = SvmCpu;

    #[inline(always)]
    fn enter(&mut self, cpu: &mut SvmCpu) -> Ended {
        loop {
            // What an entry mostly needs, if anything, is another ASID.
            if self.work.get() != 0 && !self.take_next_asid(cpu) {
                self.prepare(cpu);
            }
            let block: *mut GuestBlock = &mut *self.block;
            // SAFETY: the VMCB is complete, its permission maps live as long as it, its tables come from set_paging.
            // Nothing else refers to the block while the pointer is used.
            let vmcb = unsafe {
                instr::vmrun(block);
                &mut (*block).vmcb
            };
            // Processors without clean bits ignore the field.
            vmcb.clean = clean::ALL;
            let is_plain = self.work.get() == 0 && vmcb.exit_int_info & event::VALID == 0;
            match if is_plain { Finished::Plain } else { self.finish() } {
                Finished::Plain => {}
                Finished::Other => return Ended::Other,
                Finished::Nothing => continue,
            }
            // Only now: `finish` may have turned the exit into another one.
            let ended = decode::ended(&self.block.vmcb, self.features.decode_assists);
            if let Ended::PageFault(..) = ended {
                // The guest goes on at the same instruction.
                self.keep_shadow();
            }
            return ended;
        }
    }

    #[inline]
    fn exit(&self) -> Exit {
        self.keep_shadow();
        decode::exit(&self.block.vmcb, self.features.decode_assists)
    }

    fn load_host_state(&mut self, cpu: &mut SvmCpu) {
        if self.vmload.get() == VmloadState::InVmcb {
            return;
        }
        self.save_hidden();
        // With GIF set again an interrupt could come before the host's TR and GS are there.
        hw::cpu::cli();
        // SAFETY: SVM is on; the host's state was saved when this PCPU was enabled and has not changed since.
        unsafe {
            instr::vmload(pa(&*cpu.host));
            instr::stgi();
        }
        self.set_vmload(VmloadState::InVmcb);
    }

    fn put(&mut self, cpu: &mut SvmCpu) {
        // All else is in the VMCB already, which any processor can run.
        self.load_host_state(cpu);
    }

    fn reset(&mut self) {
        self.start_over(&ArchState::reset());
        let vmcb = self.hidden_mut();
        (vmcb.star, vmcb.lstar, vmcb.cstar, vmcb.sfmask) = (0, 0, 0, 0);
        (vmcb.sysenter_cs, vmcb.sysenter_esp, vmcb.sysenter_eip, vmcb.kernel_gs_base) = (0, 0, 0, 0);
        vmcb.g_pat = 0x0007_0406_0007_0406; // APM 2, 7.8.2: after RESET.
    }

    fn init(&mut self) {
        self.start_over(&ArchState::init(self.cr0()));
    }

    #[inline(always)]
    fn next_rip(&self) -> Option<u64> {
        self.features.next_rip.then_some(self.block.vmcb.next_rip)
    }

    fn inject(&mut self, event: Event) {
        self.queue(event);
    }

    #[inline]
    fn inject_page_fault(&mut self, gva: Gva, error: u32) {
        self.deliver_page_fault(gva, error);
    }

    fn event_pending(&self) -> bool {
        self.injection.event.is_some()
            || self.injection.interrupted.is_some()
            || self.block.vmcb.event_inj & event::VALID != 0
            || self.has_virtual_nmi()
    }

    fn was_delivering(&self) -> bool {
        self.block.vmcb.exit_int_info & event::VALID != 0
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
        self.block.vmcb.rflags & rflags::IF != 0 && self.block.vmcb.int_state & 1 == 0
    }

    fn clear_interrupt_shadow(&mut self) {
        self.block.vmcb.int_state &= !1;
    }

    #[inline(always)]
    fn end_instruction(&mut self, rip: u64) -> bool {
        end(&mut self.block.vmcb, rip)
    }

    #[inline(always)]
    fn answer_cpuid(&mut self, values: &[u32; 4], rip: u64) -> bool {
        let block = &mut *self.block;
        block.set_cpuid(values);
        end(&mut block.vmcb, rip)
    }

    fn can_take_nmi(&self) -> bool {
        self.accepts_nmi()
    }

    fn open_nmi_window(&mut self) -> bool {
        self.watch_for_nmi()
    }

    fn task_priority(&self) -> u8 {
        (self.block.vmcb.int_ctl & 0xf) as u8
    }

    fn set_task_priority(&mut self, value: u8) {
        self.set_virtual_tpr(value);
    }

    #[inline(always)]
    fn set_paging(&mut self, roots: Roots) {
        self.use_roots(roots);
    }

    fn keeps_old_code(&self) -> bool {
        self.features.keeps_old_code
    }

    fn sets_dirty_bits(&self) -> bool {
        // AMD APM 2, 15.25.5: nested tables have the bits of any page table.
        true
    }

    fn guarded_page(&mut self) -> Option<Gva> {
        self.task_page()
    }

    fn set_agile(&mut self, state: Option<abi::agile::Words>) {
        self.block.vmcb.agile = state.unwrap_or_default();
    }

    fn set_cr3_exits(&mut self, exits: bool) {
        self.take_cr3_loads(exits);
    }

    fn flush(&mut self, scope: FlushScope) {
        match scope {
            // TLB_CONTROL could spare global ones, where there is the choice of an ASID; whether that pays has not been measured.
            FlushScope::All | FlushScope::NonGlobal => self.request(work::FLUSH),
            FlushScope::Address(gva) => self.flush_page(gva),
        }
    }

    #[inline(always)]
    fn tsc_offset(&self) -> u64 {
        self.block.vmcb.tsc_offset
    }

    fn set_tsc_offset(&mut self, offset: u64) {
        self.block.vmcb.tsc_offset = offset;
        self.dirty(clean::INTERCEPTS);
    }

    fn switched_msr(&self, index: u32) -> Option<u64> {
        self.save_hidden();
        switched(index, &self.block.vmcb).copied()
    }

    fn host_pat(&self) -> Option<u64> {
        Some(paging::host_pat())
    }

    fn set_switched_msr(&mut self, index: u32, value: u64) -> bool {
        let Some(field) = switched_mut(index, self.hidden_mut()) else { return false };
        *field = value;
        // Of these fields VMRUN reads G_PAT alone, which belongs to the clean bit of nested paging (APM 2, 15.15.3).
        // VMLOAD reads the others, and has no clean bits.
        self.dirty(clean::NESTED_PAGING);
        true
    }

    fn open_debug_registers(&mut self) {
        self.block.vmcb.intercept_dr = 0;
        self.dirty(clean::INTERCEPTS);
    }

    fn set_ple(&mut self, wait: bool) {
        self.set_ple_window(wait);
    }

    fn ple_expired(&mut self) -> bool {
        self.ple_window_expired()
    }

    fn exit_report(&self) -> alloc::string::String {
        decode::report(&self.block.vmcb)
    }
}
