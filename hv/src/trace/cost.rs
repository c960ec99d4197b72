//! The cost of a repeated operation.

/// How often it happened, and how long it took, in ticks of the host's TSC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// How often it happened.
    pub count: u64,
    /// Ticks for all of them.
    pub ticks: u64,
    /// Ticks for the longest.
    pub longest: u64,
}

impl Cost {
    /// Counts one more, which took `ticks`.
    pub fn add(&mut self, ticks: u64) {
        self.count += 1;
        self.ticks = self.ticks.wrapping_add(ticks);
        self.longest = self.longest.max(ticks);
    }
}

/// What scheduling a VCPU has cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turns {
    /// The scheduler's decisions for it.
    pub decisions: Cost,
    /// From there to its first entry, where its PCPU ran another VCPU before.
    pub switches: Cost,
}
