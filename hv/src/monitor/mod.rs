//! The monitor: a person at the serial console looks at VMs and steers them.
//!
//! `vmm::machine` owns one [`Monitor`] and enters it when a person asks for it and the run loop has returned; the guest, which shares
//! the PCPU, stands still until [`Monitor::enter`] returns. [`mod@line`] edits what is typed, [`command`] understands it,
//! [`view`] carries it out on a borrowed view of the VM. What must hold: nothing here writes guest memory or registers but
//! through the same doors as devices (interrupts, NMI, reset), and no input makes it panic or print without end.
//!
//! Time goes on while a guest stands still, as for a machine whose lid was closed without its knowledge: its TSC and its
//! clocks jump, and every timer that fell due raises its interrupt once.

pub mod command;
pub mod line;
pub mod view;

mod show;
#[cfg(test)]
mod tests;

use alloc::string::String;
use core::fmt::{self, Write};

use command::Command;
use line::{Editor, Entered};
use view::View;

use crate::guest::vm::HostMemory;
use crate::vcpu::outcome::Stop;
use crate::virt::Virt;

/// Stands before every line that is typed.
const PROMPT: &str = "monitor> ";

/// What the person did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// Typed this.
    Byte(u8),
    /// Pressed the keys that lead into the monitor and out of it.
    Monitor,
}

/// The person's terminal, and a clock.
pub trait Terminal {
    /// The host's TSC.
    fn now(&self) -> u64;

    /// Waits for the next key.
    fn key(&mut self) -> Key;

    /// Shows a byte.
    fn write(&mut self, byte: u8);
}

/// Text for a terminal: line feeds become carriage return and line feed.
struct Screen<'a, T>(&'a mut T);

impl<T: Terminal> Write for Screen<'_, T> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            if byte == b'\n' {
                self.0.write(b'\r');
            }
            self.0.write(byte);
        }
        Ok(())
    }
}

/// What the person leaves the monitor for.
#[derive(Debug)]
pub enum Leave {
    /// The guest, if it is not paused.
    Guest,
    /// The VM's end or new start.
    Stop(Stop),
}

/// The monitor of one console. It remembers what was typed from one visit to the next.
#[derive(Debug)]
pub struct Monitor {
    line: Editor,
    paused: bool,
}

impl Default for Monitor {
    fn default() -> Self {
        Monitor { line: Editor::new(PROMPT), paused: false }
    }
}

impl Monitor {
    /// Serves the person until the guest shall go on (`None`) or its VM shall stop.
    pub fn enter<V: Virt, M: HostMemory>(
        &mut self,
        terminal: &mut impl Terminal,
        view: &mut View<'_, V, M>,
    ) -> Option<Stop> {
        let name = view.vm.name.clone();
        // A terminal takes everything: the results of writing to it mean nothing.
        let _ = writeln!(
            Screen(terminal),
            "\nmonitor: {name} stands still; `help` lists the commands, `quit` goes back"
        );
        loop {
            let leave = self.converse(terminal, view);
            let mut screen = Screen(terminal);
            match leave {
                Leave::Stop(stop) => {
                    self.paused = false;
                    return Some(stop);
                }
                Leave::Guest if !self.paused => {
                    let _ = writeln!(screen, "monitor: {name} goes on");
                    return None;
                }
                Leave::Guest => wait_for_return(terminal, &name),
            }
        }
    }

    /// Reads and performs commands until one leads out.
    fn converse<V: Virt, M: HostMemory>(
        &mut self,
        terminal: &mut impl Terminal,
        view: &mut View<'_, V, M>,
    ) -> Leave {
        self.line.start(&mut Screen(terminal));
        loop {
            let Key::Byte(byte) = terminal.key() else {
                let _ = writeln!(Screen(terminal));
                return Leave::Guest;
            };
            match self.line.feed(byte, &mut Screen(terminal)) {
                Entered::Nothing => continue,
                Entered::End => return Leave::Guest,
                Entered::Line(text) => {
                    view.tsc = terminal.now();
                    let mut answer = String::new();
                    let leave = perform(&text, &mut self.paused, view, &|| terminal.now(), &mut answer);
                    let _ = Screen(terminal).write_str(&answer);
                    if let Some(leave) = leave {
                        return leave;
                    }
                }
            }
            self.line.start(&mut Screen(terminal));
        }
    }
}

/// Understands and performs one line.
fn perform<V: Virt, M: HostMemory>(
    text: &str,
    paused: &mut bool,
    view: &mut View<'_, V, M>,
    clock: &dyn Fn() -> u64,
    answer: &mut String,
) -> Option<Leave> {
    // A String takes everything.
    match command::parse(text) {
        Ok(None) => None,
        Ok(Some(Command::Quit)) => Some(Leave::Guest),
        Ok(Some(command)) => view.perform(command, paused, clock, answer).unwrap_or_default(),
        Err(error) => {
            let _ = writeln!(answer, "{error}");
            None
        }
    }
}

/// The person left, and the guest is paused.
fn wait_for_return(terminal: &mut impl Terminal, name: &str) {
    let hint = |terminal: &mut _| {
        let _ =
            writeln!(Screen(terminal), "monitor: {name} is paused; Ctrl-a p, then `resume`, lets it go on");
    };
    hint(terminal);
    loop {
        match terminal.key() {
            Key::Monitor => return,
            Key::Byte(b'\r' | b'\n') => hint(terminal),
            Key::Byte(_) => {}
        }
    }
}
