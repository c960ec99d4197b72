//! A policy of [`replace`](crate::mem::replace), chosen by name: for the [`pager`](crate::mem::pager) of an overcommitted VM, and for what
//! leaves fast memory ([`tier`](crate::mem::tier)).

use alloc::boxed::Box;
use alloc::collections::TryReserveError;

use abi::config::Replacement as Name;

use crate::mem::pieces::OutOfMemory;
use crate::mem::replace::apr::Apr;
use crate::mem::replace::clock::Clock;
use crate::mem::replace::clock_pro::ClockPro;
use crate::mem::replace::lru::Lru;
use crate::mem::replace::s3_fifo::S3Fifo;
use crate::mem::replace::seq::Seq;
use crate::mem::replace::sieve::Sieve;
use crate::mem::replace::{AccessBits, Object, Page, Placement, Policy, Slot};

/// Any of them.
#[derive(Debug)]
#[allow(missing_docs)]
pub enum Replacement {
    Clock(Clock),
    ClockPro(ClockPro),
    Seq(Box<Seq>),
    Apr(Box<Apr>),
    Lru(Lru),
    S3Fifo(S3Fifo),
    Sieve(Sieve),
}

macro_rules! each {
    ($any:expr, $policy:ident => $result:expr) => {
        match $any {
            Replacement::Clock($policy) => $result,
            Replacement::ClockPro($policy) => $result,
            Replacement::Seq($policy) => $result,
            Replacement::Apr($policy) => $result,
            Replacement::Lru($policy) => $result,
            Replacement::S3Fifo($policy) => $result,
            Replacement::Sieve($policy) => $result,
        }
    };
}

impl Replacement {
    /// The policy of this name, for this many frames.
    ///
    /// # Errors
    /// No memory for its tables: [`heap_bytes`](Self::heap_bytes).
    pub fn new(name: Name, frames: u32) -> Result<Replacement, OutOfMemory> {
        Self::try_new(name, frames).map_err(|_| OutOfMemory)
    }

    fn try_new(name: Name, frames: u32) -> Result<Replacement, TryReserveError> {
        Ok(match name {
            Name::Clock => Replacement::Clock(Clock::new(frames)?),
            Name::ClockPro => Replacement::ClockPro(ClockPro::new(frames)?),
            Name::Seq => Replacement::Seq(Box::new(Seq::new(frames)?)),
            Name::Apr => Replacement::Apr(Box::new(Apr::new(frames, Default::default())?)),
            Name::Lru => Replacement::Lru(Lru::new(frames)?),
            Name::S3Fifo => Replacement::S3Fifo(S3Fifo::new(frames)?),
            Name::Sieve => Replacement::Sieve(Sieve::new(frames)?),
        })
    }

    /// Bytes of the heap that it takes for each frame, at most (docs/design/0027-page-replacement.md).
    pub const fn heap_bytes(name: Name) -> u64 {
        match name {
            Name::Clock | Name::Lru | Name::Sieve => 8,
            Name::Seq => 80,
            Name::S3Fifo => 92,
            Name::ClockPro => 188,
            Name::Apr => 254,
        }
    }

    /// Bytes of its tables.
    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        each!(self, policy => policy.bytes())
    }

    /// See [`Policy::fault`].
    pub fn fault(&mut self, page: Page, object: Object, bits: &mut impl AccessBits) -> Placement {
        each!(self, policy => policy.fault(page, object, bits))
    }

    /// See [`Policy::evict`].
    pub fn evict(&mut self, bits: &mut impl AccessBits) -> Slot {
        each!(self, policy => policy.evict(bits))
    }

    /// See [`Policy::remove`].
    pub fn remove(&mut self, slot: Slot) {
        each!(self, policy => policy.remove(slot));
    }

    /// See [`Policy::limit`].
    pub fn limit(&mut self, frames: u32) {
        each!(self, policy => policy.limit(frames));
    }

    /// The page in this slot was accessed; for policies that count accesses.
    pub fn touch(&mut self, slot: Slot) {
        each!(self, policy => policy.touch(slot, 1));
    }

    /// Whether [`touch`](Self::touch) is wanted.
    pub fn counts_touches(&self) -> bool {
        matches!(self, Replacement::Lru(_) | Replacement::S3Fifo(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// docs/design/0027-page-replacement.md has these numbers. Hash tables have a power of two of places: the sizes are those behind which
    /// they double.
    #[test]
    fn tables_take_no_more_than_is_said() {
        for name in Name::ALL {
            let fixed = if matches!(name, Name::Seq | Name::Apr) { 60 << 10 } else { 0 };
            let mut most = 0;
            for frames in [1u32 << 14, (1 << 14) + 1, 18_205, 10_000] {
                let bytes = Replacement::new(*name, frames).unwrap().bytes() as u64;
                most = most.max((bytes - fixed).div_ceil(frames.into()));
                let said = Replacement::heap_bytes(*name) * u64::from(frames) + fixed;
                assert!(bytes <= said, "{name} with {frames} frames: {bytes} of {said}");
            }
            assert!(most + 12 >= Replacement::heap_bytes(*name), "{name}: {most} are enough");
        }
    }
}
