//! The monitor: a person at the serial console looks at VMs and steers them.
//!
//! The worker of the first PCPU owns one [`Monitor`] and enters it when a person asks for it and the run loop has returned. One VM is
//! looked at, at first the one that has the console: it stands still until the person leaves or looks at another; the others go
//! on. [`mod@line`] edits what is typed, [`command`] understands it, [`view`] carries it out on a borrowed view of the VM, and
//! [`vms`] is what concerns VMs as a whole. What must hold: nothing here writes guest memory or registers but
//! through the same doors as devices (interrupts, NMI, reset), and no input makes it panic or print without end.
//!
//! Time goes on while a guest stands still, as for a machine whose lid was closed without its knowledge: its TSC and its
//! clocks jump, and every timer that fell due raises its interrupt once.

pub mod command;
pub mod line;
pub mod view;
pub mod vms;

mod show;
#[cfg(test)]
mod tests;

use alloc::format;
use alloc::string::{String, ToString};
use core::fmt::{self, Write};

use command::Command;
use line::{Editor, Entered};
use show::{help, stats, vms as list};
use view::HostReport;
use vms::{Action, Refused, State, Vms};

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

/// The person's terminal.
pub trait Terminal {
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

/// The person leaves.
struct Leave;

/// The monitor of one console. It remembers what was typed from one visit to the next.
#[derive(Debug)]
pub struct Monitor {
    line: Editor,
}

impl Default for Monitor {
    fn default() -> Self {
        Monitor { line: Editor::new(PROMPT) }
    }
}

impl Monitor {
    /// Serves the person until the guest that has the console shall go on.
    pub fn enter<T: Terminal + Vms>(&mut self, on: &mut T, host: impl Fn() -> HostReport) {
        let mut selected = on.console();
        on.keep(selected);
        let name = on.name(selected).to_string();
        // A terminal takes everything: the results of writing to it mean nothing.
        let _ = match on.state(selected) {
            State::Absent => writeln!(Screen(on), "\nmonitor: {name} has ended; `help` lists the commands"),
            _ => writeln!(
                Screen(on),
                "\nmonitor: {name} stands still; `help` lists the commands, `quit` goes back"
            ),
        };
        loop {
            self.converse(on, &mut selected, &host);
            on.release();
            let console = on.console();
            let name = on.name(console).to_string();
            let _ = match on.state(console) {
                State::Running => writeln!(Screen(on), "monitor: {name} goes on"),
                State::Absent => writeln!(Screen(on), "monitor: left"),
                State::Paused | State::Stopped => {
                    wait_for_return(on, console);
                    selected = console;
                    on.keep(selected);
                    continue;
                }
            };
            return;
        }
    }

    /// Reads and performs commands until one leads out.
    fn converse<T: Terminal + Vms>(
        &mut self,
        on: &mut T,
        selected: &mut usize,
        host: &impl Fn() -> HostReport,
    ) {
        self.line.start(&mut Screen(on));
        loop {
            let Key::Byte(byte) = on.key() else {
                let _ = writeln!(Screen(on));
                return;
            };
            match self.line.feed(byte, &mut Screen(on)) {
                Entered::Nothing => continue,
                Entered::End => return,
                Entered::Line(text) => {
                    let mut answer = String::new();
                    // A String takes everything.
                    let leave = perform(&text, on, selected, host, &mut answer).unwrap_or_default();
                    let _ = Screen(on).write_str(&answer);
                    if let Some(Leave) = leave {
                        return;
                    }
                }
            }
            self.line.start(&mut Screen(on));
        }
    }
}

/// Understands and performs one line.
fn perform<T: Terminal + Vms>(
    text: &str,
    on: &mut T,
    selected: &mut usize,
    host: &impl Fn() -> HostReport,
    answer: &mut String,
) -> Result<Option<Leave>, fmt::Error> {
    let command = match command::parse(text) {
        Ok(None) => return Ok(None),
        Ok(Some(command)) => command,
        Err(error) => {
            writeln!(answer, "{error}")?;
            return Ok(None);
        }
    };
    match command {
        Command::Quit => return Ok(Some(Leave)),
        Command::Help(None) => help::help(answer)?,
        Command::Help(Some(command)) => help::explain(command, answer)?,
        Command::Host => stats::host(&host(), answer)?,
        Command::LogLevel(level) => {
            level.into_iter().for_each(log::set_max_level);
            writeln!(answer, "log level: {}", log::max_level())?;
        }
        Command::Vms => list::list(on, *selected, answer)?,
        Command::Select(name) | Command::Console(name) => match vms::find(on, name) {
            Ok(vm) => {
                *selected = vm;
                on.keep(vm);
                if matches!(command, Command::Console(_)) {
                    on.set_console(vm);
                    writeln!(answer, "{name} has the console when you leave")?;
                }
                match on.state(vm) {
                    State::Absent => writeln!(answer, "{}", Refused::Absent.explain(name))?,
                    state => writeln!(answer, "{name} stands still while you look at it; it is {state}")?,
                }
            }
            Err(why) => writeln!(answer, "{why}")?,
        },
        Command::Act(action, name) => return act(action, name, on, *selected, answer),
        about_one => {
            let mut result = Ok(());
            if !on.look(*selected, &mut |view| result = view.perform(about_one, answer)) {
                writeln!(answer, "{}", Refused::Absent.explain(on.name(*selected)))?;
            }
            result?;
        }
    }
    Ok(None)
}

/// Does something to a VM as a whole. Without a name it concerns the one that is looked at, and what lets it run leads out.
fn act<T: Terminal + Vms>(
    action: Action,
    name: Option<&str>,
    on: &mut T,
    selected: usize,
    answer: &mut String,
) -> Result<Option<Leave>, fmt::Error> {
    let vm = match name.map_or(Ok(selected), |name| vms::find(on, name)) {
        Ok(vm) => vm,
        Err(why) => {
            writeln!(answer, "{why}")?;
            return Ok(None);
        }
    };
    match on.act(action, vm) {
        // The monitor says that the guest goes on.
        Ok(()) if name.is_none() && action != Action::Pause => return Ok(Some(Leave)),
        Ok(()) => writeln!(answer, "{}", action.done(on.name(vm)))?,
        Err(refused) => writeln!(answer, "{}", refused.explain(on.name(vm)))?,
    }
    Ok(None)
}

/// The person left, and the guest that has the console stands still.
fn wait_for_return<T: Terminal + Vms>(on: &mut T, vm: usize) {
    let name = on.name(vm).to_string();
    let hint = match on.state(vm) {
        State::Stopped => format!("monitor: {name} is off; Ctrl-a p, then `start {name}`, starts it"),
        _ => format!("monitor: {name} is paused; Ctrl-a p, then `resume`, lets it go on"),
    };
    let _ = writeln!(Screen(on), "{hint}");
    loop {
        match on.key() {
            Key::Monitor => return,
            Key::Byte(b'\r' | b'\n') => _ = writeln!(Screen(on), "{hint}"),
            Key::Byte(_) => {}
        }
    }
}
