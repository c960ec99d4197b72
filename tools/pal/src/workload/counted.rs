//! What a run's lab machine and samples have counted of the work, beside its cycles.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::runner::{counted, regions};
use crate::samples::Run;

/// Counts of the work.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Counted {
    /// Instructions of the guest, or of everything without a hypervisor.
    pub instructions: u64,
    /// Lookups of theirs that missed the first level of TLBs.
    pub l1_tlb_misses: u64,
    /// And those that missed all TLBs: walks.
    pub walks: u64,
    /// Exits by their reasons, the most frequent first, as exact as samples are. With agile paging stand-ins are among them.
    pub exits: Vec<(String, u64)>,
    /// Exits in place of what agile paging's processor does by itself.
    pub stand_ins: u64,
    /// Page faults of the guest, as exact as samples are; `None`: they were not counted.
    pub page_faults: Option<u64>,
}

impl Counted {
    /// From a lab machine's report and the samples of the work. Without samples there was no hypervisor.
    pub fn of(report: &Value, samples: Option<&Run>) -> Counted {
        let program = |counter: &str| {
            let [host, nested, shadow] = counted(report, counter).unwrap_or_default();
            if samples.is_none() { host } else { nested.saturating_add(shadow) }
        };
        let all = |counters: [&str; 2]| counters.into_iter().map(program).fold(0, u64::saturating_add);
        let stand_ins = regions(report).into_iter().flatten();
        let stand_ins = stand_ins.filter_map(|region| region["agile"]["stand_ins"].as_u64());
        Counted {
            instructions: program("instructions"),
            l1_tlb_misses: all(["dtlb_l1_misses", "itlb_l1_misses"]),
            walks: all(["dtlb_misses", "itlb_misses"]),
            exits: samples.map_or_else(Vec::new, exits),
            stand_ins: stand_ins.fold(0, u64::saturating_add),
            page_faults: samples.and_then(page_faults),
        }
    }
}

/// The exits of all samples by their reasons, the most frequent first.
fn exits(run: &Run) -> Vec<(String, u64)> {
    let mut all: Vec<(String, u64)> = run.names.reasons.iter().map(|name| (name.clone(), 0)).collect();
    for (reason, count) in run.samples.iter().flat_map(|sample| &sample.exits) {
        if let Some((_, sum)) = all.get_mut(*reason) {
            *sum = sum.saturating_add(*count);
        }
    }
    all.retain(|(_, count)| *count > 0);
    all.sort_by(|one, other| other.1.cmp(&one.1).then_with(|| one.0.cmp(&other.0)));
    all
}

/// The page faults of all samples, if each has counted them.
fn page_faults(run: &Run) -> Option<u64> {
    let mut each = run.samples.iter().map(|sample| sample.counter("page_faults"));
    each.try_fold(0u64, |sum, count| Some(sum.saturating_add(count?))).filter(|_| !run.samples.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::samples::{Sample, line::Names};

    fn report() -> Value {
        let side = |n: u64| json!({ "instructions": n, "dtlb_l1_misses": 2 * n, "itlb_l1_misses": 3 * n, "dtlb_misses": n, "itlb_misses": 1 });
        json!({ "pcpus": [{ "regions": [
            { "region": 0, "times": 1, "host": side(1000), "guest_nested": side(10), "guest_shadow": side(1),
              "agile": { "stand_ins": 7 } },
            { "region": 3, "times": 1, "host": side(5), "guest_nested": side(5), "guest_shadow": side(5) },
        ] }] })
    }

    #[test]
    fn the_guest_is_counted_and_without_hypervisor_the_host() {
        let native = Counted::of(&report(), None);
        assert_eq!((native.instructions, native.l1_tlb_misses, native.walks), (1000, 5000, 1001));
        assert_eq!((native.exits.len(), native.page_faults), (0, None));
        let guest = Counted::of(&report(), Some(&Run::default()));
        assert_eq!((guest.instructions, guest.l1_tlb_misses, guest.walks), (11, 55, 13));
        assert_eq!((guest.stand_ins, guest.page_faults), (7, None));
    }

    #[test]
    fn exits_are_summed_by_reason() {
        let mut sample = Sample { exits: vec![(0, 3), (2, 5), (9, 1)], ..Sample::default() };
        let at = records::sample::COUNTERS.iter().position(|name| *name == "page_faults").unwrap();
        sample.guest[at] = Some(4);
        let reasons = ["cpuid", "hlt", "page-fault"].map(str::to_owned).to_vec();
        let names = Names { reasons, ..Names::default() };
        let mut run = Run { names, samples: vec![sample.clone(), sample], ..Run::default() };
        let counted = Counted::of(&report(), Some(&run));
        assert_eq!(counted.exits, [("page-fault".to_owned(), 10), ("cpuid".to_owned(), 6)]);
        assert_eq!(counted.page_faults, Some(8));
        run.samples[1].guest[at] = None;
        assert_eq!(Counted::of(&report(), Some(&run)).page_faults, None);
    }
}
