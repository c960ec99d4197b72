//! The network device: a port of a [`super::switch::Switch`]. Virtio 1.2, 5.1; no offloads, so packets are frames.

use alloc::boxed::Box;

use super::chain::Chain;
use super::model::Served;
use super::queue::Malformed;
use super::switch::{FRAME_MAX, FRAME_MIN, Mac, Port, Woken};
use crate::mem::guest_memory::GuestMemory;

const RECEIVE: usize = 0;
/// Bytes before each frame; all zeroes but the number of buffers, which is 1.
const HEADER: usize = 12;
const BUFFERS: usize = 10;
/// Status: the link is up.
const LINK_UP: u32 = 1;

/// A network card.
#[derive(Debug)]
pub struct Net {
    mac: Mac,
    port: Port,
    /// A header and a frame.
    packet: Box<[u8; HEADER + FRAME_MAX]>,
}

impl Net {
    /// A MAC address of its own, the status of the link.
    pub(super) const FEATURES: u64 = 1 << 5 | 1 << 16;

    /// The card with address `mac`, plugged into `port`.
    pub fn new(mac: Mac, port: Port) -> Net {
        Net { mac, port, packet: Box::new([0; HEADER + FRAME_MAX]) }
    }

    pub(super) fn config(&self, offset: u64) -> u32 {
        let [a, b, c, d, e, f] = self.mac.0;
        match offset {
            0 => u32::from_le_bytes([a, b, c, d]),
            4 => u32::from_le_bytes([e, f, 0, 0]) | LINK_UP << 16,
            _ => 0,
        }
    }

    pub(super) fn reset(&mut self) {
        self.port.clear();
    }

    pub(super) fn is_ready(&self, queue: usize) -> bool {
        queue != RECEIVE || self.port.has_frames()
    }

    pub(super) fn serve(
        &mut self,
        queue: usize,
        chain: &Chain,
        memory: &impl GuestMemory,
        woken: &mut Woken,
    ) -> Result<Served, Malformed> {
        if queue == RECEIVE { self.receive(chain, memory) } else { self.transmit(chain, memory, woken) }
    }

    fn receive(&mut self, chain: &Chain, memory: &impl GuestMemory) -> Result<Served, Malformed> {
        let (header, frame) = self.packet.split_at_mut(HEADER);
        header.fill(0);
        // Without merged buffers a packet fills one chain, and the field says so (virtio 1.2, 5.1.6.4).
        header[BUFFERS] = 1;
        let Some(len) = self.port.receive(frame) else { return Ok(Served::Later) };
        let packet = &self.packet[..HEADER + len];
        let mut to = chain.writable();
        if to.len() < packet.len() as u64 {
            return Err(Malformed::Request);
        }
        to.write(memory, packet)?;
        Ok(Served::Done { written: packet.len() as u32, moved: packet.len() as u32 })
    }

    /// Frames of impossible length are lost, as on a wire.
    fn transmit(
        &mut self,
        chain: &Chain,
        memory: &impl GuestMemory,
        woken: &mut Woken,
    ) -> Result<Served, Malformed> {
        let mut from = chain.readable();
        let bytes = from.len();
        let len = if bytes <= self.packet.len() as u64 { from.read(memory, &mut *self.packet)? } else { 0 };
        if len >= HEADER + FRAME_MIN {
            self.port.send(&self.packet[HEADER..len], woken);
        }
        Ok(Served::Done { written: 0, moved: len as u32 })
    }
}
