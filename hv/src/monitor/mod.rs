//! The monitor: an operator at the serial console inspects and controls VMs.
//!
//! The worker of the first PCPU owns one [`Monitor`] and enters it on `Ctrl-a p`, once the run loop has returned. One VM is
//! selected, at first the one that has the console: it is paused until the operator quits or selects another; the others run.
//! [`mod@line`] edits the input line, [`command`] parses it, [`view`] performs it on a borrowed view of the VM, and [`vms`] covers
//! operations on whole VMs. What must hold: nothing here writes guest memory or registers except through the interfaces that
//! devices use (interrupts, NMI, reset), and no input makes it panic or print without end.
//!
//! Time does not stop for a paused guest, as for a suspended machine: its TSC and its clocks jump, and every timer that expired
//! raises its interrupt once.

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
use show::{balloon, help, stats, tiers, vms as list};
use view::HostReport;
use vms::{Action, Refused, State, Vms};

/// The prompt of each input line.
const PROMPT: &str = "monitor> ";

/// A key of the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// An ordinary byte.
    Byte(u8),
    /// The escape sequence that enters and quits the monitor.
    Monitor,
}

/// The operator's terminal.
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

/// The session ends.
struct Leave;

/// The monitor of one console. Its line history survives from one session to the next.
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
    /// Runs a session, until the guest that has the console is to run again.
    pub fn enter<T: Terminal + Vms>(&mut self, on: &mut T, host: impl Fn() -> HostReport) {
        let mut selected = on.console();
        on.select(selected);
        let name = on.name(selected).to_string();
        // A terminal takes everything: the results of writing to it mean nothing.
        let _ = match on.state(selected) {
            State::Absent => writeln!(Screen(on), "\nmonitor: {name} has ended; `help` lists the commands"),
            _ => writeln!(
                Screen(on),
                "\nmonitor: {name} is paused; `help` lists the commands, `quit` resumes it"
            ),
        };
        loop {
            self.converse(on, &mut selected, &host);
            on.deselect();
            let console = on.console();
            let name = on.name(console).to_string();
            let _ = match on.state(console) {
                State::Running => writeln!(Screen(on), "monitor: {name} resumed"),
                State::Absent => writeln!(Screen(on), "monitor: quit"),
                State::Paused | State::Stopped => {
                    wait_for_return(on, console);
                    selected = console;
                    on.select(selected);
                    continue;
                }
            };
            return;
        }
    }

    /// Reads and performs commands until one ends the session.
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

/// Parses and performs one line.
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
                on.select(vm);
                if matches!(command, Command::Console(_)) {
                    on.set_console(vm);
                    writeln!(answer, "{name} gets the console when you quit the monitor")?;
                }
                match on.state(vm) {
                    State::Absent => writeln!(answer, "{}", Refused::Absent.explain(name))?,
                    state => {
                        writeln!(answer, "{name} is paused while it is selected; its own state: {state}")?
                    }
                }
            }
            Err(why) => writeln!(answer, "{why}")?,
        },
        Command::Balloon(name, wanted) => {
            let vm = name.map_or(Ok(*selected), |name| vms::find(on, name));
            balloon::balloon(on, vm, wanted, answer)?;
        }
        Command::AllTiers(wanted) => tiers::all(on, wanted, answer)?,
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

/// Performs an action on a VM. Without a name it applies to the selected one, and an action that lets it run ends the session.
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
        // The end of the session reports that the guest is resumed.
        Ok(()) if name.is_none() && action != Action::Pause => return Ok(Some(Leave)),
        Ok(()) => writeln!(answer, "{}", action.done(on.name(vm)))?,
        Err(refused) => writeln!(answer, "{}", refused.explain(on.name(vm)))?,
    }
    Ok(None)
}

/// Waits after the end of a session while the guest that has the console is paused or off.
fn wait_for_return<T: Terminal + Vms>(on: &mut T, vm: usize) {
    let name = on.name(vm).to_string();
    let hint = match on.state(vm) {
        State::Stopped => {
            format!("monitor: {name} is off; to start it, press Ctrl-a p and type `start {name}`")
        }
        _ => format!("monitor: {name} is paused; to resume it, press Ctrl-a p and type `resume`"),
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
