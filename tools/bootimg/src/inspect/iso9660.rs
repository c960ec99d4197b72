//! ISO 9660 (ECMA-119) with the names of Rock Ridge (IEEE P1282), and the boot catalogue of El Torito 1.0.

use super::{
    MAX_DEPTH, MAX_DIRECTORIES, MAX_FILES,
    source::{Damaged, Source, is_name, le, text},
};

const SECTOR: u64 = 2048;

/// Where a file's bytes are.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Extent {
    sector: u32,
    /// Bytes.
    pub size: u32,
}

impl Extent {
    /// Offset of the first byte.
    pub fn at(self) -> u64 {
        u64::from(self.sector) * SECTOR
    }
}

/// A volume.
pub(crate) struct Volume {
    pub label: String,
    pub bios: bool,
    pub uefi: bool,
    /// Paths, sizes and places, sorted.
    pub files: Vec<((String, u64), Extent)>,
}

/// Reads the volume; `None` if there is no ISO 9660 file system.
pub(crate) fn open(source: &impl Source) -> Result<Option<Volume>, Damaged> {
    let Ok(primary) = source.bytes(16 * SECTOR, SECTOR) else { return Ok(None) };
    if !primary.starts_with(b"\x01CD001\x01") {
        return Ok(None);
    }
    let (bios, uefi) = boots(source);
    let mut walk = Walk { source, files: Vec::new(), seen: 0, bytes: 0 };
    walk.directory(extent(&primary[156..190]), "", 0)?;
    let mut files = walk.files;
    files.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(Some(Volume { label: text(primary[40..72].trim_ascii_end()), bios, uefi, files }))
}

/// Whether the boot catalogue has entries for BIOS and for UEFI.
fn boots(source: &impl Source) -> (bool, bool) {
    const X86: u8 = 0;
    const EFI: u8 = 0xef;
    const BOOTABLE: u8 = 0x88;
    let catalogue =
        source.bytes(17 * SECTOR, SECTOR).ok().filter(|record| record.starts_with(b"\0CD001\x01EL TORITO"));
    let catalogue =
        catalogue.and_then(|record| source.bytes(u64::from(le(&record, 0x47, 4)) * SECTOR, SECTOR).ok());
    let Some(catalogue) = catalogue else { return (false, false) };
    let mut found = (false, false);
    let mut platform = catalogue[1];
    for entry in catalogue.chunks_exact(32).skip(1) {
        match entry[0] {
            BOOTABLE => {
                found.0 |= platform == X86;
                found.1 |= platform == EFI;
            }
            // A section's header names its platform.
            0x90 | 0x91 => platform = entry[1],
            _ => {}
        }
    }
    found
}

fn extent(record: &[u8]) -> Extent {
    Extent { sector: le(record, 2, 4), size: le(record, 10, 4) }
}

struct Walk<'a, S> {
    source: &'a S,
    files: Vec<((String, u64), Extent)>,
    seen: usize,
    bytes: u64,
}

impl<S: Source> Walk<'_, S> {
    fn directory(&mut self, place: Extent, path: &str, depth: usize) -> Result<(), Damaged> {
        self.bytes += u64::from(place.size);
        if depth > MAX_DEPTH || self.bytes > MAX_DIRECTORIES {
            return Err(Damaged::Inconsistent("directories are too deep or too large"));
        }
        let bytes = self.source.bytes(place.at(), u64::from(place.size))?;
        // A record does not cross the border of a sector.
        for mut sector in bytes.chunks(SECTOR as usize) {
            while let [length @ 34..=255, ..] = *sector {
                let Some((record, rest)) = sector.split_at_checked(length.into()) else {
                    return Err(Damaged::Inconsistent("a directory record is cut off"));
                };
                sector = rest;
                self.seen += 1;
                if self.seen > MAX_FILES {
                    return Err(Damaged::Inconsistent("there are too many files"));
                }
                self.record(record, path, depth)?;
            }
        }
        Ok(())
    }

    fn record(&mut self, record: &[u8], path: &str, depth: usize) -> Result<(), Damaged> {
        const DIRECTORY: u8 = 2;
        let name_end = 33 + usize::from(record[32]);
        let plain = record.get(33..name_end).ok_or(Damaged::Inconsistent("a name is cut off"))?;
        // The directory itself and the one above.
        if matches!(plain, [0] | [1]) {
            return Ok(());
        }
        let system_use = record.get(name_end + (name_end & 1)..).unwrap_or(&[]);
        let name = rock_ridge_name(system_use)
            .unwrap_or_else(|| plain.split(|b| *b == b';').next().map_or(String::new(), text));
        if !is_name(&name) {
            return Err(Damaged::Inconsistent("a name is empty or holds a slash"));
        }
        let place = extent(record);
        if record[25] & DIRECTORY != 0 {
            self.directory(place, &format!("{path}{name}/"), depth + 1)
        } else {
            self.files.push(((format!("{path}{name}"), u64::from(place.size)), place));
            Ok(())
        }
    }
}

/// The NM entries of a record's system use area, together.
fn rock_ridge_name(mut area: &[u8]) -> Option<String> {
    let mut name = None;
    while let [a, b, length @ 4..=255, _version, ..] = *area {
        let (entry, rest) = area.split_at_checked(length.into())?;
        if [a, b] == *b"NM" && entry.len() > 5 {
            name.get_or_insert_with(String::new).push_str(&text(&entry[5..]));
        }
        area = rest;
    }
    name
}
