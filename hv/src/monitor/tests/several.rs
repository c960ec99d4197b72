//! Conversations about several VMs.

use abi::tiers::{ANSWER, HotPolicy, Sharing};

use super::model::{World, answer, converse};
use crate::device::virtio::Builder;
use crate::mem::tier::tests::{pool, tiers};
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

/// The answers to these commands, typed one after the other.
fn answers<const N: usize>(world: &mut World, commands: [&str; N]) -> [String; N] {
    commands.map(|command| {
        let shown = converse(&mut Monitor::default(), world, &format!("{command}\r^"));
        let start = shown.find(command).expect("echo") + command.len() + 1;
        shown[start..shown.rfind("monitor> ").expect("prompt")].to_string()
    })
}

#[test]
fn e_states_are_set_by_name_and_within_the_machine() {
    let mut world = world();
    let pool = pool(160, Sharing::EstateQos);
    // Page tables have 8 of its frames; the VMs divide 152. The third is to have none.
    (0..8).for_each(|n| assert!(pool.take_for_table(5 + n % 2).is_some()));
    for vm in [0, 1] {
        world.vms[vm].0.vm.tiers = Some(tiers(&pool, vm, HotPolicy::Threshold).into());
    }
    let [set, too_much, none, missing, auto] =
        answers(&mut world, ["tiers db E2", "tiers web e4", "tiers mail E7", "tiers x E7", "tiers db auto"]);
    let rows = |answer: &str| -> Vec<String> {
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        answer.lines().skip(2).map(words).collect()
    };
    assert!(
        set.starts_with(ANSWER)
            && set.contains("640 KiB, 608 KiB of it free, 32 KiB page tables; divided by estate-qos"),
        "{set}"
    );
    let row = "0 bytes 0 bytes 0 bytes 0 0";
    let of_web = format!("web E7 by policy 76 KiB {row}");
    assert_eq!(rows(&set), [of_web.clone(), format!("db E2 set 456 KiB {row}"), "mail -".into()]);
    assert_eq!(
        too_much,
        "E4 is 304 KiB, and the E-states that are set for other VMs leave 152 KiB; lower theirs first\n"
    );
    assert_eq!(none, "mail uses no fast memory now: it has ended, or is to have none\n");
    assert_eq!(missing, "no VM named x; the VMs are web, db, mail\n");
    assert_eq!(rows(&auto)[1], format!("db E2 by policy 456 KiB {row}"));
    world.vms[1].1 = State::Absent;
    let [all, ended] = answers(&mut world, ["tiers all", "tiers db E2"]);
    assert_eq!(rows(&all)[..], [of_web, "db -".into(), "mail -".into()]);
    assert!(ended.starts_with("db uses no fast memory now"), "{ended}");
    let alone = answer(&mut Scene::new(), "tiers all");
    assert!(alone.starts_with("no VM uses fast memory: the machine has none"), "{alone}");
}

#[test]
fn a_balloon_is_asked_for_of_the_selected_one_or_by_name() {
    let mut world = world();
    let mut devices = Builder::new(0);
    devices.balloon();
    world.vms[1].0.vm.attach(devices.build()).unwrap();
    world.vms[2].1 = State::Absent;
    let script = "balloon\rballoon db 3\rballoon db 20\rballoon db 99999999999999\rballoon db x\rballoon nix 3\rballoon mail 1\r\
                  select db\rballoon 5\rballoon db 5 6\r^";
    let shown = converse(&mut Monitor::default(), &mut world, script);
    for part in [
        "web has no balloon: that is for guests with `overcommit` and `balloon`",
        "balloon of db: 3 MiB wanted, 0 bytes there; since its start 0 bytes in, 0 bytes out, 0 bytes of free",
        "db has 20 MiB, and cannot give 20 of them",
        "cannot give 99999999999999 of them",
        "`x` is not a number of MiB",
        "no VM named nix",
        "mail has ended or was destroyed",
        "balloon of db: 5 MiB wanted",
        "unexpected argument `6`",
    ] {
        assert!(shown.contains(part), "no {part:?} in\n{shown}");
    }
    let target = |vm: usize| world.vms[vm].0.vm.virtio.balloon_counts().map(|counts| counts.target);
    assert_eq!([0, 1].map(target), [None, Some(5 << 8)]);
}
