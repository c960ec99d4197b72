//! Shadow paging: tables that map guest-virtual to host-physical addresses, made from the guest's own tables
//! and the [`P2m`](super::p2m::P2m) as the guest touches memory, and kept while they hold.
//!
//! [`Shadow`] owns the shadow pages of one VM in a bounded [`pool`]; its VCPUs work on them one at a time (see [`shootdown`]), but
//! for faults that some of them may handle [together](concurrent).
//! Callers are the exit handlers for page faults, INVLPG, and writes to CR0, CR3, CR4 and EFER, and all code that writes guest
//! memory on the guest's behalf ([`written`](Shadow::written)). What must hold between two calls:
//!
//! - A present entry of a shadow page says what the guest's entry says now, with less rights at most; unless
//!   the page is *unsync* (above level 1 only after [`make_unsync`](Shadow::make_unsync)): there it may say what the guest's
//!   entry was at any time since the guest's last flush.
//! - A guest table with shadow pages that are in sync is not writable through any leaf. The caller performs
//!   every [`TlbFlush`] before the guest goes on, so that no processor remembers otherwise.
//! - A leaf is present only if the guest's accessed bits are set on the path, and writable only if its dirty bit is.
//!
//! The caller owes: all writes to guest memory that do not go through these tables (devices, the emulator)
//! are told; every change of the P2m as well ([`apply`](Shadow::apply)); page faults are taken with the
//! guest's registers in a [`PagingState`](super::guest_walk::PagingState), while the processor itself runs with [`HardwareControls`].
//! Frames of the pool are the only thing that is allocated after [`Shadow::new`], and operations get by without any.

mod accessed;
mod agile;
mod apply;
mod check;
mod concurrent;
mod demand;
mod fast_path;
mod fault;
mod guard;
mod hardware;
mod inherit;
mod leaf_lookup;
mod left_out;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod model;
#[cfg(any(test, feature = "testing"))]
pub mod oracle;
mod pat;
mod phase;
mod pool;
mod resume;
mod resync;
mod role;
mod root;
mod shootdown;
mod slow_path;
mod statistics;
mod sync;
#[cfg(test)]
pub(crate) mod tests;
mod unsync;

pub use agile::{AgileCounts, AgileSpace, AgileTimes, UpperCounts};
pub use check::Disagreement;
pub use fault::{AddressSpace, PageFault, ShadowOutcome};
pub use hardware::{HardwareControls, exiting_faults};
pub use pat::PatEntries;
pub use pool::Limit;
pub use root::Registers;
pub use shootdown::Shootdown;
use shootdown::View;
pub use statistics::Statistics;

use super::format::PteFormat;
use super::table::MapError;
use super::tree_key::TreeKey;
use crate::arch::addr::{Gfn, Gva, Hfn};
use crate::mem::guest_memory::GuestMemory;
use crate::mem::table_memory::TableMemory;
use alloc::vec;
use alloc::vec::Vec;
use concurrent::ConcurrentCounts;
use guard::Guards;
use leaf_lookup::LeafCache;
use left_out::{LeftOut, Step};
use pool::{PageId, Pool};
use role::Key;
use root::Recent;
use sync::Unsync;

/// The smallest pool: what one fault uses, twice.
const MIN_PAGES: usize = 16;
/// Unlinked pages that are looked at; more stay until they are evicted.
const MAX_UNLINKED: usize = 1 << 10;
/// The largest pool that the lists can number.
const MAX_PAGES: usize = 1 << 20;

/// What the processor must forget before the guest goes on.
#[must_use = "stale translations stay in the TLB until this is performed"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlbFlush {
    /// Nothing.
    None,
    /// Translations of this page, global ones too, and the cached upper entries on its path (INVLPG).
    Page(Gva),
    /// All but global translations, and all cached upper entries (a write to CR3).
    NonGlobal,
    /// Everything.
    All,
}

impl TlbFlush {
    /// Both.
    pub fn and(self, other: TlbFlush) -> TlbFlush {
        match (self, other) {
            (TlbFlush::None, it) | (it, TlbFlush::None) => it,
            (a, b) if a == b => a,
            _ => TlbFlush::All,
        }
    }
}

/// Where the processor finds its tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Root {
    /// The root table.
    pub frame: Hfn,
    /// Four levels (long mode), or PAE: four page-directory pointers at the start of the frame. The processor
    /// wants those below 4 GiB, and may read them only when CR3 is loaded.
    pub long: bool,
}

impl Root {
    /// Whether the processor can load it: outside of long mode CR3 has 32 bits.
    pub fn is_reachable(self) -> bool {
        self.long || self.frame.0 < 1 << 20
    }
}

/// The shadow tables are gone: [`Shadow::load`] must be called before the guest goes on.
#[must_use = "the processor must not run on the old root"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reload;

/// Which of the optimisations are used, and how eagerly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Neighbouring entries of level 1 that a fault looks at, a power of two up to 64; 1 turns this off.
    pub window: u8,
    /// The same under large pages, a power of two up to 128.
    pub direct_window: u8,
    /// Emulated writes to a table of level 1 after which the guest writes it itself; `u8::MAX` turns this off.
    pub unsync_after: u8,
    /// Writes to any other table, without a use in between, after which its shadow pages are dropped.
    pub flood: u8,
    /// Flushes in a row without a change after which an unsync table is write-protected again.
    pub quiet: u8,
    /// Tables stay write-protected while the guest pages on demand there, where processors filter page faults.
    pub demand: bool,
    /// Flushes of single pages that exit, where they need not always, for half of `quiet`.
    pub invlpgs: u8,
    /// Entries of level 1 that are compared at once when the guest comes back from nested tables, at most: pages with more wait
    /// until they are used.
    pub compared: u32,
}

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning {
            window: 16,
            direct_window: 64,
            unsync_after: 0,
            flood: 16,
            quiet: 8,
            demand: true,
            invlpgs: 128,
            compared: 8 << 10,
        }
    }
}

/// The shadow tables of a VM. `F` is the format of the processor's nested tables, which tells its vendor.
#[derive(Debug)]
pub struct Shadow<M: TableMemory, F: PteFormat> {
    pool: Pool<M, F>,
    /// Pages whose tables the guest writes itself.
    unsync: Vec<Unsync>,
    /// Flushes of single pages since [`Tuning::invlpgs`] was reached last.
    invlpgs: u8,
    /// Agile paging, while it is in force.
    agile: Option<agile::Agile>,
    agile_counts: AgileCounts,
    upper_counts: AgileCounts,
    /// Comparisons of nested pages so far. It goes on from one time of agile paging to the next: pages that are kept know the last one
    /// that came to them.
    syncs: u64,
    /// Entries of nested pages above level 1 that did not hold any more, and how many there were when the current VCPU last flushed
    /// an address.
    dropped_links: u64,
    drops_seen: u64,
    /// Pages that the guest has just unlinked.
    unlinked: Vec<PageId>,
    /// A root from which the guest has taken all entries of its user.
    dying: Option<PageId>,
    /// Pages of level 1 that were found lately, by VCPU.
    leaf_caches: Vec<LeafCache>,
    recent: Recent,
    /// Where the processor's PAT is not the guest's.
    pat: Option<PatEntries>,
    guards: Guards,
    /// The bits of an address that count.
    linear: u64,
    /// There may be leaves in the tables of a phase.
    has_phase: bool,
    /// What must be zero in the guest's entries of level 1.
    reserved: u64,
    /// What must be zero in those of levels 2 to 4 that point to tables for sure.
    table_reserved: [u64; 3],
    tuning: Tuning,
    statistics: Statistics,
    concurrent: ConcurrentCounts,
    /// The set of tables of the VCPU in service.
    tree: TreeKey,
    /// The VCPU that the engine works for, and the state of the others.
    current_vcpu: u32,
    is_shared: bool,
    views: Vec<View>,
    /// For tests that must notice.
    left_out: LeftOut,
}

impl<M: TableMemory, F: PteFormat> Shadow<M, F> {
    /// An engine whose shadow pages take no more than `limit` (a number of pages, or memory), on a processor with `physical_bits`
    /// bits of physical addresses.
    pub fn new(
        memory: M,
        limit: impl Into<Limit>,
        physical_bits: u8,
        tuning: Tuning,
    ) -> Result<Self, MapError> {
        let pool = Pool::new(memory, limit.into(), physical_bits)?;
        let tuning = Tuning {
            window: tuning.window.clamp(1, 64),
            direct_window: tuning.direct_window.clamp(1, 128),
            ..tuning
        };
        let unsync = Vec::with_capacity(sync::MAX_UNSYNC);
        let unlinked = Vec::with_capacity(MAX_UNLINKED);
        Ok(Shadow {
            pool,
            unsync,
            invlpgs: 0,
            agile: None,
            agile_counts: AgileCounts::default(),
            upper_counts: AgileCounts::default(),
            syncs: 0,
            dropped_links: 0,
            drops_seen: 0,
            unlinked,
            dying: None,
            leaf_caches: vec![LeafCache::default()],
            recent: Recent::default(),
            pat: None,
            guards: Guards::default(),
            linear: u64::MAX,
            has_phase: false,
            reserved: 0,
            table_reserved: [0; 3],
            tuning,
            statistics: Statistics::default(),
            concurrent: ConcurrentCounts::default(),
            current_vcpu: 0,
            tree: TreeKey::FIRST,
            is_shared: false,
            views: Vec::new(),
            left_out: LeftOut::default(),
        })
    }

    /// Begins an operation: pages that it uses stay until the next.
    #[inline(always)]
    fn begin(&mut self) {
        self.pool.begin();
        if self.pool.is_short() {
            self.relieve();
        }
    }

    /// Makes room for what is known about entries.
    #[cold]
    #[inline(never)]
    fn relieve(&mut self) {
        self.pool.relieve();
        self.forget_evicted();
    }

    #[cold]
    fn forget_evicted(&mut self) {
        self.unsync.retain(|page| self.pool.page(page.id).is_in_use());
    }

    /// Takes over INVLPG of an address, under the root in use. (INVPCID for other address spaces and all
    /// other flushes: [`flush_all`](Self::flush_all).)
    pub fn invlpg(&mut self, memory: &impl GuestMemory, gva: Gva) -> TlbFlush {
        self.begin();
        let gva = Gva(gva.0 & self.linear);
        self.resync_address(memory, gva);
        self.count_invlpg(memory, gva);
        self.pool.take_owed_and(self.pool.flush_of_page(gva))
    }

    /// Takes over a flush of everything, global translations included.
    pub fn flush_all(&mut self, memory: &impl GuestMemory) -> TlbFlush {
        self.begin();
        self.resync_all(memory, |shadow| shadow.pool.root());
        self.pool.take_owed_and_all()
    }

    /// Which entries of the processor's PAT stand for the guest's from now on, if not the same ones.
    pub fn set_pat(&mut self, pat: Option<PatEntries>) -> (Option<Reload>, TlbFlush) {
        if self.pat == pat {
            return (None, TlbFlush::None);
        }
        self.pat = pat;
        let (reload, flush) = self.drop_everything();
        (Some(reload), flush)
    }

    /// A leaf as the processor is to have it.
    #[inline(always)]
    fn typed(&self, raw: u64, level: u8) -> u64 {
        self.pat.map_or(raw, |pat| pat.translate(raw, level))
    }

    /// Drops all shadow pages: when the guest ran with other tables and wrote its own unseen.
    pub fn drop_everything(&mut self) -> (Reload, TlbFlush) {
        self.unsync.clear();
        self.pool.upper_unsync = false;
        self.recent = Recent::default();
        self.views.iter_mut().for_each(View::forget_roots);
        self.pool.release_all();
        (Reload, self.pool.take_owed_and(TlbFlush::None))
    }

    /// Drops all shadow pages and gives their memory back: the guest does without them from now on. No other VCPU uses them.
    pub fn give_back(&mut self) -> TlbFlush {
        let (_not_in_use, flush) = self.drop_everything();
        self.pool.give_back();
        flush
    }

    /// What happened so far.
    pub fn statistics(&self) -> Statistics {
        let pages = self.pool.in_use() as u64;
        let (evictions, shootdowns) = (self.pool.evictions, self.pool.shootdowns());
        let (bytes, most_bytes) = self.pool.bytes();
        let all = Statistics { pages, bytes, most_bytes, evictions, shootdowns, ..self.statistics };
        self.concurrent.add_to(all)
    }

    /// The page with this key, found in step with the guest's table, or made.
    fn page(&mut self, key: Key, gfn: Gfn, memory: &impl GuestMemory) -> PageId {
        if let Some(id) = self.pool.find(key) {
            let page = self.pool.page(id);
            // The flushes that others hear of empty the pages above level 1.
            if page.unsync && key.level() == 1 || page.deferred && !self.left_out.is(Step::CompareDeferred) {
                self.resync_page(memory, id);
            }
            if self.pool.upper_unsync {
                self.sync_from(memory, id, true);
            }
            self.pool.touch(id);
            return id;
        }
        self.statistics.pages_made += 1;
        let starts_unsync = key.is_table() && self.starts_unsync_or_write_protect(memory, key);
        let evictions = self.pool.evictions;
        let id = self.pool.create(key, gfn);
        // The list of unsync pages names pages by number, and this one stands for another table now.
        if self.pool.evictions != evictions {
            // Others may have been evicted with the one that is used again.
            self.unsync.retain(|other| other.id != id);
            self.forget_evicted();
        }
        if starts_unsync {
            self.start_unsync(id);
        }
        id
    }
}
