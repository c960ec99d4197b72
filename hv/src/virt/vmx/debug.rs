//! Debug exceptions. They exit before the debug registers say what they are about, and INT1 before it has executed (Intel SDM 3,
//! 17.2.3, 17.2.4, 27.1 and table 27-1); so the code that delivers them updates the registers first.

use super::Vmx;
use super::cache::Field;
use super::decode::event;
use super::entry::SHADOW;
use crate::arch::state::VcpuState;

/// Of DR6 and of the qualification: breakpoints that were met. Each exception sets them again.
const BREAKPOINTS: u64 = 0xf;
/// A debug register was used although [`GENERAL_DETECT`] was set, and a single step: only software clears these.
const STICKY: u64 = 1 << 13 | 1 << 14;
/// A bus lock, and a transaction: what the qualification says by a 1, DR6 says by a 0.
const INVERTED: u64 = 1 << 11 | 1 << 16;
/// Of DR7: uses of debug registers raise an exception.
const GENERAL_DETECT: u64 = 1 << 13;

impl Vmx {
    /// Does with the debug registers, or with the INT1, what the delivery would have done.
    #[cold]
    pub(super) fn note_debug_exception(&mut self) {
        if self.interruption & event::TYPE == event::PRIVILEGED_SOFTWARE {
            let next = self.after_exit();
            self.set(Field::Rip, next);
            return;
        }
        let causes = self.qualification();
        let dr6 = self.dr6() & !BREAKPOINTS | INVERTED;
        self.set_dr6((dr6 | causes & (BREAKPOINTS | STICKY)) ^ causes & INVERTED);
        self.set_dr7(self.dr7() & !GENERAL_DETECT);
    }

    /// An exception is delivered: the interrupt shadow is over, and so is a debug exception that waited for its end. If the shadow
    /// stayed, entries would demand that a single step waits if, and only if, TF is set (SDM 3, 26.3.1.5); what waits is saved by some
    /// exits only (27.3.4).
    pub(super) fn end_shadow(&self) {
        let state = self.cache.get(Field::Interruptibility);
        if state & SHADOW != 0 {
            self.set(Field::Interruptibility, state & !SHADOW);
            self.set(Field::PendingDebug, 0);
        }
    }
}
