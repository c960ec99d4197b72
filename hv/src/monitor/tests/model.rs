//! A machine of scripted VMs, and a terminal with scripted input.

use alloc::collections::VecDeque;

use crate::mem::tier::Tiers;
use crate::monitor::view::{HostReport, View};
use crate::monitor::vms::{Action, Look, Refused, State, Summary, Vms};
use crate::monitor::{Key, Monitor, Terminal};
use crate::vcpu::testing::{Memory, START, Scene, TSC_KHZ};
use crate::virt::fake::Fake;

/// When everything happens.
pub const NOW: u64 = START + 1234 * TSC_KHZ;

/// The machine, and what is typed and shown.
pub struct World {
    /// A read after the script's end fails the test.
    keys: VecDeque<Key>,
    shown: Vec<u8>,
    /// The VMs; those that are absent keep their scene.
    pub vms: Vec<(Scene, State)>,
    /// The one that has the console.
    pub console: usize,
    /// The one that is looked at.
    pub selected: Option<usize>,
    /// All that was done.
    pub done: Vec<(Action, usize)>,
}

impl World {
    /// A machine on which these VMs run.
    pub fn new(scenes: impl IntoIterator<Item = Scene>) -> World {
        let vms = scenes.into_iter().map(|scene| (scene, State::Running)).collect();
        World { keys: VecDeque::new(), shown: vec![], vms, console: 0, selected: None, done: vec![] }
    }
}

impl Terminal for World {
    fn key(&mut self) -> Key {
        self.keys.pop_front().unwrap_or_else(|| panic!("{}", String::from_utf8_lossy(&self.shown)))
    }

    fn write(&mut self, byte: u8) {
        self.shown.push(byte);
    }
}

impl Vms for World {
    type Virt = Fake;
    type Memory = Memory;

    fn count(&self) -> usize {
        self.vms.len()
    }

    fn name(&self, vm: usize) -> &str {
        &self.vms[vm].0.vm.name
    }

    fn tsc_khz(&self) -> u64 {
        TSC_KHZ
    }

    fn console(&self) -> usize {
        self.console
    }

    fn set_console(&mut self, vm: usize) {
        self.console = vm;
    }

    fn state(&self, vm: usize) -> State {
        self.vms[vm].1
    }

    fn select(&mut self, vm: usize) {
        self.selected = Some(vm);
    }

    fn deselect(&mut self) {
        self.selected = None;
    }

    fn summary(&mut self, vm: usize) -> Option<Summary> {
        let (Scene { vm, vcpus }, state) = &self.vms[vm];
        (*state != State::Absent).then(|| Summary {
            vcpus: vcpus.len(),
            memory_bytes: vm.layout.ram_bytes(),
            mode: vm.translation.mode(),
            uptime: NOW - START,
            ran: (NOW - START) / 2,
            exits: vcpus[0].exits.total().count,
        })
    }

    fn look(&mut self, vm: usize, f: &mut Look<'_, Fake, Memory>) -> bool {
        let (Scene { vm, vcpus }, state) = &mut self.vms[vm];
        if *state == State::Absent {
            return false;
        }
        f(&mut View { vm, vcpus, started: START, tsc: NOW, clock: &|| NOW });
        true
    }

    fn tiers(&self, vm: usize, f: &mut dyn FnMut(&Tiers)) -> bool {
        let (Scene { vm, .. }, state) = &self.vms[vm];
        let tiers = vm.tiers.as_deref().filter(|_| *state != State::Absent);
        tiers.map(f).is_some()
    }

    fn act(&mut self, action: Action, vm: usize) -> Result<(), Refused> {
        let state = &mut self.vms[vm].1;
        *state = match (action, *state) {
            (Action::Start, State::Running | State::Paused) => return Err(Refused::Runs),
            (Action::Start, _) => State::Running,
            (_, State::Absent) => return Err(Refused::Absent),
            (Action::Pause | Action::Resume, State::Stopped) => return Err(Refused::Stopped),
            (Action::Pause, _) => State::Paused,
            (Action::Stop, _) => State::Stopped,
            (Action::Resume | Action::Restart, _) => State::Running,
            (Action::PowerOff | Action::Destroy, _) => State::Absent,
        };
        self.done.push((action, vm));
        Ok(())
    }
}

/// Types `text`, in which `^` stands for Ctrl-a p, until it leads out of the monitor. What is shown.
pub fn converse(monitor: &mut Monitor, world: &mut World, text: &str) -> String {
    world.keys = text.bytes().map(|byte| if byte == b'^' { Key::Monitor } else { Key::Byte(byte) }).collect();
    monitor.enter(world, || HostReport { tsc_khz: TSC_KHZ, pcpus: 1, ..HostReport::default() });
    assert!(world.keys.is_empty(), "left before {:?}", world.keys);
    let shown = String::from_utf8(core::mem::take(&mut world.shown)).expect("UTF-8");
    assert!(shown.replace("\r\n", "").find('\n').is_none(), "line feeds without carriage return");
    shown.replace("\r\n", "\n")
}

/// The answer to one command that is about a VM and does not lead out.
pub fn answer(scene: &mut Scene, command: &str) -> String {
    let mut world = World::new([core::mem::take(scene)]);
    let shown = converse(&mut Monitor::default(), &mut world, &format!("{command}\r^"));
    *scene = world.vms.remove(0).0;
    let start = shown.find(command).expect("echo") + command.len() + 1;
    let end = shown.rfind("monitor> ").expect("prompt");
    shown[start..end].to_string()
}
