//! The console device: one port, bytes in and out. Virtio 1.2, 5.3.

use alloc::boxed::Box;

use heapless::Deque;

use super::chain::Chain;
use super::model::Served;
use super::queue::Malformed;
use crate::mem::guest_memory::GuestMemory;

const RECEIVE: usize = 0;
const INPUT: usize = 256;
const OUTPUT: usize = 1024;
const CHUNK: usize = 64;

/// A console.
#[derive(Debug, Default)]
pub struct Console {
    /// Typed, and not yet read by the guest.
    input: Deque<u8, INPUT>,
    /// Written by the guest, and not yet shown.
    output: Box<Deque<u8, OUTPUT>>,
    /// Bytes of the first available chain that are in `output` already, because all of it did not fit.
    taken: u64,
}

impl Console {
    /// Bytes of input that there is room for.
    pub fn room(&self) -> usize {
        INPUT - self.input.len()
    }

    /// A byte has been typed; it is lost if there is no room.
    pub fn type_byte(&mut self, byte: u8) {
        let _room = self.input.push_back(byte);
    }

    /// Takes the next byte to show.
    pub fn take_output(&mut self) -> Option<u8> {
        self.output.pop_front()
    }

    /// Whether there are bytes to show.
    pub fn has_output(&self) -> bool {
        !self.output.is_empty()
    }

    /// What is on its way to the screen stays.
    pub(super) fn reset(&mut self) {
        self.input.clear();
        self.taken = 0;
    }

    pub(super) fn is_ready(&self, queue: usize) -> bool {
        if queue == RECEIVE { !self.input.is_empty() } else { !self.output.is_full() }
    }

    pub(super) fn serve(
        &mut self,
        queue: usize,
        chain: &Chain,
        memory: &impl GuestMemory,
    ) -> Result<Served, Malformed> {
        if queue == RECEIVE { self.receive(chain, memory) } else { self.transmit(chain, memory) }
    }

    fn receive(&mut self, chain: &Chain, memory: &impl GuestMemory) -> Result<Served, Malformed> {
        let mut to = chain.writable();
        if to.is_empty() {
            return Err(Malformed::Request);
        }
        let mut written = 0;
        while !to.is_empty()
            && let Some(byte) = self.input.pop_front()
        {
            written += to.write(memory, &[byte])? as u32;
        }
        Ok(Served::Done { written, moved: written })
    }

    fn transmit(&mut self, chain: &Chain, memory: &impl GuestMemory) -> Result<Served, Malformed> {
        let mut from = chain.readable();
        // A chain that did not fit was put back and comes again from its beginning.
        from.skip(self.taken);
        while !from.is_empty() {
            let mut bytes = [0; CHUNK];
            let room = (OUTPUT - self.output.len()).min(CHUNK);
            if room == 0 {
                return Ok(Served::Later);
            }
            let len = from.read(memory, &mut bytes[..room])?;
            for &byte in &bytes[..len] {
                let _there_is_room = self.output.push_back(byte);
            }
            self.taken = self.taken.saturating_add(len as u64);
        }
        let moved = core::mem::take(&mut self.taken).min(u32::MAX.into()) as u32;
        Ok(Served::Done { written: 0, moved })
    }
}
