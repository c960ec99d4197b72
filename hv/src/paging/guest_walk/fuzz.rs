//! Arbitrary bytes as registers and guest memory.

use super::{PagingFeatures, PagingState, WalkError, peek, translate};
use crate::arch::Access;
use crate::arch::addr::{Gpa, Gva, PAGE_SIZE, is_canonical};
use crate::mem::guest_memory::{GuestMemory, VecMemory};

/// Walks once with registers and tables made of `data`: never panics, a peek has no effect and agrees with
/// the walk, and the result is within the page that it names.
pub fn fuzz_one(data: &[u8]) {
    const HEADER: usize = 48;
    const PAGES: u64 = 8;
    let Some((header, tables)) = data.split_at_checked(HEADER) else { return };
    let word = |n: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&header[n * 8..n * 8 + 8]);
        u64::from_le_bytes(bytes)
    };
    let small = word(5).to_le_bytes();
    let state = PagingState {
        cr0: word(0),
        cr3: word(1) & (PAGES * PAGE_SIZE - 1),
        cr4: word(2),
        efer: word(3),
        rflags: word(0) >> 32,
        cpl: small[0] & 3,
        pdptes: None,
        features: PagingFeatures {
            physical_bits: 32 + small[1] % 21,
            gib_pages: small[2] & 1 != 0,
            upper_global_reserved: small[2] & 2 != 0,
            pointer_bits_reserved: small[2] & 4 != 0,
        },
    };
    let access = Access { write: small[3] & 1 != 0, execute: small[3] & 3 == 2, user: small[3] & 4 != 0 };
    let gva = Gva(word(4));
    if !is_canonical(gva) {
        return;
    }
    let memory = VecMemory::new((PAGES * PAGE_SIZE) as usize);
    let used = tables.len().min((PAGES * PAGE_SIZE) as usize);
    memory.write(Gpa(0), &tables[..used]).expect("the memory holds all pages");

    let seen = peek(&state, &memory, gva, access);
    let mut after = alloc::vec![0; used];
    memory.read(Gpa(0), &mut after).expect("the memory holds all pages");
    assert_eq!(after, tables[..used], "a peek has no effect");
    let walked = translate(&state, &memory, gva, access);
    match (seen, walked) {
        (Ok(seen), Ok(walked)) => {
            assert_eq!(seen.gpa, walked.gpa);
            let offset = (1 << walked.page_shift) - 1;
            assert_eq!(walked.gpa.0 & offset, gva.0 & offset);
            assert!(!access.write || walked.dirty);
        }
        // The walk's own accessed bits can change what it reads further down, in tables that contain
        // themselves.
        (Err(WalkError::NotRam { table }), _) => assert!(table.0 >= PAGES * PAGE_SIZE),
        _ => {}
    }
}
