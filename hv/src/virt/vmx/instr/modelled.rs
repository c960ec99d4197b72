//! Processors with VMX for tests: their registers and VMCSs, and a script of what guests do.
//!
//! One PCPU executes at a time ([`Processor::go_to`]). What real ones leave undefined fails here: a VMCS that two PCPUs hold, an entry
//! with another VCPU's VMCS or with another PCPU's host state, a flush of another VCPU's tag.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};

use super::{Failed, GuestBlock};
use crate::arch::addr::Hpa;
use crate::arch::state::rflags;
use crate::virt::vmx::decode::{event, reason};
use crate::virt::vmx::features::Features;
use crate::virt::vmx::field::{control, exit, guest, host};

/// What the guest does until it exits: the reason of the exit.
pub type Turn = Box<dyn FnOnce(&mut Processor, &mut GuestBlock) -> u32>;

/// A VMCS.
#[derive(Default)]
struct Vmcs {
    /// Fields that were written, by number.
    fields: BTreeMap<u32, u64>,
    launched: bool,
    /// The PCPU that holds it, from VMPTRLD to VMCLEAR.
    holder: Option<u64>,
    /// Address of the [`GuestBlock`] of its VCPU.
    block: Option<usize>,
}

/// What each PCPU has of its own.
#[derive(Default)]
struct Registers {
    current: Option<u64>,
    msrs: BTreeMap<u32, u64>,
    cr2: u64,
    dr6: u64,
}

/// The processors. The registers are those of the PCPU that executes.
#[derive(Default)]
pub struct Processor {
    pcpu: u64,
    elsewhere: BTreeMap<u64, Registers>,
    /// By their addresses.
    all: BTreeMap<u64, Vmcs>,
    /// The VMCS that was made current last.
    last: u64,
    /// The address of the VMCS that is current.
    pub current: Option<u64>,
    /// Turns of the guests to come.
    pub script: VecDeque<Turn>,
    /// MSRs that were written.
    pub msrs: BTreeMap<u32, u64>,
    /// CR2.
    pub cr2: u64,
    /// DR6.
    pub dr6: u64,
    /// Executions of VMREAD.
    pub reads: u64,
    /// Executions of VMWRITE.
    pub writes: u64,
    /// Interruption word and error code of the last entry.
    pub delivered: (u32, u64),
    /// Executions of VERW, with the FLUSH_CMDs before each.
    pub cleared: Vec<u32>,
    /// Writes of FLUSH_CMD.
    pub l1d_flushes: u32,
    /// NMIs handed to the host.
    pub nmis: u32,
    /// Executions of INVEPT and INVVPID: kind and operand.
    pub flushes: Vec<(u64, u64)>,
}

impl Processor {
    /// Another PCPU executes from now on.
    pub fn go_to(&mut self, pcpu: u64) {
        let (current, msrs) = (self.current.take(), core::mem::take(&mut self.msrs));
        let mine = Registers { current, msrs, cr2: self.cr2, dr6: self.dr6 };
        self.elsewhere.insert(self.pcpu, mine);
        let theirs = self.elsewhere.remove(&pcpu).unwrap_or_default();
        (self.current, self.msrs) = (theirs.current, theirs.msrs);
        (self.cr2, self.dr6, self.pcpu) = (theirs.cr2, theirs.dr6, pcpu);
    }

    fn vmcs(&mut self) -> &mut Vmcs {
        self.all.entry(self.current.unwrap_or(self.last)).or_default()
    }

    /// The fields of the VMCS that is current, or was last.
    pub fn fields(&mut self) -> &mut BTreeMap<u32, u64> {
        &mut self.vmcs().fields
    }

    /// One of them, which the processor changes.
    pub fn field(&mut self, number: u32) -> &mut u64 {
        self.fields().entry(number).or_default()
    }

    /// Bases of tables as this PCPU has them.
    fn host_state(&self) -> [(u32, u64); 3] {
        [host::GS_BASE, host::TR_BASE, host::GDTR_BASE].map(|field| (field, 0x10_0000 * (self.pcpu + 1)))
    }

    fn check_entry(&mut self, block: usize, launched: bool) {
        assert!(self.current.is_some(), "an entry without a VMCS");
        for (field, value) in self.host_state() {
            assert_eq!(*self.field(field), value, "the host's state is another PCPU's");
        }
        let vmcs = self.vmcs();
        assert_eq!(vmcs.launched, launched, "VMLAUNCH or VMRESUME at the wrong time");
        assert_eq!(*vmcs.block.get_or_insert(block), block, "the VMCS is another VCPU's");
        self.check_shadow();
    }

    /// In an interrupt shadow a single step must wait if, and only if, TF is set (SDM 3, 26.3.1.5).
    fn check_shadow(&mut self) {
        const SHADOW: u64 = 3;
        let step = *self.field(guest::PENDING_DEBUG) & 1 << 14 != 0;
        let traps = *self.field(guest::RFLAGS) & rflags::TF != 0;
        let shadow = *self.field(guest::INTERRUPTIBILITY) & SHADOW != 0;
        assert!(!shadow || step == traps, "the entry fails: a single step waits is {step}, TF is {traps}");
    }
}

std::thread_local! {
    static PROCESSOR: RefCell<Processor> = RefCell::default();
}

/// The processor of this test.
pub fn with<T>(f: impl FnOnce(&mut Processor) -> T) -> T {
    PROCESSOR.with(|it| f(&mut it.borrow_mut()))
}

pub unsafe fn vmxon(_: Hpa) -> Result<(), Failed> {
    Ok(())
}

pub unsafe fn vmclear(region: Hpa) -> Result<(), Failed> {
    with(|it| {
        let pcpu = it.pcpu;
        let vmcs = it.all.entry(region.0).or_default();
        let is_here = vmcs.holder.take().is_none_or(|holder| holder == pcpu);
        assert!(is_here || std::thread::panicking(), "VMCLEAR where the VMCS is not");
        vmcs.launched = false;
        it.current = it.current.filter(|current| *current != region.0);
    });
    Ok(())
}

pub unsafe fn vmptrld(region: Hpa) -> Result<(), Failed> {
    with(|it| {
        let pcpu = it.pcpu;
        let vmcs = it.all.entry(region.0).or_default();
        assert_eq!(*vmcs.holder.get_or_insert(pcpu), pcpu, "a VMCS on two PCPUs");
        (it.current, it.last) = (Some(region.0), region.0);
    });
    Ok(())
}

pub unsafe fn vmread(field: u32) -> u64 {
    with(|it| {
        assert!(it.current.is_some(), "VMREAD without a VMCS");
        it.reads += 1;
        *it.fields().get(&field).unwrap_or(&0)
    })
}

pub unsafe fn vmwrite(field: u32, value: u64) {
    with(|it| {
        assert!(it.current.is_some(), "VMWRITE without a VMCS");
        it.writes += 1;
        *it.field(field) = value;
    });
}

pub unsafe fn invept(kind: u64, ept_pointer: u64) {
    with(|it| it.flushes.push((kind, ept_pointer)));
}

pub unsafe fn invvpid(kind: u64, vpid: u16, address: u64) {
    with(|it| {
        assert_eq!(*it.field(control::VPID), u64::from(vpid), "the tag of another VCPU");
        it.flushes.push((kind, address));
    });
}

pub fn cr2() -> u64 {
    with(|it| it.cr2)
}

pub fn set_cr2(value: u64) {
    with(|it| it.cr2 = value);
}

pub fn dr6() -> u64 {
    with(|it| it.dr6)
}

pub fn set_dr6(value: u64) {
    with(|it| it.dr6 = value);
}

pub fn clear_buffers() {
    with(|it| it.cleared.push(it.l1d_flushes));
}

pub fn take_nmi() {
    with(|it| it.nmis += 1);
}

pub unsafe fn read_msr(msr: u32) -> u64 {
    with(|it| *it.msrs.get(&msr).unwrap_or(&0))
}

pub unsafe fn write_msr(msr: u32, value: u64) {
    with(|it| {
        it.l1d_flushes += u32::from(msr == crate::arch::msr::FLUSH_CMD);
        it.msrs.insert(msr, value);
    });
}

pub unsafe fn write_host_state(_: &Features, write: impl Fn(u32, u64)) {
    let state = with(|it| it.host_state());
    state.into_iter().for_each(|(field, value)| write(field, value));
}

/// The guest takes its next turn.
pub unsafe fn enter(block: *mut GuestBlock) -> u32 {
    let turn = with(|it| it.script.pop_front().expect("the guest has nothing more to do"));
    with(|it| {
        // SAFETY: the caller's block, which nothing else uses.
        let block = unsafe { &mut *block };
        it.check_entry(core::ptr::from_ref(block) as usize, block.launched != 0);
        let reason = turn(it, block);
        it.vmcs().launched |= reason & reason::ENTRY_FAILED == 0;
        *it.field(exit::REASON) = reason.into();
        it.reads += 1;
        // Entries that fail leave the word alone.
        if reason & reason::ENTRY_FAILED == 0 {
            *it.field(control::ENTRY_INTERRUPTION) &= !u64::from(event::VALID);
        }
        reason
    })
}
