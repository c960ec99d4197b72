//! `palimpsest.toml`: its keys, words and limits (docs/configuration.md says what they mean).
//!
//! The hypervisor parses the file without floating point and so without serde; `pal` writes it with serde. Both test that the keys
//! they know are those of [`keys`].

/// The name by which the hypervisor finds the file among those of the boot loader.
pub const FILE_NAME: &str = "palimpsest.toml";

constants! {
    /// Version of the schema of the configuration.
    VERSION: u32 = 1;
    /// VMs of one configuration at most.
    MAX_VMS: usize = 64;
    /// VCPUs of a VM at most.
    MAX_VCPUS: u32 = 64;
    /// PCPUs that `affinity` can name, from 0 on.
    MAX_PCPUS: u32 = 64;
    /// RAM of a VM at least, in MiB.
    MIN_MEMORY_MIB: u64 = 20;
    /// RAM of a VM at most, in MiB: 64 TiB, which leaves most of a 48-bit physical address space to devices.
    MAX_MEMORY_MIB: u64 = 64 << 20;
    /// The weight of a VM that names none.
    DEFAULT_WEIGHT: u32 = 256;
    /// The least weight.
    MIN_WEIGHT: u32 = 1;
    /// The greatest weight.
    MAX_WEIGHT: u32 = 65_535;
    /// The least `shadow_pages`.
    MIN_SHADOW_PAGES: u32 = 16;
    /// The greatest `shadow_pages`.
    MAX_SHADOW_PAGES: u32 = 1 << 20;
    /// Resident memory of an overcommitted VM at least, in MiB.
    MIN_RESIDENT_MIB: u64 = 4;
    /// RAM of an overcommitted VM at most, in MiB.
    MAX_OVERCOMMIT_MIB: u64 = 1 << 20;
    /// Disks of a VM at most.
    MAX_DISKS: usize = 8;
    /// Network cards of a VM at most.
    MAX_NETWORKS: usize = 4;
    /// Bytes of a name at most.
    MAX_NAME: usize = 32;
}

/// Whether a VM or a network can have this name: 1 to [`MAX_NAME`] printable ASCII characters without blanks.
pub fn is_name(name: &str) -> bool {
    (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic())
}

/// The greatest `cap` of a VM: percent of one PCPU for all its VCPUs together.
pub const fn max_cap(vcpus: u32) -> u32 {
    vcpus.saturating_mul(100)
}

words! {
    /// A boot protocol.
    #[derive(Default)]
    Protocol {
        /// The best that the kernel file offers, in the order of the other words.
        #[default]
        Auto = "auto",
        /// Linux bzImage, entered in 64-bit mode.
        Linux64 = "linux64",
        /// Linux bzImage, entered in 32-bit mode.
        Linux32 = "linux32",
        /// The PVH entry of an ELF file.
        Pvh = "pvh",
        /// Multiboot 1.
        Multiboot1 = "multiboot1",
    }
}

words! {
    /// What a person's input goes to.
    #[derive(Default)]
    Console {
        /// The serial port.
        #[default]
        Serial = "serial",
        /// A virtio console, once its driver runs; the serial port before that.
        Virtio = "virtio",
    }
}

words! {
    /// What is done so that a guest learns nothing of others by speculation.
    #[derive(Default)]
    Mitigations {
        /// What the processor needs.
        #[default]
        Auto = "auto",
        /// Nothing.
        Off = "off",
    }
}

words! {
    /// The largest pages that nested tables map a guest's memory with.
    #[derive(Default)]
    NestedPage {
        /// 4 KiB.
        Small = "4K",
        /// 2 MiB.
        Large = "2M",
        /// As large as the processor has them.
        #[default]
        Huge = "1G",
    }
}

words! {
    /// The policy by which pages of an overcommitted guest are evicted.
    #[derive(Default)]
    Replacement {
        /// A second chance for what was accessed.
        #[default]
        Clock = "clock",
        /// CLOCK with a test period for cold pages.
        ClockPro = "clock-pro",
        /// CLOCK, but for sequences of faults.
        Seq = "seq",
        /// The better of CLOCK and LIFO, by what each would have evicted.
        Apr = "apr",
        /// The least recently seen as accessed.
        Lru = "lru",
        /// Three queues.
        S3Fifo = "s3-fifo",
        /// A hand that keeps new pages apart.
        Sieve = "sieve",
    }
}

/// The keys of each table.
pub mod keys {
    /// The whole file.
    pub const FILE: &[&str] = &["version", "console", "vm"];
    /// A `[[vm]]` table.
    #[rustfmt::skip]
    pub const VM: &[&str] = &[
        "name", "kernel", "initrd", "modules", "cmdline", "memory_mib", "vcpus", "weight", "cap", "affinity", "mode",
        "nested_page", "shadow_pages", "audit_shadow", "protocol", "permissive_msr", "test_device", "pv_clock", "restart", "mitigations", "cpu",
        "disks", "networks", "console", "entropy", "regions", "overcommit", "resident_mib", "replacement",
        "balloon", "fast_mib",
    ];
    /// An element of `modules`.
    pub const MODULE: &[&str] = &["file", "cmdline"];
    /// An element of `disks`: `file`, or `address` and `bytes`.
    pub const DISK: &[&str] = &["file", "address", "bytes", "read_only"];
    /// The table `cpu`.
    pub const CPU: &[&str] = &["without"];
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;

    #[test]
    fn names() {
        assert!(is_name("a") && is_name("web-1") && is_name(&"~~~~".repeat(8)));
        for bad in ["", " ", "a b", "a\u{7f}", "ä", "a\n", &"x".repeat(MAX_NAME + 1)] {
            assert!(!is_name(bad), "{bad:?}");
        }
    }

    #[test]
    fn no_key_stands_twice() {
        for table in [keys::FILE, keys::VM, keys::MODULE, keys::DISK, keys::CPU] {
            assert!(table.iter().enumerate().all(|(n, key)| !table[..n].contains(key)), "{table:?}");
        }
    }
}
