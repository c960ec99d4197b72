//! The only door to AMD-V and Intel VT-x.
//!
//! A backend owns the hardware control block of one VCPU and implements [`Virt`] (and [`VcpuState`]) over it. Its
//! only caller is `vcpu::run`; handlers see registers through [`VcpuState`] and never a vendor's structure.
//! What must hold: between [`Virt::enter`] and [`Virt::load_host_state`] the processor still holds guest state that
//! entries do not switch (hidden segment state, system-call MSRs) and takes no host interrupts, so nothing that sleeps or
//! waits for an interrupt may run there.

pub mod event;
pub mod exit;
#[cfg(any(test, feature = "testing"))]
pub mod fake;
pub mod feature;
pub mod speculation;
pub mod svm;
pub mod vmx;

pub use exit::{Exit, IoExit};

use crate::arch::addr::{Gva, Hpa};
use crate::arch::state::Gpr;
use crate::arch::{Exception, VcpuState};
use crate::paging::engine::Engines;
use crate::paging::format::{NestedAttr, PteFormat};

/// An event that the next entry delivers to the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A hardware exception.
    Exception(Exception),
    /// A non-maskable interrupt.
    Nmi,
}

/// What the guest is to take as soon as it can (RFLAGS.IF, no interrupt shadow).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PendingIrq {
    /// Nothing.
    #[default]
    None,
    /// An interrupt of the local APIC: CR8 holds its class back.
    Vector(u8),
    /// An interrupt of the PIC: CR8 does not matter.
    ExtInt(u8),
    /// Not an interrupt yet: exit with [`Exit::InterruptWindow`] once the guest could take [`PendingIrq::ExtInt`].
    Window,
}

/// What translates the guest's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Roots {
    /// The guest's own tables, then the nested tables at this address.
    Nested(Hpa),
    /// Shadow tables at this address, in the place of the guest's own.
    Shadow(Hpa),
}

/// How an entry ended. The run loop has fast paths for the exits that are frequent and simple. They are decoded here, once,
/// and only if nothing else happened (no event was delivered, interrupted or is still on its way).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// [`Exit::Cpuid`]
    Cpuid,
    /// A page fault: its address, and the processor's error code.
    PageFault(Gva, u32),
    /// [`Exit::Io`]
    Io(IoExit),
    /// [`Exit::ControlReg`], where it is frequent (if the processor cannot intercept single bits).
    ControlReg {
        /// Which register, and whether it is written: see [`exit::control`].
        access: u8,
        /// The general-purpose operand: see [`RegMove::gpr`](crate::arch::RegMove::gpr).
        gpr: Option<Gpr>,
    },
    /// Any exit: see [`Virt::exit`].
    Other,
}

/// What a backend has found where more may have happened than an exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finished {
    /// Nothing has: the exit can be decoded for a fast path.
    Plain,
    /// It has, or it is still on its way.
    Other,
    /// The exit was of no interest, and the guest just goes on.
    Nothing,
}

/// Which translations the guest must no longer use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushScope {
    /// All of this VCPU's.
    All,
    /// All but global ones.
    NonGlobal,
    /// Those of one linear address.
    Address(Gva),
}

/// Accesses to a control block that is not plain memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FieldAccesses {
    /// Fields read.
    pub reads: u64,
    /// Fields written.
    pub writes: u64,
}

/// Everything the run loop asks of the virtualization hardware for one VCPU.
pub trait Virt: VcpuState + Sized {
    /// The format of its nested tables.
    type NestedFormat: PteFormat<Attr = NestedAttr>;

    /// What the backend keeps for each PCPU (host save areas, address space identifiers).
    type Cpu;

    /// Whether the processor keeps the page-directory pointers of PAE paging in registers, so that software that
    /// executes a load of CR3 (or of CR0 or CR4, where they imply one) must call [`Virt::set_pointers`].
    const HAS_PDPTRS: bool = false;

    /// Whether every processor of the vendor runs guests in any state on every engine: [`Virt::engines`] is always
    /// [`Engines::ALL`].
    const UNRESTRICTED: bool = true;

    /// Runs the guest until something needs the hypervisor. A host interrupt ends it with [`Exit::Interrupt`].
    fn enter(&mut self, cpu: &mut Self::Cpu) -> Ended;

    /// Why the last entry ended.
    fn exit(&self) -> Exit;

    /// Gives the processor back to the host: guest state that entries leave in registers goes to memory, host
    /// interrupts can be taken again (once the host opens them). Cheap if there is nothing to do.
    fn load_host_state(&mut self, cpu: &mut Self::Cpu);

    /// Takes everything of the VCPU out of the PCPU, so that another VCPU can use that, and this one run anywhere.
    fn put(&mut self, cpu: &mut Self::Cpu);

    /// Puts every register and pending event into the state after RESET; intercepts and paging stay.
    fn reset(&mut self);

    /// The same for INIT, which leaves model-specific registers but EFER alone, and CD and NW of CR0
    /// ([`ArchState::init`](crate::arch::ArchState::init)).
    fn init(&mut self);

    /// RIP of the instruction after the one that exited, if the processor reports it.
    fn next_rip(&self) -> Option<u64>;

    /// Queues an event for the next entry.
    fn inject(&mut self, event: Event);

    /// Delivers a page fault at the next entry, for an instruction that did nothing else ([`Ended::PageFault`]).
    fn inject_page_fault(&mut self, gva: Gva, error: u32);

    /// Whether the next entry delivers an event: one that is queued, or one whose delivery was interrupted.
    fn event_pending(&self) -> bool;

    /// Whether the last exit interrupted the delivery of an event of any kind: the instruction at RIP is not to blame.
    fn was_delivering(&self) -> bool;

    /// The event whose delivery the last exit interrupted, if any. Taking it means that it is not delivered
    /// again; left alone, the next entry repeats it.
    fn take_interrupted_event(&mut self) -> Option<Event>;

    /// The event whose delivery the last exit interrupted, of any kind, has been delivered in software: it is not delivered
    /// again, an external interrupt counts as taken, and an NMI blocks others.
    fn finish_delivery(&mut self);

    /// An IRET was executed in software: NMIs are no longer blocked.
    fn unblock_nmis(&mut self);

    /// Offers an external interrupt, taken by the guest as soon as it can, during this or any later entry; replaces an
    /// earlier offer.
    fn set_pending_irq(&mut self, offer: PendingIrq);

    /// The offered vector if the guest has taken it since the last call.
    fn interrupt_taken(&mut self) -> Option<u8>;

    /// Whether the guest can take an external interrupt right now, CR8 aside.
    fn can_take_interrupt(&self) -> bool;

    /// Forgets the interrupt shadow, after an instruction that had one was executed in software.
    fn clear_interrupt_shadow(&mut self);

    /// Ends an instruction that was executed in software: execution goes on at `rip`; the interrupt shadow and RF end.
    /// True: TF is set, a single-step trap is due.
    fn end_instruction(&mut self, rip: u64) -> bool;

    /// Ends a CPUID: RAX, RBX, RCX, RDX become these values, the rest is as in [`Virt::end_instruction`].
    fn answer_cpuid(&mut self, values: &[u32; 4], rip: u64) -> bool;

    /// Whether an NMI can be injected now. It cannot while the guest is inside an NMI handler or in an interrupt shadow, nor
    /// before another event, unless the processor keeps NMIs that wait.
    fn can_take_nmi(&self) -> bool;

    /// An NMI waits: the guest exits with [`Exit::NmiWindow`] before the first instruction at which it can take one. False:
    /// the processor cannot do that, because the next entry delivers another event; a host interrupt that is pending at that
    /// entry has the same effect.
    #[must_use]
    fn open_nmi_window(&mut self) -> bool;

    /// The task priority (CR8, 0 to 15).
    fn task_priority(&self) -> u8;

    /// Sets the task priority.
    fn set_task_priority(&mut self, value: u8);

    /// Uses these tables from the next entry on.
    fn set_paging(&mut self, roots: Roots);

    /// The engines on which the processor can run the guest in the state in which it is.
    fn engines(&self) -> Engines {
        Engines::ALL
    }

    /// Whether this is an emulation that may go on executing code that the guest has overwritten, until it is written again
    /// (docs/qemu.md).
    fn keeps_old_code(&self) -> bool {
        false
    }

    /// Whether the processor sets dirty bits in nested tables, at each write of the guest's.
    fn sets_dirty_bits(&self) -> bool {
        false
    }

    /// The page of linear addresses that the guest must not be able to write on shadow tables in the state in which it is,
    /// because the processor executes task switches by itself: it writes to the current TSS first, faults there, and leaves the
    /// root alone. The guest's own writes are executed for it. Asked before each entry in such a state.
    fn guarded_page(&mut self) -> Option<Gva> {
        None
    }

    /// Sets the page-directory pointers, where the processor keeps them. The caller has validated them.
    fn set_pointers(&mut self, _pointers: [u64; 4]) {}

    /// What a machine that models the processor for agile paging is told at the next entries; `None`: it is not in force.
    fn set_agile(&mut self, _state: Option<abi::agile::Words>) {}

    /// Whether loads of CR3 exit on nested tables, until other tables are used. On shadow tables they always do.
    fn set_cr3_exits(&mut self, exits: bool);

    /// Whether INVLPG and INVPCID exit on shadow tables, until nested ones are used: at first they do. Where they do not, an
    /// INVPCID that names an address space may come as a general-protection fault (the processor does not know the
    /// guest's PCIDs). Of use only where the format of nested tables says that faults are
    /// [filtered](PteFormat::FILTERS_FAULTS).
    fn set_invlpg_exits(&mut self, _exits: bool) {}

    /// Drops translations before the next entry.
    fn flush(&mut self, scope: FlushScope);

    /// Guest TSC minus host TSC, modulo 2^64.
    fn tsc_offset(&self) -> u64;

    /// Sets guest TSC minus host TSC.
    fn set_tsc_offset(&mut self, offset: u64);

    /// Reads an MSR that the processor switches with the guest (system-call MSRs, PAT, FS and GS bases);
    /// `None`: not such an MSR.
    fn switched_msr(&self, index: u32) -> Option<u64>;

    /// The processor's PAT while the guest runs on shadow tables, if entries do not switch it then.
    fn host_pat(&self) -> Option<u64> {
        None
    }

    /// Writes such an MSR; `false`: not such an MSR. The caller has validated the value.
    fn set_switched_msr(&mut self, index: u32, value: u64) -> bool;

    /// Lets the guest use the debug registers without exits until [`Virt::reset`].
    fn open_debug_registers(&mut self);

    /// A run begins. `wait`: other VCPUs wait for the PCPU, so a guest that spins should exit ([`Exit::Pause`]); otherwise it need
    /// not.
    fn set_ple(&mut self, _wait: bool) {}

    /// Whether the guest has spun long enough that others should run, which the exit by PAUSE alone may not say.
    fn ple_expired(&mut self) -> bool {
        true
    }

    /// The control block's own words about the last exit, for reports.
    fn exit_report(&self) -> alloc::string::String;

    /// How often the control block was accessed, if that takes instructions of its own (VMREAD and VMWRITE).
    fn field_accesses(&self) -> Option<FieldAccesses> {
        None
    }
}
