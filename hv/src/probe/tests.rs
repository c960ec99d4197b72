//! Reports about three processors, put down from what such processors answer, and about nonsense.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::firmware::info::{Region, RegionKind};
use crate::firmware::iommu::{Iommu, Kind};
use crate::screen;
use crate::virt::speculation::{self, Mitigations, Model, Offers};

/// Answers of a processor: those of (leaf, subleaf), else zeroes.
struct Answers(BTreeMap<(u32, u32), [u32; 4]>);

impl Answers {
    fn new(
        vendor: &[u8; 12],
        name: &str,
        basic: u32,
        extended: u32,
        others: &[(u32, u32, [u32; 4])],
    ) -> Answers {
        let word = |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let mut brand = name.as_bytes().to_vec();
        brand.resize(48, 0);
        let mut answers: BTreeMap<_, _> =
            others.iter().map(|(leaf, sub, words)| ((*leaf, *sub), *words)).collect();
        answers.insert((0, 0), [basic, word(vendor, 0), word(vendor, 8), word(vendor, 4)]);
        answers.insert((0x8000_0000, 0), [extended, 0, 0, 0]);
        for n in 0..3 {
            let words = [0, 4, 8, 12].map(|at| word(&brand, n as usize * 16 + at));
            answers.insert((0x8000_0002 + n, 0), words);
        }
        Answers(answers)
    }

    fn ask(&self) -> impl Fn(u32, u32) -> [u32; 4] + '_ {
        |leaf, subleaf| self.0.get(&(leaf, subleaf)).copied().unwrap_or_default()
    }
}

/// A client processor of 2015: four cores, eight threads.
fn skylake() -> Answers {
    let others = [
        (1, 0, [0x0005_06e3, 0x0010_0800, 0x7ffa_fbff, 0xbfeb_fbff]),
        (4, 0, [0x1c00_4121, 0x01c0_003f, 0x3f, 0]),
        (4, 1, [0x1c00_4122, 0x01c0_003f, 0x3f, 0]),
        (4, 2, [0x1c00_4143, 0x00c0_003f, 0x3ff, 0]),
        (4, 3, [0x1c03_c163, 0x03c0_003f, 0x1fff, 6]),
        (0x8000_0001, 0, [0, 0, 0x121, 0x2c10_0800]),
        (0x8000_0006, 0, [0, 0, 0x0100_6040, 0]),
        (0x8000_0007, 0, [0, 0, 0, 0x100]),
        (0x8000_0008, 0, [0x3027, 0, 0, 0]),
    ];
    Answers::new(b"GenuineIntel", "Intel(R) Core(TM) i7-6700 CPU @ 3.40GHz", 0x16, 0x8000_0008, &others)
}

/// A desktop processor of 2019: eight cores on two complexes, without x2APIC and TSC deadline.
fn zen2() -> Answers {
    let others = [
        (1, 0, [0x0087_0f10, 0x0010_0800, 0x7ed8_320b, 0x178b_fbff]),
        (0x8000_0001, 0, [0x0087_0f10, 0, 0x75c2_37ff, 0x2fd3_fbff]),
        (0x8000_0006, 0, [0, 0, 0x0200_6140, 0x0080_9140]),
        (0x8000_0007, 0, [0, 0, 0, 0x6799]),
        (0x8000_0008, 0, [0x3030, 0, 0, 0]),
        (0x8000_001d, 0, [0x0000_4121, 0x01c0_003f, 0x3f, 0]),
        (0x8000_001d, 1, [0x0000_4122, 0x01c0_003f, 0x3f, 0]),
        (0x8000_001d, 2, [0x0000_4143, 0x01c0_003f, 0x3ff, 2]),
        (0x8000_001d, 3, [0x0001_c163, 0x03c0_003f, 0x3fff, 1]),
    ];
    Answers::new(
        b"AuthenticAMD",
        "AMD Ryzen 7 3700X 8-Core Processor             ",
        0x10,
        0x8000_0020,
        &others,
    )
}

/// A server processor of 2009: sizes of caches only.
fn k10() -> Answers {
    let others = [
        (1, 0, [0x0010_0f42, 0, 0x0080_2009, 0x178b_fbff]),
        (0x8000_0001, 0, [0, 0, 0x0000_37ff, 0xefd3_fbff]),
        (0x8000_0005, 0, [0, 0, 0x4002_0140, 0x4002_0140]),
        (0x8000_0006, 0, [0, 0, 0x0200_8140, 0x0030_b140]),
        (0x8000_0007, 0, [0, 0, 0, 0x1f9]),
        (0x8000_0008, 0, [0x3030, 0, 0, 0]),
    ];
    Answers::new(b"AuthenticAMD", "Quad-Core AMD Opteron(tm) Processor 2378", 5, 0x8000_001b, &others)
}

fn cache_lines(answers: &Answers) -> Vec<String> {
    caches(&answers.ask()).iter().map(Cache::to_string).collect()
}

#[test]
fn processors_are_recognized() {
    let names = [skylake(), zen2(), k10()].map(|answers| Processor::new(&answers.ask()).to_string());
    assert_eq!(
        names[0],
        "Intel(R) Core(TM) i7-6700 CPU @ 3.40GHz (GenuineIntel, family 6 model 94 stepping 3)"
    );
    assert_eq!(names[1], "AMD Ryzen 7 3700X 8-Core Processor (AuthenticAMD, family 23 model 113 stepping 0)");
    assert_eq!(
        names[2],
        "Quad-Core AMD Opteron(tm) Processor 2378 (AuthenticAMD, family 16 model 4 stepping 2)"
    );
    let intel = Processor::new(&skylake().ask());
    assert_eq!((intel.address_bits, &intel.below), ([39, 48], &None));
    assert!(intel.features.iter().all(|feature| feature.present), "{:?}", intel.features);
    let missing = |answers: Answers| {
        let processor = Processor::new(&answers.ask());
        processor.features.iter().filter(|f| !f.present).map(|f| f.name).collect::<Vec<_>>()
    };
    assert_eq!(missing(zen2()), ["x2APIC", "TSC deadline"]);
    assert_eq!(missing(k10()), ["x2APIC", "TSC deadline", "XSAVE"]);
}

#[test]
fn caches_by_each_way() {
    assert_eq!(
        cache_lines(&skylake()),
        [
            "L1 data 32 KiB, 8 ways, lines of 64 bytes, shared by up to 2 logical processors",
            "L1 instructions 32 KiB, 8 ways, lines of 64 bytes, shared by up to 2 logical processors",
            "L2 256 KiB, 4 ways, lines of 64 bytes, shared by up to 2 logical processors",
            "L3 8 MiB, 16 ways, lines of 64 bytes, shared by up to 16 logical processors",
        ]
    );
    let zen2 = cache_lines(&zen2());
    assert_eq!(
        zen2[2..],
        [
            "L2 512 KiB, 8 ways, lines of 64 bytes, shared by up to 2 logical processors",
            "L3 16 MiB, 16 ways, lines of 64 bytes, shared by up to 8 logical processors",
        ]
    );
    assert_eq!(
        cache_lines(&k10()),
        [
            "L1 data 64 KiB, lines of 64 bytes",
            "L1 instructions 64 KiB, lines of 64 bytes",
            "L2 512 KiB, lines of 64 bytes",
            "L3 6 MiB, lines of 64 bytes",
        ]
    );
}

fn boot() -> BootInfo {
    let mut boot = BootInfo { firmware: Firmware::Uefi(None), ..BootInfo::default() };
    boot.loader.push_str("GRUB 2.06");
    boot.command_line.push_str("probe");
    for (range, kind) in [
        (0..0xa_0000, RegionKind::Usable),
        (0xa_0000..0x10_0000, RegionKind::Reserved),
        (0x10_0000..0x8000_0000, RegionKind::Usable),
        (0x8000_0000..0x8010_0000, RegionKind::AcpiNvs),
        (0x1_0000_0000..0x4_8000_0000, RegionKind::Usable),
        (0xe000_0000..0xf000_0000, RegionKind::Other(20)),
    ] {
        boot.regions.push(Region { range, kind });
    }
    boot
}

fn acpi() -> Acpi {
    let mut acpi = Acpi { iommu: Some(Iommu { kind: Kind::Dmar, units: 2 }), ..Acpi::default() };
    acpi.cpus.extend([0, 2, 4, 6]);
    acpi.tables.extend([*b"FACP", *b"APIC", *b"DMAR", *b"X\0!\x80"]);
    acpi
}

fn facts<'a>(answers: &Answers, boot: &'a BootInfo, acpi: &'a Acpi) -> Facts<'a> {
    Facts {
        version: "0.1.0",
        boot,
        acpi,
        identity: None,
        pcpus: 4,
        topology: Box::leak(Box::new(Topology::uniform(4, 2))),
        processor: Processor::new(&answers.ask()),
        sound_xsavec: true,
        caches: caches(&answers.ask()),
        virtualization: None,
        speculation: speculation::needs(
            Offers::read(answers.ask()),
            0,
            Model::read(answers.ask()),
            Mitigations::Auto,
        ),
        frames: frame::Stats { total: 0x40_0000, free: 0x3f_ff00, ..frame::Stats::default() },
        tsc_khz: 3_408_000,
        tsc_source: tsc::Source::Cpuid,
        ports: [(SerialPort::Com1, true), (SerialPort::Com2, false), (SerialPort::Com3, false)]
            .into_iter()
            .collect(),
        screen: None,
    }
}

#[test]
fn a_start_takes_six_lines_and_one_for_each_weakness() {
    let (boot, acpi) = (boot(), acpi());
    let mut lines = vec![];
    facts(&skylake(), &boot, &acpi).brief(|line| lines.push(line.to_string()));
    assert_eq!(
        lines,
        [
            "Palimpsest 0.1.0, started by GRUB 2.06 on UEFI",
            "processor: Intel(R) Core(TM) i7-6700 CPU @ 3.40GHz (GenuineIntel, family 6 model 94 stepping 3), 4 PCPUs",
            "PCPUs: 4 cores in 1 package, last-level caches of PCPUs 0-1, 2-3, 1 memory node",
            "memory: 16384 MiB for guests and tables, 16383 MiB free",
            "time: TSC at 3408000 kHz (from CPUID)",
            "interrupts: x2APIC with TSC deadline, 0 I/O APICs, Intel VT-d with 2 units, not used",
            "speculation: branch target injection (Spectre v2): needed, but there is no IBPB; update the firmware or the microcode",
            "speculation: L1 terminal fault: needed, but there is no FLUSH_CMD; update the firmware or the microcode",
            "speculation: data sampling (MDS, TAA): needed, but VERW does not clear buffers (no MD_CLEAR); update the firmware or the microcode",
            "speculation: iTLB multihit: on: nested leaves of 4 KiB",
        ]
    );
    let nothing = (BootInfo::default(), Acpi::default());
    lines.clear();
    facts(&k10(), &nothing.0, &nothing.1).brief(|line| lines.push(line.to_string()));
    assert_eq!(lines[5], "interrupts: xAPIC, 0 I/O APICs");
    lines.clear();
    let lossy = Facts { sound_xsavec: false, ..facts(&skylake(), &boot, &acpi) };
    lossy.brief(|line| lines.push(line.to_string()));
    let loss = "its XSAVEC loses AVX state and is hidden from guests";
    assert_eq!(lines[6], format!("processor: {loss}"));
    assert!(lossy.full().to_string().contains(&format!(", XSAVE\n  {loss}\n")));
    lines.clear();
    Facts { pcpus: 3, ..facts(&k10(), &boot, &acpi) }.brief(|line| lines.push(line.to_string()));
    assert!(lines[1].ends_with(", 3 of 4 PCPUs"), "{}", lines[1]);
}

#[test]
fn the_full_report() {
    let (mut boot, acpi) = (boot(), acpi());
    let framebuffer = screen::Framebuffer {
        address: 0xb8000,
        pitch: 160,
        width: 80,
        height: 25,
        bits: 16,
        kind: screen::Kind::Text,
    };
    let mut facts = facts(&zen2(), &boot, &acpi);
    let feature = |name, present| Feature { name, id: "", present, without: "something slower" };
    facts.virtualization = Some(Ok(Extension {
        name: "AMD-V",
        detail: ArrayString::from("16 ASIDs").unwrap(),
        features: [feature("nested paging", true), feature("next RIP", false)].into_iter().collect(),
    }));
    facts.screen = Layout::new(&framebuffer).ok();
    let name = |text| Text::from(text).unwrap();
    facts.identity = Some(Identity { machine: [name("Maker"), name(""), name("X1")], ..Identity::default() });
    let expected = "\
hardware report of Palimpsest 0.1.0
started by: GRUB 2.06 on UEFI
command line: probe
machine: Maker, X1
firmware: not named
processor: AMD Ryzen 7 3700X 8-Core Processor (AuthenticAMD, family 23 model 113 stepping 0)
  addresses: 48 bits physical, 48 bits linear
  has: pages of 1 GiB, no-execute, PAT, invariant TSC, XSAVE
  has no x2APIC: the local APIC is used through memory
  has no TSC deadline: the local APIC's timer counts down
  cache: L1 data 32 KiB, 8 ways, lines of 64 bytes, shared by up to 2 logical processors
  cache: L1 instructions 32 KiB, 8 ways, lines of 64 bytes, shared by up to 2 logical processors
  cache: L2 512 KiB, 8 ways, lines of 64 bytes, shared by up to 2 logical processors
  cache: L3 16 MiB, 16 ways, lines of 64 bytes, shared by up to 8 logical processors
virtualization: AMD-V, 16 ASIDs
  has: nested paging
  has no next RIP: something slower
speculation:
  branch target injection (Spectre v2): needed, but there is no IBPB; update the firmware or the microcode
  L1 terminal fault: nothing needed (not this processor)
  data sampling (MDS, TAA): nothing needed (not this processor)
  iTLB multihit: nothing needed (not this processor)
PCPUs: 4 in the MADT, APIC IDs 0 to 6; 4 started
  4 cores in 1 package, last-level caches of PCPUs 0-1, 2-3, 1 memory node
memory: 16383 MiB usable, up to 0x480000000
  map: usable 16383 MiB in 3, ACPI non-volatile 1 MiB in 1, reserved 384 KiB in 1, other 256 MiB in 1
  for guests and tables: 16 GiB
interrupts: xAPIC, 0 I/O APICs
IOMMU: Intel VT-d with 2 units, not used
time: TSC at 3408000 kHz, from CPUID
ACPI: FACP, APIC, DMAR, X.!.; power off: no, reset register: no
serial ports: COM1; none at COM2, COM3
screen: 80 x 25 characters, at 0xb8000
";
    assert_eq!(facts.full().to_string(), expected);
    facts.virtualization = Some(Err(ArrayString::from("firmware disabled it").unwrap()));
    facts.screen = None;
    facts.ports.clear();
    let text = facts.full().to_string();
    assert!(text.contains("\nvirtualization: cannot be used: firmware disabled it\n"), "{text}");
    assert!(
        text.ends_with("\nscreen: none reported by the boot loader\n") && !text.contains("serial"),
        "{text}"
    );
    boot.framebuffer = Some(screen::Framebuffer { kind: screen::Kind::Other(0), ..framebuffer });
    let text = self::facts(&k10(), &boot, &acpi).full().to_string();
    assert!(text.contains(": 80 x 25 of 16 bits, 160 bytes a row, at 0xb8000 (Other(0))\n"), "{text}");
    boot.framebuffer = Some(framebuffer);
    let text = self::facts(&k10(), &boot, &acpi).full().to_string();
    assert!(text.contains("\nscreen: cannot be used where it is: 80 x 25 "), "{text}");
}

#[test]
fn a_virtual_processor_says_whose() {
    let mut answers = zen2();
    answers.0.get_mut(&(1, 0)).unwrap()[2] |= 1 << 31;
    let kvm = |at: usize| u32::from_le_bytes(b"KVMKVMKVM\0\0\0"[at..at + 4].try_into().unwrap());
    answers.0.insert((0x4000_0000, 0), [0x4000_0001, kvm(0), kvm(4), kvm(8)]);
    assert_eq!(Processor::new(&answers.ask()).below.as_deref(), Some("KVMKVMKVM"));
}

proptest! {
    /// Whatever a processor answers, there is a report, in lines that a screen takes.
    #[test]
    fn nonsense_is_reported(words in prop::collection::vec(any::<[u32; 4]>(), 1..20), extended in any::<bool>()) {
        let cpuid = |leaf: u32, subleaf: u32| match leaf {
            0 => [0x20, words[0][1], words[0][2], words[0][3]],
            0x8000_0000 if extended => [0x8000_0020, 0, 0, 0],
            _ => words[(leaf.wrapping_mul(31).wrapping_add(subleaf) as usize) % words.len()],
        };
        let (boot, acpi) = (boot(), acpi());
        let mut facts = facts(&k10(), &boot, &acpi);
        facts.processor = Processor::new(&cpuid);
        facts.caches = caches(&cpuid);
        let text = facts.full().to_string();
        prop_assert!(text.lines().all(|line| line.len() < 300));
        prop_assert!(text.bytes().all(|byte| byte == b'\n' || byte == b' ' || byte.is_ascii_graphic()));
    }
}
