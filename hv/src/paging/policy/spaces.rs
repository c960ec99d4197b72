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
//!   tables cost is taken for what fills them: they may cost more, and for a number of windows anything.

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
const FEW: u64 = 20;
/// Windows in a row with few page faults after which the first trial begins early.
const QUIET_TO_BEGIN: u8 = 2;
/// While the guest's page faults are few, shadow tables may cost this many times as much: they fill, and the next accesses are free.
/// Random accesses to much memory fill them slowly.
const FILLING: u64 = 3;
/// And windows of a trial in which they may fill at any cost.
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
    /// Whether that cost is too much for that time.
    fn is_too_much(&self, usage: Usage) -> bool {
        u128::from(usage.cost) * 1000 > u128::from(usage.ran) * u128::from(self.cost_milli)
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

/// What an address space has used in some time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// For how long it has run, in nanoseconds.
    pub ran: u64,
    /// What of that went to its shadow tables. Of a window on nested tables, what its page faults would have cost on shadow tables.
    pub cost: u64,
    /// The guest's page faults, as far as they are known.
    pub faults: u64,
}

impl Usage {
    /// With what it has spent since. Sums saturate.
    fn plus(self, spent: Spent) -> Usage {
        Usage {
            ran: self.ran.saturating_add(spent.ran),
            cost: self.cost.saturating_add(spent.cost),
            faults: self.faults.saturating_add(spent.faults.unwrap_or(0)),
        }
    }

    /// What has come since `start`, an earlier sum.
    fn since(self, start: Usage) -> Usage {
        Usage { ran: self.ran - start.ran, cost: self.cost - start.cost, faults: self.faults - start.faults }
    }

    /// With what its page faults would cost on shadow tables, at so much each.
    fn priced(self, fault_cost: u64) -> Usage {
        Usage { cost: self.faults.saturating_mul(fault_cost), ..self }
    }

    /// At this many times the cost.
    fn times(self, times: u64) -> Usage {
        Usage { cost: self.cost.saturating_mul(times), ..self }
    }

    /// Whether the cost is at least a quarter less of the time than it was `before`.
    fn has_fallen(self, before: Usage) -> bool {
        let product =
            |cost: u64, ran: u64, parts: u128| u128::from(cost).saturating_mul(u128::from(ran) * parts);
        product(self.cost, before.ran, 4) <= product(before.cost, self.ran, 3)
    }
}

/// What is known of an address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// What its CR3 has of the root table's address.
    pub root: u64,
    /// Nested or shadow.
    pub engine: Engine,
    /// What it has used since it is known.
    pub total: Usage,
    /// How often the engine has changed.
    pub changes: u32,
    /// When it ran last, in nanoseconds of the VM's time.
    last: u64,
    /// The total at the start of the window, and at that of the trial.
    window_start: Usage,
    trial_start: Usage,
    /// The last window.
    before: Usage,
    /// Windows in a row that cost too much.
    over: u8,
    /// Windows in a row with few page faults, on nested tables, and those of the trial that have filled the tables.
    quiet: u8,
    filled: u8,
    /// On nested tables: the time it has run, in total, at which the next trial begins.
    next_trial: u64,
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
        let (times, fault_cost) = (self.times, self.fault_cost);
        let space = self.known(root, now);
        space.last = now;
        let verdict = match space.engine {
            Engine::Nested => space.charge_nested(spent, &times, fault_cost),
            _ => space.charge_shadow(spent, &times, fault_cost),
        };
        match verdict {
            Verdict::Stays => return false,
            Verdict::PutOff => {
                self.counts.put_off += 1;
                return false;
            }
            Verdict::ToShadow => self.counts.to_shadow += 1,
            Verdict::ToNested { fault_cost } => {
                self.fault_cost = fault_cost.unwrap_or(self.fault_cost);
                self.counts.to_nested += 1;
            }
        }
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
            let (engine, next_trial) = (self.engine(root), self.times.start);
            self.known.push(Space {
                root,
                engine,
                total: Usage::default(),
                changes: 0,
                last: now,
                window_start: Usage::default(),
                trial_start: Usage::default(),
                before: Usage::default(),
                over: 0,
                quiet: 0,
                filled: 0,
                next_trial,
                failed: 0,
            });
            self.count();
            self.known.len() - 1
        });
        &mut self.known[at]
    }
}

/// What an address space is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// It keeps its engine.
    Stays,
    /// It stays nested: a trial is due that could only fail.
    PutOff,
    /// It becomes shadow.
    ToShadow,
    /// It becomes nested. The trial has told what a page fault of the guest's costs on shadow tables, in nanoseconds, or not.
    ToNested { fault_cost: Option<u64> },
}

impl Space {
    /// It has run on nested tables.
    fn charge_nested(&mut self, spent: Spent, times: &Times, fault_cost: u64) -> Verdict {
        let is_known = spent.faults.is_some();
        self.total = self.total.plus(Spent { cost: 0, ..spent });
        let window = self.total.since(self.window_start).priced(fault_cost);
        if window.ran >= times.window {
            self.begin_window(window);
            let few = is_known && !times.is_too_much(window.times(FEW));
            self.quiet = if few { self.quiet.saturating_add(1) } else { 0 };
            if self.changes == 0 && self.quiet >= QUIET_TO_BEGIN {
                self.next_trial = self.next_trial.min(self.total.ran);
            }
        }
        if self.total.ran < self.next_trial {
            return Verdict::Stays;
        }
        if is_known && times.is_too_much(self.before) {
            self.next_trial = self.total.ran.saturating_add(times.window);
            return Verdict::PutOff;
        }
        self.begin(Engine::Shadow);
        Verdict::ToShadow
    }

    /// It has run on shadow tables.
    fn charge_shadow(&mut self, spent: Spent, times: &Times, fault_cost: u64) -> Verdict {
        self.total = self.total.plus(spent);
        let window = self.total.since(self.window_start);
        if window.ran < times.window {
            return Verdict::Stays;
        }
        let before = self.begin_window(window);
        let few = spent.faults.is_some() && !times.is_too_much(window.priced(fault_cost).times(FEW));
        let judged = if few { Usage { cost: window.cost / FILLING, ..window } } else { window };
        self.over = match self.over {
            _ if !times.is_too_much(judged) => 0,
            // The tables still fill: less is missing each time.
            over if over > 0 && window.has_fallen(before) => over,
            // It is not what the guest does that costs.
            over if few && self.filled < WINDOWS_TO_FILL => {
                self.filled += 1;
                over
            }
            over => over + 1,
        };
        if self.over < WINDOWS_TO_FAIL { Verdict::Stays } else { self.end_trial(times) }
    }

    /// The next window begins. Returns the one before the last.
    fn begin_window(&mut self, last: Usage) -> Usage {
        self.window_start = self.total;
        core::mem::replace(&mut self.before, last)
    }

    /// Shadow tables cost too much.
    fn end_trial(&mut self, times: &Times) -> Verdict {
        let trial = self.total.since(self.trial_start);
        let went_well = trial.ran >= times.retry;
        let (failed, lost) = if went_well { (0, 0) } else { (self.failed, trial.cost) };
        let wait = (times.retry << failed).max(lost.saturating_mul(TRIAL_SHARE));
        let is_told = !went_well && trial.faults >= FAULTS_TO_LEARN;
        self.begin(Engine::Nested);
        self.next_trial = self.total.ran.saturating_add(wait);
        self.failed = (failed + 1).min(DOUBLINGS);
        Verdict::ToNested { fault_cost: is_told.then(|| trial.cost / trial.faults) }
    }

    /// Runs on another engine from now on.
    fn begin(&mut self, engine: Engine) {
        self.engine = engine;
        self.changes = self.changes.saturating_add(1);
        (self.window_start, self.trial_start) = (self.total, self.total);
        (self.over, self.quiet, self.filled) = (0, 0, 0);
    }
}

#[cfg(test)]
mod tests;
