//! Frames that every cache may hold (thesis 2.3.3, 2.3.4).

use super::Touch;
use crate::arch::addr::Gva;

/// Bytes below the stack pointer that still are the stack: the red zone, and a page that is about to be pushed to.
const BELOW: u64 = 0x1000;
/// Bytes above it: frames of the callers.
const ABOVE: u64 = 0x1_0000;

/// Why a frame is made global.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Global {
    /// An instruction was fetched from it.
    Code,
    /// It is near the stack pointer.
    Stack,
    /// The guest's kernel uses it, and not at an address of a program: so it is the kernel's by rule.
    Kernel,
}

/// Tells code, stack and the kernel's by the touch of a frame of which nothing is known; `None`: it is a program's data.
pub fn classify(touch: &Touch) -> Option<Global> {
    let is_code = |address: Gva| address.frame() == touch.rip.frame();
    if touch.is_fetch || touch.address.is_some_and(is_code) {
        return Some(Global::Code);
    }
    if touch.by_kernel && !touch.is_user_address {
        return Some(Global::Kernel);
    }
    // The distance above the lowest byte of the stack, modulo 2^64.
    let distance = touch.address?.0.wrapping_sub(touch.rsp.0.wrapping_sub(BELOW));
    (distance < BELOW + ABOVE).then_some(Global::Stack)
}
