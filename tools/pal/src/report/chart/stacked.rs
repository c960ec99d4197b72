//! Bars of two parts each, by groups.

use anyhow::Result;
use plotters::{
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

use super::{Area, Box4, Drawn, GRID, INK, WIDTH, alone, colour, draw, font, label};

/// A bar.
#[derive(Clone, Debug, PartialEq)]
pub struct Bar<'a> {
    /// What its neighbours are about, too.
    pub group: &'a str,
    /// What it is about.
    pub name: &'a str,
    /// Its parts, from the axis on.
    pub parts: [f64; 2],
}

/// Pixels of a bar's row, and of what is above and below all of them.
const ROW: u32 = 20;
const AROUND: u32 = 80;
/// Colours of the parts.
const PARTS: [usize; 2] = [1, 3];

/// Draws bars in their order, below each other, those of one group close together. `parts`: what the parts are called; `below`:
/// what the axis says.
///
/// # Errors
/// The library cannot draw it.
pub fn stacked(bars: &[Bar], parts: [&str; 2], below: &str) -> Result<String> {
    let top = bars.iter().map(|bar| bar.parts.iter().sum()).fold(0.0, f64::max).max(1e-3) * 1.05;
    // Between two groups half a row is free.
    let mut rows = 0.0;
    let mut places = Vec::with_capacity(bars.len());
    for group in bars.chunk_by(|one, next| one.group == next.group) {
        for (at, bar) in group.iter().enumerate() {
            places.push((bar, rows, at == 0));
            rows += 1.0;
        }
        rows += 0.5;
    }
    let body = |area: &Area<'_>| -> Drawn<Box4> {
        let mut chart = ChartBuilder::on(area)
            .margin_top(32)
            .margin_right(120)
            .x_label_area_size(44)
            .y_label_area_size(190)
            .build_cartesian_2d(0.0..top, 0.0..f64::max(rows, 1.0))?;
        chart
            .configure_mesh()
            .x_desc(below)
            .disable_y_mesh()
            .disable_y_axis()
            .y_labels(0)
            .x_label_formatter(&label)
            .axis_style(GRID)
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .label_style(font(13))
            .draw()?;
        let text = |at: HPos| {
            TextStyle::from(("sans-serif", 13).into_font()).color(&INK).pos(Pos::new(at, VPos::Center))
        };
        for (bar, row, is_first) in &places {
            let (low, high) = (rows - row - 0.9, rows - row - 0.1);
            let [first, second] = bar.parts.map(|part| part.max(0.0));
            let ends = [(0.0, first), (first, first + second)];
            chart.draw_series(ends.iter().zip(PARTS).map(|((from, to), number)| {
                Rectangle::new([(*from, low), (*to, high)], colour(number).filled())
            }))?;
            let (_, y) = chart.backend_coord(&(0.0, rows - row - 0.5));
            let (begin, _) = chart.backend_coord(&(0.0, 0.0));
            let (end, _) = chart.backend_coord(&(first + second, 0.0));
            if *is_first {
                area.draw_text(bar.group, &text(HPos::Right), (begin - 90, y))?;
            }
            area.draw_text(bar.name, &text(HPos::Right), (begin - 8, y))?;
            area.draw_text(&format!("{first:.1} + {second:.1}"), &text(HPos::Left), (end + 6, y))?;
        }
        let (x, y) = chart.plotting_area().get_pixel_range();
        for ((name, number), left) in parts.iter().zip(PARTS).zip([x.start, x.start + 200]) {
            area.draw(&Rectangle::new([(left, 10), (left + 16, 22)], colour(number).filled()))?;
            area.draw_text(name, &text(HPos::Left), (left + 24, 16))?;
        }
        Ok([x.start, x.end, y.start, y.end])
    };
    let height = (f64::from(ROW) * rows).ceil() as u32 + AROUND;
    Ok(draw((WIDTH, height), body)?.0)
}

/// The same as a file of its own.
///
/// # Errors
/// The library cannot draw it.
pub fn stacked_alone(bars: &[Bar], parts: [&str; 2], below: &str) -> Result<String> {
    alone(&stacked(bars, parts, below)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The widths of all filled rectangles of this colour, in pixels.
    fn widths(svg: &str, number: usize) -> Vec<f64> {
        let of = |element: &str| -> Option<f64> {
            let (_, rest) = element.split_once(" width=\"")?;
            rest.split('"').next()?.parse().ok()
        };
        let colour = format!("fill=\"var(--s{number})\"");
        svg.split('<')
            .filter(|element| element.starts_with("rect") && element.contains(&colour))
            .filter_map(of)
            .collect()
    }

    #[test]
    fn bars_have_their_parts_at_one_scale() {
        let bar = |group, name, parts| Bar { group, name, parts };
        let bars = [
            bar("a<b", "nested", [20.0, 0.0]),
            bar("a<b", "shadow", [10.0, 40.0]),
            bar("c", "nested", [5.0, 5.0]),
        ];
        let svg = stacked_alone(&bars, ["walks", "the rest"], "percent").unwrap();
        for word in ["a&lt;b", "nested", "shadow", "walks", "the rest", "percent", "10.0 + 40.0", "--s1:"] {
            assert!(svg.contains(word), "{word}: {svg}");
        }
        assert_eq!(svg.matches("a&lt;b").count(), 1, "a group is named once");
        // The legend comes last.
        let [first, second] = PARTS.map(|number| widths(&svg, number));
        assert_eq!((first.len(), second.len()), (4, 4), "{svg}");
        let close = |width: f64, expected: f64| (width - expected).abs() <= 2.0;
        let unit = second[1] / 40.0;
        assert!(
            unit > 5.0 && close(first[0], 20.0 * unit) && close(first[1], 10.0 * unit),
            "{first:?} {second:?}"
        );
        assert!(close(first[2], 5.0 * unit) && close(second[2], 5.0 * unit) && close(second[0], 0.0));
    }

    #[test]
    fn nothing_is_drawn_of_nothing() {
        assert!(stacked(&[], ["a", "b"], "c").unwrap().starts_with("<svg"));
        let zero = [Bar { group: "a", name: "b", parts: [0.0, -1.0] }];
        assert!(stacked(&zero, ["a", "b"], "c").unwrap().contains("0.0 + 0.0"));
    }
}
