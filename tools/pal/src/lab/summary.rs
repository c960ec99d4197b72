//! What a person reads of a report at the end of a run.

use serde_json::Value;

/// The counters of one side of all processors.
struct Side<'a> {
    name: &'static str,
    pcpus: &'a [Value],
}

impl Side<'_> {
    fn get(&self, counter: &str) -> u64 {
        self.pcpus.iter().filter_map(|pcpu| pcpu[self.name][counter].as_u64()).sum()
    }

    fn sum(&self, counters: &[&str]) -> u64 {
        counters.iter().map(|counter| self.get(counter)).sum()
    }
}

const SIDES: [(&str, &str); 3] =
    [("host", "host"), ("guest_nested", "guest, nested"), ("guest_shadow", "guest, shadow")];

fn sides(report: &Value) -> impl Iterator<Item = (&'static str, Side<'_>)> {
    let pcpus = report["pcpus"].as_array().map_or(&[][..], Vec::as_slice);
    SIDES.into_iter().map(move |(name, words)| (words, Side { name, pcpus }))
}

/// A line for each side that executed anything.
pub fn lines(report: &Value) -> String {
    let mut text = format!("lab machine {}:", report["machine"].as_str().unwrap_or("?"));
    for (words, side) in sides(report).filter(|(_, side)| side.get("instructions") > 0) {
        let walks = side.sum(&["dtlb_misses", "itlb_misses"]);
        let cycles = side.get("cycles");
        text += &format!(
            "\n  {words}: {} instructions, {} cycles; {walks} walks of {} references, {} % of the cycles; \
             {} misses of the last cache",
            side.get("instructions"),
            cycles,
            hundredths(side.get("walk_refs"), walks),
            hundredths(side.get("walk_cycles") * 100, cycles),
            side.get("llc_misses"),
        );
    }
    text
}

/// Translations that were compared: those that are equal, those that differ, and those that need not be equal, because
/// another processor was changing the tables.
pub fn checks(report: &Value) -> (u64, u64, u64) {
    sides(report).fold((0, 0, 0), |(equal, differ, raced), (_, side)| {
        let get = |name| side.get(name);
        (equal + get("checks_equal"), differ + get("checks_differ"), raced + get("checks_raced"))
    })
}

/// What is known of the first differences, a line for each.
pub fn differences(report: &Value) -> String {
    let pcpus = report["pcpus"].as_array().into_iter().flatten().enumerate();
    let lines = pcpus.flat_map(|(number, pcpu)| {
        let lines = pcpu["differences"].as_array().into_iter().flatten().filter_map(Value::as_str);
        lines.map(move |line| format!("\n  PCPU {number}: {line}"))
    });
    lines.take(8).collect()
}

/// A quotient with two digits after the point.
fn hundredths(part: u64, whole: u64) -> String {
    let hundredths = u128::from(part) * 100 / u128::from(whole.max(1));
    format!("{}.{:02}", hundredths / 100, hundredths % 100)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn sides_of_all_processors_are_added() {
        let pcpu = json!({ "host": { "instructions": 0 }, "guest_nested": {
            "instructions": 1000, "cycles": 2000, "dtlb_misses": 3, "itlb_misses": 1, "walk_refs": 10,
            "walk_cycles": 50, "llc_misses": 7, "checks_equal": 4, "checks_differ": 1, "checks_raced": 3 },
            "differences": ["frame 1"] });
        let report = json!({ "machine": "m", "pcpus": [pcpu, pcpu] });
        let expected = "lab machine m:\n  guest, nested: 2000 instructions, 4000 cycles; 8 walks of 2.50 references, \
                        2.50 % of the cycles; 14 misses of the last cache";
        assert_eq!(lines(&report), expected);
        assert_eq!(checks(&report), (8, 2, 6));
        assert_eq!(differences(&report), "\n  PCPU 0: frame 1\n  PCPU 1: frame 1");
        assert_eq!(lines(&json!({})), "lab machine ?:");
    }
}
