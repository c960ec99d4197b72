//! What an entry needs beyond VMRESUME, and an exit beyond its reason, when [`work`] says so.

use super::cache::Field;
use super::controls::{entry, exit as exit_control, processor};
use super::cpu::{VmxCpu, pa};
use super::decode::{self, event, may_interrupt_delivery, reason};
use super::field::{control, exit, guest, host};
use super::instr;
use super::{Vmx, system, vpid};
use crate::arch::addr::Gva;
use crate::arch::msr::FLUSH_CMD;
use crate::arch::state::{VcpuState, efer};
use crate::arch::vector;
use crate::hw::msr::EFER;
use crate::virt::speculation::{COMMAND, Measures};
use crate::virt::{Ended, Finished, IoExit};

/// Bits of [`Vmx::work`]. While it is 0, an entry is VMRESUME alone.
pub(super) mod work {
    /// The VMCS has not been entered yet.
    pub const LOAD: u16 = 1 << 0;
    /// Translations must be dropped.
    pub const FLUSH: u16 = 1 << 1;
    /// Fields must be written.
    pub const CHANGED: u16 = 1 << 2;
    /// An exception or NMI waits.
    pub const EVENT: u16 = 1 << 3;
    /// The offer of an interrupt changed, or may be taken now.
    pub const OFFER: u16 = 1 << 4;
    /// The guest exits when it can take the offer.
    pub const WINDOW: u16 = 1 << 5;
    /// This entry delivers an event.
    pub const INJECTING: u16 = 1 << 6;
    /// The guest is in its NMI handler.
    pub const NMI_BLOCKED: u16 = 1 << 7;
    /// The level-1 data cache must be flushed.
    pub const FLUSH_L1D: u16 = 1 << 8;
    /// Buffers are cleared before each entry: always set where that is needed, so that all others do not look.
    pub const GUARD: u16 = 1 << 9;
}

/// Interruptibility: blocking by STI and by MOV SS.
pub(super) const SHADOW: u64 = 3;
/// Interruptibility: blocking by NMI.
pub(super) const NMI_BLOCKING: u64 = 1 << 3;

/// PAUSEs at most this many ticks apart are one loop (SDM 3, 24.6.13). KVM's default.
const PAUSE_GAP: u64 = 128;
/// A loop of PAUSE exits after this many ticks. KVM's default.
const PAUSE_WINDOW: u64 = 4096;

impl Vmx {
    /// The same VCPU with what is done at its entries so that the guest learns nothing of others.
    #[must_use]
    pub fn guarded(mut self, measures: &Measures) -> Vmx {
        self.flushes_l1d = measures.flush_l1d;
        if measures.clear_buffers {
            self.request(work::GUARD);
        }
        self
    }

    /// The same VCPU with performance counters: entries and exits load these values of IA32_PERF_GLOBAL_CTRL, which enable
    /// the counters of guests and of the host.
    #[must_use]
    pub fn counted(mut self, switch: Option<[u64; 2]>) -> Vmx {
        self.counting = switch.filter(|_| self.features.switches_counters);
        self
    }

    /// Does what an entry needs beyond VMRESUME: see [`work`].
    #[cold]
    #[inline(never)]
    pub(super) fn prepare(&mut self, cpu: &VmxCpu) {
        if self.work.get() & work::LOAD != 0 && !self.live.get() {
            self.load(cpu);
        }
        let work = self.work.get();
        if work & work::FLUSH != 0 {
            self.done(work::FLUSH);
            self.drop_translations();
        }
        // The processor ends a shadow with the instruction after it; what the host executes for the guest, the host must
        // end itself.
        if self.ended.get() && self.cache.get(Field::Interruptibility) & SHADOW != 0 {
            self.set(Field::Interruptibility, self.cache.get(Field::Interruptibility) & !SHADOW);
        }
        const NO_EVENTS: u16 = work::LOAD | work::FLUSH | work::CHANGED | work::FLUSH_L1D | work::GUARD;
        if work & !NO_EVENTS != 0 {
            self.prepare_injection();
        }
        self.set(Field::Processor, self.processor_controls());
        if self.cache.is_changed(Field::Efer) {
            self.write_mode();
        }
        if let Some(pointers) = self.pointers.take() {
            for (field, pointer) in (guest::POINTER_0..).step_by(2).zip(pointers) {
                // SAFETY: this VCPU's VMCS is current; pointers are set only where there is EPT.
                unsafe { self.cache.write(field, pointer) };
            }
        }
        self.done(work::CHANGED);
        // SAFETY: this VCPU's VMCS is current; what is skipped does not exist.
        unsafe { self.cache.write_back(|field| self.lacks(field)) };
        if self.work.get() & (work::FLUSH_L1D | work::GUARD) != 0 {
            self.leave_nothing();
        }
    }

    /// Last before the entry, which then loads the guest's own registers only.
    fn leave_nothing(&mut self) {
        if self.work.get() & work::FLUSH_L1D != 0 {
            self.done(work::FLUSH_L1D);
            // SAFETY: this is asked for only where the processor has FLUSH_CMD.
            unsafe { instr::write_msr(FLUSH_CMD, COMMAND) };
        }
        if self.work.get() & work::GUARD != 0 {
            instr::clear_buffers();
        }
    }

    /// The host has used the processor: its data may be in the L1 data cache at the next entry.
    #[inline(always)]
    pub(super) fn request_l1d_flush(&self) {
        if self.flushes_l1d {
            self.request(work::FLUSH_L1D);
        }
    }

    /// Whether the processor does not have a field that others have.
    pub(super) fn lacks(&self, field: u32) -> bool {
        match field {
            guest::EFER | host::EFER => !self.features.switches_efer,
            guest::PAT | host::PAT => !self.features.switches_pat,
            control::SECONDARY => self.features.processor & processor::SECONDARY == 0,
            control::EPT_POINTER | guest::POINTER_0..=guest::POINTER_3 => !self.features.ept,
            control::VPID => !self.features.vpid,
            _ => false,
        }
    }

    /// Takes out of the processor what [`Vmx::load`] put in, and the VMCS.
    pub(super) fn unload(&mut self) {
        if !self.live.get() {
            return;
        }
        self.keep_report();
        // A change to shadow tables while the VCPU is descheduled reads them.
        if self.guest_cr.is_none() {
            self.pointers = VcpuState::pointers(self);
        }
        // The VMCS has no fields for these (SDM 3, 24.4).
        self.saved.cr2 = instr::cr2();
        self.saved.dr6 = instr::dr6();
        for (index, value) in system::MSRS.into_iter().zip(&mut self.saved.msrs) {
            // SAFETY: every processor with long mode has them.
            *value = unsafe { instr::read_msr(index) };
        }
        // SAFETY: this VCPU's VMCS is current, and the region is its own; what is skipped does not exist.
        unsafe {
            // The format of a VMCS is the processor's own, and a cleared one cannot be read: the next PCPU writes the
            // fields from the cache.
            self.cache.read_all(|field| self.lacks(field));
            instr::vmclear(pa(&*self.region)).expect("a VMCS region of our own");
        }
        self.live.set(false);
        // VMCLEAR has made the launch state clear.
        self.block.launched = 0;
        // The processor keeps SCE for all guests where entries do not load EFER.
        self.cache.touch(Field::Efer);
        self.request(work::LOAD | work::CHANGED);
    }

    /// Makes the VMCS current and writes what never changes, and what the processor does not switch.
    fn load(&mut self, cpu: &VmxCpu) {
        // What this PCPU has in its TLB from an earlier stay under this VPID is older; or another's, once VPIDs repeat.
        if self.home != cpu.id() || vpid::repeat() {
            self.home = cpu.id();
            self.request(work::FLUSH);
        }
        let region = pa(&*self.region);
        let features = self.features;
        let write = |field, value| {
            // SAFETY: the VMCS is made current before this is used; the values are the accepted controls, addresses of what
            // lives as long as this VCPU, and the host's state.
            unsafe { self.cache.write(field, value) }
        };
        // SAFETY: in VMX operation (the caller has a VmxCpu); the region, the bitmaps and the virtual APIC page live as long
        // as this VCPU, which clears the VMCS when it goes. The values are the accepted controls.
        unsafe {
            // VMPTRLD demands a region that VMCLEAR has initialized, and VMLAUNCH one whose launch state is clear (SDM 3,
            // 24.11.3).
            instr::vmclear(region).and_then(|()| instr::vmptrld(region)).expect("a VMCS region of our own");
            // All ones: entries would check what it points to (SDM 3, 26.3.1.5).
            write(guest::LINK_POINTER, u64::MAX);
            write(guest::DEBUGCTL, 0);
            write(guest::ACTIVITY, 0);
            write(control::IO_BITMAP_A, pa(&self.io_bitmaps.0[0]).0);
            write(control::IO_BITMAP_B, pa(&self.io_bitmaps.0[1]).0);
            write(control::MSR_BITMAP, pa(&*self.msr_bitmap).0);
            write(control::VIRTUAL_APIC, pa(&*self.apic_page).0);
            write(control::PIN_BASED, features.pin.into());
            let counters = if self.counting.is_some() { exit_control::LOAD_PERF_GLOBAL_CTRL } else { 0 };
            write(control::EXIT_CONTROLS, (features.exit | counters).into());
            if let Some([guest_counters, host_counters]) = self.counting {
                write(guest::PERF_GLOBAL_CTRL, guest_counters);
                write(host::PERF_GLOBAL_CTRL, host_counters);
            }
            for zero in [
                control::PAGE_FAULT_MATCH,
                control::CR3_TARGETS,
                control::EXIT_MSR_STORES,
                control::EXIT_MSR_LOADS,
                control::ENTRY_MSR_LOADS,
                control::ENTRY_INTERRUPTION,
            ] {
                write(zero, 0);
            }
            if features.vpid {
                write(control::VPID, self.vpid.into());
            }
            if features.notices_loops() {
                write(control::PAUSE_GAP, PAUSE_GAP);
                write(control::PAUSE_WINDOW, PAUSE_WINDOW);
            }
            if features.preemption_timer.is_some() {
                // An interrupt of the host is late by this at most, where a processor overlooks it (Bochs, if the guest
                // is entered with IF = 0).
                write(guest::PREEMPTION_TIMER, self.timer());
            }
            instr::write_host_state(&features, write);
        }
        instr::set_cr2(self.saved.cr2);
        instr::set_dr6(self.saved.dr6);
        for (index, value) in system::MSRS.into_iter().zip(self.saved.msrs) {
            // SAFETY: every processor with long mode has them, the values come from `set_switched_msr` or are zero, and the
            // host uses none of them.
            unsafe { instr::write_msr(index, value) };
        }
        self.live.set(true);
        self.request_l1d_flush();
    }

    /// What the preemption timer counts down from.
    fn timer(&self) -> u64 {
        (self.slice >> self.features.preemption_timer.unwrap_or(0)).clamp(1, 0xffff_ffff)
    }

    /// The guest's EFER as far as entries do not load it from its field, and whether it is in long mode.
    fn write_mode(&mut self) {
        let value = self.cache.get(Field::Efer);
        let long = if value & efer::LMA != 0 { entry::IA32E_GUEST } else { 0 };
        let counters = if self.counting.is_some() { entry::LOAD_PERF_GLOBAL_CTRL } else { 0 };
        // SAFETY: this VCPU's VMCS is current; SCE means nothing to the host, whose other bits stay.
        unsafe {
            self.cache.write(control::ENTRY_CONTROLS, (self.features.entry | long | counters).into());
            if !self.features.switches_efer {
                let host = instr::read_msr(EFER);
                instr::write_msr(EFER, host & !efer::SCE | value & efer::SCE);
            }
        }
    }

    fn processor_controls(&self) -> u64 {
        let mut word = self.features.processor;
        if self.debug_open {
            word &= !processor::MOV_DR;
        }
        if self.guest_cr.is_some() {
            word |= processor::CR3_LOAD | processor::CR3_STORE;
            word |= if self.invlpg_exits { processor::INVLPG } else { 0 };
        } else if self.cr3_exits {
            word |= processor::CR3_LOAD;
        }
        (word | self.injection.windows).into()
    }

    /// Notes what came of an entry that was not the common one, or of an exit that may have interrupted something.
    #[inline(never)]
    pub(super) fn finish(&mut self, reason: u32) -> Finished {
        if reason & reason::ENTRY_FAILED != 0 {
            return Finished::Other;
        }
        if self.work.get() & work::LOAD != 0 {
            // From now on VMRESUME: VMLAUNCH fails with a VMCS that has been launched (SDM 3, 26.1).
            self.block.launched = 1;
            self.done(work::LOAD);
        }
        self.vectoring = 0;
        self.injection.iret_faulted = false;
        if reason == reason::PREEMPTION_TIMER && self.features.exit & exit_control::SAVE_TIMER != 0 {
            // SAFETY: after an exit of this VCPU. The timer has expired, and exits save 0: nothing else reloads it.
            unsafe { self.cache.write(guest::PREEMPTION_TIMER, self.timer()) };
        }
        if may_interrupt_delivery(reason) {
            // SAFETY: after an exit of this VCPU.
            self.vectoring = unsafe { self.cache.read(exit::VECTORING) } as u32;
            if reason == reason::EXCEPTION {
                // SAFETY: as above.
                self.interruption = unsafe { self.cache.read(exit::INTERRUPTION) } as u32;
                if self.interruption & event::TYPE == event::NMI {
                    // The exit has acknowledged the host's NMI and blocked others; INT 2 runs the handler, whose IRET
                    // unblocks them.
                    instr::take_nmi();
                } else if self.interruption & event::VECTOR == u32::from(vector::DB) {
                    self.note_debug_exception();
                }
            }
            if self.vectoring & event::VALID == 0 && self.iret_unblocked_nmis(reason) {
                // The IRET will execute again: SDM 3, 31.7.1.2.
                self.set(Field::Interruptibility, self.cache.get(Field::Interruptibility) | NMI_BLOCKING);
                self.injection.iret_faulted = true;
            }
        }
        if self.work.get() & !work::GUARD == 0 && self.vectoring & event::VALID == 0 {
            return Finished::Plain;
        }
        self.finish_injection(reason)
    }

    /// The access of an I/O exit.
    #[inline(always)]
    pub(super) fn io(&self) -> IoExit {
        decode::io(self.qualification(), self.after_exit())
    }

    /// The address and the processor's error code, if the exit is a page fault.
    #[inline(always)]
    pub(super) fn page_fault(&self) -> Option<(Gva, u32)> {
        if self.reason != reason::EXCEPTION {
            return None;
        }
        // SAFETY: after an exit of this VCPU.
        decode::page_fault(self.interruption, |field| unsafe { self.cache.read(field) })
    }

    /// An exit with which nothing else happened. Accesses to control registers are not told apart: few of them exit.
    #[inline(always)]
    pub(super) fn decode_plain(&self) -> Ended {
        match self.page_fault() {
            Some((gva, error)) => Ended::PageFault(gva, error),
            None if self.reason == reason::IO => Ended::Io(self.io()),
            None => Ended::Other,
        }
    }

    /// Whether an IRET that unblocked NMIs has faulted (SDM 3, 27.2.3).
    fn iret_unblocked_nmis(&self, reason: u32) -> bool {
        match reason {
            reason::EXCEPTION => {
                self.interruption & event::NMI_UNBLOCKED != 0 && self.interruption & event::VECTOR != 8
            }
            // SAFETY: after an exit of this VCPU.
            reason::EPT_VIOLATION => unsafe { self.cache.read(exit::QUALIFICATION) & 1 << 12 != 0 },
            _ => false,
        }
    }
}

impl Drop for Vmx {
    fn drop(&mut self) {
        if self.live.get() {
            // SAFETY: in VMX operation (it was entered), on the PCPU where it was; the region is a VMCS.
            let cleared = unsafe { instr::vmclear(pa(&*self.region)) };
            debug_assert!(cleared.is_ok());
        }
    }
}
