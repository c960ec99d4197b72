//! Records and log lines about the end of a guest.

use core::fmt;

use crate::arch::counters::{BothSides, Counts};
use crate::arch::dump::Registers;
use crate::mem::frame;
use crate::paging::shadow::Shadow;
use crate::sched::topology::PcpuId;
use crate::sched::{PcpuStats, VcpuStats};
use crate::trace::cost::{Cost, Turns};
use crate::trace::exits::ExitKind;
use crate::trace::record::Json;
use crate::vcpu::Vcpu;
use crate::vcpu::outcome::{Death, Stop};
use crate::virt::Virt;
use crate::vm::{HostMemory, Vm};

/// The reason of an `end` record.
pub fn reason(stop: &Stop) -> &'static str {
    match stop {
        Stop::PowerOff => "power-off",
        Stop::Reset | Stop::Restart => "reset",
        Stop::Destroyed => "destroyed",
        Stop::TestExit(_) => "test-device",
        Stop::Died(death) => death.cause.name(),
    }
}

/// On whose request a VM that stopped for this reason is restarted, for a `reset` record.
pub fn reset_by(stop: &Stop) -> &'static str {
    match stop {
        Stop::Restart => "monitor",
        Stop::Died(_) => "death",
        _ => "guest",
    }
}

/// A guest's death for people: what happened, where, and the registers.
pub struct DeathReport<'a>(pub &'a Death);

impl fmt::Display for DeathReport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let death = self.0;
        writeln!(f, "{}: {}", death.cause.name(), death.what)?;
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
    json.text("vm", &vm.name)?;
    json.number("vcpu", vcpu.id)?;
    json.number("tsc", tsc.wrapping_add(vcpu.virt.tsc_offset()))?;
    json.begin_array("exits")?;
    for &kind in ExitKind::ALL {
        let exits = vcpu.exits.of(kind);
        if exits.count != 0 {
            json.begin_object("")?;
            json.text("reason", kind.name())?;
            json.number("count", exits.count)?;
            json.number("ticks", exits.ticks)?;
            json.end()?;
        }
    }
    json.end()?;
    let counts = vcpu.interrupts.counts;
    json.begin_object("injections")?;
    json.number("external-interrupt", counts.interrupts)?;
    json.number("exception", counts.exceptions)?;
    json.number("nmi", counts.nmis)?;
    json.end()?;
    if let Some(fields) = vcpu.virt.field_accesses() {
        json.begin_object("vmcs")?;
        json.number("reads", fields.reads)?;
        json.number("writes", fields.writes)?;
        json.end()?;
    }
    scheduling(json, &vcpu.turns)?;
    json.number("yields", vcpu.yields)?;
    counters(json, vcpu.counts.total())?;
    paging(json, vcpu, vm)?;
    json.begin_array("ignored_msrs")?;
    for (index, count) in vcpu.msrs.unknown().iter() {
        json.begin_object("")?;
        json.text("msr", format_args!("{index:#x}"))?;
        json.number("count", count)?;
        json.end()?;
    }
    json.end()
}

/// The `time` object of a `stats` record: what the scheduler has counted, in ticks.
pub fn time(json: &mut Json<'_>, stats: &VcpuStats) -> fmt::Result {
    json.begin_object("time")?;
    for (name, value) in [
        ("ran", stats.ran),
        ("waited", stats.waited),
        ("capped", stats.capped),
        ("wakes", stats.wakes),
        ("boosts", stats.boosts),
        ("steals", stats.steals),
        ("moves-within-cache", stats.near_moves),
        ("moves-across-caches", stats.far_moves),
    ] {
        json.number(name, value)?;
    }
    json.end()
}

/// The `pcpus` array of a `stats` record: what each PCPU that runs guests has done.
pub fn pcpus(json: &mut Json<'_>, all: impl Iterator<Item = (PcpuId, PcpuStats)>) -> fmt::Result {
    json.begin_array("pcpus")?;
    for (pcpu, stats) in all {
        json.begin_object("")?;
        json.number("pcpu", pcpu.0)?;
        json.number("busy", stats.busy)?;
        json.number("idle", stats.idle)?;
        json.number("decisions", stats.decisions)?;
        json.number("switches", stats.switches)?;
        json.number("steals", stats.steals)?;
        json.number("kicks", stats.kicks)?;
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
    json.begin_object("counters")?;
    side(json, "guest", &counts.guest)?;
    side(json, "host", &counts.host)?;
    json.end()
}

/// The `scheduling` object of a `stats` record.
fn scheduling(json: &mut Json<'_>, turns: &Turns) -> fmt::Result {
    json.begin_object("scheduling")?;
    cost(json, ["decisions", "decision-ticks", "decision-longest"], turns.decisions)?;
    cost(json, ["switches", "switch-ticks", "switch-longest"], turns.switches)?;
    json.end()
}

/// Number, sum and maximum of what was measured, under these names.
fn cost(json: &mut Json<'_>, names: [&str; 3], cost: Cost) -> fmt::Result {
    names.iter().zip([cost.count, cost.ticks, cost.longest]).try_for_each(|(name, it)| json.number(name, it))
}

/// The `host` object of a `stats` record: the memory of the machine.
pub fn host(json: &mut Json<'_>, frames: &frame::Stats, heap_bytes: u64) -> fmt::Result {
    json.begin_object("host")?;
    json.number("free-frames", frames.free)?;
    json.number("heap-bytes", heap_bytes)?;
    json.end()
}

/// The `paging` object of a `stats` record.
fn paging<V: Virt, M: HostMemory>(
    json: &mut Json<'_>,
    vcpu: &Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
) -> fmt::Result {
    json.begin_object("paging")?;
    json.text("mode", vm.translation.mode())?;
    let faults = vcpu.faults;
    json.number("nested-filled", faults.filled)?;
    json.number("nested-spurious", faults.spurious)?;
    json.number("emulated", faults.emulated)?;
    {
        let memory = vm.memory.read();
        json.number("nested-table-frames", memory.nested.table_frames())?;
        json.number("p2m-table-frames", memory.p2m.table_frames())?;
    }
    let counts = vcpu.mmu.switches;
    json.begin_object("switches")?;
    cost(json, ["to-nested", "to-nested-ticks", "to-nested-longest"], counts.to_nested)?;
    cost(json, ["to-shadow", "to-shadow-ticks", "to-shadow-longest"], counts.to_shadow)?;
    json.number("nested-steps", counts.nested_steps)?;
    json.number("settled", counts.settled)?;
    json.number("settling-ticks", counts.settling_ticks)?;
    json.number("settling-faults", counts.settling_faults)?;
    json.end()?;
    if let Some(statistics) = vm.shadow.lock().as_ref().map(Shadow::statistics) {
        json.begin_object("shadow")?;
        json.number("pool", vm.shadow_limit.pages)?;
        json.number("pool-bytes", vm.shadow_limit.bytes())?;
        for (name, count) in statistics.named() {
            json.number(name, count)?;
        }
        json.end()?;
    }
    json.end()
}
