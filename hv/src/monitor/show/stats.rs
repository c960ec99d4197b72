//! Counters of a VM, and the host.

use core::fmt::{self, Write};

use super::{Bytes, Seconds, Share, Tenths};
use crate::arch::addr::PAGE_SIZE;
use crate::mem::frame_record::Kind;
use crate::monitor::view::{HostReport, View};
use crate::trace::exits::ExitCount;
use crate::vcpu::Vcpu;
use crate::virt::Virt;
use crate::vm::HostMemory;
use abi::telemetry::ExitKind;

/// The counters since the VM's start or reset.
pub fn stats<V: Virt, M: HostMemory>(view: &View<'_, V, M>, answer: &mut dyn Write) -> fmt::Result {
    let ticks = view.tsc.wrapping_sub(view.started);
    let uptime = Seconds { ticks, khz: view.vm.clock.tsc_khz() };
    for vcpu in view.vcpus.iter() {
        writeln!(answer, "VCPU {}, {uptime} after the start of {}", vcpu.id, view.vm.name)?;
        exits(vcpu, ticks, answer)?;
        if let Some(fields) = vcpu.virt.field_accesses() {
            let exits = vcpu.exits.total().count.max(1);
            let each = |count: u64| Tenths(count.saturating_mul(10) / exits);
            writeln!(
                answer,
                "VMCS fields for each exit: {} read, {} written",
                each(fields.reads),
                each(fields.writes)
            )?;
        }
        let counts = vcpu.interrupts.counts;
        writeln!(
            answer,
            "injected: {} external interrupts, {} exceptions, {} NMIs",
            counts.interrupts, counts.exceptions, counts.nmis
        )?;
        let faults = vcpu.faults;
        writeln!(
            answer,
            "nested faults: {} filled, {} spurious, {} emulated",
            faults.filled, faults.spurious, faults.emulated
        )?;
        unknown_msrs(vcpu, answer)?;
    }
    pager(view, answer)?;
    view.vm.tiers.iter().try_for_each(|tiers| super::tiers::brief(tiers, answer))?;
    let unclaimed = view.vm.chipset.lock().unclaimed();
    writeln!(
        answer,
        "unclaimed bytes at ports 0-ff: {}, 100-3ff: {}, 400-ffff: {}; unclaimed memory accesses: {}",
        unclaimed.board, unclaimed.card, unclaimed.extended, unclaimed.mmio
    )
}

/// What was evicted, and came back.
fn pager<V: Virt, M: HostMemory>(view: &View<'_, V, M>, answer: &mut dyn Write) -> fmt::Result {
    let Some(pager) = &view.vm.pager else { return Ok(()) };
    let (budget, counts, khz) = (pager.budget(), pager.counts(), view.vm.clock.tsc_khz());
    let bytes = |pages: u64| Bytes(pages.saturating_mul(PAGE_SIZE));
    writeln!(
        answer,
        "overcommitted ({}): {} of {} resident, {} stored in {} of {}",
        pager.policy(),
        bytes(counts.resident),
        bytes(budget.resident.into()),
        bytes(counts.stored),
        bytes(counts.store_frames),
        bytes(budget.store.into())
    )?;
    let ratio = counts.compressed_from.saturating_mul(10) / counts.compressed_to.max(1);
    writeln!(
        answer,
        "page faults of the host: {}, {} of them of evicted pages; {} in, {} rescued, {} out, {} of these zero pages",
        counts.faults, counts.refaults, counts.came_in, counts.rescued, counts.went_out, counts.zero_pages
    )?;
    writeln!(
        answer,
        "compressed {} to 1, {} pages not at all; in for {}, out for {}",
        Tenths(ratio),
        counts.incompressible,
        Seconds { ticks: counts.in_ticks, khz },
        Seconds { ticks: counts.out_ticks, khz }
    )?;
    if counts.disk_writes == 0 {
        return Ok(());
    }
    writeln!(
        answer,
        "on the disk: {}; {} reads and {} writes of up to 64 KiB",
        bytes(counts.on_disk),
        counts.disk_reads,
        counts.disk_writes
    )
}

fn exits<V: Virt>(vcpu: &Vcpu<V>, uptime: u64, answer: &mut dyn Write) -> fmt::Result {
    let total = vcpu.exits.total();
    writeln!(answer, "{:<14} {:>12} {:>15} {:>9} {:>8}", "exits", "count", "ticks", "each", "share")?;
    let mut line = |name: &str, exits: ExitCount| {
        let each = exits.ticks / exits.count.max(1);
        let share = Share { part: exits.ticks, whole: total.ticks };
        writeln!(answer, "{name:<14} {:>12} {:>15} {each:>9} {share:>8}", exits.count, exits.ticks)
    };
    for &kind in ExitKind::ALL {
        let exits = vcpu.exits.of(kind);
        if exits.count != 0 {
            line(kind.name(), exits)?;
        }
    }
    line("all", total)?;
    let share = Share { part: total.ticks, whole: uptime };
    writeln!(answer, "exit handling took {share} of the uptime")
}

fn unknown_msrs<V: Virt>(vcpu: &Vcpu<V>, answer: &mut dyn Write) -> fmt::Result {
    answer.write_str("unknown MSRs:")?;
    let mut any = false;
    for (index, count) in vcpu.msrs.unknown().iter() {
        let separator = if any { "," } else { "" };
        write!(answer, "{separator} {index:#x} ({count})")?;
        any = true;
    }
    match vcpu.msrs.unknown().others() {
        0 if any => writeln!(answer),
        0 => writeln!(answer, " none"),
        others => writeln!(answer, ", others ({others})"),
    }
}

/// The host.
pub fn host(host: &HostReport, answer: &mut dyn Write) -> fmt::Result {
    let frames = host.frames;
    writeln!(answer, "PCPUs: {}; TSC at {} kHz", host.pcpus, host.tsc_khz)?;
    let mib = |frames: u64| frames.saturating_mul(PAGE_SIZE) >> 20;
    writeln!(
        answer,
        "memory: {} of {} frames free ({} of {} MiB), {} allocations failed",
        frames.free,
        frames.total,
        mib(frames.free),
        mib(frames.total),
        frames.failures
    )?;
    if let Some(kinds) = host.kinds {
        let [ram, tables] = [Kind::Ram, Kind::Table].map(|kind| kinds[kind as usize]);
        writeln!(answer, "in use: {ram} frames of guests' RAM ({} MiB), {tables} page tables", mib(ram))?;
    }
    let largest = frames.free_blocks.iter().rposition(|&blocks| blocks != 0);
    let largest = largest.map_or(0, |order| PAGE_SIZE << order);
    writeln!(answer, "largest free block: {}; heap: {}", Bytes(largest), Bytes(host.heap_bytes))
}
