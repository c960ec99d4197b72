//! The steps of a VM's restart.
//!
//! Its first VCPU performs them, in its time slices ([`super::lifecycle`]): so the scheduler charges the VM for them, and other
//! VCPUs run between two steps.

use crate::vcpu::outcome::Stop;

/// A guest that resets itself restarts at the earliest this many milliseconds after its last start: a reset loop must not flood the
/// logs.
const BRAKE_MS: u64 = 100;

/// One step.
#[derive(Debug)]
pub enum Step {
    /// Report why it has stopped.
    Report(Stop),
    /// Nothing, until this host TSC.
    Wait(u64),
    /// Clear this piece of its memory, or load it if there are no more ([`scrub`](crate::guest::build::scrub)).
    Clear(u64),
}

/// The progress of a restart.
#[derive(Debug)]
pub struct Restart {
    /// Why it has stopped, until that is reported.
    stop: Option<Stop>,
    /// Host TSC before which nothing is cleared.
    due: u64,
    /// The piece to be cleared next.
    piece: u64,
}

impl Restart {
    /// The restart of a VM that was started at the host TSC `began`. The operator's restart does not wait.
    pub fn new(stop: Stop, began: u64, tsc_khz: u64) -> Restart {
        let brake = if matches!(stop, Stop::Restart) { 0 } else { BRAKE_MS * tsc_khz };
        Restart { stop: Some(stop), due: began.saturating_add(brake), piece: 0 }
    }

    /// The next step at this host TSC, which counts as done.
    pub fn next(&mut self, now: u64) -> Step {
        if let Some(stop) = self.stop.take() {
            return Step::Report(stop);
        }
        if now < self.due {
            return Step::Wait(self.due);
        }
        let piece = self.piece;
        self.piece += 1;
        Step::Clear(piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KHZ: u64 = 1_000_000;
    const BRAKE: u64 = BRAKE_MS * KHZ;

    #[test]
    fn a_guest_that_ends_itself_waits_and_then_is_cleared_piece_by_piece() {
        let mut restart = Restart::new(Stop::Reset, 7, KHZ);
        assert!(matches!(restart.next(8), Step::Report(Stop::Reset)));
        for now in [8, BRAKE + 6] {
            assert!(matches!(restart.next(now), Step::Wait(due) if due == BRAKE + 7));
        }
        for piece in 0..3 {
            assert!(matches!(restart.next(BRAKE + 7), Step::Clear(next) if next == piece));
        }
    }

    #[test]
    fn one_that_has_run_for_long_does_not_wait() {
        let mut restart = Restart::new(Stop::Reset, 7, KHZ);
        let _the_report = restart.next(BRAKE + 7);
        assert!(matches!(restart.next(BRAKE + 7), Step::Clear(0)));
    }

    #[test]
    fn a_person_does_not_wait() {
        let mut restart = Restart::new(Stop::Restart, 7, KHZ);
        assert!(matches!(restart.next(7), Step::Report(Stop::Restart)));
        assert!(matches!(restart.next(7), Step::Clear(0)));
    }
}
