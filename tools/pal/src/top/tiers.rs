//! The fast memory of a VM, and what is evicted of an overcommitted one, in `pal top`.

use super::draw::{bytes, count};
use super::state::per_second;
use crate::report::heat::{HOT, SHADES, shade};
use crate::samples::memory::{Pager, Tiers};

/// Bars to the left and right of a map, and what is before them.
const MARGIN: usize = 4 + 2;

/// A VM's memory by address, in a line of this many columns: light blocks where pages were accessed in the last 32 samples, dark ones
/// where they are hot, two shades of each. Neighbouring parts share a cell if there are too few columns. `None`: lines do not tell.
fn heat(it: &Tiers, columns: usize) -> Option<String> {
    let parts = it.accessed.len();
    let room = columns.saturating_sub(MARGIN).max(1);
    let together = parts.div_ceil(room).max(1);
    let most = |of: &[u8], cell: usize| of.iter().skip(cell * together).take(together).max().copied();
    let cell = |n| {
        let [accessed, hot] = [&it.accessed, &it.hot_parts].map(|of| most(of, n).unwrap_or(0));
        match shade(accessed, hot) {
            None => ' ',
            Some((HOT, strength)) => {
                if 2 * strength > SHADES {
                    '█'
                } else {
                    '▓'
                }
            }
            Some((_, strength)) => {
                if 2 * strength > SHADES {
                    '▒'
                } else {
                    '░'
                }
            }
        }
    };
    let cells: String = (0..parts.div_ceil(together)).map(cell).collect();
    (parts > 0).then(|| format!("    |{cells}|"))
}

/// How much was accessed in the last 0.1, 0.2, 0.4, 0.8, 1.6 and 3.2 s.
fn working_set(it: &Tiers) -> Option<String> {
    let sizes: Vec<_> = it.recent.iter().map(|size| bytes(Some(*size))).collect();
    (!sizes.is_empty()).then(|| format!("    accessed in 0.1 to 3.2 s  {}", sizes.join(" ")))
}

/// What is known of a VM.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Memory {
    /// Its fast memory now, with what has moved since the last refresh.
    tiers: Option<Tiers>,
    /// What it has in frames and compressed, in the same way.
    pager: Option<Pager>,
}

impl Memory {
    /// Takes in what has become of fast memory.
    pub fn add_tiers(&mut self, now: &Tiers) {
        let before = self.tiers.take().unwrap_or_default();
        let mut now = now.clone();
        now.moved_in = now.moved_in.saturating_add(before.moved_in);
        now.moved_out = now.moved_out.saturating_add(before.moved_out);
        now.span_ns = now.span_ns.saturating_add(before.span_ns);
        self.tiers = Some(now);
    }

    /// Takes in what has been evicted.
    pub fn add_pager(&mut self, now: &Pager) {
        let before = self.pager.take().unwrap_or_default();
        let mut now = now.clone();
        for (sum, before) in [
            (&mut now.faults, before.faults),
            (&mut now.refaults, before.refaults),
            (&mut now.came_in, before.came_in),
            (&mut now.went_out, before.went_out),
            (&mut now.from_disk, before.from_disk),
            (&mut now.disk_writes, before.disk_writes),
            (&mut now.span_ns, before.span_ns),
        ] {
            *sum = sum.saturating_add(before);
        }
        self.pager = Some(now);
    }

    /// Forgets what was counted; what is there stays.
    pub fn begin_again(&mut self) {
        if let Some(tiers) = &mut self.tiers {
            (tiers.moved_in, tiers.moved_out, tiers.span_ns) = (0, 0, 0);
        }
        if let Some(pager) = &mut self.pager {
            (pager.faults, pager.refaults, pager.came_in, pager.went_out, pager.span_ns) = (0, 0, 0, 0, 0);
            (pager.from_disk, pager.disk_writes) = (0, 0);
        }
    }

    /// The lines of a VM, on a screen of this many columns.
    pub fn rows(&self, columns: usize) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some(it) = &self.tiers {
            let state = it.state().map_or_else(String::new, |state| format!(", {state}"));
            let wants = it.target.map_or_else(String::new, |target| {
                format!("; the guest wants {}.{} %", target / 10, target % 10)
            });
            let (fast, share) = (bytes(Some(it.fast)), bytes(Some(it.share)));
            lines.push(format!("  fast memory  {fast} of {share}{state}{wants}"));
            let rate = |pages| count(per_second(pages, it.span_ns));
            lines.push(format!(
                "    hot list {} pages, {} in slow memory; pages/s in {}, out {}",
                count(Some(it.listed())),
                count(Some(it.waiting / 4096)),
                rate(it.moved_in),
                rate(it.moved_out)
            ));
            lines.extend(working_set(it));
            lines.extend(heat(it, columns));
        }
        if let Some(it) = &self.pager {
            let rate = |pages| count(per_second(pages, it.span_ns));
            lines.push(format!(
                "  in frames  {} of {}; compressed {} in {}",
                bytes(Some(it.resident)),
                bytes(Some(it.resident_limit)),
                bytes(Some(it.stored)),
                bytes(Some(it.store))
            ));
            lines.push(format!(
                "    faults/s {}, refaults/s {}; pages/s in {}, out {}",
                rate(it.faults),
                rate(it.refaults),
                rate(it.came_in),
                rate(it.went_out)
            ));
            // Most machines have none.
            if it.on_disk > 0 || it.from_disk > 0 {
                lines.push(format!(
                    "    on the disk {}; pages/s back {}, writes/s {}",
                    bytes(Some(it.on_disk)),
                    rate(it.from_disk),
                    rate(it.disk_writes)
                ));
            }
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{
        line::{Line, Names},
        memory::tests::{PAGER, TIERS},
    };

    fn seen() -> (Tiers, Pager) {
        let mut names = Names::default();
        match [TIERS, PAGER].map(|line| names.read(line.as_bytes())) {
            [Line::Tiers(tiers), Line::Pager(pager)] => (*tiers, *pager),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn shows_what_is_there() {
        let (mut memory, (tiers, pager)) = (Memory::default(), seen());
        assert!(memory.rows(80).is_empty(), "nothing where there is none");
        memory.add_tiers(&tiers);
        memory.add_pager(&pager);
        let expected = [
            "  fast memory  3.0M of 4.0M, E2 set; the guest wants 95.0 %",
            "    hot list 1024 pages, 256 in slow memory; pages/s in 300, out 100",
            "    accessed in 0.1 to 3.2 s  1.0M 2.0M 2.0M 4.0M 8.0M 10.0M",
            "    |█ ░|",
            "  in frames  64.0M of 64.0M; compressed 16.0M in 4.0M",
            "    faults/s 500, refaults/s 400; pages/s in 450, out 350",
            "    on the disk 8.0M; pages/s back 120, writes/s 20",
        ];
        assert_eq!(memory.rows(80), expected);
        let mut plain = Memory::default();
        plain.add_tiers(&Tiers { e_state: None, target: None, ..tiers });
        assert_eq!(plain.rows(80)[0], "  fast memory  3.0M of 4.0M");
        let mut without = Memory::default();
        without.add_pager(&Pager { on_disk: 0, from_disk: 0, ..pager });
        assert_eq!(without.rows(80).len(), 2, "nothing of a disk where none is used");
    }

    #[test]
    fn moves_are_summed_until_the_next_refresh() {
        let (mut memory, (tiers, pager)) = (Memory::default(), seen());
        (0..2).for_each(|_| memory.add_tiers(&tiers));
        (0..2).for_each(|_| memory.add_pager(&pager));
        let shown = memory.rows(80);
        assert!(
            shown[1].ends_with("pages/s in 300, out 100") && shown[5].contains("refaults/s 400"),
            "{shown:?}"
        );
        assert_eq!(
            (memory.tiers.as_ref().unwrap().moved_in, memory.pager.as_ref().unwrap().faults),
            (60, 100)
        );
        memory.begin_again();
        let shown = memory.rows(80);
        assert!(shown[0].contains("3.0M of 4.0M") && shown[1].ends_with("pages/s in –, out –"), "{shown:?}");
        assert!(shown[5].contains("refaults/s –"), "{shown:?}");
        assert_eq!(shown[6], "    on the disk 8.0M; pages/s back –, writes/s –");
    }

    #[test]
    fn a_map_has_the_screen_s_width() {
        let mut it = Tiers::default();
        assert_eq!(
            (heat(&it, 80), working_set(&it)),
            (None, None),
            "earlier versions of pal tell of neither"
        );
        it.accessed = (0..64).map(|n| 4 * n).collect();
        it.hot_parts = vec![0; 60];
        it.hot_parts.extend([255, 124, 0, 1]);
        let expected = format!("    | {}{}█▓▒▒|", "░".repeat(31), "▒".repeat(28));
        assert_eq!(heat(&it, 80), Some(expected.clone()));
        assert_eq!(heat(&it, 70), Some(expected), "70 columns are enough");
        // Two parts, then four have a cell.
        assert_eq!(heat(&it, 69), Some(format!("    |{}{}█▒|", "░".repeat(16), "▒".repeat(14))));
        assert_eq!(heat(&it, 30).map(|line| line.chars().count()), Some(6 + 64usize.div_ceil(3)));
        assert_eq!(heat(&it, 0), Some("    |█|".into()));
    }

    #[test]
    fn the_largest_figures_fit_the_screen() {
        let (mut memory, (tiers, pager)) = (Memory::default(), seen());
        let most = u64::from(u32::MAX) << 12;
        let (total, share, fast, waiting, moved_in, moved_out, target) =
            (most, most, most, most, 999_999_999, 999_999_999, Some(1000));
        let (recent, accessed, hot_parts) = (vec![1023 << 20; 6], vec![255; 64], vec![255; 64]);
        memory.add_tiers(&Tiers {
            total,
            share,
            fast,
            waiting,
            moved_in,
            moved_out,
            target,
            recent,
            accessed,
            hot_parts,
            ..tiers
        });
        let (resident, resident_limit, stored, store, on_disk) = (most, most, most, most, most);
        let (faults, refaults, came_in, went_out) = (999_999_999, 999_999_999, 999_999_999, 999_999_999);
        let (from_disk, disk_writes) = (999_999_999, 999_999_999);
        memory.add_pager(&Pager {
            resident,
            resident_limit,
            stored,
            store,
            faults,
            refaults,
            came_in,
            went_out,
            on_disk,
            from_disk,
            disk_writes,
            ..pager
        });
        let shown = memory.rows(80);
        assert!(shown.iter().all(|line| line.chars().count() <= 80), "{shown:#?}");
    }
}
