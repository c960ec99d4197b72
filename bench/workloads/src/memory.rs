//! Workloads that miss the TLB: their memory is there before the work begins, and stays.

use std::io;

use crate::{
    Work,
    random::Random,
    sys::{Area, PAGE},
};

/// Random updates.
pub fn gups(rounds: u64) -> io::Result<Work> {
    const WORDS: usize = (256 << 20) / size_of::<u64>();
    let mut table = Area::new(WORDS * size_of::<u64>())?;
    table.settle();
    Ok(Box::new(move || {
        let (words, mut random, mut sum) = (table.words(), Random::new(0x9e37_79b9_7f4a_7c15), 0u64);
        for _ in 0..rounds {
            let at = random.below(WORDS);
            words[at] ^= random.next();
            sum = sum.wrapping_add(words[at]);
        }
        Ok(sum)
    }))
}

/// A chain through pages, one line in each.
pub fn chase(rounds: u64) -> io::Result<Work> {
    let mut chain = Chain::new()?;
    Ok(Box::new(move || Ok(chain.follow(rounds))))
}

/// Lines of which each leads to another. They fit the second cache of most machines. But there is one in every 32 pages, so that
/// neither TLBs nor nested TLBs hold their pages: what a step takes is a walk.
pub struct Chain {
    area: Area,
    at: usize,
}

impl Chain {
    const LINES: usize = 2048;
    /// Words from one line to the next, but for its place within the page.
    const APART: usize = 32 * PAGE / size_of::<u64>();

    /// All lines are in one cycle. The pages between them are there, too: without them the others would lie side by side in
    /// the guest's memory.
    pub fn new() -> io::Result<Chain> {
        let mut area = Area::new(Self::LINES * Self::APART * size_of::<u64>())?;
        area.settle();
        let words = area.words();
        // A linear congruence of full period (Hull and Dobell: an odd step, a factor of 4n + 1).
        let mut next: usize = 1_013_904_223;
        for line in 0..Self::LINES {
            words[Self::word(line)] = Self::word(next & (Self::LINES - 1)) as u64;
            next = next.wrapping_add(1_664_525);
        }
        Ok(Chain { area, at: Self::word(0) })
    }

    /// Where a line is: at another place in its page, and in another of its 32 pages, because lines at one distance would
    /// fall into a few sets of a cache and miss it.
    fn word(line: usize) -> usize {
        const PLACES: usize = PAGE / 64;
        (line / PLACES % 32 * PAGE + line % PLACES * 64) / size_of::<u64>() + line * Self::APART
    }

    /// Goes on for this many lines; where that led.
    pub fn follow(&mut self, steps: u64) -> u64 {
        let words = self.area.words();
        let mut sum = 0u64;
        for _ in 0..steps {
            self.at = words[self.at] as usize;
            sum = sum.rotate_left(1) ^ self.at as u64;
        }
        sum
    }
}

/// Products of a sparse matrix with a vector: integers, so that the checksum is exact.
pub fn spmv(rounds: u64) -> io::Result<Work> {
    const ROWS: usize = 1 << 18;
    const ENTRIES: usize = 8;
    // The vector's elements are apart, as those of a vector of structures are: 128 MiB.
    const STRIDE: usize = 64;
    let mut columns = Area::new(ROWS * ENTRIES * size_of::<u64>() / 2)?;
    let mut vector = Area::new(ROWS * STRIDE * size_of::<u64>())?;
    let mut random = Random::new(7);
    // Two columns in a word.
    columns.words().fill_with(|| (random.below(ROWS) | random.below(ROWS) << 32) as u64);
    vector.words().iter_mut().step_by(STRIDE).enumerate().for_each(|(at, element)| *element = at as u64);
    columns.settle();
    vector.settle();
    Ok(Box::new(move || {
        let mut sum = 0u64;
        for round in 0..rounds {
            let (columns, vector) = (columns.words(), vector.words());
            for (row, pairs) in columns.chunks_exact(ENTRIES / 2).enumerate() {
                let element = |column: u64| vector[(column as usize & (ROWS - 1)) * STRIDE];
                let product = pairs.iter().fold(0u64, |product, pair| {
                    product.wrapping_add(element(*pair)).wrapping_add(element(pair >> 32).rotate_left(1))
                });
                sum = sum.wrapping_mul(31).wrapping_add(product);
                vector[row * STRIDE] = product ^ round;
            }
        }
        Ok(sum)
    }))
}

/// Breadth-first searches.
pub fn bfs(rounds: u64) -> io::Result<Work> {
    let mut graph = Graph::new()?;
    Ok(Box::new(move || {
        Ok((0..rounds).fold(0, |sum: u64, _| sum.wrapping_mul(31).wrapping_add(graph.search())))
    }))
}

/// A random graph: each vertex is a structure of 1 KiB, of which the first line has its level and its edges.
pub struct Graph {
    vertices: Area,
    queue: Area,
    searches: u64,
}

impl Graph {
    const VERTICES: usize = 1 << 17;
    /// Words of a vertex: the level, two edges in each of four words, and room for what a vertex is about: 128 MiB.
    const WORDS: usize = 128;
    /// A level is the number of the search above this bit, and the distance from the root below.
    const SEARCH: u32 = 32;

    /// All vertices are there.
    pub fn new() -> io::Result<Graph> {
        let bytes = Self::VERTICES * size_of::<u64>();
        let (mut vertices, mut queue) = (Area::new(bytes * Self::WORDS)?, Area::new(bytes)?);
        let mut random = Random::new(11);
        for vertex in vertices.words().chunks_exact_mut(Self::WORDS) {
            vertex[1..5]
                .fill_with(|| (random.below(Self::VERTICES) | random.below(Self::VERTICES) << 32) as u64);
        }
        vertices.settle();
        queue.settle();
        Ok(Graph { vertices, queue, searches: 0 })
    }

    /// Visits what can be reached from a root, another one each time; the sum of the distances.
    pub fn search(&mut self) -> u64 {
        self.searches += 1;
        let (vertices, queue) = (self.vertices.words(), self.queue.words());
        let visited = self.searches << Self::SEARCH;
        let root = self.searches as usize * 12_345 % Self::VERTICES;
        vertices[root * Self::WORDS] = visited;
        queue[0] = root as u64;
        let (mut first, mut last, mut sum) = (0, 1, 0u64);
        while first < last {
            let vertex = queue[first] as usize * Self::WORDS;
            first += 1;
            let level = vertices[vertex];
            sum = sum.wrapping_add(level & ((1 << Self::SEARCH) - 1));
            for edge in 0..8 {
                let to = vertices[vertex + 1 + edge / 2] >> (edge % 2 * 32) & 0xffff_ffff;
                let place = &mut vertices[to as usize * Self::WORDS];
                if *place < visited {
                    *place = level + 1;
                    queue[last] = to;
                    last += 1;
                }
            }
        }
        sum
    }
}
