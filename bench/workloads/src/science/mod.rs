//! Programs that compute, with the access patterns of the SPLASH-2x programs, after which they are named: small, with one thread,
//! written for this. Their arrays tell who watches of each access, so that `cargo pal replace` can make page traces of them; with
//! `()` nothing is recorded, and they are plain programs.
//!
//! Each returns a checksum of its results, the same on every machine: arithmetic is that of IEEE 754, without libm.

mod dense;
mod fft;
mod grid;
mod heap;
mod particles;
mod passes;
mod rays;
mod sort;
mod sparse;
mod tree;

pub use heap::{Array, Global, Heap, LARGE, Watch};

/// A program.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// Its name on command lines.
    pub name: &'static str,
    /// What it does at scale 1.
    pub work: &'static str,
    /// The program of SPLASH-2x that it stands in for; `None`: one that the thesis on APR did not run.
    pub in_thesis: bool,
    which: Which,
}

#[derive(Clone, Copy, Debug)]
enum Which {
    Cholesky,
    Fft,
    LuContiguous,
    LuNot,
    OceanContiguous,
    OceanNot,
    Radiosity,
    Radix,
    Raytrace,
    Volrend,
    WaterNsquared,
    WaterSpatial,
    Barnes,
    Fmm,
    Passes,
}

const fn program(name: &'static str, which: Which, work: &'static str) -> Program {
    let in_thesis = !matches!(which, Which::Barnes | Which::Fmm);
    Program { name, work, in_thesis, which }
}

/// All of them: the twelve of the thesis, then two more.
pub const PROGRAMS: [Program; 14] = [
    program(
        "cholesky",
        Which::Cholesky,
        "factors the sparse matrix of a mesh of 128 by 128 nodes by supernodes",
    ),
    program("fft", Which::Fft, "a six-step transform of 2^18 points"),
    program(
        "lu-cb",
        Which::LuContiguous,
        "factors a dense matrix of 512 rows, in blocks of 16, each contiguous",
    ),
    program("lu-ncb", Which::LuNot, "the same, with the matrix by rows"),
    program(
        "ocean-cp",
        Which::OceanContiguous,
        "8 steps of currents on grids of 194 by 194, an allocation for each",
    ),
    program(
        "ocean-ncp",
        Which::OceanNot,
        "the same, with the grids in fewer allocations, interleaved by rows",
    ),
    program("radiosity", Which::Radiosity, "light exchanged between 6000 patches, 12 times over"),
    program("radix", Which::Radix, "sorts 2^19 keys by digits of 10 bits"),
    program("raytrace", Which::Raytrace, "a picture of 256 by 256 of 4000 spheres in a grid of cells"),
    program("volrend", Which::Volrend, "a volume of 96^3 cast in 4 pictures, each from another side"),
    program("water-nsquared", Which::WaterNsquared, "3 steps of 1536 molecules, each pair within half a box"),
    program("water-spatial", Which::WaterSpatial, "6 steps of 6144 molecules, in cells of a cutoff's size"),
    program("barnes", Which::Barnes, "3 steps of 4096 bodies in an octree"),
    program("fmm", Which::Fmm, "forces between 16384 particles by multipoles in a quadtree"),
];

/// One more, which stands in for none: what page replacement is to tell apart, and nothing else.
pub const PASSES: Program = Program {
    name: "passes",
    work: "6 passes over 64 MiB, and beside each page of them 4 accesses at random to 4 MiB",
    in_thesis: false,
    which: Which::Passes,
};

/// All of them, and [`PASSES`].
pub fn all() -> impl Iterator<Item = &'static Program> {
    const { &PROGRAMS }.iter().chain([&PASSES])
}

/// The program of this name.
pub fn find(name: &str) -> Option<&'static Program> {
    all().find(|program| program.name == name)
}

/// Runs a program, with this many thousandths of its extent in each direction; its checksum.
pub fn run<W: Watch>(program: &Program, scale_milli: u32, watch: &W) -> u64 {
    let heap = Heap::new(watch);
    let scaled = |extent: usize| (extent * scale_milli.clamp(1, 8000) as usize / 1000).max(16);
    match program.which {
        Which::Cholesky => sparse::cholesky(&heap, scaled(128)),
        Which::Fft => fft::six_step(&heap, scaled(512)),
        Which::LuContiguous => dense::lu(&heap, scaled(512), true),
        Which::LuNot => dense::lu(&heap, scaled(512), false),
        Which::OceanContiguous => grid::ocean(&heap, scaled(194), true),
        Which::OceanNot => grid::ocean(&heap, scaled(194), false),
        Which::Radiosity => rays::radiosity(&heap, scaled(6000)),
        Which::Radix => sort::radix(&heap, scaled(1 << 19)),
        Which::Raytrace => rays::raytrace(&heap, scaled(256)),
        Which::Volrend => rays::volrend(&heap, scaled(96)),
        Which::WaterNsquared => particles::water_nsquared(&heap, scaled(1536)),
        Which::WaterSpatial => particles::water_spatial(&heap, scaled(6144)),
        Which::Barnes => tree::barnes(&heap, scaled(4096)),
        Which::Fmm => tree::fmm(&heap, scaled(16384)),
        Which::Passes => passes::passes(&heap, scaled(16384)),
    }
}

/// Adds a result to a checksum, to six digits behind the point.
fn fold(sum: u64, value: f64) -> u64 {
    sum.rotate_left(5).wrapping_mul(0x0100_0000_01b3) ^ (value * 1e6).round() as i64 as u64
}

/// A number from 0 to below 1 that belongs to these.
fn noise(seed: u64, n: usize) -> f64 {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(n as u64);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((x ^ x >> 31) >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests;
