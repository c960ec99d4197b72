//! What performance counters count, in words that no processor's manual owns: a closed list of events, and values for some of
//! them.
//!
//! `hw::pmu` reads them (but page faults, which the guest counts), `vcpu` and `trace` add them up, policies compare them. A processor that cannot count an event has no
//! value for it: absent is not zero, and stays absent in every sum and difference.

/// Declares the events once: variants, names, places.
macro_rules! events {
    ($($(#[$doc:meta])* $event:ident $name:literal,)*) => {
        /// Something that is counted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum CounterEvent { $($(#[$doc])* $event,)* }

        impl CounterEvent {
            /// All of them, in the order of their numbers.
            pub const ALL: &'static [CounterEvent] = &[$(CounterEvent::$event,)*];

            /// The key in records and JSON.
            pub const fn name(self) -> &'static str {
                match self { $(CounterEvent::$event => $name,)* }
            }
        }
    };
}

events! {
    /// Instructions retired.
    Instructions "instructions",
    /// Cycles of the processor's clock while it is not halted.
    Cycles "cycles",
    /// Data accesses that missed all TLBs.
    DtlbMisses "dtlb_misses",
    /// Fetches that missed all TLBs.
    ItlbMisses "itlb_misses",
    /// Page walks that came to an end.
    Walks "walks",
    /// References to page tables that walks made.
    WalkRefs "walk_refs",
    /// Cycles in which a walk was going on.
    WalkCycles "walk_cycles",
    /// Misses of the second-level cache.
    L2Misses "l2_misses",
    /// Misses of the last-level cache.
    LlcMisses "llc_misses",
    /// Accesses of this node's memory.
    MemoryLocal "memory_local",
    /// Accesses of another node's memory.
    MemoryRemote "memory_remote",
    /// Accesses of the slow tier of memory.
    MemorySlow "memory_slow",
    /// Page faults of the guest's own, as its kernel counts them (`vm::counter_page`): no processor's counter.
    PageFaults "page_faults",
}

/// How many events there are.
pub const EVENTS: usize = CounterEvent::ALL.len();

/// Values of some events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// A bit for each event that has a value.
    present: u16,
    values: [u64; EVENTS],
}

impl Counts {
    /// No event has a value.
    pub const ABSENT: Counts = Counts { present: 0, values: [0; EVENTS] };
    /// All events at zero: what sums begin with.
    pub const ZERO: Counts = Counts { present: (1 << EVENTS) - 1, values: [0; EVENTS] };

    /// The value of an event, if it is counted.
    #[inline]
    pub fn get(&self, event: CounterEvent) -> Option<u64> {
        self.has(event).then(|| self.values[event as usize])
    }

    /// Whether an event is counted.
    #[inline]
    pub const fn has(&self, event: CounterEvent) -> bool {
        self.present >> event as u8 & 1 != 0
    }

    /// Whether any event is counted.
    pub const fn is_absent(&self) -> bool {
        self.present == 0
    }

    /// Gives an event a value.
    pub fn set(&mut self, event: CounterEvent, value: u64) {
        self.present |= 1 << event as u8;
        self.values[event as usize] = value;
    }

    /// Adds to the value of an event, which has 0 if it had none.
    pub fn add_to(&mut self, event: CounterEvent, value: u64) {
        self.present |= 1 << event as u8;
        let sum = &mut self.values[event as usize];
        *sum = sum.wrapping_add(value);
    }

    /// What has been counted since `earlier`: of the events that both have.
    #[must_use]
    pub fn since(&self, earlier: &Counts) -> Counts {
        self.combine(earlier, u64::wrapping_sub)
    }

    /// The sum with another part: of the events that both have.
    #[must_use]
    pub fn plus(&self, other: &Counts) -> Counts {
        self.combine(other, u64::wrapping_add)
    }

    /// The values of the events that `other` has, too.
    #[must_use]
    fn among(&self, other: &Counts) -> Counts {
        self.combine(other, |value, _| value)
    }

    /// Adds what `more` has, and leaves the other events as they are.
    fn accumulate(&mut self, more: &Counts) {
        more.iter().for_each(|(event, value)| self.add_to(event, value));
    }

    fn combine(&self, other: &Counts, op: impl Fn(u64, u64) -> u64) -> Counts {
        let values = core::array::from_fn(|i| op(self.values[i], other.values[i]));
        let mut result = Counts { present: self.present & other.present, values };
        // Whatever is absent has no value at all, so that equal counts are equal.
        for (i, value) in result.values.iter_mut().enumerate() {
            if result.present >> i & 1 == 0 {
                *value = 0;
            }
        }
        result
    }

    /// The events that are counted, with their values, in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (CounterEvent, u64)> + '_ {
        CounterEvent::ALL.iter().filter_map(|&event| Some((event, self.get(event)?)))
    }

    /// A bit for each event that has a value, and all values; 0 for the others.
    pub const fn raw(&self) -> (u16, &[u64; EVENTS]) {
        (self.present, &self.values)
    }
}

/// What the hypervisor has executed on a PCPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// Instructions.
    pub instructions: u64,
    /// Cycles.
    pub cycles: u64,
}

impl Spent {
    /// What has been executed since `earlier`.
    #[must_use]
    pub fn since(self, earlier: Spent) -> Spent {
        let since = |now: u64, earlier| now.saturating_sub(earlier);
        Spent {
            instructions: since(self.instructions, earlier.instructions),
            cycles: since(self.cycles, earlier.cycles),
        }
    }
}

/// The same of an operation that is repeated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpentOn {
    /// How often it was counted.
    pub count: u64,
    /// For all of them.
    pub all: Spent,
}

impl SpentOn {
    /// Counts one more.
    pub fn add(&mut self, spent: Spent) {
        self.count += 1;
        self.all.instructions = self.all.instructions.wrapping_add(spent.instructions);
        self.all.cycles = self.all.cycles.wrapping_add(spent.cycles);
    }

    /// Of one, on average; `None` if none was counted.
    pub fn mean(self) -> Option<Spent> {
        let mean = |all: u64| all.checked_div(self.count);
        Some(Spent { instructions: mean(self.all.instructions)?, cycles: mean(self.all.cycles)? })
    }
}

/// Values of guests and of the hypervisor, apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BothSides {
    /// While a guest executed.
    pub guest: Counts,
    /// While the hypervisor did.
    pub host: Counts,
}

impl BothSides {
    /// Nothing is counted.
    pub const ABSENT: BothSides = BothSides { guest: Counts::ABSENT, host: Counts::ABSENT };
    /// All events at zero.
    pub const ZERO: BothSides = BothSides { guest: Counts::ZERO, host: Counts::ZERO };

    /// See [`Counts::since`].
    #[must_use]
    pub fn since(&self, earlier: &BothSides) -> BothSides {
        BothSides { guest: self.guest.since(&earlier.guest), host: self.host.since(&earlier.host) }
    }

    /// See [`Counts::plus`].
    #[must_use]
    pub fn plus(&self, other: &BothSides) -> BothSides {
        BothSides { guest: self.guest.plus(&other.guest), host: self.host.plus(&other.host) }
    }
}

/// What a VCPU has of the counters of the PCPUs that it ran on: the part of each that was counted during its stays there. So it
/// is saved and restored with the VCPU, without a register being written.
///
/// An event has a value as long as it is counted. One that begins to be counted later (a lab machine's, with its model) has one from
/// then on: the sum of what was counted, whose difference from an earlier one is absent as long as that was.
#[derive(Clone, Copy, Debug)]
pub struct VcpuCounts {
    /// The PCPU's values when the stay, or the part of it that is not summed up yet, began. `None` before the first one.
    begun: Option<BothSides>,
    /// Of all events, also of those that are not counted now.
    sum: BothSides,
    /// What the last part added to it.
    last: BothSides,
}

impl Default for VcpuCounts {
    fn default() -> VcpuCounts {
        VcpuCounts { begun: None, sum: BothSides::ZERO, last: BothSides::ZERO }
    }
}

impl VcpuCounts {
    /// A stay on a PCPU with these values begins.
    pub fn begin(&mut self, now: &BothSides) {
        self.begun = Some(*now);
    }

    /// Adds what was counted since the stay began, or since the last call.
    pub fn update(&mut self, now: &BothSides) {
        if let Some(begun) = self.begun.replace(*now) {
            self.add(&now.since(&begun));
        }
    }

    /// The PCPU's values when the part of the stay began that is not summed up yet: for a stay whose end is counted after the VCPU has
    /// left ([`VcpuCounts::add`]).
    pub fn begun(&self) -> Option<&BothSides> {
        self.begun.as_ref()
    }

    /// Adds a part of a stay that was counted after it had ended.
    pub fn add(&mut self, part: &BothSides) {
        self.last = *part;
        self.sum.guest.accumulate(&part.guest);
        self.sum.host.accumulate(&part.host);
    }

    /// The sum of all stays, of what is counted; nothing before the first one.
    pub fn total(&self) -> BothSides {
        let BothSides { guest, host } = self.last;
        let total = BothSides { guest: self.sum.guest.among(&guest), host: self.sum.host.among(&host) };
        if self.begun.is_some() { total } else { BothSides::ABSENT }
    }

    /// The sum of all events, also of those that are not counted now, which go on from it when they are again.
    pub fn sum(&self) -> &BothSides {
        &self.sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(of: &[(CounterEvent, u64)]) -> Counts {
        let mut counts = Counts::ABSENT;
        of.iter().for_each(|&(event, value)| counts.set(event, value));
        counts
    }

    #[test]
    fn what_is_absent_stays_absent() {
        let (a, b) = (CounterEvent::Instructions, CounterEvent::WalkCycles);
        let both = counts(&[(a, 10), (b, 7)]);
        let one = counts(&[(a, 4)]);
        assert_eq!(both.since(&one), counts(&[(a, 6)]));
        assert_eq!(one.plus(&both), counts(&[(a, 14)]));
        assert_eq!(one.get(b), None);
        assert_eq!(both.get(b), Some(7));
        assert!(Counts::ABSENT.plus(&both).is_absent());
        assert_eq!(Counts::ZERO.plus(&both), both);
        assert_eq!(both.iter().collect::<Vec<_>>(), [(a, 10), (b, 7)]);
    }

    #[test]
    fn a_counter_that_goes_round_is_no_jump() {
        let a = CounterEvent::Cycles;
        assert_eq!(counts(&[(a, 5)]).since(&counts(&[(a, u64::MAX - 4)])), counts(&[(a, 10)]));
    }

    #[test]
    fn a_vcpu_has_its_stays_only() {
        let a = CounterEvent::Instructions;
        let at = |guest, host| BothSides { guest: counts(&[(a, guest)]), host: counts(&[(a, host)]) };
        let mut vcpu = VcpuCounts::default();
        assert_eq!(vcpu.total(), BothSides::ABSENT);
        vcpu.begin(&at(100, 10));
        vcpu.update(&at(150, 11));
        vcpu.update(&at(160, 12));
        // Another PCPU, on which others ran before.
        vcpu.begin(&at(7000, 500));
        vcpu.update(&at(7001, 502));
        assert_eq!(vcpu.total(), at(61, 4));
        // It left, and what this stay had counted came later.
        let begun = *vcpu.begun().unwrap();
        vcpu.begin(&at(100, 10));
        vcpu.add(&at(7011, 503).since(&begun));
        vcpu.update(&at(101, 10));
        assert_eq!(vcpu.total(), at(72, 5));
        // One whose counters did not advance, and were given up.
        vcpu.begin(&BothSides::ABSENT);
        vcpu.update(&BothSides::ABSENT);
        assert_eq!(vcpu.total(), BothSides::ABSENT, "part of a sum is none");
        vcpu.begin(&at(200, 10));
        assert_eq!(vcpu.sum().guest.get(a), Some(72));
        vcpu.update(&at(203, 10));
        assert_eq!(vcpu.total(), at(75, 5), "and it goes on from there");
    }

    #[test]
    fn what_begins_to_be_counted_has_a_value_from_then_on() {
        let (a, b) = (CounterEvent::Instructions, CounterEvent::DtlbMisses);
        let at = |of: &[(CounterEvent, u64)]| BothSides { guest: counts(of), host: Counts::ABSENT };
        let mut vcpu = VcpuCounts::default();
        vcpu.begin(&at(&[(a, 100)]));
        vcpu.update(&at(&[(a, 110)]));
        let before = vcpu.total();
        assert_eq!(before, at(&[(a, 10)]));
        // Of the part in which it begins the misses are not known.
        vcpu.update(&at(&[(a, 120), (b, 3)]));
        assert_eq!(vcpu.total(), at(&[(a, 20)]));
        vcpu.update(&at(&[(a, 130), (b, 7)]));
        let first = vcpu.total();
        assert_eq!((first, first.since(&before)), (at(&[(a, 30), (b, 4)]), at(&[(a, 20)])));
        vcpu.update(&at(&[(a, 140), (b, 9)]));
        assert_eq!(vcpu.total().since(&first), at(&[(a, 10), (b, 2)]));
    }
}
