//! When the faults that follow a change to shadow tables are over.
//!
//! Faults are counted in windows of 1 ms, from the first one on: a guest that sleeps or is paused has not begun. The
//! tables count as refilled at the end of the first window that has not fewer faults than the one before it, or at most [`QUIET`].

/// A window with at most this many faults is quiet.
const QUIET: u32 = 4;

/// Faults since a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RefillWindow {
    since: u64,
    window: u64,
    window_end: u64,
    before: u32,
    now: u32,
    total: u64,
}

/// How long it took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refilled {
    /// Host TSC ticks since the first fault after the change.
    pub ticks: u64,
    /// Faults until then.
    pub faults: u64,
}

impl RefillWindow {
    /// After a change.
    pub(super) fn new(tsc_khz: u64) -> RefillWindow {
        RefillWindow { since: 0, window: tsc_khz.max(1), window_end: 0, before: u32::MAX, now: 0, total: 0 }
    }

    /// A fault at `tsc`; the answer if it is the first after they were refilled.
    pub(super) fn fault(&mut self, tsc: u64) -> Option<Refilled> {
        if self.total == 0 {
            self.since = tsc;
            self.window_end = tsc.saturating_add(self.window);
        }
        while tsc >= self.window_end {
            if self.now <= QUIET || self.now >= self.before {
                return Some(Refilled { ticks: self.window_end - self.since, faults: self.total });
            }
            (self.before, self.now) = (self.now, 0);
            self.window_end = self.window_end.saturating_add(self.window);
        }
        self.now += 1;
        self.total += 1;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(times: &[u64]) -> Option<Refilled> {
        let mut refill_window = RefillWindow::new(100);
        times.iter().find_map(|&at| refill_window.fault(at))
    }

    #[test]
    fn falling_rates_have_not_refilled() {
        let mut times: Vec<u64> = (0..30).map(|n| 1000 + n).collect();
        times.extend((0..20).map(|n| 1100 + n));
        assert_eq!(feed(&times), None);
        times.extend((0..20).map(|n| 1200 + n));
        times.push(1300);
        assert_eq!(feed(&times), Some(Refilled { ticks: 300, faults: 70 }));
    }

    #[test]
    fn silence_has_refilled() {
        let mut times: Vec<u64> = (0..30).map(|n| 1000 + n).collect();
        times.push(9000);
        assert_eq!(feed(&times), Some(Refilled { ticks: 200, faults: 30 }));
        assert_eq!(feed(&[1000, 1100]), Some(Refilled { ticks: 100, faults: 1 }));
        assert_eq!(feed(&[0, 99]), None);
    }
}
