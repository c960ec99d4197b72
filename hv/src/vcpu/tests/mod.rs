//! The run loop and the dispatch of exits, over a real VM, with a scripted VCPU on a scripted PCPU.
//!
//! A step of a script is what the guest does between an entry and the next exit. It may look at everything that the
//! hypervisor did since the last one; what happened in the end is looked at after the run.

mod agile_time;
mod apic_base;
mod console;
mod control;
mod counter_page;
mod devices;
mod events;
mod guest_regions;
mod instructions;
mod interrupts;
mod map_changes;
mod memory;
mod micro;
mod modes;
mod old_code;
mod pieces;
mod random;
mod regions;
mod spaces;
mod speculation;
mod tiers;
mod time;
mod time_stamp;
mod trees;

use crate::arch::state::{Gpr, VcpuState};
use crate::virt::fake::Fake;
use crate::virt::{Exit, IoExit};

/// x2APIC MSRs.
mod x2apic {
    pub const TPR: u32 = 0x808;
    pub const EOI: u32 = 0x80b;
    pub const ICR: u32 = 0x830;
    pub const LVT_TIMER: u32 = 0x832;
    pub const INITIAL_COUNT: u32 = 0x838;
    pub const CURRENT_COUNT: u32 = 0x839;
    pub const DIVIDE: u32 = 0x83e;
    pub const SELF_IPI: u32 = 0x83f;
}

/// WRMSR
fn wrmsr(fake: &mut Fake, msr: u32, value: u64) -> Exit {
    fake.set_gpr(Gpr::Rcx, msr.into());
    fake.set_gpr(Gpr::Rax, value & 0xffff_ffff);
    fake.set_gpr(Gpr::Rdx, value >> 32);
    Exit::Wrmsr
}

/// RDMSR
fn rdmsr(fake: &mut Fake, msr: u32) -> Exit {
    fake.set_gpr(Gpr::Rcx, msr.into());
    Exit::Rdmsr
}

/// What RDMSR left.
fn answer(fake: &Fake) -> u64 {
    fake.gpr(Gpr::Rdx) << 32 | fake.gpr(Gpr::Rax)
}

/// OUT
fn out(fake: &mut Fake, port: u16, size: u8, value: u32) -> Exit {
    fake.set_gpr(Gpr::Rax, value.into());
    Exit::Io(IoExit { port, size, input: false, string: false, next_rip: fake.next_rip })
}

/// IN
fn input(fake: &Fake, port: u16, size: u8) -> Exit {
    Exit::Io(IoExit { port, size, input: true, string: false, next_rip: fake.next_rip })
}
