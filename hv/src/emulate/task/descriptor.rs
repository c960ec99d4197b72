//! Segment descriptors of legacy protected mode in their tables (AMD APM 2, 4.7; Intel SDM 3, 3.4.5).

use super::super::Memory;
use super::Res;
use crate::arch::addr::Gva;
use crate::arch::state::TableReg;
use crate::arch::{Access, Segment};

/// The busy bit of a TSS descriptor's type.
pub const BUSY: u16 = 2;

/// Byte of a descriptor that holds type, S, DPL and P.
const RIGHTS: u64 = 5;

/// The accessed bit of a code or data descriptor's type.
const ACCESSED: u8 = 1;

/// A table of descriptors: linear base, and limit in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// Linear address of the first one.
    pub base: u64,
    /// Offset of the last byte.
    pub limit: u32,
}

impl From<TableReg> for Table {
    fn from(register: TableReg) -> Table {
        Table { base: register.base, limit: register.limit.into() }
    }
}

/// Where a selector's descriptor is in its table, if it lies within that.
pub fn address(table: &Table, selector: u16) -> Option<Gva> {
    let offset = u32::from(selector & !7);
    (offset + 7 <= table.limit).then(|| Gva(table.base.wrapping_add(offset.into()) & 0xffff_ffff))
}

/// A descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor(pub u64);

impl Descriptor {
    /// Reads one.
    pub fn read<M: Memory>(mem: &mut M, at: Gva) -> Res<Descriptor, M> {
        let mut bytes = [0; 8];
        mem.read(at, &mut bytes, Access::READ)?;
        Ok(Descriptor(u64::from_le_bytes(bytes)))
    }

    /// Type, S, DPL and P.
    pub const fn kind(self) -> u8 {
        (self.0 >> 40) as u8
    }

    pub const fn is_present(self) -> bool {
        self.kind() & 0x80 != 0
    }

    pub const fn dpl(self) -> u8 {
        self.kind() >> 5 & 3
    }

    /// Whether it is one of code or data.
    pub const fn is_memory(self) -> bool {
        self.kind() & 0x10 != 0
    }

    pub const fn is_code(self) -> bool {
        self.kind() & 0x18 == 0x18
    }

    pub const fn is_conforming(self) -> bool {
        self.kind() & 0x1c == 0x1c
    }

    pub const fn is_writable_data(self) -> bool {
        self.kind() & 0x1a == 0x12
    }

    pub const fn is_readable(self) -> bool {
        self.is_memory() && (!self.is_code() || self.kind() & 2 != 0)
    }

    pub const fn is_ldt(self) -> bool {
        self.kind() & 0x1f == 2
    }

    /// Whether it is busy, if it is a TSS.
    pub const fn is_tss(self) -> Option<bool> {
        match self.kind() & 0x1f {
            0x1 | 0x9 => Some(false),
            0x3 | 0xb => Some(true),
            _ => None,
        }
    }

    pub const fn base(self) -> u64 {
        self.0 >> 16 & 0xff_ffff | self.0 >> 56 << 24
    }

    /// The limit in bytes.
    pub const fn limit(self) -> u32 {
        let limit = (self.0 & 0xffff | self.0 >> 32 & 0xf_0000) as u32;
        if self.0 >> 55 & 1 != 0 { limit << 12 | 0xfff } else { limit }
    }

    /// The segment register that it loads.
    pub const fn segment(self, selector: u16) -> Segment {
        let attributes = (self.0 >> 40 & 0xff | self.0 >> 44 & 0xf00) as u16;
        Segment { selector, attributes, limit: self.limit(), base: self.base() }
    }

    /// Marks the code or data descriptor that was read from `at` as accessed.
    pub fn access<M: Memory>(self, mem: &mut M, at: Gva) -> Res<Descriptor, M> {
        if self.kind() & ACCESSED == 0 {
            mem.write(at.wrapping_add(RIGHTS), &[self.kind() | ACCESSED], Access::WRITE)?;
        }
        Ok(Descriptor(self.0 | u64::from(ACCESSED) << 40))
    }

    /// Changes the busy bit of the TSS descriptor at `at`.
    pub fn set_busy<M: Memory>(mem: &mut M, at: Gva, busy: bool) -> Res<(), M> {
        let at = at.wrapping_add(RIGHTS);
        let mut kind = [0];
        mem.read(at, &mut kind, Access::WRITE)?;
        let bit = BUSY as u8;
        let changed = kind[0] & !bit | if busy { bit } else { 0 };
        mem.write(at, &[changed], Access::WRITE)
    }
}
