//! The report that a run leaves: all counters of all processors, as JSON.

use abi::lab::{Counters, Record, Side};
use serde_json::{Map, Value, json};

use crate::model::regions::Region;

/// Of the report's format. Fields may be added without a new number.
pub const VERSION: u32 = 1;

/// What the report says beside the counters.
pub struct About<'a> {
    /// The machine's name.
    pub machine: &'a str,
    /// Cycles in a microsecond.
    pub mhz: u32,
    /// `count`, `tlb` or `full`.
    pub model: &'a str,
    /// `off`, `miss` or `all`.
    pub check: &'a str,
}

/// One processor.
pub struct Pcpu {
    /// Its counters.
    pub record: Record,
    /// Its first differences from the emulator.
    pub differences: Vec<String>,
    /// What programs have marked, by number.
    pub regions: Vec<Region>,
}

/// The report on these processors, in their order.
pub fn report(about: &About, pcpus: &[Pcpu]) -> Value {
    let pcpus: Vec<Value> = pcpus.iter().enumerate().map(|(number, of)| pcpu(number, of)).collect();
    let About { machine, mhz, model, check } = about;
    json!({ "version": VERSION, "machine": machine, "mhz": mhz, "model": model, "check": check, "pcpus": pcpus })
}

fn pcpu(number: usize, Pcpu { record, differences, regions }: &Pcpu) -> Value {
    let mut pcpu = sides(&record.sides);
    pcpu.insert("pcpu".into(), number.into());
    if !differences.is_empty() {
        pcpu.insert("differences".into(), differences.as_slice().into());
    }
    let marked = regions.iter().enumerate().filter(|(_, region)| region.times > 0);
    let marked: Vec<Value> = marked
        .map(|(number, region)| {
            let mut counted = sides(&region.sides);
            counted.insert("region".into(), number.into());
            counted.insert("times".into(), region.times.into());
            counted.into()
        })
        .collect();
    if !marked.is_empty() {
        pcpu.insert("regions".into(), marked.into());
    }
    pcpu.into()
}

/// Counters by the names of their sides.
fn sides(sides: &[Counters; 3]) -> Map<String, Value> {
    let named = Side::ALL.map(|side| {
        let pairs = Counters::NAMES.iter().zip(sides[side as usize].values());
        let counters: Map<_, _> = pairs.map(|(name, value)| ((*name).to_owned(), value.into())).collect();
        (side.name().to_owned(), counters.into())
    });
    named.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_stand_by_side() {
        let mut record = Record { sides: Default::default(), doorbell: 0 };
        record.sides[Side::Nested as usize].walk_refs = 24;
        let about = About { machine: "m", mhz: 2000, model: "full", check: "miss" };
        let region = Region { times: 3, sides: record.sides };
        let pcpus = [
            Pcpu { record, differences: vec![], regions: vec![] },
            Pcpu { record, differences: vec!["one".into()], regions: vec![Region::default(), region] },
        ];
        let report = report(&about, &pcpus);
        assert_eq!(report["pcpus"][0]["regions"], Value::Null);
        let regions = report["pcpus"][1]["regions"].as_array().unwrap();
        assert_eq!((regions.len(), &regions[0]["region"], &regions[0]["times"]), (1, &json!(1), &json!(3)));
        assert_eq!(regions[0]["guest_nested"]["walk_refs"], 24);
        assert_eq!(report["pcpus"][1]["guest_nested"]["walk_refs"], 24);
        assert_eq!(report["pcpus"][0]["host"]["cycles"], 0);
        assert_eq!(
            (&report["pcpus"][0]["differences"], &report["pcpus"][1]["differences"]),
            (&Value::Null, &json!(["one"]))
        );
        assert_eq!((&report["machine"], &report["pcpus"][1]["pcpu"]), (&json!("m"), &json!(1)));
    }
}
