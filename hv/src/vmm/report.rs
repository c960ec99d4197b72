//! Records and log lines about the end of a guest.

use core::fmt;

use abi::telemetry::{EndReason, ExitKind, ResetBy, key};

use crate::arch::counters::{BothSides, Counts};
use crate::arch::dump::Registers;
use crate::mem::frame;
use crate::mem::tier::sharing::Target;
use crate::paging::engine::Engine;
use crate::paging::format::{NestedAttr, PteFormat};
use crate::paging::policy::engines_of;
use crate::paging::shadow::Shadow;
use crate::sched::topology::PcpuId;
use crate::sched::{PcpuStats, VcpuStats};
use crate::trace::cost::{Cost, Turns};
use crate::trace::record::Json;
use crate::vcpu::Vcpu;
use crate::vcpu::outcome::{Death, Stop};
use crate::virt::Virt;
use crate::vm::{HostMemory, Vm};

/// The reason of an `end` record.
pub fn reason(stop: &Stop) -> EndReason {
    match stop {
        Stop::PowerOff => EndReason::PowerOff,
        Stop::Reset | Stop::Restart => EndReason::Reset,
        Stop::Destroyed => EndReason::Destroyed,
        Stop::TestExit(_) => EndReason::TestDevice,
        Stop::Died(death) => death.cause.reason(),
    }
}

/// On whose request a VM that stopped for this reason is restarted, for a `reset` record.
pub fn reset_by(stop: &Stop) -> ResetBy {
    match stop {
        Stop::Restart => ResetBy::Monitor,
        Stop::Died(_) => ResetBy::Death,
        _ => ResetBy::Guest,
    }
}

/// A guest's death for people: what happened, where, and the registers.
pub struct DeathReport<'a>(pub &'a Death);

impl fmt::Display for DeathReport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let death = self.0;
        writeln!(f, "{}: {}", death.cause.reason(), death.what)?;
        Registers(&death.state).fmt(f)
    }
}

/// The fields of a `stats` record.
pub fn stats<V: Virt, M: HostMemory>(
    json: &mut Json<'_>,
    vcpu: &Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    tsc: u64,
) -> fmt::Result {
    json.text(key::VM, &vm.name)?;
    json.number(key::VCPU, vcpu.id)?;
    json.number(key::TSC, tsc.wrapping_add(vcpu.virt.tsc_offset()))?;
    json.begin_array(key::EXITS)?;
    for &kind in ExitKind::ALL {
        let exits = vcpu.exits.of(kind);
        if exits.count != 0 {
            json.begin_object("")?;
            json.text(key::REASON, kind.name())?;
            json.number(key::COUNT, exits.count)?;
            json.number(key::TICKS, exits.ticks)?;
            json.end()?;
        }
    }
    json.end()?;
    let counts = vcpu.interrupts.counts;
    json.begin_object(key::INJECTIONS)?;
    json.number(key::EXTERNAL_INTERRUPT, counts.interrupts)?;
    json.number(key::EXCEPTION, counts.exceptions)?;
    json.number(key::NMI, counts.nmis)?;
    json.end()?;
    if let Some(fields) = vcpu.virt.field_accesses() {
        json.begin_object(key::VMCS)?;
        json.number(key::READS, fields.reads)?;
        json.number(key::WRITES, fields.writes)?;
        json.end()?;
    }
    scheduling(json, &vcpu.turns)?;
    json.number(key::YIELDS, vcpu.yields)?;
    counters(json, &vcpu.counts.total())?;
    paging(json, vcpu, vm)?;
    json.begin_array(key::IGNORED_MSRS)?;
    for (index, count) in vcpu.msrs.unknown().iter() {
        json.begin_object("")?;
        json.text(key::MSR, format_args!("{index:#x}"))?;
        json.number(key::COUNT, count)?;
        json.end()?;
    }
    json.end()
}

/// The `time` object of a `stats` record: what the scheduler has counted, in ticks.
pub fn time(json: &mut Json<'_>, stats: &VcpuStats) -> fmt::Result {
    json.begin_object(key::TIME)?;
    for (name, value) in [
        (key::RAN, stats.ran),
        (key::WAITED, stats.waited),
        (key::CAPPED, stats.capped),
        (key::WAKES, stats.wakes),
        (key::BOOSTS, stats.boosts),
        (key::STEALS, stats.steals),
        (key::MOVES_WITHIN_CACHE, stats.near_moves),
        (key::MOVES_ACROSS_CACHES, stats.far_moves),
        (key::UNBOUND, stats.unbound),
        (key::DRAWN_BACK, stats.drawn_back),
    ] {
        json.number(name, value)?;
    }
    json.end()
}

/// The `pcpus` array of a `stats` record: what each PCPU that runs guests has done.
pub fn pcpus(json: &mut Json<'_>, all: impl Iterator<Item = (PcpuId, PcpuStats)>) -> fmt::Result {
    json.begin_array(key::PCPUS)?;
    for (pcpu, stats) in all {
        json.begin_object("")?;
        json.number(key::PCPU, pcpu.0)?;
        json.number(key::BUSY, stats.busy)?;
        json.number(key::IDLE, stats.idle)?;
        json.number(key::DECISIONS, stats.decisions)?;
        json.number(key::SWITCHES, stats.switches)?;
        json.number(key::STEALS, stats.steals)?;
        json.number(key::KICKS, stats.kicks)?;
        json.end()?;
    }
    json.end()
}

/// The `counters` object of a `stats` record: what is absent is left out.
fn counters(json: &mut Json<'_>, counts: &BothSides) -> fmt::Result {
    let side = |json: &mut Json<'_>, name: &str, counts: &Counts| {
        json.begin_object(name)?;
        counts.iter().try_for_each(|(event, value)| json.number(event.name(), value))?;
        json.end()
    };
    if *counts == BothSides::ABSENT {
        return Ok(());
    }
    json.begin_object(key::COUNTERS)?;
    side(json, key::GUEST, &counts.guest)?;
    side(json, key::HOST, &counts.host)?;
    json.end()
}

/// The `scheduling` object of a `stats` record.
fn scheduling(json: &mut Json<'_>, turns: &Turns) -> fmt::Result {
    json.begin_object(key::SCHEDULING)?;
    cost(json, [key::DECISIONS, key::DECISION_TICKS, key::DECISION_LONGEST], turns.decisions)?;
    cost(json, [key::SWITCHES, key::SWITCH_TICKS, key::SWITCH_LONGEST], turns.switches)?;
    json.end()
}

/// Number, sum and maximum of what was measured, under these names.
fn cost(json: &mut Json<'_>, names: [&str; 3], cost: Cost) -> fmt::Result {
    names.iter().zip([cost.count, cost.ticks, cost.longest]).try_for_each(|(name, it)| json.number(name, it))
}

/// The `host` object of a `stats` record: the memory of the machine.
pub fn host(json: &mut Json<'_>, frames: &frame::Stats, heap_bytes: u64, tsc: u64) -> fmt::Result {
    json.begin_object(key::HOST)?;
    json.number(key::FREE_FRAMES, frames.free)?;
    json.number(key::HEAP_BYTES, heap_bytes)?;
    json.number(key::TSC, tsc)?;
    json.end()
}

/// The `regions` object of `paging`: what closed memory has done to VCPUs, those of the VM and this one.
fn regions<V: Virt, M: HostMemory>(
    json: &mut Json<'_>,
    vcpu: &Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
) -> fmt::Result {
    // No VCPU runs.
    let records = vm.regions.lock(core::hint::spin_loop);
    let Some(records) = &*records else { return Ok(()) };
    let counts = records.micro.counts();
    json.begin_object(key::REGIONS)?;
    json.number(key::CLOSED_FAULTS, counts.closed_faults)?;
    json.number(key::REGION_MOVES, counts.moves)?;
    json.number(key::REGIONS_GLOBALISED, counts.globalised)?;
    json.number(key::REGIONS_OPENED, counts.opened)?;
    cost(json, [key::MOVES, key::MOVE_TICKS, key::MOVE_LONGEST], vcpu.moves.cost)?;
    // Where both PCPUs count. What is between the two parts is known of all VCPUs together, and is about the same for each.
    let [left, entered] = vcpu.moves.spent;
    let between = vm.regions.leaving().mean();
    if let (Some(left), Some(between), Some(arrived)) = (left.mean(), between, entered.mean()) {
        let parts = [left, between, arrived];
        json.number(key::MOVES_COUNTED, entered.count)?;
        json.number(key::MOVE_CYCLES, parts.iter().map(|part| part.cycles).sum::<u64>())?;
        json.number(key::MOVE_INSTRUCTIONS, parts.iter().map(|part| part.instructions).sum::<u64>())?;
        json.begin_array(key::MOVE_PARTS)?;
        parts.iter().try_for_each(|part| json.number("", part.instructions))?;
        json.end()?;
    }
    let Some(rounds) = &records.rounds else { return json.end() };
    let (counts, spaces, scans) = (rounds.counts(), rounds.space_counts(), &records.scans);
    for (name, count) in [
        (key::REGIONS_FOUND, records.found().count() as u64),
        (key::ROUNDS, counts.rounds),
        (key::ROUNDS_LEFT_OUT, counts.left_out),
        (key::PHASE_TICKS, counts.ticks),
        (key::TOUCHES, counts.touches),
        (key::REGIONS_BORN, counts.born),
        (key::REGION_MERGES, counts.merges),
        (key::FRAMES_EXCLUDED, counts.excluded),
        (key::FRAMES_AGED, counts.aged),
        (key::REGIONS_GIVEN_UP, counts.given_up),
        (key::REGIONS_PLACED, counts.placed),
        (key::ROUNDS_SPREAD, counts.spread),
        (key::ACCESS_SAMPLES, scans.samples),
        (key::SAMPLE_TICKS, scans.ticks),
        (key::SAMPLE_LONGEST, scans.longest),
        (key::SAMPLES_PUT_OFF, scans.put_off),
        (key::KNOWN_SPACES, spaces.used),
        (key::SPACES_MADE, spaces.made),
        (key::SPACES_ENDED, spaces.ended),
        (key::SPACES_REFUSED, spaces.refused),
    ] {
        json.number(name, count)?;
    }
    json.end()
}

/// The `pager` object of `paging`: what was evicted of an overcommitted VM, and came back.
fn pager<F: PteFormat<Attr = NestedAttr>, M: HostMemory>(json: &mut Json<'_>, vm: &Vm<F, M>) -> fmt::Result {
    let Some(pager) = &vm.pager else { return Ok(()) };
    let budget = pager.budget();
    json.begin_object(key::PAGER)?;
    json.text(key::REPLACEMENT, pager.policy())?;
    json.number(key::RESIDENT_FRAMES, budget.resident)?;
    json.number(key::STORE_LIMIT, budget.store)?;
    pager.counts().named().into_iter().try_for_each(|(name, count)| json.number(name, count))?;
    json.end()
}

/// The `balloon` object of `paging`: what the guest gives back, in pages.
fn balloon<F: PteFormat<Attr = NestedAttr>, M: HostMemory>(
    json: &mut Json<'_>,
    vm: &Vm<F, M>,
) -> fmt::Result {
    let Some(now) = vm.virtio.balloon_counts() else { return Ok(()) };
    json.begin_object(key::BALLOON)?;
    for (name, pages) in [
        (key::TARGET, now.target.into()),
        (key::ACTUAL, now.actual.into()),
        (key::INFLATED, now.inflated),
        (key::DEFLATED, now.deflated),
        (key::REPORTED, now.reported),
    ] {
        json.number(name, pages)?;
    }
    json.end()
}

/// The `tiers` object of `paging`: what a VM has of the fast memory, and what has moved.
fn tiers<F: PteFormat<Attr = NestedAttr>, M: HostMemory>(json: &mut Json<'_>, vm: &Vm<F, M>) -> fmt::Result {
    let Some(tiers) = &vm.tiers else { return Ok(()) };
    let now = tiers.view();
    json.begin_object(key::TIERS)?;
    json.text(key::EVICT_BY, now.eviction)?;
    for (name, number) in [
        (key::FAST_FRAMES, now.fast.into()),
        (key::FAST_SHARE, now.share.into()),
        (key::FAST_TABLES, tiers.pool().tables().into()),
        (key::HOT_WAITING, now.waiting.into()),
        (key::WORKING_SET, now.working_set.into()),
        (key::E_STATE, now.state.0.number().into()),
        (key::MOVED_IN, now.counts.moved_in),
        (key::MOVED_OUT, now.counts.moved_out),
        (key::DISCARDED, now.counts.discarded),
        (key::EVICTIONS, now.counts.evicted),
        (key::MOVES_BUSY, now.counts.busy),
        (key::MOVES_PINNED, now.counts.pinned),
        (key::HOT_LISTED, now.counts.listed),
        (key::HOT_DROPPED, now.counts.dropped),
        (key::LIST_FULL, now.counts.overflows),
        (key::LEAVES_SPLIT, now.counts.splits),
        (key::PASSES, now.counts.passes),
        (key::PIECES, now.pieces.into()),
        (key::PIECES_IN, now.counts.pieces_in),
        (key::PIECES_OUT, now.counts.pieces_out),
        (key::PIECES_WRITTEN, now.counts.pieces_written),
        (key::PIECES_JOINED, now.counts.joins),
        (key::PAGE_MOVE_TICKS, now.counts.ticks[0]),
        (key::PIECE_MOVE_TICKS, now.counts.ticks[1]),
        (key::PAGE_MOVE_LONGEST, now.counts.longest[0]),
        (key::PIECE_MOVE_LONGEST, now.counts.longest[1]),
        (key::JOIN_TICKS, now.counts.ticks[2]),
        (key::JOIN_LONGEST, now.counts.longest[2]),
        (key::TARGET_PER_MILLE, now.target.0.map_or(0, Target::per_mille).into()),
        (key::TARGET_CALLS, now.target.1),
    ] {
        json.number(name, number)?;
    }
    json.end()
}

/// The `paging` object of a `stats` record.
fn paging<V: Virt, M: HostMemory>(
    json: &mut Json<'_>,
    vcpu: &Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
) -> fmt::Result {
    json.begin_object(key::PAGING)?;
    json.text(key::MODE, vm.translation.mode())?;
    let faults = vcpu.faults;
    json.number(key::NESTED_FILLED, faults.filled)?;
    json.number(key::NESTED_SPURIOUS, faults.spurious)?;
    json.number(key::EMULATED, faults.emulated)?;
    {
        let memory = vm.memory.read();
        json.number(key::NESTED_TABLE_FRAMES, memory.nested.table_frames())?;
        json.number(key::P2M_TABLE_FRAMES, memory.p2m.table_frames())?;
    }
    let counts = vcpu.mmu.switches;
    json.begin_object(key::SWITCHES)?;
    cost(json, [key::TO_NESTED, key::TO_NESTED_TICKS, key::TO_NESTED_LONGEST], counts.to_nested)?;
    cost(json, [key::TO_SHADOW, key::TO_SHADOW_TICKS, key::TO_SHADOW_LONGEST], counts.to_shadow)?;
    cost(json, [key::TO_AGILE, key::TO_AGILE_TICKS, key::TO_AGILE_LONGEST], counts.to_agile)?;
    json.number(key::NESTED_STEPS, counts.nested_steps)?;
    json.number(key::REFILLED, counts.refilled)?;
    json.number(key::REFILL_TICKS, counts.refill_ticks)?;
    json.number(key::REFILL_FAULTS, counts.refill_faults)?;
    json.end()?;
    let upper = vm.shadow.read().as_ref().map(Shadow::upper_counts).unwrap_or_default();
    if let Some(spaces) = &*vm.translation.spaces() {
        json.begin_object(key::SPACES)?;
        json.number(key::KNOWN_SPACES, spaces.iter().count() as u64)?;
        json.number(
            key::SHADOW_SPACES,
            spaces.iter().filter(|space| space.engine.is_shadow()).count() as u64,
        )?;
        for (name, count) in spaces.counts.named().into_iter().chain(upper.named()) {
            json.number(name, count)?;
        }
        json.end()?;
    }
    regions(json, vcpu, vm)?;
    pager(json, vm)?;
    balloon(json, vm)?;
    tiers(json, vm)?;
    if let Some((statistics, agile)) =
        vm.shadow.read().as_ref().map(|shadow| (shadow.statistics(), shadow.agile_counts()))
    {
        if engines_of(vm.translation.mode()).contains(Engine::Agile) {
            json.begin_object(key::AGILE)?;
            for (name, count) in agile.named().into_iter().chain(vcpu.mmu.agile.exits.named()) {
                json.number(name, count)?;
            }
            json.end()?;
        }
        json.begin_object(key::SHADOW)?;
        json.number(key::POOL, vm.shadow_limit.pages)?;
        json.number(key::POOL_BYTES, vm.shadow_limit.bytes())?;
        for (name, count) in statistics.named() {
            json.number(name, count)?;
        }
        json.end()?;
    }
    json.end()
}
