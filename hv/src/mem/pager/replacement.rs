//! A policy of [`replace`](crate::mem::replace), chosen by name.

use alloc::boxed::Box;

use abi::config::Replacement as Name;

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
    pub fn new(name: Name, frames: u32) -> Replacement {
        match name {
            Name::Clock => Replacement::Clock(Clock::new(frames)),
            Name::ClockPro => Replacement::ClockPro(ClockPro::new(frames)),
            Name::Seq => Replacement::Seq(Box::new(Seq::new(frames))),
            Name::Apr => Replacement::Apr(Box::new(Apr::new(frames, Default::default()))),
            Name::Lru => Replacement::Lru(Lru::new(frames)),
            Name::S3Fifo => Replacement::S3Fifo(S3Fifo::new(frames)),
            Name::Sieve => Replacement::Sieve(Sieve::new(frames)),
        }
    }

    /// Bytes of the heap that it takes for each frame, at most (docs/design/0027-page-replacement.md).
    pub const fn heap_bytes(name: Name) -> u64 {
        match name {
            Name::Clock => 0,
            Name::Lru | Name::Sieve => 8,
            Name::Seq => 48,
            Name::S3Fifo => 80,
            Name::ClockPro => 184,
            Name::Apr => 250,
        }
    }

    /// See [`Policy::fault`]. Pages are of no object: nothing names the guest's allocations to the pager yet.
    pub fn fault(&mut self, page: Page, bits: &mut impl AccessBits) -> Placement {
        each!(self, policy => policy.fault(page, Object(0), bits))
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
