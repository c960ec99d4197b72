//! Decoded instructions by address, because decoding costs some 400 machine instructions.
//!
//! Two direct-mapped tables. *Lengths* serve processors that do not save the next RIP: the exit itself says which
//! instruction it was, so an entry is trusted if the same kind was seen at the same place. What that cannot notice is
//! code that was replaced, at the same address and in the same address space, by the same instruction with other
//! prefixes; the price of noticing it is a fetch per exit, and a caller who wants that uses
//! [`DecodeCache::instruction`]. *Instructions* serve the emulator: the caller compares the bytes, so that modified
//! code is always noticed.

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
    fn slot(&self, slots: usize) -> usize {
        ((self.linear ^ self.linear >> 7 ^ self.cr3 >> 12) as usize) & (slots - 1)
    }
}

const LENGTHS: usize = 128;
const INSNS: usize = 64;

#[derive(Clone, Copy, Default)]
struct Length {
    key: Key,
    what: System,
    /// 0: empty.
    len: u8,
}

#[derive(Clone, Copy)]
struct Decoded {
    key: Key,
    bytes: [u8; MAX_LEN],
    insn: Insn,
}

/// A VCPU's decoded instructions; about 10 KiB.
pub struct DecodeCache {
    lengths: [Length; LENGTHS],
    insns: [Option<Decoded>; INSNS],
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
        DecodeCache { lengths: [Length { key, what: System::Cpuid, len: 0 }; LENGTHS], insns: [None; INSNS] }
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
        let slot = &mut self.lengths[key.slot(LENGTHS)];
        if slot.key == key && slot.what == what && slot.len != 0 {
            return Some(slot.len);
        }
        let len = decode_length(what, key.mode, fetch)?;
        *slot = Length { key, what, len };
        Some(len)
    }

    /// The decoded instruction at `key` if it was seen before, with the bytes that it had: compare them.
    pub fn instruction(&self, key: Key) -> Option<(&Insn, &[u8])> {
        let entry = self.insns[key.slot(INSNS)].as_ref().filter(|entry| entry.key == key)?;
        Some((&entry.insn, entry.bytes.get(..usize::from(entry.insn.len))?))
    }

    /// Remembers an instruction and the bytes that it was decoded from.
    pub fn insert(&mut self, key: Key, bytes: &[u8; MAX_LEN], insn: &Insn) {
        self.insns[key.slot(INSNS)] = Some(Decoded { key, bytes: *bytes, insn: *insn });
    }
}

#[cold]
fn decode_length(what: System, mode: Mode, fetch: impl FnOnce(&mut [u8; MAX_LEN]) -> usize) -> Option<u8> {
    let mut bytes = [0; MAX_LEN];
    let have = fetch(&mut bytes).min(MAX_LEN);
    let insn = decode(&bytes[..have], mode).ok()?;
    let found = match insn.op {
        Op::System(found) => found,
        Op::In | Op::Out => System::Io,
        _ => return None,
    };
    (found == what).then_some(insn.len)
}
