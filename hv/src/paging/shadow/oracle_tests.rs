//! The oracle for shadow paging: one trace drives the plain walker and the shadow engine on a modelled
//! processor, and both must agree.
//!
//! The processor keeps what it is not told to forget, and the guest does not always flush. For each address of
//! a set the trace knows whether the guest has flushed since it last changed an entry on the way (*fresh*):
//! then destination, faults, error codes and accessed and dirty bits must be equal. Until then the old
//! translation may be used, but faults are those of the tables as they are, and nothing leads out of the
//! guest's memory.

use super::model::{Registers, ShadowProcessor};
use super::*;
use crate::guest::mem::NotRam;
use crate::guest::ram::{HostAccess, VecHost, VmMemory};
use crate::paging::addr::{Hpa, PAGE_SIZE};
use crate::paging::arena::Arena;
use crate::paging::format::x86::{PRESENT, WRITE};
use crate::paging::guest_walk::{Step, WalkError, peek, translate, walk};
use crate::paging::p2m::P2mEntry;
use crate::paging::random::{PAGES, Random};
use crate::paging::range::GpaRange;
use crate::virt::Access;
use crate::virt::state::cr4;
use proptest::prelude::*;

const HOST: Hpa = Hpa(0x8000_0000);
/// Guest memory: two large pages, in the first pages of which the tables lie, the last for PAE's pointers.
const RAM: u64 = 0x40_0000;
const TABLES: u64 = PAGES + 1;
const TABLE_BYTES: u64 = TABLES * PAGE_SIZE;
/// Behind it a second place for each table.
const HOST_BYTES: u64 = RAM + TABLE_BYTES;

type Guest<'a> = P2m<&'a Arena>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Done(Hpa),
    PageFault(u32),
    Stopped(Gpa, P2mEntry),
}

/// Tables in ROM are not walked, as under nested paging.
struct Memory<'a>(VmMemory<'a, &'a Arena, VecHost>);

impl GuestMemory for Memory<'_> {
    fn read(&self, gpa: Gpa, buf: &mut [u8]) -> Result<(), NotRam> {
        self.0.check(gpa, buf.len() as u64, true)?;
        self.0.read(gpa, buf)
    }
    fn write(&self, gpa: Gpa, buf: &[u8]) -> Result<(), NotRam> {
        self.0.write(gpa, buf)
    }
    fn compare_exchange(&self, gpa: Gpa, size: usize, old: u64, new: u64) -> Result<bool, NotRam> {
        self.0.compare_exchange(gpa, size, old, new)
    }
}

/// An address that the guest uses.
struct Probe {
    gva: Gva,
    fresh: bool,
    /// The entries that a walk reads now, up to the first that stops it, as aligned 8 bytes.
    path: Vec<u64>,
    /// log2 of the size of the only page that can be cached for it, if it is not fresh.
    old_shift: Option<u8>,
}

struct Oracle<'a> {
    arena: &'a Arena,
    kind: PagingKind,
    p2m: Guest<'a>,
    state: PagingState,
    software: VecHost,
    host: VecHost,
    shadow: Shadow<&'a Arena>,
    processor: ShadowProcessor,
    root: Root,
    probes: Vec<Probe>,
    globals: bool,
    pointers_changed: bool,
    exits: u64,
}

fn by_p2m(p2m: &Guest, gpa: Gpa, access: Access) -> Outcome {
    match p2m.translate(gpa) {
        entry @ P2mEntry::Ram { writable: false, .. } if access.write => Outcome::Stopped(gpa, entry),
        entry @ P2mEntry::Rom { .. } if access.write => Outcome::Stopped(gpa, entry),
        P2mEntry::Ram { hpa, .. } | P2mEntry::Rom { hpa } => Outcome::Done(hpa),
        entry => Outcome::Stopped(gpa, entry),
    }
}

impl<'a> Oracle<'a> {
    fn new(arena: &'a Arena, kind: PagingKind, seed: u64) -> Oracle<'a> {
        let mut random = Random(seed);
        let mut p2m = P2m::new(arena).unwrap();
        let _no_engine_yet = p2m.map_ram(GpaRange::new(Gpa(0), RAM).unwrap(), HOST, true).unwrap();
        let software = VecHost::new(HOST, HOST_BYTES as usize);
        let host = VecHost::new(HOST, HOST_BYTES as usize);
        let wide = kind != PagingKind::TwoLevel;
        for place in [HOST.0, HOST.0 + RAM] {
            for at in (0..TABLE_BYTES).step_by(8) {
                let entry = if wide {
                    entry(&mut random, kind, at)
                } else {
                    entry(&mut random, kind, at) | entry(&mut random, kind, at + 4) << 32
                };
                software.write(Hpa(place + at), &entry.to_le_bytes());
                host.write(Hpa(place + at), &entry.to_le_bytes());
            }
        }
        let tuning = Tuning {
            window: 1 << (random.draw() % 4),
            direct_window: 1 << (random.draw() % 7),
            unsync_after: [0, 1, 2, u8::MAX][(random.draw() % 4) as usize],
            flood: [3, 16][(random.draw() % 2) as usize],
            quiet: [1, 3][(random.draw() % 2) as usize],
        };
        let pages = [16, 24, 64][(random.draw() % 3) as usize];
        let mut shadow = Shadow::new(arena, pages, tuning).unwrap();
        let mut state = random.state(kind);
        state.pdptes = None;
        state.cr3 = cr3(&mut random, kind);
        let (root, _) = shadow.load(&p2m, &Memory(VmMemory::new(&p2m, &host)), &state);
        let mut probes = Vec::new();
        for _ in 0..6 {
            let base = (random.draw() as i64 >> 16) as u64;
            for more in [0, 0x1000, 0x3000, 0x20_1000] {
                let gva = Gva((base ^ more) & !7);
                probes.push(Probe { gva, fresh: true, path: Vec::new(), old_shift: None });
            }
        }
        let processor = ShadowProcessor::default();
        let (globals, pointers_changed, exits) = (false, false, 0);
        let mut oracle = Oracle {
            arena,
            kind,
            p2m,
            state,
            software,
            host,
            shadow,
            processor,
            root,
            probes,
            globals,
            pointers_changed,
            exits,
        };
        oracle.all_fresh();
        oracle
    }

    fn path(&self, gva: Gva) -> Vec<Step> {
        let mut steps = Vec::new();
        let memory = Memory(VmMemory::new(&self.p2m, &self.host));
        let _any = walk(&self.state, &memory, gva, Access::READ, false, |step| steps.push(step));
        steps
    }

    fn trace(&mut self, n: usize) {
        let steps = self.path(self.probes[n].gva);
        self.probes[n].path = steps.iter().map(|step| step.at.0 & !7).collect();
    }

    fn all_fresh(&mut self) {
        for n in 0..self.probes.len() {
            self.trace(n);
            self.probes[n].fresh = true;
        }
    }

    /// After a load of CR3 or other registers.
    fn load(&mut self) {
        let memory = Memory(VmMemory::new(&self.p2m, &self.host));
        let (root, flush) = self.shadow.load(&self.p2m, &memory, &self.state);
        self.root = root;
        self.processor.flush(flush);
        if flush == TlbFlush::All {
            self.globals = false;
        }
        self.pointers_changed = false;
        for n in 0..self.probes.len() {
            self.trace(n);
            let probe = &mut self.probes[n];
            probe.fresh = !self.globals;
            probe.old_shift = None;
        }
    }

    fn invlpg(&mut self, n: usize) {
        let gva = self.probes[n].gva;
        let memory = Memory(VmMemory::new(&self.p2m, &self.host));
        let flush = self.shadow.invlpg(&self.p2m, &memory, gva);
        self.processor.flush(flush);
        let kind = self.kind;
        for (other, probe) in self.probes.iter_mut().enumerate() {
            let linear = |gva: Gva| fill::linear(kind, gva).0;
            let same = |shift: u8| linear(gva) >> shift == linear(probe.gva) >> shift;
            if other == n || probe.old_shift.is_some_and(same) {
                probe.fresh |= !self.pointers_changed;
            }
        }
    }

    /// The guest, or a device, writes the 8 bytes at `gpa`. `unseen`: through a mapping of its own.
    fn store(&mut self, gpa: Gpa, value: u64, unseen: bool) {
        let Some(hpa) = self.p2m.translate(gpa).writable() else { return };
        let old = self.host.load(hpa);
        let before: Vec<_> = self.probes.iter().map(|probe| probe.path.contains(&gpa.0)).collect();
        let shifts: Vec<_> = (0..self.probes.len())
            .map(|n| if before[n] { self.leaf_shift(self.probes[n].gva) } else { None })
            .collect();
        self.host.write(hpa, &value.to_le_bytes());
        self.software.write(hpa, &value.to_le_bytes());
        if !unseen {
            let flush = self.shadow.written(&self.p2m, gpa, 8);
            self.processor.flush(flush);
        }
        // Only in page-directory pointers are bits that come to the accessed and dirty ones a change.
        let pointer = self.kind == PagingKind::Pae && gpa.0 / PAGE_SIZE == PAGES;
        let bits = 0x60 | if self.kind == PagingKind::TwoLevel { 0x60 << 32 } else { 0 };
        if !pointer && (old ^ value) & !bits == 0 && old & bits & !value == 0 {
            return;
        }
        for n in 0..self.probes.len() {
            if before[n] {
                let probe = &mut self.probes[n];
                probe.old_shift = if probe.fresh { shifts[n] } else { None };
                probe.fresh = false;
                self.trace(n);
            }
        }
        self.pointers_changed |= pointer;
    }

    fn leaf_shift(&self, gva: Gva) -> Option<u8> {
        let memory = Memory(VmMemory::new(&self.p2m, &self.host));
        let open = PagingState { cr4: self.state.cr4 & !(cr4::SMAP | cr4::SMEP), cpl: 0, ..self.state };
        peek(&open, &memory, gva, Access::READ).ok().map(|found| found.page_shift)
    }

    fn access(&mut self, random: &mut Random) {
        let n = (random.draw() % self.probes.len() as u64) as usize;
        let (gva, fresh) = (self.probes[n].gva, self.probes[n].fresh);
        let access = random.access(self.state.cpl);
        let steps = self.path(gva);
        let expected = self.expected(gva, access);
        let (got, emulate) = self.shadow_access(gva, access);
        if fresh || !matches!(got, Outcome::Done(_)) {
            assert_eq!(got, expected, "{gva} {access:?} {:x?}", self.state);
        }
        if fresh {
            for step in self.path(gva) {
                let hpa = self.p2m.translate(Gpa(step.at.0 & !7)).readable().unwrap();
                let (a, b) = (self.software.load(hpa), self.host.load(hpa));
                assert_eq!(a, b, "accessed and dirty bits at {} after {gva} {access:?}", step.at);
            }
        } else {
            copy_tables(&self.host, &self.software);
            // And what lies elsewhere.
            for step in steps {
                if let Some(hpa) = self.p2m.translate(Gpa(step.at.0 & !7)).readable() {
                    self.software.write(hpa, &self.host.load(hpa).to_le_bytes());
                }
            }
        }
        let Outcome::Done(hpa) = got else { return };
        assert!((HOST.0..HOST.0 + HOST_BYTES).contains(&hpa.0), "{hpa} is not the guest's");
        self.globals |= self.state.cr4 & cr4::PGE != 0;
        if !access.write || random.once_in(2) {
            return;
        }
        // What is written, if it is to a table.
        let at = Hpa(hpa.0 & !7);
        let value = self.value(random, at.0 - HOST.0, self.host.load(at));
        let gpa = (0..TABLES).map(|n| Gpa(n * PAGE_SIZE + at.0 % PAGE_SIZE));
        let places: Vec<_> = gpa.filter(|&gpa| self.p2m.translate(gpa).writable() == Some(at)).collect();
        if let Some(&gpa) = places.first() {
            self.store(gpa, value, !emulate);
        }
    }

    fn value(&self, random: &mut Random, offset: u64, old: u64) -> u64 {
        match random.draw() % 4 {
            0 => entry(random, self.kind, offset),
            1 => old ^ 1 << [0, 1, 2, 5, 6, 8, 12, 63][(random.draw() % 8) as usize],
            2 => old & !0x60,
            _ => old | 7,
        }
    }

    fn expected(&self, gva: Gva, access: Access) -> Outcome {
        let memory = Memory(VmMemory::new(&self.p2m, &self.software));
        match translate(&self.state, &memory, gva, access) {
            Ok(found) => by_p2m(&self.p2m, found.gpa, access),
            Err(WalkError::PageFault(code)) => Outcome::PageFault(code),
            Err(WalkError::NotRam { table }) => by_p2m(&self.p2m, table, Access::WRITE),
            Err(WalkError::Contended) => panic!("nobody else is there"),
        }
    }

    /// The outcome, and whether the hypervisor made the access.
    fn shadow_access(&mut self, gva: Gva, access: Access) -> (Outcome, bool) {
        let hardware = HardwareControls::of(&self.state);
        let registers = Registers {
            smep: hardware.cr4 & cr4::SMEP != 0,
            smap: hardware.cr4 & cr4::SMAP != 0,
            ac: self.state.may_override_smap(),
        };
        for _ in 0..8 {
            if let Some(hpa) = self.processor.access(&self.arena, self.root, registers, gva, access) {
                return (Outcome::Done(hpa), false);
            }
            self.exits += 1;
            let memory = Memory(VmMemory::new(&self.p2m, &self.host));
            let (outcome, flush) = self.shadow.fault(&self.p2m, &memory, &self.state, gva, access);
            self.processor.flush(flush);
            let stopped = |gpa| Outcome::Stopped(gpa, self.p2m.translate(gpa));
            let outcome = match outcome {
                ShadowOutcome::Filled { .. } => continue,
                ShadowOutcome::GuestFault(code) => Outcome::PageFault(code),
                ShadowOutcome::TableNotRam(table) => by_p2m(&self.p2m, table, Access::WRITE),
                ShadowOutcome::EmulateWrite(gpa) => {
                    return (Outcome::Done(self.p2m.translate(gpa).writable().unwrap()), true);
                }
                ShadowOutcome::Mmio(gpa)
                | ShadowOutcome::RomWrite(gpa)
                | ShadowOutcome::WriteProtected(gpa)
                | ShadowOutcome::NotMapped(gpa) => stopped(gpa),
                ShadowOutcome::Retry => panic!("nobody else is there"),
            };
            return (outcome, false);
        }
        panic!("{gva} {access:?} faults for ever: {:x?}", self.state);
    }

    fn change_p2m(&mut self, random: &mut Random) {
        let page = random.draw() % TABLES * PAGE_SIZE;
        let range = GpaRange::page(Gpa(page));
        let place = Hpa(HOST.0 + page + if random.once_in(3) { RAM } else { 0 });
        let changed = match random.draw() % 8 {
            0 => self.p2m.unmap(range).unwrap(),
            1 => self.p2m.map_rom(range, place).unwrap(),
            2 => self.p2m.map_mmio(range).unwrap(),
            3 => self.p2m.map_ram(range, place, false).unwrap(),
            4 => self.p2m.merge(GpaRange::new(Gpa(0), RAM).unwrap()),
            5 => {
                let all = GpaRange::new(Gpa(0), RAM).unwrap();
                let changed = self.p2m.map_ram(all, HOST, true).unwrap();
                changed.and(self.p2m.merge(all))
            }
            _ => self.p2m.map_ram(range, place, true).unwrap(),
        };
        let (reload, flush) = self.shadow.apply(changed);
        self.processor.flush(flush);
        self.globals &= flush != TlbFlush::All;
        if reload.is_some() {
            self.load();
        }
    }

    fn step(&mut self, random: &mut Random) {
        match random.draw() % 128 {
            0..2 => {
                let features = self.state.features;
                let cr3 = self.state.cr3;
                self.state = PagingState { features, pdptes: None, cr3, ..random.state(self.kind) };
                self.load();
            }
            2..8 => {
                self.state.cr3 = cr3(random, self.kind);
                self.load();
            }
            8 => self.change_p2m(random),
            9..11 => {
                let memory = Memory(VmMemory::new(&self.p2m, &self.host));
                let flush = self.shadow.flush_all(&self.p2m, &memory);
                self.processor.flush(flush);
                self.globals = false;
                if !self.pointers_changed {
                    self.all_fresh();
                }
            }
            11..26 => {
                let n = random.draw() % self.probes.len() as u64;
                self.invlpg(n as usize);
            }
            26..28 => self.check(),
            28..60 => {
                // The kernel writes an entry: often one that matters.
                let n = (random.draw() % self.probes.len() as u64) as usize;
                let path = &self.probes[n].path;
                let gpa = match path.len() as u64 {
                    len if len > 0 && !random.once_in(8) => Gpa(path[(random.draw() % len) as usize]),
                    _ => Gpa((random.draw() % TABLE_BYTES) & !7),
                };
                let Some(hpa) = self.p2m.translate(gpa).writable() else { return };
                let value = self.value(random, gpa.0, self.host.load(hpa));
                let unseen = !self.shadow.pool.is_watched(hpa.frame()) && !random.once_in(8);
                self.store(gpa, value, unseen);
            }
            _ => self.access(random),
        }
    }

    /// Nothing that the processor can use writes to a watched table.
    fn check(&self) {
        let memory = Memory(VmMemory::new(&self.p2m, &self.host));
        if let Err(disagreement) = self.shadow.check(&self.p2m, &memory, &self.state) {
            panic!("{disagreement}");
        }
        let pool = &self.shadow.pool;
        for (id, index, raw) in pool.leaves() {
            let pages = if pool.page(id).key.level() == 2 { 512 } else { 1 };
            let first = (raw & 0x000f_ffff_ffff_f000) >> 12;
            let first = first & !(pages - 1);
            for frame in (first..first + pages).take(TABLES as usize) {
                let watched = raw & WRITE != 0 && pool.is_watched(Hfn(frame));
                assert!(raw & PRESENT != 0 && !watched, "entry {index} of page {id} writes to a table");
            }
        }
        for it in self.processor.translations.iter().filter(|it| it.write) {
            for page in (0..1 << (it.shift - 12)).take(TABLES as usize) {
                assert!(!pool.is_watched(Hfn((it.to >> 12) + page)), "the TLB writes to a table");
            }
        }
    }
}

fn copy_tables(from: &VecHost, to: &VecHost) {
    let mut bytes = [0; TABLE_BYTES as usize];
    for place in [HOST, Hpa(HOST.0 + RAM)] {
        from.read(place, &mut bytes);
        to.write(place, &bytes);
    }
}

fn entry(random: &mut Random, kind: PagingKind, at: u64) -> u64 {
    if kind == PagingKind::Pae && at / PAGE_SIZE == PAGES {
        let bad = if random.once_in(16) { 1 << (random.draw() % 64) } else { 0 };
        return (5 << 12 | 1) ^ bad;
    }
    let wide = kind != PagingKind::TwoLevel;
    let mut entry = random.entry_at(at, wide);
    if entry & 0x80 == 0 && !random.once_in(8) {
        // Mostly a tree, so that some tables serve at level 1 only: roots in pages 0 to 2, levels 3, 2 and 1
        // in page 3 or 4, 5, and 6 or 7.
        let more = random.draw() % 2;
        let target = match (at / PAGE_SIZE, kind) {
            (0..3, PagingKind::FourLevel) => 3 + more,
            (3 | 4, _) => 5,
            (6.., _) => random.draw() % PAGES,
            _ => 6 + more,
        };
        entry = entry & !0x000f_ffff_ffff_f000 | target << 12;
    }
    // Large pages often within memory.
    if entry & 0x80 == 0 || random.once_in(4) {
        entry
    } else if wide {
        entry & !(0x1f << 22)
    } else {
        entry & !(0x3ff << 22)
    }
}

fn cr3(random: &mut Random, kind: PagingKind) -> u64 {
    match kind {
        PagingKind::Pae => PAGES * PAGE_SIZE + random.draw() % 2 * 32,
        _ => random.draw() % 3 * PAGE_SIZE,
    }
}

fn run(kind: PagingKind, seed: u64, steps: &[u64]) {
    let arena = Arena::new(200);
    let mut oracle = Oracle::new(&arena, kind, seed);
    for &seed in steps {
        oracle.step(&mut Random(seed));
    }
    oracle.check();
}

fn steps() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(any::<u64>(), 1..1200)
}

/// 45 unless `ORACLE_CASES` says otherwise: with 4 kinds, about 108 000 steps.
fn cases() -> ProptestConfig {
    let cases = std::env::var("ORACLE_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(45);
    ProptestConfig { cases, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn shadow_agrees_without_paging(seed: u64, steps in steps()) {
        run(PagingKind::Off, seed, &steps);
    }

    #[test]
    fn shadow_agrees_on_two_levels(seed: u64, steps in steps()) {
        run(PagingKind::TwoLevel, seed, &steps);
    }

    #[test]
    fn shadow_agrees_on_pae(seed: u64, steps in steps()) {
        run(PagingKind::Pae, seed, &steps);
    }

    #[test]
    fn shadow_agrees_on_four_levels(seed: u64, steps in steps()) {
        run(PagingKind::FourLevel, seed, &steps);
    }
}
