//! `pal top`: what the guests of a running machine do, as `top` shows it of processes.
//!
//! The run sends the lines of its samples as they come ([`crate::run::records`]); [`state`] sums them up between two refreshes,
//! [`draw`] makes text of that, and [`screen`] has the terminal. Inside `pal run --top` the lines come without a socket
//! ([`crate::run::watch`]).

pub mod args;
mod draw;
mod regions;
mod screen;
mod state;
mod tiers;

use std::{
    io::{IsTerminal, Write, stdin, stdout},
    sync::{
        Arc,
        atomic::AtomicBool,
        mpsc::{Receiver, RecvTimeoutError},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::{project::Project, run::remote::client, status::exit, ui::Ui};
use args::TopArgs;
use draw::View;
use state::State;

/// Lines that are taken in before anything else is looked at.
const MOST_AT_ONCE: usize = 10_000;
/// How long the first sample is waited for before text is printed without one.
const START: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(50);

/// What a run's samples are to a viewer.
pub enum Watched {
    /// A line.
    Line(String),
    /// The run has ended with this status.
    Ended(u8),
    /// It takes no samples: why.
    Refused(String),
    /// There are no more lines: the connection was lost.
    Lost,
}

/// Shows a machine until it ends or a person leaves.
///
/// # Errors
/// No such machine, or the terminal fails.
pub fn run(args: &TopArgs, project: &Project, ui: &Ui) -> Result<u8> {
    let (name, lines) = client::watch(args.name.as_deref(), project)?;
    let view = View::new(&name, args.delay);
    let text = args.batch || args.once || !stdout().is_terminal() || !stdin().is_terminal();
    let end = if text {
        batch(&lines, &view, args.refreshes())
    } else {
        // The terminal gets its mode back before a signal ends this.
        let over = Arc::new(AtomicBool::new(false));
        for signal in [SIGTERM, SIGHUP, SIGINT] {
            signal_hook::flag::register(signal, Arc::clone(&over)).context("cannot watch for signals")?;
        }
        on_terminal(&lines, view, args.refreshes(), &over)
    };
    match end? {
        Some(Watched::Ended(status)) => {
            ui.say(&format!("the run of {name} has ended with status {status}"));
            Ok(0)
        }
        Some(Watched::Refused(why)) => {
            ui.error(&why);
            Ok(exit::TOOL)
        }
        Some(Watched::Lost) => {
            ui.error(&format!(
                "the connection to {name} was lost: its run was killed, or this end was too slow"
            ));
            Ok(exit::TOOL)
        }
        Some(Watched::Line(_)) | None => Ok(0),
    }
}

/// Shows lines on this terminal, which has its former mode afterwards.
///
/// # Errors
/// The terminal fails.
pub fn within(name: &str, lines: &Receiver<Watched>, over: &AtomicBool) -> Result<()> {
    on_terminal(lines, View::new(name, 1.0), u64::MAX, over).map(drop)
}

fn on_terminal(
    lines: &Receiver<Watched>,
    view: View,
    refreshes: u64,
    over: &AtomicBool,
) -> Result<Option<Watched>> {
    // Also undone if this panics.
    let mut terminal = ratatui::try_init().context("cannot use this terminal; --batch needs none")?;
    let end = screen::show(&mut terminal, lines, view, refreshes, over);
    ratatui::restore();
    end
}

/// Takes lines in until then, or a screenful of them; the end of them, if that comes.
fn take(state: &mut State, lines: &Receiver<Watched>, until: Instant) -> Option<Watched> {
    // A run that sends without end does not keep keys waiting.
    for _ in 0..MOST_AT_ONCE {
        match lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(Watched::Line(line)) => state.add(&line),
            Ok(end) => return Some(end),
            Err(RecvTimeoutError::Timeout) => return None,
            Err(RecvTimeoutError::Disconnected) => return Some(Watched::Lost),
        }
    }
    None
}

fn batch(lines: &Receiver<Watched>, view: &View, refreshes: u64) -> Result<Option<Watched>> {
    let mut state = State::default();
    let period = Duration::from_secs_f64(view.delay);
    // A machine that has just been started has nothing to show yet.
    let patience = Instant::now() + START;
    while !state.sampled && Instant::now() < patience {
        if let Some(end) = take(&mut state, lines, Instant::now() + LOOK) {
            return Ok(Some(end));
        }
    }
    for number in 0..refreshes {
        let end = take(&mut state, lines, Instant::now() + period);
        if end.is_none() || state.sampled {
            let between = if number == 0 { "" } else { "\n" };
            let text = format!("{between}{}", draw::text(&state.refresh(), view));
            if stdout().write_all(text.as_bytes()).and_then(|()| stdout().flush()).is_err() {
                // The reader has closed the pipe.
                return Ok(None);
            }
        }
        if end.is_some() {
            return Ok(end);
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;

    #[test]
    fn lines_are_taken_in_until_there_are_no_more() {
        let (sender, lines) = sync_channel(4);
        let mut state = State::default();
        for line in ["{\"v\":1,\"t\":\"run\",\"machine\":\"m\"}", "{\"t\":\"sam", "[[[["] {
            sender.send(Watched::Line(line.into())).unwrap();
        }
        assert!(take(&mut state, &lines, Instant::now()).is_none());
        assert_eq!((state.about["machine"].as_str(), state.sampled), (Some("m"), false));
        sender.send(Watched::Ended(3)).unwrap();
        assert!(matches!(take(&mut state, &lines, Instant::now()), Some(Watched::Ended(3))));
        drop(sender);
        assert!(matches!(take(&mut state, &lines, Instant::now()), Some(Watched::Lost)));
    }
}
