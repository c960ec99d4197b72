//! What a person reads of a report at the end of a run.

use serde_json::Value;

/// The counters of one side of several processors.
struct Side<'a> {
    name: &'static str,
    pcpus: Vec<&'a Value>,
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

/// The sides, with the processors that `counts` chooses.
fn sides(report: &Value, counts: impl Fn(&&Value) -> bool) -> impl Iterator<Item = (&'static str, Side<'_>)> {
    let pcpus: Vec<&Value> = report["pcpus"].as_array().into_iter().flatten().filter(counts).collect();
    SIDES.into_iter().map(move |(name, words)| (words, Side { name, pcpus: pcpus.clone() }))
}

/// A line for each side that executed anything, on the processors that the machine's description speaks of.
pub fn lines(report: &Value) -> String {
    let mut text = format!("lab machine {}:", report["machine"].as_str().unwrap_or("?"));
    for (words, side) in
        sides(report, |pcpu| pcpu["spare"] != true).filter(|(_, side)| side.get("instructions") > 0)
    {
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
    text += &domains(report);
    text += &channels(report);
    text + &agile(report).map_or_else(String::new, |agile| agile.line())
}

/// What came through the channels of memory.
fn channels(report: &Value) -> String {
    let all = report["channels"].as_array().map_or(&[][..], Vec::as_slice);
    let line = |channel: &Value| {
        let get = |key: &str| channel[key].as_u64().unwrap_or(0);
        format!(
            "\n  memory from {} to {} MiB: busy {} % of the time; {} accesses wait {} cycles on average; {} lines prefetched",
            get("from_mib"),
            get("to_mib"),
            hundredths(get("busy_cycles") * 100, get("cycles")),
            get("lines"),
            hundredths(get("wait_cycles"), get("lines")),
            get("prefetched"),
        )
    };
    all.iter().map(line).collect()
}

/// What the last-level caches have had, where there are several and they were modelled.
fn domains(report: &Value) -> String {
    let all = report["domains"].as_array().map_or(&[][..], Vec::as_slice);
    let count = |domain: &Value, key: &str| domain[key].as_u64().unwrap_or(0);
    let used = all.iter().any(|domain| count(domain, "llc_hits") + count(domain, "llc_misses") > 0);
    let several = all.iter().filter(|_| all.len() > 1 && used);
    let line = |domain: &Value| {
        let (hits, misses) = (count(domain, "llc_hits"), count(domain, "llc_misses"));
        format!("\n  last cache of domain {}: {hits} hits, {misses} misses", count(domain, "domain"))
    };
    several.map(line).collect()
}

/// Walks of agile paging, and what stood in for its processor.
struct Agile {
    /// By where they switch: walks, and their references without walk caches.
    walks: Vec<u64>,
    refs: Vec<u64>,
    stand_ins: u64,
    stand_in_cycles: u64,
}

impl Agile {
    fn line(&self) -> String {
        let [walks, refs] = [&self.walks, &self.refs].map(|all| all.iter().sum::<u64>());
        let shares = abi::lab::SWITCH_REFS.iter().zip(&self.walks);
        let shares = shares.map(|(refs, of)| format!("{refs}: {} %", hundredths(of * 100, walks)));
        format!(
            "\n  agile: {walks} walks of {} references without walk caches ({}); {} stand-ins, whose {} cycles are not the host's",
            hundredths(refs, walks),
            shares.collect::<Vec<_>>().join(", "),
            self.stand_ins,
            self.stand_in_cycles,
        )
    }
}

/// What all processors have counted of agile paging, if any has.
fn agile(report: &Value) -> Option<Agile> {
    let pcpus = report["pcpus"].as_array()?.iter().filter(|pcpu| pcpu["agile"].is_object());
    let all = |name: &str| -> Vec<u64> {
        let at = |index| pcpus.clone().filter_map(|pcpu| pcpu["agile"][name][index].as_u64()).sum();
        (0..abi::lab::SWITCHES).map(at).collect()
    };
    let sum = |part: &str, name: &str| pcpus.clone().filter_map(|pcpu| pcpu[part][name].as_u64()).sum();
    let (walks, refs) = (all("walks"), all("walk_refs_uncached"));
    let (stand_ins, stand_in_cycles) = (sum("agile", "stand_ins"), sum("stand_ins", "cycles"));
    (pcpus.clone().count() > 0).then_some(Agile { walks, refs, stand_ins, stand_in_cycles })
}

/// Translations that were compared: those that are equal, those that differ, and those that need not be equal, because
/// another processor was changing the tables.
pub fn checks(report: &Value) -> (u64, u64, u64) {
    sides(report, |_| true).fold((0, 0, 0), |(equal, differ, raced), (_, side)| {
        let get = |name| side.get(name);
        (equal + get("checks_equal"), differ + get("checks_differ"), raced + get("checks_raced"))
    })
}

/// What is known of the first differences, a line for each.
pub fn differences(report: &Value) -> String {
    let pcpus = report["pcpus"].as_array().into_iter().flatten();
    let lines = pcpus.flat_map(|pcpu| {
        let whose = match pcpu["pcpu"].as_u64() {
            Some(number) => format!("PCPU {number}"),
            None => "the hypervisor's own processor".to_owned(),
        };
        let lines = pcpu["differences"].as_array().into_iter().flatten().filter_map(Value::as_str);
        lines.map(move |line| format!("\n  {whose}: {line}"))
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
        let pcpu = json!({ "pcpu": 1, "host": { "instructions": 0 }, "guest_nested": {
            "instructions": 1000, "cycles": 2000, "dtlb_misses": 3, "itlb_misses": 1, "walk_refs": 10,
            "walk_cycles": 50, "llc_misses": 7, "checks_equal": 4, "checks_differ": 1, "checks_raced": 3 },
            "differences": ["frame 1"] });
        let mut spare = pcpu.clone();
        (spare["pcpu"], spare["spare"]) = (Value::Null, true.into());
        let report = json!({ "machine": "m", "pcpus": [pcpu, pcpu, spare] });
        let expected = "lab machine m:\n  guest, nested: 2000 instructions, 4000 cycles; 8 walks of 2.50 references, \
                        2.50 % of the cycles; 14 misses of the last cache";
        assert_eq!(lines(&report), expected);
        assert_eq!(checks(&report), (12, 3, 9));
        assert_eq!(
            differences(&report),
            "\n  PCPU 1: frame 1\n  PCPU 1: frame 1\n  the hypervisor's own processor: frame 1"
        );
        assert_eq!(lines(&json!({})), "lab machine ?:");
    }

    #[test]
    fn caches_of_several_domains_are_told_apart() {
        let domain = |number, hits| json!({ "domain": number, "llc_hits": hits, "llc_misses": 3 });
        let report = json!({ "machine": "m", "domains": [domain(0, 5), domain(1, 7)] });
        let expected = "lab machine m:\n  last cache of domain 0: 5 hits, 3 misses\n  last cache of domain 1: 7 hits, 3 misses";
        assert_eq!(lines(&report), expected);
        assert_eq!(lines(&json!({ "machine": "m", "domains": [domain(0, 5)] })), "lab machine m:");
        let idle = json!({ "domain": 0, "llc_hits": 0, "llc_misses": 0 });
        assert_eq!(lines(&json!({ "machine": "m", "domains": [idle, idle] })), "lab machine m:");
    }

    #[test]
    fn busy_memory_is_told() {
        let channel = json!({ "from_mib": 32, "to_mib": 88, "lines": 200, "prefetched": 7, "wait_cycles": 501,
            "busy_cycles": 1000, "cycles": 3000 });
        let expected = "lab machine m:\n  memory from 32 to 88 MiB: busy 33.33 % of the time; 200 accesses wait 2.50 cycles on \
                        average; 7 lines prefetched";
        assert_eq!(lines(&json!({ "machine": "m", "channels": [channel] })), expected);
    }

    #[test]
    fn walks_of_agile_paging_are_told_by_where_they_switch() {
        let pcpu = json!({ "agile": { "walks": [9, 1, 0, 0, 0, 0], "walk_refs_uncached": [36, 8, 0, 0, 0, 0],
            "stand_ins": 3 }, "stand_ins": { "cycles": 70 } });
        let report = json!({ "machine": "m", "pcpus": [pcpu, pcpu, {}] });
        let expected = "lab machine m:\n  agile: 20 walks of 4.40 references without walk caches (4: 90.00 %, 8: 10.00 %, \
                        12: 0.00 %, 16: 0.00 %, 20: 0.00 %, 24: 0.00 %); 6 stand-ins, whose 140 cycles are not the host's";
        assert_eq!(lines(&report), expected);
    }
}
