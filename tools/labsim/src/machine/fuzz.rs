//! Arbitrary descriptions; for fuzzing.

use std::cell::Cell;

use abi::lab::Record;

use super::{Machine, PRESETS, read, show};
use crate::model::{
    context::Control,
    memory::{Memory, Split},
    processor::{Checking, Pcpus, Request, Shared, Truth},
};

thread_local! {
    /// A processor's record lives as long as the program: one is enough for all.
    static RECORD: Cell<Option<&'static mut Record>> = const { Cell::new(None) };
}

/// Memory of the machines that are built.
const BYTES: u64 = 1 << 20;
/// Machines with more entries in their caches than this are read and shown, and not built.
const MOST_KIB: usize = 8 << 10;

/// Reads the bytes as a description, and the first preset with some of its bytes exchanged by them. What is accepted can be
/// shown and built, and runs.
pub fn fuzz_one(data: &[u8]) {
    try_text(&String::from_utf8_lossy(data));
    let Some((which, edits)) = data.split_first() else { return };
    let mut text = PRESETS[usize::from(*which) % PRESETS.len()].1.as_bytes().to_vec();
    for edit in edits.chunks_exact(3).take(8) {
        let at = usize::from(u16::from_le_bytes([edit[0], edit[1]])) % text.len();
        text[at] = edit[2];
    }
    try_text(&String::from_utf8_lossy(&text));
}

fn try_text(text: &str) {
    match read(text, "m.toml") {
        Ok(machine) => {
            assert!(show(&machine).lines().count() > 10);
            run(machine);
        }
        Err(error) => {
            let lines = text.bytes().filter(|byte| *byte == b'\n').count() + 1;
            assert!((1..=lines).contains(&error.line) && !error.text.is_empty(), "{error}");
        }
    }
}

/// Tables at 0 whose entries all lead to pages of 1 GiB at 0.
struct Tables;

impl Memory for Tables {
    fn read_u64(&self, pa: u64) -> Option<u64> {
        (pa < BYTES).then_some(if pa < 0x1000 { 0x1067 } else { 0xe7 })
    }
}

fn run(machine: Machine) {
    if machine.cache.iter().any(|cache| cache.get_ref().size_kib > MOST_KIB) {
        return;
    }
    let mut shared = Shared::new(
        machine,
        Split::q35(BYTES),
        Pcpus { count: 2, has_spare: false },
        true,
        Checking::Misses,
        0..0,
    );
    let record = RECORD.take().unwrap_or_else(|| Box::leak(Box::new(Record::default())));
    record.sides = Default::default();
    let mut processor = shared.processor(1, Tables, record);
    processor.set_control(Control { cr0: 1 << 31, cr3: 0, cr4: 0xa0, efer: 0x500 });
    for va in (0..64).map(|step: u64| step * 0x3fd0 % BYTES) {
        processor.access(Request { va, len: 8, write: va & 16 == 0, user: false }, &|va| Truth::At(va));
        processor.fetch(va, va + 40, &|_| Truth::Unknown);
    }
    processor.settle(true);
    processor.sync(1000);
    let counters = &processor.record().sides[0];
    assert!(counters.checks_differ == 0 && counters.dtlb_misses > 0 && counters.cycles >= 1000);
    RECORD.set(Some(processor.into_record()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn presets_are_read_and_run() {
        (0..PRESETS.len()).for_each(|which| fuzz_one(&[which as u8]));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn noise_is_survived(data in prop::collection::vec(any::<u8>(), 0..24)) {
            fuzz_one(&data);
        }
    }
}
