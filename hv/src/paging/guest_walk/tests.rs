//! The walker against the reference on random tables, and the rules one by one.

use super::reference::reference;
use super::*;
use crate::arch::addr::{PAGE_SIZE, is_canonical};
use crate::arch::state::{cr0, efer};
use crate::mem::guest_memory::{NotRam, VecMemory};
use crate::paging::random::{PAGES, Random};
use proptest::prelude::*;

fn contents(memory: &VecMemory) -> Vec<u8> {
    let mut all = vec![0; (PAGES * PAGE_SIZE) as usize];
    memory.read(Gpa(0), &mut all).unwrap();
    all
}

/// What a test run has seen, to prove that it saw something.
#[derive(Debug, Default)]
struct Seen {
    translated: usize,
    large: usize,
    not_present: usize,
    forbidden: usize,
    reserved: usize,
    not_ram: usize,
}

fn compare(kind: PagingKind, seed: u64, walks: u32, seen: &mut Seen) {
    let mut random = Random(seed);
    let memory = VecMemory::new((PAGES * PAGE_SIZE) as usize);
    random.fill(&memory, kind != PagingKind::TwoLevel);
    let mut state = random.state(kind);
    for n in 0..walks {
        if n % 16 == 15 {
            state = random.state(kind);
        }
        let gva = Gva((random.draw() as i64 >> 16) as u64);
        let access = random.access(state.cpl);
        let (expected, writes) = reference(&state, &memory, gva, access);
        let before = contents(&memory);
        let seen_only = peek(&state, &memory, gva, access);
        assert_eq!(contents(&memory), before, "a peek has no effect");
        let got = translate(&state, &memory, gva, access);
        assert_eq!(got, expected, "{gva} {access:?} {state:x?}");
        if writes.is_empty() {
            assert_eq!(seen_only, expected);
        }
        let after = contents(&memory);
        memory.write(Gpa(0), &before).unwrap();
        for (at, size, value) in writes {
            memory.write(at, &value.to_le_bytes()[..size]).unwrap();
        }
        assert!(contents(&memory) == after, "{gva} {access:?} {state:x?} sets other bits");
        match got {
            Ok(found) if found.page_shift > 12 => seen.large += 1,
            Ok(_) => seen.translated += 1,
            Err(WalkError::PageFault(code)) if code & error_code::PRESENT == 0 => seen.not_present += 1,
            Err(WalkError::PageFault(code)) if code & error_code::RESERVED != 0 => seen.reserved += 1,
            Err(WalkError::PageFault(_)) => seen.forbidden += 1,
            Err(WalkError::NotRam { .. }) => seen.not_ram += 1,
            Err(WalkError::Contended) => panic!("there is no other processor"),
        }
    }
}

fn compare_many(kind: PagingKind) {
    let mut seen = Seen::default();
    for seed in 0..300 {
        compare(kind, seed, 100, &mut seen);
    }
    let Seen { translated, large, not_present, forbidden, reserved, not_ram } = seen;
    let least = [translated, large, not_present, forbidden, reserved, not_ram].into_iter().min();
    assert!(least > Some(100), "{seen:?}");
}

#[test]
fn two_level_tables_are_walked_as_the_reference_does() {
    compare_many(PagingKind::TwoLevel);
}

#[test]
fn pae_tables_are_walked_as_the_reference_does() {
    compare_many(PagingKind::Pae);
}

#[test]
fn four_level_tables_are_walked_as_the_reference_does() {
    compare_many(PagingKind::FourLevel);
}

#[test]
fn without_paging_addresses_are_physical() {
    let mut random = Random(1);
    let memory = VecMemory::new(0);
    let state = random.state(PagingKind::Off);
    for access in [Access::READ, Access::WRITE, Access::FETCH] {
        let got = translate(&state, &memory, Gva(0xffff_ffff_8000_1234), access);
        assert_eq!(got, reference(&state, &memory, Gva(0xffff_ffff_8000_1234), access).0);
        assert_eq!(got.unwrap().gpa, Gpa(0x8000_1234));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_do_no_harm(mut data in prop::collection::vec(any::<u8>(), 0..3000)) {
        // Paging on in most runs, tables that lead somewhere in many.
        if data.len() > 60 {
            data[3] |= 0x80;
            for entry in data[48..].chunks_exact_mut(8).step_by(3) {
                entry[0] |= 7;
                entry[1] &= 0x7f;
                entry[2..].fill(0);
            }
        }
        fuzz_one(&data);
    }
}

/// Four levels from page 1 down to one page: entry 0 each, all rights.
fn simple() -> (VecMemory, PagingState) {
    let memory = VecMemory::new(0x8000);
    for level in 1..5u64 {
        let entry = (level + 1) << 12 | 7;
        memory.write(Gpa(level << 12), &entry.to_le_bytes()).unwrap();
    }
    let state = PagingState {
        cr0: cr0::PE | cr0::PG | cr0::WP,
        cr3: 0x1000,
        cr4: cr4::PAE,
        efer: efer::LME | efer::LMA | efer::NXE,
        rflags: 0,
        cpl: 0,
        pdptes: None,
        features: PagingFeatures {
            physical_bits: 40,
            gib_pages: true,
            upper_global_reserved: false,
            pointer_bits_reserved: true,
        },
    };
    (memory, state)
}

/// RAM of which nothing below 16 KiB can be written.
struct RomBelow16K(VecMemory);

impl GuestMemory for RomBelow16K {
    fn read(&self, gpa: Gpa, buf: &mut [u8]) -> Result<(), NotRam> {
        self.0.read(gpa, buf)
    }
    fn write(&self, gpa: Gpa, buf: &[u8]) -> Result<(), NotRam> {
        if gpa.0 < 0x4000 { Err(NotRam { gpa }) } else { self.0.write(gpa, buf) }
    }
    fn compare_exchange(&self, gpa: Gpa, size: usize, old: u64, new: u64) -> Result<bool, NotRam> {
        if gpa.0 < 0x4000 { Err(NotRam { gpa }) } else { self.0.compare_exchange(gpa, size, old, new) }
    }
}

#[test]
fn tables_in_rom_are_used_and_stay_as_they_are() {
    let (memory, state) = simple();
    let memory = RomBelow16K(memory);
    let found = translate(&state, &memory, Gva(0x123), Access::WRITE).unwrap();
    assert_eq!(found.gpa, Gpa(0x5123));
    assert_eq!(memory.read_u64(Gpa(0x1000)), Ok(0x2007));
    assert_eq!(memory.read_u64(Gpa(0x4000)), Ok(0x5067));
}

/// Memory that another VCPU changes whenever this one wants to.
struct Racing(VecMemory);

impl GuestMemory for Racing {
    fn read(&self, gpa: Gpa, buf: &mut [u8]) -> Result<(), NotRam> {
        self.0.read(gpa, buf)
    }
    fn write(&self, gpa: Gpa, buf: &[u8]) -> Result<(), NotRam> {
        self.0.write(gpa, buf)
    }
    fn compare_exchange(&self, _: Gpa, _: usize, _: u64, _: u64) -> Result<bool, NotRam> {
        Ok(false)
    }
}

#[test]
fn a_race_for_ever_is_given_up() {
    let (memory, state) = simple();
    assert_eq!(translate(&state, &Racing(memory), Gva(0), Access::READ), Err(WalkError::Contended));
}

#[test]
fn the_emulation_sets_accessed_bits_in_page_directory_pointers() {
    let memory = VecMemory::new(0x8000);
    for (at, entry) in [(0x1000, 0x2021_u64), (0x2000, 0x3027), (0x3000, 0x5067)] {
        memory.write(Gpa(at), &entry.to_le_bytes()).unwrap();
    }
    let mut state = PagingState { efer: 0, ..simple().1 };
    let fault = error_code::PRESENT | error_code::RESERVED;
    assert_eq!(translate(&state, &memory, Gva(4), Access::READ), Err(WalkError::PageFault(fault)));
    state.features.pointer_bits_reserved = false;
    assert_eq!(translate(&state, &memory, Gva(4), Access::READ).map(|found| found.gpa), Ok(Gpa(0x5004)));
}

#[test]
fn the_visitor_sees_the_path() {
    let (memory, state) = simple();
    let mut path = Vec::new();
    walk(&state, &memory, Gva(0x10), Access::READ, true, |step| path.push((step.level, step.at, step.raw)))
        .unwrap();
    let expected: Vec<_> = (1..5).map(|n| (5 - n as u8, Gpa(n << 12), (n + 1) << 12 | 7)).collect();
    assert_eq!(path, expected);
}

#[test]
fn canonical_addresses_repeat_bit_47() {
    assert!(is_canonical(Gva(0x7fff_ffff_ffff)) && is_canonical(Gva(0xffff_8000_0000_0000)));
    assert!(!is_canonical(Gva(0x8000_0000_0000)) && !is_canonical(Gva(0xffff_7fff_ffff_ffff)));
}
