//! Charts as SVG, drawn by plotters: what a figure was over time, and which mode was in force.
//!
//! Colours are variables of the page's style sheet, so that one drawing fits light and dark. plotters knows numbers only, so
//! each variable has one that stands for it.

mod stacked;
mod surface;

use anyhow::{Result, anyhow};
use plotters::{
    coord::{Shift, types::RangedCoordf64},
    prelude::*,
};
use records::sample::ENGINES;

use super::figures::Step;
pub use stacked::{Bar, stacked, stacked_alone};
pub use surface::{Place, Surface, surface};

/// A series: its steps, and the number of its colour.
pub type Line = (usize, Vec<Step>);

/// A stretch of one mode: seconds from, seconds to, the engine by its place in [`ENGINES`].
pub type Stretch = (f64, f64, u8);

const WIDTH: u32 = 920;
const HEIGHT: u32 = 230;
/// Height of a row of the chart of modes.
const ROW: u32 = 36;
/// Colours in the style sheet.
pub const COLOURS: usize = 8;

const INK: RGBColor = RGBColor(1, 2, 3);
const GRID: RGBColor = RGBColor(1, 2, 4);
const NESTED: RGBColor = RGBColor(1, 2, 5);
const SHADOW: RGBColor = RGBColor(1, 2, 6);
const AGILE: RGBColor = RGBColor(1, 2, 7);
/// Those of the engines, in the order of [`ENGINES`].
const OF_ENGINES: [RGBColor; ENGINES.len()] = [NESTED, SHADOW, AGILE];

/// The number that stands for the colour of a series.
fn colour(number: usize) -> RGBColor {
    RGBColor(1, 3, (number % COLOURS) as u8)
}

/// Puts the style sheet's variables in the place of the numbers.
fn with_variables(mut svg: String) -> String {
    for (number, name) in
        [(INK, "ink"), (GRID, "grid")].into_iter().chain(OF_ENGINES.into_iter().zip(ENGINES))
    {
        svg = svg.replace(&hex(number), &format!("var(--{name})"));
    }
    for number in 0..COLOURS {
        svg = svg.replace(&hex(colour(number)), &format!("var(--s{number})"));
    }
    svg
}

fn hex(RGBColor(red, green, blue): RGBColor) -> String {
    format!("#{red:02X}{green:02X}{blue:02X}")
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type OverTime<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;
type Drawn<T> = Result<T, Box<dyn std::error::Error>>;

/// Where the figures are in a drawing, in its pixels: from left to right, from top to bottom.
type Box4 = [i32; 4];

fn draw(size: (u32, u32), body: impl FnOnce(&Area<'_>) -> Drawn<Box4>) -> Result<(String, Box4)> {
    let mut text = String::new();
    let place = {
        let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
        body(&area).and_then(|place| area.present().map(|()| place).map_err(Into::into))
    };
    let place = place.map_err(|error| anyhow!("cannot draw a chart: {error}"))?;
    Ok((with_variables(text), place))
}

fn font(size: u32) -> TextStyle<'static> {
    TextStyle::from(("sans-serif", size).into_font()).color(&INK)
}

/// A number on an axis, in few characters.
fn label(value: &f64) -> String {
    let size = value.abs();
    match size {
        0.0 => "0".into(),
        1e9.. => format!("{:.4} G", value / 1e9).replace(".0000", ""),
        _ if size >= 1e6 => trim(value / 1e6, " M"),
        _ if size >= 1e4 => trim(value / 1e3, " k"),
        _ => trim(*value, ""),
    }
}

fn trim(value: f64, unit: &str) -> String {
    let text = format!("{value:.3}");
    format!("{}{unit}", text.trim_end_matches('0').trim_end_matches('.'))
}

/// The values of all steps, the least first.
fn sorted(lines: &[Line]) -> Vec<f64> {
    let mut values: Vec<_> = lines.iter().flat_map(|(_, steps)| steps).map(|step| step.2).collect();
    values.sort_by(f64::total_cmp);
    values
}

/// Where the axis of values ends: above all of them, unless few are so high that the rest would lie on the ground. `None`: there
/// are none.
fn limit(lines: &[Line]) -> Option<f64> {
    let values = sorted(lines);
    let highest = *values.last()?;
    // Of less than a hundred steps none is a rare one.
    let usual = values[(values.len() - 1).saturating_sub(values.len() / 100)];
    Some(match highest {
        _ if usual > 0.0 && highest > 5.0 * usual => 2.0 * usual,
        0.0 => 1.0,
        _ => highest * 1.08,
    })
}

/// What is to be said of a chart whose axis ends at `top`, below some of the values.
pub fn cut(lines: &[Line], top: f64) -> Option<String> {
    let values = sorted(lines);
    let above = values.iter().filter(|value| **value > top).count();
    let highest = label(values.last().filter(|_| above > 0)?);
    Some(format!("{above} of {} steps are higher than the axis, up to {highest}.", values.len()))
}

/// A chart over the seconds from 0 to `end`, below this margin, whose axis ends at `top`.
fn over_time<'a, 'b>(area: &'a Area<'b>, margin: u32, end: f64, top: f64) -> Drawn<OverTime<'a, 'b>> {
    let mut chart = ChartBuilder::on(area);
    chart.margin_top(margin).margin_right(16).x_label_area_size(34).y_label_area_size(64);
    Ok(chart.build_cartesian_2d(0.0..end, 0.0..top)?)
}

/// Axes with these words, and lines at the values of the upright one.
fn axes(chart: &mut OverTime<'_, '_>, below: &str, beside: &str) -> Drawn<()> {
    chart
        .configure_mesh()
        .x_desc(below)
        .y_desc(beside)
        .disable_x_mesh()
        .x_label_formatter(&label)
        .y_label_formatter(&label)
        .axis_style(GRID)
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .label_style(font(13))
        .draw()?;
    Ok(())
}

/// Draws a figure from 0 to this second, and tells where and how high it is. `None`: no series has a step.
///
/// # Errors
/// The library cannot draw it.
pub fn figure(lines: &[Line], end: f64) -> Result<Option<(String, Box4, f64)>> {
    let Some(top) = limit(lines) else { return Ok(None) };
    let body = |area: &Area<'_>| -> Drawn<Box4> {
        let mut chart = over_time(area, 8, end, top)?;
        chart
            .configure_mesh()
            .x_desc("seconds")
            .disable_x_mesh()
            .y_labels(6)
            .x_labels(12)
            .x_label_formatter(&label)
            .y_label_formatter(&label)
            .axis_style(GRID)
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .label_style(font(13))
            .draw()?;
        for (number, steps) in lines {
            // Where time is missing between two steps, the line is interrupted.
            for run in steps.chunk_by(|a, b| b.0 - a.1 < 1e-6) {
                let points = run
                    .iter()
                    .flat_map(|(begin, end, value)| [(*begin, value.min(top)), (*end, value.min(top))]);
                let style = ShapeStyle::from(colour(*number)).stroke_width(2);
                chart.draw_series(LineSeries::new(points, style))?;
            }
        }
        let (x, y) = chart.plotting_area().get_pixel_range();
        Ok([x.start, x.end, y.start, y.end])
    };
    let (svg, place) = draw((WIDTH, HEIGHT), body)?;
    Ok(Some((svg, place, top)))
}

/// Draws a row for each series: which mode was in force when.
///
/// # Errors
/// The library cannot draw it.
pub fn modes(rows: &[(&str, Vec<Stretch>)], end: f64) -> Result<String> {
    let height = ROW * rows.len() as u32 + 44;
    let body = |area: &Area<'_>| -> Drawn<Box4> {
        let mut chart = over_time(area, 4, end, rows.len() as f64)?;
        chart
            .configure_mesh()
            .x_desc("seconds")
            .disable_mesh()
            .disable_y_axis()
            .y_labels(0)
            .x_labels(12)
            .x_label_formatter(&label)
            .axis_style(GRID)
            .label_style(font(13))
            .draw()?;
        for (row, (name, stretches)) in rows.iter().rev().enumerate() {
            let row = row as f64;
            let bands = stretches.iter().map(|(begin, end, engine)| {
                let colour = OF_ENGINES.get(usize::from(*engine)).copied().unwrap_or(NESTED);
                Rectangle::new([(*begin, row + 0.08), (*end, row + 0.5)], colour.filled())
            });
            chart.draw_series(bands)?;
            chart.draw_series([Text::new((*name).to_owned(), (0.0, row + 0.92), font(13))])?;
        }
        let (x, y) = chart.plotting_area().get_pixel_range();
        Ok([x.start, x.end, y.start, y.end])
    };
    Ok(draw((WIDTH, height), body)?.0)
}

/// A part of a map: seconds from, seconds to, its row from below, and the number of its colour.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    pub begin: f64,
    pub end: f64,
    pub row: usize,
    pub colour: usize,
    /// From 0, which is not seen, to 1.
    pub strength: f64,
}

/// Draws a map of this number of rows, whose axis ends at `top` of its unit.
///
/// # Errors
/// The library cannot draw it.
pub fn map(cells: &[Cell], rows: usize, (top, unit): (f64, &str), end: f64) -> Result<String> {
    let high = top.max(1e-3);
    let row = high / rows.max(1) as f64;
    let body = |area: &Area<'_>| -> Drawn<Box4> {
        let mut chart = over_time(area, 8, end, high)?;
        chart
            .configure_mesh()
            .x_desc("seconds")
            .y_desc(unit)
            .disable_mesh()
            .y_labels(6)
            .x_labels(12)
            .x_label_formatter(&label)
            .y_label_formatter(&label)
            .axis_style(GRID)
            .label_style(font(13))
            .draw()?;
        let cells = cells.iter().map(|it| {
            let corners = [(it.begin, it.row as f64 * row), (it.end, (it.row + 1) as f64 * row)];
            Rectangle::new(corners, colour(it.colour).mix(it.strength).filled())
        });
        chart.draw_series(cells)?;
        let (x, y) = chart.plotting_area().get_pixel_range();
        Ok([x.start, x.end, y.start, y.end])
    };
    Ok(draw((WIDTH, HEIGHT), body)?.0)
}

/// Draws MiB by the samples of 32 in which they were accessed; from `hot` on they have another colour.
///
/// # Errors
/// The library cannot draw it.
pub fn bars(bars: &[f64], hot: usize) -> Result<String> {
    let top = bars.iter().copied().fold(0.0, f64::max).max(1e-3) * 1.08;
    let body = |area: &Area<'_>| -> Drawn<Box4> {
        let mut chart = over_time(area, 8, bars.len().max(1) as f64, top)?;
        axes(&mut chart, "samples", "MiB")?;
        let bars = bars.iter().enumerate().map(|(n, value)| {
            let corners = [(n as f64 + 0.1, 0.0), (n as f64 + 0.9, *value)];
            Rectangle::new(corners, colour(usize::from(n >= hot)).filled())
        });
        chart.draw_series(bars)?;
        let (x, y) = chart.plotting_area().get_pixel_range();
        Ok([x.start, x.end, y.start, y.end])
    };
    Ok(draw((WIDTH, HEIGHT), body)?.0)
}

/// Colours of a drawing that stands alone.
const ALONE: &str = "<style>svg{--ink:#222;--grid:#bbb;--s0:#111;--s1:#1f77b4;--s2:#2ca02c;--s3:#ff7f0e;--s4:#d62728;\
--s5:#9467bd;--s6:#8c564b;--s7:#17becf;background:#fff}\
@media(prefers-color-scheme:dark){svg{--ink:#dfe4ea;--grid:#555d66;--s0:#eee;background:#14181d}}</style>";

/// Draws curves with their names, as a file of its own: values over what the axis below says.
///
/// # Errors
/// The library cannot draw it.
pub fn curves(curves: &[(String, Vec<(f64, f64)>)], below: &str, beside: &str) -> Result<String> {
    alone(&curves_within(curves, below, beside)?)
}

/// The same within a page, whose style sheet has the colours.
///
/// # Errors
/// The library cannot draw it.
pub fn curves_within(curves: &[(String, Vec<(f64, f64)>)], below: &str, beside: &str) -> Result<String> {
    let points = || curves.iter().flat_map(|(_, points)| points);
    let end = points().map(|point| point.0).fold(1.0, f64::max);
    let begin = points().map(|point| point.0).fold(end, f64::min).min(end - 1.0);
    let top = points().map(|point| point.1).fold(0.0, f64::max).max(1e-6) * 1.05;
    let body = |area: &Area<'_>| -> Drawn<Box4> {
        let mut chart = ChartBuilder::on(area)
            .margin_top(8)
            .margin_right(150)
            .x_label_area_size(44)
            .y_label_area_size(74)
            .build_cartesian_2d(begin..end, 0.0..top)?;
        axes(&mut chart, below, beside)?;
        let (x, y) = chart.plotting_area().get_pixel_range();
        for (number, (name, points)) in curves.iter().enumerate() {
            let style = ShapeStyle::from(colour(number)).stroke_width(2);
            chart.draw_series(LineSeries::new(points.iter().copied(), style))?;
            // The names are beside the figure, one below the other.
            let colour = colour(number);
            let text = TextStyle::from(("sans-serif", 13).into_font()).color(&colour);
            area.draw_text(name, &text, (x.end + 10, y.start + 18 * number as i32))?;
        }
        Ok([x.start, x.end, y.start, y.end])
    };
    Ok(draw((WIDTH, 2 * HEIGHT), body)?.0)
}

/// A drawing as a file of its own.
fn alone(svg: &str) -> Result<String> {
    let (head, rest) = svg.split_once('>').ok_or_else(|| anyhow!("the chart has no beginning"))?;
    Ok(format!("{head}>{ALONE}{rest}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_what_there_is() {
        assert!(figure(&[(0, vec![])], 1.0).unwrap().is_none());
        let lines =
            [(0, vec![(0.0, 1.0, 5.0), (1.0, 2.0, 0.0), (4.0, 5.0, 2.0)]), (9, vec![(0.0, 2.0, 3.0)])];
        let (svg, [left, right, top, bottom], high) = figure(&lines, 5.0).unwrap().unwrap();
        assert!(svg.starts_with("<svg") && svg.matches("<polyline").count() >= 3, "{svg}");
        assert!(svg.contains("var(--s0)") && svg.contains("var(--s1)") && svg.contains("var(--ink)"));
        assert!(!svg.contains("#0102") && !svg.contains("#0103"));
        assert!(left < right && top < bottom && (high - 5.4).abs() < 1e-9);
        assert!(figure(&[(0, vec![(0.0, 0.0, 0.0)])], 1e-9).unwrap().is_some(), "nothing but zeros");
    }

    #[test]
    fn a_rare_peak_does_not_flatten_the_rest() {
        let steps = |peaks: usize, peak: f64| {
            let value = |n| if n < peaks { peak } else { 1.0 + n as f64 / 400.0 };
            vec![(0, (0..200).map(|n| (n as f64, n as f64 + 1.0, value(n))).collect::<Vec<_>>())]
        };
        let (svg, _, top) = figure(&steps(2, 1000.0), 200.0).unwrap().unwrap();
        assert!((1.5..4.0).contains(&top) && svg.contains("<polyline"), "{top}");
        let said = cut(&steps(2, 1000.0), top);
        assert_eq!(said.as_deref(), Some("2 of 200 steps are higher than the axis, up to 1000."));
        for (peaks, peak) in [(3, 1000.0), (2, 4.0), (0, 0.0)] {
            let lines = steps(peaks, peak);
            let (_, _, top) = figure(&lines, 200.0).unwrap().unwrap();
            assert!(cut(&lines, top).is_none(), "{peaks} steps of {peak}: {top}");
        }
    }

    #[test]
    fn draws_modes() {
        let svg = modes(&[("a<b", vec![(0.0, 1.0, 0), (1.0, 2.0, 1), (2.0, 3.0, 2)])], 2.0).unwrap();
        assert!(
            svg.contains("a&lt;b")
                && ["nested", "shadow", "agile"].iter().all(|name| svg.contains(&format!("var(--{name})"))),
            "{svg}"
        );
    }

    #[test]
    fn labels_are_short() {
        let labels = [0.0, 0.25, 500.0, 20_000.0, 1_500_000.0, 2e9].map(|value| label(&value));
        assert_eq!(labels, ["0", "0.25", "500", "20 k", "1.5 M", "2 G"]);
    }
}
