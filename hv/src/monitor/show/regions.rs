//! The regions of a guest's memory: those that it has defined, and those that the hypervisor has found.

use core::fmt::{self, Write};

use abi::hypercall::REGIONS_MAX;
use abi::regions::Regions;
use arrayvec::ArrayVec;

use super::Bytes;
use crate::arch::addr::PAGE_SHIFT;
use crate::monitor::command::Placement;
use crate::monitor::view::View;
use crate::region::{Domain, Kind, Refused, Rid};
use crate::vcpu::mmu;
use crate::virt::Virt;
use crate::vm::HostMemory;
use crate::vm::regions::{NotPlaced, Records};
use crate::vm::work;

/// Regions that are shown at most.
const MOST_FOUND: usize = 16;

/// The guest's regions by its numbers, what they have done to VCPUs, and what the guest has asked for.
pub fn regions<V: Virt, M: HostMemory>(view: &View<'_, V, M>, answer: &mut dyn Write) -> fmt::Result {
    // No VCPU of a VM that is shown runs.
    let records = view.vm.regions.lock(core::hint::spin_loop);
    let Some(records) = &*records else {
        return writeln!(answer, "the guest has defined no regions; docs/guest-kit.md has the calls");
    };
    found(records, answer)?;
    writeln!(answer, "region  kind     caches    frames  memory         moves  globalised   opened")?;
    let regions = &records.guest;
    let partition = regions.partition();
    let mut sum = 0;
    for (number, rid) in regions.list() {
        let Some(info) = partition.info(rid) else { continue };
        let frames = u64::from(info.frames);
        sum += frames;
        let (kind, cache) = name(info.kind);
        write!(answer, "{number:>6}  {kind:<8} ")?;
        match cache {
            None => write!(answer, "all   ")?,
            Some(domain) => write!(answer, "{domain:<6}")?,
        }
        let record = records.micro.record(rid);
        let memory = alloc::format!("{}", Bytes(frames << PAGE_SHIFT));
        write!(answer, "{frames:>10}  {memory:<10}")?;
        writeln!(answer, "{:>10} {:>11} {:>8}", record.moves, record.globalised, record.opened)?;
    }
    let counts = regions.counts();
    writeln!(
        answer,
        "{sum} of {} frames are in regions; calls performed {}, refused {}; records {}",
        partition.frames(),
        counts.performed,
        counts.refused,
        Bytes(partition.bytes() as u64)
    )?;
    let counts = records.micro.counts();
    writeln!(
        answer,
        "closed memory was touched {} times: VCPUs moved {}, regions globalised {}, opened {}; cache domains {}",
        counts.closed_faults,
        counts.moves,
        counts.globalised,
        counts.opened,
        view.vm.regions.domains()
    )
}

/// The largest regions that the hypervisor has found, and what it has done for that.
fn found(records: &Records, answer: &mut dyn Write) -> fmt::Result {
    let Some(rounds) = &records.rounds else { return Ok(()) };
    writeln!(
        answer,
        "found   kind     caches    frames  working set   used for us     moves  globalised   opened  space"
    )?;
    let partition = records.guest.partition();
    // The smallest of the largest is the one that a larger one takes the place of.
    let mut largest: ArrayVec<(u32, Rid), MOST_FOUND> = ArrayVec::new();
    for (rid, info) in records.found() {
        let at = largest.partition_point(|(frames, _)| *frames >= info.frames);
        if at < MOST_FOUND {
            if largest.is_full() {
                largest.pop();
            }
            largest.insert(at, (info.frames, rid));
        }
    }
    for (_, rid) in &largest {
        let Some(info) = partition.info(*rid) else { continue };
        let (kind, cache) = name(info.kind);
        write!(answer, "{:>6}  {kind:<8} ", rid.number())?;
        match cache {
            None => write!(answer, "all   ")?,
            Some(domain) => write!(answer, "{domain:<6}")?,
        }
        let working_set = rounds.load(partition, *rid, info.frames).div_ceil(4);
        write!(answer, "{:>10}  {working_set:>11}", info.frames)?;
        match rounds.access_ns(*rid) {
            Some(ns) => write!(answer, "  {:>12}", ns / 1000)?,
            None => write!(answer, "  {:>12}", "-")?,
        }
        let record = records.micro.record(*rid);
        write!(answer, "{:>10} {:>11} {:>8}", record.moves, record.globalised, record.opened)?;
        match rounds.root(info.owner) {
            Some(root) => writeln!(answer, "  {root:x}")?,
            None => writeln!(answer, "  VM")?,
        }
    }
    let spaces = rounds.space_counts();
    writeln!(
        answer,
        "address spaces {}: made {}, ended {}; touches without one {}",
        spaces.used, spaces.made, spaces.ended, spaces.refused
    )?;
    let counts = rounds.counts();
    writeln!(
        answer,
        "{} regions found in {} rounds, {} left out: frames touched {}, regions begun {}, merged {}, placed {}; given up {} times; frames excluded \
         {}, aged {}",
        records.found().count(),
        counts.rounds,
        counts.left_out,
        counts.touches,
        counts.born,
        counts.merges,
        counts.placed,
        counts.given_up,
        counts.excluded,
        counts.aged
    )?;
    let scans = &records.scans;
    writeln!(
        answer,
        "samples of accesses {}, {} ticks, the longest part {}; put off {} times, as they took over 1 %",
        scans.samples, scans.ticks, scans.longest, scans.put_off
    )
}

/// Has regions looked for or not, from now on.
pub fn want<V: Virt, M: HostMemory>(view: &mut View<'_, V, M>, wanted: Regions) {
    let vm = view.vm;
    vm.regions.want(wanted);
    // The timers ask from now on.
    vm.mailboxes.iter().for_each(|mailbox| mailbox.request(work::TIMERS));
    let Some(vcpu) = view.vcpus.first_mut() else { return };
    let mut records = vm.regions.lock(core::hint::spin_loop);
    if let (Regions::Off, Some(records)) = (wanted, records.as_deref_mut()) {
        let changes = vm.give_up_regions(vcpu.id, &mut vcpu.work, records);
        mmu::follow_changes(vcpu, changes);
    }
}

/// The region that the list shows with this number. The guest's begin at 1 and end before those that are found.
fn shown_as(records: &Records, number: u64) -> Option<Rid> {
    let found = || records.found().map(|(rid, _)| rid).find(|rid| u64::from(rid.number()) == number);
    records.guest.rid(number).or_else(found)
}

const _: () = assert!(REGIONS_MAX < Rid::FIRST as u64, "no two of them have one number");

/// Maps a region to a cache, or makes it global.
pub fn place<V: Virt, M: HostMemory>(
    view: &mut View<'_, V, M>,
    region: u64,
    to: Placement,
    answer: &mut dyn Write,
) -> fmt::Result {
    let vm = view.vm;
    let Some(vcpu) = view.vcpus.first_mut() else { return Ok(()) };
    let mut records = vm.regions.lock(core::hint::spin_loop);
    let Some((records, rid)) =
        records.as_deref_mut().and_then(|records| shown_as(records, region).map(|rid| (records, rid)))
    else {
        return writeln!(answer, "there is no region {region}; `regions` lists those that there are");
    };
    let placed = match to {
        Placement::Global => vm.globalise(vcpu.id, &mut vcpu.work, records, rid),
        Placement::Domain(domain) => match Domain::new(domain) {
            Some(domain) => vm.localise(vcpu.id, &mut vcpu.work, records, rid, domain),
            None => Err(NotPlaced::Domain),
        },
    };
    match placed {
        // The others find the same in their mailboxes.
        Ok(changes) => mmu::follow_changes(vcpu, changes),
        Err(NotPlaced::Domain) => {
            let last = vm.regions.domains() - 1;
            writeln!(answer, "no such cache domain; this machine has those from 0 to {last}")?;
        }
        Err(NotPlaced::Refused(Refused::Kind(kind))) => {
            writeln!(answer, "region {region} is {}, which cannot be placed", name(kind).0)?;
        }
        Err(NotPlaced::Refused(why)) => writeln!(answer, "region {region} cannot be placed: {why:?}")?,
        Err(NotPlaced::NoMemory) => {
            writeln!(answer, "no host memory for tables of cache domains; region {region} is open in all")?;
        }
    }
    Ok(())
}

/// A kind by its name, and the cache that it is mapped to.
fn name(kind: Kind) -> (&'static str, Option<u8>) {
    match kind {
        Kind::Seed => ("seed", None),
        Kind::Regular => ("regular", None),
        Kind::Local(domain) => ("local", Some(domain.number())),
        Kind::Shared => ("shared", None),
        Kind::Global => ("global", None),
    }
}
