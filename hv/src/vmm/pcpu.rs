//! The PCPU that runs a VCPU: its timer, its interrupts, the shared console.

use core::sync::atomic::Ordering;

use heapless::Deque;

use crate::boot::console::Console;
use crate::boot::panic;
use crate::boot::percpu::{PerCpu, work};
use crate::hw::timer::Timer;
use crate::hw::{cpu, fpu, lapic, msr};
use crate::monitor::{Key, Terminal};
use crate::vcpu::host::Host;
use crate::vcpu::mailbox::Mailbox;
use crate::virt::state::cr4;
use crate::vmm::console::{Escapes, HELP, Input};

/// One PCPU for the run loop.
pub struct Pcpu {
    cpu: &'static PerCpu,
    timer: Timer,
    console: Console,
    escapes: Escapes,
    /// Input that the guest has no room for yet. When it is full, bytes stay in the serial port.
    input: Deque<u8, 256>,
    /// Output that the serial port had no room for.
    held: Option<u8>,
    /// The person has asked for the monitor. What follows is for it and stays in the serial port.
    monitor_wanted: bool,
}

impl Pcpu {
    /// The PCPU that executes this. Turns the console's receive interrupt on.
    pub fn new(cpu: &'static PerCpu, timer: Timer, console: Console) -> Pcpu {
        console.set_receive_interrupt(true);
        Pcpu {
            cpu,
            timer,
            console,
            escapes: Escapes::default(),
            input: Deque::new(),
            held: None,
            monitor_wanted: false,
        }
    }

    /// Puts the FPU, which belongs to guests, into its state after reset.
    pub fn reset_fpu(&mut self) {
        if cpu::cr4() & cr4::OSXSAVE != 0 {
            // SAFETY: all components that the processor has, so that all are reset below; then what RESET leaves.
            unsafe { cpu::xsetbv(0, fpu::supported_components()) };
        }
        // SAFETY: XCR0 holds everything, and the last guest's values are not needed.
        unsafe { fpu::FpuState::new().restore() };
        if cpu::cr4() & cr4::OSXSAVE != 0 {
            // SAFETY: x87 alone is always valid.
            unsafe { cpu::xsetbv(0, 1) };
        }
    }

    /// Sends held output, if the serial port takes it in time.
    pub fn flush_output(&mut self) {
        if let Some(byte) = self.held.take() {
            self.console.write_bytes(&[byte]);
        }
    }

    /// Moves received bytes to the queue, as far as there is room and the monitor is not asked for.
    fn drain_port(&mut self) {
        self.cpu.pending.fetch_and(!work::CONSOLE, Ordering::Relaxed);
        while !self.input.is_full() && !self.monitor_wanted {
            match self.take_input() {
                Some(Input::Byte(byte)) => {
                    let _has_room = self.input.push_back(byte);
                }
                Some(Input::Monitor) => self.monitor_wanted = true,
                Some(Input::None | Input::Help) => {}
                None => return,
            }
        }
    }

    /// Takes one byte out of the serial port.
    fn take_input(&mut self) -> Option<Input> {
        let input = self.escapes.feed(self.console.try_read()?);
        if input == Input::Help {
            log::info!("{HELP}");
        }
        Some(input)
    }

    /// Waits until at least one host interrupt has been taken, also one that has come and got lost before.
    pub fn idle(&mut self) {
        // Input that the guest has no room for is no reason to stay awake.
        if self.monitor_wanted || self.has_console_interrupt() {
            return;
        }
        self.wait_for_interrupt();
    }

    /// Halts until an interrupt has been taken, be it one that came while a guest left the processor.
    fn wait_for_interrupt(&self) {
        lapic::look_again();
        // SAFETY: the IDT is loaded and no lock is held that a handler takes (handlers take none).
        unsafe { cpu::wait_for_interrupt() }
    }

    fn has_console_interrupt(&self) -> bool {
        self.cpu.pending.load(Ordering::Relaxed) & work::CONSOLE != 0
    }
}

impl Host for Pcpu {
    #[inline(always)]
    fn tsc(&self) -> u64 {
        cpu::rdtsc_unordered()
    }

    fn arm_timer(&mut self, deadline: u64) {
        self.timer.arm(deadline, self.tsc());
    }

    fn timer_fired(&mut self) -> bool {
        self.cpu.pending.fetch_and(!work::TIMER, Ordering::Relaxed) & work::TIMER != 0
    }

    fn serve_interrupts(&mut self) {
        // SAFETY: the IDT is loaded and no lock is held that a handler takes (handlers take none).
        unsafe { cpu::interrupt_window() }
        // The NMI of a panic may have made the guest exit, and is over then.
        panic::stop_if_over();
    }

    fn kick(&mut self, _: &Mailbox) {}

    fn is_wanted(&mut self) -> bool {
        if self.has_console_interrupt() {
            self.drain_port();
        }
        core::mem::take(&mut self.monitor_wanted)
    }

    #[inline(always)]
    fn console_ready(&self) -> bool {
        !self.input.is_empty() || self.monitor_wanted || self.has_console_interrupt()
    }

    fn console_read(&mut self) -> Option<u8> {
        self.drain_port();
        self.input.pop_front()
    }

    #[inline]
    fn console_write(&mut self, byte: u8) -> bool {
        if self.held.is_none() && self.console.try_write(byte) {
            return true;
        }
        self.flush_output();
        self.held = Some(byte);
        false
    }

    fn console_writable(&mut self) -> bool {
        self.held.take_if(|byte| self.console.try_write(*byte));
        self.held.is_none()
    }

    fn xmm(&self, index: u8) -> u128 {
        fpu::xmm(index)
    }

    fn set_xmm(&mut self, index: u8, value: u128) {
        fpu::set_xmm(index, value);
    }

    fn mmx(&self, index: u8) -> Option<u64> {
        fpu::mmx(index)
    }

    fn set_mmx(&mut self, index: u8, value: u64) {
        fpu::set_mmx(index, value);
    }

    fn xcr0(&self) -> u64 {
        if cpu::cr4() & cr4::OSXSAVE == 0 {
            return 1;
        }
        // SAFETY: CR4.OSXSAVE is set.
        unsafe { cpu::xgetbv(0) }
    }

    fn set_xcr0(&mut self, value: u64) {
        // SAFETY: the caller has checked the value against what the processor has; CR4.OSXSAVE was set at start.
        unsafe { cpu::xsetbv(0, value) }
    }

    fn set_tsc_aux(&mut self, value: u64) {
        // SAFETY: guests are offered TSC_AUX only where the processor has it, and the host does not use it.
        unsafe { msr::write(msr::TSC_AUX, value) }
    }
}

impl Terminal for Pcpu {
    fn now(&self) -> u64 {
        self.tsc()
    }

    fn key(&mut self) -> Key {
        loop {
            // The port's interrupt comes with the first byte only: read until it is empty, then wait.
            self.cpu.pending.fetch_and(!work::CONSOLE, Ordering::Relaxed);
            while let Some(input) = self.take_input() {
                match input {
                    Input::Byte(byte) => return Key::Byte(byte),
                    Input::Monitor => return Key::Monitor,
                    Input::None | Input::Help => {}
                }
            }
            if !self.has_console_interrupt() {
                self.wait_for_interrupt();
            }
        }
    }

    fn write(&mut self, byte: u8) {
        self.console.write_bytes(&[byte]);
    }
}
