//! The lifecycle of a VM as a state machine: events in, actions out.
//!
//! It has no clock, no lock and no hardware, so that it runs under `cargo test`. [`super::guest`] keeps one for each VM behind a lock;
//! [`super::lifecycle`] and [`super::session`] tell it what happens and perform the actions that it returns.
//!
//! ```text
//!             Began            Stop            Descheduled
//! Transition ──────► Running ──────► Stopping ────────────► Transition ──► the VM is removed (Action::End)
//!     ▲                                ▲                        │
//!     │ Began                          │ Stop, Failed           │ BeginRestart (Action::Restart)
//!     └──────────── Restarting ────────┘◄───────────────────────┘
//! ```
//!
//! What must hold: a VM is ended or restarted by one PCPU, after all its VCPUs have left theirs; while it restarts, only its first
//! VCPU is on a PCPU; the first reason to stop counts; the operator's restart does not wait, a guest's does if it resets again and
//! again.

use alloc::string::String;
use core::sync::atomic::{AtomicU32, Ordering};

use super::restart::{Restart, Step};
use crate::monitor::vms::{Action as Command, Refused};
use crate::vcpu::outcome::Stop;

/// Why a VM has stopped.
#[derive(Debug)]
pub enum End {
    /// It ran, and stopped.
    Stop(Stop),
    /// It could not be restarted: why, and the run's exit status.
    Failed(String, u32),
}

/// What the operator has requested: it outlasts the monitor session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdminState {
    /// It runs.
    Running,
    /// Paused until it is resumed.
    Paused,
    /// Powered off; its memory is kept.
    Off,
}

/// What a command of the operator does to a VM that is descheduled.
#[derive(Debug)]
pub enum Order {
    /// It stops for this reason, and ends or restarts.
    Stop(Stop),
    /// It stays as it is, and runs or not by this state.
    Set(AdminState),
}

impl AdminState {
    /// What `command` does to a VM in this state.
    ///
    /// # Errors
    /// It does not fit the state.
    pub fn admit(self, command: Command) -> Result<Order, Refused> {
        match command {
            Command::Start if self != AdminState::Off => Err(Refused::Runs),
            Command::Pause | Command::Resume if self == AdminState::Off => Err(Refused::Stopped),
            Command::Start | Command::Restart => Ok(Order::Stop(Stop::Restart)),
            Command::PowerOff => Ok(Order::Stop(Stop::PowerOff)),
            Command::Destroy => Ok(Order::Stop(Stop::Destroyed)),
            Command::Stop => Ok(Order::Set(AdminState::Off)),
            Command::Pause => Ok(Order::Set(AdminState::Paused)),
            Command::Resume => Ok(Order::Set(AdminState::Running)),
        }
    }
}

/// What happens to a VM. Times are of the host's TSC.
#[derive(Debug)]
pub enum Event {
    /// Its memory is loaded and its VCPUs are as after RESET, at this time.
    Began(u64),
    /// A VCPU or the operator stops it.
    Stop(Stop),
    /// No PCPU has one of its VCPUs.
    Descheduled,
    /// The PCPU that got [`Action::Restart`] begins the restart.
    BeginRestart(Stop),
    /// Its first VCPU has a time slice, at this time.
    Slice(u64),
    /// It cannot be restarted: why, and the run's exit status.
    Failed(String, u32),
}

/// What is to be done after an event.
#[derive(Debug)]
#[must_use]
pub enum Action {
    /// Nothing.
    Nothing,
    /// Pause its VCPUs.
    Pause,
    /// Resume the VCPUs that may run ([`Lifecycle::runnable`]).
    Resume,
    /// End it: the caller alone does that.
    End(End),
    /// Restart it by [`Event::BeginRestart`]: the caller alone does that.
    Restart(Stop),
    /// Perform this step of its restart.
    Step(Step),
}

/// The state of a VM.
#[derive(Debug)]
enum State {
    /// It runs, unless it is paused.
    Running,
    /// It has stopped; its VCPUs may still be on PCPUs.
    Stopping(End),
    /// A PCPU performs its start, end or restart.
    Transition,
    /// It restarts, in the time slices of its first VCPU; the others are descheduled.
    Restarting(Restart),
}

/// A VM's lifecycle.
#[derive(Debug)]
pub struct Lifecycle {
    state: State,
    admin: AdminState,
    /// Host TSC at its last start or reset.
    started: u64,
    /// It restarts when it dies.
    restart_on_death: bool,
    tsc_khz: u64,
}

impl Lifecycle {
    /// That of a VM which is being made.
    pub fn new(restart_on_death: bool, tsc_khz: u64, now: u64) -> Lifecycle {
        let (state, admin) = (State::Transition, AdminState::Running);
        Lifecycle { state, admin, started: now, restart_on_death, tsc_khz }
    }

    /// Takes note of an event.
    pub fn on(&mut self, event: Event) -> Action {
        match event {
            Event::Began(now) => {
                if !matches!(self.state, State::Transition | State::Restarting(_)) {
                    return Action::Nothing;
                }
                (self.started, self.admin, self.state) = (now, AdminState::Running, State::Running);
                Action::Resume
            }
            Event::Stop(stop) => {
                // The first reason to stop counts: another VCPU may stop, too, before all are descheduled.
                if matches!(self.state, State::Running | State::Restarting(_)) {
                    self.state = State::Stopping(End::Stop(stop));
                }
                Action::Pause
            }
            Event::Descheduled => match core::mem::replace(&mut self.state, State::Transition) {
                // To one caller alone: the state changes with the event, so that of two PCPUs that see the VM descheduled
                // one gets the end.
                State::Stopping(End::Stop(stop)) if self.restarts(&stop) => Action::Restart(stop),
                State::Stopping(end) => Action::End(end),
                other => {
                    self.state = other;
                    Action::Nothing
                }
            },
            Event::BeginRestart(stop) => {
                self.state = State::Restarting(Restart::new(stop, self.started, self.tsc_khz));
                Action::Resume
            }
            Event::Slice(now) => match &mut self.state {
                State::Restarting(restart) => Action::Step(restart.next(now)),
                _ => Action::Nothing,
            },
            Event::Failed(why, status) => {
                if self.is_restarting() {
                    self.state = State::Stopping(End::Failed(why, status));
                }
                Action::Pause
            }
        }
    }

    fn restarts(&self, stop: &Stop) -> bool {
        match stop {
            Stop::Reset | Stop::Restart => true,
            Stop::Died(_) => self.restart_on_death,
            Stop::PowerOff | Stop::Destroyed | Stop::TestExit(_) => false,
        }
    }

    /// How many of its VCPUs, from the first on, may run: all `vcpus` of a running VM, the first of one that restarts.
    pub fn runnable(&self, vcpus: usize) -> usize {
        match self.state {
            State::Running => vcpus,
            State::Restarting(_) => 1,
            State::Stopping(_) | State::Transition => 0,
        }
    }

    /// Whether it runs, unless it is paused.
    pub fn is_running(&self) -> bool {
        matches!(self.state, State::Running)
    }

    /// Whether it restarts.
    pub fn is_restarting(&self) -> bool {
        matches!(self.state, State::Restarting(_))
    }

    /// Whether it has stopped, and is not ended or restarted yet.
    pub fn is_stopping(&self) -> bool {
        matches!(self.state, State::Stopping(_) | State::Transition)
    }

    /// Host TSC at its last start or reset.
    pub fn started(&self) -> u64 {
        self.started
    }

    /// The operator's request.
    pub fn admin_state(&self) -> AdminState {
        self.admin
    }

    /// Sets the operator's request. The caller pauses or resumes the VCPUs.
    pub fn set_admin_state(&mut self, admin: AdminState) {
        self.admin = admin;
    }
}

/// Counts a VM until its memory has been freed.
#[derive(Debug)]
pub struct MemoryRef(&'static AtomicU32);

impl MemoryRef {
    /// Counts in this word until it is dropped.
    pub fn new(count: &'static AtomicU32) -> MemoryRef {
        count.fetch_add(1, Ordering::SeqCst);
        MemoryRef(count)
    }
}

impl Drop for MemoryRef {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests;
