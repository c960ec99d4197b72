//! A scripted backend for host tests: each entry plays the next step of a script.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::Cell;

use crate::arch::addr::Gva;
use crate::arch::state::{ArchState, Gpr, SegReg, Segment, TableReg, VcpuState, rflags};
use crate::arch::{Exception, vector};
use crate::paging::engine::{Engine, Engines};
use crate::paging::format::npt::Npt;
use crate::virt::exit::control;
use crate::virt::{Ended, Event, Exit, FlushScope, PendingIrq, Roots, Virt};

/// What a scripted VCPU and a scripted PCPU share.
#[derive(Debug, Default)]
pub struct Processor {
    /// The TSC.
    pub tsc: Cell<u64>,
    /// The guest's state is in the processor: it was entered and not released since.
    pub held: Cell<bool>,
}

/// What one entry does before it exits.
pub type Step = fn(&mut Fake) -> Exit;

/// A VCPU without hardware. Fields are public so that a test can set the scene and look at what happened.
#[derive(Debug, Default)]
pub struct Fake {
    /// The registers.
    pub regs: ArchState,
    /// The PCPU.
    pub cpu: Rc<Processor>,
    /// What the next entries do; when it is empty the guest triple-faults.
    pub script: VecDeque<Step>,
    /// For steps that take their choices from the test.
    pub choices: VecDeque<u64>,
    /// For steps that tell the test what they saw.
    pub seen: Vec<u8>,
    /// For steps that remember which vectors they wait for.
    pub on_the_way: BTreeSet<u8>,
    /// Reported as [`Virt::next_rip`].
    pub next_rip: Option<u64>,
    /// Every event that an entry has delivered.
    pub delivered: Vec<Event>,
    /// Every interrupt that the guest has taken.
    pub interrupts: Vec<u8>,
    /// Flushes asked for.
    pub flushes: Vec<FlushScope>,
    /// The tables in use.
    pub roots: Option<Roots>,
    /// Entries so far.
    pub entries: usize,
    /// The guest is in its NMI handler; a step ends that.
    pub nmi_blocked: bool,
    /// The interrupt shadow.
    pub shadow: bool,
    /// Whether the last entry began in an interrupt shadow.
    pub entered_in_shadow: bool,
    /// Reported as [`Virt::sets_dirty_bits`].
    pub sets_dirty_bits: bool,
    /// Loads of CR3 exit on nested tables.
    pub cr3_exits: bool,
    /// Whether the debug registers are open.
    pub debug_open: bool,
    /// The event whose delivery the last exit interrupted.
    pub interrupted: Option<Event>,
    /// CR0 bits without which the processor cannot run the guest: on nested tables, on shadow tables.
    pub needs: (u64, u64),
    /// Page-directory pointers that were set. Walks do not use them.
    pub pointers: Option<[u64; 4]>,
    /// MSRs that the processor would switch.
    pub msrs: BTreeMap<u32, u64>,
    exit: Option<Exit>,
    queued: Option<Event>,
    offered: PendingIrq,
    taken: Option<u8>,
    task_priority: u8,
    tsc_offset: u64,
}

impl Fake {
    /// A VCPU after RESET that will play `script`.
    pub fn new(script: impl IntoIterator<Item = Step>) -> Fake {
        Fake { regs: ArchState::reset(), script: script.into_iter().collect(), ..Fake::default() }
    }

    fn take(&mut self, vector: u8) {
        self.offered = PendingIrq::None;
        self.taken = Some(vector);
        self.interrupts.push(vector);
        // Through an interrupt gate.
        self.regs.rflags &= !rflags::IF;
    }
}

impl Virt for Fake {
    type NestedFormat = Npt;
    type Cpu = ();
    const HAS_PDPTRS: bool = true;
    const UNRESTRICTED: bool = false;

    fn enter(&mut self, _cpu: &mut ()) -> Ended {
        self.entries += 1;
        self.cpu.held.set(true);
        if let Some(event) = self.queued.take().or_else(|| self.interrupted.take()) {
            self.nmi_blocked |= event == Event::Nmi;
            self.delivered.push(event);
        }
        let open = self.can_take_interrupt();
        let exit = match self.offered {
            PendingIrq::Window if open => {
                self.offered = PendingIrq::None;
                Exit::InterruptWindow
            }
            offered => {
                match offered {
                    PendingIrq::Vector(vector) if open && vector >> 4 > self.task_priority => {
                        self.take(vector)
                    }
                    PendingIrq::ExtInt(vector) if open => self.take(vector),
                    _ => {}
                }
                self.entered_in_shadow = core::mem::take(&mut self.shadow);
                self.script.pop_front().map_or(Exit::Shutdown, |step| step(self))
            }
        };
        self.exit = Some(exit);
        match exit {
            _ if self.taken.is_some() || self.offered != PendingIrq::None || self.interrupted.is_some() => {
                Ended::Other
            }
            Exit::Cpuid => Ended::Cpuid,
            Exit::Io(io) => Ended::Io(io),
            Exit::ControlReg(access) => {
                Ended::ControlReg { access: control::number(access), gpr: access.gpr }
            }
            Exit::Exception(Exception { vector: vector::PF, error: Some(error), cr2: Some(gva) }) => {
                Ended::PageFault(Gva(gva), error)
            }
            _ => Ended::Other,
        }
    }

    fn exit(&self) -> Exit {
        self.exit.unwrap_or(Exit::Shutdown)
    }

    fn load_host_state(&mut self, _cpu: &mut ()) {
        self.cpu.held.set(false);
    }

    fn put(&mut self, cpu: &mut ()) {
        self.load_host_state(cpu);
    }

    fn reset(&mut self) {
        self.init();
        self.regs = ArchState::reset();
        self.msrs.values_mut().for_each(|value| *value = 0);
    }

    fn init(&mut self) {
        self.regs = ArchState::init(self.regs.cr0);
        (self.queued, self.interrupted, self.offered, self.taken) = (None, None, PendingIrq::None, None);
    }

    fn next_rip(&self) -> Option<u64> {
        self.next_rip
    }

    fn inject(&mut self, event: Event) {
        self.queued = Some(event);
    }

    fn inject_page_fault(&mut self, gva: Gva, error: u32) {
        self.queued = Some(Event::Exception(Exception::page_fault(gva, error)));
    }

    fn event_pending(&self) -> bool {
        self.queued.is_some() || self.interrupted.is_some()
    }

    fn was_delivering(&self) -> bool {
        self.interrupted.is_some()
    }

    fn take_interrupted_event(&mut self) -> Option<Event> {
        self.interrupted.take()
    }

    fn sets_dirty_bits(&self) -> bool {
        self.sets_dirty_bits
    }

    fn finish_delivery(&mut self) {
        self.nmi_blocked |= self.interrupted.take() == Some(Event::Nmi);
    }

    fn unblock_nmis(&mut self) {
        self.nmi_blocked = false;
    }

    fn set_pending_irq(&mut self, offer: PendingIrq) {
        self.offered = offer;
    }

    fn interrupt_taken(&mut self) -> Option<u8> {
        self.taken.take()
    }

    fn can_take_interrupt(&self) -> bool {
        self.regs.rflags & rflags::IF != 0 && !self.shadow
    }

    fn clear_interrupt_shadow(&mut self) {
        self.shadow = false;
    }

    fn end_instruction(&mut self, rip: u64) -> bool {
        self.regs.rip = rip;
        self.shadow = false;
        self.regs.rflags &= !rflags::RF;
        self.regs.rflags & rflags::TF != 0
    }

    fn answer_cpuid(&mut self, values: &[u32; 4], rip: u64) -> bool {
        for (reg, value) in [Gpr::Rax, Gpr::Rbx, Gpr::Rcx, Gpr::Rdx].into_iter().zip(*values) {
            self.regs.set_gpr(reg, value.into());
        }
        self.end_instruction(rip)
    }

    fn can_take_nmi(&self) -> bool {
        !self.nmi_blocked && !self.shadow && !self.event_pending()
    }

    fn open_nmi_window(&mut self) -> bool {
        self.nmi_blocked || !self.event_pending()
    }

    fn task_priority(&self) -> u8 {
        self.task_priority
    }

    fn set_task_priority(&mut self, value: u8) {
        self.task_priority = value;
    }

    fn engines(&self) -> Engines {
        let runs = |needed: u64| self.regs.cr0 & needed == needed;
        Engines::NONE
            .with(Engine::Nested, runs(self.needs.0))
            .with(Engine::Shadow, runs(self.needs.1))
            .with(Engine::Agile, runs(self.needs.1))
    }

    fn set_pointers(&mut self, pointers: [u64; 4]) {
        self.pointers = Some(pointers);
    }

    fn set_paging(&mut self, roots: Roots) {
        self.cr3_exits = false;
        self.roots = Some(roots);
    }

    fn set_cr3_exits(&mut self, exits: bool) {
        self.cr3_exits = exits;
    }

    fn flush(&mut self, scope: FlushScope) {
        self.flushes.push(scope);
    }

    fn tsc_offset(&self) -> u64 {
        self.tsc_offset
    }

    fn set_tsc_offset(&mut self, offset: u64) {
        self.tsc_offset = offset;
    }

    fn switched_msr(&self, index: u32) -> Option<u64> {
        self.msrs.get(&index).copied()
    }

    fn set_switched_msr(&mut self, index: u32, value: u64) -> bool {
        self.msrs.get_mut(&index).map(|slot| *slot = value).is_some()
    }

    fn open_debug_registers(&mut self) {
        self.debug_open = true;
    }

    fn exit_report(&self) -> alloc::string::String {
        alloc::format!("fake: entry {}", self.entries)
    }
}

macro_rules! forward {
    ($($get:ident -> $value:ty, $set:ident;)*) => {
        impl VcpuState for Fake {
            fn gpr(&self, reg: Gpr) -> u64 {
                self.regs.gpr(reg)
            }
            fn set_gpr(&mut self, reg: Gpr, value: u64) {
                self.regs.set_gpr(reg, value);
            }
            fn segment(&self, seg: SegReg) -> Segment {
                self.regs.segment(seg)
            }
            fn set_segment(&mut self, seg: SegReg, value: Segment) {
                self.regs.set_segment(seg, value);
            }
            fn cpl(&self) -> u8 {
                self.regs.cpl()
            }
            $(
                fn $get(&self) -> $value {
                    self.regs.$get()
                }
                fn $set(&mut self, value: $value) {
                    self.regs.$set(value);
                }
            )*
        }
    };
}

forward! {
    rip -> u64, set_rip;
    rflags -> u64, set_rflags;
    cr0 -> u64, set_cr0;
    cr2 -> u64, set_cr2;
    cr3 -> u64, set_cr3;
    cr4 -> u64, set_cr4;
    efer -> u64, set_efer;
    dr6 -> u64, set_dr6;
    dr7 -> u64, set_dr7;
    gdtr -> TableReg, set_gdtr;
    idtr -> TableReg, set_idtr;
}
