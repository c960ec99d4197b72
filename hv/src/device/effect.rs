//! What a device access asks of the rest of the machine.

use crate::arch::addr::Gpa;

/// What the caller of a device write has to do; interrupts travel apart (`message::Messages`).
#[must_use = "the device relies on the caller to carry the effect out"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    None,
    /// Show this byte on the guest's console.
    ConsoleOutput(u8),
    /// Reset the machine.
    Reset,
    /// The guest has powered off (S5).
    PowerOff,
    /// The test device ends the run with this value.
    TestExit(u32),
    /// The test device wants translations of the page that holds this address dropped; what is there stays.
    FlushPage(Gpa),
    /// The test device wants the page that holds this address gone from guest memory.
    UnmapPage(Gpa),
    /// The driver of a virtio device has notified one of its queues: serve it (`virtio::Virtio::serve`).
    Notify {
        /// The device's number.
        slot: u8,
        /// The queue's number.
        queue: u8,
    },
}

impl Effect {
    /// The first of two effects of one access that was split into bytes. No two registers with effects lie so
    /// close together that one access reaches both, so nothing is lost.
    pub fn or(self, other: Effect) -> Effect {
        if self == Effect::None { other } else { self }
    }
}

/// What an interrupt output did since the bus last looked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// The level now.
    pub level: bool,
    /// There was at least one rising edge in between that the levels alone do not show: inputs that are sensitive
    /// to edges must see it.
    pub pulsed: bool,
}
