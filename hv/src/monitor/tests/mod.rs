//! The line editor on a model of a terminal; conversations with the monitor of a VM without hardware.

mod line;
mod session;
