//! What the thesis claims of isolation, what came out here, and whether the claim's shape holds: pure.

use serde_json::{Value, json};

use super::{
    super::super::verdict::{Claim, claim},
    ACCESSES,
    window::Vm,
};
use crate::compare::table::percent;

/// The VMs by their names: the noisy one, then the memlats.
pub const VMS: [&str; 3] = ["noisy", "one", "two"];

/// The thesis' saving of cache misses.
const SAVED: f64 = 0.084;
/// A gain that is none.
const NONE: f64 = 0.05;
/// What regioning costs at most.
const COST: f64 = 0.03;

/// Both runs of a point.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Size of a memlat's region.
    pub kib: u64,
    /// Modelled cycles of a microsecond.
    pub mhz: u32,
    /// Without regions, by the order of [`VMS`].
    pub off: [Vm; VMS.len()],
    /// With them.
    pub partition: [Vm; VMS.len()],
}

impl Vm {
    /// Cycles of an access; of the noisy one, which counts none, of an instruction.
    fn cost(&self) -> f64 {
        self.cycles as f64 / self.work().max(1) as f64
    }

    fn work(&self) -> u64 {
        if self.beats > 0 { self.beats * ACCESSES } else { self.instructions }
    }

    fn misses_per_access(&self) -> f64 {
        self.misses as f64 / self.work().max(1) as f64
    }

    /// The part of its time that it was charged for: where processors of the emulator do not keep step, the rest is waiting for
    /// the one that is ahead.
    fn pace(&self, mhz: u32) -> f64 {
        self.cycles as f64 * 1000.0 / f64::from(mhz) / self.ran_ns.max(1) as f64
    }

    fn document(&self) -> Value {
        json!({ "beats": self.beats, "cycles": self.cycles, "instructions": self.instructions, "llc_misses": self.misses,
            "ran_ns": self.ran_ns, "cache": self.cache, "held_bytes": self.held, "moves": self.moves })
    }

    fn of(value: &Value) -> Option<Vm> {
        let number = |key: &str| value[key].as_u64();
        Some(Vm {
            beats: number("beats")?,
            cycles: number("cycles")?,
            instructions: number("instructions")?,
            misses: number("llc_misses")?,
            ran_ns: number("ran_ns")?,
            cache: number("cache"),
            held: number("held_bytes")?,
            moves: number("moves")?,
        })
    }
}

/// Titles of the columns.
pub const HEAD: [&str; 10] =
    ["memlats", "VM", "off", "partition", "gain", "misses off", "misses", "mapped", "moves", "pace"];

/// What the columns are.
pub const EXPLAINED: &str = "\
*off* and *partition* are cycles of an access, and of an instruction of the noisy VM; *misses* those
of the last-level cache in 1000 of these. *mapped*: memory of the VM that was mapped to a cache
while it was measured, at the most, and to which one. *moves*: of its VCPU between caches, in all of
the run. *pace*: the part of its time for which a VCPU was charged cycles, without regions and with
them; the rest is waiting for another processor.
";

impl Measured {
    fn vms(&self) -> impl Iterator<Item = (usize, &Vm, &Vm)> {
        self.off.iter().zip(&self.partition).enumerate().map(|(n, (off, partition))| (n, off, partition))
    }

    /// Performance of a VM relative to that without regions.
    fn gain(&self, vm: usize) -> f64 {
        self.off[vm].cost() / self.partition[vm].cost()
    }

    /// Which of the memlats the noisy VM has disturbed.
    fn disturbed(&self) -> usize {
        let misses = |vm: &usize| self.off[*vm].misses_per_access();
        (1..VMS.len()).max_by(|a, b| misses(a).total_cmp(&misses(b))).unwrap_or(1)
    }

    /// Misses of the memlats, relative to those without regions.
    fn misses(&self) -> f64 {
        let sum = |vms: &[Vm]| vms[1..].iter().map(Vm::misses_per_access).sum::<f64>();
        sum(&self.partition) / sum(&self.off).max(1e-9)
    }

    /// Rows of the table.
    pub fn rows(&self) -> Vec<[String; HEAD.len()]> {
        let cells = |(n, off, partition): (usize, &Vm, &Vm)| {
            let mapped = partition.cache.map(|cache| format!("{} KiB to {cache}", partition.held / 1024));
            let [before, after] = [off, partition].map(|vm| vm.pace(self.mhz));
            [
                format!("{} KiB", self.kib),
                VMS[n].to_owned(),
                format!("{:.1}", off.cost()),
                format!("{:.1}", partition.cost()),
                percent(Some(self.gain(n))),
                format!("{:.1}", 1000.0 * off.misses_per_access()),
                format!("{:.1}", 1000.0 * partition.misses_per_access()),
                mapped.unwrap_or_else(|| "none".into()),
                partition.moves.to_string(),
                format!("{before:.2}, {after:.2}"),
            ]
        };
        self.vms().map(cells).collect()
    }

    /// For the file.
    pub fn document(&self, lab: &str, regions: &str, inputs: &str) -> Value {
        let vms = |vms: &[Vm]| vms.iter().map(Vm::document).collect::<Vec<_>>();
        json!({ "lab": lab, "region_kib": self.kib, "regions": regions, "mhz": self.mhz, "inputs": inputs, "vms": VMS,
            "off": vms(&self.off), "partition": vms(&self.partition) })
    }

    /// From the file.
    pub fn of(kib: u64, document: &Value) -> Option<Measured> {
        let vms = |key: &str| -> Option<[Vm; VMS.len()]> {
            document[key].as_array()?.iter().map(Vm::of).collect::<Option<Vec<_>>>()?.try_into().ok()
        };
        let mhz = u32::try_from(document["mhz"].as_u64()?).ok()?;
        Some(Measured { kib, mhz, off: vms("off")?, partition: vms("partition")? })
    }
}

/// From the least to the most, as changes; the least and the most.
fn range(values: &[f64]) -> (String, f64, f64) {
    let least = values.iter().copied().fold(f64::MAX, f64::min);
    let most = values.iter().copied().fold(f64::MIN, f64::max);
    let text = match values.len() {
        1 => percent(Some(least)),
        _ => format!("{} to {}", percent(Some(least)), percent(Some(most))),
    };
    (text, least, most)
}

/// The claims of the figure; none where nothing was measured.
pub fn claims(all: &[&Measured]) -> Vec<Claim> {
    if all.is_empty() {
        return Vec::new();
    }
    let misses: Vec<f64> = all.iter().map(|it| it.misses()).collect();
    let disturbed: Vec<f64> = all.iter().map(|it| it.gain(it.disturbed())).collect();
    let others = |it: &&Measured| {
        (0..VMS.len()).filter(|n| *n != it.disturbed()).map(|n| it.gain(n)).collect::<Vec<_>>()
    };
    let others: Vec<f64> = all.iter().flat_map(others).collect();
    let (misses, _, most) = range(&misses);
    let (gain, least, _) = range(&disturbed);
    let (cost, worst, _) = range(&others);
    vec![
        claim(
            "Isolating a noisy VM saves 8.4 % of the cache misses",
            format!("{misses} of the memlats'"),
            most <= 1.0 - SAVED,
        ),
        claim("The VM that shared its cache with the noisy one gains (our goal)", gain, least > 1.0 + NONE),
        claim(
            "What it costs the others is less than 3 % (figure 28; a phase once in a second)",
            cost,
            worst >= 1.0 - COST,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vm(beats: u64, cycles: u64, misses: u64) -> Vm {
        Vm {
            beats,
            cycles,
            instructions: 1_000_000,
            misses,
            ran_ns: 1_000_000,
            cache: Some(1),
            held: 4 << 20,
            moves: 1,
        }
    }

    /// Cycles of an access of both memlats, and misses in a thousand, without regions and with them.
    fn measured(off: [(u64, u64); 2], partition: [(u64, u64); 2]) -> Measured {
        let of = |all: [(u64, u64); 2]| {
            let [one, two] =
                all.map(|(cycles, misses)| vm(100, 100 * ACCESSES * cycles, 100 * ACCESSES * misses / 1000));
            [vm(0, 1_000_000, 5), one, two]
        };
        Measured { kib: 4096, mhz: 2800, off: of(off), partition: of(partition) }
    }

    fn holds(measured: &[&Measured]) -> Vec<bool> {
        claims(measured).iter().map(|claim| claim.holds).collect()
    }

    #[test]
    fn claims_hold_where_figures_show_them() {
        let good = measured([(350, 1000), (60, 0)], [(60, 1), (61, 0)]);
        assert_eq!((good.disturbed(), holds(&[&good])), (1, vec![true; 3]));
        // The same where the other one was disturbed.
        let other = measured([(60, 0), (350, 1000)], [(61, 0), (60, 1)]);
        assert_eq!((other.disturbed(), holds(&[&good, &other])), (2, vec![true; 3]));
        let none = measured([(60, 20), (60, 10)], [(60, 20), (60, 10)]);
        assert_eq!(holds(&[&none]), [false, false, true]);
        let dear = measured([(350, 1000), (60, 0)], [(60, 1), (70, 0)]);
        assert_eq!(holds(&[&dear]), [true, true, false]);
        assert_eq!(holds(&[&good, &none]), [false, false, true], "all points count");
        assert_eq!(claims(&[]).len(), 0);
    }

    #[test]
    fn rows_are_what_was_measured() {
        let good = measured([(350, 1000), (60, 0)], [(60, 1), (61, 0)]);
        let rows = good.rows();
        assert_eq!(rows.len(), 3);
        let expected =
            ["4096 KiB", "one", "350.0", "60.0", "+483.3 %", "1000.0", "1.0", "4096 KiB to 1", "1"];
        assert_eq!(rows[1][..9], expected.map(str::to_owned));
        assert_eq!(rows[0][2], "1.0", "of an instruction");
        let mut free = good.clone();
        free.partition[0].cache = None;
        assert_eq!(free.rows()[0][7], "none");
    }

    #[test]
    fn what_is_kept_comes_back() {
        let good = measured([(350, 1000), (60, 0)], [(60, 1), (61, 0)]);
        assert_eq!(Measured::of(4096, &good.document("zen3", "partition", "x")), Some(good));
        assert_eq!(Measured::of(4096, &json!({ "off": [] })), None);
    }
}
