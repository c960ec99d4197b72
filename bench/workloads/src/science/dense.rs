//! LU factors of a dense matrix in blocks, without pivoting.

use super::{Array, Heap, Watch, fold, noise};

/// Rows of a block.
const BLOCK: usize = 16;

/// A square matrix, by rows or by contiguous blocks.
pub(super) struct Matrix<'a, W: Watch> {
    pub data: Array<'a, f64, W>,
    pub rows: usize,
    contiguous: bool,
}

impl<'a, W: Watch> Matrix<'a, W> {
    pub fn new(heap: &Heap<'a, W>, rows: usize, contiguous: bool) -> Self {
        Self { data: heap.array(rows * rows), rows, contiguous }
    }

    #[inline]
    pub fn at(&self, row: usize, column: usize) -> usize {
        if !self.contiguous {
            return row * self.rows + column;
        }
        let block = row / BLOCK * (self.rows / BLOCK) + column / BLOCK;
        block * BLOCK * BLOCK + row % BLOCK * BLOCK + column % BLOCK
    }

    fn get(&self, row: usize, column: usize) -> f64 {
        self.data.get(self.at(row, column))
    }

    /// Row i minus a multiple of row j, in these columns: the inner loop.
    fn daxpy(&mut self, i: usize, j: usize, columns: std::ops::Range<usize>, factor: f64) {
        let (to, from) = (self.at(i, columns.start), self.at(j, columns.start));
        for n in 0..columns.len() {
            let value = self.data.get(from + n);
            self.data.change(to + n, |old| old - factor * value);
        }
    }
}

/// An entry of the matrix that is factored: the diagonal dominates.
pub(super) fn entry(rows: usize, row: usize, column: usize) -> f64 {
    noise(1, row * rows + column) + if row == column { rows as f64 } else { 0.0 }
}

/// Factors the matrix in place.
pub(super) fn factor<W: Watch>(a: &mut Matrix<'_, W>) {
    let blocks = a.rows / BLOCK;
    let of = |block: usize| block * BLOCK..(block + 1) * BLOCK;
    for k in 0..blocks {
        // The diagonal block.
        for pivot in of(k) {
            for row in pivot + 1..(k + 1) * BLOCK {
                eliminate(a, row, pivot, pivot + 1..(k + 1) * BLOCK);
            }
        }
        // Those below it, then those to its right.
        for i in k + 1..blocks {
            for pivot in of(k) {
                of(i).for_each(|row| eliminate(a, row, pivot, pivot + 1..(k + 1) * BLOCK));
            }
        }
        for j in k + 1..blocks {
            for pivot in of(k) {
                for row in pivot + 1..(k + 1) * BLOCK {
                    let factor = a.get(row, pivot);
                    a.daxpy(row, pivot, of(j), factor);
                }
            }
        }
        for i in k + 1..blocks {
            for j in k + 1..blocks {
                for row in of(i) {
                    for pivot in of(k) {
                        let factor = a.get(row, pivot);
                        a.daxpy(row, pivot, of(j), factor);
                    }
                }
            }
        }
    }
}

/// Divides an entry by the pivot, and takes that multiple of the pivot's row away.
fn eliminate<W: Watch>(a: &mut Matrix<'_, W>, row: usize, pivot: usize, columns: std::ops::Range<usize>) {
    let factor = a.get(row, pivot) / a.get(pivot, pivot);
    let at = a.at(row, pivot);
    a.data.set(at, factor);
    if !columns.is_empty() {
        a.daxpy(row, pivot, columns, factor);
    }
}

pub fn lu<W: Watch>(heap: &Heap<'_, W>, rows: usize, contiguous: bool) -> u64 {
    let rows = rows / BLOCK * BLOCK;
    let mut a = Matrix::new(heap, rows, contiguous);
    for row in 0..rows {
        for column in 0..rows {
            let at = a.at(row, column);
            a.data.set(at, entry(rows, row, column));
        }
    }
    factor(&mut a);
    // In the order of rows, so that both layouts have one checksum.
    let entries = (0..rows * rows).map(|n| a.data.data()[a.at(n / rows, n % rows)]);
    entries.fold(0, fold)
}
