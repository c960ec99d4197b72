//! What the thesis claims of unification on SPEC CPU2006, what came out here, and whether the claim's shape holds: pure.

use serde_json::{Value, json};

use super::{
    super::super::verdict::{Claim, claim},
    Program,
};
use crate::compare::table::percent;

/// The thesis' largest gain.
const GAIN: f64 = 0.15;
/// A gain that is none.
const NONE: f64 = 0.05;
/// What regioning costs at most.
const COST: f64 = 0.03;

/// A run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Run {
    /// Modelled nanoseconds of the part that is measured.
    pub ns: u64,
    /// Units of work in it.
    pub units: u64,
    /// Misses of the last-level cache in it.
    pub misses: u64,
    /// Moves of the VCPU between caches, in all of the run.
    pub moves: u64,
    /// Rounds after which regions were spread.
    pub spread: u64,
    /// Rounds.
    pub rounds: u64,
}

/// Both runs of a program.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The program.
    pub program: &'static Program,
    /// Without regions.
    pub off: Run,
    /// With `unify`.
    pub unify: Run,
}

impl Run {
    fn us_per_unit(&self) -> f64 {
        self.ns as f64 / 1000.0 / self.units.max(1) as f64
    }

    fn misses_per_unit(&self) -> f64 {
        self.misses as f64 / self.units.max(1) as f64
    }

    fn document(&self) -> Value {
        json!({ "ns": self.ns, "units": self.units, "llc_misses": self.misses, "moves": self.moves, "rounds_spread": self.spread,
            "rounds": self.rounds })
    }

    fn of(value: &Value) -> Option<Run> {
        let number = |key: &str| value[key].as_u64();
        Some(Run {
            ns: number("ns")?,
            units: number("units")?,
            misses: number("llc_misses")?,
            moves: number("moves")?,
            spread: number("rounds_spread")?,
            rounds: number("rounds")?,
        })
    }
}

/// What the page says of the programs.
pub const STANDINS: &str = "
SPEC CPU2006 is licensed and absent. The programs are
[stand-ins](../../tests/kits/standins/standins.c) that use memory as some of it do: each was made to
meet Conditions 1 to 3 of the thesis (2.3.1), or to break one.
";

/// Titles of the columns.
pub const HEAD: [&str; 10] =
    ["program", "for", "conditions", "off", "unify", "gain", "misses off", "misses", "spread", "moves"];

/// What the columns are.
pub const EXPLAINED: &str = "\
*off* and *unify* are microseconds of a unit of work; *misses* those of the last-level cache for a
unit, with those of the check of memory at the program's end. *spread*: rounds after which regions
were spread over both caches, of all rounds. *moves*: of the VCPU between caches, in all of the run.
";

impl Measured {
    /// Performance relative to one cache.
    fn gain(&self) -> f64 {
        self.off.us_per_unit() / self.unify.us_per_unit()
    }

    /// The same for people.
    pub fn gain_text(&self) -> String {
        format!(
            "{}, {} of {} rounds spread it",
            percent(Some(self.gain())),
            self.unify.spread,
            self.unify.rounds
        )
    }

    /// Misses relative to one cache.
    fn misses(&self) -> f64 {
        self.unify.misses_per_unit() / self.off.misses_per_unit().max(1e-9)
    }

    /// A row of the table.
    pub fn row(&self) -> [String; HEAD.len()] {
        let Measured { program, off, unify } = self;
        [
            program.name.to_owned(),
            program.of.to_owned(),
            program.broken.map_or("hold".into(), |number| format!("not {number}")),
            format!("{:.0} µs", off.us_per_unit()),
            format!("{:.0} µs", unify.us_per_unit()),
            percent(Some(self.gain())),
            format!("{:.0}", off.misses_per_unit()),
            format!("{:.0}", unify.misses_per_unit()),
            format!("{} of {}", unify.spread, unify.rounds),
            unify.moves.to_string(),
        ]
    }

    /// For the file.
    pub fn document(&self, lab: &str) -> Value {
        json!({ "figure": super::NAME, "lab": lab, "program": self.program.name,
            "off": self.off.document(), "unify": self.unify.document() })
    }

    /// From the file.
    pub fn of(program: &'static Program, document: &Value) -> Option<Measured> {
        Some(Measured { program, off: Run::of(&document["off"])?, unify: Run::of(&document["unify"])? })
    }
}

/// From the least to the most, as changes; the least and the most.
fn range(values: &[f64]) -> (String, f64, f64) {
    let least = values.iter().copied().fold(f64::MAX, f64::min);
    let most = values.iter().copied().fold(f64::MIN, f64::max);
    (format!("{} to {}", percent(Some(least)), percent(Some(most))), least, most)
}

/// The claims of the figure.
pub fn claims(all: &[Measured]) -> Vec<Claim> {
    let (allowed, forbidden): (Vec<&Measured>, Vec<&Measured>) =
        all.iter().partition(|measured| measured.program.broken.is_none());
    let mut claims = Vec::new();
    if !allowed.is_empty() {
        let (gain, least, most) = range(&allowed.iter().map(|it| it.gain()).collect::<Vec<_>>());
        let (misses, _, worst) = range(&allowed.iter().map(|it| it.misses()).collect::<Vec<_>>());
        claims.push(claim(
            "Unification gains, up to almost 15 % (sphinx), where Conditions 1 to 3 hold",
            gain,
            most >= 1.0 + GAIN && least > 1.0 + NONE,
        ));
        claims.push(claim("Its cache misses are fewer", misses, worst < 1.0));
    }
    if !forbidden.is_empty() {
        let wrong: Vec<_> =
            forbidden.iter().filter(|it| it.unify.spread > 0).map(|it| it.program.name).collect();
        let ours = match &wrong[..] {
            [] => format!("none of {} is spread", forbidden.len()),
            wrong => format!("spread: {}", wrong.join(", ")),
        };
        // One whose regions were never looked for would prove nothing.
        let are_tested = forbidden.iter().all(|it| it.unify.rounds > 0);
        claims.push(claim(
            "The conditions are tested before it acts: nothing is spread where one fails",
            ours,
            wrong.is_empty() && are_tested,
        ));
        let (cost, worst, _) = range(&forbidden.iter().map(|it| it.gain()).collect::<Vec<_>>());
        claims.push(claim("There it costs less than 3 % (figure 28)", cost, worst >= 1.0 - COST));
    }
    claims
}

#[cfg(test)]
mod tests {
    use super::{super::PROGRAMS, *};

    fn measured(name: &str, gain: f64, misses: u64, spread: u64) -> Measured {
        let program = PROGRAMS.iter().find(|program| program.name == name).unwrap();
        let run = |units, misses, spread| Run { ns: 1_000_000, units, misses, moves: 3, spread, rounds: 4 };
        Measured { program, off: run(100, 1000, 0), unify: run((100.0 * gain) as u64, misses, spread) }
    }

    fn holds(all: &[Measured]) -> Vec<bool> {
        claims(all).iter().map(|claim| claim.holds).collect()
    }

    #[test]
    fn claims_hold_where_figures_show_them() {
        let good = [
            measured("sphinx", 1.5, 10, 2),
            measured("namd", 1.1, 900, 3),
            measured("povray", 0.99, 1000, 0),
        ];
        assert_eq!(holds(&good), [true; 4]);
        let [sphinx, namd, povray] = good;
        assert_eq!(
            holds(std::slice::from_ref(&namd)),
            [false, true],
            "none gains as much as the thesis' best"
        );
        assert_eq!(holds(&[sphinx.clone(), measured("namd", 1.0, 2000, 0)]), [false, false]);
        assert_eq!(holds(&[measured("povray", 0.9, 1000, 1)]), [false, false]);
        assert!(claims(&[measured("povray", 0.9, 1000, 1)])[0].ours.contains("povray"));
        let mut never = povray;
        never.unify.rounds = 0;
        assert_eq!(holds(&[sphinx, never]), [true, true, false, true]);
        assert_eq!(holds(&[]), [false; 0]);
    }

    #[test]
    fn rows_are_what_was_measured_and_what_is_kept_comes_back() {
        let sphinx = measured("sphinx", 2.0, 10, 2);
        let expected =
            ["sphinx", "482.sphinx3", "hold", "10 µs", "5 µs", "+100.0 %", "10", "0", "2 of 4", "3"];
        assert_eq!(sphinx.row(), expected.map(str::to_owned));
        let again = Measured::of(sphinx.program, &sphinx.document("zen3")).unwrap();
        assert_eq!((again.off, again.unify), (sphinx.off, sphinx.unify));
        assert!(Measured::of(sphinx.program, &json!({ "off": {} })).is_none());
    }
}
