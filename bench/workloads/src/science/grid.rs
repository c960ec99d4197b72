//! Ocean currents: stencils over a dozen grids, and red-black relaxation of one.

use super::{Array, Heap, Watch, fold, noise};

/// Steps of time.
const STEPS: usize = 8;
/// Sweeps of a relaxation.
const SWEEPS: usize = 10;
/// Grids.
const GRIDS: usize = 13;
/// Grids of an allocation, where they are not contiguous.
const TOGETHER: usize = 5;

// What the grids are for.
const PSI: usize = 0;
const OLD: usize = 1;
const FORCING: usize = 2;
const DEPTH: usize = 3;
const WORK: usize = 4;
const Q: usize = 11;
const RHS: usize = 12;

struct Ocean<'a, W: Watch> {
    arrays: Vec<Array<'a, f64, W>>,
    side: usize,
    contiguous: bool,
}

impl<'a, W: Watch> Ocean<'a, W> {
    fn place(&self, grid: usize, i: usize, j: usize) -> (usize, usize) {
        if self.contiguous {
            return (grid, i * self.side + j);
        }
        (grid / TOGETHER, (i * TOGETHER + grid % TOGETHER) * self.side + j)
    }

    #[inline]
    fn get(&self, grid: usize, i: usize, j: usize) -> f64 {
        let (array, at) = self.place(grid, i, j);
        self.arrays[array].get(at)
    }

    #[inline]
    fn set(&mut self, grid: usize, i: usize, j: usize, value: f64) {
        let (array, at) = self.place(grid, i, j);
        self.arrays[array].set(at, value);
    }

    fn inside(&mut self, mut each: impl FnMut(&mut Self, usize, usize)) {
        for i in 1..self.side - 1 {
            for j in 1..self.side - 1 {
                each(self, i, j);
            }
        }
    }

    fn laplacian(&self, grid: usize, i: usize, j: usize) -> f64 {
        let around = self.get(grid, i - 1, j) + self.get(grid, i + 1, j) + self.get(grid, i, j - 1);
        around + self.get(grid, i, j + 1) - 4.0 * self.get(grid, i, j)
    }

    /// The change of a by the flow along b.
    fn jacobian(&self, a: usize, b: usize, i: usize, j: usize) -> f64 {
        let across =
            |grid, di: usize, dj: usize| self.get(grid, i + di, j + dj) - self.get(grid, i - di, j - dj);
        (across(a, 1, 0) * across(b, 0, 1) - across(a, 0, 1) * across(b, 1, 0)) / 4.0
    }

    fn step(&mut self) {
        self.inside(|all, i, j| all.set(WORK, i, j, all.laplacian(PSI, i, j)));
        self.inside(|all, i, j| all.set(WORK + 1, i, j, all.laplacian(OLD, i, j)));
        self.inside(|all, i, j| all.set(WORK + 2, i, j, all.jacobian(WORK, PSI, i, j)));
        self.inside(|all, i, j| all.set(WORK + 3, i, j, all.jacobian(DEPTH, PSI, i, j)));
        self.inside(|all, i, j| all.set(WORK + 4, i, j, all.laplacian(WORK + 1, i, j)));
        self.inside(|all, i, j| {
            let sum = all.get(WORK + 2, i, j) + all.get(WORK + 3, i, j);
            all.set(WORK + 5, i, j, 0.1 * sum + 0.01 * all.get(WORK + 4, i, j));
        });
        self.inside(|all, i, j| {
            let rhs = all.get(WORK + 5, i, j) + all.get(FORCING, i, j);
            all.set(RHS, i, j, rhs);
        });
        for sweep in 0..SWEEPS {
            self.relax(sweep % 2);
            self.relax(1 - sweep % 2);
        }
        self.inside(|all, i, j| all.set(OLD, i, j, all.get(PSI, i, j)));
        self.inside(|all, i, j| {
            let value = 0.9 * all.get(PSI, i, j) + 0.1 * all.get(Q, i, j);
            all.set(PSI, i, j, value);
        });
        self.inside(|all, i, j| all.set(WORK + 6, i, j, all.get(PSI, i, j) - all.get(OLD, i, j)));
    }

    /// One colour of a sweep towards the grid whose laplacian is the right-hand side.
    fn relax(&mut self, colour: usize) {
        for i in 1..self.side - 1 {
            for j in (1 + (i + colour) % 2..self.side - 1).step_by(2) {
                let error = self.laplacian(Q, i, j) - self.get(RHS, i, j);
                let value = self.get(Q, i, j) + 1.2 * error / 4.0;
                self.set(Q, i, j, value);
            }
        }
    }
}

pub fn ocean<W: Watch>(heap: &Heap<'_, W>, side: usize, contiguous: bool) -> u64 {
    let arrays = if contiguous {
        (0..GRIDS).map(|_| heap.array(side * side)).collect()
    } else {
        (0..GRIDS.div_ceil(TOGETHER)).map(|_| heap.array(side * side * TOGETHER)).collect()
    };
    let mut ocean = Ocean { arrays, side, contiguous };
    for grid in [PSI, OLD, FORCING, DEPTH] {
        ocean.inside(|all, i, j| all.set(grid, i, j, noise(6 + grid as u64, i * side + j) - 0.5));
    }
    (0..STEPS).for_each(|_| ocean.step());
    let cells = (0..side * side).map(|n| ocean.place(PSI, n / side, n % side));
    cells.fold(0, |sum, (array, at)| fold(sum, ocean.arrays[array].data()[at]))
}
