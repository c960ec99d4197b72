//! What the terminal, the pipes and the clients of a run share: the way to the console, and what comes from it.
//!
//! The threads of the [session](super::super::session) pass all input and output through here. Input has a lock of its own, so
//! that a guest that does not read holds up writers alone. Lock order: input, then state.

use std::{
    borrow::Cow,
    fs::File,
    io::{self, Write},
    sync::{
        Condvar, Mutex, MutexGuard, OnceLock, PoisonError,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    time::{Duration, Instant},
};

use super::{
    About,
    tracker::{Tracker, Whose},
};
use crate::run::{keys::MONITOR, records::Feed};

/// Pieces of output that wait for a client before it is dropped.
const QUEUE: usize = 64;
/// Bytes of the monitor's output that wait for a client at most; what is more is lost.
const ANSWER: usize = 1 << 20;
/// How long clients may take for the exit status when the run has ended.
const EXIT_STATUS_WAIT: Duration = Duration::from_secs(1);
/// How long the monitor may take for a line before another one is sent to it.
const RESEND: Duration = Duration::from_secs(10);
/// How often waiting threads check whether to stop waiting.
const POLL: Duration = Duration::from_millis(100);

/// See the [module](self).
pub struct Hub {
    /// What runs.
    pub about: About,
    hypervisor: bool,
    state: Mutex<State>,
    changed: Condvar,
    input: Mutex<()>,
    feed: OnceLock<Feed>,
}

/// What is shared.
#[derive(Default)]
pub struct State {
    tracker: Tracker,
    session: Option<MonitorSession>,
    viewers: Vec<SyncSender<Vec<u8>>>,
    /// The hypervisor reads its console.
    ready: bool,
    connections: usize,
    end: Option<Option<u8>>,
}

/// A client is at the monitor.
#[derive(Default)]
struct MonitorSession {
    output: Vec<u8>,
    /// The monitor was left.
    left: bool,
}

/// What a client at the monitor learns.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct News {
    /// The monitor's output.
    pub output: Vec<u8>,
    /// It waits for a line.
    pub prompt: bool,
    /// It was left.
    pub left: bool,
    /// The run has ended.
    pub ended: bool,
}

impl Hub {
    /// That of a run.
    pub fn new(about: About, hypervisor: bool) -> Hub {
        let (state, changed, input) = (Mutex::default(), Condvar::new(), Mutex::default());
        Hub { about, hypervisor, state, changed, input, feed: OnceLock::new() }
    }

    /// The run takes samples.
    pub fn set_feed(&self, feed: Feed) {
        let _once = self.feed.set(feed);
    }

    /// The run's samples, if it takes any.
    pub fn feed(&self) -> Option<&Feed> {
        self.feed.get()
    }

    /// Whether the console is the hypervisor's.
    pub fn has_hypervisor(&self) -> bool {
        self.hypervisor
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn input(&self) -> MutexGuard<'_, ()> {
        self.input.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait_timeout(state, POLL).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Wakes the threads that wait for news.
    pub fn wake(&self) {
        self.changed.notify_all();
    }

    /// The hypervisor reads its console from now on.
    pub fn is_ready(&self) {
        self.state().ready = true;
        self.wake();
    }

    /// Takes output of the console port and returns the guests' part, and that of a monitor which the terminal called. What
    /// a resting monitor says is for `terminal` alone.
    pub fn divert<'a>(&self, bytes: &'a [u8], terminal: bool) -> Cow<'a, [u8]> {
        let mut state = self.state();
        if !state.tracker.is_inside() && !state.tracker.is_resting() {
            return Cow::Borrowed(bytes);
        }
        let State { tracker, session, viewers, .. } = &mut *state;
        let (mut guests, mut hints) = (Vec::new(), Vec::new());
        tracker.feed(bytes, |whose, bytes| match (whose, session.as_mut().filter(|session| !session.left)) {
            (Whose::Monitor, Some(session)) => {
                session.output.extend(&bytes[..bytes.len().min(ANSWER.saturating_sub(session.output.len()))]);
            }
            (Whose::Resting, _) if !terminal => hints.extend_from_slice(bytes),
            _ => guests.extend_from_slice(bytes),
        });
        if let Some(session) = session {
            session.left |= !tracker.is_inside();
        }
        if !hints.is_empty() {
            show(viewers, &hints);
        }
        self.wake();
        Cow::Owned(guests)
    }

    /// The last of the guests' output, when the console was closed.
    pub fn rest(&self) -> Vec<u8> {
        self.state().tracker.rest()
    }

    /// Shows output to the clients at the console. One whose queue is full is dropped.
    pub fn show(&self, bytes: &[u8]) {
        show(&mut self.state().viewers, bytes);
    }

    /// Output for another client at the console.
    pub fn view(&self) -> Receiver<Vec<u8>> {
        let (sender, receiver) = sync_channel(QUEUE);
        let mut state = self.state();
        if state.end.is_none() {
            state.viewers.push(sender);
        }
        receiver
    }

    /// Sends a person's input. False: a client is at the monitor, and it was not sent.
    ///
    /// # Errors
    /// The console was closed.
    pub fn try_send(&self, mut console: &File, bytes: &[u8]) -> io::Result<bool> {
        let _input = self.input();
        if self.state().session.is_some() {
            return Ok(false);
        }
        console.write_all(bytes).map(|()| true)
    }

    /// Sends input that must not be lost: waits until the guests get it.
    ///
    /// # Errors
    /// The console was closed.
    pub fn send(&self, mut console: &File, bytes: &[u8]) -> io::Result<()> {
        loop {
            let mut state = self.state();
            while state.session.is_some() || state.tracker.is_resting() {
                if state.end.is_some() {
                    return Err(io::ErrorKind::BrokenPipe.into());
                }
                state = self.wait(state);
            }
            drop(state);
            let _input = self.input();
            if self.state().session.is_none() {
                return console.write_all(bytes);
            }
        }
    }

    /// A person at the terminal calls or leaves the monitor. False: a client is there.
    ///
    /// # Errors
    /// The console was closed.
    pub fn call(&self, mut console: &File) -> io::Result<bool> {
        let _input = self.input();
        let mut state = self.state();
        if state.session.is_some() {
            return Ok(false);
        }
        state.tracker.call();
        drop(state);
        console.write_all(MONITOR).map(|()| true)
    }

    /// A client calls the monitor.
    ///
    /// # Errors
    /// Why it cannot be there.
    pub fn begin_session(&self, mut console: &File, patience: Duration) -> Result<(), String> {
        if !self.hypervisor {
            return Err(format!("{} has no monitor: it runs without the hypervisor", self.about.name));
        }
        let deadline = Instant::now() + patience;
        let mut state = self.state();
        while !state.ready {
            if state.end.is_some() || Instant::now() > deadline {
                return Err(format!("the hypervisor of {} has not started yet", self.about.name));
            }
            state = self.wait(state);
        }
        drop(state);
        let _input = loop {
            match self.input.try_lock() {
                Ok(input) => break input,
                Err(_) if Instant::now() > deadline => {
                    return Err("the guest does not read its input, which is full; try again later".into());
                }
                Err(_) => std::thread::sleep(POLL / 10),
            }
        };
        let mut state = self.state();
        if state.session.is_some() || state.tracker.is_inside() {
            return Err(format!("the monitor of {} is busy: another shell is there", self.about.name));
        }
        state.session = Some(MonitorSession::default());
        state.tracker.call();
        drop(state);
        console.write_all(MONITOR).map_err(|error| format!("the console is closed: {error}"))
    }

    /// The client types: at most one line, and its end as the last byte.
    ///
    /// # Errors
    /// The console was closed.
    pub fn tell(&self, mut console: &File, bytes: &[u8]) -> io::Result<()> {
        let _input = self.input();
        let mut state = self.state();
        if state.session.as_ref().is_none_or(|session| session.left) {
            return Ok(());
        }
        if bytes == MONITOR || bytes.ends_with(b"\r") {
            state.tracker.sent();
        }
        drop(state);
        console.write_all(bytes)
    }

    /// What the client has not received yet, at once.
    pub fn news(&self) -> News {
        let mut state = self.state();
        let (prompt, ended) = (state.tracker.at_prompt(), state.end.is_some());
        let Some(session) = &mut state.session else { return News { left: true, ended, ..News::default() } };
        News { output: std::mem::take(&mut session.output), prompt, left: session.left, ended }
    }

    /// The same, after a while if there is nothing.
    pub fn wait_for_news(&self) -> News {
        let state = self.state();
        let is_news = |session: &MonitorSession| session.left || !session.output.is_empty();
        if state.end.is_none() && !state.session.as_ref().is_some_and(is_news) {
            drop(self.wait(state));
        } else {
            drop(state);
        }
        self.news()
    }

    /// The client leaves: the monitor is left, as soon as it takes a line.
    pub fn end_session(&self, console: &File) {
        let mut again = Instant::now() + RESEND;
        loop {
            let news = self.news();
            if news.left || news.ended {
                break;
            }
            let sent = if news.prompt {
                // Leaves whatever was typed of a line.
                self.tell(console, MONITOR)
            } else if Instant::now() > again {
                // What was typed last may have been no line to it.
                again = Instant::now() + RESEND;
                self.tell(console, b"\r")
            } else {
                Ok(())
            };
            if sent.is_err() {
                break;
            }
            self.wait_for_news();
        }
        self.state().session = None;
        self.wake();
    }

    /// Counts a connection, unless there are too many.
    pub fn connect(&self, most: usize) -> bool {
        let mut state = self.state();
        let room = state.connections < most;
        state.connections += usize::from(room);
        room
    }

    /// One has ended.
    pub fn disconnect(&self) {
        self.state().connections -= 1;
        self.wake();
    }

    /// Waits until the run has ended or `leave` says so, and returns the run's status.
    pub fn wait_for_end(&self, leave: impl Fn() -> bool) -> Option<u8> {
        let mut state = self.state();
        loop {
            match state.end {
                Some(status) => return status,
                None if leave() => return None,
                None => state = self.wait(state),
            }
        }
    }

    /// The run has ended: tells all clients.
    pub fn end(&self, status: u8) {
        let mut state = self.state();
        state.end = Some(Some(status));
        state.viewers.clear();
        self.wake();
        let deadline = Instant::now() + EXIT_STATUS_WAIT;
        while state.connections > 0 && Instant::now() < deadline {
            state = self.wait(state);
        }
    }
}

fn show(viewers: &mut Vec<SyncSender<Vec<u8>>>, bytes: &[u8]) {
    viewers.retain(|viewer| viewer.try_send(bytes.to_vec()).is_ok());
}
