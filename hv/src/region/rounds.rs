//! Rounds: phases of regioning of a VM, one after the other, and what follows each of them.
//!
//! ```text
//!  due ──► age ──► phase: touches ──► finish ──► worth it? ──► balance ──► moves of regions to caches
//! ```
//!
//! Owned by the VM beside its [`Partition`], under the same lock; `vcpu::regions` calls it, and performs what it answers. An address space
//! is what a program runs on, told by the root of its page tables ([`spaces`]), or the VM as a whole ([`Space::VM`]) if
//! that is wanted. Its mappings are not seen. So a frame counts as mapped from its program's first touch in a phase on
//! ([`Rounds::arrive`]), and as unmapped when none of the last [`SAMPLES`](super::history::SAMPLES) samples has found it accessed: what it
//! holds then may be something else ([`Rounds::age`]).
//!
//! A VCPU's phase is one of each address space whose program runs in its first half, from its first touch on. When another one's program
//! touches memory, what the first has open is closed, and its time stops.
//!
//! Pure, as all of [`region`](super): times are arguments.

mod ageing;
mod arrival;
mod placing;
#[cfg(test)]
mod tests;

use alloc::sync::Arc;

pub use self::arrival::Arrival;
use super::caches::Caches;
use super::history::Scan;
use super::partition::Partition;
use super::regioning::{Answer, Change, Event, Params, Regioning, Round, Touch};
use super::spaces::{self, SpaceSet, Spaces};
use super::{Effects, Owner, Rid, Space};
use crate::arch::addr::Gfn;
use crate::mem::pieces::OutOfMemory;

/// [`Params::most_moves`] where a move takes so long: as much time as by the default on the thesis' machine.
fn most_moves_of_a_page(move_ns: u32) -> u32 {
    let default = Params::default();
    let most = u64::from(default.most_moves) * u64::from(default.move_ns) / u64::from(move_ns.max(1));
    u32::try_from(most).unwrap_or(u32::MAX).max(1)
}

/// Samples of what rounds want to know: where the VM is the address space, that its programs begin to use other memory, too.
fn start_histories(settings: &abi::regions::Regioning, partition: &mut Partition) -> Result<(), OutOfMemory> {
    match settings.spaces {
        abi::regions::Spaces::Cr3 => partition.start_histories_of_mapped(),
        abi::regions::Spaces::Vm => partition.start_histories(),
    }
}

/// Regioning with these times.
fn regioning(settings: &abi::regions::Regioning, partition: &Partition) -> Result<Regioning, OutOfMemory> {
    let ns = |us: u32| us.saturating_mul(1000);
    let params = Params {
        merge_ns: ns(settings.q_us),
        period_ns: u64::from(settings.period_ms) * 1_000_000,
        phase_ns: ns(settings.phase_ms.saturating_mul(1000)),
        most_touches: Params::most_touches(settings.phase_ms),
        move_ns: ns(settings.move_us),
        most_moves: most_moves_of_a_page(ns(settings.move_us)),
        large: Params::default().large,
    };
    Regioning::new(params, partition)
}

/// What rounds have done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Phases that have ended.
    pub rounds: u64,
    /// Turns without a phase because rounds lead to nothing new.
    pub left_out: u64,
    /// Ticks of the hypervisor in phases: virtual time leaves them out.
    pub ticks: u64,
    /// Faults in phases.
    pub touches: u64,
    /// Regions that began with a frame.
    pub born: u64,
    /// Merges of two regions.
    pub merges: u64,
    /// Frames that became global: code, stacks, the kernel's, and what moved VCPUs too often.
    pub excluded: u64,
    /// Frames that were given back to the pool because they were not accessed any more.
    pub aged: u64,
    /// How often all regions were given up.
    pub given_up: u64,
    /// Regions that the balancer has mapped to a cache, or to another one.
    pub placed: u64,
    /// Rounds after which regions were spread over several caches.
    pub spread: u64,
}

impl Counts {
    fn add(&mut self, round: &Round) {
        self.rounds += 1;
        self.touches += u64::from(round.touches);
        self.born += u64::from(round.born);
        self.merges += u64::from(round.merges);
        self.excluded += u64::from(round.excluded);
    }
}

/// Where a VM's regions go.
#[derive(Clone, Debug)]
pub struct At {
    /// The machine's caches.
    pub caches: Arc<Caches>,
    /// The VM's number in the configuration.
    pub vm: u16,
    /// Its weight.
    pub weight: u16,
}

/// A VCPU's phase.
#[derive(Debug)]
struct VcpuPhase {
    vcpu: u32,
    /// When it began, in nanoseconds of the VCPU's.
    start_ns: u64,
    /// The address space whose program has touched memory last, with its root.
    current: Option<(Space, Option<u64>)>,
    /// Those that were asked whether they take part, and those that do from their first touch on.
    asked: SpaceSet,
    takes: SpaceSet,
    /// Faults, of all of them.
    touches: u32,
}

/// See the module.
#[derive(Debug)]
pub struct Rounds {
    settings: abi::regions::Regioning,
    regioning: Regioning,
    spaces: Spaces,
    phase: Option<VcpuPhase>,
    /// Address spaces that took part in the phase that has ended, until [`Rounds::end`].
    finished: SpaceSet,
    /// Frames that count as a change: an eighth of a cache.
    least_change: u32,
    /// Leaves may be small that need not be.
    has_small: bool,
    counts: Counts,
}

impl Rounds {
    /// For a VM with this partition, whose histories begin now.
    ///
    /// # Errors
    /// No memory.
    pub fn new(settings: abi::regions::Regioning, partition: &mut Partition) -> Result<Rounds, OutOfMemory> {
        start_histories(&settings, partition)?;
        let mut rounds = Rounds {
            settings,
            regioning: regioning(&settings, partition)?,
            spaces: Spaces::new(partition.space_records())?,
            phase: None,
            finished: SpaceSet::default(),
            least_change: 0,
            has_small: false,
            counts: Counts::default(),
        };
        rounds.begin_spaces();
        Ok(rounds)
    }

    /// Bytes of host memory for a VM of this many frames, beside those of its partition and its histories.
    pub const fn bytes_for(frames: usize) -> usize {
        let spaces = Partition::spaces_for(frames);
        Regioning::bytes_for(Partition::regions_for(frames), spaces) + Spaces::bytes_for(spaces)
    }

    /// Has regions found in another way. Those that there are stay; a phase that is running is over.
    ///
    /// # Errors
    /// No memory: nothing has changed.
    pub fn change(
        &mut self,
        settings: abi::regions::Regioning,
        partition: &mut Partition,
    ) -> Result<(), OutOfMemory> {
        start_histories(&settings, partition)?;
        self.regioning = regioning(&settings, partition)?;
        self.settings = settings;
        (self.phase, self.finished, self.counts) = Default::default();
        self.begin_spaces();
        Ok(())
    }

    /// What was found for address spaces of the other kind is given back.
    fn begin_spaces(&mut self) {
        match self.settings.spaces {
            abi::regions::Spaces::Cr3 => self.spaces.end(Space::VM),
            abi::regions::Spaces::Vm => {
                for space in self.spaces.numbers().filter(|space| *space != Space::VM) {
                    self.spaces.end(space);
                }
            }
        }
    }

    /// What it was made with.
    pub fn settings(&self) -> &abi::regions::Regioning {
        &self.settings
    }

    /// The times of regioning, in nanoseconds.
    pub fn params(&self) -> &Params {
        self.regioning.params()
    }

    /// What has been done.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// What has become of address spaces.
    pub fn space_counts(&self) -> spaces::Counts {
        self.spaces.counts()
    }

    /// The root of the address space that a region belongs to; `None`: it belongs to none, or to the VM as a whole.
    pub fn root(&self, owner: Owner) -> Option<u64> {
        match owner {
            Owner::Space(space) => self.spaces.root(space),
            Owner::Vm | Owner::Guest(_) => None,
        }
    }

    /// The VCPU that is in a phase.
    pub fn in_phase(&self) -> Option<u32> {
        self.phase.as_ref().map(|phase| phase.vcpu)
    }

    /// How long a region is used at a time, in nanoseconds, if that is known.
    pub fn access_ns(&self, rid: Rid) -> Option<u32> {
        self.regioning.times(rid).map(|(access, _)| access)
    }

    /// A part of a sample of an address space has been taken. Whether samples have told enough of single pages since the latest round: they
    /// may be told of by large leaves until the next one ends.
    pub fn sampled(&mut self, space: Space, part: Scan) -> bool {
        self.spaces.sampled(space, part);
        part.is_complete && self.has_small && !self.spaces.need_small() && {
            self.has_small = false;
            true
        }
    }

    /// Whether an address space takes its turn; it does not where rounds lead to nothing new.
    fn takes_turn(&mut self, space: Space) -> bool {
        let accessed = self.spaces.accessed(space);
        let is_taken = match self.regioning.steady(space) {
            Some(steady) => steady.takes_turn(accessed, self.least_change),
            None => true,
        };
        self.counts.left_out += u64::from(!is_taken);
        is_taken
    }

    /// A phase has cost this many ticks of the hypervisor's.
    pub fn took(&mut self, ticks: u64) {
        self.counts.ticks = self.counts.ticks.wrapping_add(ticks);
    }

    /// The address space of a program with this root (`None`: without paging); `None`: it has no number.
    fn known(&self, root: Option<u64>) -> Option<Space> {
        match (self.settings.spaces, root) {
            (abi::regions::Spaces::Cr3, Some(root)) => self.spaces.find(root),
            _ => Some(Space::VM),
        }
    }

    /// A VCPU has run for so long, and does so with this root now, at this virtual time of the VM. Its address space, with its virtual
    /// time in nanoseconds, if it has samples of its own.
    pub fn ran(&mut self, vcpu: u32, vm_ns: u64, root: Option<u64>, ns: u64) -> Option<(Space, u64)> {
        self.spaces.vm_ran(vm_ns);
        let space = self.known(root).filter(|space| *space != Space::VM)?;
        self.spaces.ran(space, vcpu, ns);
        Some((space, self.spaces.ran_ns(space)))
    }

    /// Whether nothing is known of what runs with this root.
    pub fn is_unknown(&self, root: Option<u64>) -> bool {
        self.known(root).is_none()
    }

    /// The turn of a VCPU has come that runs with this root, at this virtual time of its own. [`Change::CloseAll`]: its phase begins,
    /// because the program that runs takes its turn, or is to be known, or another one that has run on this VCPU takes its.
    /// [`Change::None`]: it is left out, or another VCPU is in one; [`Rounds::balance`] may find something to do all the same.
    pub fn due(&mut self, partition: &mut Partition, vcpu: u32, root: Option<u64>, now_ns: u64) -> Answer {
        let mut answer = Answer::new(Change::None);
        if self.phase.is_some() {
            return answer;
        }
        let (asked, takes) = Default::default();
        let mut phase = VcpuPhase { vcpu, start_ns: now_ns, current: None, asked, takes, touches: 0 };
        match self.known(root) {
            Some(space) => {
                phase.asked.insert(space);
                phase.current = Some((space, root));
                if self.takes_turn(space) {
                    answer = self.regioning.on(partition, space, now_ns, Event::Due);
                }
            }
            None if self.spaces.has_room() => answer.change = Change::CloseAll,
            None => {}
        }
        if answer.change != Change::CloseAll {
            for space in self.spaces.recent(vcpu, self.regioning.params().period_ns).iter() {
                if phase.asked.insert(space) && self.takes_turn(space) && self.regioning.is_tried(space) {
                    phase.takes.insert(space);
                    answer.change = Change::CloseAll;
                }
            }
        }
        self.phase = (answer.change == Change::CloseAll).then_some(phase);
        answer
    }

    /// An event of the VCPU that is in a phase. After [`Change::Finish`] comes [`Rounds::end`].
    pub fn on(&mut self, partition: &mut Partition, now_ns: u64, event: Event) -> Answer {
        let Some(phase) = &mut self.phase else { return Answer::new(Change::None) };
        let is_cut = phase.touches >= self.regioning.params().most_touches.into();
        phase.touches += u32::from(matches!(event, Event::Touch(_)));
        let (asked, current) = (phase.asked, phase.current.map(|(space, _)| space));
        if event == Event::End || is_cut {
            return self.finish(partition, now_ns, asked, Round::default());
        }
        let current = current.filter(|space| self.regioning.is_on(*space));
        let answer = match (event, current) {
            // The kernel serves a program that has not run yet.
            (Event::Touch(touch), Some(space)) if is_anothers(partition, space, &touch) => {
                Answer::new(Change::Open(touch.gfn))
            }
            (_, Some(space)) => self.regioning.on(partition, space, now_ns, event),
            (Event::Touch(touch), None) => Answer::new(Change::Open(touch.gfn)),
            (_, None) => Answer::new(Change::CloseAll),
        };
        match (answer.change, current) {
            (Change::Finish(round), Some(space)) => {
                self.finished.insert(space);
                self.finish(partition, now_ns, asked, round)
            }
            _ => answer,
        }
    }

    /// The phase is over: it is for all address spaces that took part. `round`: what one has found whose phase is over already.
    fn finish(
        &mut self,
        partition: &mut Partition,
        now_ns: u64,
        asked: SpaceSet,
        mut round: Round,
    ) -> Answer {
        for space in asked.iter() {
            if let Change::Finish(own) = self.regioning.on(partition, space, now_ns, Event::End).change {
                round.add(&own);
                self.finished.insert(space);
            }
        }
        self.phase = None;
        self.counts.add(&round);
        Answer::new(Change::Finish(round))
    }

    /// The phase is over without an end: the VCPU is gone, or has none any more.
    pub fn abandon(&mut self, partition: &mut Partition) {
        let _only_its_own_tables_change = self.on(partition, u64::MAX, Event::End);
        self.finished = SpaceSet::default();
    }

    /// A region has died.
    pub fn forget(&mut self, rid: Rid) {
        self.regioning.forget(rid);
    }

    /// A VCPU has been moved to another cache by this page of a region of this owner. What follows if that happens too often because of it.
    #[must_use = "tables must follow the effects"]
    #[inline(always)]
    pub fn moved(
        &mut self,
        partition: &mut Partition,
        owner: Owner,
        gfn: Gfn,
        now_ns: u64,
    ) -> Option<Effects> {
        let most = self.regioning.params().most_moves;
        let space = if let Owner::Space(space) = owner { space } else { Space::VM };
        let effects = self.spaces.moves(space).moved(gfn, now_ns, most, partition);
        self.counts.excluded += u64::from(effects.is_some());
        effects
    }
}

/// Whether the guest's kernel has touched memory of another address space than this one.
fn is_anothers(partition: &Partition, space: Space, touch: &Touch) -> bool {
    let owner = partition.info_of(touch.gfn).map(|info| info.owner);
    touch.by_kernel && matches!(owner, Some(Owner::Space(owner)) if owner != space)
}
