//! All kinds of device against drivers that write anything anywhere.

use super::device::status;
use super::function::{COMMON, TABLE};
use super::*;
use crate::arch::addr::Gpa;
use crate::device::fuzz::Input;
use crate::mem::guest_memory::VecMemory;

/// The disk's contents.
static DISK: [u8; 5000] = [0x5a; 5000];
/// One page less than the disk has.
static PAGES: disk::FewPages = disk::FewPages::new(1);
/// Guest memory: small, so that rings and buffers lie upon each other.
const MEMORY: usize = 0x8000;
/// The number of the balloon.
const BALLOON: u8 = 4;

/// Sets two VMs up with arbitrary rings and drives their devices with arbitrary bytes: nothing may panic or go on for ever, a
/// device that needs a reset serves nothing, and disks hold no more than their size.
pub fn fuzz_one(data: &[u8]) {
    let mut input = Input::new(data);
    let switch = Switch::default();
    let vms = [0, 1].map(|vm| {
        let mut devices = Builder::new(vm);
        devices.block(Block::new(disk::RamDisk::new(&DISK, vm == 1, &PAGES), "disk"));
        devices.net(Mac([2, 0, 0, 0, 0, vm as u8]), &switch).expect("memory").console();
        devices.entropy(Entropy::new([0; 32])).balloon();
        (devices.build(), VecMemory::new(MEMORY))
    });
    let features = input.u32();
    for (devices, memory) in &vms {
        fill(memory, input.u64());
        (0..5).for_each(|slot| start(devices, slot, features, memory, &mut input));
    }
    while let Some(op) = input.byte() {
        let (devices, memory) = &vms[usize::from(op & 1)];
        operate(op >> 1, devices, memory, &mut input);
    }
}

/// Fills memory with what looks like descriptors wherever a driver puts its tables: short buffers in memory, flags and numbers
/// of descriptors that make sense more often than not.
fn fill(memory: &VecMemory, seed: u64) {
    let mut state = seed | 1;
    for at in (0..MEMORY as u64).step_by(16) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let (address, len) =
            (state & 0x7ff0, state >> 16 & if state >> 63 != 0 { 0xffff_ffff } else { 0x3ff });
        let flags = [0, 1, 1, 1, 2, 2, 3, 4][(state >> 50 & 7) as usize];
        let second = len | flags << 32 | (state >> 53 & 7) << 48;
        // A third is headers of requests to disks.
        let header = ([0, 1, 0, 1, 4, 8, 2, 0][(state >> 50 & 7) as usize], state >> 53 & 15);
        let (first, second) = if state.is_multiple_of(3) { header } else { (address, second) };
        let _in_memory = memory.write(Gpa(at), &first.to_le_bytes());
        let _in_memory = memory.write(Gpa(at + 8), &second.to_le_bytes());
    }
}

/// Makes chains available: the device sees its index go on.
fn offer(devices: &Virtio, slot: u8, queue: u8, count: u16, memory: &VecMemory) {
    let _selected = devices.write(slot, 22, 2, queue.into(), &mut Messages::new());
    let index = Gpa(devices.read(slot, 40, 8).wrapping_add(2));
    let mut bytes = [0; 2];
    if memory.read(index, &mut bytes).is_ok() {
        let next = u16::from_le_bytes(bytes).wrapping_add(count);
        let _in_memory = memory.write(index, &next.to_le_bytes());
    }
}

/// Initializes a device with queues somewhere.
fn start(devices: &Virtio, slot: u8, features: u32, memory: &VecMemory, input: &mut Input<'_>) {
    let mut messages = Messages::new();
    let setup =
        Setup { bus_master: true, interrupt_disabled: false, msix: slot & 1 == 0, msix_masked: false };
    devices.configure(slot, setup, &mut messages);
    let mut write = |register, size, value: u64| {
        let _notified = devices.write(slot, register, size, value, &mut messages);
    };
    write(8, 4, 1);
    write(12, 4, 1);
    write(8, 4, 0);
    write(12, 4, u64::from(features) & (INDIRECT | EVENT_INDEX));
    write(20, 1, 0xb);
    for queue in 0..if slot == BALLOON { 5 } else { 2 } {
        write(22, 2, queue);
        write(24, 2, 1 << (input.byte().unwrap_or(3) & 7));
        for area in [32, 40, 48] {
            let base = u64::from(input.u32()) & 0x7ff0;
            write(area, 8, base);
            // An available ring begins with nothing in it, and then heads.
            if area == 40 {
                let _in_memory = memory.write(Gpa(base), &[0, 0, 0, 0, 1, 0, 2, 0, 0, 0, 3, 0, 7, 0, 1, 0]);
            }
        }
        write(28, 2, 1);
    }
    write(20, 1, 0xf);
}

/// What the pager does with the pages that the balloon has named.
fn discard(devices: &Virtio, memory: &VecMemory, input: &mut Input<'_>) {
    let (mut count, mut messages) = (0, Messages::new());
    let had_some = devices.has_named();
    devices.take_named(|_| count += 1);
    assert!(had_some == (count > 0) && count <= 256 && !devices.has_named());
    if count > 0 {
        // Nothing more is named, and no chain comes back, before these are gone.
        let before = devices.balloon_counts().map(|counts| (counts.inflated, counts.reported));
        let _woken = devices.serve(BALLOON, input.byte().unwrap_or(0) % 5, memory, &mut messages);
        let after = devices.balloon_counts().map(|counts| (counts.inflated, counts.reported));
        assert!(before == after && !devices.has_named());
    }
    devices.discarded();
    devices.set_balloon(input.u32(), &mut messages);
}

fn operate(op: u8, devices: &Virtio, memory: &VecMemory, input: &mut Input<'_>) {
    let mut messages = Messages::new();
    let slot = if op & 15 == 15 { BALLOON } else { op & 3 };
    let size = 1 << (op >> 2 & 3);
    let common = |devices: &Virtio| devices.read(slot, 20, 1) as u8;
    match op >> 4 {
        0 | 1 => {
            let (queue, count) = (input.byte().unwrap_or(0) % 5, input.byte().unwrap_or(0) & 7);
            offer(devices, slot, queue, count.into(), memory);
            let stopped = common(devices) & status::NEEDS_RESET != 0;
            let mut before = [0; MEMORY];
            let mut after = [0; MEMORY];
            let _in_memory = memory.read(Gpa(0), &mut before);
            let _woken = devices.serve(slot, queue, memory, &mut messages);
            let _in_memory = memory.read(Gpa(0), &mut after);
            assert!(!stopped || before == after, "a device that needs a reset writes nothing");
        }
        2 => drop(memory.write(Gpa(u64::from(input.u32()) & 0x7fff), &input.u64().to_le_bytes()[..size])),
        3 => {
            let registers = [COMMON, TABLE, 0..BAR_BYTES, 0..u64::MAX][usize::from(op & 3)].clone();
            let offset = registers.start.wrapping_add(input.u64() % (registers.end - registers.start));
            let _notified = devices.write(slot, offset, size as u8, input.u64(), &mut messages);
            devices.read(slot, offset, size as u8);
        }
        4 => {
            devices.console_input(op);
            while devices.console_output().is_some() {}
        }
        5 => {
            fill(memory, input.u64());
            start(devices, slot, input.u32(), memory, input);
        }
        6 => {
            let _woken = devices.serve_next(memory, &mut messages);
        }
        _ => discard(devices, memory, input),
    }
    assert!(devices.lines() & !0x000f_0000 == 0, "PCI's pins");
}
