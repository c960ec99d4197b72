//! Excursions to user mode: short pieces of code that end with a trap.

use super::trap::{self, Trap};

unsafe extern "C" {
    static kit_user_stack_top: u8;
    fn kit_user(entry: u64, argument: u64, stack: u64, value: u64) -> u64;
}

/// The vector by which user code returns on its own account: `int 0x80`.
pub const DONE: u8 = 0x80;

/// Runs the code at `entry`, which is in the kit's own text, at privilege level 3 with `argument` in RDI, until its first
/// trap, and returns that.
pub fn run(entry: unsafe extern "C" fn(), argument: u64) -> Trap {
    run_at(entry, 0, argument, 0)
}

/// The same with code and stack seen through another mapping of low memory at `base`, and `value` in RCX.
pub fn run_at(entry: unsafe extern "C" fn(), base: u64, argument: u64, value: u64) -> Trap {
    trap::begin_catch();
    let stack = base + &raw const kit_user_stack_top as u64;
    // SAFETY: user mode has a stack of its own, and every trap comes back.
    unsafe { kit_user(base + entry as *const () as u64, argument, stack, value) };
    trap::caught()
}
