//! What a person should know at the start of a run: that what they ask for is slow on this machine, and what to do.
//!
//! Otherwise the first sign of it is a guest's time limit that passes, which does not explain itself. Pure, so that each case is tested.

use std::thread::available_parallelism;

use crate::{
    cli::{Machine, Mode, RunArgs},
    guest::vm::Vm,
};

/// The sentences for a run of these guests, each said once.
/// `spare`: the machine has one processor more than was asked for.
pub fn advice<'a>(args: &RunArgs, spare: bool, guests: impl IntoIterator<Item = &'a Vm>) -> Vec<String> {
    // Where the number is not to be had there is nothing to say.
    let here =
        available_parallelism().map_or(u32::MAX, |count| u32::try_from(count.get()).unwrap_or(u32::MAX));
    let guests = guests.into_iter();
    spare
        .then(|| first_processor(args))
        .into_iter()
        .chain(processors(args, here))
        .chain(caches(args))
        .chain(guests.filter_map(|vm| slow_mode(args.machine, vm)).take(1))
        .collect()
}

/// One processor more than was asked for.
fn first_processor(args: &RunArgs) -> String {
    let count = args.pcpus.count;
    format!(
        "the machine has {} processors: QEMU's first is the hypervisor's alone, guests run on the other {count}, numbered 0 to {} \
         (why: \"The first processor\" in docs/design/0006-emulated-svm.md)",
        count + 1,
        count - 1
    )
}

/// More emulated processors than there are here.
fn processors(args: &RunArgs, here: u32) -> Option<String> {
    let (option, count) = match args.machine {
        // Bochs' processors take turns anyway.
        Machine::BochsVtx | Machine::BochsNative => return None,
        Machine::QemuSvm => ("--pcpus", args.pcpus.count),
        Machine::Native => ("--vcpus", args.vcpus),
    };
    let these = if here == 1 { "one processor".to_owned() } else { format!("{here} processors") };
    (count > here).then(|| {
        format!(
            "{option} {count}: the machine below has {these}, on which the emulated ones take turns; one that waits for \
             another loses its whole turn. {option} {here} gets more done"
        )
    })
}

/// Last-level caches of a lab machine that the hypervisor sees otherwise. A mistake in the description is reported elsewhere.
fn caches(args: &RunArgs) -> Option<String> {
    let name = args.lab.lab.as_ref().filter(|_| args.machine == Machine::QemuSvm)?;
    let each = crate::lab::find(name).ok()?.1.pcpus_per_domain;
    (!args.pcpus.with_caches(each).has_caches(each)).then(|| {
        format!(
            "--pcpus: {each} processors of {name} share a last-level cache, and the hypervisor takes others to share one; \
             regions need packages of {each}, or of a multiple, as with --pcpus {0},sockets=2",
            2 * each
        )
    })
}

/// A mode that is slow on the emulator.
fn slow_mode(machine: Machine, vm: &Vm) -> Option<String> {
    let mode = vm.mode.filter(|mode| *mode != Mode::Nested)?;
    let asked = format!("{}: {} {mode}", vm.name, vm.called("mode"));
    match machine {
        Machine::QemuSvm if vm.vcpus > 1 => Some(format!(
            "{asked} with {} virtual processors is slow on QEMU, which has one lock for all exits and page faults; time \
             limits in the guest may pass (systemd gives a device 90 s). If they do: {} nested, or {} 1",
            vm.vcpus,
            vm.called("mode"),
            vm.called("vcpus"),
        )),
        Machine::BochsVtx => Some(format!(
            "{asked} is slow on Bochs: Linux takes many minutes to boot, and half a minute with {} nested; mind the time \
             limit (--timeout)",
            vm.called("mode"),
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn args(words: &str) -> Box<RunArgs> {
        let Command::Run(args) =
            Cli::parse_from(["pal", "run"].into_iter().chain(words.split_whitespace())).command
        else {
            unreachable!()
        };
        args
    }

    #[test]
    fn more_processors_than_there_are() {
        let said = |words: &str, here| processors(&args(words), here);
        assert_eq!(said("", 1), None);
        assert_eq!(said("--pcpus 2 --vcpus 4", 2), None);
        let text = said("--pcpus 4", 2).unwrap();
        assert!(
            text.starts_with("--pcpus 4: the machine below has 2 processors")
                && text.ends_with("--pcpus 2 gets more done")
        );
        assert!(said("--machine native --vcpus 2", 1).unwrap().contains("has one processor, on"));
        assert_eq!(said("--machine bochs-vtx --pcpus 4", 1), None);
    }

    #[test]
    fn slow_modes() {
        let vm = |mode, vcpus| Vm { mode: Some(mode), vcpus, ..Vm::named("guest") };
        let switch = "switch=50".parse().unwrap();
        assert_eq!(slow_mode(Machine::QemuSvm, &vm(Mode::Nested, 4)), None);
        assert_eq!(slow_mode(Machine::QemuSvm, &vm(Mode::Shadow, 1)), None);
        assert_eq!(slow_mode(Machine::QemuSvm, &Vm::named("guest")), None);
        let text = slow_mode(Machine::QemuSvm, &vm(Mode::Shadow, 4)).unwrap();
        assert!(
            text.starts_with("guest: --mode shadow with 4 virtual processors")
                && text.ends_with("or --vcpus 1")
        );
        assert!(slow_mode(Machine::QemuSvm, &vm(switch, 2)).unwrap().contains("--mode switch=50"));
        assert!(slow_mode(Machine::BochsVtx, &vm(Mode::Shadow, 1)).unwrap().contains("--timeout"));
        assert_eq!(slow_mode(Machine::BochsVtx, &vm(Mode::Nested, 2)), None);
        let guests = [vm(Mode::Shadow, 2), vm(Mode::Shadow, 2)];
        assert_eq!(advice(&args(""), false, &guests).len(), 1, "once");
        let text = advice(&args("--pcpus 2"), true, &[]).remove(0);
        assert!(
            text.starts_with("the machine has 3 processors") && text.contains("numbered 0 to 1"),
            "{text}"
        );
    }
}
