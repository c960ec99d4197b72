//! The regions of a VM in `pal top`: where they are now, and what they have done since the last refresh.

use super::draw::{bytes, count};
use super::state::per_second;
use crate::samples::line::{Region, Regions};

/// Regions that are shown of a VM at most; the monitor's `regions` and `pal report` show more.
const MOST: usize = 8;
/// Caches in a line.
const IN_A_LINE: usize = 2;

/// Takes in what has become of a VM's regions.
pub fn add(seen: &mut Option<Regions>, now: &Regions) {
    let before = seen.take().unwrap_or_default();
    let mut now = now.clone();
    let same = |region: &Region| {
        before.regions.iter().find(|old| (old.number, old.is_guests) == (region.number, region.is_guests))
    };
    for region in &mut now.regions {
        region.moves = region.moves.saturating_add(same(region).map_or(0, |old| old.moves));
    }
    now.moves = now.moves.saturating_add(before.moves);
    now.globalised = now.globalised.saturating_add(before.globalised);
    now.opened = now.opened.saturating_add(before.opened);
    now.span_ns = now.span_ns.saturating_add(before.span_ns);
    *seen = Some(now);
}

/// Forgets what was counted; where the regions are stays.
pub fn begin_again(seen: &mut Option<Regions>) {
    if let Some(seen) = seen {
        (seen.moves, seen.globalised, seen.opened, seen.span_ns) = (0, 0, 0, 0);
        seen.regions.iter_mut().for_each(|region| region.moves = 0);
    }
}

/// A time in at most eight columns.
fn time(ns: Option<u64>) -> String {
    ns.map_or_else(|| "–".into(), |ns| format!("{} us", count(Some(ns / 1000))))
}

/// The lines of a VM.
pub fn rows(seen: &Regions) -> Vec<String> {
    let rate = |moves| count(per_second(moves, seen.span_ns));
    let [found, defined] = seen.known;
    let mut lines = vec![format!(
        "  regions found {found}, guest's {defined}; moves/s {} globalised/s {} opened/s {}",
        rate(seen.moves),
        rate(seen.globalised),
        rate(seen.opened)
    )];
    let caches: Vec<_> = seen.caches.iter().enumerate().collect();
    for (at, some) in caches.chunks(IN_A_LINE).enumerate() {
        let some: Vec<_> = some
            .iter()
            .map(|(n, (size, used))| format!("{n}: {} ({})", bytes(Some(*size)), bytes(Some(*used))))
            .collect();
        let before = if at == 0 { "caches (working set) " } else { "                     " };
        lines.push(format!("  {before}{}", some.join("  ")));
    }
    if !seen.regions.is_empty() {
        lines.push("    region  kind     cache      size  working set  used for  moves/s  space".into());
    }
    lines.extend(seen.regions.iter().take(MOST).map(|it| {
        let cache = it.cache.map_or_else(|| "all".into(), |cache| cache.to_string());
        let space = it.space_root.map_or_else(|| "VM".into(), |root| format!("{root:x}"));
        format!(
            "    {:<7} {:<8} {cache:<5} {:>9}  {:>11} {:>9}  {:>7}  {space}",
            it.name(),
            it.kind,
            bytes(Some(it.bytes)),
            bytes(it.working_set),
            time(it.access_ns),
            rate(it.moves)
        )
    }));
    if seen.regions.len() > MOST {
        lines.push(format!("    and {} more", seen.regions.len() - MOST));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::line::{Line, Names, tests::REGIONS};

    fn seen() -> Regions {
        match Names::default().read(REGIONS.as_bytes()) {
            Line::Regions(regions) => *regions,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn shows_where_regions_are() {
        let expected = [
            "  regions found 2, guest's 1; moves/s 4500 globalised/s 10 opened/s 20",
            "  caches (working set) 0: 3.0M (2.0M)  1: 3.0M (3.0M)",
            "    region  kind     cache      size  working set  used for  moves/s  space",
            "    259     local    0          3.0M         2.0M    123 us     2250  12000",
            "    g1      regular  all          8K            –         –        0  VM",
        ];
        assert_eq!(rows(&seen()), expected);
    }

    #[test]
    fn moves_are_summed_until_the_next_refresh() {
        let mut all = None;
        add(&mut all, &seen());
        add(&mut all, &seen());
        let shown = rows(all.as_ref().unwrap());
        assert!(shown[0].ends_with("moves/s 4500 globalised/s 10 opened/s 20"), "{shown:?}");
        assert_eq!(all.as_ref().unwrap().regions[0].moves, 2 * seen().regions[0].moves);
        begin_again(&mut all);
        let shown = rows(all.as_ref().unwrap());
        assert!(
            shown[0].ends_with("moves/s – globalised/s – opened/s –") && shown[3].ends_with("–  12000"),
            "{shown:?}"
        );
        assert_eq!(shown.len(), rows(&seen()).len());
    }

    #[test]
    fn many_regions_and_caches_fit_the_screen() {
        let mut many = seen();
        // The largest that records can say.
        let most = u64::from(u32::MAX) << 12;
        let (working_set, access_ns, moves) = (Some(most), Some(u64::from(u32::MAX)), 100_000_000);
        let space_root = Some(0xff_ffff_f000);
        let region = Region {
            number: 65_535,
            bytes: most,
            working_set,
            access_ns,
            space_root,
            moves,
            ..many.regions[0].clone()
        };
        many.known = [16_384, 256];
        (many.moves, many.globalised, many.opened) = (moves, moves, moves);
        many.regions = vec![region; 16];
        many.caches = vec![(most, 5 << 20); 16];
        let shown = rows(&many);
        assert_eq!((shown.len(), shown.last().unwrap().as_str()), (1 + 8 + 1 + 8 + 1, "    and 8 more"));
        assert!(shown.iter().all(|line| line.chars().count() <= 80), "{shown:#?}");
    }
}
