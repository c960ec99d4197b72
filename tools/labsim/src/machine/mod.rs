//! Machines as files: what a TOML file may say, and the machines that come with the project.
//!
//! docs/lab.md explains the keys. [`read`] parses and checks; whatever is wrong is an [`Error`] that names file, line,
//! cause and what to do. Every table says in `source` where its figures come from, or that they are assumed.

mod check;
#[cfg(any(test, feature = "testing"))]
mod fuzz;
mod presets;
mod show;

use serde::Deserialize;
use toml::Spanned;

use crate::model::policy::Policy;
pub use check::{Error, read};
#[cfg(any(test, feature = "testing"))]
pub use fuzz::fuzz_one;
pub use presets::{PRESETS, preset};
pub use show::show;

/// A machine.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Of the format: 1.
    pub version: Spanned<u32>,
    /// Its name.
    pub name: Spanned<String>,
    /// What it is.
    pub description: String,
    /// Cycles in a microsecond.
    pub mhz: Spanned<u32>,
    /// Processors that share a last-level cache and a memory node.
    pub pcpus_per_domain: u32,
    /// Where `mhz` and `pcpus_per_domain` come from.
    pub source: Spanned<String>,
    /// TLBs.
    pub tlb: Vec<Spanned<Tlb>>,
    /// Caches of upper table entries by linear address.
    #[serde(default)]
    pub walk_cache: Vec<Spanned<WalkCache>>,
    /// The same of nested tables, by guest-physical address.
    #[serde(default)]
    pub nested_walk_cache: Vec<Spanned<WalkCache>>,
    /// Translations of guest-physical pages.
    #[serde(default)]
    pub nested_tlb: Vec<Spanned<NestedTlb>>,
    /// The page walker.
    pub walker: Spanned<WalkerSpec>,
    /// Caches.
    pub cache: Vec<Spanned<Cache>>,
    /// The stride prefetcher beside the second level; without it there is none.
    pub prefetch: Option<Spanned<Prefetch>>,
    /// Memory.
    pub memory: Spanned<Memory>,
    /// What else costs cycles.
    pub cost: Spanned<Cost>,
}

/// What an array of TLBs or a cache is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Port {
    /// Loads and stores.
    Data,
    /// Instruction fetches.
    Code,
    /// Both.
    Both,
}

/// Page sizes of 4-level tables. 4 MiB pages of two-level tables count as 2 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Page {
    /// 4 KiB.
    #[serde(rename = "4K")]
    Small,
    /// 2 MiB.
    #[serde(rename = "2M")]
    Large,
    /// 1 GiB.
    #[serde(rename = "1G")]
    Huge,
}

/// Entries of upper tables, by their names in long mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Entry {
    /// Leads to a page table.
    Pde,
    /// Leads to a page directory.
    Pdpte,
    /// Leads to a table of page-directory pointers.
    Pml4e,
}

/// Ways of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum Ways {
    /// A number of ways.
    Count(usize),
    /// All.
    Word(FullyAssociative),
}

/// The word for one set that holds all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FullyAssociative {
    /// `"full"`.
    Full,
}

impl Ways {
    /// The number of ways, of an array with `entries` entries.
    pub fn of(self, entries: usize) -> usize {
        match self {
            Ways::Count(ways) => ways,
            Ways::Word(FullyAssociative::Full) => entries,
        }
    }
}

/// Size and policy of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Entries in all.
    pub entries: usize,
    /// Ways of a set.
    pub ways: usize,
    /// What goes when a set is full.
    pub policy: Policy,
}

/// An array of TLB entries.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tlb {
    /// 1 or 2.
    pub level: u8,
    /// What it is for: at the second level it may be both.
    pub port: Port,
    /// The pages that it holds.
    pub pages: Vec<Page>,
    /// Entries in all.
    pub entries: usize,
    /// Ways of a set.
    pub ways: Ways,
    /// What goes when a set is full.
    pub policy: Policy,
    /// Cycles that a hit takes, at the second level.
    #[serde(default)]
    pub latency: u64,
    /// Where the figures come from.
    pub source: String,
}

/// An array of upper table entries.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WalkCache {
    /// The entries that it holds.
    pub holds: Vec<Entry>,
    /// Entries in all.
    pub entries: usize,
    /// Ways of a set.
    pub ways: Ways,
    /// What goes when a set is full.
    pub policy: Policy,
    /// Where the figures come from.
    pub source: String,
}

/// An array of guest-physical translations.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NestedTlb {
    /// The nested pages that it holds.
    pub pages: Vec<Page>,
    /// Entries in all.
    pub entries: usize,
    /// Ways of a set.
    pub ways: Ways,
    /// What goes when a set is full.
    pub policy: Policy,
    /// Where the figures come from.
    pub source: String,
}

/// The page walker.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WalkerSpec {
    /// The level of caches that its references look into first: 1 or 2.
    pub begins_at: u8,
    /// Where that comes from.
    pub source: String,
}

/// The processors that share a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sharing {
    /// One processor.
    Pcpu,
    /// All processors of a domain.
    Domain,
}

/// A cache, of lines of 64 bytes.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cache {
    /// 1, 2 or 3.
    pub level: u8,
    /// Data or code at the first level, both at the others.
    pub port: Port,
    /// Its size.
    pub size_kib: usize,
    /// Ways of a set.
    pub ways: Ways,
    /// What goes when a set is full.
    pub policy: Policy,
    /// Cycles of a hit. At the first level only walks pay them.
    pub latency: u64,
    /// The processors that share it.
    pub shared: Sharing,
    /// Where the figures come from.
    pub source: String,
}

/// A stride prefetcher.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prefetch {
    /// Pages that it follows at a time.
    pub streams: usize,
    /// Lines that it goes ahead.
    pub degree: u64,
    /// Where the figures come from.
    pub source: String,
}

/// Memory, by what an access costs.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    /// Cycles of the processor's own node.
    pub local: u64,
    /// Cycles of another node.
    pub remote: u64,
    /// Cycles of the slow tier.
    pub slow: u64,
    /// Where the figures come from.
    pub source: String,
    /// Which memory is where. Without ranges each domain has its part, in order.
    #[serde(default)]
    pub range: Vec<Spanned<Range>>,
}

/// A range of physical addresses.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Range {
    /// Its begin in MiB.
    pub from_mib: u64,
    /// Its end in MiB.
    pub to_mib: u64,
    /// The domain whose it is; without one it is the slow tier.
    pub node: Option<u32>,
    /// What its channel carries, in millions of bytes a second; without it no access waits for another one.
    pub bandwidth_mb_s: Option<u64>,
}

/// What else costs cycles.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cost {
    /// VMRUN or VM entry.
    pub vmrun: u64,
    /// #VMEXIT or VM exit.
    pub vmexit: u64,
    /// INVLPG.
    pub invlpg: u64,
    /// A write of CR3.
    pub cr3_write: u64,
    /// An interrupt command, for its sender.
    pub ipi: u64,
    /// Where the figures come from.
    pub source: String,
}

fn page_classes(pages: &[Page]) -> u8 {
    pages.iter().fold(0, |classes, page| classes | 1 << *page as u8)
}

impl Tlb {
    /// Its shape.
    pub fn shape(&self) -> Shape {
        Shape { entries: self.entries, ways: self.ways.of(self.entries), policy: self.policy }
    }

    /// Its pages, a bit for each size.
    pub fn classes(&self) -> u8 {
        page_classes(&self.pages)
    }
}

impl NestedTlb {
    /// Its shape.
    pub fn shape(&self) -> Shape {
        Shape { entries: self.entries, ways: self.ways.of(self.entries), policy: self.policy }
    }

    /// Its pages, a bit for each size.
    pub fn classes(&self) -> u8 {
        page_classes(&self.pages)
    }
}

impl WalkCache {
    /// Its shape.
    pub fn shape(&self) -> Shape {
        Shape { entries: self.entries, ways: self.ways.of(self.entries), policy: self.policy }
    }

    /// Its kinds of entries, a bit for each.
    pub fn classes(&self) -> u8 {
        self.holds.iter().fold(0, |classes, entry| classes | 1 << *entry as u8)
    }
}

impl Cache {
    /// Its lines.
    pub fn lines(&self) -> usize {
        self.size_kib * 1024 / 64
    }

    /// Its shape, in lines.
    pub fn shape(&self) -> Shape {
        let lines = self.lines();
        Shape { entries: lines, ways: self.ways.of(lines), policy: self.policy }
    }
}
