//! Lines about fast memory, and about what is evicted of an overcommitted VM.

use records::tiers::WINDOWS;
use serde_json::Value;

use super::line::{frames, number};

/// A VM's fast memory at a moment, and what moved in a time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tiers {
    /// The VM, by its place in [`Names::vms`](super::line::Names::vms).
    pub vm: usize,
    /// The moment, in nanoseconds since the first sample of the machine.
    pub machine_ns: u64,
    /// Nanoseconds since the last such line.
    pub span_ns: u64,
    /// Its E-state, if it has one.
    pub e_state: Option<u64>,
    /// A person has set that.
    pub is_set: bool,
    /// Bytes of the machine's fast memory.
    pub total: u64,
    /// Bytes that it may have.
    pub share: u64,
    /// Bytes that it has.
    pub fast: u64,
    /// Bytes of its hot pages in slow memory.
    pub waiting: u64,
    /// Bytes of its working set.
    pub working_set: u64,
    /// What its guest wants in fast memory, per mille of its hot pages.
    pub target: Option<u64>,
    /// Pages that went to fast memory in that time.
    pub moved_in: u64,
    /// Pages that went back.
    pub moved_out: u64,
    /// Of these, pages that were not copied.
    pub discarded: u64,
    /// The samples of 32 from which on a page is hot.
    pub hot: u64,
    /// Of each part of its memory, the pages that were accessed in the last 32 samples, in 255ths; empty if the line does not tell.
    pub accessed: Vec<u8>,
    /// The same of hot pages.
    pub hot_parts: Vec<u8>,
    /// Pages by the samples of 32 in which they were accessed, 0 not counted.
    pub histogram: Vec<u64>,
    /// Bytes of pages that were accessed in the last 1, 2, 4, 8, 16 and 32 samples; empty if the line does not tell.
    pub recent: Vec<u64>,
}

/// The longest array that is read.
const LONGEST: usize = 1024;

/// A bounded array of numbers.
fn numbers(value: &Value) -> impl Iterator<Item = u64> + '_ {
    value.as_array().into_iter().flatten().take(LONGEST).map(number)
}

fn parts(value: &Value) -> Vec<u8> {
    numbers(value).map(|part| u8::try_from(part).unwrap_or(u8::MAX)).collect()
}

/// What an overcommitted VM has in frames, compressed and on a disk at a moment, and what went out and came in in a time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pager {
    /// The VM, as above.
    pub vm: usize,
    /// The moment, as above.
    pub machine_ns: u64,
    /// Nanoseconds since the last such line.
    pub span_ns: u64,
    /// Bytes of pages in frames.
    pub resident: u64,
    /// Those that there may be.
    pub resident_limit: u64,
    /// Bytes of pages that are compressed.
    pub stored: u64,
    /// Bytes that they take.
    pub store: u64,
    /// Bytes of pages on the disk.
    pub on_disk: u64,
    /// Accesses to absent pages in that time.
    pub faults: u64,
    /// Of these, to pages that had been evicted.
    pub refaults: u64,
    /// Pages that came in.
    pub came_in: u64,
    /// Pages that went out.
    pub went_out: u64,
    /// Pages that came back from the disk.
    pub from_disk: u64,
    /// Reads from the disk, of up to 64 KiB each.
    pub disk_reads: u64,
    /// Writes to the disk, in the same way.
    pub disk_writes: u64,
}

impl Tiers {
    /// Pages on the list of hot ones, in either memory.
    pub fn listed(&self) -> u64 {
        self.fast.saturating_add(self.waiting) / 4096
    }

    /// Of a line of this VM. `None`: what every such line has is missing.
    pub(super) fn read(vm: usize, line: &Value) -> Option<Tiers> {
        Some(Tiers {
            vm,
            machine_ns: line["machine_ns"].as_u64()?,
            span_ns: line["span_ns"].as_u64()?,
            e_state: line["e_state"].as_u64().filter(|state| *state < 8),
            is_set: line["set"] == true,
            total: frames(&line["total"]),
            share: frames(&line["share"]),
            fast: frames(&line["fast"]),
            waiting: frames(&line["waiting"]),
            working_set: frames(&line["working_set"]),
            target: line["target"].as_u64().filter(|target| *target <= 1000),
            moved_in: number(&line["moved_in"]),
            moved_out: number(&line["moved_out"]),
            discarded: number(&line["discarded"]),
            hot: number(&line["hot"]).min(32),
            accessed: parts(&line["accessed"]),
            hot_parts: parts(&line["hot_parts"]),
            histogram: numbers(&line["histogram"]).collect(),
            recent: line["recent"].as_array().into_iter().flatten().take(WINDOWS).map(frames).collect(),
        })
    }

    /// What it is called: `E3`, and `set` if a person has set it.
    pub fn state(&self) -> Option<String> {
        self.e_state.map(|state| format!("E{state}{}", if self.is_set { " set" } else { "" }))
    }
}

impl Pager {
    /// Of a line of this VM. `None`: what every such line has is missing.
    pub(super) fn read(vm: usize, line: &Value) -> Option<Pager> {
        Some(Pager {
            vm,
            machine_ns: line["machine_ns"].as_u64()?,
            span_ns: line["span_ns"].as_u64()?,
            resident: frames(&line["resident"]),
            resident_limit: frames(&line["resident_limit"]),
            stored: frames(&line["stored"]),
            store: frames(&line["store"]),
            on_disk: frames(&line["on_disk"]),
            faults: number(&line["faults"]),
            refaults: number(&line["refaults"]),
            came_in: number(&line["came_in"]),
            went_out: number(&line["went_out"]),
            from_disk: number(&line["from_disk"]),
            disk_reads: number(&line["disk_reads"]),
            disk_writes: number(&line["disk_writes"]),
        })
    }
}

#[cfg(test)]
pub mod tests {
    use crate::samples::line::{Line, Names};

    /// A VM with 3 of 4 MiB of fast memory.
    pub const TIERS: &str = r#"{"v":1,"t":"tiers","vm":"a","time_ns":9,"machine_ns":2000000000,"span_ns":100000000,"e_state":2,"set":true,
        "hot":22,"total":2048,"free":512,"share":1024,"fast":768,"waiting":256,"working_set":2560,"target":950,"moved_in":30,
        "moved_out":10,"discarded":4,"stayed":1,"accessed":[255,0,9],"hot_parts":[128,0,0],"histogram":[0,256,512],
        "recent":[256,512,512,1024,2048,2560]}"#;
    /// A VM with 64 of 88 MiB in frames, and 8 on the disk.
    pub const PAGER: &str = r#"{"v":1,"t":"pager","vm":"a","time_ns":9,"machine_ns":2000000000,"span_ns":100000000,"resident":16384,
        "resident_limit":16384,"stored":4096,"store":1024,"store_limit":8192,"faults":50,"refaults":40,"came_in":45,
        "went_out":35,"compressed_from":4096,"compressed_to":1024,"on_disk":2048,"from_disk":12,"disk_reads":3,"disk_writes":2}"#;

    #[test]
    fn lines_are_read() {
        let mut names = Names::default();
        let Line::Tiers(tiers) = names.read(TIERS.as_bytes()) else { panic!("{TIERS}") };
        assert_eq!((tiers.vm, &names.vms[..]), (0, &["a".to_owned()][..]));
        assert_eq!(
            [tiers.total, tiers.share, tiers.fast, tiers.waiting].map(|bytes| bytes >> 20),
            [8, 4, 3, 1]
        );
        assert_eq!(
            (tiers.listed(), tiers.state().as_deref(), tiers.target),
            (1024, Some("E2 set"), Some(950))
        );
        assert_eq!([tiers.moved_in, tiers.moved_out, tiers.discarded], [30, 10, 4]);
        assert_eq!((&tiers.accessed[..], &tiers.hot_parts[..]), (&[255, 0, 9][..], &[128, 0, 0][..]));
        assert_eq!((tiers.hot, &tiers.histogram[..]), (22, &[0, 256, 512][..]));
        assert_eq!(tiers.recent.iter().map(|bytes| bytes >> 20).collect::<Vec<_>>(), [1, 2, 2, 4, 8, 10]);
        let other = TIERS.replace("\"e_state\":2,\"set\":true", "\"e_state\":null").replace("950", "null");
        let Line::Tiers(other) = names.read(other.as_bytes()) else { panic!("{other}") };
        assert_eq!((other.state(), other.target), (None, None));
        let Line::Pager(pager) = names.read(PAGER.as_bytes()) else { panic!("{PAGER}") };
        assert_eq!([pager.resident, pager.stored, pager.store].map(|bytes| bytes >> 20), [64, 16, 4]);
        assert_eq!([pager.faults, pager.refaults, pager.came_in, pager.went_out], [50, 40, 45, 35]);
        assert_eq!(
            [pager.on_disk >> 20, pager.from_disk, pager.disk_reads, pager.disk_writes],
            [8, 12, 3, 2]
        );
        // Earlier versions of pal tell nothing of a disk.
        let Line::Pager(earlier) = names.read(PAGER.replace("_disk\":", "_d\":").as_bytes()) else {
            panic!()
        };
        assert_eq!((earlier.on_disk, earlier.from_disk, earlier.store >> 20), (0, 0, 4));
        for line in [TIERS, PAGER] {
            for key in ["\"vm\":\"a\",", "\"machine_ns\":2000000000,", "\"span_ns\":100000000,"] {
                assert_eq!(names.read(line.replace(key, "").as_bytes()), Line::Broken, "{key}");
            }
        }
    }
}
