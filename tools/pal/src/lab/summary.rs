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

/// Translations that were compared, and those that differ.
pub fn checks(report: &Value) -> (u64, u64) {
    sides(report).fold((0, 0), |(equal, differ), (_, side)| {
        (equal + side.get("checks_equal"), differ + side.get("checks_differ"))
    })
}

/// How many of so many may differ. On one processor none. On several, between a change of a table by one and the flush by
/// another, QEMU and the model may rightly have either of what was and what is: one in a million.
pub fn allowed(report: &Value, compared: u64) -> u64 {
    let pcpus = report["pcpus"].as_array().map_or(0, Vec::len);
    if pcpus > 1 { compared / 1_000_000 } else { 0 }
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
            "walk_cycles": 50, "llc_misses": 7, "checks_equal": 4, "checks_differ": 1 } });
        let report = json!({ "machine": "m", "pcpus": [pcpu, pcpu] });
        let expected = "lab machine m:\n  guest, nested: 2000 instructions, 4000 cycles; 8 walks of 2.50 references, \
                        2.50 % of the cycles; 14 misses of the last cache";
        assert_eq!(lines(&report), expected);
        assert_eq!(checks(&report), (8, 2));
        assert_eq!(allowed(&report, 5_000_000), 5);
        assert_eq!(allowed(&json!({ "pcpus": [0] }), 5_000_000), 0);
        assert_eq!(lines(&json!({})), "lab machine ?:");
    }
}
