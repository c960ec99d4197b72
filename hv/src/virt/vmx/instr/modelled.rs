//! A processor with VMX for tests: fields of one VMCS, and a script of what the guest does.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};

use super::{Failed, GuestBlock};
use crate::paging::addr::Hpa;
use crate::virt::state::rflags;
use crate::virt::vmx::decode::{event, reason};
use crate::virt::vmx::features::Features;
use crate::virt::vmx::field::{control, exit, guest};

/// What the guest does until it exits: the reason of the exit.
pub type Turn = Box<dyn FnOnce(&mut Processor, &mut GuestBlock) -> u32>;

/// One processor, whose current VMCS has these fields.
#[derive(Default)]
pub struct Processor {
    /// A VMCS is current.
    pub current: bool,
    /// It has been launched.
    pub launched: bool,
    /// Fields that were written, by number.
    pub fields: BTreeMap<u32, u64>,
    /// Turns of the guest to come.
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
    /// NMIs handed to the host.
    pub nmis: u32,
    /// Executions of INVEPT and INVVPID: kind and operand.
    pub flushes: Vec<(u64, u64)>,
}

impl Processor {
    /// The field, which the processor changes.
    pub fn field(&mut self, number: u32) -> &mut u64 {
        self.fields.entry(number).or_default()
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

pub unsafe fn vmclear(_: Hpa) -> Result<(), Failed> {
    with(|it| (it.current, it.launched) = (false, false));
    Ok(())
}

pub unsafe fn vmptrld(_: Hpa) -> Result<(), Failed> {
    with(|it| it.current = true);
    Ok(())
}

pub unsafe fn vmread(field: u32) -> u64 {
    with(|it| {
        assert!(it.current, "VMREAD without a VMCS");
        it.reads += 1;
        *it.fields.get(&field).unwrap_or(&0)
    })
}

pub unsafe fn vmwrite(field: u32, value: u64) {
    with(|it| {
        assert!(it.current, "VMWRITE without a VMCS");
        it.writes += 1;
        *it.field(field) = value;
    });
}

pub unsafe fn invept(kind: u64, ept_pointer: u64) {
    with(|it| it.flushes.push((kind, ept_pointer)));
}

pub unsafe fn invvpid(kind: u64, _: u16, address: u64) {
    with(|it| it.flushes.push((kind, address)));
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

pub fn take_nmi() {
    with(|it| it.nmis += 1);
}

pub unsafe fn read_msr(msr: u32) -> u64 {
    with(|it| *it.msrs.get(&msr).unwrap_or(&0))
}

pub unsafe fn write_msr(msr: u32, value: u64) {
    with(|it| _ = it.msrs.insert(msr, value));
}

pub unsafe fn write_host_state(_: &Features, _: impl Fn(u32, u64)) {}

/// The guest takes its next turn.
pub unsafe fn enter(block: *mut GuestBlock) -> u32 {
    let turn = with(|it| it.script.pop_front().expect("the guest has nothing more to do"));
    with(|it| {
        // SAFETY: the caller's block, which nothing else uses.
        let block = unsafe { &mut *block };
        assert!(it.current && it.launched == (block.launched != 0), "VMLAUNCH or VMRESUME at the wrong time");
        it.check_shadow();
        let reason = turn(it, block);
        it.launched |= reason & reason::ENTRY_FAILED == 0;
        it.fields.insert(exit::REASON, reason.into());
        it.reads += 1;
        // Entries that fail leave the word alone.
        if reason & reason::ENTRY_FAILED == 0 {
            *it.field(control::ENTRY_INTERRUPTION) &= !u64::from(event::VALID);
        }
        reason
    })
}
