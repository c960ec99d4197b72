//! Conversations about several VMs.

use super::model::{World, converse};
use crate::monitor::Monitor;
use crate::monitor::vms::{Action, State};
use crate::vcpu::testing::Scene;

/// Three VMs.
fn world() -> World {
    let scene = |name: &str| {
        let mut scene = Scene::new();
        scene.vm.name = name.into();
        scene
    };
    World::new(["web", "db", "mail"].map(scene))
}

#[test]
fn the_list_tells_who_is_looked_at_and_who_has_the_console() {
    let mut world = world();
    world.vms[2].1 = State::Absent;
    let shown = converse(&mut Monitor::default(), &mut world, "select db\rvms\r^");
    let line = |start: &str| {
        let line = shown.lines().find(|line| line.starts_with(start));
        line.unwrap_or_else(|| panic!("no {start:?} in\n{shown}")).split_whitespace().collect::<Vec<_>>()
    };
    let numbers = ["20", "MiB", "1", "1.234", "s", "0.617", "s", "0", "nested"];
    assert_eq!(line("  web"), [&["web", "running"][..], &numbers, &["console"]].concat());
    assert_eq!(line("* db"), [&["*", "db", "running"][..], &numbers].concat());
    assert_eq!(line("  mail"), ["mail", "-"]);
    assert!(shown.ends_with("monitor: web resumed\n"), "the one that has the console: {shown}");
}

#[test]
fn commands_are_about_the_one_that_is_looked_at() {
    let mut world = world();
    let shown = converse(&mut Monitor::default(), &mut world, "regs 5\rselect mail\rregs 5\rpause\r^");
    assert!(shown.contains("no VCPU 5; web has 1"), "{shown}");
    assert!(shown.contains("mail is paused while it is selected; its own state: running"), "{shown}");
    assert!(shown.contains("no VCPU 5; mail has 1"), "{shown}");
    assert_eq!(world.done, [(Action::Pause, 2)]);
    assert!(shown.ends_with("monitor: web resumed\n"), "another one rests: {shown}");
}

#[test]
fn a_life() {
    let mut world = world();
    let script =
        "stop db\rstart db\rpause db\rresume db\rrestart db\rdestroy db\rselect db\rregs\rstart db\rregs\r^";
    let shown = converse(&mut Monitor::default(), &mut world, script);
    let actions = [
        Action::Stop,
        Action::Start,
        Action::Pause,
        Action::Resume,
        Action::Restart,
        Action::Destroy,
        Action::Start,
    ];
    assert_eq!(world.done, actions.map(|action| (action, 1)));
    for part in [
        "db is off; its memory is kept until `start db` or `destroy db`",
        "db starts",
        "db is paused until `resume`",
        "db resumed",
        "db restarts",
        "db destroyed, its memory freed",
        "db has ended or was destroyed; `start db` starts it",
        "RIP 000000000000fff0",
    ] {
        assert!(shown.contains(part), "no {part:?} in\n{shown}");
    }
}

#[test]
fn what_cannot_be_is_explained() {
    let mut world = world();
    let script = "start web\rdestroy mail\rdestroy mail\rstop db\rpause db\rselect x\rdestroy\r^";
    let shown = converse(&mut Monitor::default(), &mut world, script);
    for part in [
        "web has been started already; `restart web` reboots it",
        "mail has ended or was destroyed; `start mail` starts it",
        "db is off; `start db` starts it",
        "no VM named x; the VMs are web, db, mail",
        "missing VM name",
    ] {
        assert!(shown.contains(part), "no {part:?} in\n{shown}");
    }
}

#[test]
fn the_console_moves_and_waits_for_a_vm_that_is_off() {
    let mut world = world();
    let shown = converse(&mut Monitor::default(), &mut world, "console db\rstop db\r^\r^start db\r^");
    assert_eq!(world.console, 1);
    assert_eq!(
        shown.matches("db is off; to start it, press Ctrl-a p and type `start db`").count(),
        2,
        "{shown}"
    );
    assert!(shown.ends_with("monitor: db resumed\n"), "{shown}");
}
