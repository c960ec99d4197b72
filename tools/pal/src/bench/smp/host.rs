//! The machine that the emulator runs on, as far as figures in real time depend on it.

use std::{fs, thread};

use serde::Serialize;

/// What was found at the start.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Host {
    /// Processors that we may use.
    pub processors: usize,
    /// How many programs wanted to run in the minute before, on average; `None` if the system does not tell.
    pub load: Option<f64>,
}

impl Host {
    /// Looks at this machine.
    pub fn look() -> Self {
        let load = fs::read_to_string("/proc/loadavg").ok();
        Self {
            processors: thread::available_parallelism().map_or(1, usize::from),
            load: load.and_then(|line| line.split(' ').next()?.parse().ok()),
        }
    }

    /// Whether other programs had a good part of it.
    pub fn was_busy(&self) -> bool {
        self.load.is_some_and(|load| load > 0.5 * self.processors as f64)
    }
}
