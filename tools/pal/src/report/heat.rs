//! Where in a guest's memory its hot pages were over time, and how often pages were accessed.

use std::fmt::Write;

use anyhow::Result;

use super::chart::{self, Cell};
use crate::samples::memory::Tiers;

/// Columns of a map at most; a run has ten moments in a second.
const COLUMNS: usize = 160;
/// Shades of a colour.
pub const SHADES: u64 = 4;
/// Colours of the style sheet: of parts that are accessed, and of parts that are hot.
const ACCESSED: usize = 0;
pub const HOT: usize = 1;

/// The colour and shade of a part, of which this much was accessed, and this much is hot, in 255ths.
pub fn shade(accessed: u8, hot: u8) -> Option<(usize, u64)> {
    // What is hot is worth more than what was touched once.
    let (colour, part) =
        if hot != 0 && u16::from(hot) * 2 >= accessed.into() { (HOT, hot) } else { (ACCESSED, accessed) };
    (part != 0).then(|| (colour, (u64::from(part) * SHADES).div_ceil(255)))
}

/// The cells of a map: neighbours in time of one shade are one.
fn cells(all: &[&Tiers], end: f64) -> Vec<Cell> {
    let every = all.len().div_ceil(COLUMNS).max(1);
    let some: Vec<_> = all.iter().step_by(every).map(|it| (it.machine_ns as f64 / 1e9, *it)).collect();
    let ends: Vec<f64> = some.iter().skip(1).map(|next| next.0).chain([end]).collect();
    let bins = some.iter().map(|(_, it)| it.accessed.len()).max().unwrap_or(0);
    let mut cells: Vec<Cell> = Vec::new();
    for row in 0..bins {
        let first = cells.len();
        for ((begin, it), end) in some.iter().zip(&ends) {
            let part = |of: &[u8]| of.get(row).copied().unwrap_or(0);
            let Some((colour, shade)) = shade(part(&it.accessed), part(&it.hot_parts)) else { continue };
            let strength = shade as f64 / SHADES as f64;
            let (begin, end) = (*begin, end.max(*begin));
            match cells[first..].last_mut() {
                Some(last) if last.end == begin && (last.colour, last.strength) == (colour, strength) => {
                    last.end = end
                }
                _ => cells.push(Cell { begin, end, row, colour, strength }),
            }
        }
    }
    cells
}

/// The map of a VM, and the histogram of its pages at the end; nothing if its lines do not tell.
///
/// # Errors
/// A chart cannot be drawn.
pub fn section(all: &[&Tiers], end: f64) -> Result<String> {
    let mut html = String::new();
    let bins = all.iter().map(|it| it.accessed.len()).max().unwrap_or(0);
    let last_ns = all.last().map_or(0, |last| last.machine_ns);
    let cells = cells(all, (last_ns as f64 / 1e9).min(end));
    if !cells.is_empty() {
        let _ = write!(
            html,
            "<p class=\"legend\"><span><i style=\"background:var(--s{HOT})\"></i>hot</span><span><i \
             style=\"background:var(--s{ACCESSED})\"></i>accessed in the last 32 samples</span></p><figure>{}</figure><p>The guest's \
             memory by its address, in per cent. The darker, the more pages of a part.</p>",
            chart::map(&cells, bins, (100.0, "%"), end)?
        );
    }
    if let Some(last) = all.last().filter(|last| last.histogram.iter().any(|pages| *pages != 0)) {
        let mib = |pages: &u64| *pages as f64 / 256.0;
        let bars: Vec<f64> = last.histogram.iter().map(mib).collect();
        let hot: f64 = last.histogram.iter().skip(last.hot as usize).map(mib).sum();
        let _ = write!(
            html,
            "<figure>{}</figure><p>MiB at the end by the samples of 32 in which they were accessed. Hot, with {} or more: {hot:.1} \
             MiB; others that were accessed: {:.1} MiB.</p>",
            chart::bars(&bars, last.hot as usize)?,
            last.hot,
            bars.iter().sum::<f64>() - hot
        );
    }
    Ok(html)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(n: u64, accessed: [u8; 3], hot_parts: [u8; 3]) -> Tiers {
        let (accessed, hot_parts) = (accessed.to_vec(), hot_parts.to_vec());
        let mut histogram = vec![0; 32];
        (histogram[3], histogram[22], histogram[31]) = (256, 512, 1024);
        Tiers { machine_ns: n * 1_000_000_000, accessed, hot_parts, histogram, hot: 22, ..Tiers::default() }
    }

    #[test]
    fn neighbours_of_one_shade_are_one_cell() {
        let all = [
            moment(1, [255, 10, 0], [255, 0, 0]),
            moment(2, [255, 9, 0], [250, 0, 0]),
            moment(3, [255, 200, 0], [0, 1, 0]),
        ];
        let all: Vec<_> = all.iter().collect();
        let found: Vec<_> =
            cells(&all, 5.0).iter().map(|it| (it.row, it.colour, it.strength, it.begin, it.end)).collect();
        assert_eq!(
            found,
            [
                (0, HOT, 1.0, 1.0, 3.0),
                (0, ACCESSED, 1.0, 3.0, 5.0),
                (1, ACCESSED, 0.25, 1.0, 3.0),
                (1, ACCESSED, 1.0, 3.0, 5.0)
            ]
        );
        let html = section(&all, 5.0).unwrap();
        assert_eq!(html.matches("<svg").count(), 2, "{html}");
        assert!(
            html.contains("Hot, with 22 or more: 6.0 MiB; others that were accessed: 1.0 MiB."),
            "{html}"
        );
    }

    #[test]
    fn lines_that_do_not_tell_have_none() {
        let old = Tiers { machine_ns: 1, ..Tiers::default() };
        assert_eq!(section(&[&old], 1.0).unwrap(), "");
        assert_eq!(section(&[], 1.0).unwrap(), "");
    }

    #[test]
    fn long_runs_have_as_many_columns_as_a_map_has_room_for() {
        let all: Vec<_> = (0..5000).map(|n| moment(n, [(n % 7 * 40) as u8, 0, 0], [0; 3])).collect();
        let all: Vec<_> = all.iter().collect();
        assert!(cells(&all, 5000.0).len() <= COLUMNS);
    }
}
