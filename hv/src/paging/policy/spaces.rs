//! The policy of agile paging's machine `commodity`: each address space of a VM is nested or shadow as a whole.
//!
//! Pure, like all policies, but asked for an address space instead of the VM: it is told how long one has run and what shadow
//! tables have cost it, and says on which engine it is to run. `vcpu::mmu::spaces` calls it when CR3 is loaded and at the end of
//! periods of samples.
//!
//! - An address space begins nested, and becomes shadow when it has run for a while: most processes are short, and build
//!   their tables.
//! - A shadow one whose shadow tables cost too much in two windows of its own time in a row becomes nested. One window may hold the
//!   faults that fill the tables, and where the second costs less by a quarter, so do the next ones.
//! - It tries again after some time of its own, which doubles each time that the trial fails, and is the first one again
//!   after a trial that went well for as long. A trial that fails is paid for first: it is a hundredth of the time until the next.
//! - Where the guest's page faults are known (the guest kit counts them), a trial that could only fail is put off: as long as the
//!   faults of the last window would cost too much on shadow tables. What one costs is learnt from trials that have failed.
//!   The first trial does not wait where faults have been few for two windows in a row. And as long as they stay few, what shadow
//!   tables cost is taken for what fills them, for a number of windows.

use abi::policy::Commodity;
use abi::telemetry::key;
use alloc::vec::Vec;

use crate::paging::engine::Engine;

/// Address spaces that are known at a time. The one that has not run for longest is forgotten first.
const MOST: usize = 256;
/// The time until the next trial doubles this often at most.
const DOUBLINGS: u32 = 3;
/// A trial that fails may cost this part of the time until the next one: what an address space that always builds loses.
const TRIAL_SHARE: u64 = 100;
/// Windows in a row that cost too much and end a trial.
const WINDOWS_TO_FAIL: u8 = 2;
/// Page faults of the guest's are few if this many times as many would not be too many. With more, as a compiler has, shadow tables
/// may gain less than they cost.
const FEW: u64 = 10;
/// Windows in a row with few page faults after which the first trial begins early.
const QUIET_TO_BEGIN: u8 = 2;
/// Windows of a trial in which the tables may fill at any cost, while the guest's page faults are few.
const WINDOWS_TO_FILL: u8 = 4;
/// What a page fault of the guest costs on shadow tables until a trial has told, in nanoseconds: two exits and the work for them, on
/// a processor of some GHz.
const FAULT_COST: u64 = 2000;
/// Page faults in a trial from which their cost is learnt: with fewer, most of what it cost was something else.
const FAULTS_TO_LEARN: u64 = 256;

/// The policy's parameters, in nanoseconds of an address space's own time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Times {
    start: u64,
    window: u64,
    retry: u64,
    cost_milli: u64,
}

impl From<Commodity> for Times {
    fn from(parameters: Commodity) -> Times {
        let nanos = |ms: u32| u64::from(ms) * 1_000_000;
        Times {
            start: nanos(parameters.start_ms),
            window: nanos(parameters.window_ms),
            retry: nanos(parameters.retry_ms),
            cost_milli: parameters.cost_milli.into(),
        }
    }
}

impl Times {
    /// Whether shadow tables that cost `cost` of `ran` nanoseconds cost too much.
    fn is_too_much(&self, ran: u64, cost: u64) -> bool {
        u128::from(cost) * 1000 > u128::from(ran) * u128::from(self.cost_milli)
    }
}

/// What an address space has spent since it was charged last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spent {
    /// For how long it has run, in nanoseconds.
    pub ran: u64,
    /// What of that went to its shadow tables.
    pub cost: u64,
    /// The guest's page faults; `None`: they are not known.
    pub faults: Option<u64>,
}

/// What is known of an address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// What its CR3 has of the root table's address.
    pub root: u64,
    /// Nested or shadow.
    pub engine: Engine,
    /// For how long it has run, in nanoseconds.
    pub own: u64,
    /// What the shadow tables have cost of that, in nanoseconds.
    pub cost: u64,
    /// Page faults of its own, as far as they are known.
    pub faults: u64,
    /// How often the engine has changed.
    pub changes: u32,
    /// When it ran last, in nanoseconds of the VM's time.
    last: u64,
    /// Own time, cost and page faults at the start of the window.
    window: (u64, u64, u64),
    /// Windows in a row that cost too much.
    over: u8,
    /// Windows in a row with few page faults, on nested tables, and those of the trial that have filled the tables.
    quiet: u8,
    filled: u8,
    /// Own time and cost of the last window; on nested tables, what its page faults would have cost.
    before: (u64, u64),
    /// What shadow tables had cost at the start of the trial, and the page faults until then.
    cost_before_trial: u64,
    faults_before_trial: u64,
    /// Own time at the start of the trial, or at which the next begins.
    at: u64,
    /// Trials in a row that have failed.
    failed: u32,
}

/// The decisions so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceCounts {
    /// Address spaces that have become shadow.
    pub to_shadow: u64,
    /// And nested again.
    pub to_nested: u64,
    /// Windows for which a trial was put off.
    pub put_off: u64,
    /// Loads of CR3 that have exited on nested tables.
    pub nested_loads: u64,
}

impl SpaceCounts {
    /// All counters with their names in statistics and telemetry.
    pub fn named(&self) -> [(&'static str, u64); 4] {
        [
            (key::SPACES_TO_SHADOW, self.to_shadow),
            (key::SPACES_TO_NESTED, self.to_nested),
            (key::SPACES_PUT_OFF, self.put_off),
            (key::NESTED_CR3_LOADS, self.nested_loads),
        ]
    }
}

/// The address spaces of a VM.
#[derive(Debug)]
pub struct Spaces {
    times: Times,
    known: Vec<Space>,
    /// How many of them are shadow.
    shadow: usize,
    /// What a page fault costs on shadow tables, in nanoseconds.
    fault_cost: u64,
    /// What has been decided.
    pub counts: SpaceCounts,
}

impl Spaces {
    /// None is known.
    pub fn new(parameters: Commodity) -> Spaces {
        Spaces {
            times: parameters.into(),
            known: Vec::with_capacity(MOST),
            shadow: 0,
            fault_cost: FAULT_COST,
            counts: SpaceCounts::default(),
        }
    }

    /// All that are known.
    pub fn iter(&self) -> impl Iterator<Item = &Space> {
        self.known.iter()
    }

    /// Whether one is shadow. Otherwise loads of CR3 need no exit.
    pub fn any_shadow(&self) -> bool {
        self.shadow > 0
    }

    /// The engine for an address space.
    pub fn engine(&self, root: u64) -> Engine {
        match self.known.iter().find(|space| space.root == root) {
            Some(space) => space.engine,
            None if self.times.start == 0 => Engine::Shadow,
            None => Engine::Nested,
        }
    }

    /// Another process has this root table from now on.
    pub fn forget(&mut self, root: u64) {
        self.known.retain(|space| space.root != root);
        self.count();
    }

    fn count(&mut self) {
        self.shadow = self.known.iter().filter(|space| space.engine == Engine::Shadow).count();
    }

    /// The address space has run until `now`, in nanoseconds of the VM's time; whether it is to change its engine.
    pub fn charge(&mut self, root: u64, spent: Spent, now: u64) -> bool {
        let Spent { ran, cost, faults } = spent;
        let (times, fault_cost) = (self.times, self.fault_cost);
        let space = self.known(root, now);
        space.last = now;
        space.own = space.own.saturating_add(ran);
        space.faults = space.faults.saturating_add(faults.unwrap_or(0));
        // In the window.
        let ran = space.own - space.window.0;
        let would_cost = (space.faults - space.window.2).saturating_mul(fault_cost);
        let is_quiet = faults.is_some() && !times.is_too_much(ran, would_cost.saturating_mul(FEW));
        if space.engine == Engine::Nested {
            if ran >= times.window {
                space.before = (ran, would_cost);
                space.window = (space.own, space.cost, space.faults);
                space.quiet = if is_quiet { space.quiet.saturating_add(1) } else { 0 };
                if space.changes == 0 && space.quiet >= QUIET_TO_BEGIN {
                    space.at = space.at.min(space.own);
                }
            }
            if space.own < space.at {
                return false;
            }
            if faults.is_some() && times.is_too_much(space.before.0, space.before.1) {
                space.at = space.own.saturating_add(times.window);
                self.counts.put_off += 1;
                return false;
            }
            space.begin(Engine::Shadow);
            self.counts.to_shadow += 1;
            self.count();
            return true;
        }
        space.cost = space.cost.saturating_add(cost);
        if ran < times.window {
            return false;
        }
        let cost = space.cost - space.window.1;
        space.window = (space.own, space.cost, space.faults);
        let is_over = times.is_too_much(ran, cost);
        let before = core::mem::replace(&mut space.before, (ran, cost));
        space.over = match space.over {
            _ if !is_over => 0,
            // The tables still fill: less is missing each time.
            over if over > 0 && is_falling(before, (ran, cost)) => over,
            // It is not what the guest does that costs.
            over if is_quiet && space.filled < WINDOWS_TO_FILL => {
                space.filled += 1;
                over
            }
            over => over + 1,
        };
        if space.over < WINDOWS_TO_FAIL {
            return false;
        }
        let went_well = space.own - space.at >= times.retry;
        let failed = if went_well { 0 } else { space.failed };
        let trial = if went_well { 0 } else { space.cost - space.cost_before_trial };
        let wait = (times.retry << failed).max(trial.saturating_mul(TRIAL_SHARE));
        let faults = space.faults - space.faults_before_trial;
        let learnt = (!went_well && faults >= FAULTS_TO_LEARN).then(|| trial / faults);
        space.begin(Engine::Nested);
        space.at = space.own.saturating_add(wait);
        space.failed = (failed + 1).min(DOUBLINGS);
        self.fault_cost = learnt.unwrap_or(self.fault_cost);
        self.counts.to_nested += 1;
        self.count();
        true
    }

    /// What is known of an address space, from now on.
    fn known(&mut self, root: u64, now: u64) -> &mut Space {
        let at = self.known.iter().position(|space| space.root == root).unwrap_or_else(|| {
            if self.known.len() == MOST
                && let Some(oldest) = (0..MOST).min_by_key(|&at| self.known[at].last)
            {
                self.known.swap_remove(oldest);
            }
            let (engine, at) = (self.engine(root), self.times.start);
            let window = (0, 0, 0);
            self.known.push(Space {
                root,
                engine,
                own: 0,
                cost: 0,
                faults: 0,
                changes: 0,
                last: now,
                window,
                over: 0,
                quiet: 0,
                filled: 0,
                before: (0, 0),
                cost_before_trial: 0,
                faults_before_trial: 0,
                at,
                failed: 0,
            });
            self.count();
            self.known.len() - 1
        });
        &mut self.known[at]
    }
}

impl Space {
    /// Runs on another engine from now on.
    fn begin(&mut self, engine: Engine) {
        self.engine = engine;
        self.changes = self.changes.saturating_add(1);
        (self.window, self.at) = ((self.own, self.cost, self.faults), self.own);
        (self.over, self.quiet, self.filled) = (0, 0, 0);
        (self.cost_before_trial, self.faults_before_trial) = (self.cost, self.faults);
    }
}

/// Whether a window, of this time and cost, costs at least a quarter less of its time than the one before.
fn is_falling(before: (u64, u64), now: (u64, u64)) -> bool {
    let product = |cost: u64, ran: u64, parts: u128| u128::from(cost).saturating_mul(u128::from(ran) * parts);
    product(now.1, before.0, 4) <= product(before.1, now.0, 3)
}

#[cfg(test)]
mod tests;
