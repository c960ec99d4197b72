//! Access and idle times of a region: what the stack of regions is kept for (thesis 2.3.2, figure 21).
//!
//! The distance of a region in the LRU stack is measured in time: it is the sum of the access times of all that stand above it,
//! which is the time since the region was left. So the moment of leaving says all that the order of the stack would, and a touch
//! takes constant time.

/// Of a region, in the latest phase that has seen it. 16 bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// When it was left, in nanoseconds of the phase.
    left_ns: u32,
    /// Sum of its access times.
    access_ns: u32,
    /// Sum of its idle times.
    idle_ns: u32,
    /// Number of the phase in which it was left; 0: none.
    phase: u16,
    /// Visits that add up to the access time, and pauses between two visits.
    visits: u8,
    pauses: u8,
}

const _: () = assert!(size_of::<Seen>() == 16);

impl Seen {
    /// How long it has been idle at this time of a phase; `None`: it has not been left in this phase.
    pub fn idle(&self, phase: u16, at_ns: u32) -> Option<u32> {
        (self.phase == phase).then(|| at_ns.saturating_sub(self.left_ns))
    }

    /// It is entered again, after so long.
    pub fn enter(&mut self, idle_ns: u32) {
        if self.pauses != u8::MAX {
            self.idle_ns = self.idle_ns.saturating_add(idle_ns);
            self.pauses += 1;
        }
    }

    /// It is left. `access_ns`: how long it was used, if the whole visit was seen.
    pub fn leave(&mut self, phase: u16, at_ns: u32, access_ns: Option<u32>) {
        if self.phase != phase {
            *self = Seen { phase, ..Seen::default() };
        }
        self.left_ns = at_ns;
        if let Some(access_ns) = access_ns.filter(|_| self.visits != u8::MAX) {
            self.access_ns = self.access_ns.saturating_add(access_ns);
            self.visits += 1;
        }
    }

    /// Mean access time, if a whole visit was seen, and mean idle time, if two visits were.
    pub fn means(&self) -> Option<(u32, Option<u32>)> {
        let access = self.access_ns.checked_div(self.visits.into())?;
        Some((access, self.idle_ns.checked_div(self.pauses.into())))
    }
}
