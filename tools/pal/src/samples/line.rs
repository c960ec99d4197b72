//! One line of samples: `pal report`, `pal compare` and the like read them from files, `pal top` as they come.

use records::sample::{COUNTERS, ENGINES};
use serde_json::Value;

use super::memory::{Pager, Tiers};
use crate::run::records::VERSION;

/// Names of VMs, reasons of exits, and processors, at most; a machine has less.
pub const MOST: usize = 1024;

/// What a line says.
#[derive(Clone, Debug, PartialEq)]
pub enum Line {
    /// What runs: the first line.
    Run(Value),
    /// A VM, of some time.
    Sample(Box<Sample>),
    /// A VM's regions, at a moment.
    Regions(Box<Regions>),
    /// A VM's fast memory, at a moment.
    Tiers(Box<Tiers>),
    /// What is evicted of a VM, at a moment.
    Pager(Box<Pager>),
    /// The machine, of some time.
    Pcpus(Pcpus),
    /// The last line.
    End(Value),
    /// It is of a later version of the schema.
    Later,
    /// What a later pal has added to this version.
    Other,
    /// It is not whole, or something else.
    Broken,
}

/// What a VM did in a time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// The VM, by its place in [`Names::vms`].
    pub vm: usize,
    /// The end of that time, in nanoseconds since the first sample of the machine.
    pub machine_ns: u64,
    /// The same since the VM's start.
    pub time_ns: u64,
    /// How long it was.
    pub span_ns: u64,
    /// The engine in force at its end, by its place in [`ENGINES`].
    pub engine: u8,
    /// Changes of the mode.
    pub switches: u64,
    /// Faults: on shadow tables, on nested ones that filled an entry.
    pub faults: [u64; 2],
    /// Time that each VCPU ran.
    pub ran_ns: Vec<u64>,
    /// Bytes of shadow paging.
    pub shadow_bytes: u64,
    /// Exits, by the reason's place in [`Names::reasons`].
    pub exits: Vec<(usize, u64)>,
    /// Counters of the guest, in the order of [`COUNTERS`]; what is not counted is absent.
    pub guest: [Option<u64>; COUNTERS.len()],
    /// Cycles of the hypervisor's work for it.
    pub host_cycles: Option<u64>,
}

impl Sample {
    /// Exits of all reasons.
    pub fn all_exits(&self) -> u64 {
        self.exits.iter().fold(0, |sum, (_, count)| sum.saturating_add(*count))
    }

    /// Time that all VCPUs ran.
    pub fn all_ran_ns(&self) -> u64 {
        self.ran_ns.iter().copied().fold(0, u64::saturating_add)
    }

    /// A counter of the guest.
    pub fn counter(&self, name: &str) -> Option<u64> {
        self.guest[COUNTERS.iter().position(|known| *known == name)?]
    }
}

/// The regions of a VM, and what they did in a time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Regions {
    /// The VM, by its place in [`Names::vms`].
    pub vm: usize,
    /// The moment, in nanoseconds since the first sample of the machine.
    pub machine_ns: u64,
    /// Nanoseconds since the last such line.
    pub span_ns: u64,
    /// Bytes of the VM's memory.
    pub bytes: u64,
    /// Regions that the hypervisor has found, and those that the guest has defined, now.
    pub known: [u64; 2],
    /// VCPUs that went to the cache of a region that they touched, in that time.
    pub moves: u64,
    /// Regions that were made global instead, in that time.
    pub globalised: u64,
    /// Regions that were opened in all caches for a while, for an idle processor, in that time.
    pub opened: u64,
    /// Bytes of the regions of each cache, and of their working sets.
    pub caches: Vec<(u64, u64)>,
    /// For each part of memory the cache that it is mapped to.
    pub map: Vec<Option<u8>>,
    /// The largest ones.
    pub regions: Vec<Region>,
}

/// A region.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Region {
    /// Its number.
    pub number: u64,
    /// The guest has defined it, and has numbered it.
    pub is_guests: bool,
    /// What it is.
    pub kind: String,
    /// The cache that it is mapped to, if it is.
    pub cache: Option<u64>,
    /// Its size in bytes.
    pub bytes: u64,
    /// That of its working set, if it is known.
    pub working_set: Option<u64>,
    /// How long it is used at a time, in nanoseconds, if that is known.
    pub access_ns: Option<u64>,
    /// The root of its address space's page tables, a physical address of the guest; `None`: it is the VM's as a whole.
    pub space_root: Option<u64>,
    /// VCPUs that it has moved in the time of the line.
    pub moves: u64,
}

impl Region {
    /// What it is called: `g1` is the guest's first.
    pub fn name(&self) -> String {
        format!("{}{}", if self.is_guests { "g" } else { "" }, self.number)
    }
}

/// What the machine did in a time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pcpus {
    /// The end of that time, in nanoseconds since the first sample.
    pub machine_ns: u64,
    /// Free bytes of host memory.
    pub free_bytes: Option<u64>,
    /// Bytes that the hypervisor's heap has taken.
    pub heap_bytes: Option<u64>,
    /// Each PCPU's number, and the time that it was busy and idle.
    pub pcpus: Vec<(u64, u64, u64)>,
}

/// The names that lines have mentioned; lines that are read refer to them by their places.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Names {
    /// VMs, in the order of the configuration, then in that of their first samples.
    pub vms: Vec<String>,
    /// Reasons of exits.
    pub reasons: Vec<String>,
}

/// The place of a name in a list, where it is put if it is new. `None`: there is no room.
fn place(names: &mut Vec<String>, name: &str) -> Option<usize> {
    let at = names.iter().position(|known| known == name);
    if at.is_none() && names.len() < MOST {
        names.push(name.to_owned());
        return Some(names.len() - 1);
    }
    at
}

pub(super) fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

impl Names {
    /// Reads a line, whatever it is.
    pub fn read(&mut self, line: &[u8]) -> Line {
        let Ok(line) = serde_json::from_slice::<Value>(line) else { return Line::Broken };
        match (line["t"].as_str(), line["v"].as_u64()) {
            (None, _) | (_, None) => Line::Broken,
            (_, Some(version)) if version > VERSION => Line::Later,
            (Some("run"), _) => {
                for name in line["vms"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                    let _room = place(&mut self.vms, name);
                }
                Line::Run(line)
            }
            (Some("sample"), _) => {
                self.sample(&line).map_or(Line::Broken, |sample| Line::Sample(Box::new(sample)))
            }
            (Some("regions"), _) => {
                self.regions(&line).map_or(Line::Broken, |regions| Line::Regions(Box::new(regions)))
            }
            (Some("tiers"), _) => {
                let tiers = self.vm(&line).and_then(|vm| Tiers::read(vm, &line));
                tiers.map_or(Line::Broken, |tiers| Line::Tiers(Box::new(tiers)))
            }
            (Some("pager"), _) => {
                let pager = self.vm(&line).and_then(|vm| Pager::read(vm, &line));
                pager.map_or(Line::Broken, |pager| Line::Pager(Box::new(pager)))
            }
            (Some("pcpus"), _) => Line::Pcpus(pcpus(&line)),
            (Some("end"), _) => Line::End(line),
            _ => Line::Other,
        }
    }

    /// The VM that a line is of.
    fn vm(&mut self, line: &Value) -> Option<usize> {
        place(&mut self.vms, line["vm"].as_str()?)
    }

    /// `None`: what every sample has is missing.
    fn sample(&mut self, line: &Value) -> Option<Sample> {
        let vm = self.vm(line)?;
        let exits = line["exits"].as_object()?.iter().take(MOST);
        let exits = exits
            .filter_map(|(why, count)| Some((place(&mut self.reasons, why)?, count.as_u64()?)))
            .collect();
        let ran = line["vcpus"].as_array()?.iter().take(MOST).map(|vcpu| number(&vcpu["ran_ns"]));
        Some(Sample {
            vm,
            machine_ns: line["machine_ns"].as_u64()?,
            time_ns: number(&line["time_ns"]),
            span_ns: line["span_ns"].as_u64()?,
            engine: ENGINES.iter().position(|name| line["engine"] == *name).unwrap_or(0) as u8,
            switches: ENGINES
                .iter()
                .map(|name| number(&line["switches"][format!("to_{name}")]))
                .fold(0, u64::saturating_add),
            faults: [number(&line["faults"]["shadow"]), number(&line["faults"]["nested_filled"])],
            ran_ns: ran.collect(),
            shadow_bytes: number(&line["shadow_bytes"]),
            exits,
            guest: COUNTERS.map(|name| line["guest"][name].as_u64()),
            host_cycles: line["host"]["cycles"].as_u64(),
        })
    }

    /// `None`: what every such line has is missing.
    fn regions(&mut self, line: &Value) -> Option<Regions> {
        let all = |key: &str| Some(line[key].as_array()?.iter().take(MOST));
        let caches = all("caches")?.map(|it| (frames(&it["frames"]), frames(&it["working_set"])));
        let map = line["map"].as_str()?.chars().take(MOST);
        Some(Regions {
            vm: self.vm(line)?,
            machine_ns: line["machine_ns"].as_u64()?,
            span_ns: line["span_ns"].as_u64()?,
            bytes: frames(&line["frames"]),
            known: [number(&line["found"]), number(&line["defined"])],
            moves: number(&line["moves"]),
            globalised: number(&line["globalised"]),
            opened: number(&line["opened"]),
            caches: caches.collect(),
            map: map.map(|bin| bin.to_digit(16).map(|cache| cache as u8)).collect(),
            regions: all("regions")?.map(region).collect(),
        })
    }
}

/// Bytes of a number of frames.
pub(super) fn frames(value: &Value) -> u64 {
    number(value).saturating_mul(4096)
}

fn region(line: &Value) -> Region {
    Region {
        number: number(&line["region"]),
        is_guests: line["by"] == "guest",
        kind: line["kind"]
            .as_str()
            .unwrap_or("?")
            .chars()
            .filter(|c| c.is_ascii_lowercase())
            .take(8)
            .collect(),
        cache: line["cache"].as_u64(),
        bytes: frames(&line["frames"]),
        working_set: line["working_set"].as_u64().map(|_| frames(&line["working_set"])),
        access_ns: line["access_ns"].as_u64(),
        space_root: line["space_root"].as_u64(),
        moves: number(&line["moves"]),
    }
}

fn pcpus(line: &Value) -> Pcpus {
    let all = line["pcpus"].as_array().into_iter().flatten().take(MOST);
    Pcpus {
        machine_ns: number(&line["machine_ns"]),
        free_bytes: line["free_bytes"].as_u64(),
        heap_bytes: line["heap_bytes"].as_u64(),
        pcpus: all.map(|it| (number(&it["pcpu"]), number(&it["busy_ns"]), number(&it["idle_ns"]))).collect(),
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A VM with a region on each of two caches and one of the guest's, of which two are listed.
    pub const REGIONS: &str = r#"{"v":1,"t":"regions","vm":"a","time_ns":9,"machine_ns":2000000000,"span_ns":100000000,"frames":65536,
        "found":2,"defined":1,"closed_faults":460,"moves":450,"globalised":1,"opened":2,"rounds":3,
        "caches":[{"frames":768,"working_set":512},{"frames":768,"working_set":768}],"map":"..0011..","regions":[
        {"region":259,"by":"hypervisor","kind":"local","cache":0,"frames":768,"working_set":512,"access_ns":123456,"space_root":73728,
         "moves":225},
        {"region":1,"by":"guest","kind":"regular","cache":null,"frames":2,"working_set":null,"access_ns":null,"moves":0}]}"#;

    #[test]
    fn regions_are_read() {
        let mut names = Names::default();
        let Line::Regions(regions) = names.read(REGIONS.as_bytes()) else { panic!("{REGIONS}") };
        assert_eq!((regions.vm, &names.vms[..]), (0, &["a".to_owned()][..]));
        assert_eq!(
            (regions.bytes, regions.known, regions.moves, regions.globalised, regions.opened),
            (256 << 20, [2, 1], 450, 1, 2)
        );
        assert_eq!(regions.caches, [(3 << 20, 2 << 20), (3 << 20, 3 << 20)]);
        assert_eq!(regions.map, [None, None, Some(0), Some(0), Some(1), Some(1), None, None]);
        let [found, guests] = &regions.regions[..] else { panic!("{regions:?}") };
        assert_eq!((found.name(), found.cache, found.working_set), ("259".into(), Some(0), Some(2 << 20)));
        assert_eq!(
            (guests.name(), guests.cache, guests.working_set, guests.access_ns),
            ("g1".into(), None, None, None)
        );
        for key in ["\"vm\":\"a\",", "\"map\":\"..0011..\",", "\"span_ns\":100000000,"] {
            assert_eq!(names.read(REGIONS.replace(key, "").as_bytes()), Line::Broken, "{key}");
        }
    }
}
