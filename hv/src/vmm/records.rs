//! Where samples and traces go: rings in memory that `pal` maps, too (`records=`), or in the host's own, from which they leave
//! through the telemetry port when the first PCPU has nothing else to do, and at the end of a guest.
//!
//! Made once, before the first guest. The rings of traces are written by their PCPU alone; that of samples under a lock, which
//! is a leaf and held for a copy. A full ring drops and counts, and no PCPU waits.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write;
use core::sync::atomic::AtomicU64;

use abi::telemetry::{Kind, key};
use records::ring::{LONGEST, Ring};
use records::{HEADER_WORDS, Header, PCPUS};
use spin::Mutex;

use super::telemetry;
use crate::boot::cmdline::RecordMemory;
use crate::boot::host::Host;
use crate::boot::paging;
use crate::sched::topology::PcpuId;

/// Words of the rings where there is no common memory: samples of some minutes at the default period, and the first moments of
/// a trace.
const OWN_SAMPLE_WORDS: usize = 64 << 10;
const OWN_TRACE_WORDS: usize = 32 << 10;

/// The rings.
pub struct Records {
    samples: Mutex<Ring<'static>>,
    traces: Vec<Ring<'static>>,
    /// They leave through the telemetry port: the one reader at a time holds this.
    port: Option<Mutex<()>>,
}

impl Records {
    /// The rings that the command line asks for, for this many PCPUs of the scheduler, with times in ticks of `khz`. `None`: none,
    /// or the log says why not.
    pub fn start(host: &Host, pcpus: usize, khz: u64) -> Option<Records> {
        let options = &host.options;
        if options.samples.is_none() && !options.trace {
            return None;
        }
        let traces = if options.trace { pcpus.min(PCPUS) } else { 0 };
        let memory = match options.records {
            Some(place) => common(place)?,
            None => {
                let words = HEADER_WORDS + OWN_SAMPLE_WORDS + traces * OWN_TRACE_WORDS;
                let words: Vec<AtomicU64> = (0..words).map(|_| AtomicU64::new(0)).collect();
                Box::leak(words.into_boxed_slice())
            }
        };
        let header = Header::divide(memory.len(), khz, traces);
        let rings = header.and_then(|header| {
            let traces = (0..traces).map(|pcpu| header.trace(memory, pcpu)).collect::<Option<Vec<_>>>()?;
            Some((header, header.samples(memory)?, traces))
        });
        let Some((header, samples, traces)) = rings else {
            log::error!("records=: {} words are too few for the rings of {pcpus} PCPUs", memory.len());
            return None;
        };
        header.write(memory);
        let port = options.records.is_none().then(|| Mutex::new(()));
        Some(Records { samples: Mutex::new(samples), traces, port })
    }

    /// Adds a sample.
    pub fn push_sample(&self, record: &[u64]) {
        // A full ring has counted it.
        let _dropped = !self.samples.lock().push(record);
    }

    /// Whether the events of the PCPU with this number are wanted. Those of a first PCPU that runs no guests are not: its number
    /// comes after all others, and nothing is traced there.
    pub fn traces(&self, pcpu: PcpuId) -> bool {
        self.traces.len() > pcpu.index()
    }

    /// Adds an event of this PCPU, which executes this. The number is the scheduler's, as in samples and statistics: readers
    /// know no other.
    #[inline]
    pub fn push_event(&self, pcpu: PcpuId, record: &[u64]) {
        if let Some(ring) = self.traces.get(pcpu.index()) {
            let _dropped = !ring.push(record);
        }
    }

    /// Sends one record through the telemetry port, samples first. False: there is none, or it need not.
    pub fn send_one(&self) -> bool {
        let Some(port) = &self.port else { return false };
        let _one_reader = port.lock();
        let mut record = [0; LONGEST];
        let samples = *self.samples.lock();
        let mut rings =
            core::iter::once(("samples", samples)).chain(self.traces.iter().map(|ring| ("trace", *ring)));
        let Some((pcpu, (name, ring, words))) = rings
            .by_ref()
            .enumerate()
            .find_map(|(n, (name, ring))| Some((n.saturating_sub(1), (name, ring, ring.pop(&mut record)?))))
        else {
            return false;
        };
        let mut text = String::new();
        for word in record.iter().take(words) {
            // Writing to a string does not fail.
            let _ = write!(text, "{word:x} ");
        }
        telemetry::record(Kind::Records, |json| {
            json.text(key::RING, name)?;
            json.number(key::PCPU, pcpu)?;
            json.number(key::DROPPED, ring.dropped())?;
            json.text(key::WORDS, text.trim_end())
        });
        true
    }

    /// Sends everything, at the end of a guest: what the rings hold, and no more.
    pub fn send_all(&self) {
        let most = self.traces.len() * OWN_TRACE_WORDS + OWN_SAMPLE_WORDS;
        let _all = (0..most).all(|_| self.send_one());
    }
}

/// The common memory of the command line.
fn common(RecordMemory { address, bytes }: RecordMemory) -> Option<&'static [AtomicU64]> {
    if paging::map_memory(address..address.saturating_add(bytes)).is_err() {
        log::error!("records={address:#x}: no memory can be mapped there; samples and traces are lost");
        return None;
    }
    // SAFETY: mapped, for ever, and a multiple of 4 KiB; others access it by atomic words, as this does.
    Some(unsafe { core::slice::from_raw_parts(address as *const AtomicU64, (bytes / 8) as usize) })
}
