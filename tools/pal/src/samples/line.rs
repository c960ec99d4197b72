//! One line of samples: `pal report`, `pal compare` and the like read them from files, `pal top` as they come.

use records::sample::COUNTERS;
use serde_json::Value;

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
    /// Shadow tables were in force at its end.
    pub shadow: bool,
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

fn number(value: &Value) -> u64 {
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
            (Some("pcpus"), _) => Line::Pcpus(pcpus(&line)),
            (Some("end"), _) => Line::End(line),
            _ => Line::Other,
        }
    }

    /// `None`: what every sample has is missing.
    fn sample(&mut self, line: &Value) -> Option<Sample> {
        let vm = place(&mut self.vms, line["vm"].as_str()?)?;
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
            shadow: line["engine"] == "shadow",
            switches: number(&line["switches"]["to_nested"])
                .saturating_add(number(&line["switches"]["to_shadow"])),
            faults: [number(&line["faults"]["shadow"]), number(&line["faults"]["nested_filled"])],
            ran_ns: ran.collect(),
            shadow_bytes: number(&line["shadow_bytes"]),
            exits,
            guest: COUNTERS.map(|name| line["guest"][name].as_u64()),
            host_cycles: line["host"]["cycles"].as_u64(),
        })
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
