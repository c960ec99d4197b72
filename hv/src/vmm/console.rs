//! The serial console that guests and the monitor share: escape keys in the input, bytes of output.
//!
//! One guest has the console: it gets what is typed, and its output is shown. The output of all guests is recorded line by line
//! as well, if the machine has a place for records. During a monitor session the output of the guest that has the console is
//! buffered; when the buffer is full, the guest waits. The first PCPU drains the port, because it takes its interrupt; any PCPU
//! writes for the guest that it runs.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use arrayvec::ArrayVec;
use heapless::Deque;
use spin::Mutex;

use super::escapes::{Escapes, HELP, Input};
use crate::monitor::Key;

/// The port.
pub trait Port {
    /// A received byte.
    fn read(&mut self) -> Option<u8>;
    /// Sends a byte. False: it was not taken.
    fn write(&mut self, byte: u8) -> bool;
    /// Sends a byte; waits a bounded time.
    fn finish(&mut self, byte: u8);
}

/// Bytes of a line that is recorded at once.
const LINE: usize = 256;

/// Bytes of output that are buffered during a monitor session.
const BEHIND: usize = 2048;

/// No guest.
const NONE: u32 = u32::MAX;

/// What became of a guest's byte.
#[derive(Debug, Default)]
#[must_use]
pub struct Written {
    /// The console takes no more until [`Console::is_writable`].
    pub is_full: bool,
    /// A line is complete: to be recorded.
    pub line: Option<ArrayVec<u8, LINE>>,
}

/// The console.
pub struct Console<P> {
    state: Mutex<State<P>>,
    /// The guest that has the console, and whether it has input: its number, or [`NONE`].
    input_for: AtomicU32,
    monitor_wanted: AtomicBool,
}

struct State<P> {
    port: P,
    escapes: Escapes,
    focus: u32,
    /// Input that the guest has no room for yet. When it is full, bytes stay in the port.
    input: Deque<u8, 256>,
    /// Output that the port had no room for.
    held: Option<u8>,
    /// What is typed is for the monitor.
    at_monitor: bool,
    /// Output that came meanwhile.
    behind: Deque<u8, BEHIND>,
    keys: Deque<Key, 64>,
    /// Output of each guest since its last line feed, if it is recorded.
    lines: Option<Vec<ArrayVec<u8, LINE>>>,
}

impl<P: Port> Console<P> {
    /// The console of `guests` guests, `focus` the first to have it.
    pub fn new(port: P, guests: usize, focus: u32, records: bool) -> Console<P> {
        let state = State {
            port,
            escapes: Escapes::default(),
            focus,
            input: Deque::new(),
            held: None,
            at_monitor: false,
            behind: Deque::new(),
            keys: Deque::new(),
            lines: records.then(|| (0..guests).map(|_| ArrayVec::new()).collect()),
        };
        let (input_for, monitor_wanted) = (AtomicU32::new(NONE), AtomicBool::new(false));
        Console { state: Mutex::new(state), input_for, monitor_wanted }
    }

    /// The guest that has the console.
    pub fn focus(&self) -> u32 {
        self.state.lock().focus
    }

    /// Gives the console to a guest. Input that waits is lost.
    pub fn set_focus(&self, guest: u32) {
        let mut state = self.state.lock();
        state.focus = guest;
        // It was typed for the guest that had the console.
        state.input.clear();
        self.input_for.store(NONE, Ordering::Relaxed);
    }

    /// Takes what the port has received, as far as there is room. True: there is something for the guest that has the console.
    pub fn drain(&self) -> bool {
        self.drain_into(&mut self.state.lock())
    }

    fn drain_into(&self, state: &mut State<P>) -> bool {
        // What finds no room stays in the port's FIFO, and nothing is lost before that is full.
        while !state.input.is_full() && !state.keys.is_full() {
            let Some(byte) = state.port.read() else { break };
            match (state.escapes.feed(byte), state.at_monitor) {
                (Input::None, _) => {}
                // By way of the log, which keeps lines whole.
                (Input::Help, _) => log::info!("{HELP}"),
                (Input::Byte(byte), true) => _ = state.keys.push_back(Key::Byte(byte)),
                (Input::Byte(byte), false) => _ = state.input.push_back(byte),
                (Input::Monitor, true) => _ = state.keys.push_back(Key::Monitor),
                // What follows is for the monitor.
                (Input::Monitor, false) => {
                    state.at_monitor = true;
                    self.monitor_wanted.store(true, Ordering::Relaxed);
                }
            }
        }
        if !state.keys.is_empty() {
            self.monitor_wanted.store(true, Ordering::Relaxed);
        }
        let has_input = !state.input.is_empty();
        self.input_for.store(if has_input { state.focus } else { NONE }, Ordering::Relaxed);
        has_input
    }

    /// Whether a guest has input.
    #[inline(always)]
    pub fn has_input(&self, guest: u32) -> bool {
        self.input_for.load(Ordering::Relaxed) == guest
    }

    /// The next byte for a guest.
    pub fn read(&self, guest: u32) -> Option<u8> {
        let mut state = self.state.lock();
        if state.focus != guest {
            return None;
        }
        let byte = state.input.pop_front();
        self.drain_into(&mut state);
        byte
    }

    /// Shows a byte of a guest's output.
    #[inline]
    pub fn write(&self, guest: u32, byte: u8) -> Written {
        let mut state = self.state.lock();
        let mut written = Written { is_full: false, line: state.add_to_line(guest, byte) };
        if state.focus == guest {
            if let Some(held) = state.held.take() {
                state.finish(held);
            }
            if !state.put(byte) {
                state.held = Some(byte);
                written.is_full = true;
            }
        }
        written
    }

    /// Whether [`Console::write`] takes bytes of a guest (again).
    pub fn is_writable(&self, guest: u32) -> bool {
        let state = &mut *self.state.lock();
        if state.focus != guest {
            return true;
        }
        if let Some(byte) = state.held.take()
            && !state.put(byte)
        {
            state.held = Some(byte);
        }
        state.held.is_none()
    }

    /// Shows a byte of the hypervisor's, for the monitor.
    pub fn show(&self, byte: u8) {
        self.state.lock().port.finish(byte);
    }

    /// Shows the last of a stopped guest's output, as far as the port takes it in time: a byte, or that there are no more. What
    /// is returned is to be recorded.
    pub fn finish(&self, guest: u32, byte: Option<u8>) -> Option<ArrayVec<u8, LINE>> {
        let state = &mut *self.state.lock();
        if state.focus == guest {
            let held = state.held.take();
            held.into_iter().chain(byte).for_each(|byte| state.finish(byte));
        }
        match byte {
            Some(byte) => state.add_to_line(guest, byte),
            None => state.line(guest).map(ArrayVec::take).filter(|line| !line.is_empty()),
        }
    }

    /// Whether the escape key has requested the monitor, or keys wait for it.
    #[inline(always)]
    pub fn wants_monitor(&self) -> bool {
        self.monitor_wanted.load(Ordering::Relaxed)
    }

    /// The monitor takes over: what is typed is for it.
    pub fn enter_monitor(&self) {
        self.state.lock().at_monitor = true;
        self.monitor_wanted.store(false, Ordering::Relaxed);
    }

    /// The next key for the monitor.
    pub fn key(&self) -> Option<Key> {
        let mut state = self.state.lock();
        self.drain_into(&mut state);
        let key = state.keys.pop_front();
        self.monitor_wanted.store(!state.keys.is_empty(), Ordering::Relaxed);
        key
    }

    /// The monitor is left: what is typed is for the guest again, and so is what the monitor has not taken, as far as the escape key
    /// has not requested the monitor again. The VCPU of a guest that was just resumed may have taken that out of the port.
    pub fn leave_monitor(&self) {
        let mut state = self.state.lock();
        while let Some(byte) = state.behind.pop_front() {
            state.port.finish(byte);
        }
        state.at_monitor = false;
        while let Some(key) = state.keys.pop_front() {
            match key {
                Key::Byte(byte) => _ = state.input.push_back(byte),
                Key::Monitor => {
                    // The keys behind it stay for the next session.
                    state.at_monitor = true;
                    break;
                }
            }
        }
        self.monitor_wanted.store(state.at_monitor, Ordering::Relaxed);
    }
}

impl<P: Port> State<P> {
    /// Shows a byte of the guest that has the console, or keeps it until the monitor is left. False: there is no room.
    #[inline]
    fn put(&mut self, byte: u8) -> bool {
        if self.at_monitor { self.behind.push_back(byte).is_ok() } else { self.port.write(byte) }
    }

    /// The same for one that must not wait; without room behind the monitor it is lost.
    fn finish(&mut self, byte: u8) {
        if self.at_monitor {
            let _there_may_be_no_room = self.behind.push_back(byte);
        } else {
            self.port.finish(byte);
        }
    }

    /// The output of a guest since its last line feed, if it is recorded.
    fn line(&mut self, guest: u32) -> Option<&mut ArrayVec<u8, LINE>> {
        self.lines.as_mut()?.get_mut(guest as usize)
    }

    /// Adds to it. A line that is complete is to be recorded.
    #[inline]
    fn add_to_line(&mut self, guest: u32, byte: u8) -> Option<ArrayVec<u8, LINE>> {
        let line = self.line(guest)?;
        line.push(byte);
        (byte == b'\n' || line.is_full()).then(|| line.take())
    }
}

#[cfg(test)]
mod tests;
