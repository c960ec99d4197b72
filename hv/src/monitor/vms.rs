//! What the monitor needs from the machine's VMs, which it names by their index in the configuration.
//!
//! Implemented by `vmm::session` for the running machine, and by a model in the tests. What must hold: the
//! selected VM ([`Vms::select`]) is paused until [`Vms::deselect`]; the others run, except while they are counted.

use alloc::format;
use alloc::string::{String, ToString};
use core::fmt;

use super::view::View;
use crate::mem::tier::Tiers;
use crate::paging::policy::Mode;
use crate::virt::Virt;
use crate::vm::HostMemory;

/// A VM's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It runs, or would run if it were not selected.
    Running,
    /// Paused until it is resumed.
    Paused,
    /// Powered off; its memory is kept.
    Stopped,
    /// Ended or destroyed: it has no memory.
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

/// An operation on a VM as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Start one that is stopped or absent.
    Start,
    /// Power it off; keep its memory.
    Stop,
    /// Pause it, also after the end of the monitor session.
    Pause,
    /// Resume it.
    Resume,
    /// Reboot it.
    Restart,
    /// Power it off as the guest itself would: it ends.
    PowerOff,
    /// Destroy it; its memory is cleared and freed.
    Destroy,
}

impl Action {
    /// The answer when it is done; `name` is the VM's.
    pub fn done(self, name: &str) -> String {
        match self {
            Action::Start => format!("{name} starts"),
            Action::Stop => {
                format!("{name} is off; its memory is kept until `start {name}` or `destroy {name}`")
            }
            Action::Pause => format!("{name} is paused until `resume`, also after you quit the monitor"),
            Action::Resume => format!("{name} resumed"),
            Action::Restart => format!("{name} restarts"),
            Action::PowerOff => format!("{name} has ended"),
            Action::Destroy => format!("{name} destroyed, its memory freed"),
        }
    }
}

/// Why an action was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The VM is absent.
    Absent,
    /// It has been started already.
    Runs,
    /// It is powered off.
    Stopped,
    /// It cannot be started, for this reason.
    Failed(String),
}

impl Refused {
    /// The answer, with the next step; `name` is the VM's.
    pub fn explain(&self, name: &str) -> String {
        match self {
            Refused::Absent => format!("{name} has ended or was destroyed; `start {name}` starts it"),
            Refused::Runs => format!("{name} has been started already; `restart {name}` reboots it"),
            Refused::Stopped => format!("{name} is off; `start {name}` starts it"),
            Refused::Failed(why) => format!("{name} cannot be started: {why}"),
        }
    }
}

/// A row of the list of VMs. Times are TSC ticks.
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
    /// CPU time: the sum of its VCPUs' run time since it was created.
    pub ran: u64,
    /// Exits since its last start or reset.
    pub exits: u64,
}

/// A function on a paused VM.
pub type Look<'f, V, M> = dyn FnMut(&mut View<'_, V, M>) + 'f;

/// The VMs of the configuration.
pub trait Vms {
    /// The virtualization of their VCPUs.
    type Virt: Virt;
    /// Their memory.
    type Memory: HostMemory;

    /// Their number.
    fn count(&self) -> usize;

    /// The name of one.
    fn name(&self, vm: usize) -> &str;

    /// Frequency of the TSC.
    fn tsc_khz(&self) -> u64;

    /// The one that has the console.
    fn console(&self) -> usize;

    /// Gives one the console.
    fn set_console(&mut self, vm: usize);

    /// The state of one.
    fn state(&self, vm: usize) -> State;

    /// Selects one: it is paused, and the one selected before may run again.
    fn select(&mut self, vm: usize);

    /// Ends the selection: the selected one runs again, unless its own state forbids it.
    fn deselect(&mut self);

    /// The row of one; `None` if it is absent.
    fn summary(&mut self, vm: usize) -> Option<Summary>;

    /// Calls `f` on one, which is paused meanwhile. False: it is absent.
    fn look(&mut self, vm: usize, f: &mut Look<'_, Self::Virt, Self::Memory>) -> bool;

    /// Calls `f` on the fast memory of one, which goes on. False: it is absent, or has no part of any.
    fn tiers(&self, vm: usize, f: &mut dyn FnMut(&Tiers)) -> bool;

    /// Performs an action on one.
    fn act(&mut self, action: Action, vm: usize) -> Result<(), Refused>;
}

/// The index of a VM by its name, or the answer that says that there is none.
pub fn find(vms: &impl Vms, name: &str) -> Result<usize, String> {
    (0..vms.count()).find(|vm| vms.name(*vm) == name).ok_or_else(|| {
        let mut answer = format!("no VM named {name}; the VMs are");
        for vm in 0..vms.count() {
            answer += if vm == 0 { " " } else { ", " };
            answer += vms.name(vm);
        }
        answer.to_string()
    })
}
