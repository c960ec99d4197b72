//! Which pages are hot, and which of those are active, by their access histories.
//!
//! One interface for the thesis' rule (4.2.1: a fixed threshold and a time window) and for thresholds by the histogram, as Memtis has
//! them (SOSP 2023, section 4): as many of the most accessed pages are hot as there is room for. With a third one, for tests, pages move
//! at the highest rate that there is. Pure: a decision depends on what is passed in alone.

use abi::tiers::HotPolicy;

use super::list::Side;

/// Ones of 32 from which on a page is hot for [`HotPolicy::Threshold`].
pub const HOT: u8 = 22;
/// Samples of 100 ms after which a page is inactive: `TIME_WINDOW` is 3000 ms.
pub const WINDOW: u32 = 30;
/// [`HotPolicy::Histogram`] takes no page for hot that was accessed in fewer samples: a move costs more than these accesses.
const LEAST: u8 = 8;
/// For it, a page in fast memory is inactive only this many ones below the threshold, so that pages near it do not go to and fro.
const MARGIN: u8 = 4;

/// Frames by the number of ones in their histories; 32 count as 31.
pub type Histogram = [u32; 32];

/// What the pages of one pass are judged by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    policy: HotPolicy,
    /// Ones from which on a page is hot.
    pub hot: u8,
}

impl Bounds {
    /// Of a VM with this histogram that may have `share` frames of fast memory.
    pub fn new(policy: HotPolicy, histogram: &Histogram, share: u32) -> Bounds {
        let hot = match policy {
            HotPolicy::Threshold => HOT,
            HotPolicy::Histogram => by_room(histogram, share),
            HotPolicy::Rotate => 1,
        };
        Bounds { policy, hot }
    }

    /// The ones from which on a page of a piece of 2 MiB in fast memory is active.
    pub fn least_active(&self) -> u8 {
        match self.policy {
            // Of the last 32 samples, where that of a single page are 30.
            HotPolicy::Threshold => 1,
            HotPolicy::Histogram => self.hot.saturating_sub(MARGIN).max(1),
            // None is: more than there are samples.
            HotPolicy::Rotate => 33,
        }
    }

    /// Whether a listed page with this history (bit 31 is the latest sample) is active, in the memory that it is in.
    pub fn is_active(&self, history: u32, side: Side) -> bool {
        match (self.policy, side) {
            (HotPolicy::Threshold, _) => history >> (32 - WINDOW) != 0,
            (HotPolicy::Histogram, Side::Slow) => history.count_ones() >= self.hot.into(),
            (HotPolicy::Histogram, Side::Fast) => history.count_ones() >= u32::from(self.least_active()),
            (HotPolicy::Rotate, _) => side == Side::Slow,
        }
    }
}

/// Ones from which on a pass looks at the histogram: no page with fewer is hot.
pub fn least_of_interest(policy: HotPolicy) -> u8 {
    match policy {
        HotPolicy::Threshold => HOT,
        HotPolicy::Histogram => LEAST,
        HotPolicy::Rotate => 1,
    }
}

/// The least number of ones for which all pages with as many, or more, find room; the highest there is if not even those do.
fn by_room(histogram: &Histogram, share: u32) -> u8 {
    let (mut hot, mut sum) = (histogram.len() as u8 - 1, 0u64);
    for ones in (LEAST..histogram.len() as u8).rev() {
        sum += u64::from(histogram[usize::from(ones)]);
        if sum > share.into() {
            break;
        }
        hot = ones;
    }
    hot
}
