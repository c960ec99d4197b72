//! What a lab machine adds to a run of QEMU: the program itself, the machine's memory as a file that the plugin can map
//! as well, the plugin, its report.

use std::{
    fs::{self, File},
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use serde_json::Value;
use tempfile::TempDir;

use super::{
    args::{LabRunArgs, Model},
    find, summary,
};
use crate::{
    cli::value_name,
    host::{needs::Needs, qemu::Emulator},
    run::{escape_commas, pcpus::Numbers},
    status::Usage,
    ui::Ui,
};

/// Processors that the model has at most.
const PCPUS: u32 = abi::lab::PCPUS as u32;
/// Where the hypervisor sees the counters (`the module `lab` of the crate `abi``): a memory module that no memory map mentions, above all
/// memory of machines and below their mapped disks.
pub const COUNTERS: u64 = 63 << 30;
/// Bytes of the module: more than all records take.
const COUNTERS_BYTES: u64 = 2 << 20;
const _: () = assert!((abi::lab::PAGE * (1 + abi::lab::PCPUS)) as u64 <= COUNTERS_BYTES);

/// What a lab machine's memory lies in: files that QEMU inherits under the same numbers.
pub struct Memory {
    ram: OwnedFd,
    mib: u64,
    counters: Option<OwnedFd>,
    page_trace: Option<OwnedFd>,
}

impl Memory {
    /// The files, to be handed over.
    pub fn files(self) -> impl Iterator<Item = OwnedFd> {
        [Some(self.ram), self.counters, self.page_trace].into_iter().flatten()
    }
}

/// A lab machine, ready to be started.
pub struct Lab {
    /// The QEMU that runs it.
    pub qemu: Emulator,
    plugin: PathBuf,
    dir: TempDir,
    options: String,
    page_trace: Option<File>,
    /// The machine has a hypervisor that reads the counters.
    read: bool,
}

impl Lab {
    /// Finds or fetches what it takes; `None` if none was asked for. `pcpus`: those of the machine; `read`: it sees
    /// the counters, too, at [`COUNTERS`].
    ///
    /// # Errors
    /// [`Usage`] for descriptions and options that cannot work; others for what is missing.
    pub fn new(
        args: &LabRunArgs,
        qemu: Option<&Path>,
        pcpus: Numbers,
        read: bool,
        needs: &Needs,
    ) -> Result<Option<Lab>> {
        let Some(name) = &args.lab else { return Ok(None) };
        let (text, _) = find(name)?;
        if pcpus.count > PCPUS {
            let count = pcpus.count;
            return Err(
                Usage::new(format!("--lab: {count} processors; the model has {PCPUS} at most")).into()
            );
        }
        if args.page_trace.is_some() && args.lab_model == Model::Count {
            return Err(Usage::new("--page-trace: accesses are not seen with --lab-model count").into());
        }
        let page_trace = args.page_trace.as_ref().map(|path| {
            File::create(path).with_context(|| format!("--page-trace: cannot create {}", path.display()))
        });
        let page_trace = page_trace.transpose()?;
        let qemu = Emulator::with_plugins(qemu, needs)?;
        let plugin = needs.lab_plugin()?;
        let dir = tempfile::Builder::new()
            .prefix("pal-lab-")
            .tempdir()
            .context("cannot create a scratch directory")?;
        fs::write(dir.path().join("machine.toml"), text).context("cannot write the machine's description")?;
        let mut options =
            format!("model={},check={}", value_name(args.lab_model), value_name(args.lab_check));
        options += &format!(",from={}", value_name(args.lab_from));
        if args.lab_time {
            options += ",clock=on";
        }
        options += &format!(",step={}", args.lab_step);
        if pcpus.spare > 0 {
            options += &format!(",spare={}", pcpus.spare);
        }
        if let Some(package) = pcpus.package {
            options += &format!(",package={package}");
        }
        if let Some(broken) = args.lab_broken {
            options += &format!(",broken={}", value_name(broken));
        }
        Ok(Some(Lab { qemu, plugin, dir, options, page_trace, read }))
    }

    /// Changes the machine's description.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn change(&self, change: impl FnOnce(&str) -> String) -> Result<()> {
        let path = self.dir.path().join("machine.toml");
        let text = fs::read_to_string(&path).context("cannot read the machine's description")?;
        fs::write(&path, change(&text)).context("cannot write the machine's description")
    }

    /// Memory modules that the machine has because of this.
    pub fn modules(&self) -> usize {
        usize::from(self.read)
    }

    /// The machine's memory of `mib` MiB, which is freed with its last user.
    ///
    /// # Errors
    /// There is not enough.
    pub fn memory(&self, mib: u64) -> Result<Memory> {
        let file = |name, bytes| -> rustix::io::Result<OwnedFd> {
            let file = memfd_create(name, MemfdFlags::CLOEXEC)?;
            ftruncate(&file, bytes)?;
            Ok(file)
        };
        let counters = self.read.then(|| file("pal-lab-counters", COUNTERS_BYTES)).transpose();
        let files = file("pal-lab", mib << 20).and_then(|ram| Ok((ram, counters?)));
        let (ram, counters) = files.context("cannot create the machine's memory")?;
        let page_trace = self.page_trace.as_ref().map(File::try_clone).transpose()?.map(OwnedFd::from);
        Ok(Memory { ram, mib, counters, page_trace })
    }

    /// QEMU's arguments, besides `-machine`'s `memory-backend=lab` and slots for [`modules`](Self::modules).
    pub fn arguments(&self, memory: &Memory) -> Vec<String> {
        let file = |file: &OwnedFd| format!("/proc/self/fd/{}", file.as_raw_fd());
        let ram = file(&memory.ram);
        let path = |path: &Path| escape_commas(&path.to_string_lossy());
        let machine = path(&self.dir.path().join("machine.toml"));
        let mut plugin = format!(
            "{},machine={machine},ram={ram},report={},{}",
            path(&self.plugin),
            path(&self.report_file()),
            self.options
        );
        if let Some(trace) = &memory.page_trace {
            let of = if self.read { "guests" } else { "all" };
            plugin += &format!(",pages={},pages_of={of}", file(trace));
        }
        let backend = |id: &str, size: String, path: &str| {
            ["-object".into(), format!("memory-backend-file,id={id},size={size},mem-path={path},share=on")]
        };
        let mut arguments = Vec::from(backend("lab", format!("{}M", memory.mib), &ram));
        if let Some(counters) = &memory.counters {
            let path = file(counters);
            plugin += &format!(",share={path},share_at={COUNTERS:#x}");
            arguments.extend(backend("lab-counters", COUNTERS_BYTES.to_string(), &path));
            let device = format!("pc-dimm,memdev=lab-counters,addr={COUNTERS:#x}");
            arguments.extend(["-device".into(), device]);
        }
        arguments.extend(["-plugin".into(), plugin]);
        arguments.extend(self.qemu.data());
        arguments
    }

    fn report_file(&self) -> PathBuf {
        self.dir.path().join("report.json")
    }

    /// Reads the report after the run, says what is in it, and keeps it where `--lab-report` wants it.
    ///
    /// # Errors
    /// There is none; it cannot be kept; translations differ.
    pub fn finish(&self, args: &LabRunArgs, ui: &Ui) -> Result<()> {
        let Ok(text) = fs::read_to_string(self.report_file()) else {
            bail!(
                "the lab machine left no report: QEMU was ended before it could write one, or did not load the plugin (-v shows its words)"
            );
        };
        let report: Value = serde_json::from_str(&text).context("the lab machine's report is not whole")?;
        if let Some(path) = &args.lab_report {
            fs::write(path, &text)
                .with_context(|| format!("--lab-report: cannot write {}", path.display()))?;
        }
        ui.say(&summary::lines(&report));
        if report["modelled"] == false {
            ui.say("the guest's session did not begin, so instructions were counted and nothing was modelled; --lab-from boot models everything");
        }
        if let Some(path) = &args.page_trace {
            let path = path.display();
            match (report["page_trace"]["references"].as_u64(), &report["page_trace"]["error"]) {
                (Some(0), _) => ui.say(&format!("--page-trace: no guest has accessed memory; {path} is empty")),
                (Some(count), _) => ui.say(&format!(
                    "{count} accesses in {path}; to see which policy would have missed how many: cargo pal replace --trace {path}"
                )),
                (None, error) => bail!("--page-trace: {path} is cut off: {}", error.as_str().unwrap_or("it was not ended")),
            }
        }
        let (equal, differ, raced) = summary::checks(&report);
        if differ > 0 {
            let (compared, first) = (equal + differ + raced, summary::differences(&report));
            bail!(
                "the lab machine's translations differ from QEMU's: {differ} of {compared} that were compared{first}"
            );
        }
        if raced > 0 {
            ui.say(&format!(
                "the lab machine's translations are QEMU's: all {equal} that were compared, but for {raced} while another processor was changing the tables"
            ));
        } else if equal > 0 {
            ui.say(&format!("the lab machine's translations are QEMU's: all {equal} that were compared"));
        }
        Ok(())
    }
}
