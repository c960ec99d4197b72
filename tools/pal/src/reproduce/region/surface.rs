//! Figure 18 as a surface: the gain over the size of regions and the length of visits, as a table and as a chart. Its contour is that of
//! Conditions 1 to 3.

use std::{collections::BTreeMap, fmt::Write};

use anyhow::Result;

use super::{point::Measured, verdict};
use crate::{
    compare::table::percent,
    report::chart::{self, Place, Surface},
};

/// What was measured at the places of the grid that its points lie on.
struct Grid<'a> {
    /// Accesses of a visit, as powers of two.
    visits: Vec<u32>,
    /// Sizes in eighths of a cache, the same in KiB, and what was measured with visits of each.
    rows: Vec<(u32, u64, Vec<Option<&'a Measured>>)>,
}

impl Grid<'_> {
    fn of(all: &[Measured]) -> Grid<'_> {
        let visits: BTreeMap<_, _> = all.iter().map(|it| (it.point.visit, ())).collect();
        let sizes: BTreeMap<_, _> = all.iter().map(|it| (it.point.size, it.point.kib)).collect();
        let at = |size, visit| all.iter().find(|it| (it.point.size, it.point.visit) == (size, visit));
        let row = |(size, kib)| (size, kib, visits.keys().map(|visit| at(size, *visit)).collect());
        Grid { rows: sizes.into_iter().map(row).collect(), visits: visits.into_keys().collect() }
    }
}

/// The table: gains within the contour are bold.
pub fn table(all: &[Measured]) -> String {
    let Grid { visits, rows } = Grid::of(all);
    let mut text =
        "\nGains by the size of each region and the accesses of a visit; bold: Conditions 1 to 3 hold.\n\n|"
            .to_owned();
    text += &visits.iter().map(|visit| format!(" | 2^{visit}")).collect::<String>();
    text += &format!(" |\n|{}\n", "---|".repeat(1 + visits.len()));
    for (_, kib, places) in rows {
        let _ = write!(text, "| {kib} KiB");
        for at in places {
            let cell = at.map_or("–".to_owned(), |it| match percent(Some(it.gain())) {
                gain if verdict::conditions(&it.point) == "hold" => format!("**{gain}**"),
                gain => gain,
            });
            let _ = write!(text, " | {cell}");
        }
        text += " |\n";
    }
    text
}

/// The chart of a machine, as a file of its own.
///
/// # Errors
/// It cannot be drawn.
pub fn chart(lab: &str, all: &[Measured]) -> Result<String> {
    let Grid { visits, rows } = Grid::of(all);
    let places = |size: u32, row: Vec<Option<&Measured>>| {
        let place = |(visit, at): (&u32, Option<&Measured>)| Place {
            gain: at.map(Measured::gain),
            text: percent(at.map(Measured::gain)),
            within: verdict::all_hold(size, *visit),
        };
        visits.iter().zip(row).map(place).collect()
    };
    chart::surface(&Surface {
        title: &format!("{lab}: gain by a second cache, in % (modelled)"),
        contour: "within: Conditions 1 to 3 hold",
        axes: ["accesses of a visit", "each region"],
        columns: visits.iter().map(|visit| format!("2^{visit}")).collect(),
        rows: rows.into_iter().map(|(size, kib, row)| (format!("{kib} KiB"), places(size, row))).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::{
        super::{FIGURES, grid},
        *,
    };

    fn measured(points: &[(u32, u32, f64)]) -> Vec<Measured> {
        points.iter().map(|(size, visit, gain)| Measured::made_up(*size, *visit, *gain)).collect()
    }

    #[test]
    fn a_table_has_its_contour() {
        let all = measured(&[(3, 14, 0.9), (6, 9, 0.8), (6, 14, 4.0)]);
        let text = table(&all);
        let rows: Vec<_> = text.lines().skip(3).collect();
        assert_eq!(rows[0], "| | 2^9 | 2^14 |");
        assert_eq!(rows[2], format!("| {} KiB | – | −10.0 % |", all[0].point.kib));
        assert_eq!(rows[3], format!("| {} KiB | −20.0 % | **+300.0 %** |", all[1].point.kib));
        assert_eq!(rows.len(), 4);
    }

    /// The points of docs/results/region-fig18.md, in its table's order.
    #[test]
    fn a_chart_has_the_values_of_the_table() {
        let all = measured(&[(3, 14, 0.897), (6, 9, 0.873), (6, 14, 8.576), (6, 19, 0.789), (12, 14, 0.968)]);
        let svg = chart("clover<town", &all).unwrap();
        for word in
            ["clover&lt;town: ", "2^9", "2^19", "1536 KiB", "6144 KiB", "accesses of a visit", "each region"]
        {
            assert!(svg.contains(word), "{word}: {svg}");
        }
        let values: Vec<_> = svg.lines().filter(|line| line.ends_with(" %")).collect();
        assert_eq!(values, ["−10.3 %", "−12.7 %", "+757.6 %", "−21.1 %", "−3.2 %"], "missing ones are blank");
        // Around one place, and in the legend.
        assert_eq!(svg.matches("stroke-width=\"4\"").count(), 4 + 1);
    }

    #[test]
    fn all_points_of_a_figure_are_in_its_chart() {
        for (quick, contour) in [(true, 4), (false, 12)] {
            let points: Vec<_> =
                grid(&FIGURES[0], quick).iter().map(|at| (at.0, at.1, 0.5 * f64::from(at.0))).collect();
            let svg = chart("zen3", &measured(&points)).unwrap();
            assert_eq!(svg.lines().filter(|line| line.ends_with(" %")).count(), points.len());
            assert_eq!(svg.matches("stroke-width=\"4\"").count(), contour + 1);
        }
    }
}
