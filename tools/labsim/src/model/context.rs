//! What a processor runs: control registers, and the parts of a VM control block that decide about translation.

use abi::agile::{VMCB_OFFSET, Words};

use super::{
    memory::Memory,
    walk::{Agile, Format},
};

/// Control registers that decide about translation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Control {
    /// CR0.
    pub cr0: u64,
    /// CR3.
    pub cr3: u64,
    /// CR4.
    pub cr4: u64,
    /// EFER.
    pub efer: u64,
}

const CR0_WP: u64 = 1 << 16;
const CR0_PG: u64 = 1 << 31;
const CR4_PSE: u64 = 1 << 4;
const CR4_PAE: u64 = 1 << 5;
const CR4_PGE: u64 = 1 << 7;
const CR4_LA57: u64 = 1 << 12;
const EFER_LMA: u64 = 1 << 10;

impl Control {
    /// The kind of page tables; `None` for five levels, which the model does not know.
    pub fn format(&self) -> Option<Format> {
        Some(match self {
            _ if self.cr0 & CR0_PG == 0 => Format::Off,
            _ if self.cr4 & CR4_PAE == 0 => Format::TwoLevel { pse: self.cr4 & CR4_PSE != 0 },
            _ if self.efer & EFER_LMA == 0 => Format::Pae,
            _ if self.cr4 & CR4_LA57 != 0 => return None,
            _ => Format::Long,
        })
    }

    /// Entries may be global.
    pub fn has_global_pages(&self) -> bool {
        self.cr4 & CR4_PGE != 0
    }

    /// Whether a change to `other` empties the TLBs, global pages included (APM 2, 5.5.2).
    pub fn flushes(&self, other: &Control) -> bool {
        (self.cr0 ^ other.cr0) & CR0_PG != 0 || (self.cr4 ^ other.cr4) & (CR4_PSE | CR4_PAE | CR4_PGE) != 0
    }
}

/// What VMRUN flushes (APM 2, 15.16.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlbControl {
    /// Nothing.
    Nothing,
    /// All.
    All,
    /// Everything of the guest's ASID.
    Asid,
    /// What is not global of the guest's ASID.
    AsidNonGlobal,
}

/// What the model takes from a VM control block (APM 2, appendix B).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vmcb {
    /// The guest's address space identifier.
    pub asid: u32,
    /// What is flushed.
    pub tlb_control: TlbControl,
    /// The nested tables' root, if nested paging is on.
    pub nested: Option<u64>,
    /// The guest's registers.
    pub control: Control,
    /// Agile paging, if that is in force.
    pub agile: Option<AgileEntry>,
}

/// What VMRUN says of agile paging.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgileEntry {
    /// How the guest is translated. `None` where its tables have fewer than four levels: they are only shadowed.
    pub agile: Option<Agile>,
    /// The exit before stood in for what the proposed processor does by itself; with the exit's code (AMD APM 2, appendix C).
    pub stand_in: Option<u64>,
}

/// Exit codes of what a guest of the proposed processor executes itself: writes of CR3, and INVLPG.
pub const EXIT_WRITE_CR3: u64 = 0x13;
/// See above.
pub const EXIT_INVLPG: u64 = 0x79;

impl Vmcb {
    /// Reads it; `None` where there is no memory.
    pub fn read(memory: &impl Memory, pa: u64) -> Option<Vmcb> {
        let word = |offset: u64| memory.read_u64((pa & !0xfff) + offset);
        let save = |offset: u64| word(0x400 + offset);
        let asid = word(0x58)?;
        let tlb_control = match asid >> 32 & 7 {
            1 => TlbControl::All,
            3 => TlbControl::Asid,
            7 => TlbControl::AsidNonGlobal,
            _ => TlbControl::Nothing,
        };
        let nested = if word(0x90)? & 1 != 0 { Some(word(0xb0)?) } else { None };
        let control = Control { cr0: save(0x158)?, cr3: save(0x150)?, cr4: save(0x148)?, efer: save(0xd0)? };
        let agile = Self::agile(&word, &control)?;
        Some(Vmcb { asid: asid as u32, tlb_control, nested, control, agile })
    }

    /// The hypervisor's words in the bytes that are its own; one word is read if it is another hypervisor's.
    fn agile(word: &impl Fn(u64) -> Option<u64>, control: &Control) -> Option<Option<AgileEntry>> {
        let at = |index: u64| word(VMCB_OFFSET as u64 + 8 * index);
        let state = Words { state: at(0)?, ..Words::default() };
        if !state.is_valid() {
            return Some(None);
        }
        let words = Words { guest_cr3: at(1)?, nested_root: at(2)?, ..state };
        let agile = Agile::of(&words, control.cr0 & CR0_WP != 0);
        let agile = agile.filter(|_| control.format() == Some(Format::Long));
        let stand_in = if words.is_stand_in() { Some(word(0x70)?) } else { None };
        Some(Some(AgileEntry { agile, stand_in }))
    }

    /// Whether the exit that the control block reports came before the guest's last instruction was executed, if that is one that
    /// the model follows: it was intercepted, or raised an exception that is (AMD APM 2, appendix C). All other exits, such as
    /// those for interrupts, come after it. `None` where there is no memory.
    pub fn intercepted(memory: &impl Memory, pa: u64) -> Option<bool> {
        let code = memory.read_u64((pa & !0xfff) + 0x70)?;
        // Control registers, #UD, #GP, CR0 selectively, INVLPG, INVLPGA, MSRs, VMRUN, INVPCID.
        Some(matches!(code, 0..=0x1f | 0x46 | 0x4d | 0x65 | 0x79 | 0x7a | 0x7c | 0x80 | 0xa2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_tables() {
        let format = |cr0, cr4, efer| Control { cr0, cr3: 0, cr4, efer }.format();
        assert_eq!(format(0x11, CR4_PAE, 0x500), Some(Format::Off));
        assert_eq!(format(CR0_PG, 0, 0), Some(Format::TwoLevel { pse: false }));
        assert_eq!(format(CR0_PG, CR4_PSE, 0), Some(Format::TwoLevel { pse: true }));
        assert_eq!(format(CR0_PG, CR4_PAE, 0), Some(Format::Pae));
        assert_eq!(format(CR0_PG, CR4_PAE, EFER_LMA), Some(Format::Long));
        assert_eq!(format(CR0_PG, CR4_PAE | CR4_LA57, EFER_LMA), None);
    }

    struct Block;
    impl Memory for Block {
        fn read_u64(&self, pa: u64) -> Option<u64> {
            Some(match pa.checked_sub(0x7000)? {
                0x58 => 3 << 32 | 9,
                0x90 => 1,
                0xb0 => 0x5000,
                0x4d0 => 0x500,
                0x548 => 0x20,
                0x550 => 0x1234_5000,
                0x558 => 0x8000_0011,
                _ => 0,
            })
        }
    }

    #[test]
    fn control_blocks() {
        let control = Control { cr0: 0x8000_0011, cr3: 0x1234_5000, cr4: 0x20, efer: 0x500 };
        let vmcb =
            Vmcb { asid: 9, tlb_control: TlbControl::Asid, nested: Some(0x5000), control, agile: None };
        assert_eq!(Vmcb::read(&Block, 0x7000), Some(vmcb));
        assert_eq!(Vmcb::read(&Block, 0x1000), None);
    }

    #[test]
    fn agile_paging_is_read_where_it_is_in_force() {
        use crate::model::walk::Root;
        struct Words([u64; 3], u64);
        impl Memory for Words {
            fn read_u64(&self, pa: u64) -> Option<u64> {
                Some(match pa.checked_sub(0x7000)? {
                    0x70 => EXIT_INVLPG,
                    0x3e0 => self.0[0],
                    0x3e8 => self.0[1],
                    0x3f0 => self.0[2],
                    0x4d0 => self.1,
                    0x548 => CR4_PAE,
                    0x558 => CR0_PG | CR0_WP,
                    _ => 0,
                })
            }
        }
        let read = |words: abi::agile::Words, efer| {
            let words = [words.state, words.guest_cr3, words.nested_root];
            Vmcb::read(&Words(words, efer), 0x7000).unwrap().agile
        };
        let new = abi::agile::Words::new;
        let agile = Agile { guest_cr3: 0x1000, nested_root: 0x2000, root: Root::Shadow, write_protect: true };
        let entry = AgileEntry { agile: Some(agile), stand_in: None };
        assert_eq!(read(new(false, false, 0x1000, 0x2000), EFER_LMA), Some(entry));
        let stand_in = AgileEntry { stand_in: Some(EXIT_INVLPG), ..entry };
        assert_eq!(read(new(true, false, 0x1000, 0x2000), EFER_LMA), Some(stand_in));
        assert_eq!(read(new(true, true, 0x1000, 0x2000), 0), Some(AgileEntry { agile: None, ..stand_in }));
        let other = abi::agile::Words { state: 1 << 32 | 1, guest_cr3: 0x1000, ..Default::default() };
        assert_eq!(read(other, EFER_LMA), None);
    }

    #[test]
    fn interrupts_come_after_an_instruction() {
        struct Ended(u64);
        impl Memory for Ended {
            fn read_u64(&self, pa: u64) -> Option<u64> {
                (pa == 0x7070).then_some(self.0)
            }
        }
        let intercepted = |code| Vmcb::intercepted(&Ended(code), 0x7008);
        // A write of CR3, INVLPG, WRMSR; INTR, NMI, a nested page fault of what comes next.
        assert_eq!([0x13, 0x79, 0x7c].map(intercepted), [Some(true); 3]);
        assert_eq!([0x60, 0x61, 0x400].map(intercepted), [Some(false); 3]);
        assert_eq!(Vmcb::intercepted(&Ended(0), 0x9000), None);
    }
}
