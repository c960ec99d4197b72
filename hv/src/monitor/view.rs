//! A VM as the monitor sees it, and commands carried out on it.
//!
//! Borrowed from the VM's owner while its VCPUs stand still. Answers are text; `show` writes the longer ones.

use alloc::boxed::Box;
use core::fmt::{self, Write};

use super::Leave;
use super::command::{COMMANDS, Command, Description};
use super::show::{guest, memory, paging, stats};
use crate::device::message::Messages;
use crate::guest::config::Mode;
use crate::guest::vm::{HostMemory, Vm};
use crate::mem::frame;
use crate::vcpu::outcome::Stop;
use crate::vcpu::{Vcpu, mmu, work};
use crate::virt::Virt;

/// The host for people.
#[derive(Clone, Debug, Default)]
pub struct HostReport {
    /// Frequency of the TSC.
    pub tsc_khz: u64,
    /// Physical processors.
    pub pcpus: usize,
    /// Frames in use and free.
    pub frames: frame::Stats,
    /// Bytes that the hypervisor's heap has taken.
    pub heap_bytes: u64,
}

/// One VM whose VCPUs stand still.
pub struct View<'a, V: Virt, M: HostMemory> {
    /// The VM.
    pub vm: &'a Vm<V::NestedFormat, M>,
    /// Its VCPUs, by number.
    pub vcpus: &'a mut [Box<Vcpu<V>>],
    /// Host TSC at its last start or reset.
    pub started: u64,
    /// Host TSC now.
    pub tsc: u64,
    /// The host.
    pub host: HostReport,
}

impl<V: Virt, M: HostMemory> View<'_, V, M> {
    /// Carries out a command; `clock` is the host's TSC. `Ok(Some(_))`: the person leaves the monitor for it.
    pub fn perform(
        &mut self,
        command: Command,
        paused: &mut bool,
        clock: &dyn Fn() -> u64,
        answer: &mut dyn Write,
    ) -> Result<Option<Leave>, fmt::Error> {
        match command {
            Command::Help(None) => help(answer)?,
            Command::Help(Some(command)) => explain(command, answer)?,
            Command::Vms => guest::vms(self, *paused, answer)?,
            Command::Vcpus => guest::vcpus(self, answer)?,
            Command::Registers(id) => match self.vcpus.get(id as usize) {
                Some(vcpu) => guest::registers(vcpu, answer)?,
                None => self.no_such_vcpu(id, answer)?,
            },
            Command::P2m(None) => memory::regions(self, answer)?,
            Command::P2m(Some(place)) => memory::translation(self, place, answer)?,
            Command::Walk(place) => memory::walk(self, place, answer)?,
            Command::Dump(place, bytes) => memory::dump(self, place, bytes, answer)?,
            Command::DumpPhysical(place, bytes) => memory::dump_physical(self, place, bytes, answer)?,
            Command::Stats => stats::stats(self, answer)?,
            Command::Mode(mode) => {
                mode.map_or(Ok(()), |mode| self.set_mode(mode, clock, answer))?;
                paging::mode(self, answer)?;
            }
            Command::Shadow => paging::shadow(self, answer)?,
            Command::Host => stats::host(&self.host, answer)?,
            Command::LogLevel(level) => {
                level.into_iter().for_each(log::set_max_level);
                writeln!(answer, "log level: {}", log::max_level())?;
            }
            Command::Nmi(id) => self.nmi(id, answer)?,
            Command::PowerButton => self.press_power_button(answer)?,
            Command::Pause => {
                *paused = true;
                writeln!(answer, "{} stands still until `resume`, also after you leave", self.vm.name)?;
            }
            Command::Resume => {
                *paused = false;
                return Ok(Some(Leave::Guest));
            }
            Command::Quit => return Ok(Some(Leave::Guest)),
            Command::Reset => return Ok(Some(Leave::Stop(Stop::Reset))),
            Command::PowerOff => return Ok(Some(Leave::Stop(Stop::PowerOff))),
        }
        Ok(None)
    }

    fn no_such_vcpu(&self, id: u32, answer: &mut dyn Write) -> fmt::Result {
        writeln!(answer, "no VCPU {id}; {} has {}, counted from 0", self.vm.name, self.vcpus.len())
    }

    fn set_mode(&mut self, mode: Mode, clock: &dyn Fn() -> u64, answer: &mut dyn Write) -> fmt::Result {
        for vcpu in self.vcpus.iter_mut() {
            if mmu::set_mode(vcpu, self.vm, mode, clock).is_err() {
                let pages = self.vm.shadow_pages;
                writeln!(
                    answer,
                    "the mode stays: the host has no memory for {pages} shadow pages (`shadow_pages`)"
                )?;
            }
        }
        Ok(())
    }

    fn nmi(&mut self, id: u32, answer: &mut dyn Write) -> fmt::Result {
        let Some(vcpu) = self.vcpus.get_mut(id as usize) else { return self.no_such_vcpu(id, answer) };
        vcpu.request(work::NMI);
        writeln!(answer, "VCPU {id} takes it as soon as the guest goes on")
    }

    fn press_power_button(&mut self, answer: &mut dyn Write) -> fmt::Result {
        let mut messages = Messages::new();
        self.vm.chipset.lock().press_power_button(self.vm.nanos(self.tsc), &mut messages);
        for message in messages.drain() {
            self.vcpus.iter_mut().for_each(|vcpu| vcpu.receive_one(&message));
        }
        writeln!(answer, "pressed; it is for the guest to act upon it once it goes on")
    }
}

fn help(answer: &mut dyn Write) -> fmt::Result {
    for command in COMMANDS {
        let Description { name, arguments, what, .. } = command;
        let blank = if arguments.is_empty() { "" } else { " " };
        let width = 20usize.saturating_sub(name.len() + blank.len());
        writeln!(answer, "  {name}{blank}{arguments:width$} {what}")?;
    }
    answer.write_str(
        "Any unmistakable beginning of a name will do. Addresses are hexadecimal, or a register:\n\
         rip, rax … r15, cr2, cr3; other numbers are decimal. Try: walk rip   x rsp 128   p2m fee00000\n",
    )
}

fn explain(command: &Description, answer: &mut dyn Write) -> fmt::Result {
    let Description { name, arguments, what, example, .. } = command;
    writeln!(answer, "  {name} {arguments}\n  {what}\n  for example: {example}")
}
