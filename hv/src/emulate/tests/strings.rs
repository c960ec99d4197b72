//! Repeated string instructions: chunks, faults in the middle, single steps, ports.

use super::testing::Event;
use super::*;
use crate::arch::Exception;

const RCX: usize = Gpr::Rcx as usize;
const RSI: usize = Gpr::Rsi as usize;
const RDI: usize = Gpr::Rdi as usize;
const END: u64 = RAM + RAM_LEN as u64;

fn start(count: u64, from: u64, to: u64) -> (ArchState, TestMemory) {
    let mut s = machine(Mode::Bits64);
    (s.gprs[RCX], s.gprs[RSI], s.gprs[RDI]) = (count, from, to);
    let mut m = memory();
    for n in 0..0x800 {
        m.ram[n] = n as u8;
    }
    (s, m)
}

#[test]
fn long_copies_come_in_chunks() {
    let (mut s, mut m) = start(1000, RAM, RAM + 0x1000);
    let mut calls = 0;
    loop {
        let outcome = step(&mut s, &mut m, &[0xf3, 0xa4]);
        calls += 1;
        let done = 1000 - s.gprs[RCX];
        assert_eq!((s.gprs[RSI], s.gprs[RDI]), (RAM + done, RAM + 0x1000 + done));
        if outcome == DONE {
            break;
        }
        assert_eq!(outcome, Outcome::Continue);
        assert_eq!((s.rip, s.rflags & rflags::RF), (CODE, rflags::RF));
    }
    assert_eq!((s.gprs[RCX], s.rip, s.rflags & rflags::RF), (0, CODE + 2, 0));
    assert!((2..=8).contains(&calls));
    assert_eq!(m.ram[..1000], m.ram[0x1000..0x1000 + 1000]);
}

#[test]
fn a_fault_keeps_finished_iterations() {
    // stosd over the end of RAM: three items fit.
    let (mut s, mut m) = start(10, 0, END - 12);
    s.gprs[0] = 0x4433_2211;
    assert_eq!(step(&mut s, &mut m, &[0xf3, 0xab]), Outcome::Continue);
    assert_eq!((s.gprs[RCX], s.gprs[RDI], s.rip), (7, END, CODE));
    let before = s.clone();
    let fault = Outcome::Fault(Exception::page_fault(Gva(END), 2));
    assert_eq!(step(&mut s, &mut m, &[0xf3, 0xab]), fault);
    assert_eq!(s, before);
    assert_eq!(m.get(END - 8, 8), 0x4433_2211_4433_2211);
}

#[test]
fn a_device_is_not_read_if_the_store_would_fault() {
    let (mut s, mut m) = start(1, 0xfee0_0000, END);
    m.device = 0xfee0_0000..0xfee0_1000;
    assert_eq!(step(&mut s, &mut m, &[0xa5]), Outcome::Fault(Exception::page_fault(Gva(END), 2)));
    assert!(m.events.is_empty());
    // The source's fault comes first if both fault.
    s.gprs[RSI] = 0x10;
    assert_eq!(step(&mut s, &mut m, &[0xa5]), Outcome::Fault(Exception::page_fault(Gva(0x10), 0)));
    s.gprs[RSI] = 0xfee0_0020;
    s.gprs[RDI] = RAM;
    assert_eq!(step(&mut s, &mut m, &[0xa5]), DONE);
    assert_eq!(m.events[0], Event::DeviceRead { at: 0xfee0_0020, size: 4 });
    assert_eq!(m.get(RAM, 4), 0x2423_2221);
}

#[test]
fn single_step_stops_after_each_iteration() {
    let (mut s, mut m) = start(2, RAM, RAM + 0x1000);
    s.rflags |= rflags::TF;
    assert_eq!(step(&mut s, &mut m, &[0xf3, 0xa4]), Outcome::Done { single_step: true });
    assert_eq!((s.rip, s.gprs[RCX], s.rflags & rflags::RF), (CODE, 1, rflags::RF));
    assert_eq!(step(&mut s, &mut m, &[0xf3, 0xa4]), Outcome::Done { single_step: true });
    assert_eq!((s.rip, s.gprs[RCX], s.rflags & rflags::RF), (CODE + 2, 0, 0));
}

#[test]
fn repeated_comparisons_stop_on_either_condition() {
    // repe cmpsb: equal for 5 bytes.
    let (mut s, mut m) = start(20, RAM, RAM + 0x1000);
    m.ram.copy_within(..5, 0x1000);
    m.ram[0x1005] = 0x80;
    assert_eq!(step(&mut s, &mut m, &[0xf3, 0xa6]), DONE);
    assert_eq!((s.gprs[RCX], s.gprs[RSI]), (14, RAM + 6));
    assert_eq!(s.rflags & (rflags::ZF | rflags::CF), rflags::CF);
    // repne scasb, backwards.
    let (mut s, mut m) = start(20, 0, RAM + 0x20);
    s.gprs[0] = 0x1b;
    s.rflags |= rflags::DF;
    assert_eq!(step(&mut s, &mut m, &[0xf2, 0xae]), DONE);
    assert_eq!((s.gprs[RCX], s.gprs[RDI]), (14, RAM + 0x1a));
    assert_eq!(s.rflags & rflags::ZF, rflags::ZF);
    // A count of 0 does nothing, flags included.
    let (mut s, mut m) = start(0, 1, 1);
    s.rflags |= rflags::ZF | rflags::CF;
    assert_eq!(step(&mut s, &mut m, &[0xf3, 0xa6]), DONE);
    assert_eq!(s.rflags & (rflags::ZF | rflags::CF), rflags::ZF | rflags::CF);
}

#[test]
fn strings_of_ports() {
    let (mut s, mut m) = start(3, RAM + 0x10, RAM + 0x1000);
    s.gprs[2] = 0x1_03f8;
    m.port_value = 0x1122_33aa;
    assert_eq!(step(&mut s, &mut m, &[0xf3, 0x6e]), DONE); // rep outsb
    let expected: alloc::vec::Vec<_> =
        (0x10..0x13).map(|value| Event::Out { port: 0x3f8, size: 1, value }).collect();
    assert_eq!(m.events, expected);
    assert_eq!(s.gprs[RSI], RAM + 0x13);

    (s.gprs[RCX], s.rip) = (2, CODE);
    m.events.clear();
    assert_eq!(step(&mut s, &mut m, &[0xf3, 0x66, 0x6d]), DONE); // rep insw
    assert_eq!(m.get(RAM + 0x1000, 4), 0x33aa_33aa);
    assert_eq!(m.events[0], Event::In { port: 0x3f8, size: 2 });

    // The port is not read if the store would fault.
    (s.gprs[RCX], s.rip, s.gprs[RDI]) = (2, CODE, END);
    m.events.clear();
    assert_eq!(step(&mut s, &mut m, &[0xf3, 0x6d]), Outcome::Fault(Exception::page_fault(Gva(END), 2)));
    assert!(m.events.is_empty());
}

#[test]
fn an_access_can_ask_for_a_pause() {
    let (mut s, mut m) = start(5, RAM + 0x10, 0);
    m.pause_on = Some(0x12);
    assert_eq!(step(&mut s, &mut m, &[0xf3, 0x6e]), Outcome::Continue);
    assert_eq!((s.gprs[RCX], s.rip, m.events.len()), (2, CODE, 3));
    m.pause_on = Some(0x14);
    assert_eq!(step(&mut s, &mut m, &[0xf3, 0x6e]), DONE);
    assert_eq!((s.gprs[RCX], m.events.len()), (0, 5));
}

#[test]
fn sixteen_bit_indices_wrap() {
    let (mut s, mut m) = (machine(Mode::Bits16), memory());
    s.segments[SegReg::Es as usize].base = RAM.wrapping_sub(0xf000);
    (s.gprs[0], s.gprs[RCX], s.gprs[RDI]) = (0x5a, 0x7777_0002, 0x7777_ffff);
    // The second item would be at offset 0, which is not mapped.
    assert_eq!(step(&mut s, &mut m, &[0xf3, 0xaa]), Outcome::Continue);
    assert_eq!((s.gprs[RCX], s.gprs[RDI]), (0x7777_0001, 0x7777_0000));
    assert_eq!(m.get(RAM + 0xfff, 1), 0x5a);
}

#[test]
fn segment_override_applies_to_the_source_only() {
    let (mut s, mut m) = start(1, 0x10, RAM + 0x1000);
    s.segments[SegReg::Gs as usize].base = RAM;
    assert_eq!(step(&mut s, &mut m, &[0x65, 0xa4]), DONE);
    assert_eq!(m.ram[0x1000], 0x10);
}
