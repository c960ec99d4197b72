//! What can be seen of a VM's tiers.

use abi::tiers::Eviction;

use super::sharing::{EState, Target};

/// What has happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Pages that went to fast memory.
    pub moved_in: u64,
    /// Pages that went back home.
    pub moved_out: u64,
    /// Of these, pages that were not copied, because they had not been written.
    pub discarded: u64,
    /// Pages in fast memory that a policy has named to leave.
    pub evicted: u64,
    /// Moves that came to nothing because the page was accessed.
    pub busy: u64,
    /// Moves that the tables did not allow.
    pub pinned: u64,
    /// Pages that got on the list.
    pub listed: u64,
    /// Pages in slow memory that were taken off the list, inactive.
    pub dropped: u64,
    /// Hot pages that found the list full.
    pub overflows: u64,
    /// Large leaves that were split.
    pub splits: u64,
    /// Pieces of 2 MiB that went to fast memory as one.
    pub pieces_in: u64,
    /// And back home.
    pub pieces_out: u64,
    /// Copies of pieces that were given up because the guest wrote them.
    pub pieces_written: u64,
    /// Small leaves that were joined: pieces.
    pub joins: u64,
    /// Ticks of the host's TSC that each kind of [`Work`] took.
    pub ticks: [u64; 3],
    /// The longest of each kind. The VCPU on whose behalf it was done was away for it.
    pub longest: [u64; 3],
    /// Passes.
    pub passes: u64,
}

/// What a VCPU is away for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// The move of a batch of pages.
    Pages,
    /// That of a piece.
    Piece,
    /// The leaves of a piece become one.
    Join,
}

/// What can be seen of a VM's tiers now.
#[derive(Clone, Copy, Debug)]
pub struct View {
    /// Frames of fast memory that it has.
    pub fast: u32,
    /// Frames that it may have.
    pub share: u32,
    /// Its hot pages in slow memory.
    pub waiting: u32,
    /// Its working set in frames.
    pub working_set: u32,
    /// The ones from which on a page is hot.
    pub hot: u8,
    /// Its E-state, and whether a person has set it.
    pub state: (EState, bool),
    /// What its guest wants, and the calls by which it has said so.
    pub target: (Option<Target>, u64),
    /// Pieces of 2 MiB that are in fast memory as one.
    pub pieces: u32,
    /// Who says which pages leave.
    pub eviction: Eviction,
    /// Moves of single pages that are due.
    pub pending: usize,
    /// What has happened.
    pub counts: Counts,
}
