//! A machine in simulated time: PCPUs that run VCPUs, VCPUs that compute and sleep.
//!
//! Cycles are nanoseconds. After each event the invariants are checked: no VCPU runs twice or outside its affinity,
//! and no PCPU idles while a VCPU waits that may run on it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::super::policy::Policy;
use super::super::topology::{PcpuId, PcpuSet, Topology};
use super::super::{Config, Credit, Decision, Kick, Refused, Scheduler, State, VcpuId, VmId, Why};

pub const US: u64 = 1_000;
pub const MS: u64 = 1_000_000;
pub const S: u64 = 1_000_000_000;
/// Time that an interrupt takes.
const IPI: u64 = 2 * US;

/// Nanoseconds as cycles.
pub const fn config() -> Config {
    Config::new(1_000_000)
}

/// A new VCPU that may run, and is blocked.
pub fn add<P: Policy>(
    sched: &Scheduler<P>,
    vm: VmId,
    affinity: PcpuSet,
    now: u64,
) -> Result<VcpuId, Refused> {
    let id = sched.add_vcpu(vm, affinity, now)?;
    assert_eq!(sched.resume(id, now), Ok(Kick::NONE));
    Ok(id)
}

/// What a VCPU does next.
#[derive(Clone, Copy, Debug)]
pub struct Act {
    /// It computes for this time …
    pub run: u64,
    /// … and then blocks for this time (`u64::MAX`: until it is woken), or yields if 0.
    pub sleep: u64,
    /// And wakes this one as it blocks.
    pub wakes: Option<VcpuId>,
}

/// Always computes.
pub const HOG: Act = Act { run: u64::MAX, sleep: 0, wakes: None };

/// What a VCPU does.
pub type Program = Box<dyn FnMut(u64) -> Act>;

/// What the scheduler is told, and what it decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    Wake(VcpuId),
    Turn(PcpuId, Why, Decision),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Timer(usize, u64),
    Kick(usize),
    Wake(u16),
}

struct Guest {
    program: Program,
    act: Act,
    left: u64,
    woken_at: u64,
    /// Wake-up latencies.
    latencies: Vec<u64>,
    longest_wait: u64,
    waits_since: Option<u64>,
}

#[derive(Clone, Copy, Default)]
struct Core {
    runs: Option<VcpuId>,
    since: u64,
    epoch: u64,
    kicked: bool,
}

pub struct Sim<P: Policy> {
    pub sched: Scheduler<P>,
    pub now: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    sequence: u64,
    cores: Vec<Core>,
    guests: Vec<Option<Guest>>,
    /// What was asked and answered, if asked for.
    pub log: Option<Vec<(u64, Input)>>,
    pub check_idle: bool,
    /// VCPUs are handed over to random PCPUs by these numbers.
    pub hands_over: Option<Rng>,
    /// All VCPUs use memory that is mapped to the cache of these PCPUs, which draws them there.
    pub memory: Option<PcpuSet>,
}

/// Time for which a VCPU runs elsewhere before it touches its memory.
const TOUCH: u64 = 5 * US;

impl Sim<Credit> {
    pub fn credit(pcpus: usize, per_llc: usize) -> Sim<Credit> {
        Sim::new(Topology::uniform(pcpus, per_llc), config().credit())
    }
}

impl<P: Policy> Sim<P> {
    pub fn new(topology: Topology, policy: P) -> Sim<P> {
        let cores = vec![Core::default(); topology.len()];
        let sched = Scheduler::new(topology, config(), policy);
        let mut sim = Sim {
            sched,
            // Somewhere, so that nothing relies on 0.
            now: 1 << 40,
            events: BinaryHeap::new(),
            sequence: 0,
            cores,
            guests: vec![],
            log: None,
            check_idle: true,
            hands_over: None,
            memory: None,
        };
        for pcpu in 0..sim.cores.len() {
            sim.at(sim.now, Event::Kick(pcpu));
        }
        sim
    }

    fn at(&mut self, time: u64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((time, self.sequence, event)));
    }

    pub fn deliver(&mut self, kick: Kick) {
        if let Some(pcpu) = kick.0 {
            self.cores[pcpu.index()].kicked = true;
            self.at(self.now + IPI, Event::Kick(pcpu.index()));
        }
    }

    pub fn vm(&mut self, weight: u32, cap: u32) -> VmId {
        self.sched.add_vm(weight, cap).unwrap()
    }

    /// A VCPU that is woken at once.
    pub fn vcpu(&mut self, vm: VmId, affinity: PcpuSet, program: impl FnMut(u64) -> Act + 'static) -> VcpuId {
        let id = self.sleeping_vcpu(vm, affinity, program);
        self.at(self.now, Event::Wake(id.0));
        id
    }

    /// A VCPU that only another one wakes.
    pub fn sleeping_vcpu(
        &mut self,
        vm: VmId,
        affinity: PcpuSet,
        mut program: impl FnMut(u64) -> Act + 'static,
    ) -> VcpuId {
        let id = add(&self.sched, vm, affinity, self.now).unwrap();
        let act = program(self.now);
        let guest = Guest {
            program: Box::new(program),
            act,
            left: act.run,
            woken_at: self.now,
            latencies: vec![],
            longest_wait: 0,
            waits_since: None,
        };
        if self.guests.len() <= usize::from(id.0) {
            self.guests.resize_with(usize::from(id.0) + 1, || None);
        }
        self.guests[usize::from(id.0)] = Some(guest);
        id
    }

    /// A VM of hogs.
    pub fn hogs(&mut self, weight: u32, cap: u32, vcpus: usize) -> VmId {
        let vm = self.vm(weight, cap);
        for _ in 0..vcpus {
            self.vcpu(vm, PcpuSet::ALL, |_| HOG);
        }
        vm
    }

    fn guest(&mut self, id: VcpuId) -> &mut Guest {
        self.guests[usize::from(id.0)].as_mut().unwrap()
    }

    pub fn latencies(&self, id: VcpuId) -> &[u64] {
        &self.guests[usize::from(id.0)].as_ref().unwrap().latencies
    }

    /// The longest time that it waited at a stretch, while nothing held it back.
    pub fn longest_wait(&self, id: VcpuId) -> u64 {
        self.guests[usize::from(id.0)].as_ref().unwrap().longest_wait
    }

    pub fn ran(&self, id: VcpuId) -> u64 {
        self.sched.status(id, self.now).unwrap().stats.ran
    }

    /// Time that all VCPUs of a VM ran.
    pub fn vm_ran(&self, vm: VmId) -> u64 {
        self.vcpus()
            .filter(|id| self.sched.status(*id, self.now).unwrap().vm == vm)
            .map(|id| self.ran(id))
            .sum()
    }

    pub fn vcpus(&self) -> impl Iterator<Item = VcpuId> {
        (0..self.guests.len() as u16).map(VcpuId).filter(|id| self.guests[usize::from(id.0)].is_some())
    }

    pub fn forget(&mut self, id: VcpuId) {
        self.guests[usize::from(id.0)] = None;
    }

    pub fn wake(&mut self, id: VcpuId) {
        let state = self.sched.status(id, self.now).map(|status| status.state);
        if state == Some(State::Blocked) {
            let now = self.now;
            let guest = self.guest(id);
            (guest.woken_at, guest.waits_since) = (now, Some(now));
        }
        if let Some(log) = &mut self.log {
            log.push((self.now, Input::Wake(id)));
        }
        let kick = self.sched.wake(id, self.now);
        if state.is_some_and(|state| state != State::Running) {
            self.deliver(kick);
        }
    }

    /// Lets time pass.
    pub fn run(&mut self, time: u64) {
        let end = self.now + time;
        while let Some(Reverse((at, _, _))) = self.events.peek()
            && *at <= end
        {
            let Some(Reverse((at, _, event))) = self.events.pop() else { break };
            assert!(at >= self.now);
            self.now = at;
            match event {
                Event::Timer(pcpu, epoch) => {
                    if self.cores[pcpu].epoch == epoch {
                        self.turn(pcpu);
                    }
                }
                Event::Kick(pcpu) => {
                    self.cores[pcpu].kicked = false;
                    self.turn(pcpu);
                }
                Event::Wake(id) => self.wake(VcpuId(id)),
            }
            self.check();
        }
        self.now = end;
    }

    /// A PCPU decides.
    fn turn(&mut self, pcpu: usize) {
        let now = self.now;
        let (id, since) = (self.cores[pcpu].runs, self.cores[pcpu].since);
        let mut why = Why::Preempt;
        if let Some(id) = id {
            let guest = self.guest(id);
            guest.left = if guest.act.run == u64::MAX { u64::MAX } else { guest.left - (now - since) };
            if guest.left == 0 {
                let act = guest.act;
                guest.act = (guest.program)(now);
                guest.left = guest.act.run;
                why = if act.sleep == 0 { Why::Yield } else { Why::Block };
                if why == Why::Block {
                    guest.waits_since = None;
                    if act.sleep != u64::MAX {
                        self.at(now + act.sleep, Event::Wake(id.0));
                    }
                    if let Some(other) = act.wakes {
                        self.wake(other);
                    }
                }
            }
        }
        self.hand_over(pcpu, why);
        self.follow_memory(pcpu, why);
        let decision = self.sched.schedule(PcpuId(pcpu as u8), why, now);
        if let Some(log) = &mut self.log {
            log.push((now, Input::Turn(PcpuId(pcpu as u8), why, decision)));
        }
        if why == Why::Block && decision.run == id {
            // Woken before it blocked.
            self.guest(id.unwrap()).waits_since = None;
        }
        if let Some(id) = id.filter(|id| decision.run != Some(*id) && why != Why::Block) {
            self.guest(id).waits_since = Some(now);
        }
        self.cores[pcpu].runs = decision.run;
        self.cores[pcpu].since = now;
        self.cores[pcpu].epoch += 1;
        let epoch = self.cores[pcpu].epoch;
        let mut until = decision.until;
        assert!(until > now, "no PCPU decides for ever");
        if let Some(id) = decision.run {
            let guest = self.guest(id);
            until = until.min(now.saturating_add(guest.left));
            if let Some(since) = guest.waits_since.take() {
                guest.longest_wait = guest.longest_wait.max(now - since);
            }
            if guest.woken_at != 0 {
                let latency = now - core::mem::take(&mut guest.woken_at);
                guest.latencies.push(latency);
            }
            if self.memory.is_some_and(|home| !home.contains(PcpuId(pcpu as u8))) {
                // Told that an idle PCPU has taken it, its VM opens the memory everywhere.
                if self.sched.was_taken(id) {
                    self.memory = None;
                } else {
                    until = until.min(now + TOUCH);
                }
            }
        }
        if !decision.is_settled {
            let kick = self.sched.context_saved(PcpuId(pcpu as u8), now);
            self.deliver(kick);
        }
        if until != u64::MAX {
            self.at(until, Event::Timer(pcpu, epoch));
        }
    }

    /// Sometimes hands the VCPU that a PCPU runs, and that would go on, over to another one before the PCPU decides.
    fn hand_over(&mut self, pcpu: usize, why: Why) {
        let pcpus = self.cores.len() as u64;
        if let (Why::Preempt, Some(rng)) = (why, &mut self.hands_over)
            && rng.below(3) == 0
        {
            let to = PcpuId(rng.below(pcpus) as u8);
            if let Some(kick) = self.sched.hand_over(PcpuId(pcpu as u8), to, self.now) {
                self.deliver(kick);
            }
        }
    }

    /// The VCPU that a PCPU runs away from its memory goes there.
    fn follow_memory(&mut self, pcpu: usize, why: Why) {
        let me = PcpuId(pcpu as u8);
        if let (Why::Preempt, Some(home)) = (why, self.memory)
            && let Some(id) = self.cores[pcpu].runs
            && !home.contains(me)
            && let Some(to) = self.sched.place_in(id, home)
            && let Some(kick) = self.sched.hand_over(me, to, self.now)
        {
            self.guest(id).waits_since = Some(self.now);
            self.deliver(kick);
        }
    }

    /// The rules that hold at any moment.
    fn check(&mut self) {
        let mut seen = std::collections::HashSet::new();
        for (pcpu, core) in self.cores.iter().enumerate() {
            let pcpu = PcpuId(pcpu as u8);
            let queue = self.sched.pcpus[pcpu.index()].queue.lock();
            // One that another PCPU has handed over to this one while it halted begins when it wakes.
            let is_started = queue.idle && core.kicked && core.runs.is_none();
            assert!(queue.current == core.runs || is_started, "{:?} and {:?}", queue.current, core.runs);
            assert_eq!(queue.leaving, None);
            if let Some(id) = queue.current {
                assert!(seen.insert(id), "{id:?} runs twice");
                let vcpu = queue.get(id);
                assert!(vcpu.affinity.contains(pcpu) || vcpu.target.is_some(), "{id:?} on {pcpu}");
            }
        }
        if !self.check_idle {
            return;
        }
        for (pcpu, core) in self.cores.iter().enumerate() {
            let me = PcpuId(pcpu as u8);
            if core.runs.is_some() || core.kicked {
                continue;
            }
            for other in &self.sched.pcpus {
                let queue = other.queue.lock();
                // A PCPU that is kicked is about to decide; it wakes an idle one for what it leaves in its queue.
                let kicked = self.cores[queue.pcpu.index()].kicked;
                if queue.waiting.allowed().contains(me) && !kicked {
                    let others = self.cores.iter().filter(|core| core.kicked).count();
                    assert!(others > 0, "{me} idles beside {:?} of {}", queue.waiting, queue.pcpu);
                }
            }
        }
    }
}

/// Seeds for a test that takes some: the same every time, or as many times more as SOAK says, from FIRST_SEED on.
pub fn seeds(usual: u64) -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let first = number("FIRST_SEED").unwrap_or(1);
    first..first + usual * number("SOAK").unwrap_or(1)
}

/// Numbers that look random.
pub struct Rng(pub u64);

impl Rng {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}
