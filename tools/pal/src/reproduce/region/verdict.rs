//! What the thesis claims of unification (2.3.1), what came out here, and whether the claim's shape holds: pure.
//!
//! Conditions 1 to 3 are those of the thesis: the time of a visit is in the machine's profitable range; the working set is larger than one
//! cache; it fits in both.

use super::{
    super::verdict::{Claim, claim},
    point::{Measured, Point},
};
use crate::compare::table::percent;

/// A gain that is none.
const NONE: f64 = 0.05;
/// What regioning costs at most, where it brings nothing.
const COST: f64 = 0.03;
/// Accesses of a visit, as powers of two, between which unification pays on the thesis' Clovertown.
const SHORT: u32 = 12;
const LONG: u32 = 16;

/// Whether two regions of this many eighths of a cache are larger than one cache, and fit in two.
pub fn fits(size: u32) -> bool {
    (5..=8).contains(&size)
}

/// Conditions 1 to 3.
fn hold(point: &Point) -> [bool; 3] {
    conditions_at(point.size, point.visit)
}

/// Those of two regions of this many eighths of a cache, with visits of 2^`visit` accesses.
fn conditions_at(size: u32, visit: u32) -> [bool; 3] {
    [visit > SHORT && visit < LONG, 2 * size > 8, 2 * size <= 16]
}

/// Whether all of them hold there.
pub fn all_hold(size: u32, visit: u32) -> bool {
    conditions_at(size, visit) == [true; 3]
}

/// The conditions as a word: those that do not hold.
pub fn conditions(point: &Point) -> String {
    let broken: Vec<_> =
        (1..=3).zip(hold(point)).filter(|(_, holds)| !holds).map(|(n, _)| n.to_string()).collect();
    if broken.is_empty() { "hold".into() } else { format!("not {}", broken.join(", ")) }
}

/// The claims of the figure on a machine.
pub fn claims(lab: &str, all: &[Measured]) -> Vec<Claim> {
    let gains = |wanted: &dyn Fn([bool; 3]) -> bool| -> Vec<f64> {
        all.iter().filter(|it| wanted(hold(&it.point))).map(Measured::gain).collect()
    };
    let least_and_most = |gains: &[f64]| {
        let least = gains.iter().copied().fold(f64::MAX, f64::min);
        let most = gains.iter().copied().fold(f64::MIN, f64::max);
        (least, most)
    };
    let mut claims = Vec::new();
    let foretold = gains(&|conditions| conditions == [true; 3]);
    if !foretold.is_empty() {
        let (least, most) = least_and_most(&foretold);
        let (paper, goal) = if lab.starts_with("westmere") {
            ("over 300 % on Westmere", 4.0)
        } else {
            ("up to 45 % on Clovertown", 1.45)
        };
        claims.push(claim(
            &format!("Two caches gain {paper}, where Conditions 1 to 3 hold"),
            format!("{} to {}", percent(Some(least)), percent(Some(most))),
            most >= goal && least > 1.0 + NONE,
        ));
    }
    for (condition, paper) in [
        "No gain where visits are too short or too long (Condition 1)",
        "No gain where one cache is enough (Condition 2)",
        "No gain where both are not enough (Condition 3)",
    ]
    .into_iter()
    .enumerate()
    {
        let forbidden = gains(&|conditions| !conditions[condition]);
        if !forbidden.is_empty() {
            let (least, most) = least_and_most(&forbidden);
            let ours = format!("{} to {}", percent(Some(least)), percent(Some(most)));
            claims.push(claim(paper, ours, most <= 1.0 + NONE));
        }
    }
    claims
}

/// The claim of figure 28.
pub fn cost(all: &[Measured]) -> Vec<Claim> {
    let mut gains: Vec<f64> = all.iter().map(Measured::gain).collect();
    gains.sort_by(f64::total_cmp);
    let Some(least) = gains.first() else { return Vec::new() };
    let ours =
        format!("{} at worst, {} the median", percent(Some(*least)), percent(Some(gains[gains.len() / 2])));
    vec![claim("To look for regions costs less than 3 %, typically 2 %", ours, *least >= 1.0 - COST)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(points: &[(u32, u32, f64)]) -> Vec<bool> {
        let all: Vec<_> =
            points.iter().map(|(size, visit, gain)| Measured::made_up(*size, *visit, *gain)).collect();
        let claims = claims("clovertown", &all);
        assert!(claims.iter().all(|claim| !claim.ours.is_empty()));
        claims.into_iter().map(|claim| claim.holds).collect()
    }

    #[test]
    fn gains_are_where_the_conditions_foretell_them() {
        assert_eq!(judge(&[(6, 14, 1.5), (6, 9, 1.0), (3, 14, 0.98), (12, 14, 1.01)]), [true; 4]);
        let wrong = judge(&[(6, 14, 1.4), (6, 9, 1.2), (3, 14, 1.2), (12, 14, 1.2), (2, 14, 0.9)]);
        assert_eq!(wrong, [false; 4]);
        // One of two points.
        assert_eq!(judge(&[(6, 14, 1.5), (7, 14, 1.0)]), [false]);
        assert_eq!(judge(&[]), [false; 0]);
    }

    #[test]
    fn each_point_costs_less_than_three_per_cent() {
        let claims = |gains: &[f64]| {
            cost(&gains.iter().map(|gain| Measured::made_up(3, 14, *gain)).collect::<Vec<_>>())
        };
        let good = claims(&[0.975, 0.99, 1.0]);
        assert!(good[0].holds && good[0].ours.starts_with("−2.5 % at worst, −1.0 %"), "{}", good[0].ours);
        assert!(!claims(&[0.96, 1.0, 1.0])[0].holds && claims(&[]).is_empty());
    }

    #[test]
    fn conditions_are_the_thesis() {
        let of = |size, visit| conditions(&Measured::made_up(size, visit, 1.0).point);
        assert_eq!(
            [of(6, 14), of(3, 14), of(12, 14), of(6, 16), of(6, 12), of(12, 9)],
            ["hold", "not 2", "not 3", "not 1", "not 1", "not 1, 3"]
        );
        assert!([5, 6, 7].into_iter().all(fits) && ![2, 3, 4, 10, 12].into_iter().any(fits));
    }
}
