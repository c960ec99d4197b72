//! FAT16 and FAT32 (Microsoft's "FAT: General Overview of On-Disk Format" 1.03) with long names, alone or in a partition.

use super::{
    MAX_DEPTH, MAX_DIRECTORIES, MAX_FILES,
    source::{Damaged, Source, is_name, le, text},
};

/// A directory larger than this is damaged.
const MAX_DIRECTORY: u64 = 2 << 20;

/// A volume.
pub(crate) struct Volume {
    pub label: String,
    /// There is a boot sector with a loader before the volume.
    pub bios: bool,
    pub geometry: Geometry,
    /// Paths, sizes and first clusters, sorted.
    pub files: Vec<((String, u64), u32)>,
}

/// Where things are on a volume. All offsets are in bytes from the image's beginning.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    table: u64,
    data: u64,
    cluster_size: u64,
    /// Clusters that exist are numbered from 2 up to this.
    end: u32,
    wide: bool,
    /// The fixed root directory of FAT16, offset and bytes; FAT32's is a chain from this cluster.
    root: Root,
}

#[derive(Clone, Copy, Debug)]
enum Root {
    Fixed(u64, u64),
    Chain(u32),
}

/// Reads the volume; `None` if there is no FAT file system.
pub(crate) fn open(source: &impl Source) -> Result<Option<Volume>, Damaged> {
    let Ok(first) = source.bytes(0, 512) else { return Ok(None) };
    if first[510..] != [0x55, 0xaa] {
        return Ok(None);
    }
    let partitions = first[446..510].chunks_exact(16).filter(|entry| entry[4] != 0);
    let starts = partitions.map(|entry| u64::from(le(entry, 8, 4)) * 512).chain([0]);
    let Some((start, geometry)) =
        starts.filter_map(|start| Some((start, Geometry::read_at(source, start)?))).next()
    else {
        return Ok(None);
    };
    let mut walk = Walk { source, geometry, label: String::new(), files: Vec::new(), seen: 0, bytes: 0 };
    let root = match geometry.root {
        Root::Fixed(at, len) => source.bytes(at, len)?,
        Root::Chain(cluster) => geometry.read(source, cluster, None)?,
    };
    walk.directory(&root, "", 0)?;
    let Walk { label, mut files, .. } = walk;
    files.sort_by(|(a, _), (b, _)| a.cmp(b));
    // Code that a BIOS jumps to; a table alone has zeros there.
    let bios = start > 0 && first[..2] != [0, 0];
    Ok(Some(Volume { label, bios, geometry, files }))
}

impl Geometry {
    /// From the boot sector at `start`, if there is one of FAT16 or FAT32.
    fn read_at(source: &impl Source, start: u64) -> Option<Geometry> {
        let sector = source.bytes(start, 512).ok()?;
        let field = |at, size| u64::from(le(&sector, at, size));
        let (bytes, per_cluster, tables) = (field(11, 2), field(13, 1), field(16, 1));
        if sector[510..] != [0x55, 0xaa]
            || !matches!(bytes, 512 | 1024 | 2048 | 4096)
            || !per_cluster.is_power_of_two()
            || !(1..=2).contains(&tables)
        {
            return None;
        }
        let either = |short, long| if short != 0 { short } else { long };
        let table_sectors = either(field(22, 2), field(36, 4));
        let sectors = either(field(19, 2), field(32, 4));
        let root_bytes = field(17, 2) * 32;
        let table = start + field(14, 2) * bytes;
        let root = table + tables * table_sectors * bytes;
        let data = root + root_bytes.next_multiple_of(bytes);
        let clusters = (sectors * bytes).checked_sub(data - start)? / (per_cluster * bytes);
        let wide = clusters >= 65_525;
        let entries = table_sectors * bytes / if wide { 4 } else { 2 };
        let end =
            u32::try_from(clusters + 2).ok().filter(|end| u64::from(*end) <= entries && clusters >= 4085)?;
        let root = if wide { Root::Chain(le(&sector, 44, 4)) } else { Root::Fixed(root, root_bytes) };
        Some(Geometry { table, data, cluster_size: per_cluster * bytes, end, wide, root })
    }

    /// The bytes of the chain that begins with `cluster`: `size` of them, or all of a directory's.
    pub fn read(
        &self,
        source: &impl Source,
        mut cluster: u32,
        size: Option<u64>,
    ) -> Result<Vec<u8>, Damaged> {
        let most = size.unwrap_or(MAX_DIRECTORY);
        if most > source.size()? {
            return Err(Damaged::Truncated);
        }
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < most {
            if !(2..self.end).contains(&cluster) {
                // The end of a directory is the end of its chain; a file has a size.
                return if size.is_none() && !bytes.is_empty() {
                    Ok(bytes)
                } else {
                    Err(Damaged::Inconsistent("a chain of clusters ends too early"))
                };
            }
            let at = self.data + u64::from(cluster - 2) * self.cluster_size;
            let len = self.cluster_size.min(most - bytes.len() as u64);
            bytes.extend(source.bytes(at, len)?);
            cluster = self.next(source, cluster)?;
        }
        if size.is_none() {
            return Err(Damaged::Inconsistent("a directory is too large"));
        }
        Ok(bytes)
    }

    fn next(&self, source: &impl Source, cluster: u32) -> Result<u32, Damaged> {
        let width = if self.wide { 4 } else { 2 };
        let entry = source.bytes(self.table + u64::from(cluster) * width, width)?;
        Ok(le(&entry, 0, width as usize) & 0x0fff_ffff)
    }
}

struct Walk<'a, S> {
    source: &'a S,
    geometry: Geometry,
    label: String,
    files: Vec<((String, u64), u32)>,
    seen: usize,
    bytes: u64,
}

impl<S: Source> Walk<'_, S> {
    fn directory(&mut self, bytes: &[u8], path: &str, depth: usize) -> Result<(), Damaged> {
        const LABEL: u8 = 0x08;
        const DIRECTORY: u8 = 0x10;
        const LONG_NAME: u8 = 0x0f;
        self.bytes += bytes.len() as u64;
        if depth > MAX_DEPTH || self.bytes > MAX_DIRECTORIES {
            return Err(Damaged::Inconsistent("directories are too deep or too large"));
        }
        let mut long = Vec::new();
        for entry in bytes.chunks_exact(32) {
            match (entry[0], entry[11]) {
                (0, _) => break,
                (0xe5, _) => long.clear(),
                // Parts of a long name come last part first.
                (_, LONG_NAME) => {
                    let mut part = [&entry[1..11], &entry[14..26], &entry[28..32]].concat();
                    part.append(&mut long);
                    long = part;
                    if long.len() > 2 * 260 {
                        return Err(Damaged::Inconsistent("a name is too long"));
                    }
                }
                (_, attributes) if attributes & LABEL != 0 => {
                    self.label = text(entry[..11].trim_ascii_end());
                    long.clear();
                }
                (_, attributes) => {
                    let name = long_name(&std::mem::take(&mut long)).unwrap_or_else(|| short_name(entry));
                    self.seen += 1;
                    if self.seen > MAX_FILES {
                        return Err(Damaged::Inconsistent("there are too many files"));
                    }
                    if name == "." || name == ".." {
                        continue;
                    }
                    if !is_name(&name) {
                        return Err(Damaged::Inconsistent("a name is empty or holds a slash"));
                    }
                    let cluster = le(entry, 20, 2) << 16 | le(entry, 26, 2);
                    if attributes & DIRECTORY != 0 {
                        let inner = self.geometry.read(self.source, cluster, None)?;
                        self.directory(&inner, &format!("{path}{name}/"), depth + 1)?;
                    } else {
                        self.files.push(((format!("{path}{name}"), u64::from(le(entry, 28, 4))), cluster));
                    }
                }
            }
        }
        Ok(())
    }
}

/// The name out of the characters of its entries, two bytes each.
fn long_name(bytes: &[u8]) -> Option<String> {
    let characters = bytes.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
    let characters = characters.take_while(|c| *c != 0);
    let name: Vec<u8> = characters.map(|c| u8::try_from(c).unwrap_or(b'?')).collect();
    (!name.is_empty()).then(|| text(&name))
}

/// The name of eight characters and three.
fn short_name(entry: &[u8]) -> String {
    let lower = |bit: u8, name: String| if entry[12] & bit != 0 { name.to_ascii_lowercase() } else { name };
    let base = lower(8, text(entry[..8].trim_ascii_end()));
    let extension = lower(16, text(entry[8..11].trim_ascii_end()));
    if extension.is_empty() { base } else { format!("{base}.{extension}") }
}
