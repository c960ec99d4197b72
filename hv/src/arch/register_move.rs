//! A decoded MOV to or from a control or debug register.

use super::state::Gpr;

/// A MOV to or from a control or debug register, with its operand if the processor reported it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegMove {
    /// Number of the control or debug register.
    pub index: u8,
    /// MOV to the special register.
    pub write: bool,
    /// The general-purpose operand; `None` where the instruction must be decoded (no decode assists, CLTS, LMSW).
    pub gpr: Option<Gpr>,
}
