//! What a VCPU does for samples: it publishes what it has counted, and ends the VM's period if that is over.
//!
//! Called from the run loop's timers and when the VCPU leaves its PCPU: never on the way of an exit. `vm::sampling` says what
//! a sample is, `records` how it looks.

use abi::telemetry::ExitKind;
use records::sample::{COUNTERS, Counters, EXITS, MOST, Sums};

use crate::arch::counters::{CounterEvent, Counts, EVENTS};
use crate::paging::format::{NestedAttr, PteFormat};
use crate::paging::policy::{Mode, Period};
use crate::paging::shadow::Shadow;
use crate::vcpu::Vcpu;
use crate::vcpu::host::Host;
use crate::virt::Virt;
use crate::vm::sampling::Published;
use crate::vm::translation::PeriodEnd;
use crate::vm::{HostMemory, Vm, work};

const _: () = assert!(ExitKind::ALL.len() == EXITS.len() && EVENTS == COUNTERS.len());

/// Takes over what the guest has counted on the page that it shares, if it does, until the VCPU has run for `ran` ticks.
pub(super) fn read_counter_page<V: Virt, M: HostMemory>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    ran: u64,
) {
    if vcpu.counter_page.is_registered() {
        let memory = vm.read_memory(&mut vcpu.work);
        vcpu.counter_page.update(&memory.ram(), ran);
    }
}

/// Adds what PCPUs have counted of the VCPU's stays after it had left them.
pub fn add_late_counts<V: Virt, M: HostMemory>(vcpu: &mut Vcpu<V>, vm: &Vm<V::NestedFormat, M>) {
    if let Some(counts) = vm.mailboxes[vcpu.id as usize].take_late_counts() {
        vcpu.counts.add(&counts);
    }
}

/// Publishes the VCPU's sums at host TSC `tsc`, and writes a sample if the VM's period is over. When the next one is due.
#[cold]
#[inline(never)]
pub fn publish<V: Virt, M: HostMemory, H: Host>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    host: &mut H,
    tsc: u64,
) -> u64 {
    if let Some(now) = host.counters() {
        add_late_counts(vcpu, vm);
        vcpu.counts.update(&now);
    }
    let ran = vcpu.ran_until(tsc);
    read_counter_page(vcpu, vm, ran);
    vm.sampling.publish(vcpu.id, &Published { sums: sums(vcpu), ran });
    if vm.translation.is_by_space() {
        // The address space is charged, and may be due for another engine.
        vcpu.request(work::MMU);
    }
    if tsc >= vm.sampling.due() {
        let number = host.vm_number();
        let changed = close(vm, number, tsc, false, |record| host.record_sample(record));
        if changed {
            // The VM's other VCPUs are led by the one that changes first.
            vcpu.request(work::MMU);
        }
    }
    vm.sampling.due()
}

/// Writes a sample of the VM with this number in the configuration, of what the VCPUs have published: if the period is over, or
/// as the last one. Whether its policy wants another engine now.
pub fn close<F: PteFormat<Attr = NestedAttr>, M: HostMemory>(
    vm: &Vm<F, M>,
    number: u8,
    tsc: u64,
    demanded: bool,
    mut record_sample: impl FnMut(&[u64]),
) -> bool {
    let shadow = || {
        let shadow = vm.shadow.try_read()?;
        let statistics = shadow.as_ref().map(Shadow::statistics).unwrap_or_default();
        Some(([statistics.faults, statistics.guest_faults], [statistics.pages, statistics.bytes]))
    };
    let Some((mut sample, ran, closing)) = vm.sampling.close(tsc, demanded, shadow) else { return false };
    sample.vm = number;
    sample.time_ns = vm.nanos(tsc).0;
    sample.engine = vm.translation.in_force() as u8;
    let mut record = [0; MOST];
    let words = sample.write(ran, &mut record);
    record_sample(&record[..words]);
    drop(closing);
    regions(vm, &sample, demanded, &mut record_sample);
    if vm.has_memory_records() && vm.memory_records.is_due(sample.time_ns, demanded) {
        memory(vm, &sample, record_sample);
    }
    let end = vm.translation.end_period(period(&sample));
    warn(number, &end, vm.translation.mode());
    end.changed
}

/// Writes what has become of the VM's regions with this sample, if it has any.
#[inline(never)]
fn regions<F: PteFormat<Attr = NestedAttr>, M: HostMemory>(
    vm: &Vm<F, M>,
    sample: &records::sample::Sample,
    demanded: bool,
    mut record_sample: impl FnMut(&[u64]),
) {
    let Some(snapshot) = vm.regions.snapshot(sample.time_ns, demanded) else { return };
    let snapshot =
        records::regions::Regions { vm: sample.vm, resets: sample.resets, tsc: sample.tsc, ..snapshot };
    let mut record = [0; records::regions::MOST];
    let words = snapshot.write(&mut record);
    record_sample(&record[..words]);
}

/// Writes what the VM has of fast memory, and what of it is evicted.
#[inline(never)]
fn memory<F: PteFormat<Attr = NestedAttr>, M: HostMemory>(
    vm: &Vm<F, M>,
    sample: &records::sample::Sample,
    mut record_sample: impl FnMut(&[u64]),
) {
    let (vm_number, time_ns, tsc) = (sample.vm, sample.time_ns, sample.tsc);
    if let Some(tiers) = vm.tier_record() {
        record_sample(&records::tiers::Tiers { vm: vm_number, time_ns, tsc, ..tiers }.write());
    }
    if let Some(pager) = vm.pager_record() {
        record_sample(&records::pager::Pager { vm: vm_number, time_ns, tsc, ..pager }.write());
    }
}

/// Says once what a policy lacks.
fn warn(number: u8, end: &PeriodEnd, mode: Mode) {
    if end.blind {
        log::warn!(
            "guest{number}: {mode} compares instructions, cycles and misses of the TLB, which are not counted here (counters=on; \
             on emulators: pal run --lab): it changes nothing"
        );
    }
    if end.lacks_page_faults {
        log::warn!(
            "guest{number}: {mode} compares page faults, which nested paging does not show and the guest does not count: it takes \
             the rate that shadow paging last showed; load the guest kit's module in the guest (pal run --kit)"
        );
    }
}

/// What policies see of a sample.
fn period(sample: &records::sample::Sample) -> Period {
    let counts = |side: &Counters| {
        let mut counts = Counts::ABSENT;
        for (at, &event) in CounterEvent::ALL.iter().enumerate() {
            if let Some(value) = side.get(at) {
                counts.set(event, value);
            }
        }
        counts
    };
    let exits = &sample.sums.exits;
    Period {
        nanos: sample.time_ns,
        exits: exits.iter().fold(0u64, |sum, count| sum.wrapping_add(*count)),
        paging_exits: exits[ExitKind::PageFault as usize].wrapping_add(exits[ExitKind::NestedFault as usize]),
        guest_faults: sample.shadow_faults[1],
        guest: counts(&sample.sums.counters[0]),
        host: counts(&sample.sums.counters[1]),
    }
}

/// What the VCPU has counted.
fn sums<V: Virt>(vcpu: &Vcpu<V>) -> Sums {
    // A sum stays where its event is not counted for a while: readers subtract the last one from it.
    let counters = |total: &Counts, sum: &Counts| {
        let ((present, _), (_, values)) = (total.raw(), sum.raw());
        Counters { present: present.into(), values: *values }
    };
    let (total, sum) = (vcpu.counts.total(), vcpu.counts.sum());
    let mut sums = Sums::ZERO;
    for (at, &kind) in ExitKind::ALL.iter().enumerate() {
        let exits = vcpu.exits.of(kind);
        (sums.exits[at], sums.exit_ticks[at]) = (exits.count, exits.ticks);
    }
    let switches = &vcpu.mmu.switches;
    (sums.nested_filled, sums.emulated) = (vcpu.faults.filled, vcpu.faults.emulated);
    let changes = [&switches.to_nested, &switches.to_shadow, &switches.to_agile];
    sums.switches = changes.map(|changes| changes.count);
    sums.switch_ticks = changes.iter().fold(0, |sum, changes| sum.wrapping_add(changes.ticks));
    sums.interrupts = vcpu.interrupts.counts.interrupts;
    sums.counters = [counters(&total.guest, &sum.guest), counters(&total.host, &sum.host)];
    // So does that of what the guest counts.
    let guest = &mut sums.counters[0];
    guest.values[CounterEvent::PageFaults as usize] = vcpu.counter_page.page_faults();
    guest.present |= u64::from(vcpu.counter_page.is_registered()) << CounterEvent::PageFaults as u32;
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paging::engine::Engine;

    #[test]
    fn records_have_the_names_of_exits_events_and_engines() {
        assert_eq!(Engine::ALL.map(|engine| engine.name()), records::sample::ENGINES);
        for (word, key) in ExitKind::WORDS.iter().zip(EXITS) {
            assert_eq!(word.replace('-', "_"), key);
        }
        for (event, key) in CounterEvent::ALL.iter().zip(COUNTERS) {
            assert_eq!(event.name(), key);
        }
    }
}
