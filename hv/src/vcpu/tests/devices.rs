//! Virtio devices at work for a VCPU: doorbells, interrupts, console input and output.

use super::*;
use crate::arch::Access;
use crate::arch::addr::Gpa;
use crate::device::effect::Effect;
use crate::device::layout::{IOAPIC, PCI_WINDOW_32, pci_interrupt_gsi};
use crate::device::message::Messages;
use crate::device::virtio::Builder;
use crate::device::virtio::device::Setup;
use crate::device::virtio::entropy::Entropy;
use crate::device::virtio::function::{ISR, NOTIFY, TABLE};
use crate::device::virtio::switch::{Mac, Switch, Waker, Woken};
use crate::mem::guest_memory::GuestMemory;
use crate::vcpu::bus::Bus;
use crate::vcpu::testing::{Machine, START};
use crate::virt::fake::Step;
use crate::vm::work;

/// Areas of a queue, for queue 0; those of queue 1 follow a page later.
const DESCRIPTORS: u64 = 0x1_0000;
const AVAILABLE: u64 = 0x1_0400;
const USED: u64 = 0x1_0800;
const BUFFER: u64 = 0x2_0000;
/// The vector of queue 0; queue 1 has the next.
const VECTOR: u64 = 0x51;

/// A machine with one device that its driver has set up, and `buffers` available in queue `queue`: length, and whether the
/// device writes it.
fn machine(
    script: &[Step],
    build: impl FnOnce(&mut Builder) -> &mut Builder,
    queue: u64,
    buffers: &[(u32, bool)],
) -> Machine {
    let mut machine = Machine::new(script);
    let mut devices = Builder::new(0);
    build(&mut devices);
    machine.vm.attach(devices.build()).unwrap();
    let mut messages = Messages::new();
    let setup = Setup { bus_master: true, interrupt_disabled: false, msix: true, msix_masked: false };
    machine.vm.virtio.configure(0, setup, &mut messages);
    let mut write = |register, size, value| {
        let _none = machine.vm.virtio.write(0, register, size, value, &mut messages);
    };
    for (register, size, value) in
        [(20, 1, 3), (8, 4, 1), (12, 4, 1), (20, 1, 0xb), (22, 2, queue), (24, 2, 8)]
    {
        write(register, size, value);
    }
    for (register, area) in [(32, DESCRIPTORS), (40, AVAILABLE), (48, USED)] {
        write(register, 8, area);
    }
    // The message of vector `queue` of the table.
    write(26, 2, queue);
    write(TABLE.start + 16 * queue, 8, 0xfee0_0000);
    write(TABLE.start + 16 * queue + 8, 8, VECTOR + queue);
    write(28, 2, 1);
    write(20, 1, 0xf);
    for (n, &(len, writable)) in buffers.iter().enumerate() {
        let descriptor = DESCRIPTORS + 16 * n as u64;
        machine.write(descriptor, &BUFFER.to_le_bytes());
        machine.write(descriptor + 8, &(u64::from(len) | u64::from(writable) << 33).to_le_bytes());
        machine.write(AVAILABLE + 4 + 2 * n as u64, &(n as u16).to_le_bytes());
    }
    machine.write(AVAILABLE + 2, &(buffers.len() as u16).to_le_bytes());
    machine
}

/// A write to the doorbell of a queue: MOV [doorbell], EAX.
fn ring(queue: u64) -> Exit {
    let gpa = Gpa(PCI_WINDOW_32.start + NOTIFY.start + 4 * queue);
    Exit::NestedFault { gpa, access: Access::WRITE, present: false, walk: false }
}

fn ringing(machine: &mut Machine, queue: u64) {
    let doorbell = (PCI_WINDOW_32.start + NOTIFY.start + 4 * queue) as u32;
    machine.code(&[&[0xa3], &doorbell.to_le_bytes()[..]].concat());
}

fn used(machine: &Machine) -> u16 {
    u16::from_le_bytes(machine.read(USED + 2))
}

#[test]
fn a_doorbell_is_answered_with_an_interrupt() {
    let mut machine = machine(
        &[|_| ring(0), |_| Exit::Pause],
        |devices| devices.entropy(Entropy::new([1; 32])),
        0,
        &[(64, true), (32, true)],
    );
    ringing(&mut machine, 0);
    machine.play();
    assert_eq!(used(&machine), 2);
    assert_eq!(machine.read(USED + 4 + 8), [1, 0, 0, 0, 32, 0, 0, 0]);
    assert_ne!(machine.read::<32>(BUFFER), [0; 32]);
    assert_eq!(machine.vcpu.virt.interrupts, [VECTOR as u8]);
}

#[test]
fn console_input_wakes_the_guest() {
    let mut machine = machine(&[|_| Exit::Hlt, |_| Exit::Pause], Builder::console, 0, &[(16, true)]);
    machine.host.input.extend([(START + 5_000_000, b'h'), (START + 5_000_000, b'i')]);
    machine.play();
    assert_eq!(machine.read(USED + 4), [0, 0, 0, 0, 2, 0, 0, 0]);
    assert_eq!(machine.read(BUFFER), *b"hi");
    assert_eq!(machine.vcpu.virt.interrupts, [VECTOR as u8]);
}

#[test]
fn console_output_waits_for_the_hosts_console() {
    // More than the device holds, and than the host's console takes at once.
    let mut machine =
        machine(&[|_| ring(1), |_| Exit::Hlt, |_| Exit::Pause], Builder::console, 1, &[(3000, false)]);
    let text: Vec<u8> = (0..3000u32).map(|n| (n % 251) as u8).collect();
    machine.write(BUFFER, &text);
    machine.host.output_stuck = Some((100, START + 20_000_000));
    ringing(&mut machine, 1);
    machine.play();
    assert!(machine.host.output == text, "{} bytes", machine.host.output.len());
    assert_eq!(used(&machine), 1);
    assert_eq!(machine.vcpu.virt.interrupts, [VECTOR as u8 + 1]);
}

/// A processor asks the device for its interrupts and ends the one that it has, while another one is about to serve the device, whose
/// line is high before and after, but not in between.
#[test]
fn a_line_that_falls_and_rises_again_interrupts_again() {
    let buffers = [(16, true), (16, true)];
    let mut machine = machine(&[], |devices| devices.entropy(Entropy::new([1; 32])), 0, &buffers);
    let Machine { vm, vcpu, host } = &mut machine;
    let now = vm.nanos(START);
    let mut messages = Messages::new();
    let setup = Setup { bus_master: true, interrupt_disabled: false, msix: false, msix_masked: false };
    vm.virtio.configure(0, setup, &mut messages);
    let pin = pci_interrupt_gsi(1, 0);
    let mut chipset = vm.chipset.lock();
    for (register, value) in [(0, 0x10 + 2 * u64::from(pin)), (0x10, 1 << 15 | VECTOR)] {
        let effect = chipset.mmio_write(Gpa(IOAPIC.start + register), 4, value, now, &mut messages);
        assert_eq!(effect, Effect::None);
    }
    drop(chipset);
    let available = |count: u16| vm.memory.read().ram().write(Gpa(AVAILABLE + 2), &count.to_le_bytes());
    available(1).unwrap();
    let mut bus = Bus::new(vm, &mut vcpu.lapic, host, START);
    bus.notified(0, 0);
    let left = bus.finish();
    assert!(!left.messages.is_empty());
    available(2).unwrap();
    let mut bus = Bus::new(vm, &mut vcpu.lapic, host, START);
    bus.with_devices(|devices, memory, messages| {
        let mut theirs = Messages::new();
        let mut chipset = vm.chipset.lock();
        assert_eq!(chipset.mmio_read(Gpa(PCI_WINDOW_32.start + ISR.start), 1, now, &mut theirs), 1);
        chipset.eoi(VECTOR as u8, &mut theirs);
        assert!(theirs.is_empty());
        drop(chipset);
        devices.serve(0, 0, memory, messages)
    });
    let left = bus.finish();
    assert!(!left.messages.is_empty(), "it is carried on that the line is high again");
}

#[test]
fn devices_that_wait_are_served_as_far_as_there_is_time() {
    for (slow, left) in [(0, 0), (50_000, 0), (70_000, 1)] {
        let switch = Switch::default();
        let mut machine = Machine::new(&[]);
        let mut devices = Builder::new(0);
        for card in 0..2 {
            devices.net(Mac::of("guest", card), &switch).unwrap();
        }
        machine.vm.attach(devices.build()).unwrap();
        let port = switch.plug(Waker { vm: 1, word: Default::default(), bit: 1 }).unwrap();
        port.send(&[0xff; 60], &mut Woken::default());
        assert_eq!(machine.vm.virtio.waiting(), 2);
        (machine.host.slow, machine.host.wanted_at) = (slow, Some(START));
        assert!(machine.run_or_yield().is_none());
        assert_eq!(machine.vm.virtio.waiting(), left, "{slow}");
        machine.host.wanted_at = Some(START);
        assert!(machine.run_or_yield().is_none());
        assert_eq!(machine.vm.virtio.waiting(), 0);
    }
}

/// Numbers of 600 pages: more than two batches.
fn inflating(script: &[Step]) -> Machine {
    let mut machine = machine(script, Builder::balloon, 0, &[(2400, false)]);
    let numbers: Vec<u8> = (0..600u32).flat_map(u32::to_le_bytes).collect();
    machine.write(BUFFER, &numbers);
    ringing(&mut machine, 0);
    machine
}

#[test]
fn a_balloon_is_served_to_its_end_before_the_guest_goes_on() {
    // The second entry is the one that takes the interrupt.
    let mut machine = inflating(&[|_| ring(0), |_| Exit::Pause]);
    machine.play();
    assert_eq!((used(&machine), machine.vcpu.virt.interrupts.len()), (1, 1));
    assert_eq!(machine.vm.virtio.balloon_counts().map(|counts| counts.inflated), Some(600));
}

#[test]
fn a_processor_does_not_sleep_over_a_balloon() {
    let mut machine = inflating(&[|_| Exit::Pause]);
    // Another VCPU has notified the device, and left the rest.
    let memory = machine.vm.memory.read();
    let _woken = machine.vm.virtio.serve(0, 0, &memory.ram(), &mut Messages::new());
    drop(memory);
    machine.vcpu.request(work::PAGER | work::HALTED);
    machine.play();
    assert_eq!((used(&machine), machine.vcpu.virt.interrupts.len()), (1, 1));
}
