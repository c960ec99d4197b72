//! One run of a machine: connects it to the person's terminal or pipes, watches it, ends it.
//!
//! Each stream has a thread that blocks on it, so that a slow reader slows its writer and nothing is buffered without
//! bound; the main thread only waits for events and for the time limit, so that nothing can keep it from ending a run.

mod locate;

use std::{
    fs::File,
    io::{BufRead, BufReader, IsTerminal, Read, stdin},
    os::unix::net::UnixStream,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use serde_json::Value;
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};

use super::{
    bochs,
    console::Tail,
    consoles::Consoles,
    fetch::Fetches,
    input::{pipe_input, type_keys},
    keys::Keys,
    machine::{Emulator, Machine},
    output::{self, Output},
    qmp::{self, Report},
    records::Feed,
    remote::{Remote, hub::Hub},
    telemetry::{self, LONGEST_LINE, Record},
    terminal::Raw,
    verdict::{Guest, Observed, Stop},
    watch::{Hold, Top},
};
use crate::{guest::get::Get, progress::Phase, ui::Ui};

/// What kind of run it is.
#[derive(Default)]
pub struct Plan {
    /// The guests, in the order of the configuration; at least one, also if there is none.
    pub guests: Vec<PlannedGuest>,
    /// The number of the one that has the console at first.
    pub console: usize,
    /// The hypervisor records the guests' consoles.
    pub records: bool,
    /// The guests run on the hypervisor.
    pub hypervisor: bool,
    /// The guest has a test device.
    pub test_device: bool,
    /// The time limit in seconds.
    pub timeout: Option<u64>,
    /// Top has the terminal at first.
    pub top: bool,
    /// What the person reads while the guest starts.
    pub starting: &'static str,
    /// What they read after that until there is output, if the machine takes long.
    pub running: Option<&'static str>,
}

/// A guest of a run.
#[derive(Default)]
pub struct PlannedGuest {
    /// Its name.
    pub name: String,
    /// It runs one command instead of a shell.
    pub exec: bool,
    /// The word in the default guest's marks; `None` for other guests.
    pub nonce: Option<String>,
    /// Files that it sends at its end.
    pub gets: Vec<Get>,
}

impl Plan {
    /// The guest that has the console at first.
    pub fn console(&self) -> &PlannedGuest {
        &self.guests[self.console]
    }
}

/// What a run leaves behind.
pub struct Outcome {
    /// For the verdict.
    pub seen: Observed,
    /// The statistics records, whole.
    pub stats: Vec<Value>,
    /// The host record, whole.
    pub host: Option<Value>,
    /// The last lines of the console.
    pub tail: String,
    /// Those of each guest.
    pub tails: Vec<String>,
    /// A message for each file of `--get` that did not come.
    pub missing: Vec<String>,
}

/// How long a machine may take to end after its last word.
const GRACE: Duration = Duration::from_secs(5);
/// How long its last words may take after an emulated machine has been switched off: on a machine below that is busy, those that read them
/// may get no processor for seconds.
const LAST_WORDS: Duration = Duration::from_secs(30);

/// What the threads tell the main thread.
pub enum Event {
    /// The default guest is ready for input.
    Begin,
    /// The command or shell of a default guest ended.
    CommandEnded(usize, u8),
    /// The hypervisor said something.
    Record(Record),
    /// QEMU said something by its machine protocol, or Bochs in its log.
    Emulator(Report),
    /// The run shall end.
    Stop(Stop),
    /// A stream of the emulator's ended.
    Closed,
}

/// Runs a started machine to its end.
///
/// # Errors
/// The terminal or a thread is not to be had.
pub fn run(
    machine: &mut Machine,
    plan: &Plan,
    consoles: Consoles,
    remote: &Remote,
    feed: Option<Feed>,
    ui: &Ui,
) -> Result<Outcome> {
    let (events, inbox) = channel();
    let PlannedGuest { exec, nonce, .. } = plan.console();
    let interactive = !exec && stdin().is_terminal();
    let consoles = Arc::new(Mutex::new(consoles));
    let fetches = Arc::new(Mutex::new(Fetches::new(plan)));
    let raw = interactive.then(Raw::enter).transpose()?;
    let tail = Arc::new(Mutex::new(Tail::default()));
    let hold = Arc::new(Hold::default());
    let top = match feed.clone().filter(|_| plan.top) {
        Some(feed) => Some(Top::start(&remote.hub.about.name, feed, &hold, *ui)?),
        None => None,
    };
    let shows_start = (nonce.is_some() || plan.running.is_some()) && ui.verbose == 0 && !plan.top;
    let booting = Arc::new(Mutex::new((shows_start && ui.has_terminal()).then(|| ui.step(plan.starting))));
    // Other guests do not say when they are ready.
    let phase = if nonce.is_some() { plan.starting } else { "the guest runs" };
    let phase = (!ui.has_terminal()).then(|| Arc::new(Phase::begin(phase)));

    watch_signals(events.clone())?;
    let mut open = 1;
    let watched = Arc::new(AtomicBool::new(false));
    let shared =
        (Arc::clone(&watched), Arc::clone(&tail), Arc::clone(&booting), phase.clone(), Arc::clone(&hold));
    // Where the hypervisor records all consoles, files are taken from there.
    let from_console = (!plan.records).then(|| Arc::clone(&fetches));
    let output =
        Output::new(plan, ui, interactive, shared, from_console, Arc::clone(&remote.hub), events.clone());
    let writing = output.writing();
    let console = machine.console.try_clone().context("cannot share the console")?;
    let output = Arc::new(Mutex::new(output));
    if let Some(serial) = machine.serial.take() {
        open += 1;
        let output = Arc::clone(&output);
        spawn("serial", move || output::copy(&output, serial, Output::aside))?;
    }
    spawn("console", move || output::copy(&output, console, Output::pass))?;
    remote.serve(&machine.console, &events)?;
    if let Some(records) = machine.telemetry.as_ref().map(File::try_clone).transpose()? {
        open += 1;
        let (events, ui) = (events.clone(), *ui);
        let (consoles, fetches) = (Arc::clone(&consoles), Arc::clone(&fetches));
        spawn("telemetry", move || read_records(records, &consoles, &fetches, feed.as_ref(), &ui, &events))?;
    }
    let mut asks = None;
    if let Some(protocol) = machine.qmp.take() {
        open += 1;
        asks = protocol.try_clone().ok();
        let report = events.clone();
        spawn("qmp", move || {
            qmp::converse(protocol, |message| drop(report.send(Event::Emulator(message))));
            let _ = report.send(Event::Closed);
        })?;
    }

    if machine.emulator == Emulator::Bochs {
        let (log, report) = (machine.log.clone(), events.clone());
        spawn("log", move || bochs::watch(&log, |message| drop(report.send(Event::Emulator(message)))))?;
    }

    let mut session = Session::new(machine, plan, open, writing, &remote.hub, asks);
    let hub = Arc::clone(&remote.hub);
    let waits = Arc::clone(&hold);
    let (keyboard, keys) = (session.machine.console.try_clone()?, Keys::new(plan.hypervisor));
    let mut start_input = Some(move |ui: Ui| {
        spawn("keyboard", move || {
            waits.wait();
            if interactive {
                type_keys(&keyboard, keys, &hub, &watched, &ui, &events)
            } else {
                pipe_input(&keyboard, &keys, &hub)
            }
        })
    });
    // Input from a pipe waits until the default guest reads its console, or for other guests until the hypervisor does;
    // a person may want to quit at any time. A command whose input would be the person's terminal gets none.
    let wait_for_guest = (nonce.is_some() || plan.hypervisor) && !interactive;
    let no_input = *exec && stdin().is_terminal();
    if !wait_for_guest && !no_input {
        start_input.take().map(|start| start(*ui)).transpose()?;
    }
    loop {
        match session.next(&inbox) {
            Next::Go => {}
            Next::Ready if no_input => {}
            Next::Ready => {
                start_input.take().map(|start| start(*ui)).transpose()?;
            }
            Next::Done => break,
        }
    }
    if let Some(top) = top {
        top.end();
    }
    booting.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
    drop(phase);
    let (mut seen, stats, host) = session.finish();
    drop(raw);
    let tail = tail.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let consoles = consoles.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let tails = |number| if plan.records { consoles.tail(number) } else { Some(&*tail) };
    for (number, guest) in seen.guests.iter_mut().enumerate() {
        guest.kernel_panic = tails(number).and_then(Tail::kernel_panic);
    }
    let tails =
        (0..seen.guests.len()).map(|number| tails(number).map_or(String::new(), Tail::text)).collect();
    let missing = fetches.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).missing();
    Ok(Outcome { seen, stats, host, tail: tail.text(), tails, missing })
}

/// What the main loop does next.
enum Next {
    Go,
    Ready,
    Done,
}

struct Session<'a> {
    machine: &'a mut Machine,
    plan: &'a Plan,
    seen: Observed,
    stats: Vec<Value>,
    host: Option<Value>,
    open: u32,
    deadline: Option<Instant>,
    /// The time limit.
    limit: Option<Instant>,
    /// The machine has said its last word.
    ending: bool,
    /// The reader of standard output makes us wait.
    writing: Arc<AtomicBool>,
    hub: &'a Hub,
    /// QEMU's machine protocol, to ask by.
    asks: Option<UnixStream>,
}

impl<'a> Session<'a> {
    fn new(
        machine: &'a mut Machine,
        plan: &'a Plan,
        open: u32,
        writing: Arc<AtomicBool>,
        hub: &'a Hub,
        asks: Option<UnixStream>,
    ) -> Self {
        let guest =
            |guest: &PlannedGuest| Guest { name: guest.name.clone(), exec: guest.exec, ..Guest::default() };
        let seen = Observed {
            emulator: machine.emulator,
            // Bochs has connected its serial ports, which it does last. QEMU reports for itself.
            started: machine.emulator == Emulator::Bochs,
            guests: plan.guests.iter().map(guest).collect(),
            hypervisor: plan.hypervisor,
            test_device: plan.test_device,
            ..Observed::default()
        };
        let limit = plan.timeout.and_then(|seconds| Instant::now().checked_add(Duration::from_secs(seconds)));
        let (stats, host, deadline, ending) = (Vec::new(), None, limit, false);
        Self { machine, plan, seen, stats, host, open, deadline, limit, ending, writing, hub, asks }
    }

    /// Waits for one event and acts upon it.
    fn next(&mut self, inbox: &Receiver<Event>) -> Next {
        let patience = self
            .deadline
            .map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()));
        let event = match inbox.recv_timeout(patience) {
            Ok(event) => event,
            Err(RecvTimeoutError::Timeout) => {
                let now = Instant::now();
                let in_time = self.limit.is_none_or(|limit| now < limit);
                if self.ending && in_time && self.writing.load(Ordering::Relaxed) {
                    // All is over but for a slow reader of the output.
                    let next = now + GRACE;
                    self.deadline = Some(self.limit.map_or(next, |limit| limit.min(next)));
                    return Next::Go;
                }
                if !self.ending {
                    self.seen.stop = self.plan.timeout.map(Stop::Timeout);
                    // A machine that says nothing until its time is over is often in a loop.
                    let asks = self.asks.as_ref();
                    self.seen.processors =
                        asks.map_or(Vec::new(), |stream| locate::processors(stream, inbox));
                }
                return Next::Done;
            }
            Err(RecvTimeoutError::Disconnected) => return Next::Done,
        };
        match event {
            Event::Begin => return Next::Ready,
            Event::CommandEnded(guest, status) => self.seen.guests[guest].command_status = Some(status),
            Event::Record(record) => return self.record(record),
            Event::Emulator(report) => return self.report(report),
            Event::Stop(stop) => {
                self.seen.stop = Some(stop);
                return Next::Done;
            }
            Event::Closed => {
                self.open -= 1;
                if self.open == 0 {
                    return Next::Done;
                }
                // The emulator closes everything at once; if a stream lingers, so does it.
                self.end_soon();
            }
        }
        Next::Go
    }

    fn record(&mut self, record: Record) -> Next {
        match record {
            Record::End(end) => return self.end(end),
            Record::Panic { msg } => self.seen.panic = Some(msg),
            Record::Unsuitable { detail } => self.seen.unsuitable = Some(detail),
            Record::Stats(stats) => {
                self.stats.push(stats);
                return Next::Go;
            }
            Record::Host(host) => {
                self.host = Some(host);
                // The serial port is set up: what is typed from now on is not lost.
                self.hub.is_ready();
                return if self.plan.console().nonce.is_none() { Next::Ready } else { Next::Go };
            }
            Record::Start { vm } => {
                if let Some(guest) = self.guest(&vm) {
                    guest.begin_again();
                }
                return Next::Go;
            }
            Record::Reset { vm, by } => {
                let ends_run = self.guest(&vm).is_some_and(|guest| guest.reset(by));
                return if ends_run { Next::Done } else { Next::Go };
            }
            Record::Log { .. } | Record::Console { .. } | Record::Records { .. } | Record::Unknown => {
                return Next::Go;
            }
        }
        self.end_soon();
        Next::Go
    }

    fn guest(&mut self, name: &str) -> Option<&mut Guest> {
        self.seen.guests.iter_mut().find(|guest| guest.name == name)
    }

    /// A guest has ended. One that was destroyed by a monitor command may be started again.
    fn end(&mut self, end: telemetry::End) -> Next {
        let stays = end.reason == Some(telemetry::EndReason::Destroyed);
        match self.guest(&end.vm) {
            Some(guest) => guest.end = Some(end),
            None => self.seen.end = Some(end),
        }
        if self.seen.end.is_some() || !stays && self.seen.guests.iter().all(|guest| guest.end.is_some()) {
            self.end_soon();
        }
        Next::Go
    }

    fn report(&mut self, report: Report) -> Next {
        match report {
            Report::Started => self.seen.started = true,
            Report::Shutdown(reason) => {
                self.seen.shutdown = Some(reason);
                // Also if something else has begun to end it.
                self.ending = true;
                self.deadline = Some(Instant::now() + LAST_WORDS);
            }
            // Without `-no-reboot` a native guest may restart, but not by a triple fault.
            Report::Reset
                if self.plan.console().exec
                    || self.plan.hypervisor
                    || self.machine.triple_fault().is_some() =>
            {
                self.seen.stop = Some(Stop::Restart);
                return Next::Done;
            }
            // Those are waited for where they are asked for.
            Report::Reset | Report::Processors(_) => {}
        }
        Next::Go
    }

    /// Limits the time until the machine is gone.
    fn end_soon(&mut self) {
        if !self.ending {
            self.ending = true;
            self.deadline = Some(Instant::now() + GRACE);
        }
    }

    fn finish(mut self) -> (Observed, Vec<Value>, Option<Value>) {
        let code = if self.open == 0 { self.machine.wait(GRACE) } else { None };
        let code = code.or_else(|| self.machine.stop());
        self.seen.code = code.and_then(|status| status.code());
        self.seen.shutdown = self.seen.shutdown.or_else(|| self.machine.shutdown());
        self.seen.triple_fault = self.machine.triple_fault();
        self.seen.complaints = self.machine.complaints();
        (self.seen, self.stats, self.host)
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<()> {
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(body)
        .with_context(|| format!("cannot start thread {name}"))?;
    Ok(())
}

fn watch_signals(events: Sender<Event>) -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot watch for signals")?;
    spawn("signals", move || {
        for signal in signals.forever() {
            let _ = events.send(Event::Stop(Stop::Signal(signal)));
        }
    })
}

/// Reads the hypervisor's records.
fn read_records(
    stream: File,
    consoles: &Mutex<Consoles>,
    fetches: &Mutex<Fetches>,
    feed: Option<&Feed>,
    ui: &Ui,
    events: &Sender<Event>,
) {
    let consoles = || consoles.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let mut reader = BufReader::new(stream);
    let mut line = Vec::new();
    loop {
        line.clear();
        match reader.by_ref().take(LONGEST_LINE as u64).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
        if line.trim_ascii().is_empty() {
            continue;
        }
        match telemetry::parse(line.trim_ascii()) {
            Ok(Record::Log { level, msg }) => {
                consoles().log(&level, &msg, ui);
                match level.as_str() {
                    "error" => ui.error(&format!("hypervisor: {msg}")),
                    "warn" => ui.warn(&format!("hypervisor: {msg}")),
                    _ => ui.detail(&format!("hypervisor: {msg}")),
                }
            }
            Ok(Record::Console { vm, text }) => {
                let mut fetches = fetches.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                if let Some((guest, status)) = consoles().feed(&vm, &text, &mut fetches, ui) {
                    let _ = events.send(Event::CommandEnded(guest, status));
                }
            }
            Ok(Record::Records { ring, pcpu, dropped, words }) => {
                if let Some(feed) = feed {
                    feed.record((ring == "trace").then_some(pcpu), &words, dropped);
                }
            }
            Ok(record) => {
                if let (Record::Host(host), Some(feed)) = (&record, feed) {
                    feed.set_tsc_hz(host["tsc_hz"].as_u64().unwrap_or(0));
                }
                if let Record::End(telemetry::End { vm, detail, .. }) = &record
                    && !detail.is_empty()
                {
                    consoles().log("error", &format!("{vm}: {detail}"), ui);
                }
                drop(events.send(Event::Record(record)));
            }
            Err(error) => {
                ui.detail(&format!("not a telemetry record ({error}): {}", String::from_utf8_lossy(&line)))
            }
        }
    }
    let _ = events.send(Event::Closed);
}
