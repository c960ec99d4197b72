use super::*;

const RBR: u16 = 0;
const IER: u16 = 1;
const IIR: u16 = 2;
const LCR: u16 = 3;
const MCR: u16 = 4;
const LSR: u16 = 5;
const MSR: u16 = 6;
const NOW: Nanos = Nanos(0);
/// A character of 8N1 at 115200 baud takes 86.8 µs.
const TIMEOUT_NS: u64 = 4 * 86_805;

fn set(uart: &mut Uart, register: u16, value: u8) {
    assert_eq!(uart.write(register, value, NOW), Effect::None);
}

fn get(uart: &mut Uart, register: u16) -> u8 {
    uart.read(register, NOW)
}

/// A port as a driver sets it up: 8N1, FIFOs with the given trigger bits, OUT2.
fn driven(trigger: u8, ier: u8) -> Uart {
    let mut uart = Uart::new();
    set(&mut uart, LCR, 3);
    set(&mut uart, 2, trigger << 6 | 1);
    set(&mut uart, MCR, DTR | RTS | OUT2);
    set(&mut uart, IER, ier);
    get(&mut uart, IIR);
    uart
}

fn high(uart: &mut Uart) -> bool {
    uart.line(NOW).level
}

#[test]
fn reset_values() {
    let mut uart = Uart::new();
    let values: Vec<u8> = (1..8).map(|register| get(&mut uart, register)).collect();
    assert_eq!(values, [0, NO_INTERRUPT, 0, 0, 0x60, 0xb0, 0]);
}

#[test]
fn polling_console_writes() {
    let mut uart = Uart::new();
    for byte in *b"hello" {
        assert_eq!(get(&mut uart, LSR) & HOLDING_EMPTY, HOLDING_EMPTY);
        assert_eq!(uart.write(0, byte, NOW), Effect::ConsoleOutput(byte));
    }
    assert!(!high(&mut uart));
}

#[test]
fn divisor_latch_and_scratch() {
    let mut uart = Uart::new();
    set(&mut uart, LCR, DIVISOR_LATCH | 3);
    set(&mut uart, 0, 0x34);
    set(&mut uart, 1, 0x12);
    assert_eq!((get(&mut uart, 0), get(&mut uart, 1)), (0x34, 0x12));
    set(&mut uart, LCR, 3);
    assert_eq!((get(&mut uart, 0), get(&mut uart, 1)), (0, 0));
    set(&mut uart, 7, 0xa5);
    assert_eq!(get(&mut uart, 7), 0xa5);
    set(&mut uart, IER, 0xff);
    assert_eq!(get(&mut uart, IER), 0x0f);
    set(&mut uart, MCR, 0xff);
    assert_eq!(get(&mut uart, MCR), 0x1f);
}

#[test]
fn transmitter_interrupt_is_an_event() {
    let mut uart = driven(0, 0);
    set(&mut uart, IER, TRANSMIT_EMPTY);
    assert!(high(&mut uart), "enabling it while empty raises it");
    assert_eq!(get(&mut uart, IIR), 0xc2);
    assert!(!high(&mut uart), "reading IIR clears it");
    assert_eq!(get(&mut uart, IIR), 0xc1);
    assert_eq!(uart.write(0, b'x', NOW), Effect::ConsoleOutput(b'x'));
    assert!(high(&mut uart));
    assert_eq!(uart.write(0, b'y', NOW), Effect::ConsoleOutput(b'y'));
    assert_eq!(
        uart.line(NOW),
        Line { level: true, pulsed: true },
        "edge-triggered inputs see the second one"
    );
    assert_eq!(uart.line(NOW), Line { level: true, pulsed: false });
    set(&mut uart, MCR, DTR | RTS);
    assert!(!high(&mut uart), "OUT2 gates the line");
}

#[test]
fn receive_trigger_levels() {
    for (bits, level) in [(0, 1), (1, 4), (2, 8), (3, 14)] {
        let mut uart = driven(bits, RECEIVED);
        for n in 1..=16 {
            assert!(uart.receive(n, NOW));
            assert_eq!(high(&mut uart), n >= level, "{n} of {level}");
        }
        assert!(!uart.receive(17, NOW), "no overrun: the host keeps it");
        assert_eq!(get(&mut uart, IIR), 0xc4);
        for n in 1..=16 {
            assert_eq!(get(&mut uart, LSR), 0x61);
            assert_eq!(get(&mut uart, RBR), n);
            assert_eq!(high(&mut uart), 16 - n >= level);
        }
        assert_eq!(get(&mut uart, LSR), 0x60);
    }
}

#[test]
fn character_timeout() {
    let mut uart = driven(3, RECEIVED);
    assert!(uart.receive(b'a', NOW));
    assert!(uart.receive(b'b', Nanos(1000)));
    let timeout = Nanos(1000 + TIMEOUT_NS);
    assert!(uart.deadline().unwrap().0.abs_diff(timeout.0) < 4);
    assert!(!uart.line(Nanos(timeout.0 - 10)).level);
    assert_eq!(uart.read(IIR, Nanos(timeout.0 - 10)), 0xc1);
    assert!(uart.line(timeout).level);
    assert_eq!(uart.deadline(), None);
    assert_eq!(uart.read(IIR, timeout), 0xcc);
    assert_eq!(uart.read(RBR, timeout), b'a');
    assert!(!uart.line(timeout).level, "a read restarts it");
    assert!(uart.line(timeout.after(TIMEOUT_NS)).level);
    assert_eq!(uart.read(RBR, timeout.after(TIMEOUT_NS)), b'b');
    assert_eq!(uart.deadline(), None);
}

#[test]
fn interrupts_by_priority() {
    let mut uart = driven(0, 0);
    set(&mut uart, MCR, LOOPBACK | OUT2);
    set(&mut uart, LCR, BREAK_CONTROL | 3);
    set(&mut uart, IER, 0x0f);
    assert_eq!(get(&mut uart, IIR), 0xc6);
    assert_eq!(get(&mut uart, LSR), 0x60 | BREAK | DATA_READY | ERROR_IN_FIFO);
    assert_eq!(get(&mut uart, IIR), 0xc4);
    assert_eq!(get(&mut uart, RBR), 0);
    assert_eq!(get(&mut uart, LSR), 0x60);
    assert_eq!(get(&mut uart, IIR), 0xc2);
    assert_eq!(get(&mut uart, IIR), 0xc0, "modem status changed when loopback began");
    get(&mut uart, MSR);
    assert_eq!(get(&mut uart, IIR), 0xc1);
}

#[test]
fn loopback_of_data_and_modem_lines() {
    let mut uart = driven(0, 0);
    set(&mut uart, MCR, LOOPBACK);
    get(&mut uart, MSR);
    set(&mut uart, 0, 0x5a);
    assert_eq!(get(&mut uart, RBR), 0x5a);
    assert!(!uart.receive(1, NOW));
    for (mcr, msr) in [(RTS, 0x11), (RTS | DTR, 0x32), (DTR, 0x21), (OUT1 | OUT2, 0xca), (0, 0x0c)] {
        set(&mut uart, MCR, LOOPBACK | mcr);
        assert_eq!(get(&mut uart, MSR), msr, "{mcr:#x}");
        assert_eq!(get(&mut uart, MSR), msr & 0xf0);
    }
    set(&mut uart, MCR, OUT2);
    assert_eq!(get(&mut uart, MSR) & 0xf0, TERMINAL_READY);
}

#[test]
fn overrun_in_loopback() {
    let mut uart = driven(0, LINE_STATUS);
    set(&mut uart, MCR, LOOPBACK | OUT2);
    for n in 0..17 {
        set(&mut uart, 0, n);
    }
    assert!(high(&mut uart));
    assert_eq!(get(&mut uart, LSR) & OVERRUN, OVERRUN);
    assert_eq!(get(&mut uart, LSR) & OVERRUN, 0);
    assert_eq!((0..16).map(|_| get(&mut uart, RBR)).collect::<Vec<_>>(), (0..16).collect::<Vec<_>>());
    set(&mut uart, 2, 0);
    set(&mut uart, 0, 1);
    set(&mut uart, 0, 2);
    assert_eq!(get(&mut uart, LSR) & OVERRUN, OVERRUN);
    assert_eq!(get(&mut uart, RBR), 2, "without FIFOs the later character stays");
}

#[test]
fn fifo_detection_and_clearing() {
    let mut uart = Uart::new();
    assert_eq!(get(&mut uart, IIR) & FIFOS_ENABLED, 0);
    assert!(uart.receive(1, NOW));
    assert!(!uart.receive(2, NOW), "room for one without FIFOs");
    set(&mut uart, 2, FIFO_ENABLE);
    assert_eq!(get(&mut uart, IIR) & FIFOS_ENABLED, FIFOS_ENABLED);
    assert_eq!(get(&mut uart, LSR) & DATA_READY, 0, "switching clears");
    assert!(uart.receive(1, NOW) && uart.receive(2, NOW));
    set(&mut uart, 2, FIFO_ENABLE | FIFO_CLEAR_RECEIVE);
    assert_eq!(get(&mut uart, LSR) & DATA_READY, 0);
    assert_eq!(uart.room(), 16);
}

#[test]
fn backpressure_fills_the_transmit_fifo() {
    let mut uart = driven(0, TRANSMIT_EMPTY);
    get(&mut uart, IIR);
    uart.set_host_ready(false);
    for n in 0..20 {
        set(&mut uart, 0, n);
    }
    assert_eq!(get(&mut uart, LSR) & (HOLDING_EMPTY | TRANSMITTER_EMPTY), 0);
    assert!(!high(&mut uart));
    assert_eq!(uart.transmitted(), None);
    uart.set_host_ready(true);
    set(&mut uart, 0, 99);
    let sent: Vec<u8> = core::iter::from_fn(|| uart.transmitted()).collect();
    assert_eq!(sent, (0..16).collect::<Vec<_>>(), "what was sent into a full FIFO is lost");
    assert!(high(&mut uart));
    assert_eq!(get(&mut uart, LSR) & 0x60, 0x60);
    assert_eq!(uart.write(0, 7, NOW), Effect::ConsoleOutput(7));
}

#[test]
fn survives_arbitrary_accesses() {
    crate::device::fuzz::run(3000, 300, fuzz_one);
}
