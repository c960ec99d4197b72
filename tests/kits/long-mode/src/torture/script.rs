//! Scripts: lists of steps, whose outcome is predicted while they are written down, then performed and compared.

use super::model::{Cpu, Kind, Setup, Walk, walk};
use super::space::{self, STEPS, Space, USER_BASE, USER_BASE_32, WANTS, predict, predicted};
use super::verdict::{Outcome, Verdict, Want};
use super::{Random, options};
use crate::check::Check;
use crate::machine::insn::{peek, set_cr0, set_cr3, set_cr4};
use crate::machine::legacy::{self, Job};
use crate::machine::step::{self, Got, Step};
use crate::say;

/// Steps of a script.
const MAX: usize = 4000;
/// Scripts should be run when they are as long as this.
const FULL: usize = MAX - 200;
/// Failures of a case that are printed with all their steps.
const PRINTED: u32 = 4;
/// Accessed.
const A: u64 = 1 << 5;

/// A list of steps under construction.
pub struct Script<'a> {
    /// Its tables.
    pub space: &'a mut Space,
    /// The processor.
    pub cpu: Cpu,
    /// The registers, as they will be.
    pub setup: Setup,
    /// CR3, as it will be.
    pub root: u64,
    first: (Setup, u64),
    len: usize,
    /// The step where the present group, which is printed as a whole, begins.
    group: usize,
    groups: u64,
    /// Bits of which the emulation leaves entries different, now and in what was not written since.
    uncertain: u64,
    ever_uncertain: u64,
    counter: u64,
    random: Random,
    c: &'a mut Check,
}

impl<'a> Script<'a> {
    /// An empty script.
    pub fn new(c: &'a mut Check, space: &'a mut Space, setup: Setup) -> Self {
        let root = space.cr3();
        space.look();
        let cpu = Cpu::here(c.tcg);
        let first = (setup, root);
        Script {
            space,
            cpu,
            setup,
            root,
            first,
            len: 0,
            group: 0,
            groups: 0,
            uncertain: 0,
            ever_uncertain: 0,
            counter: 0x1000_0000,
            random: Random::new(options().seed),
            c,
        }
    }

    fn push(&mut self, step: Step, want: Want) {
        if options().exits && self.random.below(4) == 0 {
            self.append(Step::new(step::CPUID, 0, 0), Want::Nothing);
        }
        self.append(step, want);
    }

    fn append(&mut self, step: Step, want: Want) {
        assert!(self.len < MAX);
        // SAFETY: within the lists' memory, which nothing else uses.
        unsafe {
            (STEPS as *mut Step).add(self.len).write(step);
            (WANTS as *mut (u32, Want)).add(self.len).write((self.group as u32, want));
        }
        self.len += 1;
    }

    /// Begins a new group; runs what there is if that is long enough.
    pub fn group(&mut self) {
        self.groups += 1;
        if self.len >= FULL {
            self.run();
        }
        self.group = self.len;
    }

    /// Groups begun.
    pub fn groups(&self) -> u64 {
        self.groups
    }

    /// A store at a physical address (which is mapped to itself), of an entry's size.
    pub fn store(&mut self, at: u64, value: u64) {
        let bytes = super::model::entry_bytes(self.setup.kind);
        self.store_sized(at, bytes, value);
    }

    /// A store of 4 or 8 bytes.
    pub fn store_sized(&mut self, at: u64, bytes: u64, value: u64) {
        predict(at, bytes, value);
        let op = if bytes == 4 { step::STORE4 } else { step::STORE8 };
        self.push(Step::new(op, at, value), Want::Nothing);
    }

    /// A store to an address that the tables must let supervisor mode write.
    pub fn store_through(&mut self, at: u64, bytes: u64, value: u64) {
        let walk = self.foresee(step::WRITE, at);
        let Ok(physical) = walk.result else { return self.c.fail(format_args!("{at:x} is not mapped")) };
        for &(entry, after) in walk.entries() {
            predict(entry, walk.bytes, after);
        }
        predict(physical, bytes, value);
        let op = if bytes == 4 { step::STORE4 } else { step::STORE8 };
        self.push(Step::new(op, at, value), Want::Nothing);
    }

    /// INVLPG
    pub fn invlpg(&mut self, at: u64) {
        self.push(Step::new(step::INVLPG, at, 0), Want::Nothing);
    }

    /// A load of CR3.
    pub fn load_root(&mut self, root: u64) {
        // Bit 63 is not part of the register.
        self.root = root & !(1 << 63);
        self.push(Step::new(step::CR3, 0, root), Want::Nothing);
    }

    /// A load of CR3 with the value that it has.
    pub fn reload(&mut self) {
        self.load_root(self.root);
    }

    /// Changes registers. Paging must be off on one side if PAE changes, or the tables good for both.
    pub fn set(&mut self, setup: Setup) {
        let before = core::mem::replace(&mut self.setup, setup);
        if setup.efer() != before.efer() {
            self.push(Step::new(step::NXE, 0, setup.efer()), Want::Nothing);
        }
        if setup.kind == Kind::Off && before.kind != Kind::Off {
            self.push(Step::new(step::CR0, 0, setup.cr0()), Want::Nothing);
        }
        if setup.cr4() != before.cr4() {
            self.push(Step::new(step::CR4, 0, setup.cr4()), Want::Nothing);
        }
        if setup.cr0() != before.cr0() && (setup.kind != Kind::Off || before.kind == Kind::Off) {
            self.push(Step::new(step::CR0, 0, setup.cr0()), Want::Nothing);
        }
    }

    /// What the model says about an access now.
    pub fn foresee(&self, op: u32, at: u64) -> Walk {
        walk(&self.setup, &self.cpu, self.root, predicted, op, at)
    }

    /// The same under another root.
    pub fn foresee_under(&self, root: u64, op: u32, at: u64) -> Walk {
        walk(&self.setup, &self.cpu, root, predicted, op, at)
    }

    /// The same if the entry at `entry` held `value`.
    pub fn foresee_with(&self, entry: u64, value: u64, op: u32, at: u64) -> Walk {
        let memory = |at, bytes| if at == entry { value } else { predicted(at, bytes) };
        walk(&self.setup, &self.cpu, self.root, memory, op, at)
    }

    fn outcome(&self, op: u32, walk: &Walk) -> Outcome {
        let value = walk.result.ok().and_then(|physical| match op & 3 {
            step::READ | step::MODIFY => Some(predicted(physical, 4)),
            step::EXECUTE => Some(predicted(physical + 1, 4)),
            _ => None,
        });
        Outcome { fault: walk.result.err(), value }
    }

    /// An access whose translation has been flushed since it was last changed: it goes by the tables.
    pub fn access(&mut self, op: u32, at: u64) -> Walk {
        let walk = self.foresee(op, at);
        self.access_wanted(op, at, walk, [None; 2])
    }

    /// An access that may also go by what `older` says (from [`Script::foresee`]), because nothing was flushed since. The tables
    /// end up as by the new translation; bits A and D are not compared.
    pub fn access_stale(&mut self, op: u32, at: u64, older: Walk) -> Walk {
        let walk = self.foresee(op, at);
        self.leave_uncertain(A | 1 << 6);
        self.access_wanted(op, at, walk, [Some(older), None])
    }

    /// The same with two others.
    pub fn access_one_of(&mut self, op: u32, at: u64, others: &[Walk; 2]) -> Walk {
        let walk = self.foresee(op, at);
        self.leave_uncertain(A | 1 << 6);
        self.access_wanted(op, at, walk, others.map(Some))
    }

    fn access_wanted(&mut self, op: u32, at: u64, walk: Walk, older: [Option<Walk>; 2]) -> Walk {
        self.counter += 1;
        let value = self.counter;
        // The bits are set before the access, which may be to the entries themselves.
        for &(entry, after) in walk.entries() {
            predict(entry, walk.bytes, after);
        }
        let want = self.outcome(op, &walk);
        let other = older.map(|older| older.map(|older| self.outcome(op, &older)));
        if let Ok(physical) = walk.result {
            match op & 3 {
                step::WRITE => predict(physical, 4, value),
                step::MODIFY => predict(physical, 4, predicted(physical, 4) + value),
                _ => {}
            }
        }
        let early = self.setup.kind == Kind::Pae || (walk.at_gib_page && walk.result.is_err());
        // Whether a walk that faults marks the tables on its way as accessed is up to the processor. QEMU's emulation always
        // does; so the hypervisor's guests there must not see anything else.
        let quirk = if self.cpu.tcg { op & 3 == step::MODIFY || early } else { walk.result.is_err() };
        if quirk {
            self.leave_uncertain(A);
        }
        self.push(Step::new(op, at, value), Want::Access(want, other));
        walk
    }

    /// Memory at a physical address must be as predicted; returns that.
    pub fn load(&mut self, at: u64, bytes: u64) -> u64 {
        let value = predicted(at, bytes);
        let op = if bytes == 4 { step::LOAD4 } else { step::LOAD8 };
        self.push(Step::new(op, at, value), Want::Value { value, ignore: self.uncertain });
        value
    }

    /// A step that raises an exception; or, if `or_nothing`, none.
    pub fn raises(&mut self, step: Step, vector: u8, error: u32, or_nothing: bool) {
        self.push(step, Want::Raises(vector, error, or_nothing));
    }

    /// Another kind of step that does not fault.
    pub fn step(&mut self, step: Step) {
        self.push(step, Want::Nothing);
    }

    fn leave_uncertain(&mut self, bits: u64) {
        self.uncertain |= bits;
        self.ever_uncertain |= bits;
    }

    /// Everything uncertain that will be compared has been written again.
    pub fn settle(&mut self) {
        self.uncertain = 0;
    }

    /// Performs the steps, compares, and leaves an empty script that goes on with the registers reached.
    pub fn run(&mut self) {
        if self.len == 0 {
            return;
        }
        // SAFETY: written by push; nothing else refers to them.
        let steps = unsafe { core::slice::from_raw_parts_mut(STEPS as *mut Step, self.len + 1) };
        steps[self.len] = Step::new(step::END, 0, 0);
        self.perform(&mut steps[..]);
        for (i, step) in steps[..self.len].iter().enumerate() {
            // SAFETY: as above.
            let (group, want) = unsafe { *(WANTS as *const (u32, Want)).add(i) };
            match want.judge(step, self.cpu.tcg) {
                Verdict::Good => {}
                Verdict::Known => self.c.known += 1,
                Verdict::Bad => self.report(&steps[group as usize..=i], want),
            }
        }
        self.compare_memory();
        self.space.look();
        (self.first, self.len, self.group) = ((self.setup, self.root), 0, 0);
        (self.uncertain, self.ever_uncertain) = (0, 0);
    }

    fn perform(&mut self, steps: &mut [Step]) {
        let (setup, root) = self.first;
        if space::is_long(&setup) {
            let end = steps.len() - 1;
            set_cr0(setup.cr0());
            // Global entries of earlier scripts go with CR4.PGE.
            set_cr4(setup.cr4() ^ 0x80);
            set_cr4(setup.cr4());
            step::run(&mut [Step::new(step::NXE, 0, setup.efer())], 0);
            set_cr3(root);
            step::run(&mut steps[..end], USER_BASE);
            set_cr0(0x8001_0033);
            set_cr4(0x620);
            step::run(&mut [Step::new(step::NXE, 0, 0x800)], 0);
            set_cr3(self.space.root);
        } else {
            let user_base = USER_BASE_32 as u32;
            let (cr0, cr4) = (setup.cr0() as u32, setup.cr4() as u32);
            let efer = setup.efer() as u32;
            legacy::run(Job { cr0, cr3: root as u32, cr4, efer, steps: 0, user_base }, steps);
        }
    }

    /// Tables and targets must be as predicted.
    fn compare_memory(&mut self) {
        let (mut different, mut first) = (0, (0, 0, 0));
        let ignore = self.ever_uncertain | self.ever_uncertain << 32;
        self.space.each_word(|at, mirror| {
            let (got, want) = (peek::<u64>(at), peek::<u64>(mirror));
            if (got ^ want) & !ignore != 0 {
                if different == 0 {
                    first = (at, got, want);
                }
                different += 1;
            }
        });
        if different > 0 {
            let (at, got, want) = first;
            self.c.fail(format_args!(
                "memory after a script: {different} words; [{at:x}]: expected {want:x}, got {got:x}"
            ));
        }
    }

    fn report(&mut self, steps: &[Step], want: Want) {
        let Some((last, before)) = steps.split_last() else { return };
        let kind = self.first.0.kind;
        if self.c.failures < PRINTED {
            say!("  {kind:?}, registers at first {:x?}:", self.first.0);
            for step in before {
                say!("    {step}");
            }
            say!("    {last}: expected {want:x?}, got {}", Got(last));
        }
        self.c.fail(format_args!("{kind:?}: {last}: expected {want:x?}, got {}", Got(last)));
    }
}

impl Drop for Script<'_> {
    fn drop(&mut self) {
        self.run();
    }
}
