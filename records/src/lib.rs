//! Samples and traces as the hypervisor writes them and `pal` reads them: binary records of 64-bit words, in rings in memory that
//! both see.
//!
//! The memory begins with a [`Header`]. Behind it are a [`ring`] for samples of all VMs and, if traces are wanted, one for each
//! PCPU. Where there is no common memory the words of the same rings leave through the second serial port (docs/telemetry.md).
//! [`sample`], [`pcpus`], [`regions`], [`tiers`], [`pager`] and [`trace`] are the records.
//!
//! A record begins with a word that says what it is and how long ([`head`]); a reader skips kinds that it does not know.
//! [`VERSION`] changes when a word changes its meaning or place; words may be appended to a record without that.
#![no_std]
#![forbid(unsafe_code)]

pub mod pager;
pub mod pcpus;
pub mod regions;
pub mod ring;
pub mod sample;
pub mod tiers;
pub mod trace;

use core::sync::atomic::{AtomicU64, Ordering};

/// "PALRECS" and a zero byte.
pub const MAGIC: u64 = u64::from_le_bytes(*b"PALRECS\0");
/// Of these layouts.
pub const VERSION: u64 = 1;
/// Words of the header: a page.
pub const HEADER_WORDS: usize = 512;
/// The most PCPUs that have traces.
pub const PCPUS: usize = 64;

/// A record's first word: its kind, its length in words (this one included), and 32 bits of its own.
pub const fn head(kind: u8, words: usize, more: u32) -> u64 {
    kind as u64 | (words as u64 & 0xffff) << 8 | (more as u64) << 32
}

/// Kind, length and the record's own bits.
pub const fn parse_head(word: u64) -> (u8, usize, u32) {
    (word as u8, (word >> 8 & 0xffff) as usize, (word >> 32) as u32)
}

fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

fn joined(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// How the memory is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Ticks of the host's TSC in a millisecond.
    pub tsc_khz: u64,
    /// Words of the ring of samples.
    pub sample_words: u64,
    /// Words of each ring of traces.
    pub trace_words: u64,
    /// Rings of traces: PCPUs, or 0.
    pub traces: u64,
}

impl Header {
    /// Divides this many words: with a ring of traces for each of this number of PCPUs, or without. `None`: too few.
    pub fn divide(words: usize, tsc_khz: u64, traces: usize) -> Option<Header> {
        let room = words.checked_sub(HEADER_WORDS)?;
        let (sample_words, trace_words) = match traces {
            0 => (room, 0),
            1..=PCPUS => {
                let sample_words = room / 4;
                (sample_words, (room - sample_words) / traces)
            }
            _ => return None,
        };
        let fits = sample_words >= ring::LEAST && (traces == 0 || trace_words >= ring::LEAST);
        let [sample_words, trace_words, traces] = [sample_words, trace_words, traces].map(|n| n as u64);
        fits.then_some(Header { tsc_khz, sample_words, trace_words, traces })
    }

    /// Writes it, its magic number last: then the rings are ready.
    pub fn write(&self, memory: &[AtomicU64]) {
        let words = [VERSION, self.tsc_khz, self.sample_words, self.trace_words, self.traces];
        for (to, word) in memory.iter().skip(1).zip(words) {
            to.store(word, Ordering::Relaxed);
        }
        if let Some(magic) = memory.first() {
            magic.store(MAGIC, Ordering::Release);
        }
    }

    /// Reads it. `None`: it was not written yet; an error: it is not what this program understands.
    pub fn read(memory: &[AtomicU64]) -> Result<Option<Header>, &'static str> {
        let word = |at: usize| memory.get(at).map_or(0, |word| word.load(Ordering::Acquire));
        match (word(0), word(1)) {
            (0, _) => return Ok(None),
            (MAGIC, VERSION) => {}
            (MAGIC, _) => return Err("the hypervisor's records have another version"),
            _ => return Err("the memory for records holds something else"),
        }
        let header =
            Header { tsc_khz: word(2), sample_words: word(3), trace_words: word(4), traces: word(5) };
        let end = header.trace_words.checked_mul(header.traces);
        let end = end.and_then(|words| words.checked_add(header.sample_words));
        let end = end.and_then(|words| words.checked_add(HEADER_WORDS as u64));
        match end {
            Some(end) if end <= memory.len() as u64 && header.traces <= PCPUS as u64 => Ok(Some(header)),
            _ => Err("the header of the records leads beyond their memory"),
        }
    }

    /// The ring of samples.
    pub fn samples<'a>(&self, memory: &'a [AtomicU64]) -> Option<ring::Ring<'a>> {
        ring::Ring::new(memory.get(HEADER_WORDS..)?.get(..self.sample_words as usize)?)
    }

    /// The ring of a PCPU's traces.
    pub fn trace<'a>(&self, memory: &'a [AtomicU64], pcpu: usize) -> Option<ring::Ring<'a>> {
        if pcpu as u64 >= self.traces {
            return None;
        }
        let begin = HEADER_WORDS + self.sample_words as usize + pcpu * self.trace_words as usize;
        ring::Ring::new(memory.get(begin..)?.get(..self.trace_words as usize)?)
    }
}

#[cfg(test)]
extern crate std;

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn memory(words: usize) -> Vec<AtomicU64> {
        (0..words).map(|_| AtomicU64::new(0)).collect()
    }

    #[test]
    fn rings_lie_apart_and_within() {
        let memory = memory(8192);
        assert_eq!(Header::read(&memory), Ok(None));
        let header = Header::divide(memory.len(), 1000, 3).unwrap();
        header.write(&memory);
        assert_eq!(Header::read(&memory), Ok(Some(header)));
        let rings: Vec<_> = (0..3).map(|pcpu| header.trace(&memory, pcpu).unwrap()).collect();
        let samples = header.samples(&memory).unwrap();
        for (n, ring) in rings.iter().chain([&samples]).enumerate() {
            assert!(ring.push(&[head(9, 2, n as u32), n as u64]));
        }
        for (n, ring) in rings.iter().chain([&samples]).enumerate() {
            let mut found = [0; 64];
            assert_eq!(ring.pop(&mut found), Some(2));
            assert_eq!(found[1], n as u64);
        }
        assert!(header.trace(&memory, 3).is_none());
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        assert_eq!(Header::divide(100, 1, 0), None);
        assert_eq!(Header::divide(HEADER_WORDS + 64, 1, 64), None);
        assert_eq!(Header::divide(1 << 20, 1, PCPUS + 1), None);
        let memory = memory(2048);
        Header { tsc_khz: 1, sample_words: u64::MAX, trace_words: 2, traces: 3 }.write(&memory);
        assert!(Header::read(&memory).unwrap_err().contains("beyond"));
        memory[1].store(7, Ordering::Relaxed);
        assert!(Header::read(&memory).unwrap_err().contains("version"));
        memory[0].store(5, Ordering::Relaxed);
        assert!(Header::read(&memory).unwrap_err().contains("something else"));
    }
}
