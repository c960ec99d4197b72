//! Damaged files by every protocol.

use proptest::prelude::*;

use super::super::fuzz_one;
use super::{elf_files, linux, put};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn survives_noise(data in proptest::collection::vec(any::<u8>(), 0..1200)) {
        fuzz_one(&data);
    }

    #[test]
    fn survives_damage(
        choice: u8,
        linux: bool,
        edits in proptest::collection::vec((0usize..0x300, any::<[u8; 4]>()), 0..6),
        cut in 0usize..0x2000,
    ) {
        let mut file = if linux { linux::bzimage() } else { elf_files::pvh_kernel() };
        for (at, bytes) in edits {
            let at = at % (file.len() - 4);
            put(&mut file, at, &bytes);
        }
        if cut > 0x1000 {
            file.truncate(cut - 0x1000);
        }
        file.insert(0, choice);
        fuzz_one(&file);
    }
}
