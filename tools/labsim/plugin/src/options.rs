//! The plugin's arguments.

use std::ffi::{CStr, c_char};

use abi::lab::{PACE_WINDOW, PAGE};
use labsim::{
    machine::{self, Machine},
    model::processor::Checking,
};

/// How much is modelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    /// Instructions are counted.
    Count,
    /// TLBs and walks; every reference of a walk costs the same.
    Tlb,
    /// Caches and memory, too.
    Full,
}

/// From when on it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelFrom {
    /// From the machine's start.
    Boot,
    /// From a mark of a program's ([`abi::lab::MARK_MODEL`]).
    Session,
}

/// A mistake on purpose, which the comparison with QEMU has to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// INVLPG is not seen.
    Invlpg,
    /// Writes of CR3 are not seen.
    Cr3,
}

/// What was asked for.
pub struct Options {
    /// The machine.
    pub machine: Machine,
    /// The file that is the machine's memory.
    pub ram: String,
    /// How much is modelled.
    pub model: Model,
    /// From when on.
    pub from: ModelFrom,
    /// The machine's clocks follow the counters: these advance also where only instructions are counted, and the hypervisor neither
    /// enters a guest nor leaves one.
    pub clock: bool,
    /// By how much processors that execute may be apart, in modelled cycles.
    pub step: u64,
    /// What is compared with QEMU's translation.
    pub check: Checking,
    /// What the model is to do wrong.
    pub broken: Option<Broken>,
    /// The file for the trace of pages, and whether the hypervisor's are in it because there is none.
    pub pages: Option<String>,
    /// See there.
    pub pages_of_all: bool,
    /// The file for the report.
    pub report: Option<String>,
    /// The file that is the counters' memory.
    pub share: Option<String>,
    /// Where the machine sees it, if it does.
    pub share_at: Option<u64>,
    /// How many of QEMU's numbers the spare first processor takes: its package may have room for more. 0: there is no spare one.
    pub spare: u32,
}

impl Options {
    /// Reads them. An error says what is wrong.
    ///
    /// # Safety
    /// `arguments` are that many strings that end with a zero.
    pub unsafe fn read(count: i32, arguments: *const *const c_char) -> Result<Options, String> {
        let (mut machine, mut ram, mut report, mut share) = (None, None, None, None);
        let mut broken = None;
        let (mut pages, mut pages_of_all) = (None, false);
        let (mut model, mut check, mut share_at) = (Model::Full, Checking::Misses, None);
        let mut from = ModelFrom::Boot;
        let (mut spare, mut package, mut clock, mut step) = (0, None, false, PACE_WINDOW);
        for index in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: by the caller.
            let argument = unsafe { CStr::from_ptr(*arguments.add(index)) }.to_string_lossy().into_owned();
            let (key, value) = argument.split_once('=').unwrap_or((&argument, ""));
            let unknown = |known: &str| Err(format!("{key}={value}: use one of {known}"));
            match key {
                "machine" => machine = Some(value.to_owned()),
                "ram" => ram = Some(value.to_owned()),
                "report" => report = Some(value.to_owned()),
                "share" => share = Some(value.to_owned()),
                "pages" => pages = Some(value.to_owned()),
                "pages_of" => match value {
                    "guests" => pages_of_all = false,
                    "all" => pages_of_all = true,
                    _ => return unknown("guests, all"),
                },
                "share_at" => {
                    let digits = value.trim_start_matches("0x");
                    let at = u64::from_str_radix(digits, 16).ok().filter(|at| at % PAGE as u64 == 0);
                    share_at =
                        Some(at.ok_or_else(|| {
                            format!("share_at={value}: not the hexadecimal address of a page")
                        })?);
                }
                "spare" => {
                    spare = value.parse().map_err(|_| format!("spare={value}: not a number"))?;
                }
                "step" => {
                    step = value.parse().map_err(|_| format!("step={value}: not a number of cycles"))?;
                }
                "package" => {
                    let number = value.parse().ok().filter(|number| *number > 0);
                    package =
                        Some(number.ok_or_else(|| format!("package={value}: not a number of processors"))?);
                }
                "model" => match value {
                    "count" => model = Model::Count,
                    "tlb" => model = Model::Tlb,
                    "full" => model = Model::Full,
                    _ => return unknown("count, tlb, full"),
                },
                "from" => match value {
                    "boot" => from = ModelFrom::Boot,
                    "session" => from = ModelFrom::Session,
                    _ => return unknown("boot, session"),
                },
                "clock" => match value {
                    "on" => clock = true,
                    "off" => clock = false,
                    _ => return unknown("on, off"),
                },
                "check" => match value {
                    "off" => check = Checking::Off,
                    "miss" => check = Checking::Misses,
                    "all" => check = Checking::All,
                    _ => return unknown("off, miss, all"),
                },
                "broken" => match value {
                    "invlpg" => broken = Some(Broken::Invlpg),
                    "cr3" => broken = Some(Broken::Cr3),
                    _ => return unknown("invlpg, cr3"),
                },
                _ => {
                    return Err(format!(
                        "{key}: unknown; known are machine, ram, model, from, clock, step, check, broken, report, pages, pages_of, share, share_at, spare, package"
                    ));
                }
            }
        }
        let file = machine.ok_or("machine=FILE is missing: the description of a machine")?;
        let text = std::fs::read_to_string(&file).map_err(|error| format!("{file}: {error}"))?;
        let mut machine = machine::read(&text, &file).map_err(|error| error.to_string())?;
        // Processors of several packages share no cache, however many the description has in one.
        machine.pcpus_per_domain =
            package.map_or(machine.pcpus_per_domain, |package: u32| package.min(machine.pcpus_per_domain));
        let ram = ram.ok_or("ram=FILE is missing: the file behind -machine memory-backend=")?;
        Ok(Options {
            machine,
            ram,
            model,
            from,
            clock,
            step,
            check,
            broken,
            pages,
            pages_of_all,
            report,
            share,
            share_at,
            spare,
        })
    }
}

/// The word for it in reports.
pub fn from_name(from: ModelFrom) -> &'static str {
    match from {
        ModelFrom::Boot => "boot",
        ModelFrom::Session => "session",
    }
}

/// The word for it in reports.
pub fn check_name(check: Checking) -> &'static str {
    match check {
        Checking::Off => "off",
        Checking::Misses => "miss",
        Checking::All => "all",
    }
}

/// The word for it in reports.
pub fn model_name(model: Model) -> &'static str {
    match model {
        Model::Count => "count",
        Model::Tlb => "tlb",
        Model::Full => "full",
    }
}
