//! Executes one instruction on the processor with all registers chosen by the caller.
//!
//! One mapping at a fixed address below 4 GiB (so that 32-bit addressing reaches it) holds a code page, a page with
//! the register file, and the data pages. The code page is a prologue that loads everything, the instruction, and an
//! epilogue that stores everything; both use only RIP-relative moves.

use std::sync::atomic::{AtomicU64, Ordering};

const BASE: u64 = 0x2000_0000;
const FILE: u64 = BASE + 0x1000;
/// Where the data pages are.
pub(super) const DATA: u64 = BASE + 0x1_0000;
/// Their size in bytes.
pub(super) const DATA_LEN: usize = 0x4000;
/// The GS base during a run.
pub(super) const GS_BASE: u64 = 0x1003;
const MAP_LEN: usize = 0x1_0000 + DATA_LEN;

// Layout of the register file: GPRs, flags, host RSP, then the XMM registers.
const FLAGS: u64 = FILE + 16 * 8;
const HOST_RSP: u64 = FILE + 17 * 8;
const XMM: u64 = FILE + 0x100;

/// General-purpose registers and flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Registers {
    pub gprs: [u64; 16],
    pub rflags: u64,
}

/// Where the instruction stands; the prologue is shorter.
pub(super) const INSN: u64 = BASE + 0x400;
/// Where a branch must go: the epilogue.
pub(super) const EXIT: u64 = INSN + 0x20;

/// The mapping with its code.
pub(super) struct Harness(());

/// The instruction bytes that run at the moment, for the report of a crash.
static RUNNING: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

extern "C" fn crashed(signal: libc::c_int) {
    eprintln!(
        "signal {signal} in {:016x} {:016x} (little endian)",
        RUNNING[0].load(Ordering::Relaxed),
        RUNNING[1].load(Ordering::Relaxed)
    );
    // SAFETY: ends the process without running anything else of it.
    unsafe { libc::_exit(99) }
}

/// Appends machine code with operands relative to the end of each instruction.
struct Code {
    at: u64,
    bytes: Vec<u8>,
}

impl Code {
    fn emit(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// An instruction that ends with the RIP-relative displacement of `target`.
    fn relative(&mut self, opcode: &[u8], target: u64) {
        self.emit(opcode);
        let next = self.at + self.bytes.len() as u64 + 4;
        self.emit(&(target.wrapping_sub(next) as u32).to_le_bytes());
    }

    /// MOV between a general-purpose register and memory.
    fn mov(&mut self, opcode: u8, reg: u64, target: u64) {
        self.relative(&[0x48 | (reg >> 3 << 2) as u8, opcode, ((reg & 7) << 3) as u8 | 5], target);
    }

    /// MOVUPS between an XMM register and memory.
    fn movups(&mut self, opcode: u8, reg: u64) {
        let rex = 0x40 | (reg >> 3 << 2) as u8;
        self.relative(&[rex, 0x0f, opcode, ((reg & 7) << 3) as u8 | 5], XMM + reg * 16);
    }
}

impl Harness {
    pub(super) fn new() -> Harness {
        // SAFETY: sets this thread's GS base, which nothing else uses on x86-64 Linux (ARCH_SET_GS is 0x1001).
        let set = unsafe { libc::syscall(libc::SYS_arch_prctl, 0x1001, GS_BASE) };
        assert_eq!(set, 0, "arch_prctl");
        // SAFETY: a fresh private mapping at an address where nothing else is (MAP_FIXED_NOREPLACE), and handlers that
        // only end the process.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
            let prot = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
            let at = libc::mmap(BASE as *mut _, MAP_LEN, prot, flags, -1, 0);
            assert_eq!(at as u64, BASE, "mmap");
            for signal in [libc::SIGSEGV, libc::SIGILL, libc::SIGBUS, libc::SIGFPE, libc::SIGTRAP] {
                let mut action: libc::sigaction = core::mem::zeroed();
                action.sa_sigaction = crashed as *const () as usize;
                action.sa_flags = libc::SA_ONSTACK;
                libc::sigaction(signal, &action, core::ptr::null_mut());
            }
        }
        let mut prologue = Code { at: BASE, bytes: Vec::new() };
        // push rbx, rbp, r12 to r15
        prologue.emit(&[0x53, 0x55, 0x41, 0x54, 0x41, 0x55, 0x41, 0x56, 0x41, 0x57]);
        prologue.mov(0x89, 4, HOST_RSP);
        (0..16).for_each(|n| prologue.movups(0x10, n));
        prologue.relative(&[0xff, 0x35], FLAGS); // push qword [FLAGS]
        prologue.emit(&[0x9d]); // popfq
        (0..16).for_each(|n| prologue.mov(0x8b, n, FILE + n * 8));
        prologue.relative(&[0xe9], INSN); // jmp INSN
        assert!(BASE + (prologue.bytes.len() as u64) < INSN);

        let mut epilogue = Code { at: EXIT, bytes: Vec::new() };
        (0..16).for_each(|n| epilogue.mov(0x89, n, FILE + n * 8));
        epilogue.mov(0x8b, 4, HOST_RSP);
        epilogue.emit(&[0x9c]); // pushfq
        epilogue.relative(&[0x8f, 0x05], FLAGS); // pop qword [FLAGS]
        epilogue.emit(&[0x6a, 0x02, 0x9d]); // push 2; popfq
        (0..16).for_each(|n| epilogue.movups(0x11, n));
        epilogue.emit(&[0x41, 0x5f, 0x41, 0x5e, 0x41, 0x5d, 0x41, 0x5c, 0x5d, 0x5b, 0xc3]);
        assert!(EXIT + (epilogue.bytes.len() as u64) < FILE);
        write(BASE, &prologue.bytes);
        write(EXIT, &epilogue.bytes);
        Harness(())
    }

    pub(super) fn copy_data(&mut self, data: &[u8]) {
        write(DATA, &data[..DATA_LEN]);
    }

    pub(super) fn data(&self) -> &[u8] {
        // SAFETY: these pages are mapped as long as the process lives and only written through `&mut self`.
        unsafe { core::slice::from_raw_parts(DATA as *const u8, DATA_LEN) }
    }

    /// Executes `insn`; registers and vector registers before, and after as the result.
    pub(super) fn run(
        &mut self,
        insn: &[u8],
        before: &Registers,
        xmm: &[u128; 16],
    ) -> (Registers, [u128; 16]) {
        let mut text = [0xcc; 32];
        text[..insn.len()].copy_from_slice(insn);
        text[insn.len()] = 0xe9;
        let displacement = EXIT - (INSN + insn.len() as u64 + 5);
        text[insn.len() + 1..insn.len() + 5].copy_from_slice(&(displacement as u32).to_le_bytes());
        write(INSN, &text);
        for (n, running) in RUNNING.iter().enumerate() {
            let bytes: [u8; 8] = text[8 * n..8 * n + 8].try_into().expect("eight bytes");
            running.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
        }
        for (n, value) in before.gprs.iter().chain([&before.rflags]).enumerate() {
            write(FILE + 8 * n as u64, &value.to_le_bytes());
        }
        for (n, value) in xmm.iter().enumerate() {
            write(XMM + 16 * n as u64, &value.to_le_bytes());
        }
        // SAFETY: the code keeps the C calling convention; the instruction under test was checked by the emulator to
        // touch nothing but the data pages.
        unsafe { core::mem::transmute::<u64, extern "C" fn()>(BASE)() };
        let word = |at: u64| u64::from_le_bytes(read(at));
        let gprs = core::array::from_fn(|n| word(FILE + 8 * n as u64));
        let xmm = core::array::from_fn(|n| u128::from_le_bytes(read(XMM + 16 * n as u64)));
        (Registers { gprs, rflags: word(FLAGS) }, xmm)
    }
}

/// Writes to the mapping.
fn write(at: u64, bytes: &[u8]) {
    assert!(at >= BASE && at + bytes.len() as u64 <= BASE + MAP_LEN as u64);
    // SAFETY: within the mapping, which only the harness uses.
    unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len()) }
}

/// Reads from the mapping.
fn read<const N: usize>(at: u64) -> [u8; N] {
    assert!(at >= BASE && at + N as u64 <= BASE + MAP_LEN as u64);
    // SAFETY: within the mapping, which only the harness uses.
    unsafe { core::ptr::read_volatile(at as *const [u8; N]) }
}
