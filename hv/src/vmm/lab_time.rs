//! Modelled time (`lab-time=on`): the lab machine's counters behind [`ModelledClock`].
//!
//! The hypervisor's one clock then: [`Machine::now`](super::machine::Machine::now) and the workers' `Pcpu` read it in place of the
//! TSC, so that VMs, scheduler, statistics and records follow it. Durations of the host itself (a lost interrupt, a processor
//! that does not answer) stay in ticks of the host's TSC. docs/design/0020-modelled-time.md.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::backend::Backend;
use super::counters;
use crate::boot::host::Host;
use crate::boot::percpu;
use crate::hw::cpu;
use crate::hw::pmu::lab::Lab;
use crate::smp::modelled::{ModelledClock, PcpuClock, Reading};

/// The clock of a lab machine, and what it reads.
pub struct LabTime {
    clock: ModelledClock,
    /// By the indices of the PCPUs.
    counters: Vec<Lab>,
}

/// The same for one PCPU, which reads it often.
pub struct PcpuTime {
    clock: PcpuClock<'static>,
    counters: &'static Lab,
}

impl PcpuTime {
    /// The time. The PCPU itself executes this.
    #[inline]
    pub fn now(&self) -> u64 {
        self.clock.now(self.counters.cycles(), cpu::rdtsc_unordered)
    }

    /// As [`LabTime::resume`], by the PCPU itself.
    #[inline]
    pub fn resume(&self, pcpu: u32) {
        self.clock.resume(pcpu as usize, self.counters.cycles(), cpu::rdtsc_unordered);
    }

    /// The host's TSC for a timer of the PCPU, which executes this and has just read the time: [`PcpuClock::host_deadline`].
    pub fn host_deadline(&self, tsc: u64, deadline: u64, is_halted: bool) -> u64 {
        self.clock.host_deadline(tsc, deadline, is_halted)
    }
}

impl LabTime {
    /// The clock that the command line asks for, if it does.
    ///
    /// # Errors
    /// Why there is none. A run in real time would give figures that are taken for modelled ones.
    pub fn start<B: Backend>(host: &Host) -> Result<Option<LabTime>, String> {
        if !host.options.lab_time {
            return Ok(None);
        }
        let time = Self::find::<B>(host).map_err(|why| format!("lab-time=on: {why}"))?;
        log::info!("time follows the lab machine's cycles, at {} kHz", time.clock.khz());
        Ok(Some(time))
    }

    fn find<B: Backend>(host: &Host) -> Result<LabTime, String> {
        if !B::MODELLED_TIME {
            return Err("lab machines have AMD-V".to_string());
        }
        let Some(address) = host.options.lab else {
            return Err("this is no lab machine; start it by `pal run --lab NAME --lab-time`".to_string());
        };
        let pcpus = percpu::all().map(|pcpu| counters::map_lab(address, pcpu.index));
        let counters = pcpus.collect::<Result<Vec<_>, _>>()?;
        let khz = counters.first().map_or(0, |(_, khz)| *khz);
        if khz == 0 {
            return Err("the lab machine's clock has 0 kHz".to_string());
        }
        let counters: Vec<Lab> = counters.into_iter().map(|(lab, _)| lab).collect();
        let clock = ModelledClock::new(counters.len(), khz, host.tsc_khz, cpu::rdtsc());
        let time = LabTime { clock, counters };
        time.resume(host.cpu.index);
        Ok(time)
    }

    /// Its frequency.
    pub fn khz(&self) -> u64 {
        self.clock.khz()
    }

    /// The clock as PCPU `pcpu` reads it; each has counters.
    pub fn of(&'static self, pcpu: u32) -> Option<PcpuTime> {
        let counters = self.counters.get(pcpu as usize)?;
        Some(PcpuTime { clock: self.clock.of(pcpu as usize)?, counters })
    }

    #[inline]
    fn read(&self, pcpu: u32) -> Reading {
        // A PCPU without counters would show a counter that does not move, and the clock knows what to do then.
        let cycles = self.counters.get(pcpu as usize).map_or(0, Lab::cycles);
        Reading { cycles, tsc: cpu::rdtsc_unordered() }
    }

    /// The time. PCPU `pcpu` executes this.
    #[inline]
    pub fn now(&self, pcpu: u32) -> u64 {
        self.clock.now(pcpu as usize, self.read(pcpu))
    }

    /// PCPU `pcpu`, which executes this, is about to look whether there is something to do before it is halted.
    pub fn look(&self, pcpu: u32) {
        self.clock.look(pcpu as usize);
    }

    /// PCPU `pcpu`, which executes this, is about to be halted.
    pub fn halt(&self, pcpu: u32) {
        self.clock.halt(pcpu as usize, self.read(pcpu));
    }

    /// PCPU `pcpu` is about to be sent an interrupt by the one that executes this.
    pub fn wake(&self, pcpu: u32) {
        self.clock.wake(pcpu as usize);
    }

    /// PCPU `pcpu`, which executes this, was halted, or begins to run guests.
    pub fn resume(&self, pcpu: u32) {
        self.clock.resume(pcpu as usize, self.read(pcpu));
    }

    /// Says once if a counter has stopped.
    pub fn check(&self, pcpu: u32) {
        if self.clock.take_failure() {
            log::error!(
                "the lab machine's cycles of PCPU {pcpu} or another do not advance: from now on time follows the processor's clock"
            );
        }
    }
}
