//! Policies: which engine is to translate a VM's addresses, decided while it runs.
//!
//! A policy is pure: it is told of an [`Event`] with a [`Sample`] and returns a [`Decision`]; it reads no clock and no
//! hardware, takes no lock, and knows nothing of VCPUs. There is one for each VM, owned by `vm::translation`, which calls it
//! and stores what it wants. So it runs under `cargo test` on a recorded trace, and a wrong policy costs time, never
//! correctness: a change of the engine is right at any exit.
//!
//! To add one: a module here, a variant of [`Policy`], its name in [`Mode`] (the crate `abi`), and its
//! engines in [`engines_of`].

mod bandit;
mod dav2m;
mod dsp_sample;
#[cfg(any(test, feature = "testing"))]
mod fuzz;
mod interval;
mod linear;
#[cfg(test)]
mod modelled;
mod oracle;
mod random;
pub mod spaces;
mod switch;
#[cfg(test)]
mod tests;
mod threshold;
mod window;

use core::num::NonZeroU32;

use bandit::Bandit;
use dav2m::Dav2m;
use dsp_sample::DspSample;
use linear::Linear;
use oracle::Oracle;
use random::Random;
use switch::Switch;
use threshold::Threshold;

pub use abi::mode::{Mode, UnknownMode};
#[cfg(any(test, feature = "testing"))]
pub use fuzz::fuzz_one;
pub use linear::decide;
pub use random::split_mix;

use super::engine::{Engine, Engines};
use crate::arch::counters::Counts;

/// What a policy is told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The policy begins: the VM starts, is reset, or gets this policy from a person.
    Start,
    /// The VM's VCPUs have together made the exits that the policy asked for ([`Next::Exits`]).
    Exits,
    /// A period of samples is over ([`Next::Period`]).
    Period,
}

/// What is known of the VM since the last decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// The engine that is wanted now; the one in force may differ for as long as the processor cannot use it.
    pub engine: Engine,
    /// Exits of all VCPUs since the last decision.
    pub exits: u32,
    /// The last period of samples, if there are samples and one is over; with [`Event::Period`] the one that is over now.
    pub period: Option<Period>,
}

/// What the VM's VCPUs counted together in a period of samples (`vm::sampling`). Of performance counters an event that the
/// processor does not count is absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period {
    /// How long it took, in nanoseconds of the VM's time.
    pub nanos: u64,
    /// Exits of any kind.
    pub exits: u64,
    /// Exits by page faults on shadow tables and by faults on nested tables.
    pub paging_exits: u64,
    /// Page faults of the guest's own that shadow paging has seen.
    pub guest_faults: u64,
    /// Performance counters of the guest, and its own count of its page faults.
    pub guest: Counts,
    /// And of the hypervisor while it worked for the guest.
    pub host: Counts,
}

impl Period {
    /// From sums since the VM's start: what came after `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Period) -> Period {
        Period {
            nanos: self.nanos.wrapping_sub(earlier.nanos),
            exits: self.exits.wrapping_sub(earlier.exits),
            paging_exits: self.paging_exits.wrapping_sub(earlier.paging_exits),
            guest_faults: self.guest_faults.wrapping_sub(earlier.guest_faults),
            guest: self.guest.since(&earlier.guest),
            host: self.host.since(&earlier.host),
        }
    }
}

/// Whether `period` has what policies compare: instructions and cycles of the guest, and misses of its TLB.
pub fn can_compare(period: &Period) -> bool {
    window::Window::of(period).is_some()
}

/// When the policy is to be asked again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Never: nothing of the VM's is counted for it.
    Never,
    /// After this many exits of the VM's VCPUs together.
    Exits(NonZeroU32),
    /// At the end of the next period of samples.
    Period,
}

/// What a policy wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Decision {
    /// The engine from now on.
    pub engine: Engine,
    /// When to ask again.
    pub next: Next,
}

/// The engines that a mode may use, apart from what the processor forces: a policy that chooses may choose any.
pub const fn engines_of(mode: Mode) -> Engines {
    match mode {
        Mode::Nested => Engines::only(Engine::Nested),
        Mode::Shadow => Engines::only(Engine::Shadow),
        Mode::Agile(_) => Engines::only(Engine::Agile),
        Mode::SwitchAll(_) => Engines::ALL,
        _ => Engines::ALL.without(Engine::Agile),
    }
}

/// The policy of a VM.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "there is one for each VM, and it is not moved")]
pub enum Policy {
    /// Always the same engine.
    Fixed(Engine),
    /// All engines by turns.
    Switch(Switch),
    /// Either for each interval, by chance.
    Random(Random),
    /// Fixed thresholds.
    Threshold(Threshold),
    /// Exploration and exploitation.
    DspSample(DspSample),
    /// Dynamic thresholds.
    Dav2m(Dav2m),
    /// A linear model.
    Linear(Linear),
    /// A contextual bandit.
    Bandit(Bandit),
    /// A schedule.
    Oracle(Oracle),
    /// Any engine for any number of exits, from the state of a generator: what no policy should do, and any may.
    #[cfg(any(test, feature = "testing"))]
    Wild(u64),
}

impl Policy {
    /// The policy that `mode` names.
    pub fn new(mode: Mode) -> Policy {
        match mode {
            Mode::Nested => Policy::Fixed(Engine::Nested),
            // Address spaces that are to be nested keep their VCPU from it: `vcpu::mmu::spaces`.
            Mode::Shadow | Mode::Commodity(_) => Policy::Fixed(Engine::Shadow),
            Mode::Agile(_) => Policy::Fixed(Engine::Agile),
            Mode::Switch(exits) => Policy::Switch(Switch::new(exits, false)),
            Mode::SwitchAll(exits) => Policy::Switch(Switch::new(exits, true)),
            Mode::Random(parameters) => Policy::Random(Random::new(parameters)),
            Mode::Threshold(parameters) => Policy::Threshold(Threshold::new(parameters)),
            Mode::DspSample(parameters) => Policy::DspSample(DspSample::new(parameters)),
            Mode::Dav2m(parameters) => Policy::Dav2m(Dav2m::new(parameters)),
            Mode::DspOffset(model) => Policy::Linear(Linear::from(model)),
            Mode::AspSvm(model) => Policy::Linear(Linear::from(model)),
            Mode::Bandit(parameters) => Policy::Bandit(Bandit::new(parameters)),
            Mode::Oracle(schedule) => Policy::Oracle(Oracle::new(schedule)),
        }
    }

    /// Decides after `event`.
    pub fn on(&mut self, event: Event, sample: &Sample) -> Decision {
        match self {
            Policy::Fixed(engine) => Decision { engine: *engine, next: Next::Never },
            Policy::Switch(switch) => switch.on(event, sample),
            Policy::Random(random) => random.on(event, sample),
            Policy::Threshold(threshold) => threshold.on(event, sample),
            Policy::DspSample(dsp_sample) => dsp_sample.on(event, sample),
            Policy::Dav2m(dav2m) => dav2m.on(event, sample),
            Policy::Linear(linear) => linear.on(event, sample),
            Policy::Bandit(bandit) => bandit.on(event, sample),
            Policy::Oracle(oracle) => oracle.on(event, sample),
            #[cfg(any(test, feature = "testing"))]
            Policy::Wild(state) => wild(state),
        }
    }
}

/// Whatever comes, as a function of the state alone.
#[cfg(any(test, feature = "testing"))]
fn wild(state: &mut u64) -> Decision {
    let mut random = super::random::Random(*state);
    let engine = Engine::ALL[random.draw() as usize % Engine::COUNT];
    let exits = [1, 3, 20, 100][random.draw() as usize % 4];
    let next = match NonZeroU32::new(exits) {
        Some(exits) if !random.once_in(16) => Next::Exits(exits),
        _ => Next::Never,
    };
    *state = random.0;
    Decision { engine, next }
}
