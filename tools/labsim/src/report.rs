//! The report that a run leaves: all counters of all processors, as JSON.

use abi::lab::{Record, Side};
use serde_json::{Map, Value, json};

/// Of the report's format.
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

/// The report on these processors, in their order: their counters, and their first differences from the emulator.
pub fn report(about: &About, records: &[(Record, Vec<String>)]) -> Value {
    let pcpus: Vec<Value> = records.iter().enumerate().map(|(number, of)| pcpu(number, of)).collect();
    let About { machine, mhz, model, check } = about;
    json!({ "version": VERSION, "machine": machine, "mhz": mhz, "model": model, "check": check, "pcpus": pcpus })
}

fn pcpu(number: usize, (record, differences): &(Record, Vec<String>)) -> Value {
    let mut sides = Map::new();
    sides.insert("pcpu".into(), number.into());
    for side in Side::ALL {
        let counters = &record.sides[side as usize];
        let pairs = abi::lab::Counters::NAMES.iter().zip(counters.values());
        let named = pairs.map(|(name, value)| ((*name).to_owned(), value.into())).collect::<Map<_, _>>();
        sides.insert(side.name().into(), named.into());
    }
    if !differences.is_empty() {
        sides.insert("differences".into(), differences.as_slice().into());
    }
    sides.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_stand_by_side() {
        let mut record = Record { sides: Default::default(), doorbell: 0 };
        record.sides[Side::Nested as usize].walk_refs = 24;
        let about = About { machine: "m", mhz: 2000, model: "full", check: "miss" };
        let report = report(&about, &[(record, vec![]), (record, vec!["one".into()])]);
        assert_eq!(report["pcpus"][1]["guest_nested"]["walk_refs"], 24);
        assert_eq!(report["pcpus"][0]["host"]["cycles"], 0);
        assert_eq!(
            (&report["pcpus"][0]["differences"], &report["pcpus"][1]["differences"]),
            (&Value::Null, &json!(["one"]))
        );
        assert_eq!((&report["machine"], &report["pcpus"][1]["pcpu"]), (&json!("m"), &json!(1)));
    }
}
