//! Guest-state fields of the VMCS in memory: each is read at most once per exit, and written before an entry only if it
//! changed.
//!
//! Before a VCPU's first entry, and while it is not current, all fields are here. What must hold: [`Cache::get`] of a field that is
//! not here is called after an exit of this VCPU on the PCPU that made it.

use core::cell::Cell;

use super::field::{control, exit, guest};
use super::instr::{vmread, vmwrite};
use crate::arch::state::SegReg;
use crate::virt::FieldAccesses;

/// A field that is kept here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Field {
    Rip,
    Rsp,
    Rflags,
    Interruptibility,
    Cr0,
    Cr3,
    Cr4,
    Efer,
    Dr7,
    PendingDebug,
    GdtrBase,
    GdtrLimit,
    IdtrBase,
    IdtrLimit,
    SysenterCs,
    SysenterEsp,
    SysenterEip,
    Pat,
    // What the processor never changes.
    Processor,
    Secondary,
    Exceptions,
    PageFaultMask,
    Cr0Mask,
    Cr0Shadow,
    Cr4Mask,
    Cr4Shadow,
    TscOffset,
    EptPointer,
    TprThreshold,
}

/// The fields of [`Field`], in order.
const PLAIN: [u32; 29] = [
    guest::RIP,
    guest::RSP,
    guest::RFLAGS,
    guest::INTERRUPTIBILITY,
    guest::CR0,
    guest::CR3,
    guest::CR4,
    guest::EFER,
    guest::DR7,
    guest::PENDING_DEBUG,
    guest::GDTR_BASE,
    guest::GDTR_LIMIT,
    guest::IDTR_BASE,
    guest::IDTR_LIMIT,
    guest::SYSENTER_CS,
    guest::SYSENTER_ESP,
    guest::SYSENTER_EIP,
    guest::PAT,
    control::PROCESSOR_BASED,
    control::SECONDARY,
    control::EXCEPTION_BITMAP,
    control::PAGE_FAULT_MASK,
    control::CR0_MASK,
    control::CR0_SHADOW,
    control::CR4_MASK,
    control::CR4_SHADOW,
    control::TSC_OFFSET,
    control::EPT_POINTER,
    control::TPR_THRESHOLD,
];

/// Fields of a segment register: selector, limit, rights, base.
const SEGMENT: [u32; 4] = [guest::ES_SELECTOR, guest::ES_LIMIT, guest::ES_RIGHTS, guest::ES_BASE];

/// A part of a segment register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Part {
    Selector,
    Limit,
    Rights,
    Base,
}

const COUNT: usize = PLAIN.len() + 8 * SEGMENT.len();

const ENCODINGS: [u32; COUNT] = {
    let mut all = [0; COUNT];
    let mut i = 0;
    while i < COUNT {
        all[i] = if i < PLAIN.len() {
            PLAIN[i]
        } else {
            let n = i - PLAIN.len();
            SEGMENT[n % 4] + 2 * (n as u32 / 4)
        };
        i += 1;
    }
    all
};

/// One bit for each field.
const fn bit(slot: usize) -> u64 {
    1 << slot
}

/// Fields that only the hypervisor changes.
const CONTROLS: u64 = bit(Field::TprThreshold as usize + 1) - bit(Field::Processor as usize);

/// The fields of one VMCS.
#[derive(Debug)]
pub struct Cache {
    values: [Cell<u64>; COUNT],
    /// The value here is the field's (or newer).
    known: Cell<u64>,
    /// It is newer.
    changed: Cell<u64>,
    reads: Cell<u64>,
    writes: Cell<u64>,
    /// Times that RFLAGS was read and RIP written.
    ends: Cell<u64>,
    /// Times that RIP and the length of an instruction were read.
    lengths: Cell<u64>,
}

impl Cache {
    /// All fields zero, and to be written.
    pub fn new() -> Cache {
        Cache {
            values: [const { Cell::new(0) }; COUNT],
            known: Cell::new(u64::MAX),
            changed: Cell::new(bit(COUNT) - 1),
            reads: Cell::new(0),
            writes: Cell::new(0),
            lengths: Cell::new(0),
            ends: Cell::new(0),
        }
    }

    /// The value of a field.
    #[inline(always)]
    pub fn get(&self, field: Field) -> u64 {
        self.slot(field as usize)
    }

    /// The value of a part of a segment register.
    #[inline(always)]
    pub fn segment(&self, seg: SegReg, part: Part) -> u64 {
        self.slot(PLAIN.len() + 4 * seg as usize + part as usize)
    }

    /// Changes a field. True: it has to be written.
    #[inline(always)]
    pub fn set(&self, field: Field, value: u64) -> bool {
        self.set_slot(field as usize, value)
    }

    /// Changes a part of a segment register; as [`Cache::set`].
    pub fn set_segment(&self, seg: SegReg, part: Part, value: u64) -> bool {
        self.set_slot(PLAIN.len() + 4 * seg as usize + part as usize, value)
    }

    #[inline(always)]
    fn slot(&self, slot: usize) -> u64 {
        if self.known.get() & bit(slot) == 0 {
            self.load(slot);
        }
        self.values[slot].get()
    }

    #[inline(always)]
    fn load(&self, slot: usize) {
        // SAFETY: the rule of this module: this VCPU's VMCS is current.
        self.values[slot].set(unsafe { self.read(ENCODINGS[slot]) });
        self.known.set(self.known.get() | bit(slot));
    }

    #[inline(always)]
    fn set_slot(&self, slot: usize, value: u64) -> bool {
        let known = self.known.get();
        if known & bit(slot) != 0 && self.values[slot].get() == value {
            return false;
        }
        self.values[slot].set(value);
        self.known.set(known | bit(slot));
        self.changed.set(self.changed.get() | bit(slot));
        true
    }

    /// RIP, and the length of the instruction that exited: counted at once.
    ///
    /// # Safety
    /// After an exit of this VCPU.
    #[inline(always)]
    pub unsafe fn rip_and_length(&self) -> (u64, u64) {
        self.lengths.set(self.lengths.get() + 1);
        // SAFETY: the caller's promise.
        let length = unsafe { vmread(exit::INSTRUCTION_LENGTH) };
        if self.known.get() & bit(Field::Rip as usize) != 0 {
            self.reads.set(self.reads.get().wrapping_sub(1));
            return (self.values[Field::Rip as usize].get(), length);
        }
        // SAFETY: as above.
        (unsafe { vmread(guest::RIP) }, length)
    }

    /// Writes RIP straight to the VMCS, after an exit, and returns RFLAGS: what every instruction that ends in software does.
    ///
    /// # Safety
    /// This VCPU's VMCS is current.
    #[inline(always)]
    pub unsafe fn end_at(&self, rip: u64) -> u64 {
        debug_assert_eq!(self.changed.get() & bit(Field::Rip as usize), 0);
        self.ends.set(self.ends.get() + 1);
        // SAFETY: the caller's promise.
        unsafe { vmwrite(guest::RIP, rip) };
        let known = self.known.get();
        self.known.set(known & !bit(Field::Rip as usize));
        if known & bit(Field::Rflags as usize) != 0 {
            self.reads.set(self.reads.get().wrapping_sub(1));
            return self.values[Field::Rflags as usize].get();
        }
        // SAFETY: as above.
        unsafe { vmread(guest::RFLAGS) }
    }

    /// Reads a field that is not kept here.
    ///
    /// # Safety
    /// This VCPU's VMCS is current.
    #[inline(always)]
    pub unsafe fn read(&self, field: u32) -> u64 {
        self.reads.set(self.reads.get() + 1);
        // SAFETY: the caller's promise.
        unsafe { vmread(field) }
    }

    /// Writes a field that is not kept here.
    ///
    /// # Safety
    /// This VCPU's VMCS is current, and the value does not break the promises of [`instr::enter`](super::instr::enter).
    #[inline(always)]
    pub unsafe fn write(&self, field: u32, value: u64) {
        self.writes.set(self.writes.get() + 1);
        // SAFETY: the caller's promise.
        unsafe { vmwrite(field, value) }
    }

    /// Fields that were read and written so far.
    pub fn accesses(&self) -> FieldAccesses {
        let (ends, lengths) = (self.ends.get(), self.lengths.get());
        let reads = self.reads.get().wrapping_add(ends).wrapping_add(2 * lengths);
        FieldAccesses { reads, writes: self.writes.get() + ends }
    }

    /// An exit: the processor has changed everything but the controls. Its reason has been read.
    #[inline(always)]
    pub fn forget(&self) {
        self.reads.set(self.reads.get() + 1);
        self.known.set(CONTROLS | !(bit(COUNT) - 1));
    }

    /// Has a field written again.
    pub fn touch(&self, field: Field) {
        self.changed.set(self.changed.get() | bit(field as usize));
    }

    /// Reads what is not here, before the VMCS leaves the processor. A processor need not have the fields for which `skip` says
    /// so.
    ///
    /// # Safety
    /// This VCPU's VMCS is current.
    pub unsafe fn read_all(&self, skip: impl Fn(u32) -> bool) {
        let unknown = |slot: &usize| self.known.get() & bit(*slot) == 0;
        (0..COUNT).filter(unknown).filter(|slot| !skip(ENCODINGS[*slot])).for_each(|slot| self.load(slot));
        self.known.set(u64::MAX);
    }

    /// Whether a field has to be written.
    pub fn is_changed(&self, field: Field) -> bool {
        self.changed.get() & bit(field as usize) != 0
    }

    /// Writes what has changed. A processor need not have the fields for which `skip` says so.
    ///
    /// # Safety
    /// This VCPU's VMCS is current.
    pub unsafe fn write_back(&self, skip: impl Fn(u32) -> bool) {
        let mut changed = self.changed.take();
        while changed != 0 {
            let slot = changed.trailing_zeros() as usize;
            changed &= changed - 1;
            if !skip(ENCODINGS[slot]) {
                // SAFETY: the caller's promise.
                unsafe { self.write(ENCODINGS[slot], self.values[slot].get()) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_have_the_manuals_numbers() {
        let cache = Cache::new();
        assert_eq!(ENCODINGS[Field::TprThreshold as usize], control::TPR_THRESHOLD);
        assert_eq!(ENCODINGS[Field::Pat as usize], guest::PAT);
        let base_of_tr = PLAIN.len() + 4 * SegReg::Tr as usize + Part::Base as usize;
        assert_eq!(ENCODINGS[base_of_tr], 0x6814);
        assert_eq!(ENCODINGS[PLAIN.len() + 4 * SegReg::Ldtr as usize + Part::Rights as usize], 0x4820);
        assert_eq!(base_of_tr, COUNT - 1);
        assert_eq!(cache.known.get(), u64::MAX);
    }

    #[test]
    fn only_changes_are_written() {
        let cache = Cache::new();
        cache.changed.set(0);
        assert!(!cache.set(Field::Cr3, 0));
        assert!(cache.set(Field::Cr3, 0x5000));
        assert!(!cache.set(Field::Cr3, 0x5000));
        assert!(cache.is_changed(Field::Cr3) && !cache.is_changed(Field::Cr4));
        assert_eq!(cache.get(Field::Cr3), 0x5000);
        assert!(cache.set_segment(SegReg::Cs, Part::Selector, 8));
        assert_eq!(cache.segment(SegReg::Cs, Part::Selector), 8);
    }

    #[test]
    fn an_exit_leaves_the_controls_known() {
        let cache = Cache::new();
        cache.forget();
        assert_eq!(cache.get(Field::Processor) | cache.get(Field::TprThreshold), 0);
        assert_eq!(cache.known.get() & bit(Field::Rip as usize), 0);
        assert_eq!(cache.known.get() & bit(PLAIN.len()), 0);
    }
}
