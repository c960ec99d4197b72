use std::boxed::Box;
use std::vec::Vec;

use proptest::prelude::*;
use proptest::strategy::ValueTree;

use super::*;
use crate::arch::state::ArchState;
use crate::vcpu::outcome::{Cause, Death};

const KHZ: u64 = 1000;
/// Ticks that a guest waits which resets itself at once.
const BRAKE: u64 = 100 * KHZ;
/// Pieces of a VM's memory.
const PIECES: u64 = 3;
const VCPUS: usize = 3;

fn death() -> Stop {
    let state = ArchState::default();
    Stop::Died(Box::new(Death { cause: Cause::TripleFault, what: "boom".into(), state }))
}

fn running(restart_on_death: bool) -> Lifecycle {
    let mut vm = Lifecycle::new(restart_on_death, KHZ, 7);
    assert!(!vm.is_running() && vm.is_stopping() && vm.runnable(VCPUS) == 0);
    assert!(matches!(vm.on(Event::Began(7)), Action::Resume));
    assert!(vm.is_running() && vm.runnable(VCPUS) == VCPUS);
    vm
}

#[test]
fn the_first_reason_to_stop_counts_and_is_given_out_once() {
    let mut vm = running(false);
    assert!(matches!(vm.on(Event::Descheduled), Action::Nothing), "it is only paused");
    assert!(matches!(vm.on(Event::Stop(Stop::PowerOff)), Action::Pause));
    assert!(matches!(vm.on(Event::Stop(Stop::Reset)), Action::Pause));
    assert!(matches!(vm.on(Event::Descheduled), Action::End(End::Stop(Stop::PowerOff))));
    assert!(matches!(vm.on(Event::Descheduled), Action::Nothing));
    assert!(matches!(vm.on(Event::Stop(Stop::Destroyed)), Action::Pause));
    assert!(matches!(vm.on(Event::Descheduled), Action::Nothing), "its end is being performed");
}

#[test]
fn what_restarts() {
    for (stop, on_death, restarts) in [
        (Stop::Reset, false, true),
        (Stop::Restart, false, true),
        (death(), false, false),
        (death(), true, true),
        (Stop::PowerOff, true, false),
        (Stop::Destroyed, true, false),
        (Stop::TestExit(3), true, false),
    ] {
        let mut vm = running(on_death);
        let _ = vm.on(Event::Stop(stop));
        let action = vm.on(Event::Descheduled);
        assert_eq!(matches!(action, Action::Restart(_)), restarts, "{action:?}");
        assert_eq!(matches!(action, Action::End(_)), !restarts, "{action:?}");
    }
}

#[test]
fn a_restart_that_fails_is_an_end_and_a_stop_before_it_counts() {
    let failed = || Event::Failed("no memory".into(), 2);
    let restarting = || {
        let mut vm = running(false);
        let _ = vm.on(Event::Stop(Stop::Reset));
        let Action::Restart(stop) = vm.on(Event::Descheduled) else { panic!() };
        assert!(matches!(vm.on(Event::BeginRestart(stop)), Action::Resume));
        assert!(vm.is_restarting() && vm.runnable(VCPUS) == 1);
        vm
    };
    let mut vm = restarting();
    assert!(matches!(vm.on(failed()), Action::Pause));
    assert!(matches!(vm.on(Event::Slice(9)), Action::Nothing));
    assert!(matches!(vm.on(Event::Descheduled), Action::End(End::Failed(_, 2))));
    let mut vm = restarting();
    let _ = vm.on(Event::Stop(Stop::Destroyed));
    let _ = vm.on(failed());
    assert!(matches!(vm.on(Event::Began(9)), Action::Nothing), "a stopped VM does not begin");
    assert!(matches!(vm.on(Event::Descheduled), Action::End(End::Stop(Stop::Destroyed))));
}

#[test]
fn commands_fit_the_operators_state() {
    use AdminState::{Off, Paused, Running};
    for state in [Running, Paused, Off] {
        assert_eq!(state.admit(Command::Start).is_ok(), state == Off);
        for command in [Command::Pause, Command::Resume] {
            assert_eq!(state.admit(command).is_ok(), state != Off);
        }
        assert!(matches!(state.admit(Command::Restart), Ok(Order::Stop(Stop::Restart))));
        assert!(matches!(state.admit(Command::Destroy), Ok(Order::Stop(Stop::Destroyed))));
        assert!(matches!(state.admit(Command::PowerOff), Ok(Order::Stop(Stop::PowerOff))));
        assert!(matches!(state.admit(Command::Stop), Ok(Order::Set(Off))));
    }
}

/// A machine around the lifecycle of one VM: a scheduler, VCPUs on PCPUs, an operator.
struct Machine {
    vm: Lifecycle,
    on_pcpu: [bool; VCPUS],
    paused: [bool; VCPUS],
    /// An end or restart that a PCPU performs.
    performs: Option<Action>,
    /// The reason of the restart that goes on: whether the operator asked for it, and whether it is reported.
    restart: Option<(bool, bool)>,
    memory: &'static AtomicU32,
    memory_ref: Option<MemoryRef>,
    now: u64,
}

impl Machine {
    fn new(restart_on_death: bool) -> Machine {
        let memory: &'static AtomicU32 = Box::leak(Box::default());
        Machine {
            vm: running(restart_on_death),
            on_pcpu: [false; VCPUS],
            paused: [false; VCPUS],
            performs: None,
            restart: None,
            memory,
            memory_ref: Some(MemoryRef::new(memory)),
            now: 7,
        }
    }

    fn is_descheduled(&self) -> bool {
        self.on_pcpu == [false; VCPUS]
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::Nothing => {}
            Action::Pause => self.paused = [true; VCPUS],
            Action::Resume => self.paused[..self.vm.runnable(VCPUS)].fill(false),
            Action::Step(step) => self.step(step),
            Action::End(_) | Action::Restart(_) => {
                assert!(self.performs.is_none(), "two PCPUs end or restart it");
                assert!(self.is_descheduled(), "ended or restarted with a VCPU on a PCPU");
                self.performs = Some(action);
            }
        }
    }

    fn on(&mut self, event: Event) {
        let action = self.vm.on(event);
        self.perform(action);
    }

    fn reap(&mut self) {
        if !self.vm.is_running() && self.is_descheduled() {
            self.on(Event::Descheduled);
        }
    }

    /// The PCPU that ends or restarts it goes on.
    fn proceed(&mut self) {
        match self.performs.take() {
            Some(Action::Restart(stop)) => {
                self.restart = Some((matches!(stop, Stop::Restart), false));
                self.on(Event::BeginRestart(stop));
            }
            Some(Action::End(_)) => self.memory_ref = None,
            _ => {}
        }
    }

    fn step(&mut self, step: Step) {
        let (by_operator, reported) = self.restart.as_mut().expect("a step of no restart");
        assert_eq!(matches!(step, Step::Report(_)), !*reported, "a report comes first, and once");
        match step {
            Step::Report(stop) => {
                assert_eq!(
                    matches!(stop, Stop::Restart),
                    *by_operator,
                    "an operator's restart is no guest's"
                );
                *reported = true;
            }
            Step::Wait(due) => {
                assert!(!*by_operator, "the operator does not wait");
                assert!(due > self.now && due == self.vm.started() + BRAKE);
                self.on_pcpu[0] = false;
                self.reap();
            }
            Step::Clear(piece) => {
                assert!(*by_operator || self.now >= self.vm.started() + BRAKE, "a reset loop is braked");
                assert_eq!(self.on_pcpu[1..], [false; VCPUS - 1], "cleared under a VCPU");
                if piece == PIECES {
                    self.restart = None;
                    self.on(match self.now % 5 {
                        0 => Event::Failed("no kernel".into(), 2),
                        _ => Event::Began(self.now),
                    });
                }
            }
        }
    }

    /// The operator's command, as a monitor session performs it.
    fn command(&mut self, command: Command) {
        // A PCPU that performs an end or restart holds the lock meanwhile.
        if self.performs.is_some() {
            return;
        }
        self.paused = [true; VCPUS];
        if !self.is_descheduled() || self.vm.is_stopping() {
            return;
        }
        match self.vm.admin_state().admit(command) {
            Ok(Order::Stop(stop)) => {
                self.on(Event::Stop(stop));
                self.reap();
                assert!(self.performs.is_some(), "it was descheduled");
                self.proceed();
            }
            Ok(Order::Set(admin)) => self.vm.set_admin_state(admin),
            Err(_) => {}
        }
        self.leave();
    }

    /// The session ends.
    fn leave(&mut self) {
        if self.vm.admin_state() == AdminState::Running {
            self.perform(Action::Resume);
        }
    }

    fn play(&mut self, what: u8, vcpu: usize) {
        let is_on = self.on_pcpu[vcpu];
        let exists = self.memory_ref.is_some();
        match what {
            0..=5 | 37..=44 if exists && !self.paused[vcpu] => self.on_pcpu[vcpu] = true,
            6..=11 if is_on => {
                self.on_pcpu[vcpu] = false;
                self.reap();
            }
            12..=15 if is_on && self.vm.is_running() => {
                let stops = [Stop::Reset, death(), Stop::PowerOff, Stop::Reset];
                self.on(Event::Stop(stops.into_iter().nth(usize::from(what - 12)).unwrap()));
            }
            16..=23 | 45..=60 if self.on_pcpu[0] => self.on(Event::Slice(self.now)),
            24 | 25 | 61..=66 => self.now += BRAKE / 3 + 1,
            26..=28 | 67..=72 => self.proceed(),
            29 | 73..=80 if exists => self.leave(),
            30..=36 if exists => {
                use Command::{Destroy, Pause, PowerOff, Restart, Resume, Start, Stop};
                let commands = [Start, Stop, Pause, Resume, Restart, PowerOff, Destroy];
                self.command(commands[usize::from(what - 30)]);
            }
            _ => {}
        }
    }

    fn check(&self) {
        let exists = self.memory_ref.is_some();
        assert_eq!(self.memory.load(Ordering::SeqCst), u32::from(exists));
        if !exists || self.performs.is_some() {
            assert!(self.is_descheduled() && !self.vm.is_running(), "a VCPU of a VM that ends");
            assert_eq!(self.vm.runnable(VCPUS), 0);
        }
        if self.vm.is_restarting() {
            assert_eq!(self.on_pcpu[1..], [false; VCPUS - 1], "only the first VCPU restarts it");
        }
        let states = [self.vm.is_running(), self.vm.is_restarting(), self.vm.is_stopping()];
        assert_eq!(states.iter().filter(|state| **state).count(), 1);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Whatever happens in whatever order: one PCPU ends or restarts the VM, after all VCPUs have left; only the first VCPU restarts
    /// it, reports first, and is braked unless the operator asked; nothing holds the memory of a VM that has ended.
    #[test]
    fn any_order_of_events(on_death: bool, plays in prop::collection::vec((0u8..81, 0..VCPUS), 0..200)) {
        let mut machine = Machine::new(on_death);
        for (what, vcpu) in plays {
            machine.play(what, vcpu);
            machine.check();
        }
    }
}

/// The random plays reach what they are about.
#[test]
fn the_plays_reach_restarts_and_ends() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let plays = prop::collection::vec((0u8..81, 0..VCPUS), 200);
    let (mut began, mut ended) = (0, 0);
    for _ in 0..500 {
        let mut machine = Machine::new(true);
        let all: Vec<_> = plays.new_tree(&mut runner).unwrap().current();
        let mut was_restarting = false;
        for (what, vcpu) in all {
            machine.play(what, vcpu);
            began += u32::from(was_restarting && machine.vm.is_running());
            was_restarting = machine.vm.is_restarting();
        }
        ended += u32::from(machine.memory_ref.is_none());
    }
    assert!(began > 50 && ended > 50, "{began} restarts were completed, {ended} VMs ended");
}
