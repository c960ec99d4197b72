//! How much of the fast memory each VM may have (thesis 4.2.2 and 4.4).
//!
//! An *E-state* is a share in eighths of the fast memory that page tables leave: E0 is all of it, E7 an eighth (thesis 4.4.1 has 64 MiB
//! of 512).
//! Pure: [`divide`] says what is each VM's, of what all of them ask for; [`Driver`] changes one VM's E-state by how it fares.
//!
//! A guest may say what part of its hot pages it wants in fast memory, its [`Target`]. With less than the policy would give, its
//! E-state is lower. With more, the *wished* E-state is above its own, and the difference is served from what no VM's own state
//! claims: what a guest wishes costs no other VM anything.

use abi::hypercall::TIER_TARGET_MAX;
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

/// The part of a guest's hot pages that it wants in fast memory, from 1 to 1000 per mille.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target(u16);

impl Target {
    /// What [`Sharing::EstateQos`] gives a guest that says nothing: 1 in 20 may be missing.
    pub const DEFAULT: Target = Target(950);

    /// `per_mille` from 1 to 1000.
    pub const fn new(per_mille: u64) -> Option<Target> {
        if per_mille >= 1 && per_mille <= TIER_TARGET_MAX { Some(Target(per_mille as u16)) } else { None }
    }

    /// From 1 to 1000.
    pub const fn per_mille(self) -> u16 {
        self.0
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
    /// The E-state that its guest's target takes, with as much memory as `state` or more.
    pub wished: EState,
    /// What its guest wants, if it has said so.
    pub target: Option<Target>,
    /// Frames of fast memory that it has.
    pub fast: u32,
    /// Its hot pages that are in slow memory.
    pub waiting: u32,
}

impl Demand {
    /// Of a VM of which nothing is known yet.
    pub const fn new(weight: u32, fixed: Option<u32>) -> Demand {
        let (state, wished) = (EState::LEAST, EState::LEAST);
        Demand {
            weight,
            working_set: 0,
            fixed,
            state,
            is_set: false,
            wished,
            target: None,
            fast: 0,
            waiting: 0,
        }
    }

    /// The E-state that it has, as far as there is room.
    pub fn e_state(&self) -> EState {
        if self.is_set { self.state } else { self.state.min(self.wished) }
    }

    /// Frames of `total` that its guest wants beyond its own state.
    fn extra(&self, policy: Sharing, total: u32) -> u32 {
        let may_wish = policy == Sharing::EstateQos && !self.is_set && self.fixed.is_none();
        if may_wish { self.e_state().frames(total) - self.state.frames(total) } else { 0 }
    }
}

/// The frames of `total` that each VM may have; the sum is not more than `total`. A set E-state and `fixed` come first, in the order
/// of the VMs; what is left is divided by `policy` among the others. What guests wish beyond that comes last.
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
        let own_part = wanted.min(before.fold(total, u32::saturating_sub));
        let unclaimed = all().filter_map(|(_, vm)| claim(vm)).fold(total, u32::saturating_sub);
        let wished_before = all().filter(|(at, _)| *at < of).map(|(_, vm)| vm.extra(policy, total));
        let left = wished_before.fold(unclaimed, u32::saturating_sub);
        return own_part + own.extra(policy, total).min(left);
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
/// The measure is the part of its hot pages that is in slow memory: *missing*. Quality first: one step up while more is missing than
/// the guest's [`Target`] allows, one down if less would do for five seconds. Resources first: up at 1 in 4, down as soon as the pages
/// fit the next state.
#[derive(Clone, Copy, Debug, Default)]
pub struct Driver {
    passes: u8,
    own: Steps,
    wished: Steps,
}

impl Driver {
    /// One pass is over; the E-states that the VM should have, its own and the wished one.
    pub fn step(&mut self, policy: Sharing, total: u32, vm: &Demand) -> (EState, EState) {
        let (goal, patience) = match policy {
            Sharing::EstateQos => (Target::DEFAULT, 5),
            Sharing::EstateResource => (Target(750), 1),
            _ => return (vm.state, vm.state),
        };
        self.passes += 1;
        if self.passes < PERIOD {
            return (vm.state, vm.e_state());
        }
        self.passes = 0;
        let target = vm.target.filter(|_| policy == Sharing::EstateQos);
        let less = target.filter(|target| *target < goal);
        // Without a target of its own it goes down when all its hot pages fit, and so not up again at once.
        let keep = less.map_or(TIER_TARGET_MAX, |target| target.0.into());
        let own = self.own.step(vm.state, less.unwrap_or(goal), keep, patience, total, vm);
        let wished = match target.filter(|target| *target > goal) {
            Some(target) => {
                self.wished.step(vm.e_state(), target, TIER_TARGET_MAX, patience, total, vm).min(own)
            }
            None => {
                self.wished = Steps::default();
                own
            }
        };
        (own, wished)
    }
}

/// Steps from state to state towards one goal.
#[derive(Clone, Copy, Debug, Default)]
struct Steps {
    /// Periods in which the next state would do.
    roomy: u8,
}

impl Steps {
    /// One period is over; the state after `state`. `goal`: what is to be in fast memory; `keep`, per mille: what has to fit a state that
    /// it goes down to.
    fn step(
        &mut self,
        state: EState,
        goal: Target,
        keep: u64,
        patience: u8,
        total: u32,
        vm: &Demand,
    ) -> EState {
        let hot = u64::from(vm.fast) + u64::from(vm.waiting);
        // As if it had this state alone.
        let has = vm.fast.min(state.frames(total));
        let missing = hot - u64::from(has);
        let has_less_room = state.down().frames(total);
        let fits_below = state != EState::LEAST
            && hot * keep / TIER_TARGET_MAX <= u64::from(has_less_room - has_less_room / 16);
        self.roomy = if fits_below { self.roomy.saturating_add(1) } else { 0 };
        let is_full = u64::from(has) + u64::from(has / 16) >= u64::from(state.frames(total));
        if is_full && missing * TIER_TARGET_MAX > hot * (TIER_TARGET_MAX - u64::from(goal.0)) {
            state.up()
        } else if self.roomy >= patience {
            self.roomy = 0;
            state.down()
        } else {
            state
        }
    }
}

#[cfg(test)]
mod tests;
