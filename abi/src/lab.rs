//! The lab machine's counters as they lie in shared memory: one [`Header`], then one [`Record`] for each processor.
//!
//! The plugin writes them, and its own counters are this memory; a hypervisor on the modelled machine, or a program beside
//! it, reads them. All numbers are little-endian `u64`, written with plain stores by the thread of the processor that they
//! belong to: a reader sees each of them whole, but not all of one moment.
//!
//! `instructions` and `cycles` are brought up to date at every VMRUN, #VMEXIT, TLB miss and at each access of the
//! modelled machine to [`Record::doorbell`], which is how a hypervisor asks for current values. All others are always exact.
//!
//! A reader checks [`Header::magic`] and [`Header::version`], and takes the place of a record from
//! [`Header::record_offset`] and [`Header::record_bytes`]: later versions may append fields, never move them.

constants! {
    /// "PALLABS" and a zero byte, as a little-endian number.
    MAGIC: u64 = u64::from_le_bytes(*b"PALLABS\0");
    /// Of this layout. It changes when a field changes its meaning or place.
    VERSION: u32 = 2;
    /// Bytes of the header, and of each record: one page, so that a page of the modelled machine belongs to one processor.
    PAGE: usize = 4096;
    /// Processors that one machine has at most.
    PCPUS: usize = 64;
    /// Displacement of the no-op that begins the region in RAX: see [`MARKS`].
    MARK_BEGIN: u32 = 0x1ab0_0b61;
    /// Displacement of the no-op that ends it.
    MARK_END: u32 = 0x1ab0_0e4d;
    /// Displacement of the no-op after which everything is modelled, where only instructions were counted before.
    MARK_MODEL: u32 = 0x1ab0_0a11;
    /// Regions have the numbers below this.
    REGIONS: usize = 64;
}

/// The bytes before the displacement of a mark: NOP with an operand in memory at RAX plus 32 bits, which no compiler chooses for
/// padding with these displacements. A program marks with it what it wants to know the cost of: the report has the counters
/// of each region.
pub const MARKS: [u8; 4] = [0x0f, 0x1f, 0x84, 0x00];

/// What begins the shared memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: u64,
    /// [`VERSION`].
    pub version: u32,
    /// Processors that have a record.
    pub pcpus: u32,
    /// Bytes from here to the first record.
    pub record_offset: u64,
    /// Bytes from one record to the next.
    pub record_bytes: u64,
    /// Modelled cycles in a second, in kHz.
    pub khz: u64,
    /// Not 0: until now only instructions are counted, and world switches. Cycles are as many as instructions then, and
    /// all else is 0 because it is not modelled, which is not the same as that it did not happen. It becomes 0 when everything is modelled,
    /// and stays so.
    pub counts_only: u64,
}

/// Whose counters they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum Side {
    /// The hypervisor, or everything on a machine without one.
    Host = 0,
    /// A guest on nested tables: two-dimensional walks.
    Nested = 1,
    /// A guest on one dimension: shadow tables.
    Shadow = 2,
}

impl Side {
    /// All, in the order of [`Record::sides`].
    pub const ALL: [Side; 3] = [Side::Host, Side::Nested, Side::Shadow];

    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Side::Host => "host",
            Side::Nested => "guest_nested",
            Side::Shadow => "guest_shadow",
        }
    }
}

/// One processor.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Record {
    /// By [`Side`].
    pub sides: [Counters; 3],
    /// Any access of the modelled machine to this page brings the record up to date; this word has no other use. A store
    /// to it says that the run ends: the report has what the storing processor had counted until then.
    pub doorbell: u64,
    /// The part of the host's counters that stood in for what the proposed processor of [`crate::agile`] does by itself: from each
    /// #VMEXIT to the VMRUN that says so, both included. It is known at that VMRUN. What remains of the host's counters
    /// without it is what that processor would have executed.
    pub stand_ins: Counters,
    /// Walks of the proposed processor.
    pub agile: AgileCounters,
}

/// By how much processors that execute may be apart, in modelled cycles: a tenth of a millisecond or less. With a smaller window the
/// emulator's threads would wait longer than they work, because waking one takes some 50 µs.
pub const PACE_WINDOW: u64 = 200_000;

/// Where a walk of agile paging leaves the shadow tables for the guest's: the number of the guest's first table that is walked
/// nested, by level; 0: none, and [`NESTED_FROM_CR3`]: all, and CR3 has to be translated, too.
pub const SWITCHES: usize = 6;
/// See [`SWITCHES`].
pub const NESTED_FROM_CR3: usize = 5;
/// References of a walk to pages of 4 KiB in both dimensions, without walk caches, by where it switches.
pub const SWITCH_REFS: [u64; SWITCHES] = [4, 8, 12, 16, 20, 24];

/// What is counted of walks with agile paging, by where they switch ([`SWITCHES`]). The counters of [`Side::Shadow`] have
/// these walks, too.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AgileCounters {
    /// Walks that found a page.
    pub walks: [u64; SWITCHES],
    /// Their references to page tables.
    pub refs: [u64; SWITCHES],
    /// The references that they would have made without walk caches and nested TLBs.
    pub refs_uncached: [u64; SWITCHES],
    /// VMRUNs that ended a stand-in.
    pub stand_ins: u64,
    /// Walks that found another page than the hypervisor's stand-in had, because the guest had changed its tables and not
    /// flushed yet: a TLB may keep the old one.
    pub checks_stale: u64,
}

impl AgileCounters {
    /// All counters in their order, for what is done to each.
    fn words(&mut self) -> impl Iterator<Item = &mut u64> {
        let AgileCounters { walks, refs, refs_uncached, stand_ins, checks_stale } = self;
        walks.iter_mut().chain(refs).chain(refs_uncached).chain([stand_ins, checks_stale])
    }

    /// What was counted since `before`, field by field.
    pub fn since(mut self, mut before: AgileCounters) -> AgileCounters {
        self.words().zip(before.words()).for_each(|(now, then)| *now = now.wrapping_sub(*then));
        self
    }

    /// Adds another set, field by field.
    pub fn add(&mut self, mut other: AgileCounters) {
        self.words().zip(other.words()).for_each(|(sum, more)| *sum = sum.wrapping_add(*more));
    }
}

/// Declares the counters once: fields, names, and places.
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// What is counted. Every counter only grows.
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// The names, in the order of the fields.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name)),*];

            /// The values, in the order of the names.
            pub fn values(&self) -> [u64; Self::NAMES.len()] {
                [$(self.$name),*]
            }

            /// What was counted since `before`, field by field.
            pub fn since(&self, before: &Counters) -> Counters {
                Counters { $($name: self.$name.wrapping_sub(before.$name)),* }
            }

            /// Adds another set, field by field.
            pub fn add(&mut self, other: &Counters) {
                $(self.$name = self.$name.wrapping_add(other.$name);)*
            }
        }
    };
}

counters! {
    /// Instructions executed.
    instructions,
    /// `instructions` and `stall_cycles` together.
    cycles,
    /// Cycles that the model adds for misses, walks and costs.
    stall_cycles,
    /// Loads and stores; those that cross a line or page count twice.
    accesses,
    /// Of these, the second halves of accesses that cross a line of the cache.
    line_crossings,
    /// Of these, the second halves of accesses that cross a page.
    page_crossings,
    /// Lookups that missed the first level of data TLBs.
    dtlb_l1_misses,
    /// Lookups that missed all data TLBs: walks for data.
    dtlb_misses,
    /// Lookups that missed the first level of code TLBs.
    itlb_l1_misses,
    /// Lookups that missed all code TLBs: walks for code.
    itlb_misses,
    /// References to page tables that walks made.
    walk_refs,
    /// References that the same walks would have made without walk caches and nested TLBs.
    walk_refs_uncached,
    /// Cycles of walks.
    walk_cycles,
    /// Walks that met an entry that is not present; the emulator's tables had changed since.
    walk_faults,
    /// Entries whose accessed bit a walk set.
    accessed_writes,
    /// Entries whose dirty bit a walk set.
    dirty_writes,
    /// Walks by size of the guest's page, then of the nested one (the same for one dimension): 4 KiB, 2 MiB, 1 GiB.
    walks_4k_4k,
    /// See above.
    walks_4k_2m,
    /// See above.
    walks_4k_1g,
    /// See above.
    walks_2m_4k,
    /// See above.
    walks_2m_2m,
    /// See above.
    walks_2m_1g,
    /// See above.
    walks_1g_4k,
    /// See above.
    walks_1g_2m,
    /// See above.
    walks_1g_1g,
    /// Misses of the first data cache.
    l1d_misses,
    /// Misses of the first code cache.
    l1i_misses,
    /// Misses of the second level, walks' references included, prefetches not.
    l2_misses,
    /// Misses of the last level, walks' references included, prefetches not.
    llc_misses,
    /// Accesses of local memory.
    memory_local,
    /// Accesses of another node's memory.
    memory_remote,
    /// Accesses of the slow tier.
    memory_slow,
    /// Lines that the prefetcher brought in.
    prefetches,
    /// Accesses of device registers.
    device_accesses,
    /// VMRUN instructions.
    vmruns,
    /// #VMEXITs.
    vmexits,
    /// Writes of CR3 that took effect.
    cr3_writes,
    /// INVLPG and INVLPGA instructions that took effect.
    invlpgs,
    /// Flushes of an address space or more.
    flushes,
    /// Interrupt commands written to a local APIC.
    ipis,
    /// Checks whose translation equalled the emulator's.
    checks_equal,
    /// Checks whose translation did not equal the emulator's: mistakes of the model.
    checks_differ,
    /// Checks that the emulator could not answer.
    checks_unanswered,
    /// Translations that the model could not make: unknown kinds of tables.
    unmodelled,
    /// Checks that did not equal the emulator's on a machine with several processors, and need not: the emulator or the
    /// model still has what another processor has just changed.
    checks_raced,
    /// Hits of the last level, walks' references included, prefetches not.
    llc_hits,
}

impl Counters {
    /// Counts a walk by the sizes of its pages, as the logarithms 12, 21 or 30.
    pub fn count_walk(&mut self, guest: u32, nested: u32) {
        let class = |shift: u32| match shift {
            ..21 => 0,
            21..30 => 1,
            _ => 2,
        };
        let counter = match (class(guest), class(nested)) {
            (0, 0) => &mut self.walks_4k_4k,
            (0, 1) => &mut self.walks_4k_2m,
            (0, _) => &mut self.walks_4k_1g,
            (1, 0) => &mut self.walks_2m_4k,
            (1, 1) => &mut self.walks_2m_2m,
            (1, _) => &mut self.walks_2m_1g,
            (_, 0) => &mut self.walks_1g_4k,
            (_, 1) => &mut self.walks_1g_2m,
            _ => &mut self.walks_1g_1g,
        };
        *counter += 1;
    }
}

const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(
        size_of::<Header>() == 48 && size_of::<Header>() <= PAGE && offset_of!(Header, counts_only) == 40
    );
    assert!(size_of::<Record>() <= PAGE && offset_of!(Record, doorbell) == size_of::<Counters>() * 3);
    assert!(size_of::<Counters>() == Counters::NAMES.len() * 8 && offset_of!(Counters, unmodelled) == 43 * 8);
    assert!(offset_of!(Record, stand_ins) == offset_of!(Record, doorbell) + 8);
    assert!(offset_of!(Record, agile) == offset_of!(Record, stand_ins) + size_of::<Counters>());
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_values_go_together() {
        let counters = Counters { walk_refs: 7, unmodelled: 9, ..Counters::default() };
        let named: [(&str, u64); 2] = [("walk_refs", 7), ("unmodelled", 9)];
        for (name, value) in named {
            let at = Counters::NAMES.iter().position(|n| *n == name).unwrap();
            assert_eq!(counters.values()[at], value);
        }
        let mut sum = counters;
        sum.add(&counters);
        assert_eq!((sum.walk_refs, sum.unmodelled, sum.cycles), (14, 18, 0));
        assert_eq!(sum.since(&counters), counters);
    }

    #[test]
    fn counters_of_agile_paging_are_added_field_by_field() {
        let one = AgileCounters { walks: [1, 2, 3, 4, 5, 6], stand_ins: 7, ..AgileCounters::default() };
        let mut sum = AgileCounters { refs: [1; SWITCHES], checks_stale: 2, ..one };
        sum.add(one);
        assert_eq!((sum.walks, sum.stand_ins, sum.refs), ([2, 4, 6, 8, 10, 12], 14, [1; SWITCHES]));
        assert_eq!(sum.since(one), AgileCounters { refs: [1; SWITCHES], checks_stale: 2, ..one });
    }

    #[test]
    fn walks_are_counted_by_both_sizes() {
        let mut counters = Counters::default();
        counters.count_walk(12, 21);
        counters.count_walk(22, 12);
        counters.count_walk(30, 30);
        assert_eq!((counters.walks_4k_2m, counters.walks_2m_4k, counters.walks_1g_1g), (1, 1, 1));
    }
}
