//! Hardware task switches, as the processor reports them (Intel SDM 3, 7.3; AMD APM 2, 12.3).

/// What asks for a task switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskSource {
    /// A far CALL, to a TSS or through a task gate.
    Call,
    /// A far JMP, likewise.
    Jump,
    /// An IRET with EFLAGS.NT.
    Iret,
    /// The delivery of an event through a task gate in the IDT.
    Gate(GateEvent),
}

/// An event that is delivered through a task gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateEvent {
    /// Raised by INT n, INT1, INT3 or INTO: the task goes on after that instruction.
    pub software: bool,
    /// A fault: the saved flags have RF.
    pub fault: bool,
    /// The error code for the new task's stack.
    pub error: Option<u32>,
}

/// A task switch that the processor leaves to software. It has checked what leads to the TSS descriptor (gates and
/// privileges), and nothing of the descriptor is trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskSwitch {
    /// The selector of the new task's TSS. Of an IRET it is of no account: that of the back link counts.
    pub selector: u16,
    /// What asks for it.
    pub source: TaskSource,
}

impl TaskSwitch {
    /// Whether an instruction asks for it, after which the old task goes on.
    pub const fn is_by_instruction(&self) -> bool {
        !matches!(self.source, TaskSource::Gate(GateEvent { software: false, .. }))
    }

    /// Whether the new task returns to the old one by IRET.
    pub const fn nests(&self) -> bool {
        matches!(self.source, TaskSource::Call | TaskSource::Gate(_))
    }

    /// The EXT bit of error codes: an event from outside of the program is delivered.
    pub const fn ext(&self) -> u32 {
        !self.is_by_instruction() as u32
    }
}
