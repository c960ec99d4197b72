//! `pal run`: prepares a guest, runs it on a machine, reports how it ended.

mod console;
mod input;
mod keys;
mod machine;
mod output;
mod prepare;
mod qmp;
mod session;
mod stats;
mod telemetry;
mod terminal;
mod verdict;

use std::{
    io::{IsTerminal, stdin},
    path::PathBuf,
};

use anyhow::Result;

use crate::{
    cli::{Machine, RunArgs},
    host::needs::Needs,
    project::Project,
    ui::Ui,
};
use machine::Spec;
use prepare::Prepared;
use session::Plan;

/// Seconds after which a run without a person at a terminal is ended.
const DEFAULT_TIMEOUT: u64 = 300;
/// Memory that the hypervisor uses for itself, besides the guests' and the bundle: its image, heap and page tables.
const HYPERVISOR_MIB: u64 = 192;
/// Memory for one page of shadow tables and its lists. Whatever the mode, it may become another.
const SHADOW_PAGE_KIB: u64 = 26;

/// Runs a guest and returns the exit status.
///
/// # Errors
/// [`crate::status::Usage`] for options and files that cannot work, found before anything is started; others for
/// what is missing on this machine.
pub fn run(args: &RunArgs, project: &Project, ui: &Ui) -> Result<u8> {
    prepare::check(args)?;
    stats::check(args.stats.as_deref())?;
    let needs = Needs { project, ui, yes: args.yes };
    let scratch = tempfile::Builder::new().prefix("pal-").tempdir()?;
    let prepared = Prepared::new(args, &needs)?;
    let qemu = needs.qemu(args.qemu.as_deref())?;

    let hypervisor = args.machine == Machine::QemuSvm;
    let boot = if hypervisor {
        nested_boot(args, &needs, &prepared, scratch.path())?
    } else {
        native_boot(args, &prepared, scratch.path())?
    };
    let spec = Spec {
        qemu: &qemu,
        memory_mib: boot.memory_mib,
        cpus: if hypervisor { 1 } else { args.vcpus },
        kernel: &boot.kernel,
        initrd: boot.initrd,
        append: &boot.append,
        telemetry: hypervisor,
        exit_device: hypervisor || args.test_device,
        test_device: !hypervisor && args.test_device,
        icount: args.icount,
        no_reboot: hypervisor || args.exec.is_some(),
        extra: &args.qemu_arg,
    };
    ui.detail(&format!("{} {}", qemu.display(), spec.arguments().join(" ")));
    let interactive = args.exec.is_none() && stdin().is_terminal();
    let plan = Plan {
        exec: args.exec.is_some(),
        hypervisor,
        test_device: args.test_device,
        nonce: prepared.nonce.clone(),
        timeout: match args.timeout {
            Some(0) => None,
            None if interactive => None,
            given => given.or(Some(DEFAULT_TIMEOUT)),
        },
    };
    if interactive {
        ui.say("Ctrl-a x quits, Ctrl-a h helps");
    }
    let mut machine = spec.start()?;
    let outcome = session::run(&mut machine, &plan, ui)?;
    let verdict = verdict::judge(&outcome.seen);
    if verdict.show_tail && !outcome.tail.is_empty() {
        ui.say(&format!("the console's last lines:\n{}", outcome.tail));
    }
    if let Some(message) = &verdict.message {
        ui.error(message);
    }
    if let Some(path) = &args.stats {
        stats::write(path, args, &outcome, verdict.status)?;
    }
    Ok(verdict.status)
}

/// What QEMU boots.
struct Boot {
    kernel: PathBuf,
    initrd: Option<String>,
    append: String,
    memory_mib: u64,
}

/// The hypervisor, with the guest in a bundle.
fn nested_boot(
    args: &RunArgs,
    needs: &Needs,
    prepared: &Prepared,
    scratch: &std::path::Path,
) -> Result<Boot> {
    let kernel = needs.hypervisor()?;
    let bundle = prepared.bundle(args)?.pack()?;
    let bundle_mib = (bundle.len() as u64).div_ceil(1 << 20);
    let path = machine::scratch_file(scratch, "bundle.cpio", &bundle)?;
    let level = ["warn", "info", "debug", "trace"][usize::from(args.verbose.min(3))];
    let mut append = format!("loglevel={level} exit=isa-debug:0xf4 telemetry=com2");
    if args.stats.is_some() {
        append += " stats=on";
    }
    for word in &args.hv_arg {
        append += " ";
        append += word;
    }
    Ok(Boot {
        kernel,
        initrd: Some(machine::escape_commas(&path.to_string_lossy())),
        append,
        memory_mib: args.mem + HYPERVISOR_MIB + 2 * bundle_mib + shadow_mib(args),
    })
}

/// Memory for shadow tables. Where their number is not given, the hypervisor allows one page of them for each 64 of memory.
fn shadow_mib(args: &RunArgs) -> u64 {
    let pages = args.shadow_pages.map_or_else(|| (4 * args.mem).clamp(512, 1 << 17), u64::from);
    (pages * SHADOW_PAGE_KIB).div_ceil(1024)
}

/// The guest itself.
fn native_boot(args: &RunArgs, prepared: &Prepared, scratch: &std::path::Path) -> Result<Boot> {
    // QEMU's own file loader gets plain names, free of the characters that mean something in its lists.
    let kernel = machine::scratch_file(scratch, "kernel", &prepared.kernel.contents)?;
    let mut files = Vec::new();
    let dir = scratch.to_string_lossy();
    if let Some(initrd) = &prepared.initrd {
        machine::scratch_file(scratch, "initrd", &initrd.contents)?;
        files.push(format!("{dir}/initrd"));
    }
    for (index, module) in prepared.modules.iter().enumerate() {
        machine::scratch_file(scratch, &format!("module{index}"), &module.contents)?;
        let words = module.cmdline.split_once(' ').map_or(String::new(), |(_, words)| format!(" {words}"));
        files.push(machine::escape_commas(&format!("{dir}/module{index}{words}")));
    }
    let initrd = (!files.is_empty()).then(|| files.join(","));
    Ok(Boot { kernel, initrd, append: prepared.cmdline.clone(), memory_mib: args.mem })
}
