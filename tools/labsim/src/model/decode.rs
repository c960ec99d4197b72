//! Which instructions matter to translation and time, from their bytes (AMD APM 3, appendix A).

use abi::lab::{MARK_BEGIN, MARK_END, MARK_MODEL};

/// What an instruction does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// MOV to a control register.
    MovCr(u8),
    /// INVLPG.
    Invlpg(Operand),
    /// INVLPGA: the page in RAX, of the ASID in ECX.
    Invlpga,
    /// INVPCID.
    Invpcid,
    /// VMRUN: the control block is at RAX.
    Vmrun,
    /// WRMSR: the register in ECX.
    Wrmsr,
    /// A program's mark: the region in RAX begins.
    Begin,
    /// It ends.
    End,
    /// What follows is modelled.
    Model,
}

/// A memory operand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Operand {
    /// Base register.
    pub base: Option<u8>,
    /// Index register.
    pub index: Option<u8>,
    /// Logarithm of the index' factor.
    pub scale: u8,
    /// Displacement.
    pub displacement: i64,
    /// 1 for FS, 2 for GS: their bases count in long mode.
    pub segment: u8,
    /// Relative to the next instruction (64-bit mode) or absolute (32-bit mode).
    pub relative: bool,
    /// 16-bit addressing, or a prefix that changes the address size: the address is not worked out.
    pub unusual: bool,
}

/// Decodes. `wide`: 64-bit mode, in which 40 to 4f are REX prefixes. Anything else is `None`.
pub fn decode(bytes: &[u8], wide: bool) -> Option<Operation> {
    let (mut rex, mut segment, mut unusual, mut rest) = (0, 0, false, bytes);
    loop {
        let (first, tail) = rest.split_first()?;
        match first {
            0x66 | 0xf0 | 0xf2 | 0xf3 | 0x26 | 0x2e | 0x36 | 0x3e => rex = 0,
            0x64 => (segment, rex) = (1, 0),
            0x65 => (segment, rex) = (2, 0),
            0x67 => (unusual, rex) = (true, 0),
            0x40..=0x4f if wide => rex = *first,
            _ => break,
        }
        rest = tail;
    }
    let [0x0f, opcode, operands @ ..] = rest else { return None };
    match (opcode, operands) {
        (0x30, _) => Some(Operation::Wrmsr),
        (0x22, [modrm, ..]) => Some(Operation::MovCr((modrm >> 3 & 7) | (rex & 4) << 1)),
        (0x38, [0x82, ..]) => Some(Operation::Invpcid),
        (0x01, [0xd8, ..]) => Some(Operation::Vmrun),
        (0x01, [0xdf, ..]) => Some(Operation::Invlpga),
        (0x1f, [0x84, 0x00, tail @ ..]) => match u32::from_le_bytes(*tail.first_chunk()?) {
            MARK_BEGIN => Some(Operation::Begin),
            MARK_END => Some(Operation::End),
            MARK_MODEL => Some(Operation::Model),
            _ => None,
        },
        (0x01, [modrm, tail @ ..]) if modrm >> 6 != 3 && modrm >> 3 & 7 == 7 => {
            let operand = operand(*modrm, tail, rex)?;
            Some(Operation::Invlpg(Operand { segment, unusual, ..operand }))
        }
        _ => None,
    }
}

fn operand(modrm: u8, mut tail: &[u8], rex: u8) -> Option<Operand> {
    let (mode, rm) = (modrm >> 6, modrm & 7);
    let mut operand = Operand { base: Some(rm | (rex & 1) << 3), ..Operand::default() };
    let mut absolute = mode == 0 && rm == 5;
    operand.relative = absolute;
    if rm == 4 {
        let (sib, rest) = tail.split_first()?;
        tail = rest;
        absolute = mode == 0 && sib & 7 == 5;
        operand.base = Some((sib & 7) | (rex & 1) << 3);
        operand.index = Some((sib >> 3 & 7) | (rex & 2) << 2).filter(|index| *index != 4);
        operand.scale = sib >> 6;
    }
    if absolute {
        operand.base = None;
    }
    operand.displacement = match mode {
        1 => i64::from(*tail.first()? as i8),
        2 => long(tail)?,
        _ if absolute => long(tail)?,
        _ => 0,
    };
    Some(operand)
}

fn long(bytes: &[u8]) -> Option<i64> {
    Some(i64::from(i32::from_le_bytes(*bytes.first_chunk()?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn invlpg(bytes: &[u8], wide: bool) -> Operand {
        match decode(bytes, wide) {
            Some(Operation::Invlpg(operand)) => operand,
            other => panic!("{bytes:x?}: {other:?}"),
        }
    }

    #[test]
    fn operations() {
        for (bytes, operation) in [
            (&[0x0f, 0x22, 0xd8][..], Operation::MovCr(3)),
            (&[0x44, 0x0f, 0x22, 0xc0], Operation::MovCr(8)),
            (&[0x0f, 0x22, 0xe0], Operation::MovCr(4)),
            (&[0x0f, 0x01, 0xd8], Operation::Vmrun),
            (&[0x0f, 0x01, 0xdf], Operation::Invlpga),
            (&[0x66, 0x0f, 0x38, 0x82, 0x07], Operation::Invpcid),
            (&[0x0f, 0x30], Operation::Wrmsr),
        ] {
            assert_eq!(decode(bytes, true), Some(operation));
        }
        let mark = |displacement: u32| [&abi::lab::MARKS[..], &displacement.to_le_bytes()].concat();
        assert_eq!(decode(&mark(MARK_BEGIN), true), Some(Operation::Begin));
        assert_eq!(decode(&mark(MARK_END), true), Some(Operation::End));
        assert_eq!(decode(&mark(MARK_MODEL), false), Some(Operation::Model));
        // Padding, and a mark that is cut off.
        assert_eq!(decode(&mark(0), true), None);
        assert_eq!(decode(&mark(MARK_END)[..7], true), None);
        for bytes in
            [&[0x0f, 0x20, 0xd8][..], &[0x0f, 0x01, 0xf8], &[0x90], &[], &[0x0f], &[0x48], &[0x0f, 0x01]]
        {
            assert_eq!(decode(bytes, true), None, "{bytes:x?}");
        }
        // 44 is INC in 32-bit code, not a prefix.
        assert_eq!(decode(&[0x44, 0x0f, 0x22, 0xc0], false), None);
    }

    #[test]
    fn operands() {
        let plain = Operand::default();
        assert_eq!(invlpg(&[0x0f, 0x01, 0x3f], true), Operand { base: Some(7), ..plain });
        assert_eq!(invlpg(&[0x41, 0x0f, 0x01, 0x3c, 0x24], true), Operand { base: Some(12), ..plain });
        let based = Operand { base: Some(3), displacement: -16, segment: 2, ..plain };
        assert_eq!(invlpg(&[0x65, 0x0f, 0x01, 0x7b, 0xf0], true), based);
        let indexed = Operand { base: Some(0), index: Some(9), scale: 2, displacement: 0x100, ..plain };
        assert_eq!(invlpg(&[0x42, 0x0f, 0x01, 0xbc, 0x88, 0, 1, 0, 0], true), indexed);
        let relative = Operand { relative: true, displacement: 4, ..plain };
        assert_eq!(invlpg(&[0x0f, 0x01, 0x3d, 4, 0, 0, 0], true), relative);
        let absolute = Operand { displacement: 0x1000, ..plain };
        assert_eq!(invlpg(&[0x0f, 0x01, 0x3c, 0x25, 0, 0x10, 0, 0], true), absolute);
        assert!(invlpg(&[0x67, 0x0f, 0x01, 0x3f], true).unusual);
    }

    proptest! {
        #[test]
        fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..16), wide in any::<bool>()) {
            decode(&bytes, wide);
        }
    }
}
