//! The 16550A serial port that is the guest's console.
//!
//! Owned by [`super::chipset::Chipset`]. Towards the guest: all twelve registers, FIFOs of 16 bytes, loopback, the
//! four interrupt causes and the character timeout. Towards the host: [`Uart::receive`] takes a byte if there is
//! room, so input is never lost to an overrun; sent bytes leave as [`Effect::ConsoleOutput`] at once, or, while the
//! host has signalled backpressure, wait in the transmit FIFO, where the guest sees them by LSR. Characters take no
//! time except for the timeout. Reference: National PC16550D data sheet. IRQ 4 is gated by OUT2, as on every PC.

mod fifo;
mod registers;
#[cfg(test)]
mod tests;

use super::Nanos;
use super::effect::{Effect, Line};
use fifo::Fifo;
pub use registers::LINE_STATUS_REGISTER;
use registers::*;

/// The serial port.
#[derive(Clone, Debug)]
pub struct Uart {
    ier: u8,
    lcr: u8,
    mcr: u8,
    /// Errors, data ready, and the two transmitter bits; kept up to date so that reading it is all that a polling
    /// console costs.
    lsr: u8,
    msr: u8,
    scratch: u8,
    divisor: u16,
    fifos: bool,
    trigger: usize,
    receive: Fifo,
    /// Bytes that wait for the host; empty without backpressure.
    transmit: Fifo,
    host_ready: bool,
    /// The transmitter-empty interrupt: set when it empties, cleared when it is read in IIR.
    transmit_event: bool,
    /// A second transmitter-empty event came while the line was high.
    pulsed: bool,
    /// When the character timeout strikes, if characters wait below the trigger level.
    timeout: Option<Nanos>,
    timed_out: bool,
    /// Sending a byte now changes nothing in the port.
    polled: bool,
}

impl Default for Uart {
    fn default() -> Self {
        Uart::new()
    }
}

impl Uart {
    /// The port after reset.
    pub const fn new() -> Uart {
        Uart {
            ier: 0,
            lcr: 0,
            mcr: 0,
            lsr: HOLDING_EMPTY | TRANSMITTER_EMPTY,
            msr: TERMINAL_READY,
            scratch: 0,
            divisor: 1,
            fifos: false,
            trigger: 1,
            receive: Fifo::new(),
            transmit: Fifo::new(),
            host_ready: true,
            transmit_event: false,
            pulsed: false,
            timeout: None,
            timed_out: false,
            polled: true,
        }
    }

    /// Back to the state after reset; bytes on their way are lost, the host's readiness stays.
    pub fn reset(&mut self) {
        *self = Uart { host_ready: self.host_ready, ..Uart::new() };
        self.update_polled();
    }

    /// Reads LSR if that is all there is to it: no errors that the read would clear.
    #[inline]
    pub fn poll_status(&self) -> Option<u8> {
        (self.lsr & LINE_STATUS_ERRORS == 0).then_some(self.lsr)
    }

    /// Writes register 0 if that is a byte for the host and nothing else: no interrupts, no backpressure. A console that
    /// polls lives on this and [`Uart::poll_status`]; [`Uart::write`] and [`Uart::read`] do the same the long way.
    #[inline]
    pub fn poll_send(&self, byte: u8) -> Option<Effect> {
        self.polled.then_some(Effect::ConsoleOutput(byte))
    }

    /// Reads register `offset`, 0 to 7.
    pub fn read(&mut self, offset: u16, now: Nanos) -> u8 {
        match offset & 7 {
            0 if self.lcr & DIVISOR_LATCH != 0 => self.divisor as u8,
            0 => self.take_received(now),
            1 if self.lcr & DIVISOR_LATCH != 0 => (self.divisor >> 8) as u8,
            1 => self.ier,
            // Reading IIR acknowledges the transmitter's interrupt: it has a side effect that LSR does not have.
            2 => self.identify(now),
            3 => self.lcr,
            4 => self.mcr,
            5 => {
                let lsr = self.lsr;
                if lsr & LINE_STATUS_ERRORS != 0 {
                    self.lsr &= !LINE_STATUS_ERRORS;
                }
                lsr
            }
            6 => {
                let msr = self.msr;
                // Reading clears the four change bits, and with them the modem-status interrupt.
                self.msr &= 0xf0;
                msr
            }
            _ => self.scratch,
        }
    }

    /// Writes register `offset`, 0 to 7.
    pub fn write(&mut self, offset: u16, value: u8, now: Nanos) -> Effect {
        let mut effect = Effect::None;
        match offset & 7 {
            0 if self.lcr & DIVISOR_LATCH == 0 => effect = self.send(value, now),
            0 => self.divisor = self.divisor & 0xff00 | u16::from(value),
            1 if self.lcr & DIVISOR_LATCH != 0 => self.divisor = self.divisor & 0xff | u16::from(value) << 8,
            1 => self.enable_interrupts(value & 0x0f),
            2 => self.control_fifos(value, now),
            3 => self.control_line(value, now),
            4 => self.control_modem(value & 0x1f),
            7 => self.scratch = value,
            _ => {} // LSR and MSR: factory tests only
        }
        self.update_polled();
        effect
    }

    /// Takes a byte of input; `false` if there is no room now (or the guest has the port in loopback).
    #[must_use]
    pub fn receive(&mut self, byte: u8, now: Nanos) -> bool {
        let accepted = self.mcr & LOOPBACK == 0 && self.receive.len() < self.capacity();
        if accepted {
            self.push_received(byte, 0, now);
        }
        accepted
    }

    /// Input bytes that [`Uart::receive`] would take now.
    pub fn room(&self) -> usize {
        if self.mcr & LOOPBACK != 0 { 0 } else { self.capacity() - self.receive.len() }
    }

    /// The host cannot take output (`false`) or can again (`true`). Then fetch with [`Uart::transmitted`] what has
    /// waited.
    pub fn set_host_ready(&mut self, ready: bool) {
        self.host_ready = ready;
        self.update_polled();
    }

    /// Whether the host can take output.
    pub fn host_is_ready(&self) -> bool {
        self.host_ready
    }

    /// The next byte that waited for the host, if it is ready.
    pub fn transmitted(&mut self) -> Option<u8> {
        let (byte, _) = self.host_ready.then(|| self.transmit.pop())??;
        if self.transmit.len() == 0 {
            self.transmitter_emptied();
            self.update_polled();
        }
        Some(byte)
    }

    /// The interrupt output, IRQ 4.
    pub fn line(&mut self, now: Nanos) -> Line {
        self.strike_timeout(now);
        // On PCs OUT2 drives the gate between the chip and IRQ 4.
        let level = self.mcr & OUT2 != 0 && self.pending() != 0;
        Line { level, pulsed: core::mem::take(&mut self.pulsed) && level }
    }

    /// When the character timeout strikes.
    pub fn deadline(&self) -> Option<Nanos> {
        self.timeout.filter(|_| self.ier & RECEIVED != 0)
    }

    /// Enabled interrupt causes that are present.
    fn pending(&self) -> u8 {
        let received = self.timed_out || self.receive.len() >= self.trigger;
        let causes = u8::from(received)
            | u8::from(self.transmit_event) << 1
            | u8::from(self.lsr & LINE_STATUS_ERRORS != 0) << 2
            | u8::from(self.msr & 0x0f != 0) << 3;
        causes & self.ier
    }

    /// Reads IIR: the most urgent cause. Naming the transmitter clears its event.
    fn identify(&mut self, now: Nanos) -> u8 {
        self.strike_timeout(now);
        let pending = self.pending();
        let cause = if pending & LINE_STATUS != 0 {
            0x06
        } else if pending & RECEIVED != 0 {
            if self.receive.len() >= self.trigger { 0x04 } else { CHARACTER_TIMEOUT }
        } else if pending & TRANSMIT_EMPTY != 0 {
            // Reading IIR acknowledges it only where IIR names it: a more urgent cause leaves it pending (data sheet,
            // "Interrupt identification register").
            self.transmit_event = false;
            0x02
        } else if pending & MODEM_STATUS != 0 {
            0x00
        } else {
            NO_INTERRUPT
        };
        cause | if self.fifos { FIFOS_ENABLED } else { 0 }
    }

    fn send(&mut self, byte: u8, now: Nanos) -> Effect {
        if self.mcr & LOOPBACK != 0 {
            self.transmitter_emptied();
            self.push_received(byte, 0, now);
        } else if self.host_ready && self.transmit.len() == 0 {
            self.transmitter_emptied();
            return Effect::ConsoleOutput(byte);
        } else if self.transmit.len() < self.capacity() {
            self.transmit.push(byte, 0);
            self.transmit_event = false;
            self.lsr &= !(HOLDING_EMPTY | TRANSMITTER_EMPTY);
        }
        Effect::None
    }

    /// Without the transmitter's interrupt a byte that leaves at once changes nothing: enabling it later raises it
    /// anyway.
    fn update_polled(&mut self) {
        let quiet =
            self.lcr & DIVISOR_LATCH == 0 && self.mcr & LOOPBACK == 0 && self.ier & TRANSMIT_EMPTY == 0;
        self.polled = quiet && self.host_ready && self.transmit.len() == 0;
    }

    fn transmitter_emptied(&mut self) {
        // The second event while the first is unread must make an edge again, or an edge-triggered PIC misses it.
        self.pulsed = self.transmit_event;
        self.transmit_event = true;
        self.lsr |= HOLDING_EMPTY | TRANSMITTER_EMPTY;
    }

    /// A character arrives. One that finds no room sets the overrun error: with FIFOs it is lost, without it
    /// replaces its predecessor.
    fn push_received(&mut self, byte: u8, errors: u8, now: Nanos) {
        if self.receive.len() == self.capacity() {
            self.lsr |= OVERRUN;
            if self.fifos {
                return;
            }
            self.receive.clear();
        }
        self.receive.push(byte, errors);
        self.received_changed(now);
        if self.receive.len() == 1 {
            self.lsr |= errors;
        }
    }

    fn take_received(&mut self, now: Nanos) -> u8 {
        let byte = self.receive.pop().map_or(0, |(byte, _)| byte);
        self.timed_out = false;
        self.received_changed(now);
        self.lsr |= self.receive.front_errors();
        byte
    }

    /// Brings LSR and the timeout in line with the receive FIFO after a character came or went.
    fn received_changed(&mut self, now: Nanos) {
        let waiting = self.receive.len();
        self.lsr &= !(DATA_READY | ERROR_IN_FIFO);
        self.lsr |= if waiting > 0 { DATA_READY } else { 0 };
        self.lsr |= if self.fifos && self.receive.has_errors() { ERROR_IN_FIFO } else { 0 };
        // At the trigger level the interrupt comes at once; below it only when the line has been silent for four
        // characters (data sheet, "FIFO interrupt mode").
        let below = (1..self.trigger).contains(&waiting);
        self.timeout = below.then(|| now.after(4 * self.character_ns()));
    }

    fn strike_timeout(&mut self, now: Nanos) {
        if self.timeout.is_some_and(|timeout| timeout <= now) {
            self.timeout = None;
            self.timed_out = true;
        }
    }

    /// Enabling the transmitter's interrupt while it is empty raises it.
    fn enable_interrupts(&mut self, ier: u8) {
        if ier & !self.ier & TRANSMIT_EMPTY != 0 && self.lsr & HOLDING_EMPTY != 0 {
            self.transmit_event = true;
        }
        self.ier = ier;
    }

    fn control_fifos(&mut self, value: u8, now: Nanos) {
        let enable = value & FIFO_ENABLE != 0;
        let switched = enable != self.fifos;
        self.fifos = enable;
        // The other bits count only together with the enable bit.
        self.trigger = if enable { [1, 4, 8, 14][usize::from(value >> 6)] } else { 1 };
        if switched || enable && value & FIFO_CLEAR_RECEIVE != 0 {
            self.receive.clear();
            self.timed_out = false;
        }
        self.received_changed(now);
        if (switched || enable && value & FIFO_CLEAR_TRANSMIT != 0) && self.transmit.len() > 0 {
            self.transmit.clear();
            self.transmitter_emptied();
        }
    }

    /// A break in loopback is received as one character.
    fn control_line(&mut self, value: u8, now: Nanos) {
        let starts_break = value & !self.lcr & BREAK_CONTROL != 0;
        self.lcr = value;
        if starts_break && self.mcr & LOOPBACK != 0 {
            self.push_received(0, BREAK, now);
        }
    }

    /// In loopback the modem control outputs are the modem status inputs.
    fn control_modem(&mut self, value: u8) {
        self.mcr = value;
        let inputs = if value & LOOPBACK == 0 {
            TERMINAL_READY
        } else {
            let routed = [(RTS, 4), (DTR, 5), (OUT1, 6), (OUT2, 7)];
            routed
                .iter()
                .filter(|(output, _)| value & output != 0)
                .fold(0, |sum, (_, input)| sum | 1 << input)
        };
        let changed = (self.msr ^ inputs) >> 4;
        // The ring indicator counts only when it ends.
        let ring_ended = self.msr & !inputs & 0x40 != 0;
        let deltas = changed & 0x0b | if ring_ended { 0x04 } else { 0 };
        self.msr = inputs | self.msr & 0x0f | deltas;
    }

    fn capacity(&self) -> usize {
        if self.fifos { Fifo::CAPACITY } else { 1 }
    }

    /// The time that one character takes on the line.
    fn character_ns(&self) -> u64 {
        let data = 5 + u64::from(self.lcr & 3);
        let stop = 1 + u64::from(self.lcr >> 2 & 1);
        let parity = u64::from(self.lcr >> 3 & 1);
        (1 + data + parity + stop) * u64::from(self.divisor.max(1)) * 1_000_000_000 / BAUD_BASE
    }
}

/// Drives a port with arbitrary bytes: it must not panic, and no deadline may lie in the past.
#[cfg(any(test, feature = "testing"))]
pub fn fuzz_one(data: &[u8]) {
    let mut input = super::fuzz::Input::new(data);
    let mut uart = Uart::new();
    let mut now = Nanos(0);
    while let Some(op) = input.byte() {
        now = input.later(now);
        let offset = u16::from(op >> 2 & 7);
        match op & 3 {
            0 => drop(uart.read(offset, now)),
            1 => {
                let byte = input.byte().unwrap_or(0);
                let polled = uart.poll_send(byte).filter(|_| offset == 0);
                let effect = uart.write(offset, byte, now);
                assert!(effect == Effect::None || offset == 0);
                assert!(polled.is_none_or(|polled| polled == effect));
            }
            2 => {
                let room = uart.room() > 0;
                assert_eq!(uart.receive(op, now), room);
            }
            _ if op & 4 == 0 => uart.set_host_ready(op & 8 != 0),
            _ => drop(uart.transmitted()),
        }
        uart.line(now);
        assert!(uart.receive.len() <= uart.capacity() && uart.transmit.len() <= Fifo::CAPACITY);
        assert!(uart.deadline().is_none_or(|deadline| deadline > now));
    }
}
