//! Control registers: what a guest may read and write, and what follows from it.
//!
//! What guests repeat has a fast path (`quick_control`) that comes first and falls back to this one.
//! In nested mode only writes of CR4 come here (and of CR8 on processors that misjudge it); with shadow tables also
//! writes of CR0 that change more than TS and MP, writes of CR3, and reads of what the processor holds differently. AMD APM 2, 3.1 and 5.5. QEMU's emulation may bring a read of any of them, as one of CR0.

use crate::arch::state::{Gpr, SegReg, Segment, cr0, cr4, efer};
use crate::arch::{Exception, RegMove};
use crate::emulate::{self, Fault, Insn, MAX_LEN, Mode, Op, System, decode, mask};
use crate::paging::guest_walk::PagingState;
use crate::vcpu::bus::Bus;
use crate::vcpu::dispatch::{died, next_rip, stale_code};
use crate::vcpu::exit_context::ExitContext;
use crate::vcpu::host::Host;
use crate::vcpu::next_rip::{ControlAccess, FoundControl};
use crate::vcpu::outcome::{Cause, Outcome};
use crate::vcpu::port::{self, Port};
use crate::vcpu::{Vcpu, mmu, pdptrs};
use crate::virt::{FlushScope, Virt, exit};
use crate::vm::work;
use crate::vm::{HostMemory, Vm};

/// Handles a MOV to or from a control register, CLTS, LMSW or SMSW.
#[inline(always)]
pub fn control<V: Virt, M: HostMemory, H: Host>(cx: ExitContext<'_, V, M, H>, access: RegMove) -> Outcome {
    let ExitContext { vcpu, vm, host, tsc } = cx;
    let Some(gpr) = access.gpr else {
        return unnamed(vcpu, vm, access)
            .unwrap_or_else(|| machine_status(ExitContext { vcpu, vm, host, tsc }));
    };
    let Some(next) = next_rip(vcpu, vm, System::MovControl) else { return Outcome::Resume };
    if access.write { write(vcpu, vm, access.index, gpr, next) } else { read(vcpu, access.index, gpr, next) }
}

/// An access of which the processor does not tell the operand, or that is none to what the exit says: executed as what is
/// at RIP. `None` if that has an operand in memory, or is something else by now.
#[inline]
fn unnamed<V: Virt, M: HostMemory>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    access: RegMove,
) -> Option<Outcome> {
    let number = exit::control::number(access);
    let FoundControl { access, next, .. } = match vcpu.next_rips.known_control(&vcpu.virt, number) {
        Some(known) => *known,
        None => {
            vcpu.next_rips.find_control(&vcpu.virt, access, |virt, bytes| port::fetch(virt, vm, bytes))?
        }
    };
    Some(match access {
        ControlAccess::Write { index, gpr } => self::write(vcpu, vm, index, gpr, next),
        ControlAccess::Read { index, gpr } => read(vcpu, index, gpr, next),
        ControlAccess::Clts => write_cr0(vcpu, vm, vcpu.virt.cr0() & !cr0::TS, next),
        ControlAccess::LoadStatus(gpr) => load_status(vcpu, vm, vcpu.virt.gpr(gpr) as u16, next),
        ControlAccess::StoreStatus(gpr, size) => {
            store_status(vcpu, gpr, size);
            Outcome::Next(next)
        }
    })
}

/// SMSW to a register, with an operand of `size` bytes.
#[inline(always)]
pub(super) fn store_status<V: Virt>(vcpu: &mut Vcpu<V>, gpr: Gpr, size: u8) {
    let (old, cr0) = (vcpu.virt.gpr(gpr), vcpu.virt.cr0());
    // Words keep the rest of the register, doublewords clear its upper half.
    let kept = if size >= 4 { 0 } else { old & !mask(size) };
    vcpu.virt.set_gpr(gpr, kept | cr0 & mask(size));
}

/// LMSW.
fn load_status<V: Virt, M: HostMemory>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    value: u16,
    next: u64,
) -> Outcome {
    const LOADED: u64 = cr0::MP | cr0::EM | cr0::TS;
    // PE can be set, not cleared.
    let new = vcpu.virt.cr0() & !LOADED | u64::from(value) & (LOADED | cr0::PE);
    write_cr0(vcpu, vm, new, next)
}

fn read<V: Virt>(vcpu: &mut Vcpu<V>, index: u8, gpr: Gpr, next: u64) -> Outcome {
    let Some(value) = register(&vcpu.virt, index) else { return unexpected(vcpu, index) };
    vcpu.virt.set_gpr(gpr, value);
    Outcome::Next(next)
}

/// What the guest reads from a control register.
#[inline(always)]
pub(super) fn register<V: Virt>(virt: &V, index: u8) -> Option<u64> {
    Some(match index {
        0 => virt.cr0(),
        2 => virt.cr2(),
        3 => virt.cr3(),
        4 => virt.cr4(),
        8 => u64::from(virt.task_priority()),
        _ => return None,
    })
}

#[inline(always)]
fn write<V: Virt, M: HostMemory>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    index: u8,
    gpr: Gpr,
    next: u64,
) -> Outcome {
    // The upper half of a register is not part of a 32-bit operand.
    let mask = if vcpu.virt.is_64bit() { u64::MAX } else { 0xffff_ffff };
    let value = vcpu.virt.gpr(gpr) & mask;
    match index {
        3 => write_cr3(vcpu, vm, value, next),
        0 => write_cr0(vcpu, vm, value, next),
        4 => write_cr4(vcpu, vm, value, next),
        2 => {
            vcpu.virt.set_cr2(value);
            Outcome::Next(next)
        }
        8 if value > 15 => Outcome::Inject(Exception::GP0),
        8 => {
            vcpu.virt.set_task_priority(value as u8);
            vcpu.request(work::INTERRUPTS);
            Outcome::Next(next)
        }
        _ => unexpected(vcpu, index),
    }
}

#[cold]
fn unexpected<V: Virt>(vcpu: &Vcpu<V>, index: u8) -> Outcome {
    let what = alloc::format!("unexpected access to control register {index}");
    Outcome::Stop(died(vcpu, Cause::UnknownExit, what))
}

/// With PCIDs, bit 63 asks to keep what is cached; a flush more does no harm.
const CR3_KEEP: u64 = 1 << 63;

fn write_cr3<V: Virt, M: HostMemory>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    value: u64,
    next: u64,
) -> Outcome {
    let pcids = vcpu.virt.cr4() & cr4::PCIDE != 0;
    let value = if pcids { value & !CR3_KEEP } else { value };
    if value >> vm.paging_features.physical_bits.min(52) != 0 {
        return Outcome::Inject(Exception::GP0);
    }
    // Only PAE's page-directory pointers can refuse it, where the processor reads them at this moment (Intel SDM 3, 4.4.1).
    if load_cr3(vcpu, vm, value) { Outcome::Next(next) } else { Outcome::Inject(Exception::GP0) }
}

/// Gives the guest another CR3, whose reserved bits are clear. False: #GP(0), and nothing has changed.
#[must_use]
#[inline(always)]
pub(super) fn load_cr3<V: Virt, M: HostMemory>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    value: u64,
) -> bool {
    if !loads_pointers(vcpu, vm, |state| PagingState { cr3: value, ..state }) {
        return false;
    }
    vcpu.virt.set_cr3(value);
    if vm.translation.is_by_space() {
        mmu::spaces::loaded(vcpu);
    } else if vcpu.mmu.is_shadow() {
        mmu::load(vcpu, vm);
    } else {
        vcpu.virt.flush(FlushScope::All);
    }
    true
}

fn write_cr0<V: Virt, M: HostMemory>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    value: u64,
    next: u64,
) -> Outcome {
    let old = vcpu.virt.cr0();
    // ET is always set; the other reserved bits of the lower half are ignored.
    const WRITABLE: u64 =
        cr0::PE | cr0::MP | cr0::EM | cr0::TS | cr0::NE | cr0::WP | cr0::AM | cr0::NW | cr0::CD | cr0::PG;
    let new = value & WRITABLE | cr0::ET;
    let changed = old ^ new;
    let enables = changed & new & cr0::PG != 0;
    let disables = changed & old & cr0::PG != 0;
    let (four, ext) = (vcpu.virt.cr4(), vcpu.virt.efer());
    let long_code = vcpu.virt.segment(SegReg::Cs).attributes & Segment::LONG != 0;
    // AMD APM 2, 3.1.1 and 14.6.1.
    if value >> 32 != 0
        || new & (cr0::PG | cr0::PE) == cr0::PG
        || new & (cr0::NW | cr0::CD) == cr0::NW
        || enables && ext & efer::LME != 0 && (four & cr4::PAE == 0 || long_code)
        || disables && (four & cr4::PCIDE != 0 || vcpu.virt.is_64bit())
    {
        return Outcome::Inject(Exception::GP0);
    }
    // Long mode begins and ends with paging, not with EFER.LME.
    let ext = match () {
        () if enables && ext & efer::LME != 0 => ext | efer::LMA,
        () if disables => ext & !efer::LMA,
        () => ext,
    };
    if changed & (cr0::PG | cr0::CD | cr0::NW) != 0
        && !loads_pointers(vcpu, vm, |state| PagingState { cr0: new, efer: ext, ..state })
    {
        return Outcome::Inject(Exception::GP0);
    }
    vcpu.virt.set_cr0(new);
    if changed & (cr0::PG | cr0::PE) != 0 {
        vcpu.virt.set_efer(ext);
        // The set of engines that this state can run on may be another one now.
        vcpu.request(work::MMU);
    }
    // WP decides which shadow pages fit: a read-only leaf is writable for the supervisor without it.
    if changed & (cr0::PG | cr0::WP | cr0::PE) != 0 {
        follow_tables(vcpu, vm);
    }
    Outcome::Next(next)
}

/// The registers that decide how tables are read have changed: nothing that is cached counts, and with shadow tables it is
/// another root, which is found at once where no other tables may be due first.
fn follow_tables<V: Virt, M: HostMemory>(vcpu: &mut Vcpu<V>, vm: &Vm<V::NestedFormat, M>) {
    vcpu.virt.flush(FlushScope::All);
    if V::UNRESTRICTED && vcpu.mmu.is_shadow() {
        mmu::load(vcpu, vm);
    } else {
        vcpu.request_root();
    }
}

/// Loads what the processor keeps of the tables, for registers that become what `change` makes of them. False: #GP(0).
#[inline(always)]
fn loads_pointers<V: Virt, M: HostMemory>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    change: impl FnOnce(PagingState) -> PagingState,
) -> bool {
    if !V::HAS_PDPTRS {
        return true;
    }
    let state = change(PagingState::of(&vcpu.virt, vm.paging_features));
    pdptrs::load(vcpu, vm, &state)
}

/// CR4.PGE, PSE and so on: what is cached of the tables goes, or means something else (AMD APM 2, 5.5.2).
const TRANSLATING: u64 = cr4::PGE | cr4::PSE | cr4::PAE | cr4::PCIDE | cr4::SMEP | cr4::SMAP;

fn write_cr4<V: Virt, M: HostMemory>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    value: u64,
    next: u64,
) -> Outcome {
    let old = vcpu.virt.cr4();
    let long = vcpu.virt.efer() & efer::LMA != 0;
    // AMD APM 2, 5.5.1: PCIDs need long mode, and begin with PCID 0.
    let starts_pcid = value & !old & cr4::PCIDE != 0;
    if value & !vcpu.cpuid.limits().cr4 != 0
        || long && value & cr4::PAE == 0
        || starts_pcid && (!long || vcpu.virt.cr3() & 0xfff != 0)
        || old & !value & cr4::PCIDE != 0 && vcpu.virt.cr0() & cr0::PG == 0
    {
        return Outcome::Inject(Exception::GP0);
    }
    if (value ^ old) & (cr4::PAE | cr4::PGE | cr4::PSE | cr4::SMEP) != 0
        && !loads_pointers(vcpu, vm, |state| PagingState { cr4: value, ..state })
    {
        return Outcome::Inject(Exception::GP0);
    }
    vcpu.virt.set_cr4(value);
    // CPUID function 1 shows the bit, and leaf 0Dh what XCR0 enables.
    if (value ^ old) & cr4::OSXSAVE != 0 {
        vcpu.cpuid.refresh(value, vcpu.xcr0);
    }
    if (value ^ old) & TRANSLATING != 0 {
        follow_tables(vcpu, vm);
    }
    Outcome::Next(next)
}

/// The instruction at CS:RIP.
pub(super) fn current<V: Virt, M: HostMemory>(vcpu: &Vcpu<V>, vm: &Vm<V::NestedFormat, M>) -> Option<Insn> {
    let mut bytes = [0; MAX_LEN];
    let have = port::fetch(&vcpu.virt, vm, &mut bytes);
    decode(&bytes[..have], Mode::of(&vcpu.virt)).ok()
}

pub(super) fn after<V: Virt>(vcpu: &Vcpu<V>, insn: &Insn) -> u64 {
    let next = vcpu.virt.rip().wrapping_add(u64::from(insn.len));
    if insn.mode == Mode::Bits64 { next } else { next & 0xffff_ffff }
}

/// LMSW and SMSW of memory.
#[cold]
fn machine_status<V: Virt, M: HostMemory, H: Host>(cx: ExitContext<'_, V, M, H>) -> Outcome {
    let ExitContext { vcpu, vm, host, tsc } = cx;
    // Something else is at RIP by now: it is executed as what it is.
    let Some(insn) = current(vcpu, vm) else {
        stale_code(vcpu);
        return Outcome::Resume;
    };
    let next = after(vcpu, &insn);
    match insn.op {
        Op::System(System::Lmsw) => {
            with_port(ExitContext { vcpu, vm, host, tsc }, |virt, port| emulate::read_msw(&insn, virt, port))
                .map_or_else(|outcome| outcome, |value| load_status(vcpu, vm, value, next))
        }
        Op::System(System::Smsw) => {
            let cr0 = vcpu.virt.cr0();
            with_port(ExitContext { vcpu, vm, host, tsc }, |virt, port| {
                emulate::write_msw(&insn, virt, port, cr0)
            })
            .map_or_else(|outcome| outcome, |()| Outcome::Next(next))
        }
        _ => {
            stale_code(vcpu);
            Outcome::Resume
        }
    }
}

/// Runs `operands`, which reads or writes guest memory for one instruction.
pub(super) fn with_port<V: Virt, M: HostMemory, H: Host, T>(
    cx: ExitContext<'_, V, M, H>,
    operands: impl FnOnce(&mut V, &mut Port<'_, V::NestedFormat, M, H>) -> Result<T, Fault<port::PortStop>>,
) -> Result<T, Outcome> {
    let ExitContext { vcpu, vm, host, tsc } = cx;
    let paging = PagingState::of(&vcpu.virt, vm.paging_features);
    let mut port = Port::new(Bus::new(vm, &mut vcpu.lapic, host, tsc), paging, None);
    let result = operands(&mut vcpu.virt, &mut port);
    let left = port.bus.finish();
    match vcpu.after_access(&vm.mailboxes, left, Outcome::Resume) {
        Outcome::Resume => result.map_err(|fault| match fault {
            Fault::Exception(exception) => Outcome::Inject(exception),
            Fault::Stop(_) => Outcome::Resume,
        }),
        stop => Err(stop),
    }
}
