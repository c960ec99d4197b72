//! Loads arbitrary bytes as a kernel.

use super::*;
use crate::mem::guest_memory::NotRam;

/// RAM that forgets what is written; loaders never read it.
struct Void(MemoryLayout);

impl Void {
    fn check(&self, gpa: Gpa, len: u64) -> Result<(), NotRam> {
        let end = gpa.checked_add(len).ok_or(NotRam { gpa })?;
        let inside = self.0.ram().iter().any(|r| r.start <= gpa && end <= r.end);
        if inside { Ok(()) } else { Err(NotRam { gpa }) }
    }
}

impl GuestMemory for Void {
    fn read(&self, gpa: Gpa, buf: &mut [u8]) -> Result<(), NotRam> {
        self.check(gpa, buf.len() as u64)
    }
    fn write(&self, gpa: Gpa, buf: &[u8]) -> Result<(), NotRam> {
        self.check(gpa, buf.len() as u64)
    }
    fn compare_exchange(&self, gpa: Gpa, size: usize, _: u64, _: u64) -> Result<bool, NotRam> {
        self.check(gpa, size as u64).map(|()| false)
    }
    fn fill(&self, gpa: Gpa, len: u64, _: u8) -> Result<(), NotRam> {
        self.check(gpa, len)
    }
}

/// Loads arbitrary bytes by every protocol: must not panic, and what is placed lies in RAM and does not
/// overlap.
///
/// The first byte chooses the protocol and what the file pretends to be, so that not every input fails at a
/// magic.
pub fn fuzz_one(data: &[u8]) {
    let Some((&choice, bytes)) = data.split_first() else { return };
    let protocols =
        [Protocol::Auto, Protocol::Linux64, Protocol::Linux32, Protocol::Pvh, Protocol::Multiboot1];
    let mut bytes = bytes.to_vec();
    pretend(&mut bytes, choice >> 3 & 3);
    let file = File { name: "fuzz", bytes: &bytes };
    let request = Request {
        kernel: file,
        initrd: (choice & 0x40 != 0).then_some(file),
        modules: if choice & 0x80 != 0 { alloc::vec![Module { file, cmdline: "x" }] } else { Vec::new() },
        cmdline: "quiet",
        protocol: protocols[(choice & 7) as usize % protocols.len()],
        layout: MemoryLayout::new(if choice & 0x20 != 0 { 4096 } else { 0 }),
        rsdp: Gpa(0xf_0000),
    };
    match load(&Void(request.layout), &request) {
        Ok(state) => {
            let mut ranges = state.placed;
            ranges.sort_by_key(|p| p.range.start);
            let in_ram = |p: &Placed| {
                let inside = |r: &core::ops::Range<Gpa>| r.start <= p.range.start && p.range.end <= r.end;
                request.layout.ram().iter().any(inside)
            };
            assert!(ranges.iter().all(in_ram));
            assert!(ranges.windows(2).all(|w| w[0].range.end <= w[1].range.start));
        }
        Err(e) => assert!(!matches!(e.problem, Problem::NotRam(_)) && !e.to_string().is_empty()),
    }
}

/// Puts the magics of a bzImage, an ELF file or a multiboot header where they belong.
fn pretend(bytes: &mut [u8], kind: u8) {
    let mut put = |at: usize, value: &[u8]| {
        if let Some(to) = bytes.get_mut(at..at + value.len()) {
            to.copy_from_slice(value);
        }
    };
    match kind {
        1 => {
            put(0x1fe, b"\x55\xaa");
            put(0x202, b"HdrS");
            put(0x207, &[2]);
            put(0x211, &[1]);
        }
        2 => {
            put(0, b"\x7fELF");
            put(5, &[1]);
            put(18, &[3, 0]);
        }
        3 => {
            let words = [0x1bad_b002u32, 1 << 16, 0u32.wrapping_sub(0x1bad_b002 + (1 << 16))];
            put(8, words.map(u32::to_le_bytes).as_flattened());
        }
        _ => {}
    }
}
