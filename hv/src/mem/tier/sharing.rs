//! How much of the fast memory each VM may have (thesis 4.2.2 and 4.4).
//!
//! An *E-state* is a share in eighths of the whole fast memory: E0 is all of it, E7 an eighth (thesis 4.4.1 has 64 MiB of 512).
//! Pure: [`divide`] says what is each VM's, of what all of them ask for; [`Driver`] changes one VM's E-state by how it fares.

use abi::tiers::Sharing;

/// Steps of the fast memory.
pub const STEPS: u8 = 8;

/// A share in eighths: from E0, all, to E7, an eighth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EState(u8);

impl EState {
    /// All of it.
    pub const MOST: EState = EState(0);
    /// An eighth.
    pub const LEAST: EState = EState(STEPS - 1);

    /// `number` from 0 to 7.
    pub const fn new(number: u8) -> Option<EState> {
        if number < STEPS { Some(EState(number)) } else { None }
    }

    /// From 0 to 7.
    pub const fn number(self) -> u8 {
        self.0
    }

    /// Frames of `total`.
    pub const fn frames(self, total: u32) -> u32 {
        (total as u64 * (STEPS - self.0) as u64 / STEPS as u64) as u32
    }

    /// One with more memory.
    const fn up(self) -> EState {
        EState(self.0.saturating_sub(1))
    }

    /// One with less.
    const fn down(self) -> EState {
        if self.0 + 1 < STEPS { EState(self.0 + 1) } else { self }
    }
}

/// What a VM asks for, and has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Its weight, 1 or more.
    pub weight: u32,
    /// Frames of its working set.
    pub working_set: u32,
    /// Frames that its configuration gives it, if that says so.
    pub fixed: Option<u32>,
    /// Its E-state, which a person or the [`Driver`] has set.
    pub state: EState,
    /// A person has set it, and no policy changes it.
    pub is_set: bool,
    /// Frames of fast memory that it has.
    pub fast: u32,
    /// Its hot pages that are in slow memory.
    pub waiting: u32,
}

impl Demand {
    /// Of a VM of which nothing is known yet.
    pub const fn new(weight: u32, fixed: Option<u32>) -> Demand {
        Demand { weight, working_set: 0, fixed, state: EState::LEAST, is_set: false, fast: 0, waiting: 0 }
    }
}

/// The frames of `total` that each VM may have; the sum is not more than `total`. A set E-state and `fixed` come first, in the order
/// of the VMs; what is left is divided by `policy` among the others.
pub fn divide(policy: Sharing, total: u32, vms: &[Option<Demand>], of: usize) -> u32 {
    let claim = |vm: &Demand| match (policy, vm.fixed) {
        _ if vm.is_set => Some(vm.state.frames(total)),
        (_, Some(fixed)) => Some(fixed),
        (Sharing::Static, None) => Some(0),
        (Sharing::EstateQos | Sharing::EstateResource, None) => Some(vm.state.frames(total)),
        (Sharing::Shares | Sharing::Wss, None) => None,
    };
    // Set by a person, set by the configuration, and then what the driver wants.
    let rank = |vm: &Demand| if vm.is_set { 0 } else { 1 + u32::from(vm.fixed.is_none()) };
    let Some(own) = vms.get(of).and_then(Option::as_ref) else { return 0 };
    let all = || vms.iter().enumerate().filter_map(|(at, vm)| Some((at, vm.as_ref()?)));
    if let Some(wanted) = claim(own) {
        let is_before = |at, vm| (rank(vm), at) < (rank(own), of);
        let before = all().filter(|&(at, vm)| is_before(at, vm)).filter_map(|(_, vm)| claim(vm));
        return wanted.min(before.fold(total, u32::saturating_sub));
    }
    let left = all().filter_map(|(_, vm)| claim(vm)).fold(total, u32::saturating_sub);
    let part = |vm: &Demand| match policy {
        // One more, so that a VM without a history gets a little and can show one.
        Sharing::Wss => u64::from(vm.working_set) + 1,
        _ => u64::from(vm.weight.max(1)),
    };
    let sum: u64 = all().filter(|(_, vm)| claim(vm).is_none()).map(|(_, vm)| part(vm)).sum();
    (u128::from(left) * u128::from(part(own)) / u128::from(sum.max(1))) as u32
}

/// Passes between two changes of an E-state: 1 s.
const PERIOD: u8 = 10;

/// Changes a VM's E-state, for [`Sharing::EstateQos`] and [`Sharing::EstateResource`].
///
/// The measure is the part of its hot pages that is in slow memory: *missing*. Quality first: one step up while more than 1 in 20 is
/// missing, one down if the pages would fit in the next state for five seconds. Resources first: up at 1 in 4, down as soon as they fit.
#[derive(Clone, Copy, Debug, Default)]
pub struct Driver {
    passes: u8,
    /// Periods in which the next state would do.
    roomy: u8,
}

impl Driver {
    /// One pass is over; the E-state that the VM should have.
    pub fn step(&mut self, policy: Sharing, total: u32, vm: &Demand) -> EState {
        let (missing_of, patience) = match policy {
            Sharing::EstateQos => (20, 5),
            Sharing::EstateResource => (4, 1),
            _ => return vm.state,
        };
        self.passes += 1;
        if self.passes < PERIOD {
            return vm.state;
        }
        self.passes = 0;
        let hot = u64::from(vm.fast) + u64::from(vm.waiting);
        let has_less_room = vm.state.down().frames(total);
        let fits_below = vm.state != EState::LEAST && hot <= u64::from(has_less_room - has_less_room / 16);
        self.roomy = if fits_below { self.roomy + 1 } else { 0 };
        let is_full = vm.fast + vm.fast / 16 >= vm.state.frames(total);
        if is_full && u64::from(vm.waiting) * missing_of > hot {
            vm.state.up()
        } else if self.roomy >= patience {
            self.roomy = 0;
            vm.state.down()
        } else {
            vm.state
        }
    }
}
