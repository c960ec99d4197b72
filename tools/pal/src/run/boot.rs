//! From a prepared guest to a running machine: what each emulator boots, and with how much memory.

use std::path::{Path, PathBuf};

use abi::tiers::FastRange;
use anyhow::{Context, Result};

use super::{
    bochs, devices, fast,
    machine::{self, Machine},
    medium, page_disk,
    pcpus::{self, Numbers, Pcpus},
    prepare::{Guest, Prepared},
    qemu,
    records::Memory,
};
use crate::{
    cli::{self, RunArgs},
    guest::{disk::Disk, files::Files, vm::Vm},
    host::{needs::Needs, qemu::Emulator},
    lab::{self, attach::Lab},
};

/// Memory that the hypervisor uses for itself, besides the guests' and the bundle: its image, heap and page tables.
const HYPERVISOR_MIB: u64 = 192;
/// Memory for one page of shadow tables that is full, and its records. Whatever the mode, it may become another.
const SHADOW_PAGE_KIB: u64 = 13;
/// Memory for shadow tables at least, if their number is not given.
const SHADOW_LEAST_MIB: u64 = 4;

/// Starts the machine with the guests on the hypervisor, or one alone; or with the hypervisor and no guest.
///
/// # Errors
/// The hypervisor does not build; the emulator, or what makes its boot medium, is missing or fails.
pub fn start(
    args: &RunArgs,
    needs: &Needs,
    prepared: Option<&Prepared>,
    records: Option<Memory>,
    scratch: &Path,
) -> Result<Machine> {
    match args.machine {
        cli::Machine::QemuSvm => {
            let spare = pcpus::has_spare(args, prepared.map_or("", |prepared| &prepared.words));
            let cpus = match &args.lab.lab {
                Some(name) => args.pcpus.with_caches(crate::lab::find(name)?.1.pcpus_per_domain),
                None => args.pcpus,
            };
            let numbers = Numbers::new(cpus, spare);
            let (qemu, lab) = emulator(args, numbers, true, needs)?;
            let boot = Hypervisor::new(args, needs, prepared)?;
            if let (Some(lab), Some(fast)) = (&lab, boot.fast) {
                lab.change(|text| fast::describe(text, fast))?;
            }
            let bundle = boot.bundle.as_ref();
            let bundle =
                bundle.map(|bundle| machine::scratch_file(scratch, "bundle.cpio", bundle)).transpose()?;
            start_qemu(
                needs,
                qemu::Spec {
                    qemu: &qemu,
                    memory_mib: boot.memory_mib,
                    disks: &boot.disks,
                    cpus,
                    spare_cpu: spare,
                    kernel: &boot.image,
                    initrd: bundle.map(|bundle| qemu::escape_commas(&bundle.to_string_lossy())),
                    append: &boot.words("isa-debug:0xf4", args, prepared, records.as_ref()),
                    telemetry: true,
                    exit_device: true,
                    test_device: false,
                    devices: page_disk::arguments(args.page_disk, scratch)?,
                    virtio_console: false,
                    lab,
                    records,
                    icount: args.has_icount(),
                    seed: args.deterministic,
                    no_reboot: true,
                    extra: &args.qemu_arg,
                },
            )
        }
        cli::Machine::BochsVtx => {
            let bochs = needs.bochs(args.bochs.as_deref())?;
            let boot = Hypervisor::new(args, needs, prepared)?;
            let words = boot.words("poweroff", args, prepared, None);
            let medium = medium::hypervisor(scratch, &boot.image, &words, boot.bundle)?;
            start_bochs(args, needs, &bochs, boot.memory_mib, medium)
        }
        cli::Machine::BochsNative => {
            let bochs = needs.bochs(args.bochs.as_deref())?;
            let medium = medium::native(scratch, only(prepared)?)?;
            start_bochs(args, needs, &bochs, args.mem, medium)
        }
        cli::Machine::Native => {
            let (qemu, lab) = emulator(args, Numbers::new(Pcpus::new(args.vcpus), false), false, needs)?;
            let guest = only(prepared)?;
            let boot = native_files(guest, scratch)?;
            start_qemu(
                needs,
                qemu::Spec {
                    qemu: &qemu,
                    memory_mib: args.mem,
                    disks: &[],
                    cpus: Pcpus::new(args.vcpus),
                    spare_cpu: false,
                    kernel: &boot.kernel,
                    initrd: boot.initrd,
                    append: &guest.cmdline,
                    telemetry: false,
                    exit_device: args.test_device,
                    test_device: args.test_device,
                    devices: devices::arguments(
                        guest.files.disks.iter().map(|disk| &disk.source),
                        &guest.vm,
                    )?,
                    virtio_console: guest.vm.has_virtio_console(),
                    lab,
                    records: None,
                    icount: args.has_icount(),
                    seed: args.deterministic,
                    no_reboot: args.exec.is_some(),
                    extra: &args.qemu_arg,
                },
            )
        }
    }
}

/// The one guest of a machine without the hypervisor.
fn only(prepared: Option<&Prepared>) -> Result<&Guest> {
    prepared.and_then(|prepared| prepared.guests.first()).context("no guest to run")
}

/// What the emulator that [`start`] takes says of itself. `None`: Bochs, which says nothing; or there is none.
pub fn about_emulator(args: &RunArgs, needs: &Needs) -> Option<String> {
    if args.machine.is_bochs() {
        return None;
    }
    let program = match args.lab.lab {
        Some(_) => Emulator::with_plugins(args.qemu.as_deref(), needs).ok()?.program,
        None => needs.qemu(args.qemu.as_deref()).ok()?,
    };
    crate::host::qemu::about(&program)
}

/// The QEMU to start, and what models the machine if that was asked for.
fn emulator(
    args: &RunArgs,
    pcpus: Numbers,
    hypervisor: bool,
    needs: &Needs,
) -> Result<(PathBuf, Option<Lab>)> {
    match Lab::new(&args.lab, args.qemu.as_deref(), pcpus, hypervisor, needs)? {
        Some(lab) => Ok((lab.qemu.program.clone(), Some(lab))),
        None => Ok((needs.qemu(args.qemu.as_deref())?, None)),
    }
}

fn start_qemu(needs: &Needs, spec: qemu::Spec) -> Result<Machine> {
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

/// The hypervisor, with the guests, if any, in a bundle.
struct Hypervisor {
    image: PathBuf,
    bundle: Option<Vec<u8>>,
    memory_mib: u64,
    /// The fast memory that is asked for, and all that there is.
    fast: Option<fast::Layout>,
    fast_ranges: Vec<FastRange>,
    /// The disks that are not in the bundle.
    disks: Vec<qemu::MappedDisk>,
}

impl Hypervisor {
    fn new(args: &RunArgs, needs: &Needs, prepared: Option<&Prepared>) -> Result<Self> {
        let given = prepared.and_then(|prepared| prepared.hypervisor.clone());
        let image = given.map_or_else(|| needs.hypervisor(), Ok)?;
        let disks = prepared.map_or_else(Vec::new, |prepared| qemu::place(prepared.mapped()));
        let addresses = || disks.iter().map(|disk| disk.address);
        let bundle = prepared.map(|prepared| prepared.bundle(addresses())).transpose()?;
        let bundle_mib = bundle.as_ref().map_or(0, |bundle| (bundle.len() as u64).div_ceil(1 << 20));
        let guests = prepared.map_or(&[][..], |prepared| &prepared.guests);
        let guests_mib: u64 = guests.iter().map(|guest| guest.vm.memory_mib + shadow_mib(&guest.vm)).sum();
        let guests_mib = if guests.is_empty() { args.mem } else { guests_mib };
        let unpacked_mib = bundle_mib.max(written_mib(guests.iter().map(|guest| &guest.files)));
        // A machine that the person makes smaller is for overcommitted guests; the hypervisor says what does not fit.
        let memory_mib = args.host_mem.unwrap_or(guests_mib + HYPERVISOR_MIB + bundle_mib + unpacked_mib);
        let fast = args.fast_mem.map(|wanted| fast::place(wanted, args.machine, memory_mib)).transpose()?;
        let memory_mib = fast.map_or(memory_mib, |fast| fast.memory_mib);
        let fast_ranges = fast::ranges(args, fast, memory_mib)?;
        Ok(Self { image, bundle, disks, memory_mib, fast, fast_ranges })
    }

    /// Its command line, with what it does at the end.
    fn words(
        &self,
        exit: &str,
        args: &RunArgs,
        prepared: Option<&Prepared>,
        records: Option<&Memory>,
    ) -> String {
        // What goes to a file only does not disturb.
        let verbose = args.verbose.max(u8::from(args.log_dir.is_some()));
        let level = ["warn", "info", "debug", "trace"][usize::from(verbose.min(3))];
        let mut words = format!("loglevel={level} exit={exit} telemetry=com2");
        if args.stats.is_some() {
            words += " stats=on";
        }
        // Their values are part of the statistics and of the samples; policies compare them, and the monitor may change the mode.
        if args.lab.lab.is_some() {
            words += " counters=on";
        }
        if args.takes_samples() {
            words += &format!(" samples={}", args.records.sample_ms);
            words += if args.records.trace.is_some() { " trace=on" } else { "" };
            words += &records.map_or_else(String::new, Memory::word);
        }
        if args.probe {
            words += " probe";
        }
        if args.has_records() {
            words += " consoles=on";
        }
        if args.lab.lab.is_some() {
            words += &format!(" lab={:#x}", lab::attach::COUNTERS);
        }
        words += &fast::words(args, &self.fast_ranges);
        if args.lab.lab_time {
            words += " lab-time=on";
        }
        // Bochs says that it is a processor that leaks, and has nothing to leak.
        if args.machine.is_bochs() {
            words += " mitigations=off";
        }
        let described = prepared.map_or("", |prepared| &prepared.words);
        for word in described.split_whitespace().chain(args.hv_arg.iter().map(String::as_str)) {
            words += " ";
            words += word;
        }
        words
    }
}

/// What guests can write to disks from the bundle: each has pages of its own, also where several have the same file.
fn written_mib<'a>(files: impl Iterator<Item = &'a Files>) -> u64 {
    let disks = files.flat_map(|files| &files.disks).filter(|disk| !disk.source.read_only);
    disks.filter_map(Disk::read).map(|contents| (contents.len() as u64).div_ceil(1 << 20)).sum()
}

/// Memory for shadow tables. Where their number is not given, the hypervisor allows a fiftieth of the guest's memory for them.
fn shadow_mib(vm: &Vm) -> u64 {
    match vm.shadow_pages {
        Some(pages) => (u64::from(pages) * SHADOW_PAGE_KIB).div_ceil(1024),
        None => vm.memory_mib.div_ceil(50).max(SHADOW_LEAST_MIB),
    }
}

/// What QEMU boots without a hypervisor.
struct NativeFiles {
    kernel: PathBuf,
    initrd: Option<String>,
}

fn native_files(guest: &Guest, scratch: &Path) -> Result<NativeFiles> {
    let Files { kernel, initrd, modules, .. } = &guest.files;
    // QEMU's own file loader gets plain names, free of the characters that mean something in its lists.
    let kernel = machine::scratch_file(scratch, "kernel", &kernel.contents)?;
    let mut files = Vec::new();
    let dir = scratch.to_string_lossy();
    if let Some(initrd) = initrd {
        machine::scratch_file(scratch, "initrd", &initrd.contents)?;
        files.push(format!("{dir}/initrd"));
    }
    for (index, module) in modules.iter().enumerate() {
        machine::scratch_file(scratch, &format!("module{index}"), &module.contents)?;
        let words = module.cmdline.split_once(' ').map_or(String::new(), |(_, words)| format!(" {words}"));
        files.push(qemu::escape_commas(&format!("{dir}/module{index}{words}")));
    }
    let initrd = (!files.is_empty()).then(|| files.join(","));
    Ok(NativeFiles { kernel, initrd })
}
