//! A VM as the monitor sees it, and commands carried out on it.
//!
//! Borrowed from the VM's owner while its VCPUs are paused. Answers are text; `show` writes the longer ones.

use alloc::boxed::Box;
use core::fmt::{self, Write};

use super::command::Command;
use super::show::{guest, memory, paging, regions, stats, tiers};
use crate::device::message::Messages;
use crate::mem::frame;
use crate::mem::frame_record::Kind;
use crate::paging::policy::Mode;
use crate::vcpu::{Vcpu, mmu};
use crate::virt::Virt;
use crate::vm::work;
use crate::vm::{HostMemory, Vm};

/// Facts about the host.
#[derive(Clone, Debug, Default)]
pub struct HostReport {
    /// Frequency of the TSC.
    pub tsc_khz: u64,
    /// Physical processors that run guests.
    pub pcpus: usize,
    /// Frames in use and free.
    pub frames: frame::Stats,
    /// Frames by [`Kind`], if the machine has records of them.
    pub kinds: Option<[u64; Kind::COUNT]>,
    /// Size of the hypervisor's heap in bytes.
    pub heap_bytes: u64,
}

/// One VM whose VCPUs are paused.
pub struct View<'a, V: Virt, M: HostMemory> {
    /// The VM.
    pub vm: &'a Vm<V::NestedFormat, M>,
    /// Its VCPUs, by number.
    pub vcpus: &'a mut [Box<Vcpu<V>>],
    /// Host TSC at its last start or reset.
    pub started: u64,
    /// Host TSC now.
    pub tsc: u64,
    /// Reads the host's TSC.
    pub clock: &'a dyn Fn() -> u64,
}

impl<V: Virt, M: HostMemory> View<'_, V, M> {
    /// Carries out a command about this VM and its host.
    pub fn perform(&mut self, command: Command<'_>, answer: &mut dyn Write) -> fmt::Result {
        match command {
            Command::Vcpus => guest::vcpus(self, answer),
            Command::Registers(id) => match self.vcpus.get(id as usize) {
                Some(vcpu) => guest::registers(vcpu, answer),
                None => self.no_such_vcpu(id, answer),
            },
            Command::P2m(None) => memory::regions(self, answer),
            Command::P2m(Some(place)) => memory::translation(self, place, answer),
            Command::Walk(place) => memory::walk(self, place, answer),
            Command::Dump(place, bytes) => memory::dump(self, place, bytes, answer),
            Command::DumpPhysical(place, bytes) => memory::dump_physical(self, place, bytes, answer),
            Command::Stats => stats::stats(self, answer),
            Command::Mode(mode) => {
                mode.map_or(Ok(()), |mode| self.set_mode(mode, answer))?;
                paging::mode(self, answer)
            }
            Command::Shadow => paging::shadow(self, answer),
            Command::Agile => paging::agile(self, answer),
            Command::FindRegions(wanted) => {
                regions::want(self, wanted);
                regions::regions(self, answer)
            }
            Command::Regions(placement) => {
                placement.map_or(Ok(()), |(region, to)| regions::place(self, region, to, answer))?;
                regions::regions(self, answer)
            }
            Command::Tiers(state) => {
                state.map_or(Ok(()), |state| tiers::set(self, state, answer))?;
                tiers::tiers(self, answer)
            }
            Command::Nmi(id) => self.nmi(id, answer),
            Command::PowerButton => self.press_power_button(answer),
            // These are the monitor's own.
            Command::Help(_)
            | Command::Host
            | Command::Vms
            | Command::AllTiers(_)
            | Command::Balloon(..)
            | Command::LogLevel(_)
            | Command::Act(..)
            | Command::Select(_)
            | Command::Console(_)
            | Command::Quit => Ok(()),
        }
    }

    fn no_such_vcpu(&self, id: u32, answer: &mut dyn Write) -> fmt::Result {
        writeln!(answer, "no VCPU {id}; {} has {}, numbered from 0", self.vm.name, self.vcpus.len())
    }

    fn set_mode(&mut self, mode: Mode, answer: &mut dyn Write) -> fmt::Result {
        let Some((first, others)) = self.vcpus.split_first_mut() else { return Ok(()) };
        let done = mmu::set_mode(first, self.vm, mode, self.clock).and_then(|()| {
            others.iter_mut().try_for_each(|vcpu| mmu::follow_mode(vcpu, self.vm, self.clock))
        });
        if done.is_err() {
            let pages = self.vm.shadow_limit.pages;
            writeln!(
                answer,
                "mode not changed: the host has no memory for {pages} shadow pages (`shadow_pages`)"
            )?;
        }
        Ok(())
    }

    fn nmi(&mut self, id: u32, answer: &mut dyn Write) -> fmt::Result {
        let Some(vcpu) = self.vcpus.get_mut(id as usize) else { return self.no_such_vcpu(id, answer) };
        vcpu.request(work::NMI);
        writeln!(answer, "NMI pending; VCPU {id} takes it when the guest resumes")
    }

    fn press_power_button(&mut self, answer: &mut dyn Write) -> fmt::Result {
        let mut messages = Messages::new();
        self.vm.chipset.lock().press_power_button(self.vm.nanos(self.tsc), &mut messages);
        if let Some(first) = self.vcpus.first_mut() {
            first.receive(&self.vm.mailboxes, &mut messages);
        }
        writeln!(answer, "power button pressed; the guest sees it when it resumes")
    }
}
