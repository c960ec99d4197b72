//! What a VM that starts anew goes through before it runs again, step by step.
//!
//! Its first VCPU takes the steps, in its turns ([`super::life`]): so the scheduler charges the VM for them, and others that wait for
//! the PCPU get it between two of them.

use crate::vcpu::outcome::Stop;

/// A VM starts anew by itself not before so many milliseconds after it has begun: one that ends itself at once, for ever, shall not fill logs.
const BRAKE_MS: u64 = 100;

/// What is to be done.
#[derive(Debug)]
pub enum Step {
    /// Say why it has stopped.
    Report(Stop),
    /// Nothing, until this host TSC.
    Wait(u64),
    /// Clear this piece of its memory, or load it if there are no more ([`scrub`](crate::guest::build::scrub)).
    Clear(u64),
}

/// What is still to be done.
#[derive(Debug)]
pub struct Renewal {
    /// Why it has stopped, until that is reported.
    stop: Option<Stop>,
    /// Host TSC before which nothing is cleared.
    due: u64,
    /// The piece to be cleared next.
    piece: u64,
}

impl Renewal {
    /// A VM has stopped that began at the host TSC `began`. A person's orders are followed at once.
    pub fn new(stop: Stop, began: u64, tsc_khz: u64) -> Renewal {
        let brake = if matches!(stop, Stop::Restart) { 0 } else { BRAKE_MS * tsc_khz };
        Renewal { stop: Some(stop), due: began.saturating_add(brake), piece: 0 }
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
        let mut renewal = Renewal::new(Stop::Reset, 7, KHZ);
        assert!(matches!(renewal.next(8), Step::Report(Stop::Reset)));
        for now in [8, BRAKE + 6] {
            assert!(matches!(renewal.next(now), Step::Wait(due) if due == BRAKE + 7));
        }
        for piece in 0..3 {
            assert!(matches!(renewal.next(BRAKE + 7), Step::Clear(next) if next == piece));
        }
    }

    #[test]
    fn one_that_has_run_for_long_does_not_wait() {
        let mut renewal = Renewal::new(Stop::Reset, 7, KHZ);
        let _the_report = renewal.next(BRAKE + 7);
        assert!(matches!(renewal.next(BRAKE + 7), Step::Clear(0)));
    }

    #[test]
    fn a_person_does_not_wait() {
        let mut renewal = Renewal::new(Stop::Restart, 7, KHZ);
        assert!(matches!(renewal.next(7), Step::Report(Stop::Restart)));
        assert!(matches!(renewal.next(7), Step::Clear(0)));
    }
}
