//! Guests that spin (AMD APM 2, 15.14.4).
//!
//! The processor counts PAUSEs and exits when a loop of them has gone on for long. One without that filter exits at each PAUSE:
//! then it does so only while others wait for the PCPU, and the counting is done here.

use super::Svm;
use super::vmcb::{clean, misc1};

/// PAUSEs up to an exit.
pub(super) const FILTER: u16 = 3000;
/// The same number where each PAUSE is an exit, which takes a thousand times as long.
const EXITS: u8 = 16;

impl Svm {
    /// See [`Virt::set_ple`](crate::virt::Virt::set_ple).
    pub(super) fn set_ple_window(&mut self, wanted: bool) {
        self.pauses = 0;
        let word = &mut self.block.vmcb.intercept_misc1;
        // With the filter PAUSE is intercepted all the time: the processor counts, and restarts the count at each VMRUN.
        if self.features.pause_filter || (*word & misc1::PAUSE != 0) == wanted {
            return;
        }
        *word ^= misc1::PAUSE;
        self.dirty(clean::INTERCEPTS);
    }

    /// See [`Virt::ple_expired`](crate::virt::Virt::ple_expired).
    pub(super) fn ple_window_expired(&mut self) -> bool {
        self.pauses = self.pauses.saturating_add(1);
        self.features.pause_filter || self.pauses >= EXITS
    }
}
