//! Ends of the host machine: QEMU's isa-debug-exit device, ACPI power off, reset.
//!
//! Set up once by `boot`; takes no locks, because a panic ends here too. ACPI 6.5, 4.8.3.2 (PM1 control) and 4.8.3.6
//! (reset register).

use spin::Once;

use super::{cpu, port};

/// All went well.
pub const STATUS_OK: u32 = 0;
/// The hypervisor panicked.
pub const STATUS_PANIC: u32 = 4;
/// The host machine cannot run guests.
pub const STATUS_UNSUITABLE: u32 = 5;

/// What the hypervisor does when nothing is left to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitAction {
    /// Write the status to QEMU's `isa-debug-exit` device at this port.
    IsaDebug(u16),
    /// ACPI S5.
    PowerOff,
    /// Reset the machine.
    Reset,
    /// Stop with interrupts off, the log on the screen.
    Halt,
}

static ACTION: Once<ExitAction> = Once::new();
static SOFT_OFF: Once<SoftOff> = Once::new();
static RESET: Once<Reset> = Once::new();

/// How to enter S5.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SoftOff {
    /// PM1a control port.
    pub pm1a: u16,
    /// PM1b control port, 0 if there is none.
    pub pm1b: u16,
    /// SLP_TYP values for the two ports, from the `\_S5` package.
    pub types: [u8; 2],
    /// What to write to which port to switch the machine from legacy to ACPI mode, if firmware wants that.
    pub enable: Option<(u16, u8)>,
}

/// The ACPI reset register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reset {
    /// Its I/O port.
    pub port: u16,
    /// What to write there.
    pub value: u8,
}

/// What [`end_machine`] does; the first call counts.
pub fn set_action(action: ExitAction) {
    ACTION.call_once(|| action);
}

/// What ACPI says about power off and reset; the first call counts.
pub fn set_acpi(soft_off: Option<SoftOff>, reset: Option<Reset>) {
    if let Some(soft_off) = soft_off {
        SOFT_OFF.call_once(|| soft_off);
    }
    if let Some(reset) = reset {
        RESET.call_once(|| reset);
    }
}

/// Ends the machine as configured. Only isa-debug-exit carries the status out: QEMU exits with `status << 1 | 1`.
pub fn end_machine(status: u32) -> ! {
    match ACTION.get() {
        Some(ExitAction::IsaDebug(port)) => {
            // SAFETY: the port is the debug-exit device's, says the command line.
            unsafe { port::out32(*port, status) };
            // The emulator ends a moment later. Until then nothing more is executed, so that runs that repeat also end
            // after the same number of instructions.
            cpu::halt_forever()
        }
        Some(ExitAction::PowerOff) => power_off(),
        Some(ExitAction::Reset) => reset(),
        Some(ExitAction::Halt) | None => cpu::halt_forever(),
    }
}

/// Powers the machine off by ACPI's S5; halts if that is unknown or has no effect.
pub fn power_off() -> ! {
    const SLP_EN: u16 = 1 << 13;
    const SCI_EN: u16 = 1 << 0;
    if let Some(off) = SOFT_OFF.get() {
        // SAFETY: the ports are those of the FADT; a legacy-mode machine answers the SMI by setting SCI_EN.
        unsafe {
            if let Some((port, value)) = off.enable.filter(|_| port::in16(off.pm1a) & SCI_EN == 0) {
                port::out8(port, value);
                let _entered = (0..1_000_000).any(|_| port::in16(off.pm1a) & SCI_EN != 0);
            }
        }
        for (port, slp_typ) in [(off.pm1a, off.types[0]), (off.pm1b, off.types[1])] {
            if port != 0 {
                // SAFETY: the port is the PM1 control register named by the FADT.
                unsafe { port::out16(port, u16::from(slp_typ & 7) << 10 | SLP_EN) };
            }
        }
    }
    cpu::halt_forever()
}

/// Resets the machine: by the ACPI reset register, port CF9h, the keyboard controller, and at last a triple fault.
pub fn reset() -> ! {
    let pause = || (0..100_000).for_each(|_| core::hint::spin_loop());
    // SAFETY: these are the machine's reset registers, and nothing is to survive.
    unsafe {
        if let Some(reset) = RESET.get() {
            port::out8(reset.port, reset.value);
            pause();
        }
        // The kind of reset first; the rising bit 2 then performs it.
        port::out8(0xcf9, 0x02);
        port::out8(0xcf9, 0x06);
        pause();
        port::out8(0x64, 0xfe);
        pause();
        // Without gates any exception is a triple fault, which shuts the processor down; PCs reset then.
        cpu::load_idt(&cpu::TablePointer::default());
        core::arch::asm!("ud2", options(noreturn));
    }
}
