//! Vendor and model of the machine and its firmware, from the SMBIOS tables: for the hardware report.
//!
//! Damaged tables count as absent; texts lose what is not printable. SMBIOS 3.6, 5.2 (entry points), 6.1 (structures and their
//! texts), 7.1 (BIOS information), 7.2 (system information); UEFI 2.10, 4.3 (system table) and 4.6 (configuration table).

use arrayvec::ArrayString;

use super::info::{Firmware, LoaderMemory};

/// Where a PC BIOS keeps the entry point, on a multiple of 16.
const BIOS_AREA: core::ops::Range<u64> = 0xf_0000..0x10_0000;
/// UEFI's names for the entry points: SMBIOS 3, then SMBIOS 2.
const GUIDS: [[u8; 16]; 2] = [
    [0x44, 0x15, 0xfd, 0xf2, 0x94, 0x97, 0x2c, 0x4a, 0x99, 0x2e, 0xe5, 0xbb, 0xcf, 0x20, 0xe3, 0x94],
    [0x31, 0x2d, 0x9d, 0xeb, 0x88, 0x2d, 0xd3, 0x11, 0x9a, 0x16, 0x00, 0x90, 0x27, 0x3f, 0xc1, 0x4d],
];
/// Entries of UEFI's configuration table that are looked at.
const MAX_ENTRIES: u64 = 256;
/// A table longer than this is damaged.
const MAX_LENGTH: u64 = 1 << 20;

/// A text of the tables.
pub type Text = ArrayString<48>;

/// What the tables say. Makers leave much of it empty, or write "To be filled by O.E.M."
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Maker, product and version of the machine.
    pub machine: [Text; 3],
    /// Maker, version and date of its firmware.
    pub firmware: [Text; 3],
}

/// Reads the tables, if there are any.
pub fn read(memory: &impl LoaderMemory, firmware: Firmware) -> Option<Identity> {
    let table = match firmware {
        Firmware::Uefi(system_table) => by_uefi(memory, system_table?)?,
        Firmware::Bios | Firmware::Unknown => BIOS_AREA.step_by(16).find_map(|at| entry_point(memory, at))?,
    };
    Some(identity(table))
}

/// The table by way of UEFI's system table.
fn by_uefi<M: LoaderMemory>(memory: &M, system_table: u64) -> Option<&[u8]> {
    memory.bytes(system_table, 120).filter(|bytes| bytes.starts_with(b"IBI SYST"))?;
    let entries = memory.u64(system_table + 104)?.min(MAX_ENTRIES);
    let list = memory.bytes(memory.u64(system_table + 112)?, entries * 24)?;
    GUIDS.iter().find_map(|guid| {
        let entry = list.chunks_exact(24).find(|entry| entry.starts_with(guid))?;
        entry_point(memory, u64::from_le_bytes(entry[16..].try_into().ok()?))
    })
}

/// The table that an entry point at `at`, if there is one, leads to.
fn entry_point<M: LoaderMemory>(memory: &M, at: u64) -> Option<&[u8]> {
    let head = memory.bytes(at, 8)?;
    let (length, is_3) = match head {
        [b'_', b'S', b'M', b'3', b'_', _, length, _] => (*length, true),
        // Some firmware of version 2.1 gives one byte less.
        [b'_', b'S', b'M', b'_', _, length, ..] => ((*length).max(31), false),
        _ => return None,
    };
    let entry = memory.bytes(at, length.into())?;
    let is_whole = entry.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte)) == 0;
    let field = |at: usize, size: usize| {
        entry
            .get(at..at + size)
            .map(|bytes| bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    };
    let (address, bytes) = if is_3 { (field(16, 8)?, field(12, 4)?) } else { (field(24, 4)?, field(22, 2)?) };
    // Version 3 gives an upper limit, beyond which other things may be.
    is_whole.then(|| memory.bytes(address, bytes.min(MAX_LENGTH))).flatten()
}

/// Picks out the two structures.
fn identity(table: &[u8]) -> Identity {
    const BIOS: u8 = 0;
    const SYSTEM: u8 = 1;
    const END: u8 = 127;
    let mut identity = Identity::default();
    let mut rest = table;
    while let [kind, length, ..] = *rest {
        let Some((fields, texts)) = rest.split_at_checked(length.into()).filter(|_| length >= 4) else {
            break;
        };
        let text = |at: usize| fields.get(at).map_or_else(Text::new, |number| text(texts, *number));
        match kind {
            BIOS => identity.firmware = [text(4), text(5), text(8)],
            SYSTEM => identity.machine = [text(4), text(5), text(6)],
            END => break,
            _ => {}
        }
        // The texts end with an empty one; if there are none, with two zeroes.
        let Some(end) = texts.windows(2).position(|two| two == [0, 0]) else { break };
        rest = &texts[end + 2..];
    }
    identity
}

/// The text of this number, from 1; 0 is none.
fn text(texts: &[u8], number: u8) -> Text {
    let Some(index) = usize::from(number).checked_sub(1) else { return Text::new() };
    let mut all = texts.split(|byte| *byte == 0).take_while(|text| !text.is_empty());
    let mut shown = Text::new();
    for byte in all.nth(index).unwrap_or(&[]).iter().filter(|byte| byte.is_ascii_graphic() || **byte == b' ')
    {
        let _ = shown.try_push(char::from(*byte));
    }
    let end = shown.trim_end().len();
    shown.truncate(end);
    shown
}

/// Reads arbitrary bytes as tables, each way; for fuzzing.
#[cfg(any(test, feature = "testing"))]
pub fn fuzz_one(data: &[u8]) {
    let base = BIOS_AREA.start;
    let memory = super::info::TestMemory { base, bytes: data };
    for firmware in [Firmware::Bios, Firmware::Uefi(Some(base)), Firmware::Uefi(None)] {
        let _ = read(&memory, firmware);
    }
    let _ = identity(data);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::firmware::info::TestMemory;
    use proptest::prelude::*;

    const BASE: u64 = BIOS_AREA.start;
    const TABLE: usize = 0x400;

    fn structure(table: &mut Vec<u8>, kind: u8, fields: &[u8], texts: &[&str]) {
        table.extend([kind, 4 + fields.len() as u8, 0, 0]);
        table.extend(fields);
        texts.iter().for_each(|text| table.extend(text.bytes().chain([0])));
        table.extend(if texts.is_empty() { &[0, 0][..] } else { &[0] });
    }

    fn table() -> Vec<u8> {
        let mut table = vec![];
        structure(&mut table, 9, &[1], &[]);
        structure(&mut table, 0, &[1, 2, 0, 0xe0, 3], &["Maker of firmware", "F.42 ", "11/21/2024"]);
        structure(&mut table, 1, &[2, 1, 0], &["Product\x01 X", "Maker"]);
        structure(&mut table, 127, &[], &[]);
        table
    }

    fn put(memory: &mut [u8], at: usize, bytes: &[u8]) {
        memory[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// A BIOS area with an entry point of either kind at 0x230, and UEFI's tables at 0.
    fn memory(version_3: bool) -> Vec<u8> {
        let table = table();
        let mut memory = vec![0; 0x1000];
        put(&mut memory, TABLE, &table);
        let (address, length) = (BASE + TABLE as u64, table.len() as u32);
        let entry = 0x230;
        let (size, sum) = if version_3 {
            put(&mut memory, entry, b"_SM3_\0\x18");
            put(&mut memory, entry + 12, &length.to_le_bytes());
            put(&mut memory, entry + 16, &address.to_le_bytes());
            (24, 5)
        } else {
            put(&mut memory, entry, b"_SM_\0\x1f");
            put(&mut memory, entry + 22, &(length as u16).to_le_bytes());
            put(&mut memory, entry + 24, &(address as u32).to_le_bytes());
            (31, 4)
        };
        let total = memory[entry..entry + size].iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
        memory[entry + sum] = total.wrapping_neg();
        put(&mut memory, 0, b"IBI SYST");
        put(&mut memory, 104, &2u64.to_le_bytes());
        put(&mut memory, 112, &(BASE + 0x100).to_le_bytes());
        put(&mut memory, 0x100 + 24, &GUIDS[usize::from(!version_3)]);
        put(&mut memory, 0x100 + 40, &(BASE + entry as u64).to_le_bytes());
        memory
    }

    #[test]
    fn every_way_leads_to_the_names() {
        for version_3 in [false, true] {
            for firmware in [Firmware::Bios, Firmware::Uefi(Some(BASE))] {
                let bytes = memory(version_3);
                let found = read(&TestMemory { base: BASE, bytes: &bytes }, firmware).unwrap();
                assert_eq!(found.machine.each_ref().map(|t| t.as_str()), ["Maker", "Product X", ""]);
                assert_eq!(
                    found.firmware.each_ref().map(|t| t.as_str()),
                    ["Maker of firmware", "F.42", "11/21/2024"]
                );
            }
        }
    }

    #[test]
    fn what_is_damaged_or_missing_is_absent() {
        let mut bytes = memory(true);
        assert_eq!(read(&TestMemory { base: BASE, bytes: &bytes }, Firmware::Uefi(None)), None);
        bytes[0x230 + 9] ^= 1;
        assert_eq!(read(&TestMemory { base: BASE, bytes: &bytes }, Firmware::Bios), None);
        bytes[0x230 + 9] ^= 1;
        bytes[0] = 0;
        assert_eq!(read(&TestMemory { base: BASE, bytes: &bytes }, Firmware::Uefi(Some(BASE))), None);
        assert_eq!(identity(&[1, 3, 0, 0]), Identity::default());
        assert_eq!(identity(&[1, 200, 0, 0]), Identity::default());
        assert_eq!(text(b"a\0b\0\0c\0", 3), Text::new(), "behind the end");
    }

    proptest! {
        #[test]
        fn damage_is_survived(changes in prop::collection::vec((0usize..0x600, any::<u8>()), 0..12), version_3 in any::<bool>(),
                              noise in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut bytes = memory(version_3);
            changes.iter().for_each(|(at, byte)| bytes[*at] = *byte);
            fuzz_one(&bytes);
            fuzz_one(&bytes[TABLE..]);
            fuzz_one(&noise);
        }
    }
}
