//! The guest's memory: the P2m and the nested tables, the guest's own page tables, dumps.

use core::fmt::{self, Write};

use arrayvec::ArrayVec;

use super::Bytes;
use crate::arch::Access;
use crate::arch::addr::{Gpa, Gva, PAGE_SIZE, PageSize, is_canonical};
use crate::arch::state::{Gpr, SegReg, cr4};
use crate::mem::guest_memory::{GuestMemory, NotRam};
use crate::monitor::command::Place;
use crate::monitor::view::View;
use crate::paging::format::{NestedAttr, Rights, x86};
use crate::paging::guest_walk::{self, PagingKind, PagingState, Step, Translation, WalkError};
use crate::paging::table::{Found, Leaf};
use crate::paging::tree_key::TreeKey;
use crate::paging::{GpaRange, P2mEntry};
use crate::virt::Virt;
use crate::vm::HostMemory;

/// Maximum number of listed regions.
const MOST_REGIONS: usize = 48;

/// Leaves of each size, and the bytes whose accessed and dirty bits are set.
#[derive(Default)]
struct Census {
    leaves: [u64; PageSize::ALL.len()],
    accessed: u64,
    dirty: u64,
}

impl Census {
    fn add(&mut self, leaf: &Leaf<NestedAttr>) {
        self.leaves[leaf.size.level() as usize - 1] += 1;
        self.accessed += if leaf.accessed { leaf.size.bytes() } else { 0 };
        self.dirty += if leaf.dirty { leaf.size.bytes() } else { 0 };
    }
}

/// The P2m's regions and a census of the nested tables.
pub fn regions<V: Virt, M: HostMemory>(view: &View<'_, V, M>, answer: &mut dyn Write) -> fmt::Result {
    let memory = view.vm.memory.read();
    writeln!(answer, "{:<31} {:>12}  type", "guest-physical", "size")?;
    let mut regions = memory.p2m.regions();
    for (range, entry) in regions.by_ref().take(MOST_REGIONS) {
        write!(answer, "{:014x}-{:014x}   {:>12}  ", range.start, range.end, Bytes(range.len()))?;
        what(entry, answer)?;
        writeln!(answer)?;
    }
    match regions.count() {
        0 => {}
        more => writeln!(answer, "{more} more; `p2m ADDRESS` shows a single one")?,
    }
    let mut census = Census::default();
    memory.nested.tree(TreeKey::FIRST).for_each_leaf(GpaRange::ALL, |leaf| census.add(&leaf));
    let [small, medium, large] = census.leaves;
    writeln!(answer, "nested leaves: {large} of 1 GiB, {medium} of 2 MiB, {small} of 4 KiB")?;
    writeln!(
        answer,
        "nested leaves cover {} accessed, {} dirty",
        Bytes(census.accessed),
        Bytes(census.dirty)
    )?;
    let (p2m, nested) = (memory.p2m.table_frames(), memory.nested.table_frames());
    writeln!(answer, "tables: {p2m} frames of the P2m, {nested} nested frames")
}

/// What is at one guest-physical address.
pub fn translation<V: Virt, M: HostMemory>(
    view: &View<'_, V, M>,
    place: Place,
    answer: &mut dyn Write,
) -> fmt::Result {
    let gpa = Gpa(resolve(view, place, false));
    let memory = view.vm.memory.read();
    write!(answer, "{gpa}: ")?;
    what(memory.p2m.peek(gpa), answer)?;
    match memory.nested.tree(TreeKey::FIRST).find(gpa) {
        Found::Leaf(leaf) => writeln!(
            answer,
            "\nnested: {} leaf from {}, {}{}{}",
            Bytes(leaf.size.bytes()),
            leaf.gpa,
            rights(leaf.attr.rights),
            if leaf.accessed { ", accessed" } else { "" },
            if leaf.dirty { ", dirty" } else { "" },
        ),
        Found::Hole(_) => writeln!(answer, "\nnested: not mapped"),
    }
}

fn what(entry: P2mEntry, answer: &mut dyn Write) -> fmt::Result {
    match entry {
        P2mEntry::Ram { hpa, writable: true } => write!(answer, "RAM at host {hpa}"),
        P2mEntry::Ram { hpa, writable: false } => write!(answer, "write-protected RAM at host {hpa}"),
        P2mEntry::Local { hpa, home, .. } => {
            write!(answer, "RAM at host {hpa}, mapped to the cache of domain {home}")
        }
        P2mEntry::Rom { hpa } => write!(answer, "ROM at host {hpa}"),
        P2mEntry::Mmio => answer.write_str("MMIO"),
        P2mEntry::Absent { .. } => answer.write_str("RAM that is not in memory"),
        P2mEntry::Hole => answer.write_str("unmapped"),
    }
}

fn rights(rights: Rights) -> &'static str {
    match (rights.contains(Rights::WRITE), rights.contains(Rights::EXECUTE)) {
        _ if rights.is_empty() => "no access",
        (true, true) => "read, write, execute",
        (true, false) => "read, write",
        (false, true) => "read, execute",
        (false, false) => "read",
    }
}

/// The guest's page-table walk for a linear address.
pub fn walk<V: Virt, M: HostMemory>(
    view: &View<'_, V, M>,
    place: Place,
    answer: &mut dyn Write,
) -> fmt::Result {
    let at = Gva(resolve(view, place, true));
    let Some(state) = paging(view) else { return Ok(()) };
    let kind = match state.kind() {
        PagingKind::Off => "no paging",
        PagingKind::TwoLevel => "2-level paging",
        PagingKind::Pae => "3-level paging (PAE)",
        PagingKind::FourLevel => "4-level paging",
    };
    writeln!(answer, "linear {at}: {kind}, CR3 {:#x}", state.cr3)?;
    if state.kind() == PagingKind::FourLevel && !is_canonical(at) {
        return writeln!(answer, "not canonical: an access takes #GP");
    }
    let mut steps = ArrayVec::<Step, 4>::new();
    let memory = view.vm.memory.read();
    let found = guest_walk::walk(&state, &memory.ram(), at, Access::READ, false, |step| {
        // A walk that starts again shows the root again.
        if steps.is_full() || steps.last().is_some_and(|last| last.level <= step.level) {
            steps.clear();
        }
        steps.push(step);
    });
    for Step { level, at, raw, leaf } in steps {
        let kind = if leaf {
            "leaf"
        } else if raw & x86::PRESENT != 0 {
            "table"
        } else {
            "not present"
        };
        writeln!(answer, "  level {level} at {:012x}: {raw:016x} {kind}", at)?;
    }
    match found {
        Ok(page) => {
            writeln!(answer, "  guest-physical {}: {}", page.gpa, Page(&page))?;
            write!(answer, "  ")?;
            what(memory.p2m.peek(page.gpa), answer)?;
            writeln!(answer)
        }
        Err(error) => writeln!(answer, "  {}", Unmapped(error)),
    }
}

/// What the guest's tables say about a page.
struct Page<'a>(&'a Translation);

impl fmt::Display for Page<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let page = self.0;
        let flag = |set, name| if set { name } else { "" };
        write!(
            f,
            "{} page, {}{}{}{}{}, PAT {}",
            Bytes(1 << page.page_shift),
            if page.user { "user" } else { "supervisor" },
            flag(page.writable, ", write"),
            flag(page.executable, ", execute"),
            flag(page.global, ", global"),
            flag(page.dirty, ", dirty"),
            page.pat
        )
    }
}

/// Why a linear address is not mapped.
struct Unmapped(WalkError);

impl fmt::Display for Unmapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            WalkError::PageFault(code) => write!(f, "not mapped: a read takes #PF with error code {code:#x}"),
            WalkError::NotRam { table } => write!(f, "the table at {table} is outside RAM"),
            WalkError::Contended => write!(f, "another VCPU keeps changing the tables"),
        }
    }
}

/// Memory at a linear address.
pub fn dump<V: Virt, M: HostMemory>(
    view: &View<'_, V, M>,
    place: Place,
    bytes: u64,
    answer: &mut dyn Write,
) -> fmt::Result {
    let start = resolve(view, place, true);
    let Some(state) = paging(view) else { return Ok(()) };
    let memory = view.vm.memory.read();
    let ram = memory.ram();
    rows(start, bytes, answer, |at, row, answer| {
        let mut done = 0;
        while done < row.len() {
            let at = Gva(at.wrapping_add(done as u64));
            if state.kind() == PagingKind::FourLevel && !is_canonical(at) {
                writeln!(answer, "{at}: not canonical")?;
                return Ok(false);
            }
            let gpa = match guest_walk::peek(&state, &ram, at, Access::READ) {
                Ok(found) => found.gpa,
                Err(error) => {
                    writeln!(answer, "{at}: {}", Unmapped(error))?;
                    return Ok(false);
                }
            };
            let len = (row.len() - done).min((PAGE_SIZE - at.offset()) as usize);
            if let Err(NotRam { gpa }) = ram.read(gpa, &mut row[done..done + len]) {
                writeln!(answer, "{at}: guest-physical {gpa} is not RAM or ROM")?;
                return Ok(false);
            }
            done += len;
        }
        Ok(true)
    })
}

/// Memory at a guest-physical address.
pub fn dump_physical<V: Virt, M: HostMemory>(
    view: &View<'_, V, M>,
    place: Place,
    bytes: u64,
    answer: &mut dyn Write,
) -> fmt::Result {
    let start = resolve(view, place, false);
    let memory = view.vm.memory.read();
    rows(start, bytes, answer, |at, row, answer| match memory.ram().read(Gpa(at), row) {
        Ok(()) => Ok(true),
        Err(NotRam { gpa }) => {
            writeln!(answer, "{gpa}: not RAM or ROM; `p2m {gpa:x}` shows what is mapped there")?;
            Ok(false)
        }
    })
}

/// Writes rows of 16 bytes as `read` fills them, until it reports why it cannot.
fn rows(
    start: u64,
    bytes: u64,
    answer: &mut dyn Write,
    mut read: impl FnMut(u64, &mut [u8], &mut dyn Write) -> Result<bool, fmt::Error>,
) -> fmt::Result {
    let mut done = 0;
    while done < bytes {
        let at = start.wrapping_add(done);
        let mut row = [0; 16];
        let row = &mut row[..(bytes - done).min(16) as usize];
        if !read(at, row, answer)? {
            break;
        }
        write!(answer, "{at:016x} ")?;
        for column in 0..16 {
            match row.get(column) {
                Some(byte) => write!(answer, " {byte:02x}")?,
                None => answer.write_str("   ")?,
            }
        }
        answer.write_str("  ")?;
        for &byte in row.iter() {
            answer.write_char(if byte.is_ascii_graphic() || byte == b' ' {
                char::from(byte)
            } else {
                '.'
            })?;
        }
        writeln!(answer)?;
        done += 16;
    }
    Ok(())
}

/// The paging of VCPU 0, as a debugger uses it: SMAP does not keep it out of the guest's user pages.
fn paging<V: Virt, M: HostMemory>(view: &View<'_, V, M>) -> Option<PagingState> {
    let state = PagingState::of(&view.vcpus.first()?.virt, view.vm.paging_features);
    Some(PagingState { cr4: state.cr4 & !cr4::SMAP, ..state })
}

/// Resolves a place to an address, by the registers of VCPU 0.
fn resolve<V: Virt, M: HostMemory>(view: &View<'_, V, M>, place: Place, linear: bool) -> u64 {
    let Some(state) = view.vcpus.first().map(|vcpu| &vcpu.virt) else { return 0 };
    let based = |value: u64, seg| match linear && !state.is_64bit() {
        true => state.segment(seg).base.wrapping_add(value) & 0xffff_ffff,
        false => value,
    };
    match place {
        Place::At(address) => address,
        Place::Rip => based(state.rip(), SegReg::Cs),
        Place::Gpr(Gpr::Rsp) => based(state.gpr(Gpr::Rsp), SegReg::Ss),
        Place::Gpr(gpr) => state.gpr(gpr),
        Place::Cr2 => state.cr2(),
        Place::Cr3 => state.cr3() & x86::ADDRESS,
    }
}
