//! From a machine's description to its processors.

use std::{collections::HashMap, ops::Range, sync::Arc};

use abi::lab::{Record, Side};

use super::{Checking, Costs, Processor, exits::LastExit};
use crate::{
    machine::{self, Machine, Shape},
    model::{
        bank::{Bank, Geometry},
        cache::Cache,
        channel::{Carried, Channel},
        context::Control,
        dirty::Tables,
        hierarchy::{self, Clock, Hierarchy, Level, MemoryMap, Tier},
        memory::{Memory, Split},
        prefetch::Prefetcher,
        space::{Kind, Spaces},
        tlb::{Port, Tags, Tlbs},
        walk::{WalkTags, Walker},
        witness::{Stores, Witness},
    },
};

/// The processors of a machine.
#[derive(Clone, Copy, Debug)]
pub struct Pcpus {
    /// How many there are, with the spare one.
    pub count: u32,
    /// The first is a spare one, on which no guest runs (docs/design/0006-emulated-svm.md). The machine's description does not
    /// speak of it: it has a domain of its own, behind those of the others.
    pub has_spare: bool,
}

impl Pcpus {
    /// The domain of the processor of this number, where `each` processors share one.
    fn domain(self, number: u32, each: u32) -> u32 {
        match number.checked_sub(self.has_spare.into()) {
            Some(number) => number / each,
            None => self.domains(each),
        }
    }

    /// How many domains are described: at least one.
    fn domains(self, each: u32) -> u32 {
        self.count.saturating_sub(self.has_spare.into()).div_ceil(each).max(1)
    }
}

/// What the processors of one machine have in common.
pub struct Shared {
    machine: Machine,
    pcpus: Pcpus,
    tables: Arc<Tables>,
    memory: Arc<MemoryMap>,
    caches: HashMap<(u32, u8), Arc<Cache>>,
    with_caches: bool,
    checking: Checking,
    stores: Option<Arc<Stores>>,
    is_alone: bool,
    doorbell: Range<u64>,
}

impl Shared {
    /// For a checked machine, its memory and processors. `doorbell`: where it sees the records.
    pub fn new(
        machine: Machine,
        ram: Split,
        pcpus: Pcpus,
        with_caches: bool,
        checking: Checking,
        doorbell: Range<u64>,
    ) -> Shared {
        let memory = Arc::new(memory_map(&machine, ram, pcpus));
        let tables = Arc::new(Tables::new(ram.end()));
        let stores = (checking != Checking::Off).then(Arc::default);
        let (caches, is_alone) = (HashMap::new(), pcpus.count <= 1);
        Shared { machine, pcpus, tables, memory, caches, with_caches, checking, stores, is_alone, doorbell }
    }

    /// The processor of this number, with nothing in its caches and registers as after a reset.
    pub fn processor<M: Memory>(
        &mut self,
        number: u32,
        memory: M,
        record: &'static mut Record,
    ) -> Processor<M> {
        let banks = |port, level| {
            let arrays = self.machine.tlb.iter().map(|array| array.get_ref());
            let wanted = arrays.filter(move |array| array.level == level && array.port == port);
            Bank::new(wanted.map(|array| geometry(array.shape(), array.classes())))
        };
        let both = banks(machine::Port::Both, 2);
        let second = match both.is_empty() {
            true => vec![banks(machine::Port::Data, 2), banks(machine::Port::Code, 2)],
            false => vec![both],
        };
        let walker = Walker {
            guest: caches(&self.machine.walk_cache),
            nested: caches(&self.machine.nested_walk_cache),
            nested_tlb: Bank::new(
                self.machine.nested_tlb.iter().map(|a| geometry(a.get_ref().shape(), a.get_ref().classes())),
            ),
        };
        // On one processor nothing explains a difference, but with agile paging.
        let stores = self.stores.as_ref().filter(|_| !self.is_alone);
        let witness = stores.map(|stores| Witness::new(number, Arc::clone(stores)));
        let mut processor = Processor {
            memory,
            tables: Arc::clone(&self.tables),
            record,
            tlbs: Tlbs::new(banks(machine::Port::Data, 1), banks(machine::Port::Code, 1), second),
            walker,
            hierarchy: self.with_caches.then(|| self.hierarchy(number)),
            spaces: Spaces::default(),
            costs: costs(&self.machine),
            checking: self.checking,
            witness,
            is_alone: self.is_alone,
            stores: self.stores.clone(),
            differences: Vec::new(),
            doorbell: self.doorbell.clone(),
            side: Side::Host,
            control: Control::default(),
            host: None,
            nested: None,
            regime: None,
            agile: None,
            exit: LastExit::default(),
            asid: 0,
            wide_asid: 0,
            tags: Tags {
                own: Spaces::default().tag(0, Kind::Linear),
                global: Spaces::default().tag(0, Kind::Global),
            },
            walk_tags: WalkTags {
                linear: Spaces::default().tag(0, Kind::Linear),
                nested: Spaces::default().tag(0, Kind::Nested),
            },
            accesses: 0,
            instructions: 0,
            tables_epoch: 0,
        };
        processor.take_tags();
        processor.set_control(Control::default());
        processor
    }

    /// Begin and end of each range of memory that has a channel, and what that has carried.
    pub fn channels(&self) -> Vec<(Range<u64>, Carried)> {
        let of = |range: &hierarchy::Range| Some((range.start..range.end, range.channel.as_ref()?.carried()));
        self.memory.ranges.iter().filter_map(of).collect()
    }

    fn hierarchy(&mut self, number: u32) -> Hierarchy {
        let machine = &self.machine;
        let domain = self.pcpus.domain(number, machine.pcpus_per_domain);
        let of = |level, port| {
            machine.cache.iter().map(|c| c.get_ref()).find(|c| c.level == level && c.port == port)
        };
        let new = |cache: &machine::Cache| {
            let Shape { entries, ways, policy } = cache.shape();
            Cache::new(entries, ways, policy)
        };
        let first = [machine::Port::Data, machine::Port::Code]
            .map(|port| of(1, port).expect("the machine was checked"));
        let mut levels = vec![];
        for cache in (2..=3).filter_map(|level| of(level, machine::Port::Both)) {
            let shared = || Arc::new(new(cache));
            let place = match cache.shared {
                machine::Sharing::Domain => {
                    Arc::clone(self.caches.entry((domain, cache.level)).or_insert_with(shared))
                }
                machine::Sharing::Pcpu => shared(),
            };
            levels.push(Level { cache: place, latency: cache.latency });
        }
        Hierarchy {
            first_latency: first[0].latency,
            first: first.map(new),
            levels,
            walks_use_first: machine.walker.get_ref().begins_at == 1,
            prefetcher: machine
                .prefetch
                .as_ref()
                .map(|p| Prefetcher::new(p.get_ref().streams, p.get_ref().degree)),
            clock: self.memory.has_channels().then(Clock::default),
            memory: Arc::clone(&self.memory),
            node: domain,
        }
    }
}

fn caches(arrays: &[toml::Spanned<machine::WalkCache>]) -> Bank {
    Bank::new(arrays.iter().map(|array| geometry(array.get_ref().shape(), array.get_ref().classes())))
}

fn geometry(Shape { entries, ways, policy }: Shape, classes: u8) -> Geometry {
    Geometry { entries, ways, policy, classes }
}

fn costs(machine: &Machine) -> Costs {
    let cost = machine.cost.get_ref();
    let second = |port: machine::Port| {
        let arrays = machine.tlb.iter().map(|array| array.get_ref());
        let of = arrays
            .filter(|array| array.level == 2 && (array.port == port || array.port == machine::Port::Both));
        of.map(|array| array.latency).max().unwrap_or(0)
    };
    let mut second_tlb = [0; 2];
    second_tlb[Port::Data as usize] = second(machine::Port::Data);
    second_tlb[Port::Code as usize] = second(machine::Port::Code);
    let begin = machine
        .cache
        .iter()
        .map(|cache| cache.get_ref())
        .find(|cache| cache.level == machine.walker.get_ref().begins_at);
    Costs {
        vmrun: cost.vmrun,
        vmexit: cost.vmexit,
        second_tlb,
        invlpg: cost.invlpg,
        cr3_write: cost.cr3_write,
        ipi: cost.ipi,
        walk_reference: begin.map_or(0, |cache| cache.latency),
    }
}

/// The ranges of the description; without any, each domain has its part of memory, in order.
fn memory_map(machine: &Machine, ram: Split, pcpus: Pcpus) -> MemoryMap {
    let spec = machine.memory.get_ref();
    let latency = [spec.local, spec.remote, spec.slow];
    let mib = |mib: u64| mib << 20;
    let given = |range: &machine::Range| hierarchy::Range {
        start: mib(range.from_mib),
        end: mib(range.to_mib),
        tier: range.node.map_or(Tier::Slow, Tier::Node),
        channel: range.bandwidth_mb_s.map(|mb_s| Channel::new(mb_s, *machine.mhz.get_ref())),
    };
    let mut ranges: Vec<_> = spec.range.iter().map(|range| given(range.get_ref())).collect();
    let domains = u64::from(pcpus.domains(machine.pcpus_per_domain));
    if ranges.is_empty() && domains > 1 {
        let part = (ram.end() / domains) & !0x1f_ffff;
        ranges = (0..domains)
            .map(|node| hierarchy::Range {
                start: node * part,
                end: if node + 1 == domains { u64::MAX } else { (node + 1) * part },
                tier: Tier::Node(node as u32),
                channel: None,
            })
            .collect();
    }
    MemoryMap { ranges, latency }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spare_processor_is_in_no_described_domain() {
        let with = |count, has_spare| {
            let pcpus = Pcpus { count, has_spare };
            (pcpus.domains(2), (0..count).map(|number| pcpus.domain(number, 2)).collect::<Vec<_>>())
        };
        assert_eq!(with(1, false), (1, vec![0]));
        assert_eq!(with(4, false), (2, vec![0, 0, 1, 1]));
        assert_eq!(with(5, true), (2, vec![2, 0, 0, 1, 1]));
        assert_eq!(with(2, true), (1, vec![1, 0]));
    }
}
