//! What a BIOS leaves in memory: its data area, and for kernels that may go to real mode the interrupt vectors.
//!
//! Every loader gets the data area ([`write_data_area`]), in which kernels look for the end of conventional memory.
//! Multiboot kernels also get vectors with handlers ([`write_vectors`]), because boot loaders hand over the machine as the
//! BIOS left it: a kernel in real mode may enable interrupts. The devices in that state are
//! [`crate::device::chipset::Chipset::set_up_as_bios`]'s business.
//!
//! The handlers do what keeps the machine going, and no more: the timer counts, hardware interrupts are ended, and the
//! memory size is told. There are no services behind the other vectors: those with a carry flag in their interface report
//! that the function is unsupported, and the rest return. IBM PC/AT Technical Reference, section 5.

use crate::arch::addr::Gpa;
use crate::mem::guest_memory::{GuestMemory, NotRam};
use crate::vm::layout::EBDA;

/// The segment of the handlers.
const SEGMENT: u16 = 0xf000;
/// Vectors of the master's and of the slave's IRQ 0.
const MASTER: usize = 0x08;
const SLAVE: usize = 0x70;
/// Vectors 60h to 66h are the users', and zero.
const USER: core::ops::Range<usize> = 0x60..0x67;

/// A handler and its offset in [`SEGMENT`]; the first and the last are where the PC/AT's BIOS has them.
struct Handler {
    offset: u16,
    code: &'static [u8],
}

/// IRQ 0: counts ticks since midnight at 0040:006C, of which a day has 1800B0h; calls the user's handler, INT 1Ch.
const TIMER: Handler = Handler {
    offset: 0xfea5,
    code: &[
        0x50, // push ax
        0x1e, // push ds
        0x31, 0xc0, // xor ax, ax
        0x8e, 0xd8, // mov ds, ax
        0x66, 0xff, 0x06, 0x6c, 0x04, // inc dword [46ch]
        0x66, 0x81, 0x3e, 0x6c, 0x04, 0xb0, 0x00, 0x18, 0x00, // cmp dword [46ch], 1800b0h
        0x72, 0x0d, // jb over the next two
        0x66, 0xc7, 0x06, 0x6c, 0x04, 0x00, 0x00, 0x00, 0x00, // mov dword [46ch], 0
        0xfe, 0x06, 0x70, 0x04, // inc byte [470h]
        0xcd, 0x1c, // int 1ch
        0xb0, 0x20, // mov al, 20h
        0xe6, 0x20, // out 20h, al
        0x1f, // pop ds
        0x58, // pop ax
        0xcf, // iret
    ],
};
/// Ends an interrupt of the master.
const END_MASTER: Handler = Handler {
    offset: 0xfee0,
    // push ax; mov al, 20h; out 20h, al; pop ax; iret
    code: &[0x50, 0xb0, 0x20, 0xe6, 0x20, 0x58, 0xcf],
};
/// Ends an interrupt of the slave.
const END_SLAVE: Handler = Handler {
    offset: 0xfee8,
    // push ax; mov al, 20h; out a0h, al; out 20h, al; pop ax; iret
    code: &[0x50, 0xb0, 0x20, 0xe6, 0xa0, 0xe6, 0x20, 0x58, 0xcf],
};
/// INT 12h: KiB of conventional memory, from 0040:0013.
const MEMORY_SIZE: Handler = Handler {
    offset: 0xfef8,
    // push ds; xor ax, ax; mov ds, ax; mov ax, [413h]; pop ds; iret
    code: &[0x1e, 0x31, 0xc0, 0x8e, 0xd8, 0xa1, 0x13, 0x04, 0x1f, 0xcf],
};
/// INT 13h and 15h: carry set in the flags to return to, and AH 86h: the function is unsupported.
const UNSUPPORTED: Handler = Handler {
    offset: 0xff08,
    // push bp; mov bp, sp; or byte [bp+6], 1; pop bp; mov ah, 86h; iret
    code: &[0x55, 0x89, 0xe5, 0x80, 0x4e, 0x06, 0x01, 0x5d, 0xb4, 0x86, 0xcf],
};
/// Everything else returns.
const RETURN: Handler = Handler { offset: 0xff53, code: &[0xcf] };

const HANDLERS: [Handler; 6] = [TIMER, END_MASTER, END_SLAVE, MEMORY_SIZE, UNSUPPORTED, RETURN];

/// Clears the first page and fills in the words by which kernels find the end of conventional memory: the segment of the
/// extended BIOS data area at 0x40e, KiB of conventional memory at 0x413.
pub fn write_data_area(memory: &impl GuestMemory) -> Result<(), NotRam> {
    memory.fill(Gpa(0), 0x1000, 0)?;
    memory.write(Gpa(0x40e), &((EBDA >> 4) as u16).to_le_bytes())?;
    memory.write(Gpa(0x413), &((EBDA / 1024) as u16).to_le_bytes())
}

/// Writes the real-mode interrupt vectors at 0, and their handlers at the end of the BIOS area.
pub fn write_vectors(memory: &impl GuestMemory) -> Result<(), NotRam> {
    for handler in HANDLERS {
        memory.write(Gpa(u64::from(SEGMENT) << 4 | u64::from(handler.offset)), handler.code)?;
    }
    let mut table = [[0; 4]; 256];
    for (vector, entry) in table.iter_mut().enumerate().filter(|(vector, _)| !USER.contains(vector)) {
        let handler = match vector {
            MASTER => TIMER,
            0x09..0x10 => END_MASTER,
            SLAVE..0x78 => END_SLAVE,
            0x12 => MEMORY_SIZE,
            0x13 | 0x15 => UNSUPPORTED,
            _ => RETURN,
        };
        // Offset, then segment: a real-mode vector.
        let ([o0, o1], [s0, s1]) = (handler.offset.to_le_bytes(), SEGMENT.to_le_bytes());
        *entry = [o0, o1, s0, s1];
    }
    memory.write(Gpa(0), table.as_flattened())
}

#[cfg(test)]
mod tests {
    use iced_x86::{Decoder, DecoderOptions, Mnemonic};

    use super::*;
    use crate::mem::guest_memory::VecMemory;

    #[test]
    fn handlers_are_apart_and_end_with_iret() {
        for pair in HANDLERS.windows(2) {
            assert!(usize::from(pair[0].offset) + pair[0].code.len() <= usize::from(pair[1].offset));
        }
        for Handler { offset, code } in HANDLERS {
            let mut decoder = Decoder::with_ip(16, code, offset.into(), DecoderOptions::NONE);
            let instructions: alloc::vec::Vec<_> = decoder.iter().collect();
            assert!(instructions.iter().all(|i| !i.is_invalid()));
            assert_eq!(instructions.last().map(|i| i.mnemonic()), Some(Mnemonic::Iret));
            // The jump leads to an instruction, behind what it is to skip.
            for jump in instructions.iter().filter(|i| i.is_jcc_short_or_near()) {
                let target = instructions.iter().find(|i| i.ip() == jump.near_branch_target());
                assert_eq!(target.map(|i| i.mnemonic()), Some(Mnemonic::Int));
            }
        }
    }

    #[test]
    fn vectors_lead_to_handlers() {
        let memory = VecMemory::new(1 << 20);
        write_data_area(&memory).unwrap();
        write_vectors(&memory).unwrap();
        let handler = |vector: u64| {
            let mut entry = [0; 4];
            memory.read(Gpa(vector * 4), &mut entry).unwrap();
            let [o0, o1, s0, s1] = entry.map(u64::from);
            let mut code = [0; 3];
            memory.read(Gpa((s1 << 12 | s0 << 4) + (o1 << 8 | o0)), &mut code).unwrap();
            (entry, code)
        };
        assert_eq!(handler(8), ([0xa5, 0xfe, 0, 0xf0], [0x50, 0x1e, 0x31]));
        assert_eq!(handler(0x0f).1, [0x50, 0xb0, 0x20]);
        assert_eq!((handler(0x70).0, handler(0x77).0), (handler(0x74).0, handler(0x74).0));
        assert_eq!((handler(0x60).0, handler(0x66).0), ([0; 4], [0; 4]));
        for vector in [0, 0x10, 0x1c, 0x67, 0x78, 0xff] {
            assert_eq!(handler(vector).0, [0x53, 0xff, 0, 0xf0]);
            assert_eq!(handler(vector).1[0], 0xcf);
        }
    }
}
