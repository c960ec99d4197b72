//! A running machine from another shell: `pal ps`, `pal console`, `pal monitor`, `pal top`, `pal stop`.
//!
//! Each run has a socket under its name in `target/pal/run`, which only its owner can open ([`place`]). The run serves clients
//! there ([`server`]); what they and the terminal share of the console is in the [`hub`]. [`tracker`] finds the monitor's words
//! in the console's output. [`client`] is the other end.
//!
//! The protocol is a stream of frames ([`wire`]): a byte that says what it is, two bytes of length, least significant first, and
//! the contents. A client begins with `?`, a [`Request`] as JSON. The answers:
//!
//! | request | the run sends | the client may send |
//! |---|---|---|
//! | `about` | `a`: [`About`] as JSON | |
//! | `console` | `o`: output, as it comes | `i`: input |
//! | `monitor` | `o`: the monitor's output, then `.` when the monitor was left | `i`: keys, without `command` |
//! | `watch` | `a` as for `about`, then `o`: lines of samples, as they come | |
//! | `stop` | nothing until the run ends | |
//!
//! To each the answer may be `!`, why it cannot be done, and `s`, one byte: the run has ended with this exit status. After `.`, `!`
//! and `s` the run closes the connection. Nothing is kept without bound: a client that does not read is dropped, and one that
//! goes away leaves the run as it was, the monitor included.

pub mod client;
pub mod hub;
pub mod place;
mod server;
mod tracker;
mod wire;

use std::{fs::File, sync::Arc, sync::mpsc::Sender, time::SystemTime};

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::session::{Event, Plan};
use crate::{
    cli::{RunArgs, value_name},
    project::Project,
    status::Usage,
    ui::Ui,
};
use hub::Hub;
use place::{Listening, Place};

/// What a client wants.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "want", rename_all = "lowercase")]
pub enum Request {
    /// What runs here.
    About,
    /// The console's output, and a way to type.
    Console,
    /// The monitor: one command's answer, or a conversation.
    Monitor {
        /// The command.
        command: Option<String>,
    },
    /// The lines of the samples.
    Watch,
    /// The end of the run.
    Stop,
}

/// What runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// Its name.
    pub name: String,
    /// The process id of `pal run`.
    pub pid: u32,
    /// The machine, as of `--machine`.
    pub machine: String,
    /// The mode, as of `--mode`; `None` without a hypervisor, or where the guests' description tells each one's.
    pub mode: Option<String>,
    /// The guests' names.
    pub guests: Vec<String>,
    /// When it began, in seconds since 1970.
    pub since: u64,
}

/// A run's side.
pub struct Remote {
    /// What clients and the terminal share.
    pub hub: Arc<Hub>,
    listening: Option<Listening>,
}

impl Remote {
    /// Opens the run's socket. A run whose name was chosen for it goes on without one where none can be had.
    ///
    /// # Errors
    /// [`Usage`]: another machine has this name.
    pub fn open(args: &RunArgs, plan: &Plan, project: &Project, ui: &Ui) -> Result<Remote> {
        let pid = std::process::id();
        let name = args.name.clone().unwrap_or_else(|| format!("run-{pid}"));
        let listening = match Place::new(project).and_then(|place| place.bind(&name)) {
            Ok(listening) => Some(listening),
            Err(error) if args.name.is_some() => return Err(error),
            Err(error) => {
                ui.detail(&format!("other shells cannot reach this run: {error:#}"));
                None
            }
        };
        let described = args.config.is_some() || !plan.hypervisor;
        let about = About {
            name,
            pid,
            machine: value_name(args.machine),
            mode: (!described).then(|| args.mode.to_string()),
            guests: plan.guests.iter().map(|guest| guest.name.clone()).filter(|n| !n.is_empty()).collect(),
            since: SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs(),
        };
        Ok(Remote { hub: Arc::new(Hub::new(about, plan.hypervisor)), listening })
    }

    /// Refuses a name that is taken, before anything is started.
    ///
    /// # Errors
    /// [`Usage`]: a machine of this name runs.
    pub fn check(args: &RunArgs, project: &Project) -> Result<()> {
        let Some(name) = &args.name else { return Ok(()) };
        if Place::new(project)?.connect(name).is_ok() {
            return Err(taken(name).into());
        }
        Ok(())
    }

    /// Serves clients from now on.
    ///
    /// # Errors
    /// No thread is to be had.
    pub fn serve(&self, console: &File, events: &Sender<Event>) -> Result<()> {
        let Some(listening) = &self.listening else { return Ok(()) };
        server::start(listening.listener()?, &self.hub, console.try_clone()?, events.clone())
    }

    /// Tells clients how the run ended.
    pub fn end(self, status: u8) {
        drop(self.listening);
        self.hub.end(status);
    }
}

fn taken(name: &str) -> Usage {
    Usage::new(format!(
        "a machine named {name} is running; choose another --name, or `cargo pal stop {name}`"
    ))
}
