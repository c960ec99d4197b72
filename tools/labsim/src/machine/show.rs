//! A machine in words, with what follows from its figures.

use std::fmt::Write;

use toml::Spanned;

use super::{Machine, Page, Policy, Port, Shape, Sharing};

/// What `pal lab show` prints: structures, reach of each TLB, latencies.
pub fn show(machine: &Machine) -> String {
    let mut text = String::new();
    let out = &mut text;
    let get = |mhz: &Spanned<u32>| *mhz.get_ref();
    line(out, &format!("{}: {}", machine.name.get_ref(), machine.description));
    let domain = machine.pcpus_per_domain;
    line(
        out,
        &format!("{} MHz, {domain} processors in a domain ({})", get(&machine.mhz), machine.source.get_ref()),
    );
    line(out, "\nTLBs");
    for tlb in machine.tlb.iter().map(Spanned::get_ref) {
        let what = format!("L{} {} {}", tlb.level, port(tlb.port), pages(&tlb.pages));
        let cost = if tlb.level == 1 { String::new() } else { format!(", {} cycles", tlb.latency) };
        let reach: Vec<_> = tlb.pages.iter().map(|page| bytes(tlb.entries as u64 * size(*page))).collect();
        row(out, &what, &format!("{}{cost}, reach {}", shape(tlb.shape()), reach.join(" or ")), &tlb.source);
    }
    for (caches, what) in
        [(&machine.walk_cache, "walk cache"), (&machine.nested_walk_cache, "nested walk cache")]
    {
        for cache in caches.iter().map(Spanned::get_ref) {
            let held: Vec<_> = cache.holds.iter().map(|entry| format!("{entry:?}").to_uppercase()).collect();
            row(out, &format!("{what} {}", held.join("+")), &shape(cache.shape()), &cache.source);
        }
    }
    for tlb in machine.nested_tlb.iter().map(Spanned::get_ref) {
        row(out, &format!("nested TLB {}", pages(&tlb.pages)), &shape(tlb.shape()), &tlb.source);
    }
    line(out, "\nCaches and memory");
    for cache in machine.cache.iter().map(Spanned::get_ref) {
        let Shape { ways, policy, .. } = cache.shape();
        let whose = if cache.shared == Sharing::Domain { ", of the domain" } else { "" };
        let size = bytes(cache.size_kib as u64 * 1024);
        let text = format!("{size}, {ways} ways, {}, {} cycles{whose}", word(policy), cache.latency);
        row(out, &format!("L{} {}", cache.level, port(cache.port)), &text, &cache.source);
    }
    let walker = machine.walker.get_ref();
    row(out, "page walker", &format!("begins at L{}", walker.begins_at), &walker.source);
    match machine.prefetch.as_ref().map(Spanned::get_ref) {
        Some(p) => {
            row(out, "prefetcher", &format!("{} streams, {} lines ahead", p.streams, p.degree), &p.source)
        }
        None => row(out, "prefetcher", "none", ""),
    }
    let memory = machine.memory.get_ref();
    let latencies = format!("local {}, remote {}, slow {} cycles", memory.local, memory.remote, memory.slow);
    row(out, "memory", &latencies, &memory.source);
    for range in memory.range.iter().map(Spanned::get_ref) {
        let whose = range.node.map_or("slow tier".to_owned(), |node| format!("node {node}"));
        let carries = range.bandwidth_mb_s.map_or(String::new(), |mb_s| format!(", {mb_s} MB/s"));
        row(out, "", &format!("{} to {} MiB: {whose}{carries}", range.from_mib, range.to_mib), "");
    }
    let cost = machine.cost.get_ref();
    let costs = format!(
        "VM entry {}, VM exit {}, INVLPG {}, write of CR3 {}, interrupt command {} cycles",
        cost.vmrun, cost.vmexit, cost.invlpg, cost.cr3_write, cost.ipi
    );
    row(out, "costs", &costs, &cost.source);
    text
}

fn line(out: &mut String, text: &str) {
    let _ = writeln!(out, "{text}");
}

fn row(out: &mut String, what: &str, text: &str, source: &str) {
    line(out, &format!("  {what:<24} {text}"));
    if !source.is_empty() {
        line(out, &format!("  {:<24}   [{source}]", ""));
    }
}

fn shape(Shape { entries, ways, policy }: Shape) -> String {
    let sets = if ways == entries { "fully associative".to_owned() } else { format!("{ways} ways") };
    format!("{entries} entries, {sets}, {}", word(policy))
}

fn word(policy: Policy) -> &'static str {
    match policy {
        Policy::Lru => "LRU",
        Policy::Plru => "PLRU",
        Policy::Fifo => "FIFO",
        Policy::Random => "random",
    }
}

fn port(port: Port) -> &'static str {
    match port {
        Port::Data => "data",
        Port::Code => "code",
        Port::Both => "both",
    }
}

fn size(page: Page) -> u64 {
    [4 << 10, 2 << 20, 1 << 30][page as usize]
}

fn pages(pages: &[Page]) -> String {
    pages.iter().map(|page| ["4K", "2M", "1G"][*page as usize]).collect::<Vec<_>>().join("+")
}

fn bytes(bytes: u64) -> String {
    let (value, unit) = match bytes {
        0..0x10_0000 => (bytes >> 10, "KiB"),
        0x10_0000..0x4000_0000 => (bytes >> 20, "MiB"),
        _ => (bytes >> 30, "GiB"),
    };
    format!("{value} {unit}")
}

#[cfg(test)]
mod tests {
    use super::super::{preset, read};

    #[test]
    fn reaches_follow_from_entries() {
        let machine = read(preset("westmere-x5660").unwrap(), "x").unwrap();
        let text = super::show(&machine);
        for part in [
            "L1 data 4K",
            "64 entries, 4 ways, LRU, reach 256 KiB",
            "L2 both 4K",
            "reach 2 MiB",
            "12 MiB, 16 ways",
        ] {
            assert!(text.contains(part), "{part}:\n{text}");
        }
    }
}
