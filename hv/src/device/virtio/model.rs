//! What the kinds of device have in common: the transport asks, each kind answers.

use alloc::boxed::Box;

use super::balloon::{self, Balloon};
use super::block::Block;
use super::chain::Chain;
use super::console::Console;
use super::entropy::Entropy;
use super::net::Net;
use super::queue::Malformed;
use super::switch::Woken;
use crate::mem::guest_memory::GuestMemory;

/// Queues of a device at most.
pub const MAX_QUEUES: usize = balloon::QUEUES;

/// What became of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Served {
    /// Done: bytes written to the chain, and bytes moved in all.
    Done { written: u32, moved: u32 },
    /// The device has no room or no data for (the rest of) it now.
    Later,
}

/// A device behind the transport.
#[derive(Debug)]
pub(super) enum Model {
    Block(Block),
    Net(Net),
    Console(Console),
    Entropy(Entropy),
    Balloon(Box<Balloon>),
}

impl Model {
    /// The device type (virtio 1.2, chapter 5).
    pub(super) fn id(&self) -> u16 {
        match self {
            Model::Net(_) => 1,
            Model::Block(_) => 2,
            Model::Console(_) => 3,
            Model::Entropy(_) => 4,
            Model::Balloon(_) => 5,
        }
    }

    /// PCI class code, subclass and programming interface.
    pub(super) fn class(&self) -> u32 {
        match self {
            Model::Net(_) => 0x02_0000,
            Model::Block(_) => 0x01_8000,
            Model::Console(_) => 0x07_8000,
            Model::Entropy(_) | Model::Balloon(_) => 0xff_0000,
        }
    }

    pub(super) fn queues(&self) -> usize {
        match self {
            Model::Net(_) | Model::Console(_) => 2,
            Model::Block(_) | Model::Entropy(_) => 1,
            Model::Balloon(_) => balloon::QUEUES,
        }
    }

    /// Feature bits of this kind, beside those of the transport.
    pub(super) fn features(&self) -> u64 {
        match self {
            Model::Block(block) => block.features(),
            Model::Net(_) => Net::FEATURES,
            Model::Balloon(_) => Balloon::FEATURES,
            Model::Console(_) | Model::Entropy(_) => 0,
        }
    }

    /// The dword at `offset` of the device's configuration; zeros past its end.
    pub(super) fn config(&self, offset: u64) -> u32 {
        match self {
            Model::Block(block) => block.config(offset),
            Model::Net(net) => net.config(offset),
            Model::Balloon(balloon) => balloon.config(offset),
            Model::Console(_) | Model::Entropy(_) => 0,
        }
    }

    /// The driver writes the bits in `mask` of the dword at `offset` of the device's configuration.
    pub(super) fn set_config(&mut self, offset: u64, mask: u32, bits: u32) {
        if let Model::Balloon(balloon) = self {
            balloon.set_config(offset, mask, bits);
        }
    }

    /// Whether there is something to do with chains of `queue`.
    pub(super) fn is_ready(&self, queue: usize) -> bool {
        match self {
            Model::Block(_) | Model::Entropy(_) => true,
            Model::Net(net) => net.is_ready(queue),
            Model::Console(console) => console.is_ready(queue),
            Model::Balloon(balloon) => balloon.is_ready(queue),
        }
    }

    /// Serves one chain; `woken` collects the VCPUs that its data reached.
    pub(super) fn serve(
        &mut self,
        queue: usize,
        chain: &Chain,
        memory: &impl GuestMemory,
        woken: &mut Woken,
    ) -> Result<Served, Malformed> {
        match self {
            Model::Block(block) => block.serve(chain, memory),
            Model::Net(net) => net.serve(queue, chain, memory, woken),
            Model::Console(console) => console.serve(queue, chain, memory),
            Model::Entropy(entropy) => entropy.serve(chain, memory),
            Model::Balloon(balloon) => balloon.serve(queue, chain, memory),
        }
    }

    /// The driver resets the device.
    pub(super) fn reset(&mut self) {
        match self {
            Model::Net(net) => net.reset(),
            Model::Console(console) => console.reset(),
            Model::Balloon(balloon) => balloon.reset(),
            Model::Block(_) | Model::Entropy(_) => {}
        }
    }
}
