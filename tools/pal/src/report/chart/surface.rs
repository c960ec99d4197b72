//! A gain over two axes, as a map with the contour of where it is foretold.

use anyhow::Result;
use plotters::{
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

use super::{Area, Box4, Drawn, GRID, INK, WIDTH, alone, colour, draw};

/// A place of the grid.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    /// Performance relative to the base: 1.5 is half as much again. `None`: it was not measured.
    pub gain: Option<f64>,
    /// What is written there.
    pub text: String,
    /// Whether it lies within the contour.
    pub within: bool,
}

/// A gain at the places of a grid.
#[derive(Clone, Debug)]
pub struct Surface<'a> {
    /// What is drawn.
    pub title: &'a str,
    /// What the contour is.
    pub contour: &'a str,
    /// What the axes say, the one below and the upright one.
    pub axes: [&'a str; 2],
    /// The values of the axis below.
    pub columns: Vec<String>,
    /// The values of the upright axis from below, and the places of each, from the left.
    pub rows: Vec<(String, Vec<Place>)>,
}

/// Pixels: of a row, of what is above and below all of them, and beside them.
const ROW: i32 = 40;
const ABOVE: i32 = 98;
const BELOW: i32 = 62;
const LEFT: i32 = 120;
const RIGHT: i32 = 24;
/// Colours of gains and of losses, and the gain and the loss (a half) with which they are strongest.
const MORE: usize = 2;
const LESS: usize = 3;
const MOST: f64 = 10.0;
const LEAST: f64 = 0.5;
/// How much of the paper a colour hides at the most: what is written on it is read in light and in dark.
const STRONGEST: f64 = 0.6;
/// Width of the contour.
const LINE: u32 = 4;

/// The colour of a gain, and its strength.
fn shade(gain: f64) -> (usize, f64) {
    let (number, end) = if gain < 1.0 { (LESS, LEAST) } else { (MORE, MOST) };
    let part = gain.max(1e-6).ln() / end.ln();
    (number, STRONGEST * part.clamp(0.0, 1.0))
}

/// The edges between what is within the contour and what is not, or the end of the grid: both ends of each, in columns from the left and
/// rows from below.
fn edges(rows: &[(String, Vec<Place>)]) -> Vec<[(usize, usize); 2]> {
    let within = |row: Option<usize>, column: Option<usize>| {
        let place = row.zip(column).and_then(|(row, column)| rows.get(row)?.1.get(column));
        place.is_some_and(|place| place.within)
    };
    let mut edges = Vec::new();
    for (row, (_, places)) in rows.iter().enumerate() {
        for column in (0..places.len()).filter(|column| within(Some(row), Some(*column))) {
            let sides = [
                (row.checked_sub(1), Some(column), [(column, row), (column + 1, row)]),
                (Some(row + 1), Some(column), [(column, row + 1), (column + 1, row + 1)]),
                (Some(row), column.checked_sub(1), [(column, row), (column, row + 1)]),
                (Some(row), Some(column + 1), [(column + 1, row), (column + 1, row + 1)]),
            ];
            edges.extend(sides.into_iter().filter(|side| !within(side.0, side.1)).map(|side| side.2));
        }
    }
    edges
}

/// Draws it, as a file of its own.
///
/// # Errors
/// The library cannot draw it.
pub fn surface(surface: &Surface) -> Result<String> {
    let Surface { title, contour, axes, columns, rows } = surface;
    let wide = (WIDTH as i32 - LEFT - RIGHT) / columns.len().max(1) as i32;
    let bottom = ABOVE + ROW * rows.len() as i32;
    let corner = |(column, row): (usize, usize)| (LEFT + wide * column as i32, bottom - ROW * row as i32);
    let middle =
        |column: usize, row: usize| (corner((column, row)).0 + wide / 2, corner((column, row)).1 - ROW / 2);
    let text = |size: u32, at: HPos| {
        TextStyle::from(("sans-serif", size).into_font()).color(&INK).pos(Pos::new(at, VPos::Center))
    };
    let body = |area: &Area<'_>| -> Drawn<Box4> {
        area.draw_text(title, &text(19, HPos::Left), (8, 20))?;
        for (row, (label, places)) in rows.iter().enumerate() {
            area.draw_text(label, &text(15, HPos::Right), (LEFT - 10, middle(0, row).1))?;
            for (column, place) in places.iter().enumerate() {
                let Some(gain) = place.gain else { continue };
                let (number, strength) = shade(gain);
                let corners = [corner((column, row + 1)), corner((column + 1, row))];
                area.draw(&Rectangle::new(corners, colour(number).mix(strength).filled()))?;
                area.draw(&Rectangle::new(corners, GRID.stroke_width(1)))?;
                area.draw_text(&place.text, &text(15, HPos::Center), middle(column, row))?;
            }
        }
        for (column, label) in columns.iter().enumerate() {
            area.draw_text(label, &text(15, HPos::Center), (middle(column, 0).0, bottom + 16))?;
        }
        let right = corner((columns.len(), 0)).0;
        area.draw_text(axes[0], &text(15, HPos::Center), ((LEFT + right) / 2, bottom + 44))?;
        area.draw_text(axes[1], &text(15, HPos::Left), (8, ABOVE - 16))?;
        let thick = INK.stroke_width(LINE);
        for edge in edges(rows) {
            // From the outside of its corners to the outside.
            let ([(left, low), (right, high)], half) = (edge.map(corner), LINE as i32 / 2);
            let [along, up] = if low == high { [half, 0] } else { [0, half] };
            let ends = [(left - along, low + up), (right + along, high - up)];
            area.draw(&PathElement::new(ends, thick))?;
        }
        // The legend is above, on the right of the upright axis' name.
        let (mut left, at) = (8, 52);
        for (number, name) in [(MORE, "gain"), (LESS, "loss")] {
            let sample = [(left, at - 7), (left + 20, at + 7)];
            area.draw(&Rectangle::new(sample, colour(number).mix(STRONGEST).filled()))?;
            area.draw_text(name, &text(15, HPos::Left), (left + 28, at))?;
            left += 88;
        }
        area.draw(&PathElement::new([(left, at), (left + 20, at)], thick))?;
        area.draw_text(contour, &text(15, HPos::Left), (left + 28, at))?;
        Ok([LEFT, right, ABOVE, bottom])
    };
    alone(&draw((WIDTH, (bottom + BELOW) as u32), body)?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(gain: Option<f64>, within: bool) -> Place {
        Place { gain, text: gain.map_or("absent".into(), |gain| format!("<{gain}>")), within }
    }

    fn drawn(rows: Vec<(String, Vec<Place>)>) -> String {
        let columns = (0..rows.first().map_or(0, |row| row.1.len())).map(|n| format!("c{n}&")).collect();
        surface(&Surface {
            title: "a<b",
            contour: "within & without",
            axes: ["below>", "beside"],
            columns,
            rows,
        })
        .unwrap()
    }

    /// The numbers of these attributes, of each element of this name with `has` in it.
    fn numbers<const N: usize>(svg: &str, element: &str, has: &str, keys: [&str; N]) -> Vec<[f64; N]> {
        let of = |text: &str, key: &str| -> Option<f64> {
            text.split_once(&format!(" {key}=\""))?.1.split('"').next()?.parse().ok()
        };
        let all = svg.split('<').filter(|text| text.starts_with(element) && text.contains(has));
        all.map(|text| keys.map(|key| of(text, key).unwrap())).collect()
    }

    #[test]
    fn places_are_where_the_axes_say_and_what_is_missing_is_blank() {
        let low = vec![place(Some(0.9), false), place(None, false), place(Some(1.0), false)];
        let high = vec![place(Some(4.0), true), place(Some(10.0), true), place(None, true)];
        let svg = drawn(vec![("low".into(), low), ("<high>".into(), high)]);
        for word in [
            "a&lt;b",
            "within &amp; without",
            "below&gt;",
            "beside",
            "c2&amp;",
            "low",
            "&lt;high&gt;",
            "&lt;4&gt;",
            "gain",
        ] {
            assert!(svg.contains(word), "{word}: {svg}");
        }
        assert!(!svg.contains("absent") && !svg.contains("<4>") && svg.contains("prefers-color-scheme:dark"));
        // Of a loss, of gains, and each once in the legend; what is as before has no colour.
        let keys = ["x", "y", "opacity", "width"];
        let [less, more] =
            [LESS, MORE].map(|number| numbers(&svg, "rect", &format!("fill=\"var(--s{number})\""), keys));
        let [lost, _] = less[..] else { panic!("{svg}") };
        let [four, ten, _] = more[..] else { panic!("{svg}") };
        assert!(lost[1] > four[1] && four[1] == ten[1], "the greater of the upright axis is above");
        assert!(lost[0] == four[0] && ten[0] == four[0] + four[3]);
        assert!(0.2 < four[2] && four[2] < ten[2] && ten[2] == STRONGEST, "{more:?}");
        assert!(lost[2] > 0.0 && lost[2] < 0.2, "{less:?}");
    }

    #[test]
    fn shades_end_at_the_strongest() {
        assert_eq!(
            [shade(100.0), shade(0.0), shade(-1.0)],
            [(MORE, STRONGEST), (LESS, STRONGEST), (LESS, STRONGEST)]
        );
        assert_eq!(shade(1.0), (MORE, 0.0));
    }

    #[test]
    fn the_contour_goes_around_what_is_within() {
        let row =
            |within: [bool; 3]| ("r".to_owned(), within.map(|within| place(Some(1.0), within)).to_vec());
        // At an end of the grid, too; measured or not.
        let rows = vec![row([false, true, true]), row([false, true, false]), row([false; 3])];
        let mut found = edges(&rows);
        found.sort_unstable();
        let expected = [
            [(1, 0), (1, 1)],
            [(1, 0), (2, 0)],
            [(1, 1), (1, 2)],
            [(1, 2), (2, 2)],
            [(2, 0), (3, 0)],
            [(2, 1), (2, 2)],
            [(2, 1), (3, 1)],
            [(3, 0), (3, 1)],
        ];
        assert_eq!(found, expected);
        let thick = format!("stroke-width=\"{LINE}\"");
        // One more is in the legend.
        assert_eq!(drawn(rows.clone()).matches(&thick).count(), expected.len() + 1);
        let blank = rows.into_iter().map(|(label, places)| {
            (label, places.into_iter().map(|it| Place { gain: None, ..it }).collect::<Vec<_>>())
        });
        assert_eq!(drawn(blank.collect()).matches(&thick).count(), expected.len() + 1);
        assert!(edges(&[]).is_empty() && drawn(Vec::new()).starts_with("<svg"));
    }
}
