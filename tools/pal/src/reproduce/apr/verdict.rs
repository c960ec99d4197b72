//! What the thesis claims of APR, what came out here, and whether it holds: pure, of what was counted.

use pagesim::{
    figures::Measured,
    simulation::{Choice, Kind, Outcome},
};

use super::{
    super::verdict::{Claim, claim},
    Subject,
};
use crate::compare::table::percent;

/// "Never worse than CLOCK": by this at most.
const NEVER_WORSE: f64 = 1.01;
/// "Hardly an effect": this between the best and the worst decay factor.
const NO_EFFECT: f64 = 1.05;

const CLOCK: Kind = Kind::Clock;

/// A policy's outcomes beside CLOCK's with the same memory, where CLOCK evicts at all.
fn pairs<'a>(measured: &'a Measured, choice: &'a Choice) -> impl Iterator<Item = (&'a Outcome, &'a Outcome)> {
    let clocks = measured.outcomes.iter().filter(|outcome| outcome.choice.kind == CLOCK);
    measured.of(choice).zip(clocks).filter(|(_, clock)| clock.counts.evictions > 0)
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}

/// Faults of one policy relative to another's with the same memory: the mean over memories.
fn faults_to(measured: &Measured, choice: &Choice, other: &Choice) -> Option<f64> {
    let pairs = measured.of(choice).zip(measured.of(other)).filter(|(_, other)| other.counts.evictions > 0);
    mean(pairs.map(|(one, other)| one.counts.evictions as f64 / other.counts.evictions as f64))
}

/// Faults relative to CLOCK's, the mean over memories. `None`: CLOCK evicts nothing.
pub fn faults(measured: &Measured, choice: &Choice) -> Option<f64> {
    mean(
        pairs(measured, choice)
            .map(|(one, clock)| one.counts.evictions as f64 / clock.counts.evictions as f64),
    )
}

/// Faults relative to CLOCK's, the mean over the thesis' programs that are there.
pub fn mean_of_twelve(all: &[Measured], choice: &Choice) -> Option<f64> {
    let twelve = all.iter().filter(|measured| measured.program.in_thesis);
    mean(twelve.filter_map(|measured| faults(measured, choice)))
}

/// The mean refault distance relative to CLOCK's. `None`: nothing came back.
pub fn distance(measured: &Measured, choice: &Choice) -> Option<f64> {
    let of = |outcome: &Outcome| {
        let counts = &outcome.counts;
        (counts.refaults > 0).then(|| counts.refault_distance as f64 / counts.refaults as f64)
    };
    mean(pairs(measured, choice).filter_map(|(one, clock)| Some(of(one)? / of(clock)?)))
}

/// The claims of a figure.
///
/// # Errors
/// What is missing: nothing is said of what was not simulated.
pub fn claims(subject: Subject, all: &[Measured], choices: &[Choice]) -> Result<Vec<Claim>, String> {
    match subject {
        Subject::Faults => of_faults(all, choices),
        Subject::RefaultDistance => of_distances(all, choices),
        Subject::Decay => of_decays(all, choices),
    }
}

fn find(choices: &[Choice], kind: Kind) -> Result<Choice, String> {
    let found = choices.iter().find(|choice| **choice == Choice::new(kind));
    found.copied().ok_or_else(|| format!("{} was not simulated", kind.name()))
}

/// The twelve programs of the thesis.
fn twelve(all: &[Measured]) -> Result<Vec<&Measured>, String> {
    let twelve: Vec<_> = all.iter().filter(|measured| measured.program.in_thesis).collect();
    if twelve.len() == 12 { Ok(twelve) } else { Err(format!("{} of 12 programs were run", twelve.len())) }
}

/// Programs with a figure, and the worst of them.
fn listed(figures: &[(&str, f64)], worst: impl Fn(f64, f64) -> bool) -> (String, f64) {
    let words: Vec<_> =
        figures.iter().map(|(name, value)| format!("{name} {}", percent(Some(*value)))).collect();
    let mut values = figures.iter().map(|(_, value)| *value);
    let first = values.next().unwrap_or(1.0);
    let found = values.fold(first, |found, value| if worst(value, found) { value } else { found });
    (words.join(", "), found)
}

fn of_faults(all: &[Measured], choices: &[Choice]) -> Result<Vec<Claim>, String> {
    let twelve = twelve(all)?;
    let apr = find(choices, Kind::Apr)?;
    let mut claims = Vec::new();
    for (kind, paper) in [(CLOCK, 0.220), (Kind::ClockPro, 0.221), (Kind::Seq, 0.164)] {
        let other = find(choices, kind)?;
        let ours = mean(twelve.iter().filter_map(|measured| faults_to(measured, &apr, &other)));
        let ours = ours.ok_or("no policy evicted anything")?;
        claims.push(claim(
            &format!(
                "APR has {:.1} % fewer faults than {} on the mean of twelve",
                100.0 * paper,
                kind.name()
            ),
            percent(Some(ours)),
            ours <= 1.0 - paper,
        ));
    }
    let clock = find(choices, CLOCK)?;
    let each: Vec<_> =
        twelve.iter().filter_map(|all| Some((all.program.name, faults_to(all, &apr, &clock)?))).collect();
    let (words, worst) = listed(&each, |a, b| a > b);
    let points =
        twelve.iter().flat_map(|measured| pairs(measured, &apr).map(|pair| (measured.program.name, pair)));
    let ratio =
        |(one, clock): &(&Outcome, &Outcome)| one.counts.evictions as f64 / clock.counts.evictions as f64;
    let point = points.max_by(|(_, a), (_, b)| ratio(a).total_cmp(&ratio(b)));
    let point = point.map_or(String::new(), |(name, pair)| {
        format!("; worst single memory: {name} with {} frames {}", pair.0.frames, percent(Some(ratio(&pair))))
    });
    claims.push(claim(
        "APR is never worse than CLOCK by more than 1 % (\"negligible\" in the thesis; here the mean over memories)",
        format!("{words}{point}"),
        worst <= NEVER_WORSE,
    ));
    let seq = find(choices, Kind::Seq)?;
    let ahead: Vec<_> = twelve
        .iter()
        .filter(|measured| faults_to(measured, &seq, &apr).is_some_and(|ratio| ratio < 1.0))
        .map(|measured| measured.program.name)
        .collect();
    claims.push(claim(
        "SEQ is ahead of APR in two programs: fft and radix",
        if ahead.is_empty() { "in none".into() } else { format!("in {}", ahead.join(", ")) },
        ahead == ["fft", "radix"],
    ));
    let opt = find(choices, Kind::Opt)?;
    let least = all.iter().all(|measured| {
        choices.iter().all(|choice| {
            measured
                .of(choice)
                .zip(measured.of(&opt))
                .all(|(one, opt)| one.counts.faults >= opt.counts.faults)
        })
    });
    claims.push(claim(
        "OPT always has the fewest faults",
        if least { "always" } else { "not always" }.into(),
        least,
    ));
    Ok(claims)
}

fn of_distances(all: &[Measured], choices: &[Choice]) -> Result<Vec<Claim>, String> {
    let twelve = twelve(all)?;
    let each = |kind: Kind| -> Result<Vec<(&str, f64)>, String> {
        let choice = find(choices, kind)?;
        Ok(twelve.iter().filter_map(|all| Some((all.program.name, distance(all, &choice)?))).collect())
    };
    let (apr, pro) = (each(Kind::Apr)?, each(Kind::ClockPro)?);
    let (words, least) = listed(&apr, |a, b| a < b);
    let average = mean(apr.iter().map(|(_, value)| *value)).ok_or("nothing came back")?;
    let further: Vec<_> = pro.iter().filter(|(_, value)| *value > NO_EFFECT).map(|(name, _)| *name).collect();
    let (pro_words, _) = listed(&pro, |a, b| a > b);
    Ok(vec![
        claim("APR's distances are larger than CLOCK's on the whole", percent(Some(average)), average > 1.0),
        claim("and almost the same in the worst case (5 % less at most)", words, least >= 0.95),
        claim(
            "CLOCK-Pro's are equal to CLOCK's or less (5 % more at most) but for ocean_cp",
            pro_words,
            further.iter().all(|name| *name == "ocean-cp"),
        ),
    ])
}

fn of_decays(all: &[Measured], choices: &[Choice]) -> Result<Vec<Claim>, String> {
    let decays: Vec<_> = choices.iter().filter(|choice| choice.kind == Kind::Apr).collect();
    if decays.len() < 2 {
        return Err("one decay factor alone was simulated".into());
    }
    let others = [CLOCK, Kind::ClockPro, Kind::Seq].map(|kind| find(choices, kind));
    let others = others.into_iter().collect::<Result<Vec<_>, _>>()?;
    let mut claims = Vec::new();
    for name in ["water-nsquared", "lu-ncb", "lu-cb"] {
        let measured = all.iter().find(|measured| measured.program.name == name);
        let measured = measured.ok_or_else(|| format!("{name} was not run"))?;
        let of =
            |choice: &Choice| faults(measured, choice).ok_or_else(|| format!("{name}: nothing was evicted"));
        let values = decays.iter().map(|choice| of(choice)).collect::<Result<Vec<_>, _>>()?;
        let words: Vec<_> = decays
            .iter()
            .zip(&values)
            .map(|(choice, value)| {
                format!("{}: {}", f64::from(choice.apr.decay_milli) / 1000.0, percent(Some(*value)))
            })
            .collect();
        let (least, most) =
            (values.iter().copied().fold(f64::MAX, f64::min), values.iter().copied().fold(0.0, f64::max));
        let ours = format!("to CLOCK, by the factor: {}", words.join(", "));
        if name == "lu-cb" {
            // Its place among the others is the same with each factor.
            let bounds = others.iter().map(of).collect::<Result<Vec<_>, _>>()?;
            let place = |value: f64| bounds.iter().filter(|bound| **bound < value).count();
            let same = values.iter().all(|value| place(*value) == place(values[0]));
            claims.push(claim(
                "lu_cb is the most sensitive, and the order of the policies stays",
                ours,
                same,
            ));
        } else {
            let paper = format!("The effect on {} is negligible (5 % here)", name.replace('-', "_"));
            claims.push(claim(&paper, ours, most <= least * NO_EFFECT));
        }
    }
    Ok(claims)
}

#[cfg(test)]
mod tests {
    use pagesim::{memory::Counts, simulation::About};
    use workloads::science::PROGRAMS;

    use super::*;

    /// All programs with these evictions (and distances) by policy, each with one memory.
    fn made_up(policies: &[(&str, u64)], except: &[(&str, &str, u64)]) -> (Vec<Measured>, Vec<Choice>) {
        let choices: Vec<Choice> = policies.iter().map(|(name, _)| name.parse().unwrap()).collect();
        let all = PROGRAMS.iter().map(|program| {
            let outcome = |(choice, (name, evictions)): (&Choice, &(&str, u64))| {
                let other = except.iter().find(|(of, policy, _)| *of == program.name && policy == name);
                let evictions = other.map_or(*evictions, |other| other.2);
                let counts = Counts {
                    faults: evictions,
                    evictions,
                    refaults: 10,
                    refault_distance: 1_000_000 / evictions,
                    ..Counts::default()
                };
                Outcome { choice: *choice, frames: 5, counts, policy_bytes: 0 }
            };
            let outcomes = choices.iter().zip(policies).map(outcome).collect();
            Measured { program, checksum: 0, about: About::default(), outcomes }
        });
        (all.collect(), choices)
    }

    fn holds(claims: Result<Vec<Claim>, String>) -> Vec<bool> {
        claims.unwrap().iter().map(|claim| claim.holds).collect()
    }

    #[test]
    fn faults_are_compared() {
        let judge = |apr, pro, seq, except: &[(&str, &str, u64)]| {
            let policies = [("opt", 500), ("clock", 1000), ("clock-pro", pro), ("seq", seq), ("apr", apr)];
            let (all, choices) = made_up(&policies, except);
            holds(claims(Subject::Faults, &all, &choices))
        };
        let ahead = [("fft", "seq", 700), ("radix", "seq", 700)];
        assert_eq!(judge(779, 1002, 1000, &ahead), [true, true, true, true, true, true]);
        assert_eq!(judge(781, 1002, 940, &[]), [false, false, true, true, false, true]);
        assert_eq!(judge(779, 999, 930, &ahead), [true, false, false, true, true, true]);
        let worse = [ahead[0], ahead[1], ("lu-cb", "apr", 1011)];
        assert_eq!(judge(700, 1002, 950, &worse)[3..], [false, false, true]);
        assert_eq!(judge(700, 1002, 950, &[("barnes", "apr", 400)])[5..], [false], "OPT is the least");
    }

    #[test]
    fn distances_are_compared() {
        let judge = |apr, except: &[(&str, &str, u64)]| {
            let (all, choices) = made_up(&[("clock", 1000), ("clock-pro", 1000), ("apr", apr)], except);
            holds(claims(Subject::RefaultDistance, &all, &choices))
        };
        assert_eq!(judge(800, &[("ocean-cp", "clock-pro", 800)]), [true, true, true]);
        assert_eq!(judge(800, &[("fft", "apr", 1100)]), [true, false, true]);
        assert_eq!(judge(1010, &[("fft", "clock-pro", 800)]), [false, true, false]);
    }

    #[test]
    fn decays_are_compared() {
        let judge = |except: &[(&str, &str, u64)]| {
            let policies =
                [("clock", 1000), ("clock-pro", 990), ("seq", 950), ("apr:decay=0.1", 900), ("apr", 910)];
            let (all, choices) = made_up(&policies, except);
            holds(claims(Subject::Decay, &all, &choices))
        };
        assert_eq!(judge(&[]), [true, true, true]);
        assert_eq!(judge(&[("lu-ncb", "apr", 990), ("lu-cb", "apr", 960)]), [true, false, false]);
    }

    #[test]
    fn nothing_is_said_of_what_was_not_run() {
        let (mut all, choices) = made_up(&[("opt", 1), ("clock", 1), ("clock-pro", 1), ("seq", 1)], &[]);
        assert_eq!(claims(Subject::Faults, &all, &choices).unwrap_err(), "apr was not simulated");
        all.remove(0);
        assert_eq!(claims(Subject::Faults, &all, &choices).unwrap_err(), "11 of 12 programs were run");
        assert!(claims(Subject::Decay, &all, &choices).is_err());
    }
}
