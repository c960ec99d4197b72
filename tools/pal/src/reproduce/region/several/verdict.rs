//! What the thesis claims of several VMs, what came out here, and whether the claim's shape holds: pure.

use serde_json::{Value, json};

use super::{
    super::super::verdict::{Claim, claim},
    cast::{Cast, ISOLATED, Part, Role},
    window::Vm,
};
use crate::compare::table::percent;

/// The thesis' saving of cache misses, of an isolated VM.
const SAVED: f64 = 0.084;
/// Its gain of balancing.
const BALANCED: f64 = 0.5;
/// A gain that is none.
const NONE: f64 = 0.05;
/// What regioning costs at most.
const COST: f64 = 0.03;

/// Both runs of a point.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The VMs.
    pub cast: &'static Cast,
    /// Size of a memlat's region.
    pub kib: u64,
    /// Modelled cycles of a microsecond.
    pub mhz: u32,
    /// Without regions, by the order of the cast.
    pub off: Vec<Vm>,
    /// With them.
    pub on: Vec<Vm>,
}

impl Vm {
    /// Cycles of an access; of the noisy one, which counts none, of an instruction.
    fn cost(&self, role: &Role) -> f64 {
        self.cycles as f64 / self.work(role).max(1) as f64
    }

    fn work(&self, role: &Role) -> u64 {
        if role.is_memlat() { self.beats * role.accesses } else { self.instructions }
    }

    fn misses_per_access(&self, role: &Role) -> f64 {
        self.misses as f64 / self.work(role).max(1) as f64
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
    ["memlats", "VM", "off", "on", "gain", "misses off", "misses", "mapped", "moves", "pace"];

/// What the columns are.
pub const EXPLAINED: &str = "\
*off* and *on* are cycles of an access, and of an instruction of a noisy VM; *misses* those of the
last-level cache in 1000 of these. *mapped*: memory of the VM that was mapped to a cache
while it was measured, at the most, and to which one. *moves*: of its VCPU between caches, in all of
the run. *pace*: the part of its time for which a VCPU was charged cycles, without regions and with
them; the rest is waiting for another processor.
";

impl Measured {
    fn vms(&self) -> impl Iterator<Item = (&'static Role, &Vm, &Vm)> {
        self.cast.roles.iter().zip(self.off.iter().zip(&self.on)).map(|(role, (off, on))| (role, off, on))
    }

    /// Performance of each VM relative to that without regions.
    fn gains(&self) -> Vec<f64> {
        self.vms().map(|(role, off, on)| off.cost(role) / on.cost(role)).collect()
    }

    /// Which of the memlats a noisy VM has disturbed.
    fn disturbed(&self) -> usize {
        let misses = self.vms().map(|(role, off, _)| (role.is_memlat(), off.misses_per_access(role)));
        let memlats = misses.enumerate().filter(|(_, (is_memlat, _))| *is_memlat);
        memlats.max_by(|(_, (_, a)), (_, (_, b))| a.total_cmp(b)).map_or(0, |(n, _)| n)
    }

    /// Misses of the memlats, relative to those without regions.
    fn misses(&self) -> f64 {
        let memlats = self.vms().filter(|(role, ..)| role.is_memlat());
        let (off, on) = memlats.fold((0.0, 0.0), |(sum_off, sum_on), (role, off, on)| {
            (sum_off + off.misses_per_access(role), sum_on + on.misses_per_access(role))
        });
        on / off.max(1e-9)
    }

    /// Rows of the table.
    pub fn rows(&self) -> Vec<[String; HEAD.len()]> {
        let gains = self.gains();
        let cells = |((role, off, on), gain): ((&Role, &Vm, &Vm), &f64)| {
            let mapped = on.cache.map(|cache| format!("{} KiB to {cache}", on.held / 1024));
            let [before, after] = [off, on].map(|vm| vm.pace(self.mhz));
            [
                format!("{} KiB", self.kib),
                role.name.to_owned(),
                format!("{:.1}", off.cost(role)),
                format!("{:.1}", on.cost(role)),
                percent(Some(*gain)),
                format!("{:.1}", 1000.0 * off.misses_per_access(role)),
                format!("{:.1}", 1000.0 * on.misses_per_access(role)),
                mapped.unwrap_or_else(|| "none".into()),
                on.moves.to_string(),
                format!("{before:.2}, {after:.2}"),
            ]
        };
        self.vms().zip(&gains).map(cells).collect()
    }

    /// For the file.
    pub fn document(&self, lab: &str, regions: &str) -> Value {
        let vms = |vms: &[Vm]| vms.iter().map(Vm::document).collect::<Vec<_>>();
        let names: Vec<_> = self.cast.roles.iter().map(|role| role.name).collect();
        json!({ "figure": self.cast.figure, "lab": lab, "region_kib": self.kib, "regions": regions, "mhz": self.mhz,
            "vms": names, "off": vms(&self.off), "on": vms(&self.on) })
    }

    /// From the file.
    pub fn of(cast: &'static Cast, kib: u64, document: &Value) -> Option<Measured> {
        let vms = |key: &str| -> Option<Vec<Vm>> {
            let vms = document[key].as_array()?.iter().map(Vm::of).collect::<Option<Vec<_>>>()?;
            (vms.len() == cast.roles.len()).then_some(vms)
        };
        let mhz = u32::try_from(document["mhz"].as_u64()?).ok()?;
        Some(Measured { cast, kib, mhz, off: vms("off")?, on: vms("on")? })
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
pub fn claims(cast: &Cast, all: &[&Measured]) -> Vec<Claim> {
    match all {
        [] => Vec::new(),
        _ if cast.figure == ISOLATED => isolated(all),
        _ => balanced(all),
    }
}

fn isolated(all: &[&Measured]) -> Vec<Claim> {
    let misses: Vec<f64> = all.iter().map(|it| it.misses()).collect();
    let disturbed: Vec<f64> = all.iter().map(|it| it.gains()[it.disturbed()]).collect();
    let others = |it: &&Measured| {
        let gains = it.gains().into_iter().enumerate();
        gains.filter(|(n, _)| *n != it.disturbed()).map(|(_, gain)| gain).collect::<Vec<_>>()
    };
    let others: Vec<f64> = all.iter().flat_map(others).collect();
    let (misses, _, most) = range(&misses);
    let (gain, least, _) = range(&disturbed);
    vec![
        claim(
            "Isolating a noisy VM saves 8.4 % of the cache misses",
            format!("{misses} of the memlats'"),
            most <= 1.0 - SAVED,
        ),
        claim("The VM that shared its cache with the noisy one gains (our goal)", gain, least > 1.0 + NONE),
        cost("others", &others),
    ]
}

fn balanced(all: &[&Measured]) -> Vec<Claim> {
    let gains = |is_large: bool| -> Vec<f64> {
        let of = |it: &&Measured| {
            let gains = it.cast.roles.iter().zip(it.gains());
            gains
                .filter(|(role, _)| (role.part == Part::Memlat) == is_large)
                .map(|(_, gain)| gain)
                .collect::<Vec<_>>()
        };
        all.iter().flat_map(of).collect()
    };
    let (gain, least, _) = range(&gains(true));
    let paper = "Two programs that shared a cache, which only one of them fits, gain more than 50 % when each is \
                 paired with a small one";
    vec![claim(paper, gain, least >= 1.0 + BALANCED), cost("small ones", &gains(false))]
}

/// What regions cost those that gain nothing.
fn cost(others: &str, gains: &[f64]) -> Claim {
    let (ours, worst, _) = range(gains);
    let paper = format!("What it costs the {others} is less than 3 % (figure 28; a phase once in a second)");
    claim(&paper, ours, worst >= 1.0 - COST)
}

#[cfg(test)]
mod tests {
    use super::{super::cast, *};

    const ACCESSES: u64 = 5000;

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
    fn measured(off: [(u64, u64); 2], on: [(u64, u64); 2]) -> Measured {
        let of = |all: [(u64, u64); 2]| {
            let memlat = |(cycles, misses)| vm(100, 100 * ACCESSES * cycles, 100 * ACCESSES * misses / 1000);
            [vec![vm(0, 1_000_000, 5)], all.map(memlat).into()].concat()
        };
        Measured { cast: cast::of(ISOLATED).unwrap(), kib: 4096, mhz: 2800, off: of(off), on: of(on) }
    }

    fn holds(measured: &[&Measured]) -> Vec<bool> {
        claims(cast::of(ISOLATED).unwrap(), measured).iter().map(|claim| claim.holds).collect()
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
        assert_eq!(holds(&[]).len(), 0);
    }

    #[test]
    fn pairs_are_judged_by_the_large_ones() {
        let cast = cast::of(cast::BALANCED).unwrap();
        let vms = |cycles: [u64; 4]| {
            let roles = cast.roles.iter().zip(cycles);
            roles.map(|(role, cycles)| vm(100, 100 * role.accesses * cycles, 0)).collect()
        };
        let holds = |off, on| {
            let measured = Measured { cast, kib: 3072, mhz: 3000, off: vms(off), on: vms(on) };
            claims(cast, &[&measured]).iter().map(|claim| claim.holds).collect::<Vec<_>>()
        };
        assert_eq!(holds([300, 310, 50, 50], [100, 100, 51, 50]), [true, true]);
        assert_eq!(holds([300, 310, 50, 50], [100, 300, 51, 50]), [false, true], "both have to gain");
        assert_eq!(holds([300, 310, 50, 50], [100, 100, 60, 50]), [true, false]);
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
        free.on[0].cache = None;
        assert_eq!(free.rows()[0][7], "none");
    }

    #[test]
    fn what_is_kept_comes_back() {
        let good = measured([(350, 1000), (60, 0)], [(60, 1), (61, 0)]);
        let again = Measured::of(good.cast, 4096, &good.document("zen3", "partition")).unwrap();
        assert_eq!((again.off, again.on, again.mhz), (good.off, good.on, good.mhz));
        assert!(Measured::of(good.cast, 4096, &json!({ "off": [], "on": [], "mhz": 1 })).is_none());
    }
}
