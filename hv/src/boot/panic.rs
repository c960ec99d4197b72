//! The end of the hypervisor: what broke, registers, a backtrace, and the machine goes off.
//!
//! Takes no lock and no heap. A panic inside a panic prints its message only; a third one ends the machine at once.

use core::fmt::{self, Write};
use core::panic::PanicInfo;
use core::sync::atomic::{AtomicU32, Ordering};

use super::image;
use super::trap::TrapFrame;
use crate::hw::{cpu, pm, uart};

/// How many panics have begun.
static DEPTH: AtomicU32 = AtomicU32::new(0);
/// Frames printed at most.
const MAX_FRAMES: usize = 32;

/// Puts the hypervisor's prefix before every line.
struct Lines(uart::Uart);

impl Write for Lines {
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

fn report(message: fmt::Arguments<'_>, frame: Option<&TrapFrame>, rbp: u64) -> ! {
    cpu::cli();
    let depth = DEPTH.fetch_add(1, Ordering::Relaxed);
    if depth < 2 {
        let mut out = Lines(super::log::port());
        let _ = write!(out, "\n{message}");
        if depth == 0 {
            if let Some(frame) = frame {
                let _ = write!(out, "\n{frame}");
            }
            let _ = out.write_str("\nbacktrace:");
            backtrace(rbp, |address| {
                let _ = write!(out, " {address:#x}");
            });
        }
        let _ = out.0.write_str("\n");
    }
    pm::end_machine(pm::STATUS_PANIC)
}

/// Calls `each` with the return addresses found by following frame pointers from `rbp`, as long as they climb
/// within the hypervisor's own memory and lead into its code.
fn backtrace(mut rbp: u64, mut each: impl FnMut(u64)) {
    for _ in 0..MAX_FRAMES {
        if rbp == 0 || !rbp.is_multiple_of(8) || !image::holds_stack(rbp) {
            return;
        }
        // SAFETY: the two words lie in mapped memory that only holds plain data.
        let [next, address] = unsafe { *(rbp as *const [u64; 2]) };
        if !image::text().contains(&address) {
            return;
        }
        each(address);
        if next <= rbp {
            return;
        }
        rbp = next;
    }
}

/// The panic handler's body.
pub fn panic(info: &PanicInfo<'_>) -> ! {
    report(format_args!("{info}"), None, cpu::frame_pointer())
}

/// Ends the hypervisor because of an exception in it.
pub fn exception(frame: &TrapFrame, name: &str) -> ! {
    let message =
        format_args!("{name}, vector {}, error {:#x}, at {:#x}", frame.vector, frame.error, frame.rip);
    report(message, Some(frame), frame.rbp)
}
