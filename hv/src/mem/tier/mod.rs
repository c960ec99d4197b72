//! Memory in two tiers: hot pages of a VM are copied to fast memory, and its mappings lead there (thesis chapter 4).
//!
//! All RAM of a VM has frames in slow memory, its *homes*, as it would without tiers. A hot page gets a frame of the [`FastPool`] beside
//! its home. So the way back always has room, and nothing is fragmented; fast memory adds speed, not room.
//!
//! | module | holds |
//! |---|---|
//! | [`list`] | the hot pages, newest first |
//! | [`large`] | pieces of 2 MiB |
//! | [`policy`] | which pages are hot, and active |
//! | `evict`, [`residents`] | which pages leave, where a policy of page replacement says so |
//! | [`sharing`] | how much of the fast memory is each VM's; E-states |
//! | [`target`] | what a guest wants of it |
//! | [`pool`] | the fast memory's frames, which page tables have, too |
//! | `batch` | pages that are to move, one by one |
//! | [`task`] | what is to be done with a piece |
//! | [`parts`] | a piece that is copied in parts |
//! | [`map`] | where its hot pages are, for samples |
//! | [`migration`] | pages between two tiers |
//!
//! [`Tiers`] puts them together for one VM, still without tables and processors: after each sample of accesses [`Tiers::pass`] decides
//! what moves, and [`Tiers::batch`] hands it out in pieces. `vm::tiers` moves the pages. docs/design/0030-memory-tiers.md has the whole.
//!
//! Locks: the one here is a leaf, and held for one pass at most; no page is copied under it.

mod batch;
mod evict;
pub mod large;
pub mod list;
pub mod map;
pub mod migration;
pub mod parts;
pub mod policy;
pub mod pool;
pub mod residents;
pub mod sharing;
mod state;
pub mod target;
pub mod task;
#[cfg(test)]
pub(crate) mod tests;
mod view;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};

use abi::tiers::{Eviction, HotPolicy};
use records::tiers::WINDOWS;
use spin::Mutex;

pub use self::batch::{Outcome, Wish};
use self::large::{PieceList, Splits};
use self::list::{HotList, Side};
use self::map::Map;
use self::migration::{CopyFrame, Migration};
use self::policy::{Bounds, Histogram};
use self::pool::FastPool;
use self::sharing::{Demand, Driver, EState};
use self::state::State;
use self::target::Wanted;
pub use self::view::{Counts, View, Work};
use super::pager::Span;
use super::pieces::OutOfMemory;
use crate::arch::addr::{Gfn, Hfn};

/// Listed pages that one pass looks at (`MAX_SCAN` of the thesis, which is for 100 ms).
pub const MAX_SCAN: u32 = 512;
/// Pages that one pass moves (`MAX_MFNS`, for which the thesis has no figure).
pub const MAX_MOVES: usize = 512;
/// Pages at most that move together: one shootdown for all.
pub const BATCH: usize = 4;
/// Large leaves that one pass has split.
pub const MAX_SPLITS: usize = 16;
/// Pages among which one pass looks for hot ones that are not listed: 512 MiB.
const MAX_LOOK: u32 = 1 << 17;
/// Pages of a group that [`Heat::hot`] tells of.
const GROUP: u32 = 64;

/// What a pass must know of pages.
pub trait Heat {
    /// The last 32 samples of a page; bit 31 is the latest.
    fn history(&self, page: Gfn) -> u32;

    /// A bit for each of the 64 pages from `first` on, a multiple of 64, whose history has `least` ones or more.
    fn hot(&self, first: Gfn, least: u8) -> u64;

    /// For each of the last 1, 2, 4, 8, 16 and 32 samples a bit for each of the 64 pages from `first` on that was accessed in these.
    fn recent(&self, first: Gfn) -> [u64; WINDOWS];

    /// What the tables tell of when this page is accessed.
    fn grain(&self, page: Gfn) -> Grain;
}

/// What an accessed bit tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grain {
    /// This page.
    Page,
    /// A large leaf, which can be split.
    Large,
}

/// An E-state that the machine does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooMuch {
    /// Frames of the state.
    pub wanted: u32,
    /// Frames that states of other VMs leave.
    pub left: u32,
}

/// The tiers of one VM.
pub struct Tiers {
    pool: Arc<FastPool>,
    vm: usize,
    span: Span,
    policy: HotPolicy,
    /// Pages that are moving.
    pub migration: Arc<Migration>,
    state: Mutex<Box<State>>,
    has_pending: AtomicBool,
    wanted: Wanted,
}

impl fmt::Debug for Tiers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tiers").field("state", &self.state).finish_non_exhaustive()
    }
}

impl Tiers {
    /// Of a VM with its RAM at `span`, all of it at home.
    ///
    /// # Errors
    /// No memory for its tables: see [`Tiers::bytes_for`].
    pub fn new(
        pool: Arc<FastPool>,
        vm: usize,
        demand: Demand,
        span: Span,
        policy: HotPolicy,
        copier: Box<dyn CopyFrame>,
    ) -> Result<Tiers, OutOfMemory> {
        let mut pending = Vec::new();
        pending.try_reserve_exact(MAX_MOVES).map_err(|_| OutOfMemory)?;
        let pieces = PieceList::new(span.pages(), pool.total())?;
        let list = HotList::new(span.pages(), Self::entries(span.pages(), pool.total()), pool.total())?;
        let migration = Arc::new(Migration::new(BATCH, copier)?);
        let share = pool.publish(vm, Some(demand))?;
        let state = State {
            list,
            most_slow: Self::most_slow(span.pages(), pool.total()),
            pieces,
            cursor: 0,
            bounds: Bounds::new(policy, &[0; 32], share),
            demand,
            driver: Driver::default(),
            share,
            residents: None,
            pending,
            counts: Counts::default(),
            last: Work::Pages,
            map: Map::default(),
        };
        Ok(Tiers {
            pool,
            vm,
            span,
            policy,
            migration,
            state: Mutex::new(Box::new(state)),
            has_pending: AtomicBool::new(false),
            wanted: Wanted::default(),
        })
    }

    /// Entries of the list: all that fits fast memory, as many that wait for room, and what one pass looks at.
    fn entries(pages: u32, fast: u32) -> u32 {
        pages.min(fast.saturating_mul(2).saturating_add(MAX_SCAN))
    }

    /// Of these, entries for pages that wait. The look at one group may take as many more.
    fn most_slow(pages: u32, fast: u32) -> u32 {
        let entries = Self::entries(pages, fast);
        if entries == pages { pages } else { fast.saturating_add(MAX_SCAN - GROUP) }
    }

    /// Bytes of host memory for a VM of `pages` pages beside `fast` frames of fast memory: 4 for each page, and 36 for each fast frame.
    pub fn bytes_for(pages: u32, fast: u32) -> usize {
        let list = HotList::bytes_for(pages, Self::entries(pages, fast), fast);
        list + PieceList::bytes_for(pages, fast) + MAX_MOVES * 4
    }

    /// The machine's fast memory.
    pub fn pool(&self) -> &FastPool {
        &self.pool
    }

    /// Which pages are hot.
    pub fn policy(&self) -> HotPolicy {
        self.policy
    }

    /// What can be seen now.
    pub fn view(&self) -> View {
        let state = self.state.lock();
        View {
            fast: state.fast(),
            share: state.share,
            waiting: state.list.count(Side::Slow),
            working_set: state.demand.working_set,
            hot: state.bounds.hot,
            state: (state.demand.e_state(), state.demand.is_set),
            target: (self.wanted.target(), self.wanted.calls()),
            pieces: state.pieces.pages() / migration::PIECE as u32,
            eviction: state.residents.as_ref().map_or(Eviction::Lazy, |it| Eviction::By(it.name())),
            pending: state.pending.len(),
            counts: state.counts,
        }
    }

    /// Gives the VM an E-state, or (`None`) lets the policy decide again. Pages move with the next passes.
    ///
    /// # Errors
    /// Others have so much by theirs that it does not fit the machine.
    pub fn set_state(&self, wanted: Option<EState>) -> Result<(), TooMuch> {
        let mut state = self.state.lock();
        if let Some(wanted) = wanted {
            let (divided, left) = self.pool.left_by_set(self.vm);
            let frames = wanted.frames(divided);
            if frames > left {
                return Err(TooMuch { wanted: frames, left });
            }
            state.demand.state = wanted;
        }
        state.demand.is_set = wanted.is_some();
        state.share = self.pool.publish(self.vm, Some(state.demand)).unwrap_or(state.share);
        Ok(())
    }

    /// Ones in a history from which on [`Tiers::pass`] looks at the histogram.
    pub fn least_of_interest(&self) -> u8 {
        policy::least_of_interest(self.policy)
    }

    /// Decides what moves, after a sample. The large leaves that it returns, by their first pages, are to be split if they can be, and
    /// the histories of their pages forgotten: they seem hot, but their bit is that of the leaf.
    pub fn pass(&self, heat: &impl Heat, histogram: &Histogram, working_set: u32) -> Splits {
        let mut state = self.state.lock();
        let state = &mut **state;
        state.counts.passes += 1;
        state.demand.working_set = working_set;
        state.demand.fast = state.fast();
        state.demand.waiting = state.list.count(Side::Slow);
        state.demand.target = self.wanted.target();
        if !state.demand.is_set {
            (state.demand.state, state.demand.wished) =
                state.driver.step(self.pool.sharing(), self.pool.for_pages(), &state.demand);
        }
        // The record was made when the VM began.
        state.share = self.pool.publish(self.vm, Some(state.demand)).unwrap_or(state.share);
        state.bounds = Bounds::new(self.policy, histogram, state.share);
        state.pieces.begin(state.counts.passes);
        let mut splits = state.find(&self.span, heat);
        state.scan(&self.span, heat, &mut splits);
        state.split_for_all(&self.span, histogram, &mut splits);
        state.find_cold(&self.span, heat);
        self.show_pending(state);
        splits
    }

    /// Takes a map of the VM's memory by the histories that the last pass has seen, for samples.
    pub fn draw_map(&self, heat: &impl Heat, histogram: &Histogram) {
        let mut state = self.state.lock();
        state.map = Map::new(&self.span, heat, state.bounds.hot, histogram);
    }

    /// The last map.
    pub fn map(&self) -> Map {
        self.state.lock().map
    }

    fn show_pending(&self, state: &State) {
        let any = !state.pending.is_empty() || state.pieces.has_plans();
        self.has_pending.store(any, Ordering::Relaxed);
    }

    /// Whether [`Tiers::next_piece`] or [`Tiers::batch`] has something.
    #[inline]
    pub fn has_moves(&self) -> bool {
        self.has_pending.load(Ordering::Relaxed)
    }

    /// What [`Tiers::next_piece`] or [`Tiers::batch`] has handed out last took this many ticks of the host's TSC.
    pub fn took(&self, ticks: u64) {
        let mut state = self.state.lock();
        let of = state.last as usize;
        state.counts.ticks[of] += ticks;
        state.counts.longest[of] = state.counts.longest[of].max(ticks);
    }

    /// Whether a frame can be a home: its number must fit the list. 16 TiB do.
    pub fn is_home(&self, frame: Hfn) -> bool {
        u32::try_from(frame.0).is_ok_and(|number| number != u32::MAX) && self.pool.number(frame).is_none()
    }
}

impl Drop for Tiers {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        let moving = state.pieces.moving.and_then(|moving| moving.run(&self.pool));
        let runs = state.pieces.runs().chain(moving);
        let runs = runs.flat_map(|first| first..first + migration::PIECE as u32);
        for fast in state.list.fast().map(|(_, placed)| placed.fast).chain(runs) {
            if let Some(frame) = self.pool.frame(fast) {
                self.migration.wipe(frame);
                self.pool.give_back(fast);
            }
        }
        let _the_record_is_there = self.pool.publish(self.vm, None);
    }
}
