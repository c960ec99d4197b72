//! The guest's PC: interrupt controllers, timers, serial port, PCI host bridge and the bus that finds them.
//!
//! Conventions. Devices are plain structures without locks, logging or `dyn`. Time is an argument ([`Nanos`]
//! since the VM started; the local APIC counts guest TSC ticks instead). A device with timers says when it next
//! wants to be called (`deadline`) and is then called (`tick`). Interrupt outputs are levels that the bus reads after
//! each access (`line`). What an access asks of the rest of the machine is a returned, `#[must_use]` effect. Values
//! written by a guest never cause a panic, an unchecked index or an allocation without bound.

pub mod chipset;
pub mod clock;
pub mod effect;
#[cfg(any(test, feature = "testing"))]
pub mod fuzz;
pub mod hpet;
pub mod i8042;
pub mod ioapic;
pub mod lanes;
pub mod lapic;
pub mod layout;
pub mod message;
pub mod pci;
pub mod pic;
pub mod pit;
pub mod pm;
pub mod rtc;
pub mod testdev;
pub mod uart;
pub mod virtio;

/// Nanoseconds since the VM started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Nanos(pub u64);

/// A reading of the guest's time-stamp counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tsc(pub u64);

impl Nanos {
    /// `self + ns`, saturating.
    pub const fn after(self, ns: u64) -> Nanos {
        Nanos(self.0.saturating_add(ns))
    }
}

/// The access raises #GP(0) in the guest; nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gp;
