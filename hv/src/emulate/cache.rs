//! Decoded instructions by address, because decoding costs several hundred machine instructions.
//!
//! Direct-mapped. The emulator reads the bytes again and compares, so that modified code is always noticed.

use super::Bytes;
use super::decode::MAX_LEN;
use super::insn::{Insn, Mode};

/// Where an instruction was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Key {
    /// Its linear address (CS base + RIP).
    pub linear: u64,
    /// CR3, which stands for the address space.
    pub cr3: u64,
    /// The code segment's mode.
    pub mode: Mode,
}

impl Key {
    #[inline]
    fn slot(&self, slots: usize) -> usize {
        ((self.linear ^ self.linear >> 7 ^ self.cr3 >> 12) as usize) & (slots - 1)
    }
}

/// A decoded instruction and its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Fetched {
    /// The instruction.
    pub insn: Insn,
    /// Its bytes.
    pub bytes: Bytes,
}

const INSNS: usize = 64;

#[derive(Clone, Copy)]
struct Decoded {
    key: Key,
    /// Length 0: empty.
    fetched: Fetched,
}

/// A VCPU's decoded instructions; about 6 KiB.
pub struct DecodeCache {
    insns: [Decoded; INSNS],
}

impl Default for DecodeCache {
    fn default() -> Self {
        DecodeCache::new()
    }
}

impl DecodeCache {
    /// An empty cache.
    pub const fn new() -> DecodeCache {
        let key = Key { linear: 0, cr3: 0, mode: Mode::Bits64 };
        let fetched = Fetched { insn: Insn::NONE, bytes: Bytes { bytes: [0; MAX_LEN], len: 0 } };
        DecodeCache { insns: [Decoded { key, fetched }; INSNS] }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = DecodeCache::new();
    }

    /// The instruction that was last seen at `key`, if `is_current` says that these bytes are still there.
    #[inline]
    pub(super) fn instruction(
        &mut self,
        key: Key,
        is_current: impl FnOnce(&Bytes) -> bool,
    ) -> Result<&Fetched, Vacant<'_>> {
        let entry = &mut self.insns[key.slot(INSNS)];
        // By the bytes: the guest may have written over its code, or mapped other code there, without an exit.
        if entry.key == key && entry.fetched.bytes.len != 0 && is_current(&entry.fetched.bytes) {
            Ok(&entry.fetched)
        } else {
            Err(Vacant { key, entry })
        }
    }
}

/// Where an instruction that was not found belongs.
pub(super) struct Vacant<'a> {
    key: Key,
    entry: &'a mut Decoded,
}

impl<'a> Vacant<'a> {
    /// Remembers an instruction with the bytes that it was decoded from.
    pub(super) fn insert(self, fetched: Fetched) -> &'a Fetched {
        *self.entry = Decoded { key: self.key, fetched };
        &self.entry.fetched
    }
}
