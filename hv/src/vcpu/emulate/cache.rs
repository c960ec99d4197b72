//! Decoded instructions by address, because decoding costs several hundred machine instructions.
//!
//! Two direct-mapped tables. *Lengths* serve processors that do not save the next RIP: the exit itself says which
//! instruction it was, so an entry is trusted if the same kind was seen at the same place. What that cannot notice is
//! code that was replaced, at the same address and in the same address space, by the same instruction with other
//! prefixes; the price of noticing it is a fetch per exit, and a caller who wants that uses [`super::fetch`].
//! *Instructions* serve the emulator: it reads the bytes again and compares, so that modified code is always noticed.

use super::Bytes;
use super::decode::{MAX_LEN, decode};
use super::insn::{Insn, Mode, Op, System};

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

const LENGTHS: usize = 128;
const INSNS: usize = 64;

#[derive(Clone, Copy)]
struct Length {
    linear: u64,
    cr3: u64,
    /// Mode and kind; 0: empty.
    tag: u16,
    len: u8,
}

#[derive(Clone, Copy)]
struct Decoded {
    key: Key,
    /// Length 0: empty.
    fetched: Fetched,
}

/// A VCPU's decoded instructions; about 8 KiB.
pub struct DecodeCache {
    lengths: [Length; LENGTHS],
    insns: [Decoded; INSNS],
}

const _: () = assert!(size_of::<DecodeCache>() <= 8448);

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
        DecodeCache {
            lengths: [Length { linear: 0, cr3: 0, tag: 0, len: 0 }; LENGTHS],
            insns: [Decoded { key, fetched }; INSNS],
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = DecodeCache::new();
    }

    /// The length in bytes of the instruction of kind `what` at `key`. On a miss `fetch` fills a buffer with the
    /// bytes there and returns how many it could read. `None`: the bytes are not such an instruction (any more);
    /// entering the guest at the same RIP again executes what is there now.
    #[inline]
    pub fn length(
        &mut self,
        key: Key,
        what: System,
        fetch: impl FnOnce(&mut [u8; MAX_LEN]) -> usize,
    ) -> Option<u8> {
        let slot = &self.lengths[key.slot(LENGTHS)];
        if slot.linear == key.linear && slot.cr3 == key.cr3 && slot.tag == tag(key.mode, what) {
            return Some(slot.len);
        }
        self.length_miss(key, what, fetch)
    }

    #[cold]
    #[inline(never)]
    fn length_miss(
        &mut self,
        key: Key,
        what: System,
        fetch: impl FnOnce(&mut [u8; MAX_LEN]) -> usize,
    ) -> Option<u8> {
        let mut bytes = [0; MAX_LEN];
        let have = fetch(&mut bytes).min(MAX_LEN);
        let insn = decode(&bytes[..have], key.mode).ok()?;
        let found = match insn.op {
            Op::System(found) => found,
            Op::In | Op::Out => System::Io,
            _ => return None,
        };
        if found != what {
            return None;
        }
        let entry = Length { linear: key.linear, cr3: key.cr3, tag: tag(key.mode, what), len: insn.len };
        self.lengths[key.slot(LENGTHS)] = entry;
        Some(insn.len)
    }

    /// The instruction that was last seen at `key`, if `is_current` says that these bytes are still there.
    #[inline]
    pub(super) fn instruction(
        &mut self,
        key: Key,
        is_current: impl FnOnce(&Bytes) -> bool,
    ) -> Result<&Fetched, Vacant<'_>> {
        let entry = &mut self.insns[key.slot(INSNS)];
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

/// Mode and kind in one number, never 0.
const fn tag(mode: Mode, what: System) -> u16 {
    (mode as u16) << 8 | what as u16
}
