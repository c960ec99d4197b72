//! What a report shows of samples: figures over time, and totals.
//!
//! A figure is a quotient of two sums, so that one of several samples together is exact: neither a mean of means nor one that
//! stands for its neighbours.

use crate::samples::{Run, Sample};

/// A series: one VM of one run.
pub struct Series<'a> {
    /// In legends.
    pub name: String,
    /// The run.
    pub run: &'a Run,
    /// The samples of this VM.
    pub samples: Vec<&'a Sample>,
}

/// The series of all VMs that have samples, of all runs.
pub fn series(runs: &[Run]) -> Vec<Series<'_>> {
    let mut all = Vec::new();
    for run in runs {
        let mut of: Vec<_> = (0..run.names.vms.len()).map(|_| Vec::new()).collect();
        run.samples.iter().for_each(|sample| of[sample.vm].push(sample));
        let vms: Vec<_> =
            of.into_iter().zip(&run.names.vms).filter(|(samples, _)| !samples.is_empty()).collect();
        let alone = vms.len() == 1;
        for (samples, vm) in vms {
            let name = if alone { run.name.clone() } else { format!("{} / {vm}", run.name) };
            all.push(Series { name, run, samples });
        }
    }
    all
}

/// A part of a sample; `None`: it was not counted.
type Part = fn(&Sample) -> Option<u64>;

/// A chart of a quotient.
pub struct Figure {
    /// Its title.
    pub title: &'static str,
    /// Its unit.
    pub unit: &'static str,
    above: Part,
    below: Part,
    factor: f64,
}

/// The charts.
pub const FIGURES: [Figure; 8] = [
    Figure {
        title: "Exits",
        unit: "per second",
        above: |it| Some(it.all_exits()),
        below: |it| Some(it.span_ns),
        factor: 1e9,
    },
    Figure {
        title: "Processor time",
        unit: "% of one PCPU, all VCPUs together",
        above: |it| Some(it.all_ran_ns()),
        below: |it| Some(it.span_ns),
        factor: 100.0,
    },
    Figure {
        title: "Instructions per cycle",
        unit: "of the guest",
        above: |it| it.counter("instructions"),
        below: |it| it.counter("cycles"),
        factor: 1.0,
    },
    Figure {
        title: "Data TLB misses",
        unit: "per 1000 instructions of the guest",
        above: |it| it.counter("dtlb_misses"),
        below: |it| it.counter("instructions"),
        factor: 1000.0,
    },
    Figure {
        title: "Cycles of page walks",
        unit: "% of the guest's cycles",
        above: |it| it.counter("walk_cycles"),
        below: |it| it.counter("cycles"),
        factor: 100.0,
    },
    Figure {
        title: "Last-level cache misses",
        unit: "per 1000 instructions of the guest",
        above: |it| it.counter("llc_misses"),
        below: |it| it.counter("instructions"),
        factor: 1000.0,
    },
    Figure {
        title: "Changes of the mode",
        unit: "per second",
        above: |it| Some(it.switches),
        below: |it| Some(it.span_ns),
        factor: 1e9,
    },
    Figure {
        title: "Memory of shadow paging",
        unit: "MiB",
        above: |it| Some(it.shadow_bytes),
        below: |_| Some(1 << 20),
        factor: 1.0,
    },
];

/// A stretch of a figure: seconds from, seconds to, value.
pub type Step = (f64, f64, f64);

/// Steps of a series at most: about the columns of a chart.
const STEPS: usize = 600;

/// The samples in groups of neighbours, that are shown as one.
pub fn groups<'a>(samples: &'a [&'a Sample]) -> std::slice::Chunks<'a, &'a Sample> {
    samples.chunks(samples.len().div_ceil(STEPS).max(1))
}

/// When a group of samples begins and ends, in seconds of the machine.
pub fn times(group: &[&Sample]) -> (f64, f64) {
    let begin = group.first().map_or(0, |first| first.machine_ns.saturating_sub(first.span_ns));
    let end = group.last().map_or(0, |last| last.machine_ns);
    (begin as f64 / 1e9, end as f64 / 1e9)
}

impl Figure {
    /// The steps of a series.
    pub fn steps(&self, samples: &[&Sample]) -> Vec<Step> {
        let step = |group: &[&Sample]| {
            let mut sums = [0.0; 2];
            for sample in group {
                // A sample without either part counts for nothing.
                if let (Some(above), Some(below)) = ((self.above)(sample), (self.below)(sample)) {
                    sums = [sums[0] + above as f64, sums[1] + below as f64];
                }
            }
            let (begin, end) = times(group);
            (sums[1] > 0.0).then(|| (begin, end, sums[0] * self.factor / sums[1]))
        };
        groups(samples).filter_map(step).collect()
    }

    /// Whether it says something: a machine that never changes the mode needs no chart of that.
    pub fn is_plain(&self, steps: &[Vec<Step>]) -> bool {
        self.title != "Exits" && steps.iter().flatten().all(|step| step.2 == 0.0)
    }
}

/// The tables' figures: title, sum over a VM's samples.
pub const TOTALS: [(&str, Part); 15] = [
    ("time, ms", |it| Some(it.span_ns)),
    ("processor time, ms", |it| Some(it.all_ran_ns())),
    ("exits", |it| Some(it.all_exits())),
    ("faults on shadow tables", |it| Some(it.faults[0])),
    ("nested faults that filled an entry", |it| Some(it.faults[1])),
    ("changes of the mode", |it| Some(it.switches)),
    ("instructions of the guest", |it| it.counter("instructions")),
    ("cycles of the guest", |it| it.counter("cycles")),
    ("cycles of the hypervisor", |it| it.host_cycles),
    ("data TLB misses", |it| it.counter("dtlb_misses")),
    ("page walks", |it| it.counter("walks")),
    ("references of page walks", |it| it.counter("walk_refs")),
    ("cycles of page walks", |it| it.counter("walk_cycles")),
    ("L2 cache misses", |it| it.counter("l2_misses")),
    ("last-level cache misses", |it| it.counter("llc_misses")),
];

/// A total of a series; `None`: no sample has it.
pub fn total(samples: &[&Sample], (title, part): (&str, Part)) -> Option<u64> {
    let sum = samples.iter().filter_map(|sample| part(sample)).reduce(u64::saturating_add)?;
    Some(if title.ends_with(", ms") { sum / 1_000_000 } else { sum })
}

/// The exits of one reason.
pub fn exits(series: &Series<'_>, reason: &str) -> Option<u64> {
    let at = series.run.names.reasons.iter().position(|known| known == reason)?;
    let counts = series.samples.iter().flat_map(|sample| &sample.exits).filter(|(why, _)| *why == at);
    counts.map(|(_, count)| *count).reduce(u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(at: u64, exits: u64, cycles: Option<u64>) -> Sample {
        let mut sample = Sample {
            machine_ns: at * 1_000_000_000,
            span_ns: 1_000_000_000,
            exits: vec![(0, exits)],
            ..Sample::default()
        };
        (sample.guest[0], sample.guest[1]) = (Some(100), cycles);
        sample
    }

    #[test]
    fn figures_are_quotients_of_sums() {
        let samples: Vec<_> = (1..=3).map(|n| sample(n, 10 * n, (n != 2).then_some(400))).collect();
        let samples: Vec<_> = samples.iter().collect();
        assert_eq!(FIGURES[0].steps(&samples), [(0.0, 1.0, 10.0), (1.0, 2.0, 20.0), (2.0, 3.0, 30.0)]);
        assert_eq!(FIGURES[2].steps(&samples), [(0.0, 1.0, 0.25), (2.0, 3.0, 0.25)], "absent is no 0");
        assert!(FIGURES[3].steps(&samples).is_empty());
        assert_eq!((total(&samples, TOTALS[2]), total(&samples, TOTALS[9])), (Some(60), None));
    }

    #[test]
    fn many_samples_become_fewer_steps_of_the_same_sum() {
        let samples: Vec<_> = (1..=50_000).map(|n| sample(n, n % 7, Some(1))).collect();
        let samples: Vec<_> = samples.iter().collect();
        let steps = FIGURES[0].steps(&samples);
        assert!(steps.len() <= STEPS && steps.len() > STEPS / 2, "{}", steps.len());
        let sum: f64 = steps.iter().map(|(begin, end, value)| (end - begin) * value).sum();
        assert_eq!(Some(sum.round() as u64), total(&samples, TOTALS[2]));
    }
}
