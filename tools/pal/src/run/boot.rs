//! From a prepared guest to a running machine: what each emulator boots, and with how much memory.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::{
    bochs,
    machine::{self, Machine},
    medium,
    pcpus::Pcpus,
    prepare::Prepared,
    qemu,
};
use crate::{
    cli::{self, RunArgs},
    host::needs::Needs,
};

/// Memory that the hypervisor uses for itself, besides the guests' and the bundle: its image, heap and page tables.
const HYPERVISOR_MIB: u64 = 192;
/// Memory for one page of shadow tables and its lists. Whatever the mode, it may become another.
const SHADOW_PAGE_KIB: u64 = 26;

/// Starts the machine with the guest on the hypervisor, or alone; or with the hypervisor and no guest.
///
/// # Errors
/// The hypervisor does not build; the emulator, or what makes its boot medium, is missing or fails.
pub fn start(args: &RunArgs, needs: &Needs, prepared: Option<&Prepared>, scratch: &Path) -> Result<Machine> {
    match args.machine {
        cli::Machine::QemuSvm => {
            let qemu = needs.qemu(args.qemu.as_deref())?;
            let boot = Hypervisor::new(args, needs, prepared)?;
            let bundle = boot.bundle.as_ref();
            let bundle =
                bundle.map(|bundle| machine::scratch_file(scratch, "bundle.cpio", bundle)).transpose()?;
            start_qemu(
                needs,
                &qemu::Spec {
                    qemu: &qemu,
                    memory_mib: boot.memory_mib,
                    cpus: args.pcpus,
                    kernel: &boot.image,
                    initrd: bundle.map(|bundle| qemu::escape_commas(&bundle.to_string_lossy())),
                    append: &boot.words("isa-debug:0xf4", args),
                    telemetry: true,
                    exit_device: true,
                    test_device: false,
                    icount: args.icount,
                    no_reboot: true,
                    extra: &args.qemu_arg,
                },
            )
        }
        cli::Machine::BochsVtx => {
            let bochs = needs.bochs(args.bochs.as_deref())?;
            let boot = Hypervisor::new(args, needs, prepared)?;
            let words = boot.words("poweroff", args);
            let medium = medium::hypervisor(scratch, &boot.image, &words, boot.bundle)?;
            start_bochs(args, needs, &bochs, boot.memory_mib, medium)
        }
        cli::Machine::BochsNative => {
            let bochs = needs.bochs(args.bochs.as_deref())?;
            let medium = medium::native(scratch, prepared.context("no guest to run")?)?;
            start_bochs(args, needs, &bochs, args.mem, medium)
        }
        cli::Machine::Native => {
            let qemu = needs.qemu(args.qemu.as_deref())?;
            let prepared = prepared.context("no guest to run")?;
            let boot = native_files(prepared, scratch)?;
            start_qemu(
                needs,
                &qemu::Spec {
                    qemu: &qemu,
                    memory_mib: args.mem,
                    cpus: Pcpus::new(args.vcpus),
                    kernel: &boot.kernel,
                    initrd: boot.initrd,
                    append: &prepared.cmdline,
                    telemetry: false,
                    exit_device: args.test_device,
                    test_device: args.test_device,
                    icount: args.icount,
                    no_reboot: args.exec.is_some(),
                    extra: &args.qemu_arg,
                },
            )
        }
    }
}

fn start_qemu(needs: &Needs, spec: &qemu::Spec) -> Result<Machine> {
    needs.ui.detail(&format!("{} {}", spec.qemu.display(), spec.arguments().join(" ")));
    spec.start()
}

fn start_bochs(
    args: &RunArgs,
    needs: &Needs,
    bochs: &Path,
    memory_mib: u64,
    medium: PathBuf,
) -> Result<Machine> {
    let native = !args.machine.has_hypervisor();
    let cpus = if native { Pcpus::new(args.vcpus) } else { args.pcpus };
    let (model, extra) = (&args.model, &args.bochs_line);
    let spec = bochs::Spec { bochs, model, cpus, memory_mib, permissive_msr: native, medium, extra };
    needs.ui.detail(&format!("{} with\n{}", bochs.display(), spec.configuration([0, 0])));
    spec.start()
}

/// The hypervisor, with the guest, if any, in a bundle.
struct Hypervisor {
    image: PathBuf,
    bundle: Option<Vec<u8>>,
    memory_mib: u64,
}

impl Hypervisor {
    fn new(args: &RunArgs, needs: &Needs, prepared: Option<&Prepared>) -> Result<Self> {
        let image = needs.hypervisor()?;
        let bundle = prepared.map(|guest| guest.bundle(args)?.pack()).transpose()?;
        let bundle_mib = bundle.as_ref().map_or(0, |bundle| (bundle.len() as u64).div_ceil(1 << 20));
        let memory_mib = args.mem + HYPERVISOR_MIB + 2 * bundle_mib + shadow_mib(args);
        Ok(Self { image, bundle, memory_mib })
    }

    /// Its command line, with what it does at the end.
    fn words(&self, exit: &str, args: &RunArgs) -> String {
        let level = ["warn", "info", "debug", "trace"][usize::from(args.verbose.min(3))];
        let mut words = format!("loglevel={level} exit={exit} telemetry=com2");
        if args.stats.is_some() {
            words += " stats=on";
        }
        if args.probe {
            words += " probe";
        }
        for word in &args.hv_arg {
            words += " ";
            words += word;
        }
        words
    }
}

/// Memory for shadow tables. Where their number is not given, the hypervisor allows one page of them for each 64 of memory.
fn shadow_mib(args: &RunArgs) -> u64 {
    let pages = args.shadow_pages.map_or_else(|| (4 * args.mem).clamp(512, 1 << 17), u64::from);
    (pages * SHADOW_PAGE_KIB).div_ceil(1024)
}

/// What QEMU boots without a hypervisor.
struct NativeFiles {
    kernel: PathBuf,
    initrd: Option<String>,
}

fn native_files(prepared: &Prepared, scratch: &Path) -> Result<NativeFiles> {
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
        files.push(qemu::escape_commas(&format!("{dir}/module{index}{words}")));
    }
    let initrd = (!files.is_empty()).then(|| files.join(","));
    Ok(NativeFiles { kernel, initrd })
}
