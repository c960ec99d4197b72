//! The hardware report: what a person wants to know about a machine, above all about one on which the hypervisor does not
//! work yet.
//!
//! [`Facts`] are gathered by `boot::report` and formatted here, without touching hardware: in a few lines of the log at each
//! start ([`Facts::brief`]), and in full for the word `probe` on the command line ([`Facts::full`]).

mod cache;
mod memory;
mod place;
mod processor;
#[cfg(test)]
mod tests;

use core::fmt::{self, Display, Formatter};

use arrayvec::{ArrayString, ArrayVec};

pub use cache::{Cache, Caches, Holds, caches};
use memory::Map;
pub use place::{place, record, runs, shape};
pub use processor::{Cpuid, Processor, brand, vendor};

use crate::arch::addr::PAGE_SIZE;
use crate::firmware::acpi::Acpi;
use crate::firmware::info::{BootInfo, Firmware};
use crate::firmware::smbios::{Identity, Text};
use crate::hw::tsc;
use crate::hw::uart::SerialPort;
use crate::mem::frame;
use crate::sched::topology::Topology;
use crate::screen::Layout;
use crate::virt::feature::{Feature, Listed};
use crate::virt::speculation::{Mitigation, Plan, State};

/// A virtualization extension that can be used.
#[derive(Clone, Debug)]
pub struct Extension {
    /// "AMD-V" or "VT-x".
    pub name: &'static str,
    /// What it has besides features: "16 ASIDs".
    pub detail: ArrayString<40>,
    /// What the backend uses where present.
    pub features: ArrayVec<Feature, 24>,
}

/// The extension, or why none can be used.
pub type Virtualization = Result<Extension, ArrayString<320>>;

/// A serial port, and whether a UART answers there.
pub type Port = (SerialPort, bool);

/// Everything that the report tells.
pub struct Facts<'a> {
    /// The hypervisor's version.
    pub version: &'a str,
    /// What the boot loader said.
    pub boot: &'a BootInfo,
    /// What the ACPI tables say.
    pub acpi: &'a Acpi,
    /// Vendor and model of the machine, if the SMBIOS tables have been read and name them.
    pub identity: Option<Identity>,
    /// PCPUs that have started, the first one included.
    pub pcpus: usize,
    /// Where they are.
    pub topology: &'a Topology,
    /// The processor.
    pub processor: Processor,
    /// Its XSAVEC, if it has one, loses nothing.
    pub sound_xsavec: bool,
    /// Its caches.
    pub caches: Caches,
    /// The virtualization extension; `None` if it has not been probed.
    pub virtualization: Option<Virtualization>,
    /// What is done about speculation.
    pub speculation: Plan,
    /// Frames for guests and tables.
    pub frames: frame::Stats,
    /// Frequency of the time-stamp counter in kHz.
    pub tsc_khz: u64,
    /// How it was found.
    pub tsc_source: tsc::Source,
    /// Serial ports that were looked for.
    pub ports: ArrayVec<Port, 4>,
    /// The screen in use.
    pub screen: Option<Layout>,
}

/// A number of bytes: in GiB if it is a whole number of them, else in MiB, and below 1 MiB in KiB.
pub struct Size(pub u64);

impl Display for Size {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("0"),
            bytes if bytes % (1 << 30) == 0 => write!(f, "{} GiB", bytes >> 30),
            bytes if bytes >= 1 << 20 => write!(f, "{} MiB", bytes >> 20),
            bytes => write!(f, "{} KiB", bytes >> 10),
        }
    }
}

/// What is said of a processor whose XSAVEC cannot be used.
const LOSSY_XSAVEC: &str = "its XSAVEC loses AVX state and is hidden from guests";

/// Things in a row, with commas.
struct Row<I>(I);

impl<T: Display, I: Iterator<Item = T> + Clone> Display for Row<I> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.clone().enumerate().try_for_each(|(n, item)| {
            f.write_str(if n == 0 { "" } else { ", " })?;
            item.fmt(f)
        })
    }
}

impl Facts<'_> {
    /// `4 PCPUs`, or `3 of 4 PCPUs` if one did not start.
    fn pcpus(&self) -> impl Display {
        let (started, all) = (self.pcpus, self.acpi.cpus.len());
        fmt::from_fn(move |f| match started < all {
            true => write!(f, "{started} of {all} PCPUs"),
            false => write!(f, "{started} PCPUs"),
        })
    }

    fn has(&self, feature: &str) -> bool {
        self.processor.features.iter().any(|known| known.name == feature && known.present)
    }

    /// The machine in a few lines, each given to `line`.
    pub fn brief(&self, mut line: impl FnMut(fmt::Arguments<'_>)) {
        let pages = |frames: u64| (frames * PAGE_SIZE) >> 20;
        line(format_args!("Palimpsest {}, started by {}{}", self.version, self.boot.loader, self.firmware()));
        line(format_args!("processor: {}, {}", self.processor, self.pcpus()));
        if self.pcpus > 1 {
            line(format_args!("PCPUs: {}", shape(self.topology)));
        }
        line(format_args!(
            "memory: {} MiB for guests and tables, {} MiB free",
            pages(self.frames.total),
            pages(self.frames.free)
        ));
        line(format_args!("time: TSC at {} kHz (from {})", self.tsc_khz, self.tsc_source));
        line(format_args!("interrupts: {}{}", self.interrupts(), self.iommu(", ")));
        if !self.sound_xsavec {
            line(format_args!("processor: {LOSSY_XSAVEC}"));
        }
        // What needs nothing is in the full report.
        let news = |mitigation: &&Mitigation| !matches!(mitigation.state, State::NotNeeded(_));
        self.speculation.list.iter().filter(news).for_each(|it| line(format_args!("speculation: {it}")));
    }

    fn firmware(&self) -> &'static str {
        match self.boot.firmware {
            Firmware::Unknown => "",
            Firmware::Bios => " on a PC BIOS",
            Firmware::Uefi(_) => " on UEFI",
        }
    }

    fn interrupts(&self) -> impl Display {
        let deadline = if self.has("TSC deadline") { " with TSC deadline" } else { "" };
        let apic = if self.has("x2APIC") { "x2APIC" } else { "xAPIC" };
        let io_apics = self.acpi.io_apics.len();
        fmt::from_fn(move |f| write!(f, "{apic}{deadline}, {io_apics} I/O APICs"))
    }

    fn iommu(&self, before: &'static str) -> impl Display {
        let iommu = self.acpi.iommu;
        fmt::from_fn(move |f| match iommu {
            Some(iommu) => write!(f, "{before}{iommu}, not used"),
            None => Ok(()),
        })
    }

    /// Everything, in lines of at most about a hundred characters.
    pub fn full(&self) -> Full<'_> {
        Full(self)
    }
}

/// The full report.
pub struct Full<'a>(&'a Facts<'a>);

impl Display for Full<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Facts { boot, acpi, processor, .. } = self.0;
        writeln!(f, "hardware report of Palimpsest {}", self.0.version)?;
        writeln!(f, "started by: {}{}", boot.loader, self.0.firmware())?;
        writeln!(f, "command line: {}", boot.command_line)?;
        if let Some(Identity { machine, firmware }) = &self.0.identity {
            writeln!(f, "machine: {}", names(machine))?;
            writeln!(f, "firmware: {}", names(firmware))?;
        }
        writeln!(f, "processor: {processor}")?;
        if let Some(below) = &processor.below {
            writeln!(f, "  it is virtual: the hypervisor below is {below}")?;
        }
        let [physical, linear] = processor.address_bits;
        writeln!(f, "  addresses: {physical} bits physical, {linear} bits linear")?;
        features(f, &processor.features)?;
        if !self.0.sound_xsavec {
            writeln!(f, "  {LOSSY_XSAVEC}")?;
        }
        self.0.caches.iter().try_for_each(|cache| writeln!(f, "  cache: {cache}"))?;
        self.virtualization(f)?;
        writeln!(f, "speculation:")?;
        self.0.speculation.list.iter().try_for_each(|it| writeln!(f, "  {it}"))?;
        write!(f, "PCPUs: {} in the MADT", acpi.cpus.len())?;
        match acpi.cpus.as_slice() {
            [] => writeln!(f, "; the one that started is used")?,
            [one] => writeln!(f, ", APIC ID {one}")?,
            ids => writeln!(
                f,
                ", APIC IDs {} to {}; {} started",
                ids.iter().min().unwrap_or(&0),
                ids.iter().max().unwrap_or(&0),
                self.0.pcpus
            )?,
        }
        writeln!(f, "  {}", shape(self.0.topology))?;
        self.nodes(f)?;
        Map::new(&boot.regions).fmt(f)?;
        writeln!(f, "  for guests and tables: {}", Size(self.0.frames.total.saturating_mul(PAGE_SIZE)))?;
        writeln!(f, "interrupts: {}", self.0.interrupts())?;
        match acpi.iommu {
            Some(iommu) => writeln!(f, "IOMMU: {iommu}, not used")?,
            None => writeln!(f, "IOMMU: none in the ACPI tables")?,
        }
        writeln!(f, "time: TSC at {} kHz, from {}", self.0.tsc_khz, self.0.tsc_source)?;
        let tables = acpi.tables.iter().map(ascii);
        match acpi.tables.as_slice() {
            [] => writeln!(f, "ACPI: no tables")?,
            _ => writeln!(f, "ACPI: {}; {}", Row(tables), self.power())?,
        }
        self.console(f)
    }
}

impl Full<'_> {
    fn virtualization(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match &self.0.virtualization {
            None => Ok(()),
            Some(Err(obstacle)) => writeln!(f, "virtualization: cannot be used: {obstacle}"),
            Some(Ok(extension)) => {
                writeln!(f, "virtualization: {}, {}", extension.name, extension.detail)?;
                features(f, &extension.features)
            }
        }
    }

    /// Nodes of memory, if the tables name any, with their distances to all.
    fn nodes(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let numa = &self.0.acpi.numa;
        let nodes = numa.nodes();
        nodes.iter().take(64).try_for_each(|node| {
            let distances = Row(nodes.iter().map(|other| numa.distance(*node, *other)));
            writeln!(f, "  memory node {node}: {}, distances {distances}", Size(numa.bytes(*node)))
        })
    }

    fn power(&self) -> impl Display {
        let can = |can: bool| if can { "yes" } else { "no" };
        let (off, reset) = (can(self.0.acpi.soft_off.is_some()), can(self.0.acpi.reset.is_some()));
        fmt::from_fn(move |f| write!(f, "power off: {off}, reset register: {reset}"))
    }

    fn console(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let ports = |there: bool| self.0.ports.iter().filter(move |port| port.1 == there).map(|port| port.0);
        let named = |there: bool| {
            Row(ports(there).map(|port| fmt::from_fn(move |f| write!(f, "COM{}", port as u8 + 1))))
        };
        match (ports(true).next().is_some(), ports(false).next().is_some()) {
            (false, false) => {}
            (true, false) => writeln!(f, "serial ports: {}", named(true))?,
            (false, true) => writeln!(f, "serial ports: none at {}", named(false))?,
            (true, true) => writeln!(f, "serial ports: {}; none at {}", named(true), named(false))?,
        }
        match (&self.0.screen, &self.0.boot.framebuffer) {
            (Some(layout), _) => writeln!(f, "screen: {layout}, at {:#x}", layout.memory().start),
            (None, Some(other)) => match Layout::new(other) {
                Err(why) => writeln!(f, "screen: cannot be used: {why}: {other}"),
                Ok(_) => writeln!(f, "screen: cannot be used where it is: {other}"),
            },
            (None, None) => writeln!(f, "screen: none reported by the boot loader"),
        }
    }
}

/// What is there in a line, and a line for each feature that is missing.
fn features(f: &mut Formatter<'_>, features: &[Feature]) -> fmt::Result {
    let mut present: ArrayVec<Feature, 24> = features.iter().copied().take(24).collect();
    present.retain(|feature| feature.present);
    if !present.is_empty() {
        writeln!(f, "  has: {}", Listed(&present))?;
    }
    let mut missing = features.iter().filter(|feature| !feature.present);
    missing.try_for_each(|feature| writeln!(f, "  has no {}: {}", feature.name, feature.without))
}

/// The texts that are not empty.
fn names(texts: &[Text]) -> impl Display {
    let mut given = texts.iter().filter(|text| !text.is_empty()).peekable();
    let nameless = given.peek().is_none();
    fmt::from_fn(move |f| if nameless { f.write_str("not named") } else { Row(given.clone()).fmt(f) })
}

/// Four characters of a table's name; what is not printable shows as a dot.
fn ascii(name: &[u8; 4]) -> ArrayString<4> {
    let mut text = ArrayString::new();
    for byte in name {
        let shown = if byte.is_ascii_graphic() { char::from(*byte) } else { '.' };
        // Four ASCII characters fit.
        let _ = text.try_push(shown);
    }
    text
}
