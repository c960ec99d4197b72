//! Where the instruction after an intercepted one begins, for processors that do not say.
//!
//! A direct-mapped table, because finding out costs a walk of the guest's page tables and a decode. The exit itself says
//! which kind of instruction it was, so an entry is trusted if the same kind was seen at the same place in the same
//! address space. What that cannot notice is code that was replaced by the same instruction with other prefixes, or by a move
//! of another register. So that no program can leave a wrong length for the next one that gets its CR3, what begins with a
//! prefix is not remembered at CPL 3.

use alloc::boxed::Box;
use alloc::vec;

use crate::arch::RegMove;
use crate::arch::state::{Gpr, SegReg, VcpuState};
use crate::emulate::{Base, Insn, MAX_LEN, Mode, Op, Operand, System, decode, register_move};
use crate::virt::exit::control;

/// Entries for each kind of instruction.
const ENTRIES: usize = 128;

#[derive(Clone, Copy)]
struct Entry {
    rip: u64,
    cr3: u64,
    cs_base: u64,
    next: u64,
}

/// Found by no lookup: CR3 has no such value.
const EMPTY: Entry = Entry { rip: 0, cr3: u64::MAX, cs_base: 0, next: 0 };

/// An access to a control register, as the code has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlAccess {
    /// MOV to control register `index`.
    Write {
        /// 0 to 15.
        index: u8,
        /// The source.
        gpr: Gpr,
    },
    /// MOV from control register `index`.
    Read {
        /// 0 to 15.
        index: u8,
        /// The destination.
        gpr: Gpr,
    },
    /// CLTS.
    Clts,
    /// LMSW of a register.
    LoadStatus(Gpr),
    /// SMSW to a register, and its operand size in bytes.
    StoreStatus(Gpr, u8),
}

impl ControlAccess {
    /// What `insn` is; `None` for others, and for LMSW and SMSW of memory.
    pub fn of(insn: &Insn) -> Option<ControlAccess> {
        match (insn.op, insn.dst) {
            (Op::System(System::MovControl), _) => match register_move(insn)? {
                RegMove { index, write: true, gpr } => Some(ControlAccess::Write { index, gpr: gpr? }),
                RegMove { index, write: false, gpr } => Some(ControlAccess::Read { index, gpr: gpr? }),
            },
            (Op::System(System::Clts), _) => Some(ControlAccess::Clts),
            (Op::System(System::Lmsw), Operand::Gpr(gpr)) => Some(ControlAccess::LoadStatus(gpr)),
            (Op::System(System::Smsw), Operand::Gpr(gpr)) => Some(ControlAccess::StoreStatus(gpr, insn.size)),
            _ => None,
        }
    }

    /// Whether it can exit as an access of this kind. A read may be taken for one of CR0, whatever it reads.
    fn can_exit_as(self, index: u8, write: bool) -> bool {
        match self {
            ControlAccess::Write { index: own, .. } => write && own == index,
            ControlAccess::Read { index: own, .. } => !write && (own == index || index == 0),
            ControlAccess::Clts | ControlAccess::LoadStatus(_) => write && index == 0,
            ControlAccess::StoreStatus(..) => !write && index == 0,
        }
    }
}

/// A [`ControlAccess`] that was found, and what makes it another one.
#[derive(Clone, Copy)]
struct FoundAccess {
    rip: u64,
    cr3: u64,
    cs_base: u64,
    /// [`VcpuState::code_segment`].
    code: u64,
    /// The exit: [`control::number`].
    exit: u8,
    found: FoundControl,
}

/// Found by no lookup: CR3 has no such value.
const NO_ACCESS: FoundAccess = FoundAccess {
    rip: 0,
    cr3: u64::MAX,
    cs_base: 0,
    code: 0,
    exit: 0,
    found: FoundControl { access: ControlAccess::Clts, next: 0, mask: 0 },
};

/// An access to a control register, ready to be executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundControl {
    /// What it is.
    pub access: ControlAccess,
    /// RIP after it.
    pub next: u64,
    /// The bits of a general register that a MOV moves: the upper half is not part of a 32-bit operand.
    pub mask: u64,
}

/// The table of one VCPU, 97 KiB.
pub struct NextRips {
    entries: Box<[[Entry; ENTRIES]; System::COUNT]>,
    /// The one register that is the operand, where there is one.
    operands: Box<[[Option<Gpr>; ENTRIES]; System::COUNT]>,
    /// Accesses to control registers of which the exit does not say what they are.
    accesses: Box<[FoundAccess; ENTRIES]>,
}

impl Default for NextRips {
    fn default() -> Self {
        let entries: Box<[_]> = vec![[EMPTY; ENTRIES]; System::COUNT].into();
        NextRips {
            entries: entries.try_into().unwrap_or_else(|_| unreachable!("as many as asked for")),
            operands: Box::new([[None; ENTRIES]; System::COUNT]),
            accesses: Box::new([NO_ACCESS; ENTRIES]),
        }
    }
}

impl NextRips {
    /// What a table takes beside itself.
    pub const BYTES: usize = ENTRIES
        * (System::COUNT * (size_of::<Entry>() + size_of::<Option<Gpr>>()) + size_of::<FoundAccess>());

    /// RIP after the instruction of kind `what` at CS:RIP. On a miss `fetch` fills a buffer with the bytes there and
    /// returns how many it could read. `None`: the bytes are not such an instruction (any more); entering the guest at
    /// the same RIP again executes what is there now.
    #[inline(always)]
    pub fn get<S: VcpuState>(
        &mut self,
        state: &S,
        what: System,
        fetch: impl FnOnce(&S, &mut [u8; MAX_LEN]) -> usize,
    ) -> Option<u64> {
        match self.known(state, what) {
            Some(next) => Some(next),
            None => self.find(state, what, fetch),
        }
    }

    /// The same, if it was found before.
    #[inline(always)]
    pub fn known<S: VcpuState>(&self, state: &S, what: System) -> Option<u64> {
        let (rip, cr3) = (state.rip(), state.address_space());
        let cs_base = state.segment(SegReg::Cs).base;
        let entry = &self.entries[what as usize - 1][index(rip, cr3)];
        let is_same = entry.rip == rip && entry.cr3 == cr3 && entry.cs_base == cs_base;
        is_same.then_some(entry.next)
    }

    /// The same on a miss. Computes the index once more, so that a hit keeps nothing in registers for it.
    #[cold]
    #[inline(never)]
    fn find<S: VcpuState>(
        &mut self,
        state: &S,
        what: System,
        fetch: impl FnOnce(&S, &mut [u8; MAX_LEN]) -> usize,
    ) -> Option<u64> {
        let (next, operand, lasts) = find(state, what, fetch)?;
        if lasts {
            let (rip, cr3) = (state.rip(), state.address_space());
            let (kind, index) = (what as usize - 1, index(rip, cr3));
            self.operands[kind][index] = operand;
            self.entries[kind][index] = Entry { rip, cr3, cs_base: state.segment(SegReg::Cs).base, next };
        }
        Some(next)
    }

    /// The access to a control register at CS:RIP that exits with this [`control::number`], if it was found there before: trusted
    /// as in [`NextRips::get`].
    #[inline(always)]
    pub fn known_control(&self, state: &impl VcpuState, exit: u8) -> Option<&FoundControl> {
        let (rip, cr3) = (state.rip(), state.address_space());
        let known = &self.accesses[index(rip, cr3)];
        let is_same = known.rip == rip
            && known.cr3 == cr3
            && known.exit == exit
            && known.cs_base == state.segment(SegReg::Cs).base
            && known.code == state.code_segment();
        is_same.then_some(&known.found)
    }

    /// The same, found by what `fetch` reads at CS:RIP and then remembered; but never at CPL 3, where programs may execute SMSW.
    /// `None`: something else, or an operand in memory.
    #[cold]
    pub fn find_control<S: VcpuState>(
        &mut self,
        state: &S,
        exit: RegMove,
        fetch: impl FnOnce(&S, &mut [u8; MAX_LEN]) -> usize,
    ) -> Option<FoundControl> {
        let (rip, cr3, mode) = (state.rip(), state.address_space(), Mode::of(state));
        let (access, len) = find_access(mode, |bytes| fetch(state, bytes))?;
        let next = rip.wrapping_add(u64::from(len));
        let wide = mode == Mode::Bits64;
        let (next, mask) = if wide { (next, u64::MAX) } else { (next & 0xffff_ffff, 0xffff_ffff) };
        let found = FoundControl { access, next, mask };
        // Code that was overwritten after the exit is executed as what it is, but its next exit is another one.
        if state.cpl() != 3 && access.can_exit_as(exit.index, exit.write) {
            let cs_base = state.segment(SegReg::Cs).base;
            let (code, exit) = (state.code_segment(), control::number(exit));
            self.accesses[index(rip, cr3)] = FoundAccess { rip, cr3, cs_base, code, exit, found };
        }
        Some(found)
    }

    /// The register that is the only operand of the instruction that [`NextRips::get`] has just found: the address of an
    /// INVLPG in plain `[register]` form.
    #[inline]
    pub fn operand(&self, state: &impl VcpuState, what: System) -> Option<Gpr> {
        self.operands[what as usize - 1][index(state.rip(), state.address_space())]
    }
}

/// With the address space in the index, the two that take turns where a program is executed again and again (a fork's
/// and an exec's) do not drive each other out.
#[inline(always)]
fn index(rip: u64, cr3: u64) -> usize {
    (rip >> 1 ^ cr3 >> 12) as usize % ENTRIES
}

/// The access to a control register that `fetch` finds, and its length.
#[cold]
#[inline(never)]
fn find_access(mode: Mode, fetch: impl FnOnce(&mut [u8; MAX_LEN]) -> usize) -> Option<(ControlAccess, u8)> {
    let mut bytes = [0; MAX_LEN];
    let have = fetch(&mut bytes).min(MAX_LEN);
    let insn = decode(&bytes[..have], mode).ok()?;
    Some((ControlAccess::of(&insn)?, insn.len))
}

/// RIP after the instruction, its operand, and whether both may be remembered.
fn find<S: VcpuState>(
    state: &S,
    what: System,
    fetch: impl FnOnce(&S, &mut [u8; MAX_LEN]) -> usize,
) -> Option<(u64, Option<Gpr>, bool)> {
    let mode = Mode::of(state);
    let mut bytes = [0; MAX_LEN];
    let have = fetch(state, &mut bytes).min(MAX_LEN);
    let bytes = &bytes[..have];
    let mut operand = None;
    let len = match (what, bytes) {
        // Almost always without prefixes: no need to decode.
        (System::Cpuid, [0x0f, 0xa2, ..])
        | (System::Rdmsr, [0x0f, 0x32, ..])
        | (System::Wrmsr, [0x0f, 0x30, ..]) => 2,
        (System::Hlt, [0xf4, ..]) => 1,
        _ => {
            let insn = decode(bytes, mode).ok()?;
            if insn.op != Op::System(what) {
                return None;
            }
            operand = simple_operand(&insn);
            insn.len
        }
    };
    let next = state.rip().wrapping_add(u64::from(len));
    let next = if mode == Mode::Bits64 { next } else { next & 0xffff_ffff };
    let lasts = state.cpl() != 3 || matches!(bytes, [0x0f, ..] | [0xf3, 0x90, ..]);
    Some((next, operand, lasts))
}

/// See [`NextRips::operand`].
fn simple_operand(insn: &Insn) -> Option<Gpr> {
    let mem = &insn.mem;
    let plain = mem.index.is_none() && mem.disp == 0 && mem.segment == SegReg::Ds;
    // Of 16 bits, it would be a part of the register.
    let whole = mem.addr_size == insn.mode as u8 && insn.mode != Mode::Bits16;
    match mem.base {
        Base::Gpr(gpr) if plain && whole && insn.op == Op::System(System::Invlpg) => Some(gpr),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::state::ArchState;

    fn fill(code: &'static [u8]) -> impl FnOnce(&ArchState, &mut [u8; MAX_LEN]) -> usize {
        move |_, buf| {
            buf[..code.len()].copy_from_slice(code);
            code.len()
        }
    }

    fn never(_: &ArchState, _: &mut [u8; MAX_LEN]) -> usize {
        panic!("fetched again")
    }

    #[test]
    fn remembers_place_kind_and_address_space() {
        let mut state = ArchState { rip: 0x1000, cr3: 0x5000, ..ArchState::reset() };
        let mut table = NextRips::default();
        assert_eq!(table.get(&state, System::Cpuid, fill(&[0x0f, 0xa2])), Some(0x1002));
        assert_eq!(table.get(&state, System::Cpuid, never), Some(0x1002));
        state.cr3 = 0x6000;
        assert_eq!(table.get(&state, System::Cpuid, fill(&[0x66, 0x0f, 0xa2])), Some(0x1003));
        assert_eq!(table.get(&state, System::Hlt, fill(&[0xf4])), Some(0x1001));
    }

    #[test]
    fn address_spaces_that_take_turns_are_both_remembered() {
        let mut state = ArchState { rip: 0x1000, cr3: 0x5000, ..ArchState::reset() };
        let mut table = NextRips::default();
        for cr3 in [0x5000, 0x6000] {
            state.cr3 = cr3;
            assert_eq!(table.get(&state, System::Cpuid, fill(&[0x0f, 0xa2])), Some(0x1002));
        }
        state.cr3 = 0x5000;
        assert_eq!(table.get(&state, System::Cpuid, never), Some(0x1002));
    }

    #[test]
    fn programs_leave_no_lengths_to_the_next() {
        let state = ArchState { rip: 0x1000, cr3: 0x5000, cpl: 3, ..ArchState::reset() };
        let mut table = NextRips::default();
        assert_eq!(table.get(&state, System::Cpuid, fill(&[0x66, 0x0f, 0xa2])), Some(0x1003));
        // Another program with the tables of the first one.
        assert_eq!(table.get(&state, System::Cpuid, fill(&[0x0f, 0xa2])), Some(0x1002));
        assert_eq!(table.get(&state, System::Cpuid, never), Some(0x1002));
    }

    #[test]
    fn a_register_is_an_address_only_as_a_whole() {
        use crate::arch::state::{Segment, cr0};
        // INVLPG [BX], or [EDI] in 32-bit code.
        const INVLPG: &[u8] = &[0x0f, 0x01, 0x3f];
        let mut state = ArchState { rip: 0x1000, ..ArchState::reset() };
        let mut table = NextRips::default();
        assert_eq!(table.get(&state, System::Invlpg, fill(INVLPG)), Some(0x1003));
        assert_eq!(table.operand(&state, System::Invlpg), None);
        state.rip = 0x2000;
        state.cr0 |= cr0::PE;
        state.segments[SegReg::Cs as usize].attributes |= Segment::BIG;
        assert_eq!(table.get(&state, System::Invlpg, fill(INVLPG)), Some(0x2003));
        assert_eq!(table.operand(&state, System::Invlpg), Some(Gpr::Rdi));
    }

    #[test]
    fn other_instructions_are_refused_and_not_remembered() {
        let state = ArchState { rip: 0, cr3: 0, ..ArchState::reset() };
        let mut table = NextRips::default();
        assert_eq!(table.get(&state, System::Cpuid, fill(&[0xf4])), None);
        assert_eq!(table.get(&state, System::Cpuid, fill(&[0x0f])), None);
        assert_eq!(table.get(&state, System::Cpuid, fill(&[])), None);
        assert_eq!(table.get(&state, System::Cpuid, fill(&[0x0f, 0xa2])), Some(2));
    }

    #[test]
    fn legacy_modes_wrap_at_4_gib() {
        let state = ArchState { rip: 0xffff_ffff, ..ArchState::reset() };
        assert_eq!(NextRips::default().get(&state, System::Hlt, fill(&[0xf4])), Some(0));
    }
}
