//! Samples and traces of a run: taken out of the memory that the machine shares with pal, or out of records on its second serial
//! port, and written where `--samples` and `--trace` want them; `cargo pal top` gets the lines as they come.

pub mod args;
mod file;
mod memory;
mod sample;
mod tiers;
mod trace;

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context, Result};
use records::{Header, ring::LONGEST, ring::Ring, trace::Event};
use serde_json::{Value, json};

pub use memory::Memory;

use super::session::Plan;
use crate::{
    cli::{RunArgs, value_name},
    status::Usage,
    ui::Ui,
};
use file::Lines;
use sample::Samples;
pub use sample::VERSION;
use trace::Trace;

/// How often the memory is looked into.
const PAUSE: Duration = Duration::from_millis(20);
/// Lines that wait for a viewer at most; one that does not take them misses some.
const WAITING: usize = 256;

/// What a run does with samples and traces.
pub struct Recorder {
    state: Arc<Mutex<State>>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// All that is known.
struct State {
    samples: Samples,
    trace: Trace,
    sample_file: Option<Lines>,
    trace_file: Option<Lines>,
    viewers: Vec<SyncSender<String>>,
    /// The first line, for viewers that come later.
    about: String,
    /// The memory, until its owner has gone.
    memory: Option<&'static [std::sync::atomic::AtomicU64]>,
    header: Option<Header>,
    /// A person wants them: what goes wrong is told.
    asked: bool,
    /// What is wrong with the memory.
    wrong: Option<&'static str>,
    /// Records that were dropped: samples, events.
    dropped: [u64; 2],
    count: [u64; 2],
}

impl Recorder {
    /// For the run that `args` describe, on the emulator that says `emulator` of itself; `None` if it takes neither samples nor traces.
    ///
    /// # Errors
    /// [`Usage`]: there is no hypervisor to take any, or a file cannot be written.
    pub fn new(
        args: &RunArgs,
        plan: &Plan,
        emulator: impl FnOnce() -> Option<String>,
    ) -> Result<Option<Recorder>> {
        if !args.takes_samples() {
            return Ok(None);
        }
        if !args.machine.has_hypervisor() {
            let text = "--samples, --trace, --watch and --top: the hypervisor takes samples, and there is none on this machine";
            return Err(Usage::new(text).into());
        }
        let create = |option, path: &Option<std::path::PathBuf>| -> Result<Option<Lines>, Usage> {
            path.as_deref().map(|path| Lines::create(option, path)).transpose()
        };
        let mut sample_file = create("--samples", &args.records.samples)?;
        let mut trace_file = create("--trace", &args.records.trace)?;
        let names: Vec<_> = plan.guests.iter().map(|guest| guest.name.clone()).collect();
        // As it is now: the file may change, and so may what this pal has of its own.
        let lab_machine = args.lab.lab.as_deref().map(crate::lab::find).transpose()?.map(|it| it.0);
        let about = json!({
            "v": VERSION,
            "t": "run",
            "machine": value_name(args.machine),
            "emulator": emulator(),
            "lab": args.lab.lab,
            "lab_machine": lab_machine,
            "mode": args.config.is_none().then(|| args.mode.to_string()),
            "sample_ms": args.records.sample_ms,
            "pcpus": args.pcpus.count,
            "vms": names,
            "command": std::env::args().collect::<Vec<_>>(),
            "version": env!("CARGO_PKG_VERSION"),
        });
        let about = format!("{about}\n");
        if let Some(file) = &mut sample_file {
            file.add(about.as_bytes());
        }
        if let Some(file) = &mut trace_file {
            // The first element, so that each other one begins with a comma.
            file.add(
                b"[\n{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":0,\"args\":{\"sort_index\":0}}",
            );
        }
        let state = State {
            samples: Samples::new(names),
            trace: Trace::default(),
            sample_file,
            trace_file,
            viewers: Vec::new(),
            about,
            memory: None,
            header: None,
            wrong: None,
            asked: args.records.is_on(),
            dropped: [0; 2],
            count: [0; 2],
        };
        Ok(Some(Recorder { state: Arc::new(Mutex::new(state)), over: Arc::default(), thread: None }))
    }

    /// Looks into this memory from now on.
    ///
    /// # Errors
    /// No thread is to be had.
    pub fn watch(&mut self, words: &'static [std::sync::atomic::AtomicU64]) -> Result<()> {
        lock(&self.state).memory = Some(words);
        let (state, over) = (Arc::clone(&self.state), Arc::clone(&self.over));
        let watch = move || {
            while !over.load(Ordering::Acquire) {
                lock(&state).drain();
                thread::sleep(PAUSE);
            }
        };
        let thread = thread::Builder::new().name("records".into()).spawn(watch);
        self.thread = Some(thread.context("cannot start thread records")?);
        Ok(())
    }

    /// What others may do with it while the run goes on.
    pub fn feed(&self) -> Feed {
        Feed(Arc::clone(&self.state))
    }

    /// The machine is gone: takes what is left, ends the files, and says what went wrong.
    pub fn finish(mut self, ui: &Ui) {
        self.over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
        lock(&self.state).finish(ui);
    }
}

/// A run's samples, for those who add to them and those who look at them.
#[derive(Clone)]
pub struct Feed(Arc<Mutex<State>>);

impl Feed {
    /// A record that came by the second serial port. `pcpu` is whose trace it is; `None` is a sample.
    pub fn record(&self, pcpu: Option<usize>, words: &str, dropped: u64) {
        let words: Option<Vec<u64>> =
            words.split(' ').take(LONGEST).map(|word| u64::from_str_radix(word, 16).ok()).collect();
        let mut state = lock(&self.0);
        state.dropped[usize::from(pcpu.is_some())] = dropped;
        if let Some(words) = words {
            let mut out = Batch::default();
            state.record(pcpu, &words, &mut out);
            state.write(&out);
        }
    }

    /// The machine's clock, which the host record tells.
    pub fn set_tsc_hz(&self, hz: u64) {
        lock(&self.0).samples.khz = hz / 1000;
    }

    /// The lines of the samples from now on, after the one that says what runs.
    pub fn view(&self) -> Receiver<String> {
        let (sender, receiver) = sync_channel(WAITING);
        let mut state = lock(&self.0);
        let _room = sender.try_send(state.about.clone());
        state.viewers.push(sender);
        receiver
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lines that are written at once.
#[derive(Default)]
struct Batch {
    samples: String,
    trace: String,
}

impl Batch {
    fn trace(&mut self, lines: &[Value]) {
        for line in lines {
            self.trace += &format!(",\n{line}");
        }
    }
}

impl State {
    /// Takes all records out of the memory.
    fn drain(&mut self) {
        let Some(memory) = self.memory else { return };
        if self.header.is_none() {
            match Header::read(memory) {
                Ok(Some(header)) => {
                    self.samples.khz = header.tsc_khz;
                    self.header = Some(header);
                }
                Ok(None) => return,
                Err(why) => {
                    self.wrong = Some(why);
                    self.memory = None;
                    return;
                }
            }
        }
        let Some(header) = self.header else { return };
        let rings = (0..header.traces as usize).map(|pcpu| (Some(pcpu), header.trace(memory, pcpu)));
        let mut dropped = [0; 2];
        for (pcpu, ring) in std::iter::once((None, header.samples(memory))).chain(rings) {
            if let Some(ring) = ring {
                self.drain_ring(pcpu, &ring);
                dropped[usize::from(pcpu.is_some())] += ring.dropped();
            }
        }
        self.dropped = dropped;
    }

    fn drain_ring(&mut self, pcpu: Option<usize>, ring: &Ring<'_>) {
        let mut record = [0; LONGEST];
        // A bound, so that a machine that writes all the time does not keep the other rings waiting.
        for _ in 0..64 {
            let mut out = Batch::default();
            let mut more = false;
            for _ in 0..4096 {
                let Some(words) = ring.pop(&mut record) else {
                    more = false;
                    break;
                };
                more = true;
                self.record(pcpu, &record[..words.min(LONGEST)], &mut out);
            }
            self.write(&out);
            if !more {
                return;
            }
        }
    }

    /// Turns a record into lines.
    fn record(&mut self, pcpu: Option<usize>, record: &[u64], out: &mut Batch) {
        match pcpu {
            Some(pcpu) => {
                if let Some(event) = Event::read(record) {
                    self.count[1] += 1;
                    out.trace(&self.trace.event(pcpu, &event, &self.samples));
                }
            }
            None => {
                let Some(line) = self.samples.read(record) else { return };
                if let (Some(_), Some((sample, _))) =
                    (&self.trace_file, records::sample::Sample::read(record))
                {
                    out.trace(&self.trace.counters(&line, sample.vm, sample.tsc, self.samples.khz));
                }
                self.count[0] += 1;
                out.samples += &format!("{line}\n");
            }
        }
    }

    fn write(&mut self, out: &Batch) {
        if let Some(file) = self.sample_file.as_mut().filter(|_| !out.samples.is_empty()) {
            file.add(out.samples.as_bytes());
        }
        if let Some(file) = self.trace_file.as_mut().filter(|_| !out.trace.is_empty()) {
            file.add(out.trace.as_bytes());
        }
        self.viewers.retain(|viewer| {
            // One that does not keep up misses some; one that has gone is forgotten.
            let mut lines = out.samples.lines().map(|line| viewer.try_send(format!("{line}\n")));
            !lines.any(|sent| matches!(sent, Err(TrySendError::Disconnected(_))))
        });
    }

    /// The last lines, and what there is to say.
    fn finish(&mut self, ui: &Ui) {
        self.drain();
        self.viewers.clear();
        let end = json!({
            "v": VERSION,
            "t": "end",
            "records": self.count[0],
            "dropped": self.dropped[0],
            "events": self.count[1],
            "dropped_events": self.dropped[1],
        });
        if let Some(file) = &mut self.sample_file {
            file.add(format!("{end}\n").as_bytes());
        }
        if let Some(file) = &mut self.trace_file {
            let mut out = Batch::default();
            out.trace(&self.trace.finish(self.samples.khz));
            file.add(format!("{}\n]\n", out.trace).as_bytes());
        }
        for file in [&self.sample_file, &self.trace_file].into_iter().flatten() {
            file.error().into_iter().for_each(|error| ui.error(error));
        }
        if !self.asked {
            return;
        }
        if let Some(why) = self.wrong {
            ui.error(&format!("no samples were taken: {why}"));
        } else if self.memory.is_some() && self.header.is_none() {
            ui.warn("no samples were taken: the machine ended before the hypervisor was ready");
        }
        let what = ["samples", "events of the trace"];
        for ((dropped, what), count) in
            self.dropped.iter().zip(what).zip(self.count).filter(|((dropped, _), _)| **dropped > 0)
        {
            ui.warn(&format!(
                "{dropped} {what} were dropped, {count} were kept: this machine is too slow to take them; sample less often \
                 (--sample-ms), or trace for a shorter time"
            ));
        }
    }
}
