//! Which VMs a figure has, and for how long they run.

/// The figure of a noisy VM that `partition` isolates.
pub const ISOLATED: &str = "region-fig38";
/// The figure of large programs that `balance` parts.
pub const BALANCED: &str = "region-fig29";

/// VMs begin at different moments: a noisy one lasts so much longer than the others, in milliseconds.
pub const SPREAD_MS: u64 = 200;

/// A figure's VMs, and the policy that they are run with and without.
#[derive(Debug)]
pub struct Cast {
    /// The figure's name.
    pub figure: &'static str,
    /// The policy of regions.
    pub policy: &'static str,
    /// The VMs.
    pub roles: &'static [Role],
    /// The short form.
    pub quick: Scene,
    /// The long one.
    pub whole: Scene,
}

/// A VM of one VCPU.
#[derive(Debug)]
pub struct Role {
    /// Its name.
    pub name: &'static str,
    /// What it does.
    pub part: Part,
    /// Loads from one exit that samples count to the next. The exit costs some thousand cycles, too.
    pub accesses: u64,
    /// Its weight.
    pub weight: i64,
    /// The processors that it is pinned to without regions: those of a package.
    pub pcpus: [i64; 2],
}

/// What a VM does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Memlat with a region of the point's size.
    Memlat,
    /// Memlat with a region of this many KiB, which fits the caches of its processor.
    Small(u64),
    /// Reads more memory than a cache holds, line by line.
    Noisy,
}

/// How a run goes.
#[derive(Clone, Copy, Debug)]
pub struct Scene {
    /// Modelled milliseconds before the part that is measured, of it, and after it.
    pub ms: [u64; 3],
    /// Milliseconds from a phase of regioning to the next.
    pub period_ms: u32,
    /// Size of a memlat's region, in twelfths of a cache.
    pub twelfths: &'static [u64],
}

impl Role {
    const fn new(name: &'static str, part: Part, weight: i64, pcpus: [i64; 2]) -> Role {
        let accesses = if let Part::Small(_) = part { 100_000 } else { 5000 };
        Role { name, part, accesses, weight, pcpus }
    }

    /// Whether its program counts what it does.
    pub fn is_memlat(&self) -> bool {
        self.part != Part::Noisy
    }
}

const FIRST: [i64; 2] = [0, 1];
const SECOND: [i64; 2] = [2, 3];

static CASTS: [Cast; 2] = [
    Cast {
        figure: ISOLATED,
        policy: "partition",
        // The weight of the noisy one is that of the others together, which makes a cache.
        roles: &[
            Role::new("noisy", Part::Noisy, 512, FIRST),
            Role::new("one", Part::Memlat, 256, FIRST),
            Role::new("two", Part::Memlat, 256, SECOND),
        ],
        quick: Scene { ms: [700, 500, 300], period_ms: 300, twelfths: &[4] },
        // With the hypervisor's own period.
        whole: Scene { ms: [1500, 2000, 300], period_ms: 1000, twelfths: &[2, 4, 5] },
    },
    Cast {
        figure: BALANCED,
        policy: "balance",
        roles: &[
            Role::new("one", Part::Memlat, 256, FIRST),
            Role::new("two", Part::Memlat, 256, FIRST),
            Role::new("small", Part::Small(16), 256, SECOND),
            Role::new("tiny", Part::Small(16), 256, SECOND),
        ],
        quick: Scene { ms: [700, 500, 300], period_ms: 300, twelfths: &[9] },
        whole: Scene { ms: [1500, 2000, 300], period_ms: 1000, twelfths: &[8, 9, 10] },
    },
];

/// The VMs of a figure; `None`: it is not one with several.
pub fn of(figure: &str) -> Option<&'static Cast> {
    CASTS.iter().find(|cast| cast.figure == figure)
}
