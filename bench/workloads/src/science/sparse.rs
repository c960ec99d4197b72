//! Cholesky factors of a sparse matrix by supernodes: columns with the same rows below them are one dense panel. It is left-looking, as
//! SPLASH-2's is where one processor has a part of the elimination tree: before a panel is factored, it takes its changes from all
//! panels on its left that have its rows, which lists find. No system is solved, which there is only done as a test.
//!
//! The matrix is that of a mesh of quadrilaterals, in the order of nested dissection: a line of nodes in the middle comes behind the two
//! halves that it separates. What is filled in is found beforehand, by the elimination tree, as only the order of the matrix decides.

use super::{Array, Heap, Watch, fold, noise};

/// Allocations for the values of panels: the thesis on APR counts 31 objects in all.
const PARTS: usize = 28;
/// Columns of a panel at most.
const WIDEST: usize = 64;
/// Regions of the mesh with no more nodes are not divided further.
const UNDIVIDED: usize = 8;

/// A matrix of this order, of which row and column are nodes of the mesh.
pub(super) struct Mesh {
    side: usize,
    /// The node of each row.
    pub order: Vec<usize>,
    /// The row of each node.
    row: Vec<usize>,
}

impl Mesh {
    /// A square of this many nodes in each direction.
    pub fn new(side: usize) -> Mesh {
        let mut order = Vec::with_capacity(side * side);
        dissect(side, [0, side], [0, side], &mut order);
        let mut row = vec![0; order.len()];
        order.iter().enumerate().for_each(|(at, node)| row[*node] = at);
        Mesh { side, order, row }
    }

    /// The entry of these rows' nodes, if it is not zero: nodes of one quadrilateral are neighbours.
    pub fn entry(&self, row: usize, column: usize) -> Option<f64> {
        let place = |row: usize| [self.order[row] / self.side, self.order[row] % self.side];
        let (one, other) = (place(row), place(column));
        let is_near = (0..2).all(|axis| one[axis].abs_diff(other[axis]) <= 1);
        match is_near {
            true if row == column => Some(8.0 + noise(2, self.order[row])),
            true => Some(-1.0),
            false => None,
        }
    }

    /// The rows below the diagonal of a column in which there is an entry, in order.
    fn below(&self, column: usize) -> Vec<usize> {
        let (y, x) = (self.order[column] / self.side, self.order[column] % self.side);
        let near = |at: usize| at.saturating_sub(1)..(at + 2).min(self.side);
        let nodes = near(y).flat_map(|y| near(x).map(move |x| y * self.side + x));
        let mut rows: Vec<_> = nodes.map(|node| self.row[node]).filter(|row| *row > column).collect();
        rows.sort_unstable();
        rows
    }
}

/// The nodes of a rectangle: both halves, then the line between them.
fn dissect(side: usize, y: [usize; 2], x: [usize; 2], order: &mut Vec<usize>) {
    let (height, width) = (y[1] - y[0], x[1] - x[0]);
    if height * width <= UNDIVIDED {
        order.extend((y[0]..y[1]).flat_map(|y| (x[0]..x[1]).map(move |x| y * side + x)));
    } else if height > width {
        let middle = y[0] + height / 2;
        dissect(side, [y[0], middle], x, order);
        dissect(side, [middle + 1, y[1]], x, order);
        // Not divided: a line separates as a whole.
        order.extend((x[0]..x[1]).map(|x| middle * side + x));
    } else {
        let middle = x[0] + width / 2;
        dissect(side, y, [x[0], middle], order);
        dissect(side, y, [middle + 1, x[1]], order);
        order.extend((y[0]..y[1]).map(|y| y * side + middle));
    }
}

/// A panel.
#[derive(Clone, Copy, Debug)]
struct Panel {
    /// Its first column.
    first: usize,
    /// Its columns, and its rows, of which the first are those of the columns.
    columns: usize,
    rows: usize,
    /// Where the numbers of its rows are.
    numbers: usize,
    /// The allocation with its values, and where they are there: column by column.
    part: usize,
    values: usize,
}

/// The factor.
pub(super) struct Factor<'a, W: Watch> {
    panels: Vec<Panel>,
    /// The panel of each column.
    panel: Vec<usize>,
    numbers: Array<'a, u32, W>,
    parts: Vec<Array<'a, f64, W>>,
    /// What a panel takes from a column of another one.
    update: Array<'a, f64, W>,
}

/// The rows of each column in which the factor has entries, below the diagonal.
fn fill(mesh: &Mesh) -> Vec<Vec<usize>> {
    let mut rows: Vec<Vec<usize>> = (0..mesh.order.len()).map(|column| mesh.below(column)).collect();
    for column in 0..rows.len() {
        // The parent in the elimination tree has all the others.
        if let Some((parent, others)) = rows[column].split_first() {
            let (parent, others) = (*parent, others.to_vec());
            rows[parent].extend(others);
            rows[parent].sort_unstable();
            rows[parent].dedup();
        }
    }
    rows
}

impl<'a, W: Watch> Factor<'a, W> {
    /// The matrix, with room for what is filled in.
    pub fn new(heap: &Heap<'a, W>, mesh: &Mesh) -> Self {
        let fill = fill(mesh);
        let mut panels: Vec<Panel> = Vec::new();
        let mut panel = Vec::with_capacity(fill.len());
        for (column, rows) in fill.iter().enumerate() {
            let goes_on = |last: &Panel| {
                let before = &fill[column - 1];
                last.columns < WIDEST && before.first() == Some(&column) && before[1..] == rows[..]
            };
            match panels.last_mut().filter(|last| goes_on(last)) {
                Some(last) => last.columns += 1,
                None => panels.push(Panel {
                    first: column,
                    columns: 1,
                    rows: rows.len() + 1,
                    numbers: 0,
                    part: 0,
                    values: 0,
                }),
            }
            panel.push(panels.len() - 1);
        }
        let values: usize = panels.iter().map(|panel| panel.columns * panel.rows).sum();
        let (mut sizes, mut numbers) = (vec![0], 0);
        for panel in &mut panels {
            if sizes[sizes.len() - 1] >= values.div_ceil(PARTS) {
                sizes.push(0);
            }
            let part = sizes.len() - 1;
            (panel.part, panel.values, panel.numbers) = (part, sizes[part], numbers);
            sizes[part] += panel.columns * panel.rows;
            numbers += panel.rows;
        }
        let most = panels.iter().map(|panel| panel.rows).max().unwrap_or(0);
        let mut all = Self {
            panel,
            numbers: heap.array(numbers),
            parts: sizes.iter().map(|size| heap.array(*size)).collect(),
            update: heap.array(most),
            panels,
        };
        for panel in all.panels.clone() {
            for (n, row) in [panel.first].iter().chain(&fill[panel.first]).enumerate() {
                all.numbers.set(panel.numbers + n, *row as u32);
            }
            for column in 0..panel.columns {
                for row in column..panel.rows {
                    let number = all.numbers.get(panel.numbers + row) as usize;
                    if let Some(value) = mesh.entry(number, panel.first + column) {
                        all.set(&panel, row, column, value);
                    }
                }
            }
        }
        all
    }

    fn get(&self, panel: &Panel, row: usize, column: usize) -> f64 {
        self.parts[panel.part].get(panel.values + column * panel.rows + row)
    }

    fn set(&mut self, panel: &Panel, row: usize, column: usize, value: f64) {
        self.parts[panel.part].set(panel.values + column * panel.rows + row, value);
    }

    /// The value of a row and a column of the matrix.
    #[cfg(test)]
    pub fn at(&self, row: usize, column: usize) -> f64 {
        let panel = &self.panels[self.panel[column]];
        let found = (0..panel.rows).find(|n| self.numbers.data()[panel.numbers + n] as usize == row);
        found.map_or(0.0, |row| self.get(panel, row, column - panel.first))
    }

    /// Factors it in place.
    pub fn factor(&mut self) {
        // Panels by the next one that they change, with the first of their rows that is a column there.
        let mut waiting: Vec<Vec<(usize, usize)>> = vec![Vec::new(); self.panels.len()];
        for n in 0..self.panels.len() {
            let panel = self.panels[n];
            while let Some((other, mut row)) = waiting[n].pop() {
                let by = self.panels[other];
                while self.changes(&by, row) == Some(n) {
                    self.change(&by, row);
                    row += 1;
                }
                if let Some(next) = self.changes(&by, row) {
                    waiting[next].push((other, row));
                }
            }
            self.finish(&panel);
            if let Some(next) = self.changes(&panel, panel.columns) {
                waiting[next].push((n, panel.columns));
            }
        }
    }

    /// The panel of which a row of another one is a column.
    fn changes(&self, panel: &Panel, row: usize) -> Option<usize> {
        (row < panel.rows).then(|| self.panel[self.numbers.get(panel.numbers + row) as usize])
    }

    /// The panel's own columns, which all before it have changed already.
    fn finish(&mut self, panel: &Panel) {
        for k in 0..panel.columns {
            let root = self.get(panel, k, k).sqrt();
            for row in k..panel.rows {
                let value = self.get(panel, row, k) / root;
                // The diagonal is the root itself.
                self.set(panel, row, k, if row == k { root } else { value });
            }
            for column in k + 1..panel.columns {
                let factor = self.get(panel, column, k);
                for row in column..panel.rows {
                    let value = self.get(panel, row, column) - factor * self.get(panel, row, k);
                    self.set(panel, row, column, value);
                }
            }
        }
    }

    /// What the panel takes from the column that is the number of this row of its own.
    fn change(&mut self, panel: &Panel, row: usize) {
        for n in row..panel.rows {
            self.update.set(n - row, 0.0);
        }
        for column in 0..panel.columns {
            let factor = self.get(panel, row, column);
            for n in row..panel.rows {
                let value = factor * self.get(panel, n, column);
                self.update.change(n - row, |sum| sum + value);
            }
        }
        let number = self.numbers.get(panel.numbers + row) as usize;
        let other = self.panels[self.panel[number]];
        let (column, mut place) = (number - other.first, 0);
        for n in row..panel.rows {
            // The other panel has each of these rows.
            let number = self.numbers.get(panel.numbers + n);
            while self.numbers.get(other.numbers + place) != number {
                place += 1;
            }
            let value = self.get(&other, place, column) - self.update.get(n - row);
            self.set(&other, place, column, value);
        }
    }
}

pub fn cholesky<W: Watch>(heap: &Heap<'_, W>, side: usize) -> u64 {
    let mut factor = Factor::new(heap, &Mesh::new(side));
    factor.factor();
    factor.parts.iter().flat_map(|part| part.data()).fold(0, |sum, value| fold(sum, *value))
}
