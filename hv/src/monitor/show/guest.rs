//! VCPUs, registers.

use core::fmt::{self, Write};

use crate::arch::dump::Registers;
use crate::arch::state::{ArchState, SegReg, VcpuState, cr0};
use crate::monitor::view::View;
use crate::vcpu::Vcpu;
use crate::virt::Virt;
use crate::vm::HostMemory;
use crate::vm::work;

/// The VCPUs.
pub fn vcpus<V: Virt, M: HostMemory>(view: &View<'_, V, M>, answer: &mut dyn Write) -> fmt::Result {
    writeln!(
        answer,
        "{:>4} {:<8} {:<9} {:>3}  {:<18} {:>12}  pending",
        "VCPU", "state", "code", "CPL", "RIP", "exits"
    )?;
    for vcpu in view.vcpus.iter() {
        let halted = vcpu.work & work::HALTED != 0;
        write!(
            answer,
            "{:>4} {:<8} {:<9} {:>3}  {:#018x} {:>12} ",
            vcpu.id,
            if halted { "halted" } else { "running" },
            code(&vcpu.virt),
            vcpu.virt.cpl(),
            vcpu.virt.rip(),
            vcpu.exits.total().count,
        )?;
        pending(vcpu, answer)?;
    }
    Ok(())
}

/// The mode the VCPU's code runs in.
fn code(state: &impl VcpuState) -> &'static str {
    match (state.cr0() & cr0::PE != 0, state.code_bitness()) {
        (false, _) => "real mode",
        (true, 64) => "64-bit",
        (true, 32) => "32-bit",
        (true, _) => "16-bit",
    }
}

/// What happens before the next entry.
fn pending<V: Virt>(vcpu: &Vcpu<V>, answer: &mut dyn Write) -> fmt::Result {
    let bits = [(work::NMI, " NMI"), (work::INTERRUPTS, " interrupts"), (work::TIMERS, " timers")];
    for (bit, name) in bits {
        if vcpu.work & bit != 0 {
            answer.write_str(name)?;
        }
    }
    if let Some(vector) = vcpu.lapic.pending() {
        write!(answer, " vector {vector:#04x}")?;
    }
    if vcpu.virt.event_pending() {
        answer.write_str(" event")?;
    }
    writeln!(answer)
}

/// All registers of a VCPU.
pub fn registers<V: Virt>(vcpu: &Vcpu<V>, answer: &mut dyn Write) -> fmt::Result {
    const SWITCHED: [(u32, &str); 6] = [
        (0xc000_0081, "STAR"),
        (0xc000_0082, "LSTAR"),
        (0xc000_0084, "SFMASK"),
        (0xc000_0100, "FS.base"),
        (0xc000_0101, "GS.base"),
        (0xc000_0102, "KernelGSbase"),
    ];
    let state = ArchState::load(&vcpu.virt);
    writeln!(answer, "{}", Registers(&state))?;
    for (name, seg) in [("ES", SegReg::Es), ("LDTR", SegReg::Ldtr), ("TR", SegReg::Tr)] {
        let segment = state.segment(seg);
        writeln!(
            answer,
            "{name} {:04x} base {:016x} limit {:08x} attributes {:03x}",
            segment.selector, segment.base, segment.limit, segment.attributes
        )?;
    }
    writeln!(answer, "DR6 {:08x} DR7 {:08x} XCR0 {:x}", state.dr6, state.dr7, vcpu.xcr0)?;
    let mut separator = "";
    for (index, name) in SWITCHED {
        if let Some(value) = vcpu.virt.switched_msr(index) {
            write!(answer, "{separator}{name} {value:016x}")?;
            separator = if separator == " " { "\n" } else { " " };
        }
    }
    if !separator.is_empty() {
        writeln!(answer)?;
    }
    write!(answer, "local APIC: TPR {:02x} PPR {:02x}", vcpu.lapic.tpr(), vcpu.lapic.ppr())?;
    match vcpu.lapic.pending() {
        Some(vector) => writeln!(answer, ", vector {vector:02x} pending"),
        None => writeln!(answer, ", no interrupt pending"),
    }
}
