//! The six-step transform: a matrix of side by side points is transposed, its rows transformed and twisted, and so again.

use super::{Array, Heap, Watch, fold, noise};

type Point = [f64; 2];

fn times([a, b]: Point, [c, d]: Point) -> Point {
    [a * c - b * d, a * d + b * c]
}

/// The first of this power of two roots of 1: by halving the angle.
fn root(points: usize) -> Point {
    let [mut cos, mut sin] = [-1.0f64, 0.0];
    let mut n = 2;
    while n < points {
        let half = ((1.0 + cos) / 2.0).sqrt();
        // Of a right angle's half on, the sine is that of the double angle.
        sin = if n == 2 { 1.0 } else { sin / (2.0 * half) };
        cos = half;
        n *= 2;
    }
    [cos, -sin]
}

/// Rows of a block of the transposition.
const BLOCK: usize = 8;

fn transpose<W: Watch>(from: &Array<'_, Point, W>, to: &mut Array<'_, Point, W>, side: usize) {
    for row in (0..side).step_by(BLOCK) {
        for column in (0..side).step_by(BLOCK) {
            for i in row..row + BLOCK {
                (column..column + BLOCK).for_each(|j| to.set(j * side + i, from.get(i * side + j)));
            }
        }
    }
}

/// Transforms a row in place; `roots` has those of 1, of which there are `side`.
fn row<W: Watch>(x: &mut Array<'_, Point, W>, begin: usize, side: usize, roots: &Array<'_, Point, W>) {
    let bits = side.trailing_zeros();
    for i in 0..side {
        let j = i.reverse_bits() >> (usize::BITS - bits);
        if i < j {
            let (a, b) = (x.get(begin + i), x.get(begin + j));
            x.set(begin + i, b);
            x.set(begin + j, a);
        }
    }
    let mut half = 1;
    while half < side {
        for group in (0..side).step_by(2 * half) {
            for n in 0..half {
                let (low, high) = (begin + group + n, begin + group + n + half);
                let ([a, b], [c, d]) = (x.get(low), times(x.get(high), roots.get(n * (side / 2 / half))));
                x.set(low, [a + c, b + d]);
                x.set(high, [a - c, b - d]);
            }
        }
        half *= 2;
    }
}

/// The transform of these points, a square number.
pub(super) fn transform<'a, W: Watch>(
    heap: &Heap<'a, W>,
    side: usize,
    point: impl Fn(usize) -> Point,
) -> Array<'a, Point, W> {
    let points = side * side;
    let (mut x, mut y) = (heap.array::<Point>(points), heap.array::<Point>(points));
    let (mut twist, mut roots) = (heap.array::<Point>(points), heap.array::<Point>(side));
    let step = root(points);
    let mut row_root = [1.0, 0.0];
    for i in 0..side {
        let mut now = [1.0, 0.0];
        for j in 0..side {
            x.set(i * side + j, point(i * side + j));
            twist.set(i * side + j, now);
            now = times(now, row_root);
        }
        row_root = times(row_root, step);
    }
    let (one, mut now) = (root(side), [1.0, 0.0]);
    for n in 0..side {
        roots.set(n, now);
        now = times(now, one);
    }
    transpose(&x, &mut y, side);
    for i in 0..side {
        row(&mut y, i * side, side, &roots);
        (i * side..(i + 1) * side).for_each(|at| y.set(at, times(y.get(at), twist.get(at))));
    }
    transpose(&y, &mut x, side);
    (0..side).for_each(|i| row(&mut x, i * side, side, &roots));
    transpose(&x, &mut y, side);
    y
}

pub fn six_step<W: Watch>(heap: &Heap<'_, W>, side: usize) -> u64 {
    let side = 1 << side.ilog2();
    let y = transform(heap, side, |n| [noise(3, n), noise(4, n)]);
    y.data().iter().fold(0, |sum, [a, b]| fold(fold(sum, *a), *b))
}
