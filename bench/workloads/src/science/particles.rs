//! Molecules that push each other away, as water does, of 84 words each: all pairs within half a periodic box, or those in
//! neighbouring cells.

use super::{Array, Heap, Watch, fold, noise};

/// Words of a molecule: three atoms' positions, their derivatives up to the sixth, forces.
const WORDS: usize = 84;
const ATOMS: usize = 9;
const VELOCITY: usize = 9;
const FORCE: usize = 72;

/// The nearest image of a distance in a box of 1.
fn nearest(distance: f64) -> f64 {
    distance - distance.round()
}

/// The force between two molecules at this distance, on the first.
fn force([x, y, z]: [f64; 3], range: f64) -> [f64; 3] {
    let square = x * x + y * y + z * z;
    if square >= range * range || square == 0.0 {
        return [0.0; 3];
    }
    let strength = (range * range - square) / (square + 0.01);
    [x, y, z].map(|part| part * strength)
}

/// Advances a molecule by a step; all of its words are read and written, as by the predictor and the corrector of the program.
fn advance<W: Watch>(all: &mut Array<'_, f64, W>, begin: usize) {
    const STEP: f64 = 1e-4;
    for axis in 0..ATOMS {
        let pull = all.get(begin + FORCE + axis);
        all.change(begin + VELOCITY + axis, |old| 0.98 * old + STEP * pull);
        let velocity = all.get(begin + VELOCITY + axis);
        all.change(begin + axis, |old| {
            let new = old + STEP * velocity;
            if axis < 3 { new - new.floor() } else { new }
        });
    }
    for word in VELOCITY + ATOMS..FORCE {
        let lower = all.get(begin + word - ATOMS);
        all.change(begin + word, |old| 0.5 * (old + lower));
    }
    (0..ATOMS).for_each(|axis| all.set(begin + FORCE + axis, 0.0));
}

fn place<W: Watch>(all: &mut Array<'_, f64, W>, begin: usize, molecule: usize) {
    for word in 0..ATOMS {
        let near =
            if word < 3 { noise(11, molecule * 3 + word) } else { 0.01 * noise(12, molecule * 9 + word) };
        all.set(begin + word, near);
    }
}

fn position<W: Watch>(all: &Array<'_, f64, W>, begin: usize) -> [f64; 3] {
    [0, 1, 2].map(|axis| all.get(begin + axis))
}

/// Adds a force to all atoms of a molecule.
fn pull<W: Watch>(all: &mut Array<'_, f64, W>, begin: usize, by: [f64; 3], sign: f64) {
    for axis in 0..ATOMS {
        all.change(begin + FORCE + axis, |old| old + sign * by[axis % 3]);
    }
}

pub fn water_nsquared<W: Watch>(heap: &Heap<'_, W>, molecules: usize) -> u64 {
    let mut var = heap.array::<f64>(molecules * WORDS);
    (0..molecules).for_each(|molecule| place(&mut var, molecule * WORDS, molecule));
    for _ in 0..3 {
        for mol in 0..molecules {
            let at = position(&var, mol * WORDS);
            // Each pair once: the half of the others that follows.
            for i in mol + 1..=mol + molecules / 2 {
                let comp = i % molecules;
                if molecules.is_multiple_of(2) && i == mol + molecules / 2 && mol >= molecules / 2 {
                    continue;
                }
                let other = position(&var, comp * WORDS);
                let by = force([0, 1, 2].map(|axis| nearest(at[axis] - other[axis])), 0.1);
                if by != [0.0; 3] {
                    pull(&mut var, mol * WORDS, by, 1.0);
                    pull(&mut var, comp * WORDS, by, -1.0);
                }
            }
        }
        (0..molecules).for_each(|molecule| advance(&mut var, molecule * WORDS));
    }
    let positions = (0..molecules * 3).map(|n| var.data()[n / 3 * WORDS + n % 3]);
    positions.fold(0, fold)
}

pub fn water_spatial<W: Watch>(heap: &Heap<'_, W>, molecules: usize) -> u64 {
    // Ten molecules in a cell, and three cells in each direction at least.
    let mut side = 3;
    while (side + 1) * (side + 1) * (side + 1) * 10 <= molecules {
        side += 1;
    }
    let mut all: Vec<Array<'_, f64, W>> = (0..molecules).map(|_| heap.array(WORDS)).collect();
    // Lists of molecules, each ended by 0; a molecule's number is one more.
    let (mut heads, mut links) = (heap.array::<u32>(side * side * side), heap.array::<u32>(molecules + 1));
    all.iter_mut().enumerate().for_each(|(n, molecule)| place(molecule, 0, n));
    let cell_of = |at: [f64; 3]| {
        at.iter().fold(0, |cell, part| cell * side + ((part * side as f64) as usize).min(side - 1))
    };
    for _ in 0..6 {
        (0..heads.len()).for_each(|cell| heads.set(cell, 0));
        for (n, molecule) in all.iter().enumerate() {
            let cell = cell_of(position(molecule, 0));
            links.set(n + 1, heads.get(cell));
            heads.set(cell, n as u32 + 1);
        }
        for cell in 0..heads.len() {
            let coordinates = [cell / side / side, cell / side % side, cell % side];
            for neighbour in 0..27 {
                let moved = |axis: usize, step: usize| (coordinates[axis] + side + step - 1) % side;
                let (x, y, z) =
                    (moved(0, neighbour / 9), moved(1, neighbour / 3 % 3), moved(2, neighbour % 3));
                let other_cell = (x * side + y) * side + z;
                // Each pair of cells once.
                if other_cell < cell {
                    continue;
                }
                let mut one = heads.get(cell);
                while one != 0 {
                    let at = position(&all[one as usize - 1], 0);
                    let mut other =
                        if other_cell == cell { links.get(one as usize) } else { heads.get(other_cell) };
                    while other != 0 {
                        let there = position(&all[other as usize - 1], 0);
                        let apart = [0, 1, 2].map(|axis| nearest(at[axis] - there[axis]));
                        let by = force(apart, 1.0 / side as f64);
                        if by != [0.0; 3] {
                            pull(&mut all[one as usize - 1], 0, by, 1.0);
                            pull(&mut all[other as usize - 1], 0, by, -1.0);
                        }
                        other = links.get(other as usize);
                    }
                    one = links.get(one as usize);
                }
            }
        }
        all.iter_mut().for_each(|molecule| advance(molecule, 0));
    }
    let positions = all.iter().flat_map(|molecule| &molecule.data()[..3]);
    positions.fold(0, |sum, part| fold(sum, *part))
}
