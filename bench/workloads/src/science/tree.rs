//! Forces between many bodies: an octree whose distant cells count as one body, and a quadtree with multipole expansions.

use super::{Array, Heap, Watch, fold, noise};

/// Words of a body: position, mass, velocity, force.
const BODY: usize = 12;
/// Words of a cell: eight children, middle of mass, mass.
const CELL: usize = 12;

/// A child: 0 for none, the number of a cell, or minus the number of a body, each counted from 1.
struct Octree<'a, W: Watch> {
    cells: Array<'a, f64, W>,
    used: usize,
}

impl<W: Watch> Octree<'_, W> {
    fn new_cell(&mut self) -> usize {
        self.used += 1;
        (0..CELL).for_each(|word| self.cells.set((self.used - 1) * CELL + word, 0.0));
        self.used
    }

    /// The octant of a place in a cell, and its middle.
    fn octant(at: [f64; 3], middle: [f64; 3], size: f64) -> (usize, [f64; 3]) {
        let upper = [0, 1, 2].map(|axis| at[axis] >= middle[axis]);
        let octant = upper.iter().fold(0, |octant, upper| 2 * octant + usize::from(*upper));
        (octant, [0, 1, 2].map(|axis| middle[axis] + if upper[axis] { size / 4.0 } else { -size / 4.0 }))
    }

    fn insert(&mut self, bodies: &Array<'_, f64, W>, body: usize) {
        let at = place(bodies, body);
        let (mut cell, mut middle, mut size) = (1, [0.5; 3], 1.0);
        loop {
            let (octant, inner) = Self::octant(at, middle, size);
            let child = (cell - 1) * CELL + octant;
            let found = self.cells.get(child);
            (middle, size) = (inner, size / 2.0);
            if found == 0.0 {
                return self.cells.set(child, -(body as f64 + 1.0));
            }
            if found > 0.0 {
                cell = found as usize;
                continue;
            }
            // Two bodies in an octant: a cell for both. Bodies at one place share the smallest.
            if size < 1e-9 {
                return;
            }
            let other = (-found) as usize - 1;
            let new = self.new_cell();
            self.cells.set(child, new as f64);
            let (octant, _) = Self::octant(place(bodies, other), middle, size);
            self.cells.set((new - 1) * CELL + octant, found);
            cell = new;
        }
    }

    /// Sums up masses: mass, and place times mass.
    fn sum_up(&mut self, bodies: &Array<'_, f64, W>, cell: usize) -> [f64; 4] {
        let mut sum = [0.0; 4];
        for octant in 0..8 {
            let child = self.cells.get((cell - 1) * CELL + octant);
            let part = if child > 0.0 {
                self.sum_up(bodies, child as usize)
            } else if child < 0.0 {
                let body = (-child) as usize - 1;
                let ([x, y, z], mass) = (place(bodies, body), bodies.get(body * BODY + 3));
                [x * mass, y * mass, z * mass, mass]
            } else {
                continue;
            };
            (0..4).for_each(|word| sum[word] += part[word]);
        }
        for word in 0..3 {
            self.cells.set((cell - 1) * CELL + 8 + word, sum[word] / sum[3]);
        }
        self.cells.set((cell - 1) * CELL + 11, sum[3]);
        sum
    }

    /// The force on a body, by all within a child of this size.
    fn force(
        &self,
        bodies: &Array<'_, f64, W>,
        body: usize,
        at: [f64; 3],
        cell: usize,
        size: f64,
    ) -> [f64; 3] {
        let mut sum = [0.0; 3];
        for octant in 0..8 {
            let child = self.cells.get((cell - 1) * CELL + octant);
            let (there, mass) = if child > 0.0 {
                let begin = (child as usize - 1) * CELL + 8;
                let there = [0, 1, 2].map(|axis| self.cells.get(begin + axis));
                let square: f64 =
                    (0..3).map(|axis| (there[axis] - at[axis]) * (there[axis] - at[axis])).sum();
                // Seen under a small angle.
                if size * size / 4.0 > square {
                    let part = self.force(bodies, body, at, child as usize, size / 2.0);
                    (0..3).for_each(|axis| sum[axis] += part[axis]);
                    continue;
                }
                (there, self.cells.get(begin + 3))
            } else if child < 0.0 && (-child) as usize - 1 != body {
                let other = (-child) as usize - 1;
                (place(bodies, other), bodies.get(other * BODY + 3))
            } else {
                continue;
            };
            let apart = [0, 1, 2].map(|axis| there[axis] - at[axis]);
            let square: f64 = apart.iter().map(|part| part * part).sum::<f64>() + 1e-4;
            let strength = mass / (square * square.sqrt());
            (0..3).for_each(|axis| sum[axis] += strength * apart[axis]);
        }
        sum
    }
}

fn place<W: Watch>(bodies: &Array<'_, f64, W>, body: usize) -> [f64; 3] {
    [0, 1, 2].map(|axis| bodies.get(body * BODY + axis))
}

pub fn barnes<W: Watch>(heap: &Heap<'_, W>, count: usize) -> u64 {
    let mut bodies = heap.array::<f64>(count * BODY);
    // Cells need no more: two bodies in an octant are rare at great depth.
    let mut tree = Octree { cells: heap.array(count * 4 * CELL), used: 0 };
    for body in 0..count {
        for axis in 0..3 {
            // Denser in the middle.
            let at = (noise(19, body * 6 + axis) + noise(19, body * 6 + 3 + axis)) / 2.0;
            bodies.set(body * BODY + axis, at);
        }
        bodies.set(body * BODY + 3, 1.0 / count as f64);
    }
    for _ in 0..3 {
        tree.used = 0;
        tree.new_cell();
        (0..count).for_each(|body| tree.insert(&bodies, body));
        tree.sum_up(&bodies, 1);
        for body in 0..count {
            let force = tree.force(&bodies, body, place(&bodies, body), 1, 1.0);
            (0..3).for_each(|axis| bodies.set(body * BODY + 8 + axis, force[axis]));
        }
        for body in 0..count {
            for axis in 0..3 {
                let pull = bodies.get(body * BODY + 8 + axis);
                bodies.change(body * BODY + 4 + axis, |old| old + 1e-3 * pull);
                let velocity = bodies.get(body * BODY + 4 + axis);
                bodies.change(body * BODY + axis, |old| (old + 1e-3 * velocity).clamp(0.0, 0.999_999));
            }
        }
    }
    (0..count * 3).fold(0, |sum, n| fold(sum, bodies.data()[n / 3 * BODY + n % 3]))
}

/// Terms of an expansion.
const TERMS: usize = 12;

type Complex = [f64; 2];

fn times([a, b]: Complex, [c, d]: Complex) -> Complex {
    [a * c - b * d, a * d + b * c]
}

fn plus([a, b]: Complex, [c, d]: Complex) -> Complex {
    [a + c, b + d]
}

fn minus([a, b]: Complex, [c, d]: Complex) -> Complex {
    [a - c, b - d]
}

fn inverse([a, b]: Complex) -> Complex {
    let square = a * a + b * b;
    [a / square, -b / square]
}

fn scaled([a, b]: Complex, by: f64) -> Complex {
    [a * by, b * by]
}

fn binomial(n: usize, k: usize) -> f64 {
    (0..k).fold(1.0, |product, i| product * (n - i) as f64 / (i + 1) as f64)
}

/// The expansions of all boxes: level by level, in each by rows; twice as many terms, outer ones first.
pub(super) struct Boxes<'a, W: Watch> {
    terms: Array<'a, Complex, W>,
    levels: usize,
}

impl<W: Watch> Boxes<'_, W> {
    fn number(level: usize, x: usize, y: usize) -> usize {
        // The levels before have (4^level - 1) / 3 boxes.
        ((1 << (2 * level)) - 1) / 3 + (x << level) + y
    }

    fn middle(level: usize, x: usize, y: usize) -> Complex {
        let side = (1 << level) as f64;
        [(x as f64 + 0.5) / side, (y as f64 + 0.5) / side]
    }

    fn read(&self, number: usize, half: usize) -> [Complex; TERMS] {
        let begin = (2 * number + half) * TERMS;
        std::array::from_fn(|term| self.terms.get(begin + term))
    }

    fn add(&mut self, number: usize, half: usize, more: &[Complex; TERMS]) {
        let begin = (2 * number + half) * TERMS;
        (0..TERMS).for_each(|term| self.terms.change(begin + term, |old| plus(old, more[term])));
    }

    /// From a box's children to the box.
    fn upwards(&mut self, level: usize, x: usize, y: usize) {
        for child in 0..4 {
            let (cx, cy) = (2 * x + child / 2, 2 * y + child % 2);
            let from = self.read(Self::number(level + 1, cx, cy), 0);
            let shift = minus(Self::middle(level + 1, cx, cy), Self::middle(level, x, y));
            let mut to = [[0.0; 2]; TERMS];
            for (k, term) in to.iter_mut().enumerate() {
                let mut power = [1.0, 0.0];
                for j in (0..=k).rev() {
                    *term = plus(*term, scaled(times(power, from[j]), binomial(k, j)));
                    power = times(power, shift);
                }
            }
            self.add(Self::number(level, x, y), 0, &to);
        }
    }

    /// From the boxes that are far from a box, but not from its parent.
    fn across(&mut self, level: usize, x: usize, y: usize) {
        let side = 1usize << level;
        let near = |at: usize| (at / 2 * 2).saturating_sub(2)..(at / 2 * 2 + 4).min(side);
        for ox in near(x) {
            for oy in near(y) {
                if ox.abs_diff(x) < 2 && oy.abs_diff(y) < 2 {
                    continue;
                }
                let from = self.read(Self::number(level, ox, oy), 0);
                let over = inverse(minus(Self::middle(level, x, y), Self::middle(level, ox, oy)));
                let mut to = [[0.0; 2]; TERMS];
                let mut begin = over;
                for (l, term) in to.iter_mut().enumerate() {
                    let mut power = begin;
                    for (k, outer) in from.iter().enumerate() {
                        *term = plus(*term, scaled(times(*outer, power), binomial(k + l, l)));
                        power = times(power, over);
                    }
                    if l % 2 == 1 {
                        *term = scaled(*term, -1.0);
                    }
                    begin = times(begin, over);
                }
                self.add(Self::number(level, x, y), 1, &to);
            }
        }
    }

    /// From a box's parent to the box.
    fn downwards(&mut self, level: usize, x: usize, y: usize) {
        let from = self.read(Self::number(level - 1, x / 2, y / 2), 1);
        let shift = minus(Self::middle(level, x, y), Self::middle(level - 1, x / 2, y / 2));
        let mut to = [[0.0; 2]; TERMS];
        for (l, term) in to.iter_mut().enumerate() {
            let mut power = [1.0, 0.0];
            for (m, inner) in from.iter().enumerate().skip(l) {
                *term = plus(*term, scaled(times(power, *inner), binomial(m, l)));
                power = times(power, shift);
            }
        }
        self.add(Self::number(level, x, y), 1, &to);
    }

    fn each(level: usize) -> impl Iterator<Item = (usize, usize)> {
        (0..1usize << (2 * level)).map(move |n| (n >> level, n & ((1 << level) - 1)))
    }
}

/// The field at each of these particles of charge 1: the sum of 1 / (z - z') over the others.
pub(super) fn field<'a, W: Watch>(
    heap: &Heap<'a, W>,
    count: usize,
    at: impl Fn(usize) -> Complex,
) -> Vec<(Complex, Complex)> {
    // Sixteen in a box.
    let levels = (2..10).find(|level| 16 << (2 * level) >= count).unwrap_or(9);
    let side = 1usize << levels;
    // Sorted by their boxes, as the program has them in lists of its boxes.
    let mut places: Vec<Complex> = (0..count).map(at).collect();
    let of = |[x, y]: Complex| ((x * side as f64) as usize * side) + (y * side as f64) as usize;
    places.sort_by_key(|place| of(*place));
    let mut particles = heap.array::<[f64; 5]>(count);
    (0..count).for_each(|n| particles.set(n, [places[n][0], places[n][1], 1.0, 0.0, 0.0]));
    let mut begins = heap.array::<u32>(side * side + 1);
    (0..=side * side).for_each(|b| begins.set(b, places.partition_point(|place| of(*place) < b) as u32));
    let mut boxes = Boxes { terms: heap.array(2 * TERMS * Boxes::<W>::number(levels + 1, 0, 0)), levels };
    let inside = |begins: &Array<'a, u32, W>, x: usize, y: usize| {
        let b = x * side + y;
        begins.get(b) as usize..begins.get(b + 1) as usize
    };
    for (x, y) in Boxes::<W>::each(levels) {
        let mut terms = [[0.0; 2]; TERMS];
        for n in inside(&begins, x, y) {
            let [px, py, charge, ..] = particles.get(n);
            let apart = minus([px, py], Boxes::<W>::middle(levels, x, y));
            let mut power = [charge, 0.0];
            for term in &mut terms {
                *term = plus(*term, power);
                power = times(power, apart);
            }
        }
        boxes.add(Boxes::<W>::number(levels, x, y), 0, &terms);
    }
    for level in (2..boxes.levels).rev() {
        Boxes::<W>::each(level).for_each(|(x, y)| boxes.upwards(level, x, y));
    }
    for level in 2..=boxes.levels {
        for (x, y) in Boxes::<W>::each(level) {
            boxes.across(level, x, y);
            if level > 2 {
                boxes.downwards(level, x, y);
            }
        }
    }
    for (x, y) in Boxes::<W>::each(levels) {
        let terms = boxes.read(Boxes::<W>::number(levels, x, y), 1);
        for n in inside(&begins, x, y) {
            let [px, py, charge, ..] = particles.get(n);
            let apart = minus([px, py], Boxes::<W>::middle(levels, x, y));
            let mut sum = terms.iter().rev().fold([0.0; 2], |sum, term| plus(times(sum, apart), *term));
            for ox in x.saturating_sub(1)..(x + 2).min(side) {
                for oy in y.saturating_sub(1)..(y + 2).min(side) {
                    for other in inside(&begins, ox, oy).filter(|other| *other != n) {
                        let [qx, qy, charge, ..] = particles.get(other);
                        sum = plus(sum, scaled(inverse(minus([px, py], [qx, qy])), charge));
                    }
                }
            }
            particles.set(n, [px, py, charge, sum[0], sum[1]]);
        }
    }
    particles.data().iter().map(|[x, y, _, fx, fy]| ([*x, *y], [*fx, *fy])).collect()
}

pub fn fmm<W: Watch>(heap: &Heap<'_, W>, count: usize) -> u64 {
    let all = field(heap, count, |n| [noise(20, n), noise(21, n)]);
    all.iter().fold(0, |sum, (_, [x, y])| fold(fold(sum, *x / count as f64), *y / count as f64))
}
