//! Counter registers that count one event of one side each, and their sums.

use arrayvec::ArrayVec;

use super::Msrs;
use crate::arch::counters::{BothSides, CounterEvent};

/// Counter registers that a processor has at most: Intel's three fixed ones and eight others.
pub const MOST: usize = 11;

/// On which side of a world switch a register counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// While a guest executes.
    Guest,
    /// While the hypervisor does.
    Host,
}

/// A counter register.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    /// What it counts. Several registers may count parts of one event.
    pub event: CounterEvent,
    /// When it counts.
    pub side: Side,
    /// The MSR.
    pub msr: u32,
    /// Its bits.
    pub width: u32,
    last: u64,
    total: u64,
}

impl Slot {
    /// A register that begins at 0.
    pub const fn new(event: CounterEvent, side: Side, msr: u32, width: u32) -> Slot {
        Slot { event, side, msr, width, last: 0, total: 0 }
    }

    const fn mask(&self) -> u64 {
        if self.width >= 64 { u64::MAX } else { (1 << self.width) - 1 }
    }

    /// Adds what was counted since the last call, which must be less than the register holds.
    fn update(&mut self, msrs: &impl Msrs) -> u64 {
        let now = msrs.read(self.msr) & self.mask();
        self.total = self.total.wrapping_add(now.wrapping_sub(self.last) & self.mask());
        self.last = now;
        self.total
    }

    /// Has the register overflow after `events` more.
    fn preset(&mut self, msrs: &mut impl Msrs, events: u32) {
        self.update(msrs);
        self.last = u64::from(events).wrapping_neg() & self.mask();
        msrs.write(self.msr, self.last);
    }

    /// Whether it has overflowed since [`Slot::preset`]: its highest bit was set then.
    fn is_past(&self, msrs: &impl Msrs) -> bool {
        msrs.read(self.msr) >> (self.width - 1) & 1 == 0
    }
}

/// All registers of a PCPU.
#[derive(Debug, Default)]
pub struct Slots {
    slots: ArrayVec<Slot, MOST>,
    /// An overflow of the guest's instructions is awaited.
    armed: bool,
}

impl Slots {
    /// Adds a register.
    pub fn push(&mut self, slot: Slot) {
        self.slots.push(slot);
    }

    /// All values.
    pub fn read(&mut self, msrs: &impl Msrs) -> BothSides {
        let mut both = BothSides::ABSENT;
        for slot in &mut self.slots {
            let counts = match slot.side {
                Side::Guest => &mut both.guest,
                Side::Host => &mut both.host,
            };
            counts.add_to(slot.event, slot.update(msrs));
        }
        both
    }

    /// The register of the guest's instructions.
    fn instructions(&mut self) -> Option<&mut Slot> {
        let is_it = |slot: &&mut Slot| slot.event == CounterEvent::Instructions && slot.side == Side::Guest;
        self.slots.iter_mut().find(is_it)
    }

    /// Has the register of the guest's instructions overflow after that many. False: there is none.
    pub fn arm(&mut self, msrs: &mut impl Msrs, instructions: u32) -> bool {
        let Some(slot) = self.instructions() else { return false };
        slot.preset(msrs, instructions.max(1));
        self.armed = true;
        true
    }

    /// Whether it has; then once.
    pub fn take_overflow(&mut self, msrs: &impl Msrs) -> bool {
        let past = self.armed && self.instructions().is_some_and(|slot| slot.is_past(msrs));
        self.armed &= !past;
        past
    }
}
