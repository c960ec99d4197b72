//! What the manuals say that an access does: a page walk as a function of registers and memory.
//!
//! Intel SDM 3, chapter 4; AMD APM 2, chapter 5. Written for this kit alone; it shares nothing with the hypervisor's walker.

use crate::machine::insn::cpuid;
use crate::machine::step;

/// How addresses are translated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Not at all.
    Off,
    /// 32-bit paging: two levels of 4-byte entries.
    Two,
    /// PAE paging: four pointers, two levels.
    Pae,
    /// 4-level paging.
    Four,
}

/// The registers that matter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Setup {
    /// CR0.PG, CR4.PAE, EFER.LME.
    pub kind: Kind,
    /// CR0.WP
    pub wp: bool,
    /// EFER.NXE
    pub nxe: bool,
    /// CR4.SMEP
    pub smep: bool,
    /// CR4.SMAP
    pub smap: bool,
    /// CR4.PGE
    pub pge: bool,
    /// CR4.PSE
    pub pse: bool,
    /// CR4.PCIDE
    pub pcid: bool,
}

impl Setup {
    /// Everything strict that the processor has, and nothing that distinguishes user pages.
    pub const fn new(kind: Kind) -> Self {
        Setup { kind, wp: true, nxe: true, smep: false, smap: false, pge: false, pse: true, pcid: false }
    }

    /// One of 16 combinations of WP, NXE, SMEP, SMAP, as far as the processor has them.
    pub fn numbered(kind: Kind, number: u32, cpu: &Cpu) -> Self {
        let bit = |n: u32| number >> n & 1 != 0;
        Setup {
            wp: bit(0),
            nxe: bit(1),
            smep: bit(2) && cpu.smep,
            smap: bit(3) && cpu.smap,
            // CR4.PSE matters in 32-bit paging only, where NXE does not.
            pse: bit(1),
            ..Setup::new(kind)
        }
    }

    /// CR0
    pub fn cr0(&self) -> u64 {
        0x33 | u64::from(self.wp) << 16 | u64::from(self.kind != Kind::Off) << 31
    }

    /// CR4
    pub fn cr4(&self) -> u64 {
        let pae = matches!(self.kind, Kind::Pae | Kind::Four);
        [(4, self.pse), (5, pae), (7, self.pge), (17, self.pcid), (20, self.smep), (21, self.smap)]
            .into_iter()
            .fold(0x600, |cr4, (bit, on)| cr4 | u64::from(on) << bit)
    }

    /// EFER.NXE, at its place
    pub fn efer(&self) -> u64 {
        u64::from(self.nxe) << 11
    }
}

/// What the processor has.
#[derive(Clone, Copy)]
pub struct Cpu {
    /// Bits of a physical address.
    pub width: u32,
    /// 1 GiB pages.
    pub gib_pages: bool,
    /// CR4.SMEP exists.
    pub smep: bool,
    /// CR4.SMAP exists.
    pub smap: bool,
    /// It is QEMU's emulation, whose LOCK XADD reads before it asks for the right to write, for one.
    pub tcg: bool,
}

impl Cpu {
    /// This one.
    pub fn here(tcg: bool) -> Self {
        let [_, ebx, ..] = cpuid(7, 0);
        Cpu {
            width: cpuid(0x8000_0008, 0)[0] & 0xff,
            gib_pages: cpuid(0x8000_0001, 0)[3] >> 26 & 1 != 0,
            smep: ebx >> 7 & 1 != 0,
            smap: ebx >> 20 & 1 != 0,
            tcg,
        }
    }
}

/// Error code bits.
#[allow(missing_docs)]
pub mod error {
    pub const PRESENT: u32 = 1;
    pub const WRITE: u32 = 2;
    pub const USER: u32 = 4;
    pub const RESERVED: u32 = 8;
    pub const FETCH: u32 = 16;
}

/// What comes of an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Walk {
    /// The physical address, or the error code of the page fault.
    pub result: Result<u64, u32>,
    /// The entries that it set bits in or found set: where and what they hold afterwards.
    entries: [(u64, u64); 4],
    count: usize,
    /// Bytes of an entry.
    pub bytes: u64,
    /// It faulted at a 1 GiB page, which QEMU's emulation marks as accessed before it checks anything.
    pub at_gib_page: bool,
}

impl Walk {
    /// The entries that the walk went through, as they are afterwards.
    pub fn entries(&self) -> &[(u64, u64)] {
        &self.entries[..self.count]
    }
}

/// The lowest address bit that each level translates, from the root down.
pub fn shifts(kind: Kind) -> &'static [u32] {
    match kind {
        Kind::Off => &[],
        Kind::Two => &[22, 12],
        Kind::Pae => &[30, 21, 12],
        Kind::Four => &[39, 30, 21, 12],
    }
}

/// Bytes of an entry.
pub fn entry_bytes(kind: Kind) -> u64 {
    if kind == Kind::Two { 4 } else { 8 }
}

/// Where in the table at `table` the entry for an address is.
pub fn entry_at(kind: Kind, shift: u32, table: u64, address: u64) -> u64 {
    let entries = match (kind, shift) {
        (Kind::Two, _) => 1024,
        (Kind::Pae, 30) => 4,
        _ => 512,
    };
    table + (address >> shift) % entries * entry_bytes(kind)
}

/// Bits a to b, both included.
const fn bits(a: u32, b: u32) -> u64 {
    if a > b { 0 } else { (u64::MAX >> (63 - b)) & (u64::MAX << a) }
}

/// Whether a present entry is a leaf.
fn is_leaf(setup: &Setup, cpu: &Cpu, shift: u32, raw: u64) -> bool {
    let large = raw >> 7 & 1 != 0;
    match (setup.kind, shift) {
        (_, 12) => true,
        (Kind::Two, _) => large && setup.pse,
        (_, 21) => large,
        (Kind::Four, 30) => large && cpu.gib_pages,
        _ => false,
    }
}

/// The bits of a present entry that must be zero.
fn reserved(setup: &Setup, cpu: &Cpu, shift: u32, leaf: bool) -> u64 {
    if setup.kind == Kind::Two {
        // PSE-36: bits 20:13 are address bits 39:32; 21 is always reserved.
        return if leaf && shift == 22 { bits(21, 21) | bits(13 + cpu.width.max(32) - 32, 20) } else { 0 };
    }
    let mut reserved = bits(cpu.width, 51);
    if !setup.nxe {
        reserved |= bits(63, 63);
    }
    if setup.kind == Kind::Pae {
        reserved |= bits(52, 62);
        if shift == 30 {
            // The emulation takes bit 5 of a pointer for an accessed bit, and sets it.
            let low = bits(1, 2) | bits(5 + u32::from(cpu.tcg), 8);
            return reserved | bits(63, 63) | low;
        }
    }
    if leaf && shift > 12 {
        reserved |= bits(13, shift - 1);
    }
    if shift == 39 || (shift == 30 && !cpu.gib_pages) {
        reserved |= bits(7, 7);
    }
    reserved
}

/// The address in an entry; PAT of a large page is not part of it.
fn address_of(setup: &Setup, cpu: &Cpu, shift: u32, leaf: bool, raw: u64) -> u64 {
    let low = if leaf { shift } else { 12 };
    match setup.kind {
        Kind::Two if leaf && shift == 22 => raw & bits(22, 31) | (raw >> 13 & 0xff) << 32,
        Kind::Two => raw & bits(12, 31),
        _ => raw & bits(low, cpu.width - 1),
    }
}

/// An access with `op` (of [`step`]) to `address`, in tables under CR3 = `root` that `memory` reads (address, bytes).
pub fn walk(
    setup: &Setup,
    cpu: &Cpu,
    root: u64,
    memory: impl Fn(u64, u64) -> u64,
    op: u32,
    address: u64,
) -> Walk {
    let bytes = entry_bytes(setup.kind);
    let mut walk = Walk { result: Ok(address), entries: [(0, 0); 4], count: 0, bytes, at_gib_page: false };
    let (user, write, fetch) = (op & step::USER != 0, op & 1 != 0, op & 3 == step::EXECUTE);
    let fault = |kind: u32| {
        let id = fetch && (setup.smep || (setup.nxe && matches!(setup.kind, Kind::Pae | Kind::Four)));
        Err(kind
            | if user { error::USER } else { 0 }
            | if write { error::WRITE } else { 0 }
            | if id { error::FETCH } else { 0 })
    };
    let mut table = match setup.kind {
        Kind::Off => return walk,
        Kind::Two => root & bits(12, 31),
        Kind::Pae => root & bits(5, 31),
        Kind::Four => root & bits(12, cpu.width - 1),
    };
    let (mut writable, mut for_user, mut executable) = (true, true, true);
    for &shift in shifts(setup.kind) {
        let at = entry_at(setup.kind, shift, table, address);
        // A walk can meet an entry twice, if tables contain themselves.
        let seen = walk.entries().iter().rev().find(|entry| entry.0 == at).map(|entry| entry.1);
        let raw = seen.unwrap_or_else(|| memory(at, bytes));
        if raw & 1 == 0 {
            walk.result = fault(0);
            return walk;
        }
        let leaf = is_leaf(setup, cpu, shift, raw);
        walk.at_gib_page = leaf && shift == 30;
        if raw & reserved(setup, cpu, shift, leaf) != 0 {
            walk.result = fault(error::PRESENT | error::RESERVED);
            return walk;
        }
        let pointer = setup.kind == Kind::Pae && shift == 30;
        if !pointer {
            writable &= raw >> 1 & 1 != 0;
            for_user &= raw >> 2 & 1 != 0;
            executable &= raw >> 63 == 0;
        }
        let mut after = if pointer { raw } else { raw | 1 << 5 };
        table = address_of(setup, cpu, shift, leaf, raw);
        if leaf {
            let allowed = if user {
                for_user && (!write || writable) && (!fetch || executable)
            } else if fetch {
                executable && !(setup.smep && for_user)
            } else {
                let smap = setup.smap && for_user && op & step::AC == 0;
                !smap && (!write || writable || !setup.wp)
            };
            if !allowed {
                walk.result = fault(error::PRESENT);
                return walk;
            }
            after |= u64::from(write) << 6;
            walk.result = Ok(table | address & bits(0, shift - 1));
        }
        walk.entries[walk.count] = (at, after);
        walk.count += 1;
        if leaf {
            break;
        }
    }
    walk
}
