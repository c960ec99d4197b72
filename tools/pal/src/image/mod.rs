//! `pal image`: media that boot the hypervisor with guests on real machines, made and looked at.

pub mod args;
mod guest;
mod inspect;
pub mod spec;

use std::{env, fs, path::Path};

use anyhow::{Context, Result};
use bootimg::{Boot, Entry, Firmware, Image, Menu, Serial, Tools};

use crate::{host::needs::Needs, project::Project, status::Usage, ui::Ui};
use args::{ImageArgs, ImageCommand, MakeArgs, Port};
use spec::Spec;

/// The hypervisor's path on an image.
const HYPERVISOR: &str = "boot/palimpsest";
/// The only speed at which the hypervisor drives a serial port.
const BAUD: u32 = 115_200;
/// The entry that reports on the machine.
const PROBE: &str = "probe";

/// Writes a kind of image.
type Maker = fn(&Image, &Tools, &Path) -> Result<(), bootimg::Error>;

/// Makes an image, or looks at one.
///
/// # Errors
/// [`Usage`] for options, descriptions and files that cannot work; others for what is missing on this machine.
pub fn run(args: &ImageArgs, project: &Project, ui: &Ui) -> Result<u8> {
    let (args, make): (_, Maker) = match &args.command {
        ImageCommand::Iso(args) => (args, bootimg::iso),
        ImageCommand::Usb(args) => (args, bootimg::usb),
        ImageCommand::Netboot(args) => (args, bootimg::netboot),
        ImageCommand::Inspect(args) => return inspect::run(&args.file),
    };
    let needs = Needs { project, ui, yes: args.yes };
    let spec = Spec::new(args)?;
    let image = describe(&spec, args, &needs)?;
    let tools = needs.media(image.firmware)?;
    {
        let _step = ui.step("making the image");
        make(&image, &tools, &args.output).map_err(|error| match error {
            bootimg::Error::Description(text) => Usage::new(format!("{}: {text}", spec.source)).into(),
            other => usage(other),
        })?;
    }
    let default = &image.menu.entries[image.menu.default].title;
    let entries = match image.menu.entries.len() {
        1 => "1 menu entry".to_owned(),
        count => format!("{count} menu entries"),
    };
    ui.say(&format!("{}: {entries}, {default:?} by itself", args.output.display()));
    Ok(0)
}

/// The image out of options and description.
fn describe(spec: &Spec, args: &MakeArgs, needs: &Needs) -> Result<Image> {
    let wrong = |text: String| anyhow::Error::from(Usage::new(format!("{}: {text}", spec.source)));
    let mut image = Image::new(if args.bios_only { Firmware::Bios } else { Firmware::Both });
    image.label.clone_from(&spec.label);
    image.epoch = epoch()?;
    let mut cmdline = match spec.serial {
        Port(Some(unit)) => format!("console=com{}", unit + 1),
        Port(None) => "console=screen".to_owned(),
    };
    for word in spec.hypervisor_cmdline.split_whitespace() {
        cmdline += " ";
        cmdline += word;
    }

    let guests: Vec<_> =
        spec.vm.iter().map(|vm| guest::add(spec, vm, needs, &mut image)).collect::<Result<_>>()?;
    let mut entries = Vec::new();
    for (vm, ready) in spec.vm.iter().zip(&guests) {
        let modes = vm.mode.as_ref().map_or(&spec.modes[..], std::slice::from_ref);
        for mode in modes {
            entries.push(ready.entry(*mode, HYPERVISOR, &cmdline, &mut image)?);
        }
    }
    if spec.together {
        entries.push(guest::together(spec, &guests, HYPERVISOR, &cmdline, &mut image)?);
    }
    if spec.native {
        entries.extend(guests.first().and_then(guest::Ready::native));
    }
    if spec.probe {
        let cmdline = format!("{cmdline} probe");
        let boot = Boot::Hypervisor { file: HYPERVISOR.into(), cmdline, modules: vec![] };
        entries.push(Entry { title: PROBE.into(), boot });
    }
    let default = match &spec.default {
        None => 0,
        Some(title) => entries.iter().position(|entry| entry.title == *title).ok_or_else(|| {
            let titles: Vec<_> = entries.iter().map(|entry| format!("{:?}", entry.title)).collect();
            wrong(format!("`default` {title:?} is no menu entry; there are {}", titles.join(", ")))
        })?,
    };
    if entries.is_empty() {
        return Err(wrong("there is nothing to boot: add a [[vm]], or `probe = true`".into()));
    }
    image.menu = Menu {
        entries,
        default,
        timeout_s: spec.timeout.0,
        serial: spec.serial.0.map(|unit| Serial { unit, baud: BAUD }),
    };
    let hypervisor = spec.hypervisor.clone().map_or_else(|| needs.hypervisor(), Ok)?;
    let file = fs::read(&hypervisor)
        .map_err(|error| wrong(format!("`hypervisor` {}: {error}", hypervisor.display())))?;
    let file = bootimg::loadable(&file)
        .map_err(|error| wrong(format!("`hypervisor` {}: {error}", hypervisor.display())))?;
    image.add(HYPERVISOR, file).map_err(usage)?;
    Ok(image)
}

/// The time of all files.
fn epoch() -> Result<u32> {
    let Some(text) = env::var_os("SOURCE_DATE_EPOCH") else { return Ok(bootimg::DEFAULT_EPOCH) };
    let seconds = text.to_str().and_then(|text| text.parse().ok());
    seconds.with_context(|| format!("SOURCE_DATE_EPOCH is {text:?}, not a number of seconds since 1970"))
}

/// What the person described wrongly, or a path that does not work, is a [`Usage`].
fn usage(error: bootimg::Error) -> anyhow::Error {
    match error {
        bootimg::Error::Description(_) | bootimg::Error::File { .. } => Usage::new(error.to_string()).into(),
        other => other.into(),
    }
}
