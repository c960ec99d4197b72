//! How a run ends: the exit status of `pal`, and the error type that asks for status 2.

/// Exit statuses that do not come from the guest itself.
pub mod exit {
    /// `pal` itself failed: the hypervisor does not build, the emulator is missing or does not start.
    pub const TOOL: u8 = 1;
    /// Wrong options or unusable input files.
    pub const USAGE: u8 = 2;
    /// The guest died, or ended before the command of `--exec` did.
    pub const GUEST_DIED: u8 = 3;
    /// The hypervisor panicked or vanished.
    pub const HYPERVISOR_DIED: u8 = 4;
    /// The machine has neither AMD-V nor VT-x, or the firmware locked it.
    pub const UNSUITABLE: u8 = 5;
    /// `--timeout` passed.
    pub const TIMEOUT: u8 = 124;
    /// The reader of standard output went away (128 + SIGPIPE).
    pub const STDOUT_CLOSED: u8 = 141;
    /// A signal ended `pal`: this plus the signal's number.
    pub const SIGNAL: u8 = 128;
}

/// An error in what the person typed: exit status 2. The text names the option or file, the cause and the next step.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(String);

impl Usage {
    /// An error with this text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

/// The exit status that belongs to an error.
pub fn of(error: &anyhow::Error) -> u8 {
    if error.is::<Usage>() { exit::USAGE } else { exit::TOOL }
}
