//! When a VCPU's phase is due.

/// Once in a period of a VCPU's own virtual time in an address space. VCPUs begin at different moments of it, so that few of them
/// come at the same time; [`Regioning`](super::Regioning) turns the second one away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    next_ns: u64,
    period_ns: u64,
}

impl Turn {
    /// The turn of VCPU `vcpu` of `count` in an address space where it has run until `now_ns`. The first one comes after a whole period
    /// and the VCPU's part of another, so that what ends earlier has none.
    pub fn new(vcpu: u16, count: u16, now_ns: u64, period_ns: u64) -> Turn {
        let period_ns = period_ns.max(1);
        let part = u128::from(period_ns) * u128::from(vcpu) / u128::from(count.max(vcpu.saturating_add(1)));
        Turn { next_ns: now_ns.saturating_add(period_ns).saturating_add(part as u64), period_ns }
    }

    /// Time from one to the next, in nanoseconds.
    pub const fn period_ns(&self) -> u64 {
        self.period_ns
    }

    /// When it comes.
    pub const fn next_ns(&self) -> u64 {
        self.next_ns
    }

    /// Whether it has come. If so, the next one is due at the same moment of the next period; turns that were missed are left out.
    pub fn take(&mut self, now_ns: u64) -> bool {
        let is_due = now_ns >= self.next_ns;
        if is_due {
            let missed = (now_ns - self.next_ns) / self.period_ns;
            self.next_ns = self.next_ns.saturating_add(self.period_ns.saturating_mul(missed + 1));
        }
        is_due
    }

    /// The phase could not begin, because another VCPU was in one, or because the guest's kernel ran on unknown tables: it is due
    /// again after so much time, and from then on once in a period.
    pub fn postpone(&mut self, now_ns: u64, by_ns: u64) {
        self.next_ns = self.next_ns.min(now_ns.saturating_add(by_ns));
    }
}
