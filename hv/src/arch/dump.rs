//! Registers as text, for reports of a guest's end and for the monitor.

use core::fmt;

use super::state::{ArchState, Gpr, SegReg};

/// A register dump.
pub struct Registers<'a>(pub &'a ArchState);

impl fmt::Display for Registers<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = self.0;
        writeln!(f, "RIP {:016x} RFLAGS {:08x} CPL {}", s.rip, s.rflags, s.cpl)?;
        const NAMES: [&str; 16] = [
            "RAX", "RCX", "RDX", "RBX", "RSP", "RBP", "RSI", "RDI", "R8 ", "R9 ", "R10", "R11", "R12", "R13",
            "R14", "R15",
        ];
        for (i, reg) in Gpr::ALL.into_iter().enumerate() {
            let end = if i % 4 == 3 { "\n" } else { " " };
            write!(f, "{} {:016x}{end}", NAMES[i], s.gprs[reg as usize])?;
        }
        writeln!(
            f,
            "CR0 {:08x} CR2 {:016x} CR3 {:016x} CR4 {:08x} EFER {:04x}",
            s.cr0, s.cr2, s.cr3, s.cr4, s.efer
        )?;
        for (name, seg) in [
            ("CS", SegReg::Cs),
            ("SS", SegReg::Ss),
            ("DS", SegReg::Ds),
            ("FS", SegReg::Fs),
            ("GS", SegReg::Gs),
        ] {
            let v = s.segments[seg as usize];
            writeln!(
                f,
                "{name} {:04x} base {:016x} limit {:08x} attributes {:03x}",
                v.selector, v.base, v.limit, v.attributes
            )?;
        }
        write!(
            f,
            "GDTR {:016x}+{:04x} IDTR {:016x}+{:04x}",
            s.gdtr.base, s.gdtr.limit, s.idtr.base, s.idtr.limit
        )
    }
}
