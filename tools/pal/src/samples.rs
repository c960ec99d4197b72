//! A file of samples, read [line by line](line): what ran, and what each sample counted. `pal report`, `pal workload` and
//! `pal compare` read files.
//!
//! Files come from runs that were killed, from full disks, from other versions of `pal`, and from a slip of the hand. What can be
//! read is used, what cannot is counted, and a file in which nothing can be read is refused with what to do.

pub mod line;
pub mod memory;

use std::{
    fs::File,
    io::{BufRead, BufReader, Read},
    path::Path,
};

use serde_json::Value;

use crate::{run::records::VERSION, status::Usage};
use line::{Line, Names};
pub use line::{Regions, Sample};
use memory::{Pager, Tiers};

/// Bytes of a line at most; those of samples have a few thousand.
const LONGEST: u64 = 1 << 20;

/// A file of samples.
#[derive(Debug, Default)]
pub struct Run {
    /// What it is called in the report.
    pub name: String,
    /// Its first line.
    pub about: Value,
    /// Its last line, if the run was not killed.
    pub end: Option<Value>,
    /// Names of the VMs, and reasons of exits.
    pub names: Names,
    /// The samples, in their order.
    pub samples: Vec<Sample>,
    /// What became of regions, in their order.
    pub regions: Vec<Regions>,
    /// What became of fast memory, in its order.
    pub tiers: Vec<Tiers>,
    /// What was evicted, in its order.
    pub pagers: Vec<Pager>,
    /// Lines that are not whole, or are something else.
    pub broken: usize,
    /// Lines of a later version of the schema.
    pub later: usize,
}

impl Run {
    /// Reads a file.
    ///
    /// # Errors
    /// [`Usage`]: it cannot be read, is something else, or has no samples.
    pub fn open(path: &Path) -> Result<Run, Usage> {
        let wrong = |why: String| Usage::new(format!("{}: {why}", path.display()));
        let file = File::open(path).map_err(|error| wrong(error.to_string()))?;
        let mut run = Run::read(BufReader::new(file)).map_err(wrong)?;
        run.name = path.file_stem().map_or_else(|| "run".into(), |stem| stem.to_string_lossy().into_owned());
        Ok(run)
    }

    /// Reads lines of samples.
    ///
    /// # Errors
    /// Why there is nothing to show, and what to do.
    pub fn read(mut input: impl BufRead) -> Result<Run, String> {
        let mut run = Run::default();
        let mut line = Vec::new();
        let mut first = Vec::new();
        loop {
            line.clear();
            let size = input.by_ref().take(LONGEST).read_until(b'\n', &mut line);
            if size.map_err(|error| error.to_string())? == 0 {
                break;
            }
            if first.is_empty() {
                first.extend_from_slice(&line[..line.len().min(200)]);
            }
            // The last line of a run that was killed may lack its end, and is used if it is whole.
            if !line.trim_ascii().is_empty() {
                run.add(&line);
            }
        }
        run.check(&first)?;
        Ok(run)
    }

    fn add(&mut self, line: &[u8]) {
        match self.names.read(line) {
            Line::Run(about) => self.about = about,
            Line::Sample(sample) => self.samples.push(*sample),
            Line::Regions(regions) => self.regions.push(*regions),
            Line::Tiers(tiers) => self.tiers.push(*tiers),
            Line::Pager(pager) => self.pagers.push(*pager),
            Line::End(end) => self.end = Some(end),
            Line::Pcpus(_) | Line::Other => {}
            Line::Later => self.later += 1,
            Line::Broken => self.broken += 1,
        }
    }

    /// Whether there is anything to show. `first` is how the file begins.
    fn check(&self, first: &[u8]) -> Result<(), String> {
        if self.later > 0 && (self.about.is_null() || self.samples.is_empty()) {
            return Err(format!(
                "its schema is a later one than version {VERSION}, which this pal reads; use the pal that wrote it, or newer"
            ));
        }
        if self.about.is_null() {
            let what = if first.is_empty() {
                "it is empty"
            } else if first.starts_with(b"[") {
                "this looks like a trace, which https://ui.perfetto.dev opens"
            } else if first.starts_with(b"{") && self.samples.is_empty() {
                "this is JSON of something else, or the statistics of --stats"
            } else if !self.samples.is_empty() {
                "its first line, which says what ran, is missing or damaged"
            } else {
                "this is something else"
            };
            return Err(format!("not a file of samples: {what}; `cargo pal run --samples FILE` writes one"));
        }
        if self.samples.is_empty() {
            return Err(
                "no samples in it: the guest ended before the first one; run it for longer, or take --sample-ms 1"
                    .into(),
            );
        }
        Ok(())
    }

    /// How the file ends, in words.
    pub fn ending(&self) -> String {
        let mut text = format!("{} samples", self.samples.len());
        match &self.end {
            Some(end) => {
                text += &format!(", {} dropped", end["dropped"].as_u64().unwrap_or(0));
            }
            None => {
                text += "; there is no last line: the run was killed, still goes on, or its disk was full"
            }
        }
        if self.broken > 0 {
            text += &format!("; {} damaged lines were left out", self.broken);
        }
        if self.later > 0 {
            text += &format!("; {} lines of a later version of the schema were left out", self.later);
        }
        text
    }
}

#[cfg(test)]
pub mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    pub fn line(vm: &str, at: u64, exits: u64) -> String {
        let line = json!({ "v": 1, "t": "sample", "vm": vm, "machine_ns": at * 1_000_000_000, "time_ns": at, "span_ns": 1_000_000_000u64,
            "engine": if at.is_multiple_of(2) { "shadow" } else { "nested" }, "exits": { "cpuid": exits, "io": 1 },
            "switches": { "to_nested": 1, "to_shadow": 0 }, "faults": { "shadow": 3, "nested_filled": 2 },
            "guest": { "instructions": 100, "cycles": 400 }, "host": {}, "vcpus": [{ "ran_ns": 500_000_000 }],
            "shadow_bytes": 1 << 20 });
        format!("{line}\n")
    }

    pub const ABOUT: &str =
        "{\"v\":1,\"t\":\"run\",\"machine\":\"qemu-svm\",\"version\":\"0.1.0\",\"vms\":[\"a\"]}\n";
    pub const END: &str = "{\"v\":1,\"t\":\"end\",\"dropped\":2}\n";

    fn read(text: &str) -> Result<Run, String> {
        Run::read(text.as_bytes())
    }

    #[test]
    fn a_file_is_read() {
        let run = read(&format!("{ABOUT}{}{}{END}", line("a", 1, 10), line("b", 2, 7))).unwrap();
        assert_eq!(
            (run.samples.len(), run.broken, &run.names.vms[..]),
            (2, 0, &["a".into(), "b".into()][..])
        );
        let sample = &run.samples[1];
        assert_eq!(
            (sample.all_exits(), sample.vm, sample.engine, sample.all_ran_ns()),
            (8, 1, 1, 500_000_000)
        );
        assert_eq!((sample.counter("cycles"), sample.counter("walks")), (Some(400), None));
        assert_eq!(run.ending(), "2 samples, 2 dropped");
    }

    #[test]
    fn what_can_be_read_of_a_damaged_file_is() {
        let whole = format!("{ABOUT}{}{}", line("a", 1, 10), line("a", 2, 10));
        let cut = read(&whole[..whole.len() - 20]).unwrap();
        assert_eq!((cut.samples.len(), cut.broken), (1, 1));
        assert!(cut.ending().contains("killed") && cut.ending().contains("1 damaged"), "{}", cut.ending());
        // Without its line feed the last line is whole.
        assert_eq!(read(whole.trim_end()).unwrap().samples.len(), 2);
        let later = line("a", 3, 1).replace("\"v\":1", "\"v\":2");
        let later = read(&format!("{whole}{later}{{\"v\":1,\"t\":\"new\"}}\n{END}")).unwrap();
        assert_eq!((later.samples.len(), later.later, later.broken), (2, 1, 0));
        assert!(later.ending().contains("1 lines of a later version"), "{}", later.ending());
    }

    #[test]
    fn other_files_are_refused_with_what_to_do() {
        let error = |text: &str| read(text).err().unwrap();
        assert!(error("").contains("empty") && error("").contains("cargo pal run --samples"));
        assert!(error("hello\n\n").contains("something else"));
        assert!(error("[\n{\"ph\":\"M\"}\n").contains("perfetto"));
        assert!(error("{\n \"schema\": 2\n}\n").contains("--stats"));
        assert!(error(&line("a", 1, 1)).contains("first line"));
        assert!(error(ABOUT).contains("no samples"));
        let future = format!("{ABOUT}{}", line("a", 1, 1)).replace("\"v\":1", "\"v\":2");
        assert!(error(&future).contains("later one than version 1"), "{}", error(&future));
        assert!(Run::open(Path::new("/no/such/file")).err().unwrap().to_string().contains("/no/such/file"));
        // A line without end, as of a device.
        let long = "x".repeat(3 << 20);
        assert!(error(&long).contains("something else"));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let _ = Run::read(bytes.as_slice());
        }

        #[test]
        fn any_damage_leaves_the_rest(at in 0usize..1500, byte: u8, cut in 0usize..1500) {
            let mut text = format!("{ABOUT}{}{}{END}", line("a", 1, 10), line("b", 2, u64::MAX)).into_bytes();
            let length = text.len();
            text[at % length] = byte;
            text.truncate(length - cut % length);
            if let Ok(run) = Run::read(text.as_slice()) {
                prop_assert!(run.samples.len() <= 2 && run.ending().len() < 400);
                prop_assert!(crate::report::page::page(&[run], &[]).is_ok());
            }
        }
    }
}
