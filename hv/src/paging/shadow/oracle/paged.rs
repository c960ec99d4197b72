//! Guest memory that a pager holds: pages leave and come back while the trace goes on.
//!
//! The pager, the P2m and the engines are the hypervisor's own; what `vm::overcommit` does between them is done here step by
//! step, so that accesses come in between. A page that came back must hold what it held, and no store may reach a frame after the
//! flush that took its page away.

use super::layout::{HOST, HOST_BYTES, RAM, TABLES, page_at};
use super::twins::Omits;
use super::{Guest, Oracle, copy_tables};
use crate::arch::addr::{Gfn, Gpa, Hfn, Hpa, PAGE_SIZE};
use crate::mem::host_access::{HostAccess, VecHost};
use crate::mem::pager::{Budget, FrameMemory, Pager, Pages, Resident, Span};
use crate::mem::table_memory::TableMemory;
use crate::paging::format::PteFormat;
use crate::paging::model::Modelled;
use crate::paging::random::Random;
use crate::paging::range::{Changed, GpaRange};
use crate::paging::shadow::Shadow;
use std::sync::Arc;

/// Frames that the pager has: behind those of [`HOST`].
const FRAMES: u64 = 1200;
/// Host memory with them.
pub const BYTES: u64 = HOST_BYTES + FRAMES * PAGE_SIZE;

/// The pager's frames, in each of these memories: they hold the same at the end of each operation.
#[derive(Debug)]
struct Frames {
    hosts: Vec<VecHost>,
    free: Vec<u64>,
}

impl FrameMemory for Frames {
    fn take(&mut self) -> Option<Hfn> {
        self.free.pop().map(Hfn)
    }

    fn give_back(&mut self, frame: Hfn) {
        self.hosts.iter().for_each(|host| host.fill(frame.base(), PAGE_SIZE, 0xa5));
        self.free.push(frame.0);
    }

    fn read(&self, at: Hpa, buf: &mut [u8]) {
        self.hosts[0].read(at, buf);
        for host in &self.hosts[1..] {
            let mut other = vec![0; buf.len()];
            host.read(at, &mut other);
            assert!(other == buf, "the memories are not the same at {at}");
        }
    }

    fn write(&self, at: Hpa, buf: &[u8]) {
        self.hosts.iter().for_each(|host| host.write(at, buf));
    }

    fn clear(&self, frame: Hfn) {
        self.hosts.iter().for_each(|host| host.fill(frame.base(), PAGE_SIZE, 0));
    }

    fn ticks(&self) -> u64 {
        0
    }
}

/// Gives all of guest memory to a pager, with a few pages that can be resident. Tables are what `word` says.
pub fn start(
    random: &mut Random,
    p2m: &mut Guest,
    hosts: &[VecHost],
    words: impl Iterator<Item = (u64, u64)>,
) -> Arc<Pager> {
    let span = Span { low: (RAM / PAGE_SIZE) as u32, high_start: Gfn(1 << 20), high: 0 };
    let budget = Budget { resident: 6 + (random.draw() % 12) as u32, reserve: 8, store: 60 };
    let first = HOST.frame().0 + HOST_BYTES / PAGE_SIZE;
    let frames = Frames { hosts: hosts.to_vec(), free: (first..first + FRAMES).collect() };
    let policies = abi::config::Replacement::ALL;
    let policy = policies[random.draw() as usize % policies.len()];
    let pager = Arc::new(Pager::new(span, budget, policy, Box::new(frames)).expect("the test's own heap"));
    p2m.map_absent(GpaRange::new(Gpa(0), RAM).expect("a small range"), &pager).expect("the arena is large");
    for (at, word) in words {
        let hpa = p2m.translate(Gpa(at)).writable().expect("there are frames");
        hosts.iter().for_each(|host| host.write(hpa, &word.to_le_bytes()));
    }
    pager
}

/// What the tables and a random number say of pages.
struct Choice<'a, M: TableMemory, F: PteFormat> {
    p2m: &'a Guest<'a>,
    shadow: &'a mut Shadow<M, F>,
    random: &'a mut Random,
}

impl<M: TableMemory, F: PteFormat> Pages for Choice<'_, M, F> {
    fn is_evictable(&mut self, page: Resident) -> bool {
        self.p2m.evictable(page.page.base(), page.frame).is_some()
    }

    /// Tables are shadowed nearly always. They must go, too.
    fn take_accessed(&mut self, page: Resident) -> bool {
        self.shadow.take_in_use(page.frame) && self.random.once_in(3)
    }
}

/// The pages that leave.
pub fn choose<M: TableMemory, F: PteFormat>(
    pager: &Pager,
    p2m: &Guest,
    shadow: &mut Shadow<M, F>,
    random: &mut Random,
) -> Vec<Resident> {
    pager.choose(&mut Choice { p2m, shadow, random })
}

/// The contents of pages whose frames nothing leads to any more.
pub fn contents(host: &VecHost, leaving: &[Resident]) -> Vec<Vec<u8>> {
    leaving.iter().map(|page| page_at(host, page.frame.base())).collect()
}

/// Stores the pages that are absent still, and brings some back.
///
/// # Errors
/// One of them has changed since [`contents`], on its way out or in.
pub fn store(
    pager: &Pager,
    p2m: &Guest,
    host: &VecHost,
    leaving: &[Resident],
    held: &[Vec<u8>],
    loses: bool,
    random: &mut Random,
) -> Result<(), String> {
    let is_absent = |page: &Resident| p2m.peek(page.page.base()).readable().is_none();
    let away: Vec<_> = leaving.iter().zip(held).filter(|(page, _)| is_absent(page)).collect();
    for (page, held) in &away {
        if page_at(host, page.frame.base()) != **held {
            return Err(format!("a store to {:?} went to its frame after the flush", page.page));
        }
    }
    while pager.store(&mut |page| p2m.attach(page.page.base(), page.frame)) {}
    if loses {
        pager.lose_all();
    }
    pager.check();
    for (page, held) in away {
        if random.once_in(2) {
            let Some(hpa) = p2m.translate(page.page.base()).readable() else {
                return Err(format!("{:?} does not come back: {:?}", page.page, pager.failure()));
            };
            if page_at(host, hpa) != *held {
                return Err(format!("{:?} has come back with other contents", page.page));
            }
        }
    }
    Ok(())
}

/// Drops the contents of any pages, as a guest's balloon names them. Those that were in frames, and the changes of the P2m.
pub fn discard(pager: &Pager, p2m: &mut Guest, random: &mut Random) -> (Vec<Resident>, Vec<Changed>) {
    let (mut gone, mut changes) = (vec![], vec![]);
    for _ in 0..1 + random.draw() % 6 {
        // Tables, too, and some that are no memory; mostly one that is in a frame.
        let from = random.draw() % (RAM / PAGE_SIZE + 3);
        let is_there = |page: &u64| p2m.peek(Gpa(page * PAGE_SIZE)).readable().is_some();
        let next = (from..RAM / PAGE_SIZE).find(is_there).filter(|_| !random.once_in(3));
        let page = Gfn(next.unwrap_or(from));
        let is_known = pager.discard(page, &mut |frame| {
            let change = p2m.evict(page.base(), frame);
            gone.extend(change.map(|_| Resident { page, frame }));
            changes.extend(change);
            change.is_some()
        });
        assert!(page.0 < RAM / PAGE_SIZE || !is_known);
    }
    (gone, changes)
}

/// The frames go back.
///
/// # Errors
/// One has changed since [`contents`], or a page is not all zeroes.
pub fn end_discard(
    pager: &Pager,
    p2m: &Guest,
    host: &VecHost,
    gone: &[Resident],
    held: &[Vec<u8>],
    random: &mut Random,
) -> Result<(), String> {
    for (page, held) in gone.iter().zip(held) {
        if page_at(host, page.frame.base()) != *held {
            return Err(format!("a store to {:?} went to its frame after the flush", page.page));
        }
    }
    let is_absent = |page: &&Resident| p2m.peek(page.page.base()).readable().is_none();
    let away: Vec<_> = gone.iter().filter(is_absent).collect();
    while pager.store(&mut |page| p2m.attach(page.page.base(), page.frame)) {}
    pager.check();
    for page in away.into_iter().filter(|_| random.once_in(2)) {
        let hpa = p2m.translate(page.page.base()).readable();
        if hpa.is_none_or(|hpa| page_at(host, hpa).iter().any(|byte| *byte != 0)) {
            return Err(format!("{:?} was discarded, and is not all zeroes", page.page));
        }
    }
    Ok(())
}

impl<F: Modelled> Oracle<'_, F> {
    /// What the pager does: it evicts, or drops what the guest does not want.
    pub(super) fn page_out(&mut self, random: &mut Random) -> Result<(), String> {
        if random.once_in(3) { self.discard(random) } else { self.evict(random) }
    }

    /// As `vm::overcommit` does it: pages leave the P2m and the tables, and nothing is stored.
    fn discard(&mut self, random: &mut Random) -> Result<(), String> {
        let Some(pager) = self.pager.clone() else { return Ok(()) };
        self.compare()?;
        let (gone, changes) = discard(&pager, &mut self.p2m, random);
        self.log(|| format!("    discarded: {gone:x?}"));
        let omits = self.machine.omits;
        if omits == Omits::DiscardFlush {
            self.machine.omits = Omits::Flush;
        }
        self.p2m_changed(&changes);
        self.machine.omits = omits;
        let held = contents(&self.machine.host, &gone);
        let probe = random.draw() as usize % self.probes.len();
        let access = random.access(self.state.cpl);
        self.access(probe, self.probes[probe].gva, access)?;
        self.compare()?;
        end_discard(&pager, &self.p2m, &self.machine.host, &gone, &held, random)?;
        self.access(probe, self.probes[probe].gva, access)?;
        Ok(())
    }

    /// Where tables are that a pager has brought in.
    fn paged_tables(&self) -> impl Iterator<Item = Hpa> + '_ {
        let all = (0..TABLES).filter(|_| self.pager.is_some());
        all.filter_map(|page| self.p2m.peek(Gpa(page * PAGE_SIZE)).readable())
    }

    /// The memory of the plain walker gets what the machine's has.
    pub(super) fn follow_tables(&self) {
        copy_tables(&self.machine.host, &self.software);
        self.paged_tables().for_each(|hpa| self.software.write(hpa, &page_at(&self.machine.host, hpa)));
    }

    /// Both hold the same.
    pub(super) fn compare_paged(&self) -> Result<(), String> {
        let differs = |hpa: &Hpa| page_at(&self.software, *hpa) != page_at(&self.machine.host, *hpa);
        match self.paged_tables().find(differs) {
            None => Ok(()),
            Some(hpa) => Err(format!("the table at {hpa} is not the same in both memories")),
        }
    }

    /// Whether a page of the guest is in this frame of the pager's.
    pub(super) fn is_paged_in(&self, hpa: Hpa) -> bool {
        let mut all = (0..RAM / PAGE_SIZE).filter(|_| self.pager.is_some());
        all.any(|page| self.p2m.peek(Gpa(page * PAGE_SIZE)).readable() == Some(hpa.align_down(PAGE_SIZE)))
    }

    /// As `vm::overcommit` does it: pages leave the P2m and the tables, and are stored.
    fn evict(&mut self, random: &mut Random) -> Result<(), String> {
        let Some(pager) = self.pager.clone() else { return Ok(()) };
        self.compare()?;
        let leaving = choose(&pager, &self.p2m, &mut self.machine.shadow, random);
        self.log(|| format!("    leaving: {leaving:x?}"));
        let changes: Vec<_> =
            leaving.iter().filter_map(|page| self.p2m.evict(page.page.base(), page.frame)).collect();
        let omits = self.machine.omits;
        if omits == Omits::EvictFlush {
            self.machine.omits = Omits::Flush;
        }
        self.p2m_changed(&changes);
        self.machine.omits = omits;
        let held = contents(&self.machine.host, &leaving);
        let probe = random.draw() as usize % self.probes.len();
        let access = random.access(self.state.cpl);
        self.access(probe, self.probes[probe].gva, access)?;
        self.compare()?;
        let loses = omits == Omits::LosePages;
        store(&pager, &self.p2m, &self.machine.host, &leaving, &held, loses, random)?;
        self.access(probe, self.probes[probe].gva, access)?;
        Ok(())
    }
}
