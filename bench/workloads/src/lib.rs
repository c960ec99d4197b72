//! The list of workloads: what the guest's program (`main.rs`) can do, and what `pal workload list` shows.
//!
//! The published policies were measured with SPEC CPU, which is licensed and therefore absent. The first workloads have one
//! trait of those programs each, in a pure form; the others are real programs from Debian's packages, with input that is made
//! in the guest. The list says what each stands in for, and why it may.

pub mod science;

/// What a workload suffers from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Misses of the TLB, with hardly a change of page tables: shadow paging should win.
    Tlb,
    /// Changes of page tables and of address spaces: nested paging should win.
    Paging,
    /// Both in turn: a policy that changes can be ahead of either.
    Phases,
    /// Neither: no policy may cost anything.
    Indifferent,
}

impl Kind {
    /// A word or two.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Tlb => "TLB-bound",
            Kind::Paging => "paging-bound",
            Kind::Phases => "phases",
            Kind::Indifferent => "indifferent",
        }
    }
}

/// A workload.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// Its name on command lines.
    pub name: &'static str,
    /// What it suffers from.
    pub kind: Kind,
    /// What it does at scale 1.
    pub work: &'static str,
    /// Which published workload it stands in for, and why.
    pub stands_for: &'static str,
    /// The programs that it runs, if they are not part of ours.
    pub programs: Option<Programs>,
}

/// Programs of Debian's.
#[derive(Clone, Copy, Debug)]
pub struct Programs {
    /// The package that is looked for first.
    pub package: &'static str,
    /// Beginnings of the names of packages that it depends on and that are wanted as well; libraries always are.
    pub with: &'static [&'static str],
    /// Names of the files that are executed.
    pub files: &'static [&'static str],
}

/// A workload of the list.
const fn workload(name: &'static str, kind: Kind, work: &'static str, stands_for: &'static str) -> Workload {
    Workload { name, kind, work, stands_for, programs: None }
}

/// One that runs real programs.
const fn program(
    programs: Programs,
    name: &'static str,
    kind: Kind,
    work: &'static str,
    stands_for: &'static str,
) -> Workload {
    Workload { name, kind, work, stands_for, programs: Some(programs) }
}

/// What Python's scripts take beside libraries.
const PYTHON: &[&str] = &["python3", "libpython3"];

/// All workloads, in the order of the list.
pub const WORKLOADS: &[Workload] = &[
    workload(
        "gups",
        Kind::Tlb,
        "3 million updates of random words of 256 MiB",
        "HPCC RandomAccess: no locality, so that nearly each access misses TLB and caches",
    ),
    workload(
        "chase",
        Kind::Tlb,
        "10 million loads, each the address of the next, 2048 lines, one in every 32 pages of 256 MiB",
        "429.mcf and 471.omnetpp: a hot set of small nodes strewn over much memory, which fits a cache but no TLB",
    ),
    workload(
        "spmv",
        Kind::Tlb,
        "2 products of a sparse matrix of 2^18 rows, 8 entries in each, with a vector of 128 MiB",
        "450.soplex and 436.cactusADM: sparse algebra with gathers from a vector beyond the TLB",
    ),
    workload(
        "bfs",
        Kind::Tlb,
        "2 breadth-first searches of a random graph of 2^17 vertices of 1 KiB and 2^20 edges",
        "Graph500 and 473.astar: each edge leads to another page",
    ),
    workload(
        "fork-exec",
        Kind::Paging,
        "100 processes, each forked and executed again, one after the other",
        "the shell scripts and `make` around 403.gcc and kernbench: an address space for a moment's work",
    ),
    workload(
        "mmap-churn",
        Kind::Paging,
        "150 mappings of 256 pages, each written, protected, written again and unmapped",
        "the allocation of 403.gcc and 253.perlbmk: memory comes from the kernel and goes back",
    ),
    workload(
        "fork-server",
        Kind::Paging,
        "200 children of a parent of 8 MiB, each writing to 32 of its pages",
        "servers that fork for each request, as those of SPECweb and of LMbench's lat_proc",
    ),
    workload(
        "copy-on-write",
        Kind::Paging,
        "40 children, each writing to all of 1024 pages that it shares with its parent",
        "redis that saves its memory, and 176.gcc: faults on pages that are there, but may not be written",
    ),
    workload(
        "phases",
        Kind::Phases,
        "chase and mmap-churn in turn, 3 times each",
        "403.gcc: passes that allocate and passes that walk what was allocated; each side is better for a while",
    ),
    workload(
        "phases-fork",
        Kind::Phases,
        "bfs and fork-server in turn, 2 times each",
        "a build that starts its tools between long computations, as kernbench with 471.omnetpp",
    ),
    workload(
        "neighbours",
        Kind::Phases,
        "400 processes, each forked, executed and filling 1 MiB, and beside them 16 million loads as those of chase",
        "a build beside a program that computes, as kernbench beside 429.mcf: each wants another engine",
    ),
    workload(
        "matmul",
        Kind::Indifferent,
        "6 products of matrices of 160 rows and columns, in the first caches",
        "416.gamess and 444.namd: computing in a small working set",
    ),
    workload(
        "sha256",
        Kind::Indifferent,
        "SHA-256 of 16 KiB, 400 times over",
        "456.hmmer and 464.h264ref: integer loops in a small working set",
    ),
    workload(
        "store",
        Kind::Tlb,
        "300 thousand requests at random keys of a store of 128 MiB, which gives 1 MiB back in every 4096th and takes another",
        "memcached under load: lookups miss the TLB, items are evicted, and slabs come from the kernel and go back",
    ),
    workload(
        "anneal",
        Kind::Tlb,
        "300 thousand moves of simulated annealing on a netlist of 2^17 elements in 64 MiB",
        "PARSEC's canneal: two random elements and their neighbours for each move, in memory that stays",
    ),
    workload(
        "dedup",
        Kind::Paging,
        "64 MiB of a stream in memory, cut into chunks by their content, looked up among 131 thousand, the new ones compressed",
        "PARSEC's dedup: references into one input, a table of all chunks, buffers that are freed when they have been written",
    ),
    workload(
        "dedup-maps",
        Kind::Paging,
        "16 MiB of a stream cut into chunks by their content, of which the new ones are compressed, each in memory of its own",
        "dedup where each piece that a stage hands on is a mapping: the harder case, of which no paper has figures",
    ),
    program(
        Programs { package: "cpp", with: &["cpp-"], files: &["cc1"] },
        "gcc",
        Kind::Paging,
        "cc1 -O2 on 2 files of 6 preprocessed functions in C, one after the other",
        "403.gcc and 176.gcc, which are GCC on preprocessed sources, and the builds of kernbench",
    ),
    program(
        Programs { package: "gzip", with: &[], files: &["gzip"] },
        "gzip",
        Kind::Indifferent,
        "1.5 MiB of text compressed and unpacked again",
        "164.gzip, which is the same program",
    ),
    program(
        Programs { package: "bzip2", with: &[], files: &["bzip2"] },
        "bzip2",
        Kind::Tlb,
        "768 KiB of text compressed and unpacked again",
        "401.bzip2 and 256.bzip2, which are the same program: blocks are sorted and gathered across some MiB",
    ),
    program(
        Programs { package: "perl-base", with: &[], files: &["perl"] },
        "perl",
        Kind::Tlb,
        "a script counts, matches and sorts the words of 64 KiB of text",
        "400.perlbench and 253.perlbmk, which are perl on scripts for mail and text",
    ),
    program(
        Programs { package: "python3-minimal", with: PYTHON, files: &["python3"] },
        "python",
        Kind::Indifferent,
        "a script makes trees, dictionaries and large numbers, 12 times over",
        "no program of the papers: an interpreter that allocates many small objects, as 400.perlbench does",
    ),
    program(
        Programs { package: "sqlite3", with: &[], files: &["sqlite3"] },
        "sqlite",
        Kind::Paging,
        "10 thousand rows inserted, indexed, joined, changed and deleted, in a file with a journal",
        "255.vortex: a database with its trees of pages in memory",
    ),
    program(
        Programs { package: "redis-server", with: &["redis-"], files: &["redis-server", "redis-benchmark"] },
        "redis",
        Kind::Paging,
        "redis-benchmark, 500 requests of each kind at random keys, by 8 clients",
        "no program of SPEC CPU: a server in memory, whose time is system calls and hash tables, as memcached in later papers",
    ),
    program(
        Programs { package: "python3-numpy", with: PYTHON, files: &["python3"] },
        "numpy",
        Kind::Indifferent,
        "a script multiplies, solves, sorts and transforms arrays of up to 2 MiB, 8 times over",
        "programs of science that are scripts: their time is passes over arrays, which come from the kernel and go back",
    ),
    program(
        Programs { package: "python3-pyfftw", with: PYTHON, files: &["python3"] },
        "fftw",
        Kind::Tlb,
        "FFTW transforms vectors, planes and cubes of 4 to 8 MiB there and back, 4 times over",
        "FFTW's own benchmark, which Debian has no package of, and SPLASH-2's fft: strides of many pages",
    ),
    program(
        Programs { package: "lammps", with: &["liblammps"], files: &["lmp"] },
        "lammps",
        Kind::Indifferent,
        "LAMMPS, 100 steps of 4000 atoms of a Lennard-Jones liquid, which is LAMMPS' own benchmark `lj`",
        "435.gromacs and 444.namd: molecular dynamics, lists of neighbours over a few MiB",
    ),
];

/// The stand-ins of [`science`] as workloads, at scales up to 8.
pub const STAND_INS: [Workload; science::PROGRAMS.len()] = {
    let mut all = [WORKLOADS[0]; science::PROGRAMS.len()];
    let mut at = 0;
    while at < all.len() {
        let science::Program { name, work, .. } = science::PROGRAMS[at];
        all[at] = workload(name, Kind::Indifferent, work, "the program of SPLASH-2x with this name");
        at += 1;
    }
    all
};

/// The one of [`science`] that stands in for none.
pub const PASSES: Workload = workload(
    science::PASSES.name,
    Kind::Indifferent,
    science::PASSES.work,
    "programs that go over more data than memory holds, again and again: page replacement is to keep a part of it",
);

/// All of them: [`WORKLOADS`], then [`STAND_INS`], then [`PASSES`].
pub fn all() -> impl Iterator<Item = &'static Workload> {
    const { WORKLOADS }.iter().chain(const { &STAND_INS }).chain([&PASSES])
}

/// The workload of this name.
pub fn find(name: &str) -> Option<&'static Workload> {
    all().find(|workload| workload.name == name)
}

/// Where the guest has a link to each file of [`Programs`], by its name.
pub const PROGRAMS: &str = "/program";
/// Where the guest kit lies, a kernel module that counts page faults, if the guest is to load it (docs/guest-kit.md).
pub const KIT: &str = "/palimpsest.ko";
/// Where the program prints its record: this and a JSON object with the keys `workload`, `scale_milli`, `checksum`,
/// `tsc_begin`, `tsc_end`; or `error`.
pub const MARK: &str = "@workload ";
/// The number under which a lab machine counts the work (docs/lab.md).
pub const REGION: u64 = 0;
/// Thousandths of the scale, at least and at most.
pub const SCALES: std::ops::RangeInclusive<u32> = 1..=1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_words() {
        for (at, workload) in all().enumerate() {
            assert!(all().take(at).all(|other| other.name != workload.name), "{}", workload.name);
            let is_word = |name: &str| {
                name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
            };
            assert!(is_word(workload.name) && !workload.stands_for.is_empty() && !workload.work.is_empty());
        }
        assert!(find("gups").is_some() && find("Gups").is_none());
    }
}
