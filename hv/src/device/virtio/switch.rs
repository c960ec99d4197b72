//! A learning switch: frames pass from port to port by copy, through bounded queues.
//!
//! Network devices of all VMs send and receive through a [`Port`]. A switch has a lock of its own, the last in the order of
//! locks, held for the copy of one frame; no VM's lock is ever taken on behalf of another VM. A frame that reaches a port
//! sets a bit in the receiver's word and names its VM in [`Woken`]; that VM then fetches the frame by itself.
//!
//! Addresses are learned into a table of fixed size, by hash: a collision costs the older address its entry, and frames to
//! an unknown address go to all ports. A full queue loses what comes.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::{AtomicU32, Ordering};

use spin::Mutex;

/// The shortest frame: two addresses and a type.
pub const FRAME_MIN: usize = 14;
/// The longest frame: with a VLAN tag, without checksum.
pub const FRAME_MAX: usize = 1518;
/// Frames that wait at a port at most.
pub const QUEUE_FRAMES: usize = 256;
/// Entries of the table of addresses.
const TABLE: usize = 256;

/// A hardware address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// An address for card `card` of the VM called `vm`: locally administered, the same at each start.
    pub fn of(vm: &str, card: u8) -> Mac {
        let hash =
            vm.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        let [a, b, c, d] = hash.to_be_bytes();
        // 0x52: locally administered (bit 1), not a group (bit 0).
        Mac([0x52, a ^ d, b, c, d, card])
    }

    fn is_group(self) -> bool {
        self.0[0] & 1 != 0
    }

    fn slot(self) -> usize {
        self.0.iter().fold(0usize, |hash, byte| (hash.wrapping_mul(31)) ^ usize::from(*byte)) % TABLE
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// VMs that something has arrived for, by number; numbers that differ by 64 share a place.
#[must_use = "a VM that is not woken looks at its devices late"]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Woken(pub u64);

impl Woken {
    /// Whether VM `vm` is among them.
    pub fn contains(self, vm: u32) -> bool {
        self.0 >> (vm & 63) & 1 != 0
    }
}

/// What to wake when a frame arrives.
#[derive(Clone, Debug)]
pub struct Waker {
    /// The VM's number.
    pub vm: u32,
    /// The word in which its devices note that they want to be served.
    pub word: Arc<AtomicU32>,
    /// The device's bit.
    pub bit: u32,
}

#[derive(Debug)]
struct Frame {
    len: u16,
    bytes: [u8; FRAME_MAX],
}

/// One port: a ring of frames.
#[derive(Debug)]
struct Socket {
    waker: Waker,
    frames: Box<[Frame]>,
    first: usize,
    count: usize,
    lost: u64,
}

#[derive(Debug)]
struct State {
    /// Ports keep their numbers; those whose device is gone are empty.
    sockets: Vec<Option<Socket>>,
    table: [Option<(Mac, usize)>; TABLE],
}

/// A switch; clones are the same switch.
#[derive(Clone, Debug)]
pub struct Switch(Arc<Mutex<State>>);

impl Default for Switch {
    fn default() -> Self {
        Switch(Arc::new(Mutex::new(State { sockets: Vec::new(), table: [None; TABLE] })))
    }
}

impl Switch {
    /// A new port; `None`: there is no memory for its queue, about 390 KB.
    pub fn plug(&self, waker: Waker) -> Option<Port> {
        let mut frames = Vec::new();
        // All of it now, so that guests' frames allocate nothing later.
        frames.try_reserve_exact(QUEUE_FRAMES).ok()?;
        frames.resize_with(QUEUE_FRAMES, || Frame { len: 0, bytes: [0; FRAME_MAX] });
        let frames = frames.into_boxed_slice();
        let socket = Some(Socket { waker, frames, first: 0, count: 0, lost: 0 });
        let mut state = self.0.lock();
        let free = state.sockets.iter().position(Option::is_none);
        let number = free.unwrap_or(state.sockets.len());
        match state.sockets.get_mut(number) {
            Some(place) => *place = socket,
            None => state.sockets.extend(vec![socket]),
        }
        Some(Port { switch: self.clone(), number })
    }
}

/// A device's end of a port. Dropped, it leaves the switch.
#[derive(Debug)]
pub struct Port {
    switch: Switch,
    number: usize,
}

impl Port {
    /// Sends a frame of [`FRAME_MIN`] to [`FRAME_MAX`] bytes; others are lost.
    pub fn send(&self, frame: &[u8], woken: &mut Woken) {
        let (Some(&to), Some(&from)) =
            (frame.first_chunk::<6>(), frame.get(6..).and_then(|rest| rest.first_chunk()))
        else {
            return;
        };
        if (FRAME_MIN..=FRAME_MAX).contains(&frame.len()) {
            self.switch.0.lock().pass(self.number, Mac(from), Mac(to), frame, woken);
        }
    }

    /// Takes the oldest frame out, into `frame`; its length.
    pub fn receive(&self, frame: &mut [u8]) -> Option<usize> {
        let mut state = self.switch.0.lock();
        let socket = state.sockets.get_mut(self.number)?.as_mut()?;
        socket.count = socket.count.checked_sub(1)?;
        let first = &socket.frames[socket.first];
        let len = frame.len().min(first.len.into());
        frame[..len].copy_from_slice(&first.bytes[..len]);
        socket.first = (socket.first + 1) % QUEUE_FRAMES;
        Some(len)
    }

    /// Whether a frame waits.
    pub fn has_frames(&self) -> bool {
        self.with(|socket| socket.count != 0).unwrap_or(false)
    }

    /// Loses all frames that wait.
    pub fn clear(&self) {
        self.with(|socket| socket.count = 0);
    }

    /// Frames that found the queue full.
    pub fn lost(&self) -> u64 {
        self.with(|socket| socket.lost).unwrap_or(0)
    }

    fn with<R>(&self, f: impl FnOnce(&mut Socket) -> R) -> Option<R> {
        self.switch.0.lock().sockets.get_mut(self.number)?.as_mut().map(f)
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        let mut state = self.switch.0.lock();
        let number = self.number;
        let gone = state.sockets.get_mut(number).and_then(Option::take);
        state
            .table
            .iter_mut()
            .filter(|entry| entry.is_some_and(|(_, port)| port == number))
            .for_each(|e| *e = None);
        // The frames are freed without the switch's lock.
        drop(state);
        drop(gone);
    }
}

impl State {
    fn pass(&mut self, port: usize, from: Mac, to: Mac, frame: &[u8], woken: &mut Woken) {
        // A group address is no sender's; learned, it would divert what goes to the group.
        if !from.is_group() {
            self.table[from.slot()] = Some((from, port));
        }
        let known = self.table[to.slot()].filter(|(mac, _)| *mac == to && !to.is_group());
        for (number, socket) in self.sockets.iter_mut().enumerate() {
            if number != port
                && known.is_none_or(|(_, known)| known == number)
                && let Some(socket) = socket
            {
                socket.take(frame, woken);
            }
        }
    }
}

impl Socket {
    fn take(&mut self, frame: &[u8], woken: &mut Woken) {
        if self.count == QUEUE_FRAMES {
            self.lost = self.lost.saturating_add(1);
            return;
        }
        let place = &mut self.frames[(self.first + self.count) % QUEUE_FRAMES];
        place.len = frame.len() as u16;
        place.bytes[..frame.len()].copy_from_slice(frame);
        self.count += 1;
        // Behind the frame: a VM that sees the bit finds the frame.
        self.waker.word.fetch_or(self.waker.bit, Ordering::Release);
        woken.0 |= 1 << (self.waker.vm & 63);
    }
}
