//! Bits of a VCPU's pending-work word (`Vcpu::work`): reasons not to enter the guest straight away.
//!
//! The run loop tests the whole word before each entry. Mailboxes and devices set bits in it.

/// Look for an interrupt to offer.
pub const INTERRUPTS: u32 = 1 << 0;
/// A device deadline may have passed or changed.
pub const TIMERS: u32 = 1 << 1;
/// HLT: wait for an interrupt.
pub const HALTED: u32 = 1 << 2;
/// A host interrupt wants to be taken.
pub const HOST: u32 = 1 << 3;
/// An NMI waits for the guest.
pub const NMI: u32 = 1 << 4;
/// The console has input, or the guest has made room for more.
pub const CONSOLE: u32 = 1 << 5;
/// Address translation has something to do: see `vcpu::mmu::serve`.
pub const MMU: u32 = 1 << 6;
/// Look into the mailbox.
pub const MAIL: u32 = 1 << 7;
/// Other VCPUs have mail: see `Vcpu::kicks`.
pub const KICK: u32 = 1 << 8;
/// Wait for a start-up IPI.
pub const WAITS: u32 = 1 << 9;
/// INIT has come.
pub const INIT: u32 = 1 << 10;
/// A start-up IPI has come.
pub const STARTUP: u32 = 1 << 11;
/// Others have changed tables: forget translations.
pub const FLUSH: u32 = 1 << 12;
/// Others have dropped all shadow tables: load the root again.
pub const RELOAD: u32 = 1 << 13;
/// Virtio devices have something to do.
pub const DEVICES: u32 = 1 << 14;
/// The guest spins: others may have the PCPU.
pub const SPIN: u32 = 1 << 15;
/// Use the tables of the PCPU's cache domain.
pub const TREE: u32 = 1 << 17;
/// The VCPU is in a phase of regioning: look before each entry. See `vcpu::regions`.
pub const PHASE: u32 = 1 << 18;
/// Pages of an overcommitted VM are to be evicted, or its balloon has named some, or it has to end.
pub const PAGER: u32 = 1 << 19;
