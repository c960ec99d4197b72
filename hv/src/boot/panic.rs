//! The ends that the hypervisor cannot avoid: a broken invariant, or a machine that it cannot use.
//!
//! A panic says what broke, shows registers and a backtrace, and ends the machine. It takes no lock and no heap. A panic
//! inside a panic prints its message only; a third one ends the machine at once. The first PCPU that panics stops all others
//! by NMIs, so that there is one report; another one's panic meanwhile is not told.

use core::fmt::{self, Display, Write};
use core::panic::PanicInfo;
use core::sync::atomic::{AtomicU32, Ordering};

use abi::telemetry::{Kind, VERSION};

use super::percpu::PerCpu;
use super::trap::TrapFrame;
use super::{console, image, log, percpu, screen};
use crate::hw::{cpu, lapic, pm};
use crate::trace::json::{Escape, Quoted};

/// The PCPU that has panicked.
static REPORTER: AtomicU32 = AtomicU32::new(NONE);
const NONE: u32 = u32::MAX;
/// How many panics have begun on it.
static DEPTH: AtomicU32 = AtomicU32::new(0);
/// How often it looks whether another PCPU has stopped: a fraction of a second. One may be where NMIs do not reach it.
const STOP_POLLS: u32 = 1_000_000;
/// Frames shown at most.
const MAX_FRAMES: usize = 32;

/// Puts the hypervisor's prefix before every line but the first.
struct Lines<W>(W);

impl<W: Write> Write for Lines<W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for (i, line) in text.split('\n').enumerate() {
            if i > 0 {
                self.0.write_str("\n[hv] panic: ")?;
            }
            self.0.write_str(line)?;
        }
        Ok(())
    }
}

/// All that is known about a panic.
struct Report<'a> {
    message: fmt::Arguments<'a>,
    frame: Option<&'a TrapFrame>,
    rbp: u64,
    brief: bool,
}

impl Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.message)?;
        if self.brief {
            return Ok(());
        }
        if let Some(frame) = self.frame {
            write!(f, "\n{frame}")?;
        }
        f.write_str("\nbacktrace:")?;
        backtrace(self.rbp, |address| write!(f, " {address:#x}"))
    }
}

/// Calls `each` with the return addresses found by following frame pointers from `rbp`, as long as they climb
/// within the hypervisor's own memory and lead into its code.
fn backtrace(mut rbp: u64, mut each: impl FnMut(u64) -> fmt::Result) -> fmt::Result {
    for _ in 0..MAX_FRAMES {
        // The chain may be what broke: nothing is read that was not checked.
        if !rbp.is_multiple_of(8) || !percpu::holds_stack(rbp) {
            break;
        }
        // SAFETY: the two words lie in mapped memory that only holds plain data.
        let [next, address] = unsafe { *(rbp as *const [u64; 2]) };
        if !image::text().contains(&address) {
            break;
        }
        each(address)?;
        if next <= rbp {
            break;
        }
        rbp = next;
    }
    Ok(())
}

/// Stops the PCPU that executes this, if another one has panicked.
pub fn stop_if_over() {
    let reporter = REPORTER.load(Ordering::Acquire);
    if reporter != NONE && percpu::current_index() != Some(reporter) {
        // SAFETY: there is a PCPU that has panicked, and this is another one: all are installed before they are listed.
        unsafe { PerCpu::current() }.stopped.store(true, Ordering::Release);
        cpu::halt_forever()
    }
}

/// Stops all PCPUs but this one, as far as they can be stopped.
fn stop_others(me: u32) {
    let others = percpu::all().filter(|pcpu| pcpu.index != me);
    others.clone().for_each(|pcpu| lapic::send_nmi(pcpu.apic_id()));
    for pcpu in others {
        let stopped = || pcpu.stopped.load(Ordering::Acquire);
        let _stopped = (0..STOP_POLLS).any(|_| {
            stopped() || {
                core::hint::spin_loop();
                false
            }
        });
    }
}

fn end(message: fmt::Arguments<'_>, frame: Option<&TrapFrame>, rbp: u64) -> ! {
    // No handler may run in a hypervisor whose invariants are broken.
    cpu::cli();
    let me = percpu::current_index().unwrap_or(0);
    match REPORTER.compare_exchange(NONE, me, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => stop_others(me),
        // Lost the race, or this is the reporter's own second panic, which returns from here.
        Err(_) => stop_if_over(),
    }
    let depth = DEPTH.fetch_add(1, Ordering::Relaxed);
    if depth < 2 {
        let report = Report { message, frame, rbp, brief: depth > 0 };
        // An error of a port cannot be reported anywhere. The locks of the log may be held for ever: they are bypassed.
        // SAFETY: this is the only PCPU that runs, or else one that does not come out of its lock, and it does not return.
        unsafe {
            screen::seize();
            console::seize();
        }
        let mut console = log::console();
        // Errors of the ports are ignored: the panic goes on to whatever else can show it.
        let _ = write!(Lines(console), "\n{report}");
        let _ = console.write_str("\n");
        if let Some(mut port) = log::telemetry() {
            let _ = write!(port, "\n{{\"v\":{VERSION},\"t\":\"{}\",\"msg\":\"", Kind::Panic);
            let _ = write!(Escape(port), "{report}");
            let _ = port.write_str("\"}\n");
        }
    }
    log::drain();
    pm::end_machine(pm::STATUS_PANIC)
}

/// The panic handler's body.
pub fn panic(info: &PanicInfo<'_>) -> ! {
    end(format_args!("{info}"), None, cpu::frame_pointer())
}

/// Ends the hypervisor because of an exception in it.
pub fn exception(frame: &TrapFrame, name: &str) -> ! {
    let message =
        format_args!("{name}, vector {}, error {:#x}, at {:#x}", frame.vector, frame.error, frame.rip);
    end(message, Some(frame), frame.rbp)
}

/// Ends because the host machine cannot run guests.
pub fn unsuitable(reason: impl Display) -> ! {
    ::log::error!(target: log::RECORDED, "{reason}");
    log::record(format_args!(r#"{{"v":{VERSION},"t":"{}","detail":{}}}"#, Kind::Unsuitable, Quoted(&reason)));
    log::drain();
    pm::end_machine(pm::STATUS_UNSUITABLE)
}
