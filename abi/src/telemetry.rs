//! Telemetry: types of records, their keys, and the words for what happened (docs/telemetry.md says what they mean).
//!
//! Keys are lower-case words joined by `_`; values that are words are joined by `-`. Adding a type, a key or a word is no new
//! version, as readers ignore what they do not know; removing one or changing what it means is.

/// Version of the schema: the `v` of each record.
pub const VERSION: u32 = 2;
/// Bytes of a record at most; a longer line is none.
pub const LONGEST_LINE: usize = 1 << 20;

words! {
    /// The type of a record: its `t`.
    Kind {
        /// A line of the hypervisor's log.
        Log = "log",
        /// The machine.
        Host = "host",
        /// A guest starts.
        Start = "start",
        /// A guest was restarted.
        Reset = "reset",
        /// A guest ended.
        End = "end",
        /// A piece of a guest's console output.
        Console = "console",
        /// A VCPU's statistics.
        Stats = "stats",
        /// A sample, or an event of a trace.
        Records = "records",
        /// The hypervisor found a broken invariant.
        Panic = "panic",
        /// The machine cannot run the hypervisor.
        Unsuitable = "unsuitable",
    }
}

words! {
    /// Why a guest ended: the `reason` of an `end` record.
    EndReason {
        /// ACPI S5.
        PowerOff = "power-off",
        /// There was no guest: the hypervisor has reported on the machine.
        Probe = "probe",
        /// It asked for a reset and is not restarted.
        Reset = "reset",
        /// A person destroyed it in the monitor.
        Destroyed = "destroyed",
        /// It wrote to the test device's exit port.
        TestDevice = "test-device",
        /// SHUTDOWN: an exception during the delivery of a double fault.
        TripleFault = "triple-fault",
        /// An exit that the hypervisor does not know.
        UnknownExit = "unknown-exit",
        /// The processor refused the guest's state.
        InvalidState = "invalid-state",
        /// An instruction that cannot be emulated.
        EmulationFailure = "emulation-failure",
        /// HLT with interrupts disabled, which nothing can end.
        HaltedForever = "halted-forever",
        /// The shadow tables are not what the guest's tables say.
        ShadowDisagreement = "shadow-disagreement",
        /// The host has no memory left for what the guest needs.
        OutOfMemory = "out-of-memory",
        /// Its files cannot be loaded.
        LoadError = "load-error",
        /// The configuration is refused.
        ConfigError = "config-error",
    }
}

words! {
    /// On whose request a guest was restarted: the `by` of a `reset` record.
    ResetBy {
        /// The guest asked for a reset.
        Guest = "guest",
        /// It died and has `restart`.
        Death = "death",
        /// A person at the monitor.
        Monitor = "monitor",
    }
}

words! {
    /// A kind of exit: the `reason` of an element of `exits`.
    ExitKind {
        /// CPUID.
        Cpuid = "cpuid",
        /// HLT.
        Hlt = "hlt",
        /// IN, OUT, INS, OUTS.
        Io = "io",
        /// RDMSR.
        Rdmsr = "rdmsr",
        /// WRMSR.
        Wrmsr = "wrmsr",
        /// A fault on nested tables.
        NestedFault = "nested-fault",
        /// A page fault on shadow tables.
        PageFault = "page-fault",
        /// Any other exception.
        Exception = "exception",
        /// An access of a control register.
        ControlReg = "control-reg",
        /// An access of a debug register.
        DebugReg = "debug-reg",
        /// XSETBV.
        Xsetbv = "xsetbv",
        /// INVLPG and INVPCID.
        Invlpg = "invlpg",
        /// VMMCALL or VMCALL.
        Hypercall = "hypercall",
        /// An interrupt of the host.
        Interrupt = "interrupt",
        /// The guest can take an interrupt or NMI now.
        Window = "window",
        /// A triple fault.
        Shutdown = "shutdown",
        /// PAUSE in a loop.
        Pause = "pause",
        /// All others.
        Other = "other",
    }
}

/// Declares keys, and the list of all of them.
macro_rules! keys {
    ($($name:ident = $key:literal,)*) => {
        /// The keys of records. docs/telemetry.md says in which record each is, and what it means.
        #[allow(missing_docs)]
        pub mod key {
            $(pub const $name: &str = $key;)*

            /// All keys.
            pub const ALL: &[(&str, &str)] = &[$((stringify!($name), $key),)*];
        }
    };
}

#[rustfmt::skip]
keys! {
    // In several records.
    V = "v", T = "t", VM = "vm", VCPU = "vcpu", VCPUS = "vcpus", PCPU = "pcpu", PCPUS = "pcpus",
    REASON = "reason", COUNT = "count", TICKS = "ticks", DETAIL = "detail", VALUE = "value",
    // log, panic, console, reset
    LEVEL = "level", MSG = "msg", TEXT = "text", BY = "by",
    // host
    VERSION = "version", VENDOR = "vendor", MODEL = "model", TSC_HZ = "tsc_hz", MEMORY_MIB = "memory_mib", FEATURES = "features",
    TOPOLOGY = "topology", PACKAGE = "package", LLC = "llc", CORE = "core", THREAD = "thread", NODE = "node",
    // records
    RING = "ring", DROPPED = "dropped", WORDS = "words",
    // stats
    TSC = "tsc", EXITS = "exits", INJECTIONS = "injections", EXTERNAL_INTERRUPT = "external_interrupt", EXCEPTION = "exception",
    NMI = "nmi", VMCS = "vmcs", READS = "reads", WRITES = "writes", YIELDS = "yields", IGNORED_MSRS = "ignored_msrs", MSR = "msr",
    // stats.scheduling
    SCHEDULING = "scheduling", DECISIONS = "decisions", DECISION_TICKS = "decision_ticks", DECISION_LONGEST = "decision_longest",
    SWITCHES = "switches", SWITCH_TICKS = "switch_ticks", SWITCH_LONGEST = "switch_longest",
    // stats.counters; events have the names of `hv/src/arch/counters.rs`
    COUNTERS = "counters", GUEST = "guest",
    // stats.time
    TIME = "time", RAN = "ran", WAITED = "waited", CAPPED = "capped", WAKES = "wakes", BOOSTS = "boosts", STEALS = "steals",
    MOVES_WITHIN_CACHE = "moves_within_cache", MOVES_ACROSS_CACHES = "moves_across_caches", UNBOUND = "unbound", DRAWN_BACK = "drawn_back",
    // stats.pcpus
    BUSY = "busy", IDLE = "idle", KICKS = "kicks",
    // stats.host
    HOST = "host", FREE_FRAMES = "free_frames", HEAP_BYTES = "heap_bytes",
    // stats.paging
    PAGING = "paging", MODE = "mode", NESTED_FILLED = "nested_filled", NESTED_SPURIOUS = "nested_spurious", EMULATED = "emulated",
    NESTED_TABLE_FRAMES = "nested_table_frames", P2M_TABLE_FRAMES = "p2m_table_frames",
    // stats.paging.switches
    TO_NESTED = "to_nested", TO_NESTED_TICKS = "to_nested_ticks", TO_NESTED_LONGEST = "to_nested_longest",
    TO_SHADOW = "to_shadow", TO_SHADOW_TICKS = "to_shadow_ticks", TO_SHADOW_LONGEST = "to_shadow_longest",
    TO_AGILE = "to_agile", TO_AGILE_TICKS = "to_agile_ticks", TO_AGILE_LONGEST = "to_agile_longest",
    NESTED_STEPS = "nested_steps", REFILLED = "refilled", REFILL_TICKS = "refill_ticks", REFILL_FAULTS = "refill_faults",
    // stats.paging.shadow
    SHADOW = "shadow", POOL = "pool", POOL_BYTES = "pool_bytes", PAGES = "pages", BYTES = "bytes", MOST_BYTES = "most_bytes",
    FAULTS = "faults", FILLED = "filled", PREFETCHED = "prefetched", GUEST_FAULTS = "guest_faults",
    CONCURRENT = "concurrent",
    EMULATED_WRITES = "emulated_writes", ROOTS_FOUND = "roots_found", ROOTS_MADE = "roots_made", PAGES_MADE = "pages_made",
    EVICTIONS = "evictions", UNSYNCED = "unsynced", RESYNCED_ENTRIES = "resynced_entries", DEFERRED = "deferred", FLOODS = "floods",
    SHOOTDOWNS = "shootdowns",
    // stats.paging.pager
    PAGER = "pager", REPLACEMENT = "replacement", RESIDENT_FRAMES = "resident_frames", REFAULTS = "refaults", CAME_IN = "came_in",
    RESCUED = "rescued", WENT_OUT = "went_out", ZERO_PAGES = "zero_pages", INCOMPRESSIBLE = "incompressible",
    COMPRESSED_FROM = "compressed_from", COMPRESSED_TO = "compressed_to", IN_TICKS = "in_ticks", OUT_TICKS = "out_ticks",
    RESIDENT = "resident", STORED = "stored", STORE_FRAMES = "store_frames", STORE_LIMIT = "store_limit",
    ON_DISK = "on_disk", FROM_DISK = "from_disk", DISK_READS = "disk_reads", DISK_WRITES = "disk_writes",
    // stats.paging.balloon
    BALLOON = "balloon", TARGET = "target", ACTUAL = "actual", INFLATED = "inflated", DEFLATED = "deflated", REPORTED = "reported",
    // stats.paging.tiers
    TIERS = "tiers", FAST_FRAMES = "fast_frames", FAST_SHARE = "fast_share", FAST_TABLES = "fast_tables", HOT_WAITING = "hot_waiting", WORKING_SET = "working_set",
    E_STATE = "e_state", MOVED_IN = "moved_in", MOVED_OUT = "moved_out", DISCARDED = "discarded", MOVES_BUSY = "moves_busy", MOVES_PINNED = "moves_pinned",
    HOT_LISTED = "hot_listed", HOT_DROPPED = "hot_dropped", LIST_FULL = "list_full", LEAVES_SPLIT = "leaves_split", PASSES = "passes",
    PIECES = "pieces", PIECES_IN = "pieces_in", PIECES_OUT = "pieces_out", PIECES_WRITTEN = "pieces_written", PIECES_JOINED = "pieces_joined",
    PAGE_MOVE_TICKS = "page_move_ticks", PIECE_MOVE_TICKS = "piece_move_ticks",
    PAGE_MOVE_LONGEST = "page_move_longest", PIECE_MOVE_LONGEST = "piece_move_longest",
    JOIN_TICKS = "join_ticks", JOIN_LONGEST = "join_longest",
    TARGET_PER_MILLE = "target_per_mille", TARGET_CALLS = "target_calls", EVICT_BY = "evict_by",
    // stats.paging.agile
    AGILE = "agile", NESTED_TABLES = "nested_tables", SHADOWED_TABLES = "shadowed_tables", FIRST_WRITES = "first_writes",
    TABLES_TO_NESTED = "tables_to_nested", TABLES_TO_SHADOW = "tables_to_shadow", ROOTS_NESTED = "roots_nested",
    ROOTS_TO_SHADOW = "roots_to_shadow", ROOT_HITS = "root_hits", ROOT_MISSES = "root_misses", STAND_INS = "stand_ins",
    CHARGED_EXITS = "charged_exits",
    // stats.paging.spaces
    SPACES = "spaces", SHADOW_SPACES = "shadow_spaces", KNOWN_SPACES = "known_spaces", SPACES_TO_SHADOW = "spaces_to_shadow",
    SPACES_TO_NESTED = "spaces_to_nested", SPACES_PUT_OFF = "spaces_put_off", NESTED_CR3_LOADS = "nested_cr3_loads",
    UPPER_UNSYNC = "upper_unsync", UPPER_TO_UNSYNC = "upper_to_unsync", UPPER_PROTECTED = "upper_protected",
    // stats.paging.regions
    REGIONS = "regions", CLOSED_FAULTS = "closed_faults", REGION_MOVES = "region_moves", REGIONS_OPENED = "regions_opened",
    REGIONS_FOUND = "regions_found", ROUNDS = "rounds", ROUNDS_LEFT_OUT = "rounds_left_out", PHASE_TICKS = "phase_ticks", TOUCHES = "touches", REGIONS_BORN = "regions_born",
    REGION_MERGES = "region_merges", FRAMES_EXCLUDED = "frames_excluded", FRAMES_AGED = "frames_aged",
    REGIONS_GIVEN_UP = "regions_given_up", REGIONS_PLACED = "regions_placed", ROUNDS_SPREAD = "rounds_spread",
    ACCESS_SAMPLES = "access_samples", SAMPLE_TICKS = "sample_ticks", SAMPLE_LONGEST = "sample_longest",
    SAMPLES_PUT_OFF = "samples_put_off",
    REGIONS_GLOBALISED = "regions_globalised", MOVES = "moves", MOVE_TICKS = "move_ticks", MOVE_LONGEST = "move_longest",
    MOVES_COUNTED = "moves_counted", MOVE_CYCLES = "move_cycles",
    MOVE_INSTRUCTIONS = "move_instructions", MOVE_PARTS = "move_parts",
    SPACES_MADE = "spaces_made", SPACES_ENDED = "spaces_ended", SPACES_REFUSED = "spaces_refused",
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec::Vec;

    use super::*;

    #[test]
    fn keys_are_spelt_one_way_and_stand_once() {
        for (n, (name, key)) in key::ALL.iter().enumerate() {
            assert_eq!(name.to_lowercase(), **key);
            assert!(key.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'), "{key}");
            assert!(key::ALL[..n].iter().all(|(_, other)| other != key), "{key} stands twice");
        }
    }

    #[test]
    fn words_are_spelt_one_way() {
        let words = [Kind::WORDS, EndReason::WORDS, ResetBy::WORDS, ExitKind::WORDS].concat();
        let good = |word: &str| word.bytes().all(|b| b.is_ascii_lowercase() || b == b'-');
        let bad: Vec<_> = words.iter().filter(|word| !good(word)).collect();
        assert!(bad.is_empty(), "{bad:?}");
    }
}
