//! The pages that a trace has had so far: each has a row of its own, in the order of their first accesses, so that tables need no
//! hashing.

use super::{MOST_PAGES, TraceError};

/// The pages, and what they belong to.
#[derive(Clone, Debug)]
pub struct Universe {
    /// The number of each row's page.
    pub pages: Vec<u64>,
    /// The object of each row's page, 0 for none.
    pub objects: Vec<u32>,
    /// Ranges of pages by object, the latest last: first page, end, number.
    ranges: Vec<(u64, u64, u32)>,
    /// Rows by page number: an open hash table, at most half full.
    table: Vec<u32>,
    /// The last row that was asked for.
    last: u32,
}

const FREE: u32 = u32::MAX;

impl Default for Universe {
    fn default() -> Self {
        Universe { pages: vec![], objects: vec![], ranges: vec![], table: vec![FREE; 1 << 12], last: FREE }
    }
}

impl Universe {
    fn place(&self, page: u64) -> usize {
        let mask = self.table.len() - 1;
        let hash = page.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut place = (hash >> 32) as usize & mask;
        while self.table[place] != FREE && self.pages[self.table[place] as usize] != page {
            place = (place + 1) & mask;
        }
        place
    }

    /// The page's row.
    ///
    /// # Errors
    /// There are too many pages.
    pub fn row(&mut self, page: u64) -> Result<u32, TraceError> {
        if self.pages.get(self.last as usize) == Some(&page) {
            return Ok(self.last);
        }
        let mut place = self.place(page);
        if self.table[place] == FREE {
            if self.pages.len() >= MOST_PAGES {
                return Err(TraceError::Pages);
            }
            if 2 * self.pages.len() >= self.table.len() {
                self.grow();
                place = self.place(page);
            }
            self.table[place] = self.pages.len() as u32;
            self.pages.push(page);
            let object = self.ranges.iter().rev().find(|(first, end, _)| (*first..*end).contains(&page));
            self.objects.push(object.map_or(0, |(.., number)| *number));
        }
        self.last = self.table[place];
        Ok(self.last)
    }

    fn grow(&mut self) {
        self.table = vec![FREE; 2 * self.table.len()];
        for row in 0..self.pages.len() {
            let place = self.place(self.pages[row]);
            self.table[place] = row as u32;
        }
    }

    /// These pages belong together from now on.
    pub fn object(&mut self, first: u64, pages: u64) {
        let end = first.saturating_add(pages);
        let number = self.ranges.len() as u32 + 1;
        self.ranges.push((first, end, number));
        for (page, object) in self.pages.iter().zip(&mut self.objects) {
            if (first..end).contains(page) {
                *object = number;
            }
        }
    }

    /// Objects so far.
    pub fn object_count(&self) -> u32 {
        self.ranges.len() as u32
    }
}
