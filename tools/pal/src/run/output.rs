//! The way of the console's output to standard output, through a thread that blocks on both.

use std::{
    fs::File,
    io::{IsTerminal, Read, Write, stdout},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::Sender,
    },
};

use super::{
    console::{Marks, Newlines, Piece, Tail},
    fetch::Fetches,
    remote::hub::Hub,
    session::{Event, Plan},
    verdict::Stop,
    watch::Hold,
};
use crate::{
    progress::{self, Phase},
    ui::{Step, Ui},
};

/// Copies the console to standard output.
pub struct Output {
    marks: Option<Marks>,
    newlines: Option<Newlines>,
    /// The guest whose console it is at first.
    guest: usize,
    /// Between its marks; always, for guests without marks.
    shown: bool,
    /// What comes after its last mark is shown too: it is other guests'.
    shows_others: bool,
    /// It runs one command.
    exec: bool,
    /// Takes the files that it sends. `None`: others do that, and tell how commands end.
    fetches: Option<Arc<Mutex<Fetches>>>,
    /// It sends a file.
    sends: bool,
    /// A person has asked for the monitor and wants to see everything from then on.
    watched: Arc<AtomicBool>,
    writing: Arc<AtomicBool>,
    verbose: bool,
    tail: Arc<Mutex<Tail>>,
    booting: Arc<Mutex<Option<Step>>>,
    /// The same without a terminal: it goes on to the end.
    phase: Option<Arc<Phase>>,
    /// What that sign says after the guest's first mark, if it is to stay.
    running: Option<&'static str>,
    /// Output does not go where the sign is.
    apart: bool,
    /// Clients in other shells; takes what is theirs of the monitor.
    hub: Arc<Hub>,
    /// Something else may have the terminal.
    hold: Arc<Hold>,
    /// A person types at the terminal.
    interactive: bool,
    events: Sender<Event>,
}

/// What the output shares with the session: whether a person is at the monitor; the last lines; the sign that the guest
/// starts; the phase of a run without a terminal; whether something else has the terminal.
pub type Shared =
    (Arc<AtomicBool>, Arc<Mutex<Tail>>, Arc<Mutex<Option<Step>>>, Option<Arc<Phase>>, Arc<Hold>);

/// Copies a stream until the emulator closes it, and reports marks and a reader that went away.
pub fn copy(
    output: &Mutex<Output>,
    mut stream: File,
    pass: impl Fn(&mut Output, &[u8]) -> std::io::Result<()>,
) {
    let output = || output.lock().unwrap_or_else(PoisonError::into_inner);
    let mut buffer = vec![0; 16 * 1024];
    let mut writable = true;
    loop {
        let size = match stream.read(&mut buffer) {
            Ok(0) | Err(_) => break,
            Ok(size) => size,
        };
        let mut output = output();
        if writable && pass(&mut output, &buffer[..size]).is_err() {
            // Keep the guest running until the main thread stops it.
            writable = false;
            let _ = output.events.send(Event::Stop(Stop::StdoutClosed));
        }
    }
    let mut output = output();
    output.finish();
    let _ = output.events.send(Event::Closed);
}

impl Output {
    /// What to show follows from the kind of run.
    pub fn new(
        plan: &Plan,
        ui: &Ui,
        interactive: bool,
        (watched, tail, booting, phase, hold): Shared,
        fetches: Option<Arc<Mutex<Fetches>>>,
        hub: Arc<Hub>,
        events: Sender<Event>,
    ) -> Self {
        // A command's output comes without conversions; a terminal, too, wants what the guest's terminal driver made.
        let exec = plan.console().exec;
        let convert = !exec && !interactive && !stdout().is_terminal();
        let nonces = plan.guests.iter().map(|guest| guest.nonce.as_deref().unwrap_or_default());
        let marked = plan.guests.iter().any(|guest| guest.nonce.is_some());
        Self {
            marks: marked.then(|| Marks::new(nonces)),
            newlines: convert.then(Newlines::default),
            guest: plan.console,
            shown: plan.console().nonce.is_none(),
            shows_others: plan.guests.len() > 1 && !exec,
            exec,
            fetches,
            sends: false,
            watched,
            writing: Arc::default(),
            verbose: ui.verbose > 0,
            tail,
            booting,
            phase,
            running: plan.running.filter(|_| !interactive),
            apart: plan.running.is_some() && !stdout().is_terminal(),
            hub,
            hold,
            interactive,
            events,
        }
    }

    /// True while the reader of standard output makes us wait.
    pub fn writing(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.writing)
    }

    /// Takes output that has no marks: of the serial port, where that is not the console.
    pub fn aside(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.text(bytes)
    }

    /// The console was closed.
    fn finish(&mut self) {
        let _ = self.part(&Arc::clone(&self.hub).rest());
        if let Some(mut marks) = self.marks.take() {
            marks.finish(|piece| {
                if let Piece::Text(text) = piece {
                    let _ = self.text(text);
                }
            });
            self.marks = Some(marks);
        }
    }

    /// Takes output of the console.
    pub fn pass(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        let hub = Arc::clone(&self.hub);
        self.part(&hub.divert(bytes, self.interactive))
    }

    /// Takes what is not for a client at the monitor.
    fn part(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        let Some(mut marks) = self.marks.take() else { return self.text(bytes) };
        let mut result = Ok(());
        marks.feed(bytes, |piece| {
            let piece_result = match piece {
                Piece::Text(text) if self.sends => {
                    self.fetch(|fetches, guest| fetches.text(guest, text));
                    Ok(())
                }
                Piece::Text(text) => self.text(text),
                Piece::File(guest, number) if guest == self.guest => {
                    // Where a person has been in the monitor, another guest's output may follow.
                    self.sends = self.fetches.is_some() || !self.watched.load(Ordering::Relaxed);
                    self.fetch(|fetches, guest| fetches.begin(guest, number));
                    Ok(())
                }
                Piece::Sent(guest, number, status) if guest == self.guest => {
                    self.sends = false;
                    self.fetch(|fetches, guest| fetches.end(guest, number, status));
                    Ok(())
                }
                Piece::Begin(guest) if guest == self.guest => {
                    (self.shown, self.sends) = (true, false);
                    self.begin();
                    let _ = self.events.send(Event::Begin);
                    Ok(())
                }
                Piece::End(guest, status) if guest == self.guest => {
                    self.shown = self.shows_others;
                    if self.fetches.is_some() {
                        let _ = self.events.send(Event::CommandEnded(guest, status));
                    }
                    Ok(())
                }
                Piece::Begin(_) | Piece::End(..) | Piece::File(..) | Piece::Sent(..) => Ok(()),
            };
            if result.is_ok() {
                result = piece_result;
            }
        });
        self.marks = Some(marks);
        result
    }

    fn fetch(&self, act: impl FnOnce(&mut Fetches, usize)) {
        if let Some(fetches) = &self.fetches {
            act(&mut fetches.lock().unwrap_or_else(|poisoned| poisoned.into_inner()), self.guest);
        }
    }

    /// The default guest is ready.
    fn begin(&self) {
        if let Some(phase) = &self.phase {
            phase.becomes(if self.exec { "the command runs" } else { "the guest runs" });
        }
        self.begin_sign();
    }

    /// The guest has started.
    fn begin_sign(&self) {
        let mut sign = self.booting.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        match (self.running, &*sign) {
            (Some(text), Some(step)) => step.becomes(text),
            _ => drop(sign.take()),
        }
    }

    /// Takes the sign that the guest is starting off the terminal.
    fn end_booting(&self) {
        self.booting.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
    }

    fn text(&mut self, text: &[u8]) -> std::io::Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        self.tail.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(text);
        self.hub.show(text);
        if !self.shown {
            if !self.watched.load(Ordering::Relaxed) {
                if self.verbose && self.hold.take(text).is_none() {
                    let _ = std::io::stderr().write_all(text);
                    progress::heard();
                }
                return Ok(());
            }
            self.end_booting();
        }
        progress::heard();
        if self.apart {
            self.begin_sign()
        } else {
            self.end_booting()
        }
        let converted = self.newlines.as_mut().map(|newlines| newlines.convert(text));
        let text = converted.as_deref().unwrap_or(text);
        if let Some(result) = self.hold.take(text) {
            return result;
        }
        let mut stdout = stdout().lock();
        self.writing.store(true, Ordering::Relaxed);
        let result = stdout.write_all(text);
        let result = result.and_then(|()| stdout.flush());
        self.writing.store(false, Ordering::Relaxed);
        result
    }
}
