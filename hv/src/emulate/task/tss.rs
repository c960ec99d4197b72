//! The two layouts of a task state segment (AMD APM 2, 12.2.3 and 12.2.4; Intel SDM 3, 7.2.1 and 7.6).

use super::super::Memory;
use super::Res;
use crate::arch::addr::Gva;
use crate::arch::{Access, Gpr, SegReg, VcpuState};

/// Selectors in the order in which a TSS holds them, the LDT's apart.
pub const SELECTORS: [SegReg; 6] = [SegReg::Es, SegReg::Cs, SegReg::Ss, SegReg::Ds, SegReg::Fs, SegReg::Gs];

/// Where things are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Of the 80286.
    Bits16,
    /// Of the 80386.
    Bits32,
}

/// What a TSS holds of a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Image {
    pub cr3: Option<u32>,
    pub eip: u32,
    pub eflags: u32,
    pub gprs: [u32; 8],
    /// In the order of [`SELECTORS`].
    pub selectors: [u16; 6],
    pub ldt: u16,
    /// A debug trap on arrival.
    pub trap: bool,
}

impl Layout {
    /// That of a TSS whose descriptor has this type.
    pub const fn of(kind: u8) -> Layout {
        if kind & 8 != 0 { Layout::Bits32 } else { Layout::Bits16 }
    }

    /// The least limit of the segment.
    pub const fn limit(self) -> u32 {
        match self {
            Layout::Bits16 => 43,
            Layout::Bits32 => 103,
        }
    }

    /// The size of a register in bytes.
    pub const fn word(self) -> u32 {
        match self {
            Layout::Bits16 => 2,
            Layout::Bits32 => 4,
        }
    }

    /// Offset of the instruction pointer, which flags, general registers and selectors follow, one word each.
    const fn first(self) -> u64 {
        match self {
            Layout::Bits16 => 0x0e,
            Layout::Bits32 => 0x20,
        }
    }

    /// How many selectors there are, the LDT's apart.
    const fn selectors(self) -> usize {
        match self {
            Layout::Bits16 => 4,
            Layout::Bits32 => 6,
        }
    }

    fn at(self, base: u64, index: usize) -> Gva {
        let offset = self.first() + index as u64 * u64::from(self.word());
        Gva(base.wrapping_add(offset) & 0xffff_ffff)
    }

    fn get<M: Memory>(self, mem: &mut M, base: u64, index: usize) -> Res<u32, M> {
        word(mem, self.at(base, index), self.word())
    }

    /// Reads the TSS at `base`.
    pub fn read<M: Memory>(self, mem: &mut M, base: u64) -> Res<Image, M> {
        let mut image =
            Image { eip: self.get(mem, base, 0)?, eflags: self.get(mem, base, 1)?, ..Image::default() };
        // What an 80286 does not have: all ones above the general registers, null selectors.
        let upper = if self == Layout::Bits16 { 0xffff_0000 } else { 0 };
        for (n, value) in image.gprs.iter_mut().enumerate() {
            *value = self.get(mem, base, 2 + n)? | upper;
        }
        let (from, count) = (10, self.selectors());
        for (n, value) in image.selectors.iter_mut().take(count).enumerate() {
            *value = self.get(mem, base, from + n)? as u16;
        }
        image.ldt = self.get(mem, base, from + count)? as u16;
        if self == Layout::Bits32 {
            let fixed = |offset: u64| Gva(base.wrapping_add(offset) & 0xffff_ffff);
            image.cr3 = Some(word(mem, fixed(0x1c), 4)?);
            image.trap = word(mem, fixed(0x64), 2)? & 1 != 0;
        }
        Ok(image)
    }

    /// Takes the fault that [`Layout::save`] would.
    pub fn probe<M: Memory>(self, mem: &mut M, base: u64) -> Res<(), M> {
        let len = (2 + 8 + self.selectors()) * self.word() as usize;
        mem.probe(self.at(base, 0), len, Access::WRITE)
    }

    /// Saves the registers in the TSS at `base`. CR3 and the selector of the LDT are not saved.
    pub fn save<M: Memory>(
        self,
        mem: &mut M,
        base: u64,
        state: &impl VcpuState,
        eip: u32,
        eflags: u32,
    ) -> Res<(), M> {
        let size = self.word() as usize;
        let values = [eip, eflags].into_iter().chain(Gpr::ALL[..8].iter().map(|&reg| state.gpr(reg) as u32));
        for (n, value) in values.enumerate() {
            mem.write(self.at(base, n), &value.to_le_bytes()[..size], Access::WRITE)?;
        }
        for (n, &reg) in SELECTORS[..self.selectors()].iter().enumerate() {
            let selector = state.segment(reg).selector.to_le_bytes();
            mem.write(self.at(base, 10 + n), &selector, Access::WRITE)?;
        }
        Ok(())
    }
}

/// Reads 2 or 4 bytes.
fn word<M: Memory>(mem: &mut M, at: Gva, size: u32) -> Res<u32, M> {
    let mut bytes = [0; 4];
    mem.read(at, &mut bytes[..size as usize], Access::READ)?;
    Ok(u32::from_le_bytes(bytes))
}
