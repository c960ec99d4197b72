//! The machine's VMs as the monitor steers them, by their numbers in the configuration.
//!
//! Implemented by `vmm::visit` for the running machine, and by a model in the tests. What must hold: a VM whose person looks at it
//! ([`Vms::keep`]) stands still until [`Vms::release`]; the others go on, but for the moment in which they are counted.

use alloc::format;
use alloc::string::{String, ToString};
use core::fmt;

use super::view::View;
use crate::paging::policy::Mode;
use crate::virt::Virt;
use crate::vm::HostMemory;

/// How a VM is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It runs, or would if nobody looked at it.
    Running,
    /// It stands still until it is resumed.
    Paused,
    /// It is switched off, with its memory as it was.
    Stopped,
    /// It has ended, or was destroyed: it has no memory.
    Absent,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            State::Running => "running",
            State::Paused => "paused",
            State::Stopped => "stopped",
            State::Absent => "-",
        })
    }
}

/// What a person can do to a VM as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Start one that is stopped or absent.
    Start,
    /// Switch it off; its memory stays as it is.
    Stop,
    /// Let it stand still, also after the monitor is left.
    Pause,
    /// Let it go on.
    Resume,
    /// Boot it anew.
    Restart,
    /// Switch it off as it would do itself: it ends.
    PowerOff,
    /// Take it away; its memory is filled with zeroes and given back.
    Destroy,
}

impl Action {
    /// What it has come to, for people; `name` is the VM's.
    pub fn done(self, name: &str) -> String {
        match self {
            Action::Start => format!("{name} starts"),
            Action::Stop => {
                format!("{name} is off; its memory can be looked at until `start {name}` or `destroy {name}`")
            }
            Action::Pause => format!("{name} stands still until `resume`, also after you leave"),
            Action::Resume => format!("{name} goes on"),
            Action::Restart => format!("{name} boots anew"),
            Action::PowerOff => format!("{name} has ended"),
            Action::Destroy => format!("{name} is gone, and its memory free"),
        }
    }
}

/// Why an action was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The VM is not there.
    Absent,
    /// It is there already.
    Runs,
    /// It is switched off.
    Stopped,
    /// It could not be started, for this reason.
    Failed(String),
}

impl Refused {
    /// For people, with what to do; `name` is the VM's.
    pub fn explain(&self, name: &str) -> String {
        match self {
            Refused::Absent => format!("{name} is not there; `start {name}` starts it"),
            Refused::Runs => format!("{name} is there already; `restart {name}` boots it anew"),
            Refused::Stopped => format!("{name} is off; `start {name}` starts it"),
            Refused::Failed(why) => format!("{name} cannot be started: {why}"),
        }
    }
}

/// A VM in a line. Times are ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Virtual processors.
    pub vcpus: usize,
    /// RAM.
    pub memory_bytes: u64,
    /// How its memory is virtualized.
    pub mode: Mode,
    /// Since its last start or reset.
    pub uptime: u64,
    /// Time that its VCPUs ran, added up, since it was made.
    pub ran: u64,
    /// Exits since its last start or reset.
    pub exits: u64,
}

/// What is done with a VM that stands still.
pub type Look<'f, V, M> = dyn FnMut(&mut View<'_, V, M>) + 'f;

/// The VMs of the configuration.
pub trait Vms {
    /// The virtualization of their VCPUs.
    type Virt: Virt;
    /// Their memory.
    type Memory: HostMemory;

    /// How many there are.
    fn count(&self) -> usize;

    /// The name of one.
    fn name(&self, vm: usize) -> &str;

    /// Frequency of the TSC.
    fn tsc_khz(&self) -> u64;

    /// Which one has the console.
    fn console(&self) -> usize;

    /// Gives one the console.
    fn set_console(&mut self, vm: usize);

    /// How one is.
    fn state(&self, vm: usize) -> State;

    /// One is looked at from now on. Any other is not.
    fn keep(&mut self, vm: usize);

    /// The one that was looked at goes on, if it may.
    fn release(&mut self);

    /// One in a line; `None` if it is absent.
    fn summary(&mut self, vm: usize) -> Option<Summary>;

    /// Shows one that is kept to `f`. False: it is absent.
    fn look(&mut self, vm: usize, f: &mut Look<'_, Self::Virt, Self::Memory>) -> bool;

    /// Does something to one.
    fn act(&mut self, action: Action, vm: usize) -> Result<(), Refused>;
}

/// The number of a VM by its name, or what to tell the person.
pub fn find(vms: &impl Vms, name: &str) -> Result<usize, String> {
    (0..vms.count()).find(|vm| vms.name(*vm) == name).ok_or_else(|| {
        let mut answer = format!("no VM is called {name}; there are");
        for vm in 0..vms.count() {
            answer += if vm == 0 { " " } else { ", " };
            answer += vms.name(vm);
        }
        answer.to_string()
    })
}
