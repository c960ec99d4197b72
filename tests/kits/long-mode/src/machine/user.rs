//! Excursions to user mode: short pieces of code that end with a trap.

use super::trap::{self, Trap};

unsafe extern "C" {
    fn kit_user(entry: u64, argument: u64) -> u64;
}

/// The vector by which user code returns on its own account: `int 0x80`.
pub const DONE: u8 = 0x80;

/// Runs the code at `entry`, which is in the kit's own text, at privilege level 3 with `argument` in RDI, until its first
/// trap, and returns that.
pub fn run(entry: unsafe extern "C" fn(), argument: u64) -> Trap {
    trap::begin_catch();
    // SAFETY: user mode has a stack of its own, and every trap comes back.
    unsafe { kit_user(entry as *const () as u64, argument) };
    trap::caught()
}
