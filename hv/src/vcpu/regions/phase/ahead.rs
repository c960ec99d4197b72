//! How many pages of a region a touch in a phase looks at, to open those that are not open.

/// Pages of a region that are opened at a touch at most, in the order in which the region got them: the next ones are likely to follow.
/// A visit begins with one page, and each further touch opens twice as many: to open and close a page takes longer than many a visit.
const MOST: usize = 256;
/// A touch that opens less than this part of the pages that it looks at has the next ones look at as much less.
const FEW_OPENED: usize = 8;

/// Pages from the one that is touched on, where the touch before looked at this many.
pub fn more(ahead: usize) -> usize {
    (2 * ahead).clamp(1, MOST)
}

/// The same after a touch that has looked at `ahead` pages, and opened some of them. Where pages are used in random
/// order most of what follows is open at last, and a look at all of it takes longer than some faults.
pub fn after(ahead: usize, opened: usize) -> usize {
    if opened * FEW_OPENED < ahead { ahead / FEW_OPENED } else { ahead }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paging::random::Random;

    /// Pages of a region that are looked at, and faults, until all are open, where they are used in this order.
    fn cost(pages: usize, mut order: impl FnMut() -> usize) -> (usize, usize) {
        let mut open = alloc::vec![false; pages];
        let (mut looks, mut faults, mut ahead) = (0, 0, 0);
        while open.contains(&false) {
            let page = order();
            if open[page] {
                continue;
            }
            faults += 1;
            ahead = more(ahead);
            let looked_at = page..pages.min(page + ahead);
            looks += looked_at.len();
            let opened = open[looked_at.clone()].iter().filter(|is_open| !**is_open).count();
            open[looked_at].fill(true);
            ahead = after(ahead, opened);
        }
        (looks, faults)
    }

    #[test]
    fn what_is_open_is_looked_at_a_few_times_at_most() {
        let mut random = Random(1);
        let (looks, faults) = cost(2000, || random.draw() as usize % 2000);
        assert!(looks < 3 * 2000 && faults < 200, "{looks}, {faults}");
        let mut n = 1999;
        let in_order = cost(2000, || {
            n = (n + 1) % 2000;
            n
        });
        assert_eq!(in_order.1, 9 + (2000_usize - 511).div_ceil(256), "twice as many each time, then 256");
    }
}
