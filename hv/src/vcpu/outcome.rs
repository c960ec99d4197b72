//! What the handling of an exit decides; only the run loop performs it.

use abi::telemetry::EndReason;

use alloc::string::String;

use crate::arch::Exception;
use crate::arch::state::ArchState;

/// What happens after an exit.
#[must_use]
#[derive(Debug)]
pub enum Outcome {
    /// Enter again: RIP is where it should be.
    Resume,
    /// The instruction has been completed in software; execution goes on at this RIP.
    Next(u64),
    /// Deliver an exception with RIP at the instruction.
    Inject(Exception),
    /// The guest waits for an interrupt; execution then goes on at this RIP.
    Halt(u64),
    /// A host interrupt is pending.
    HostInterrupt,
    /// It has touched memory that is mapped to the cache of this PCPU, and goes on there.
    Move(u8),
    /// This VM cannot or should not go on.
    Stop(Stop),
}

/// Why a VCPU's run ended.
#[derive(Debug)]
pub enum Return {
    /// It waits for an interrupt: run it again when the armed timer or a kick has come.
    Idle,
    /// It could go on, but the PCPU is needed for another VCPU, or its VM is to be paused.
    Yield,
    /// It could go on, but spins while others wait for the PCPU.
    Spin,
    /// It has touched memory that is mapped to the cache of this PCPU: it is to go on there.
    Move(u8),
    /// Its VM stops.
    Stop(Stop),
}

/// Why a VM stopped running.
#[derive(Debug)]
pub enum Stop {
    /// The guest turned its machine off.
    PowerOff,
    /// The guest reset its machine.
    Reset,
    /// A restart was requested in the monitor.
    Restart,
    /// The guest ended the run through the test device.
    TestExit(u32),
    /// A person took it away.
    Destroyed,
    /// The guest cannot go on.
    Died(alloc::boxed::Box<Death>),
}

/// A guest's end that is the guest's fault or a limit of the hypervisor, with what a report needs.
#[derive(Debug)]
pub struct Death {
    /// What kind of end this is.
    pub cause: Cause,
    /// What happened, for people.
    pub what: String,
    /// The registers at that moment.
    pub state: ArchState,
}

/// Kinds of [`Death`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// An exception during the delivery of a double fault.
    TripleFault,
    /// An exit that this hypervisor does not know.
    UnknownExit,
    /// The processor refused the guest's state.
    InvalidState,
    /// An instruction that cannot be emulated.
    EmulationFailure,
    /// The host has no memory for what the guest needs.
    OutOfMemory,
    /// HLT with interrupts disabled and no way to be woken.
    HaltedForever,
    /// The shadow tables are not what the guest's tables say: a mistake of this hypervisor.
    ShadowDisagreement,
}

impl Cause {
    /// The word for it in telemetry records.
    pub const fn reason(self) -> EndReason {
        match self {
            Cause::TripleFault => EndReason::TripleFault,
            Cause::UnknownExit => EndReason::UnknownExit,
            Cause::InvalidState => EndReason::InvalidState,
            Cause::EmulationFailure => EndReason::EmulationFailure,
            Cause::OutOfMemory => EndReason::OutOfMemory,
            Cause::HaltedForever => EndReason::HaltedForever,
            Cause::ShadowDisagreement => EndReason::ShadowDisagreement,
        }
    }
}
