//! What VCPUs that fill entries at the same time agree on: whose an empty entry is, and who changes a list of leaves.
//!
//! They hold the lock of the shadow tables as readers ([`super::super::concurrent`]). All else that is written then is theirs alone:
//! the records of the entries that they have claimed, and those on the list whose head they hold. A holder waits for nothing, so
//! others spin for some ten instructions. A VCPU that has the tables exclusively needs none of this, and no atomic instructions.
//!
//! `tests/sched-loom` compiles this with `loom_model` set and looks at every order of the steps.

#[cfg(not(loom_model))]
use core::{
    hint::spin_loop,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};
#[cfg(loom_model)]
use loom::{
    hint::spin_loop,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};

/// Words of a [`Bits`].
const WORDS: usize = 8;
/// Instead of the first entry of a list, while its head is held. No entry has this number, and it is not [`super::NONE`].
const HELD: u32 = u32::MAX - 1;

/// A bit for each of the 512 entries of a page.
#[derive(Debug)]
pub struct Bits([AtomicU64; WORDS]);

impl Bits {
    /// No bit is set.
    #[cfg(not(loom_model))]
    pub const fn new() -> Bits {
        Bits([const { AtomicU64::new(0) }; WORDS])
    }

    /// No bit is set.
    #[cfg(loom_model)]
    pub fn new() -> Bits {
        Bits(core::array::from_fn(|_| AtomicU64::new(0)))
    }

    /// The bits of 64 entries.
    #[inline(always)]
    pub fn word(&self, word: usize) -> u64 {
        self.0[word % WORDS].load(Ordering::Relaxed)
    }

    /// Whether the bit of an entry is set.
    #[inline(always)]
    pub fn has(&self, index: usize) -> bool {
        self.word(index / 64) >> (index % 64) & 1 != 0
    }

    /// Sets the bit of an empty entry, which is the caller's to fill then. False: another VCPU has been faster.
    #[inline(always)]
    pub fn claim(&self, index: usize) -> bool {
        let bit = 1 << (index % 64);
        self.0[index / 64 % WORDS].fetch_or(bit, Ordering::AcqRel) & bit == 0
    }
}

#[cfg(not(loom_model))]
impl Bits {
    /// All of them.
    #[inline(always)]
    pub fn all(&self) -> [u64; WORDS] {
        core::array::from_fn(|word| self.word(word))
    }

    /// The bits of 64 entries, to be changed with the tables held exclusively.
    #[inline(always)]
    pub fn word_mut(&mut self, word: usize) -> &mut u64 {
        self.0[word % WORDS].get_mut()
    }
}

impl Default for Bits {
    fn default() -> Bits {
        Bits::new()
    }
}

/// The first entry of a list of leaves, or [`super::NONE`].
#[derive(Debug)]
pub struct Head(AtomicU32);

impl Head {
    /// Of a list with this first entry.
    pub fn new(first: u32) -> Head {
        Head(AtomicU32::new(first))
    }

    /// The first entry. No VCPU holds the head.
    #[inline(always)]
    pub fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    /// Takes the head, and with it the whole list, until [`Self::release`]. Returns the first entry.
    #[inline(always)]
    pub fn hold(&self) -> u32 {
        loop {
            let first = self.0.load(Ordering::Relaxed);
            let held = || self.0.compare_exchange(first, HELD, Ordering::Acquire, Ordering::Relaxed);
            if first != HELD && held().is_ok() {
                return first;
            }
            spin_loop();
        }
    }

    /// Gives the list back, with another first entry.
    #[inline(always)]
    pub fn release(&self, first: u32) {
        self.0.store(first, Ordering::Release);
    }
}

#[cfg(not(loom_model))]
impl Head {
    /// The first entry, to be changed with the tables held exclusively.
    #[inline(always)]
    pub fn get_mut(&mut self) -> &mut u32 {
        self.0.get_mut()
    }
}
