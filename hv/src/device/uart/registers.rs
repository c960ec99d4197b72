//! Bits of the 16550's registers (PC16550D data sheet, table 2).

/// Number of the line status register.
pub const LINE_STATUS_REGISTER: u16 = 5;
/// Its error bits (overrun, parity, framing, break), which reading clears.
pub(super) const LINE_STATUS_ERRORS: u8 = 0x1e;

/// Interrupt enable register; the bits of [`Uart::pending`] agree with it.
pub(super) const RECEIVED: u8 = 1 << 0;
pub(super) const TRANSMIT_EMPTY: u8 = 1 << 1;
pub(super) const LINE_STATUS: u8 = 1 << 2;
pub(super) const MODEM_STATUS: u8 = 1 << 3;
/// Interrupt identification: values and the mark of enabled FIFOs.
pub(super) const NO_INTERRUPT: u8 = 0x01;
pub(super) const CHARACTER_TIMEOUT: u8 = 0x0c;
pub(super) const FIFOS_ENABLED: u8 = 0xc0;
/// FIFO control register.
pub(super) const FIFO_ENABLE: u8 = 1 << 0;
pub(super) const FIFO_CLEAR_RECEIVE: u8 = 1 << 1;
pub(super) const FIFO_CLEAR_TRANSMIT: u8 = 1 << 2;
/// Line control register.
pub(super) const BREAK_CONTROL: u8 = 1 << 6;
pub(super) const DIVISOR_LATCH: u8 = 1 << 7;
/// Modem control register.
pub(super) const DTR: u8 = 1 << 0;
pub(super) const RTS: u8 = 1 << 1;
pub(super) const OUT1: u8 = 1 << 2;
pub(super) const OUT2: u8 = 1 << 3;
pub(super) const LOOPBACK: u8 = 1 << 4;
/// Line status register.
pub(super) const DATA_READY: u8 = 1 << 0;
pub(super) const OVERRUN: u8 = 1 << 1;
pub(super) const BREAK: u8 = 1 << 4;
pub(super) const HOLDING_EMPTY: u8 = 1 << 5;
pub(super) const TRANSMITTER_EMPTY: u8 = 1 << 6;
pub(super) const ERROR_IN_FIFO: u8 = 1 << 7;
/// Modem status: a terminal is there and ready (DCD, DSR, CTS).
pub(super) const TERMINAL_READY: u8 = 0xb0;
/// Frequency of the crystal over the 16 samples of a bit.
pub(super) const BAUD_BASE: u64 = 115_200;
