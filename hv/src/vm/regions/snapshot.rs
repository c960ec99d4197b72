//! A VM's regions at a moment, for its samples ([`records::regions`]).
//!
//! `vcpu::sampling` asks when it ends a period of the VM's samples, at most once in [`PERIOD_NS`]: that goes over the list of
//! regions, and over some frames of each part of memory. A VM without regions is asked for the lock, and no more.

use records::regions::{BINS, Cache, DOMAINS, LISTED, Region, Regions as Snapshot, UNKNOWN};

use super::{Records, Regions};
use crate::arch::addr::PAGE_SHIFT;
use crate::region::partition::{Info, Partition};
use crate::region::{Kind, Owner, Rid};

/// Nanoseconds of the VM's time between two: access bits are not read more often either.
const PERIOD_NS: u64 = 100_000_000;
/// Frames of each part of memory that are looked at.
const PROBES: usize = 8;

const _: () = assert!(DOMAINS == crate::region::DOMAINS as usize);

impl Regions {
    /// The regions at `time_ns` of the VM's time, if there are any and the last time is long enough ago, or they are demanded. `None`
    /// also where another VCPU has the lock: the next sample has them.
    pub fn snapshot(&self, time_ns: u64, demanded: bool) -> Option<Snapshot> {
        let mut records = self.records.try_lock()?;
        let records = records.as_deref_mut()?;
        if time_ns < records.snapshot_due_ns && !demanded {
            return None;
        }
        records.snapshot_due_ns = time_ns.saturating_add(PERIOD_NS);
        Some(Snapshot { time_ns, ..records.snapshot(self.domains())? })
    }
}

impl Records {
    /// `None`: nothing has ever been in a region, nor is anything looked for.
    fn snapshot(&self, domains: u8) -> Option<Snapshot> {
        let partition = self.guest.partition();
        let (micro, rounds) =
            (self.micro.counts(), self.rounds.as_ref().map(|rounds| rounds.counts().rounds));
        let mut snapshot = Snapshot {
            domains,
            frames: partition.frames() as u64,
            counts: [micro.closed_faults, micro.moves, micro.globalised, micro.opened, rounds.unwrap_or(0)],
            ..Snapshot::default()
        };
        for (rid, info) in partition.regions() {
            let working_set = self.working_set(rid, info);
            if let Kind::Local(domain) = info.kind {
                let Cache { frames, working_set: sum } = &mut snapshot.caches[usize::from(domain.number())];
                *frames += u64::from(info.frames);
                *sum += u64::from(working_set.unwrap_or(0));
            }
            let is_guests = matches!(info.owner, Owner::Guest(_));
            let is_found =
                matches!(info.owner, Owner::Space(_)) && !matches!(info.kind, Kind::Seed | Kind::Shared);
            if is_guests || is_found {
                snapshot.known[usize::from(is_guests)] += 1;
                self.list(&mut snapshot, rid, info, working_set);
            }
        }
        if snapshot.known == [0; 2] && rounds.is_none() && micro.closed_faults == 0 {
            return None;
        }
        snapshot.map = map(partition);
        Some(snapshot)
    }

    /// In frames.
    fn working_set(&self, rid: Rid, info: Info) -> Option<u32> {
        let partition = self.guest.partition();
        let quarters = match &self.rounds {
            Some(rounds) => rounds.load(partition, rid, info.frames),
            None if partition.histories().is_some() => {
                u32::try_from(partition.working_set(rid)).unwrap_or(u32::MAX)
            }
            None => return None,
        };
        Some(quarters.div_ceil(4))
    }

    /// Puts a region on the list if it is one of the largest.
    fn list(&self, snapshot: &mut Snapshot, rid: Rid, info: Info, working_set: Option<u32>) {
        let count = usize::from(snapshot.listed);
        let at = snapshot.regions[..count].partition_point(|listed| listed.frames >= info.frames);
        if at == LISTED {
            return;
        }
        let (number, is_guests) = match info.owner {
            Owner::Guest(number) => (number, true),
            _ => (rid.number(), false),
        };
        let (kind, cache) = match info.kind {
            Kind::Seed => (0, None),
            Kind::Regular => (1, None),
            Kind::Local(domain) => (2, Some(domain.number())),
            Kind::Shared => (3, None),
            Kind::Global => (4, None),
        };
        let access_ns = self.rounds.as_ref().and_then(|rounds| rounds.access_ns(rid));
        let root = self.rounds.as_ref().and_then(|rounds| rounds.root(info.owner));
        let space = root.and_then(|root| u32::try_from(root >> PAGE_SHIFT).ok());
        let region = Region {
            number,
            is_guests,
            kind,
            cache,
            frames: info.frames,
            working_set: working_set.unwrap_or(UNKNOWN),
            moves: self.micro.record(rid).moves,
            access_ns: access_ns.unwrap_or(UNKNOWN),
            space: space.unwrap_or(UNKNOWN),
        };
        // The smallest one gives way.
        let count = (count + 1).min(LISTED);
        snapshot.regions[at..count].rotate_right(1);
        snapshot.regions[at] = region;
        snapshot.listed = count as u8;
    }
}

/// Which cache each part of memory is mapped to: the one that most of the frames that are looked at have, of those that have one.
fn map(partition: &Partition) -> [u8; BINS] {
    let frames = partition.frames();
    core::array::from_fn(|bin| {
        let (from, to) = (bin * frames / BINS, (bin + 1) * frames / BINS);
        let mut found = [0u8; DOMAINS];
        for probe in 0..PROBES {
            if let Some(Kind::Local(domain)) = partition.kind_at(from + probe * (to - from) / PROBES) {
                found[usize::from(domain.number())] += 1;
            }
        }
        let most = (0..DOMAINS).rev().max_by_key(|domain| found[*domain]);
        most.filter(|domain| found[*domain] > 0).map_or(0, |domain| domain as u8 + 1)
    })
}

#[cfg(test)]
mod tests {
    use records::regions::COUNTS;

    use super::*;
    use crate::arch::addr::Gfn;
    use crate::region::Domain;
    use crate::region::guest::GuestRegions;
    use crate::region::micro::{LastTouches, Micro, Touch};
    use crate::vm::regions::Scans;

    fn records(frames: u64) -> Records {
        let guest = GuestRegions::new([Gfn(0)..Gfn(frames)]).unwrap();
        Records { guest, micro: Micro::default(), rounds: None, scans: Scans::default(), snapshot_due_ns: 0 }
    }

    fn add(records: &mut Records, from: u64, order: u64, domain: Option<u8>) {
        let number = records.guest.add(&mut |_| {}).unwrap().into();
        records.guest.add_pages(from, order, number, &mut |_| {}).unwrap();
        if let Some(domain) = domain {
            let rid = records.guest.rid(number).unwrap();
            records.micro.begin(rid).unwrap();
            let domain = Domain::new(domain).unwrap();
            let _no_tables = records.guest.partition_mut().localise(rid, domain).unwrap();
        }
    }

    #[test]
    fn a_vm_without_regions_has_none() {
        assert_eq!(records(1024).snapshot(2), None);
        assert_eq!(Regions::default().snapshot(5, true), None);
    }

    #[test]
    fn regions_are_where_they_are() {
        // Sixteen frames to a part.
        let mut records = records(16 * BINS as u64);
        add(&mut records, 0, 8, None);
        add(&mut records, 512, 9, Some(1));
        add(&mut records, 1024, 6, Some(0));
        let snapshot = records.snapshot(2).unwrap();
        assert_eq!((snapshot.frames, snapshot.known, snapshot.listed), (2048, [0, 3], 3));
        let listed =
            snapshot.regions().iter().map(|it| (it.number, it.is_guests, it.kind, it.cache, it.frames));
        assert!(listed.eq([(2, true, 2, Some(1), 512), (1, true, 1, None, 256), (3, true, 2, Some(0), 64)]));
        assert_eq!(snapshot.caches().iter().map(|cache| cache.frames).collect::<Vec<_>>(), [64, 512]);
        let map: Vec<u8> = (0..BINS)
            .map(|bin| {
                [0, 2, 1][usize::from((32..64).contains(&bin)) + 2 * usize::from((64..68).contains(&bin))]
            })
            .collect();
        assert_eq!(snapshot.map[..], map[..]);
        assert_eq!(snapshot.regions()[0].working_set, UNKNOWN, "no sample of accesses was taken");
    }

    #[test]
    fn the_largest_are_listed_whatever_the_guest_does() {
        let mut records = records(65536);
        for n in 0..200 {
            add(&mut records, 256 * n, n % 8, Some((n % 16) as u8));
        }
        let snapshot = records.snapshot(16).unwrap();
        assert_eq!((snapshot.known, snapshot.regions().len()), ([0, 200], LISTED));
        assert!(snapshot.regions().iter().all(|region| region.frames == 128));
        assert_eq!(snapshot.caches().iter().map(|cache| cache.frames).sum::<u64>(), 25 * 255);
        let mut record = [0; records::regions::MOST];
        let words = snapshot.write(&mut record);
        assert_eq!(records::regions::Regions::read(&record[..words]), Some(snapshot));
    }

    #[test]
    fn counts_are_under_their_names() {
        let mut records = records(1024);
        add(&mut records, 0, 3, Some(0));
        let rid = records.guest.rid(1).unwrap();
        let touch = |can_move| Touch { rid, registers: 0, ran: 0, now: 0, can_move, most: 9 };
        for can_move in [false, true, false, true, true, true] {
            let _moves_or_not = records.micro.touch(&mut LastTouches::default(), &touch(can_move));
        }
        records.micro.opened_for_idle(rid, 0);
        let counts = COUNTS.iter().zip(records.snapshot(2).unwrap().counts);
        let expected = [("closed_faults", 6), ("moves", 4), ("globalised", 2), ("opened", 1), ("rounds", 0)];
        assert!(counts.map(|(name, count)| (*name, count)).eq(expected));
    }

    #[test]
    fn there_is_one_in_a_period() {
        let mut all = records(1024);
        add(&mut all, 0, 3, Some(0));
        let regions = Regions::default();
        *regions.records.lock() = Some(alloc::boxed::Box::new(all));
        let times =
            [5, 6, PERIOD_NS, PERIOD_NS + 5].map(|time_ns| regions.snapshot(time_ns, false).is_some());
        assert_eq!(times, [true, false, false, true]);
        assert!(regions.snapshot(PERIOD_NS + 6, true).is_some(), "the end of the VM");
        let _held = regions.records.lock();
        assert_eq!(regions.snapshot(u64::MAX, true), None, "who meets another does not wait");
    }
}
