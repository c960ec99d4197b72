//! Light: patches that exchange it, rays through a grid of spheres, rays through a volume.

use super::{Array, Heap, Watch, fold, noise};

/// Patches that a patch sees.
const SEEN: usize = 24;

pub fn radiosity<W: Watch>(heap: &Heap<'_, W>, patches: usize) -> u64 {
    // Of a patch: emission, reflectance, light now and before, and its place.
    const WORDS: usize = 8;
    let mut patch = heap.array::<f64>(patches * WORDS);
    let (mut seen, mut factors) = (heap.array::<u32>(patches * SEEN), heap.array::<f64>(patches * SEEN));
    for p in 0..patches {
        patch.set(p * WORDS, if p % 97 == 0 { 10.0 } else { 0.0 });
        patch.set(p * WORDS + 1, 0.3 + 0.5 * noise(13, p));
        for n in 0..SEEN {
            let at = p * SEEN + n;
            // Most are near, in the order of patches; some are on the other side of the room.
            let far = (noise(14, at) * patches as f64) as usize;
            let near = (p + (noise(15, at) * 400.0) as usize) % patches;
            seen.set(at, if n % 6 == 0 { far } else { near }.min(patches - 1) as u32);
            factors.set(at, noise(16, at) / SEEN as f64);
        }
    }
    for round in 0..12 {
        let (now, before) = (2 + round % 2, 3 - round % 2);
        for p in 0..patches {
            let mut light = 0.0;
            for at in p * SEEN..(p + 1) * SEEN {
                light += factors.get(at) * patch.get(seen.get(at) as usize * WORDS + before);
            }
            let reflected = light * patch.get(p * WORDS + 1);
            let emitted = patch.get(p * WORDS);
            patch.set(p * WORDS + now, emitted + reflected);
        }
    }
    (0..patches).fold(0, |sum, p| fold(sum, patch.data()[p * WORDS + 2]))
}

const SPHERES: usize = 4000;
/// Cells of the grid in each direction.
const CELLS: usize = 32;

struct Scene<'a, W: Watch> {
    /// Centre, radius, brightness.
    spheres: Array<'a, f64, W>,
    /// Where the list of each cell begins; one more for the end.
    begins: Array<'a, u32, W>,
    lists: Array<'a, u32, W>,
}

const WORDS: usize = 5;

impl<'a, W: Watch> Scene<'a, W> {
    fn new(heap: &Heap<'a, W>) -> Self {
        let mut spheres = heap.array::<f64>(SPHERES * WORDS);
        let mut cells = vec![vec![]; CELLS * CELLS * CELLS];
        for n in 0..SPHERES {
            let word = |word| noise(17, n * WORDS + word);
            let sphere = [word(0), word(1), word(2), 0.004 + 0.012 * word(3), 0.2 + 0.8 * word(4)];
            (0..WORDS).for_each(|word| spheres.set(n * WORDS + word, sphere[word]));
            let range = |axis: usize| {
                let cell = |at: f64| (at.clamp(0.0, 0.999_999) * CELLS as f64) as usize;
                cell(sphere[axis] - sphere[3])..=cell(sphere[axis] + sphere[3])
            };
            for x in range(0) {
                for y in range(1) {
                    range(2).for_each(|z| cells[(x * CELLS + y) * CELLS + z].push(n as u32));
                }
            }
        }
        let mut begins = heap.array(cells.len() + 1);
        let mut lists = heap.array(cells.iter().map(Vec::len).sum());
        let mut end = 0;
        for (cell, list) in cells.iter().enumerate() {
            begins.set(cell, end as u32);
            for n in list {
                lists.set(end, *n);
                end += 1;
            }
        }
        begins.set(cells.len(), end as u32);
        Self { spheres, begins, lists }
    }

    /// The nearest sphere on a ray, its distance and its number; the ray's direction has the length 1.
    fn hit(&self, from: [f64; 3], direction: [f64; 3]) -> Option<(f64, usize)> {
        // Through the cells, in steps shorter than a cell; a cell that was just looked at is not looked at again.
        let mut last = usize::MAX;
        let mut best: Option<(f64, usize)> = None;
        let mut at = 0.0;
        while at < 1.8 {
            let point = [0, 1, 2].map(|axis| from[axis] + at * direction[axis]);
            at += 0.5 / CELLS as f64;
            if point.iter().any(|part| !(0.0..1.0).contains(part)) {
                continue;
            }
            let cell = point.iter().fold(0, |cell, part| cell * CELLS + (part * CELLS as f64) as usize);
            if cell == last {
                continue;
            }
            last = cell;
            for entry in self.begins.get(cell)..self.begins.get(cell + 1) {
                let n = self.lists.get(entry as usize) as usize;
                let [x, y, z, radius] = [0, 1, 2, 3].map(|word| self.spheres.get(n * WORDS + word));
                let to = [x - from[0], y - from[1], z - from[2]];
                let along: f64 = (0..3).map(|axis| to[axis] * direction[axis]).sum();
                let square: f64 = to.iter().map(|part| part * part).sum::<f64>() - along * along;
                let inside = radius * radius - square;
                if inside > 0.0 {
                    let distance = along - inside.sqrt();
                    if distance > 1e-6 && best.is_none_or(|(nearest, _)| distance < nearest) {
                        best = Some((distance, n));
                    }
                }
            }
            if best.is_some_and(|(nearest, _)| nearest < at) {
                return best;
            }
        }
        best
    }
}

fn unit(vector: [f64; 3]) -> [f64; 3] {
    let length = vector.iter().map(|part| part * part).sum::<f64>().sqrt();
    vector.map(|part| part / length)
}

pub fn raytrace<W: Watch>(heap: &Heap<'_, W>, side: usize) -> u64 {
    const TILE: usize = 16;
    let scene = Scene::new(heap);
    let mut image = heap.array::<f64>(side * side);
    let light = unit([0.4, 0.5, -1.0]);
    let tiles = side.div_ceil(TILE);
    for tile in 0..tiles * tiles {
        for pixel in 0..TILE * TILE {
            let (i, j) = (tile / tiles * TILE + pixel / TILE, tile % tiles * TILE + pixel % TILE);
            if i >= side || j >= side {
                continue;
            }
            let (mut from, mut strength, mut value) = ([0.5, 0.5, -0.7], 1.0, 0.0);
            let towards = |n: usize| (n as f64 + 0.5) / side as f64 - 0.5;
            let mut direction = unit([towards(i), towards(j), 0.7]);
            for _ in 0..3 {
                let Some((distance, n)) = scene.hit(from, direction) else { break };
                let point = [0, 1, 2].map(|axis| from[axis] + distance * direction[axis]);
                let normal = unit([0, 1, 2].map(|axis| point[axis] - scene.spheres.get(n * WORDS + axis)));
                let shade: f64 = (0..3).map(|axis| normal[axis] * light[axis]).sum::<f64>().max(0.0);
                let lit = shade > 0.0 && scene.hit(point, light).is_none();
                value += strength * scene.spheres.get(n * WORDS + 4) * (0.1 + if lit { shade } else { 0.0 });
                let along: f64 = (0..3).map(|axis| normal[axis] * direction[axis]).sum();
                direction = unit([0, 1, 2].map(|axis| direction[axis] - 2.0 * along * normal[axis]));
                (from, strength) = (point, strength * 0.4);
            }
            image.set(i * side + j, value);
        }
    }
    image.data().iter().fold(0, |sum, value| fold(sum, *value))
}

/// Voxels of a block in each direction, of which is known whether all are clear.
const BRICK: usize = 8;

pub fn volrend<W: Watch>(heap: &Heap<'_, W>, side: usize) -> u64 {
    let side = side / BRICK * BRICK;
    let bricks = side / BRICK;
    let (mut density, mut opacity) =
        (heap.array::<u16>(side * side * side), heap.array::<f32>(side * side * side));
    let mut filled = heap.array::<u8>(bricks * bricks * bricks);
    // Shells around the middle, with noise.
    let middle = side as f64 / 2.0;
    for n in 0..side * side * side {
        let [x, y, z] =
            [n / side / side, n / side % side, n % side].map(|part| (part as f64 - middle) / middle);
        let square = x * x + y * y + z * z;
        let shell = if (0.2..0.3).contains(&square) || (0.6..0.7).contains(&square) { 600.0 } else { 0.0 };
        density.set(n, (shell * (0.5 + noise(18, n))) as u16);
    }
    // Opacity from density and its gradient.
    for x in 1..side - 1 {
        for y in 1..side - 1 {
            for z in 1..side - 1 {
                let at = (x * side + y) * side + z;
                let step = |by: usize| f32::from(density.get(at + by)) - f32::from(density.get(at - by));
                let gradient = step(side * side).abs() + step(side).abs() + step(1).abs();
                let value = f32::from(density.get(at)) / 4000.0 * (gradient / 1000.0).min(1.0);
                opacity.set(at, value);
                if value > 0.0 {
                    filled.set((x / BRICK * bricks + y / BRICK) * bricks + z / BRICK, 1);
                }
            }
        }
    }
    let mut sum = 0;
    for view in 0..4 {
        let mut image = heap.array::<f64>(side * side);
        for pixel in 0..side * side {
            let (i, j) = (pixel / side, pixel % side);
            let (mut light, mut depth) = (0.0, 0);
            let mut clear = 1.0;
            while depth < side && clear > 0.05 {
                let [x, y, z] = match view {
                    0 => [depth, i, j],
                    1 => [i, depth, j],
                    2 => [i, j, depth],
                    _ => [(i + depth) % side, j, side - 1 - depth],
                };
                if filled.get((x / BRICK * bricks + y / BRICK) * bricks + z / BRICK) == 0 {
                    // To the end of the brick, along this axis.
                    depth += if view == 3 { 1 } else { BRICK - depth % BRICK };
                    continue;
                }
                let at = (x * side + y) * side + z;
                let stops = f64::from(opacity.get(at));
                if stops > 0.0 {
                    light += clear * stops * f64::from(density.get(at)) / 1000.0;
                    clear *= 1.0 - stops.min(1.0);
                }
                depth += 1;
            }
            image.set(pixel, light);
        }
        sum = image.data().iter().fold(sum, |sum, value| fold(sum, *value));
    }
    sum
}
