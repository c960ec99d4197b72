//! One virtual processor: the run loop, the dispatch of exits, instruction emulation.
//!
//! The way of an exit: `virt` decodes it, [`dispatch`] turns it into an [`outcome::Outcome`], [`run`] performs that, serves
//! what is pending ([`interrupts`]) and enters again.

mod apic_base;
pub mod bus;
pub mod dispatch;
pub mod host;
pub mod interrupts;
pub mod micro;
pub mod mmu;
pub mod next_rip;
pub mod old_code;
pub mod outcome;
pub mod port;
pub mod regions;
pub mod run;
pub mod sampling;

mod console;
mod control;
mod devices;
pub mod exit_context;
mod hypercall;
mod invalidate;
mod io;
mod memory_fault;
mod msr;
mod overcommit;
mod pdptrs;
mod quick_control;
mod startup;
mod task;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod time_stamp;
mod timers;
mod xcr;

use crate::arch::counters::VcpuCounts;
use crate::arch::state::Gpr;
use crate::device::lapic::{Abilities, Lapic};
use crate::emulate::DecodeCache;
use crate::guest::cpuid::CpuidTable;
use crate::guest::msr::MsrState;
use crate::trace::cost::Turns;
use crate::trace::exits::ExitCounts;
use crate::vcpu::interrupts::Interrupts;
use crate::vcpu::micro::Moves;
use crate::vcpu::mmu::Mmu;
use crate::vcpu::next_rip::NextRips;
use crate::vcpu::regions::OwnPhase;
use crate::virt::Virt;
use crate::vm::counter_page::CounterPage;
use crate::vm::pvclock::PvClock;
use crate::vm::work;

/// One VCPU. Everything here belongs to it alone; what it shares with others is in `vm::Vm`.
pub struct Vcpu<V: Virt> {
    /// Number in the VM and local APIC ID.
    pub id: u32,
    /// The hardware's control block and the registers.
    pub virt: V,
    /// The local APIC, in machine ticks.
    pub lapic: Lapic,
    /// Answers to CPUID.
    pub cpuid: CpuidTable,
    /// MSRs that exist in software only.
    pub msrs: MsrState,
    /// The paravirtual clock.
    pub pv_clock: PvClock,
    /// The page on which its kernel counts page faults.
    pub counter_page: CounterPage,
    /// XCR0, which is in the processor while the guest runs.
    pub xcr0: u64,
    /// Decoded instructions.
    pub decode: DecodeCache,
    /// Where intercepted instructions end.
    pub next_rips: NextRips,
    /// Address translation.
    pub mmu: Mmu,
    /// The pending-work word: see [`work`].
    pub work: u32,
    /// VCPUs of the same VM that have mail and do not know it yet, a bit for each.
    pub kicks: u64,
    /// External interrupts on their way into the guest.
    pub interrupts: Interrupts,
    /// Exit statistics.
    pub exits: ExitCounts,
    /// Nested fault statistics.
    pub faults: FaultCounts,
    /// What closed memory has to do with it.
    pub moves: Moves,
    /// Its phases of regioning.
    pub phase: OwnPhase,
    /// The cost of scheduling it, kept by its worker.
    pub turns: Turns,
    /// Its part of the PCPUs' performance counters.
    pub counts: VcpuCounts,
    /// Ticks of the host's TSC that it has run, up to the begin of its turn on a PCPU: kept by the worker of its PCPU.
    pub ran: u64,
    /// Host TSC at that begin.
    pub turn_began: u64,
    /// Host TSC at the end of the last exit that ended its turn.
    pub last_exit_ended: u64,
    /// How often it left the PCPU to others because it spun.
    pub yields: u64,
    /// Host TSC at which the PCPU's timer is armed, `u64::MAX` if it is not.
    pub armed: u64,
    /// The linear address at which a host interrupt found it last, on an emulation that [keeps old code](Virt::keeps_old_code).
    pub interrupted_at: u64,
    /// Host TSC at which the VCPU's or its VM's timers want to be looked at.
    pub due: u64,
    /// Host TSC at which they were last.
    pub timers_ran: u64,
    /// Host TSC at which it publishes what it has counted.
    pub publish_at: u64,
}

/// Counters of nested faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// The tables were brought up to date.
    pub filled: u64,
    /// The tables allowed the access already.
    pub spurious: u64,
    /// The instruction was executed in software.
    pub emulated: u64,
}

impl<V: Virt> Vcpu<V> {
    /// The VCPU `id`, as firmware leaves it: the boot processor (0) runs, the others wait for start-up.
    pub fn new(id: u32, virt: V, cpuid: CpuidTable, tsc_khz: u64) -> Vcpu<V> {
        let mut vcpu = Vcpu {
            id,
            virt,
            lapic: Lapic::after_firmware(id),
            cpuid,
            msrs: MsrState::default(),
            pv_clock: PvClock::new(tsc_khz as u32),
            counter_page: CounterPage::default(),
            xcr0: 1,
            decode: DecodeCache::new(),
            next_rips: NextRips::default(),
            mmu: Mmu::default(),
            work: if id == 0 { 0 } else { work::WAITS },
            kicks: 0,
            interrupts: Interrupts::default(),
            exits: ExitCounts::default(),
            faults: FaultCounts::default(),
            moves: Moves::default(),
            phase: OwnPhase::default(),
            turns: Turns::default(),
            counts: VcpuCounts::default(),
            ran: 0,
            turn_began: 0,
            last_exit_ended: 0,
            yields: 0,
            armed: u64::MAX,
            interrupted_at: u64::MAX,
            due: u64::MAX,
            timers_ran: 0,
            publish_at: 0,
        };
        let limits = vcpu.cpuid.limits();
        vcpu.lapic.set_abilities(Abilities {
            x2apic: limits.x2apic,
            tsc_deadline: limits.tsc_deadline,
            bsp_writable: !limits.amd,
        });
        vcpu.sign();
        vcpu
    }

    /// After RESET and INIT, EDX has family, model and stepping (AMD APM 2, table 14-1).
    fn sign(&mut self) {
        self.virt.set_gpr(Gpr::Rdx, self.cpuid.get(1, 0)[0].into());
    }

    /// Ticks that it has run by host TSC `tsc`, in a turn that goes on.
    pub fn ran_until(&self, tsc: u64) -> u64 {
        self.ran.wrapping_add(tsc.wrapping_sub(self.turn_began))
    }

    /// Its turn on a PCPU has ended, by host TSC `tsc`.
    #[inline(always)]
    pub fn end_turn(&mut self, tsc: u64) {
        self.ran = self.ran_until(tsc);
    }

    /// The guest spins. Whether others should have the PCPU.
    fn should_yield(&mut self, others_wait: bool) -> bool {
        self.work &= !work::SPIN;
        let should_yield = others_wait && self.virt.ple_expired();
        self.yields += u64::from(should_yield);
        should_yield
    }

    /// Asks for `bits` of [`work`] to be looked at before the next entry.
    #[inline(always)]
    pub fn request(&mut self, bits: u32) {
        self.work |= bits;
    }
}
