//! Finds patterns: an inner loop over several arrays accesses their pages in turn, hundreds of times before one of them changes.

use std::{collections::VecDeque, io};

use super::{LONGEST, Run, Sink};

/// Takes runs, and gives runs and patterns to another sink.
pub struct Compactor<S> {
    sink: S,
    /// Runs that may be the beginning of a pattern.
    window: VecDeque<Run<u64>>,
    pattern: Vec<Run<u64>>,
    /// How often the pattern has been there, and how many of its runs once more.
    times: u32,
    at: usize,
}

impl<S: Sink> Compactor<S> {
    /// In front of a sink.
    pub fn new(sink: S) -> Self {
        Self { sink, window: VecDeque::new(), pattern: Vec::new(), times: 0, at: 0 }
    }

    /// A run.
    ///
    /// # Errors
    /// The sink's.
    pub fn push(&mut self, run: Run<u64>) -> io::Result<()> {
        if self.times > 0 {
            if self.pattern[self.at] == run && self.times < u32::MAX {
                self.at += 1;
                if self.at == self.pattern.len() {
                    (self.at, self.times) = (0, self.times + 1);
                }
                return Ok(());
            }
            self.end_pattern()?;
        }
        self.window.push_back(run);
        let end = self.window.len();
        for len in 2..=LONGEST.min(end / 2) {
            let same = |back: usize| self.window[end - 1 - back] == self.window[end - 1 - back - len];
            if (0..len).all(same) {
                for run in self.window.drain(..end - 2 * len) {
                    self.sink.run(run)?;
                }
                self.pattern = self.window.drain(..).take(len).collect();
                self.window.clear();
                self.times = 2;
                return Ok(());
            }
        }
        if end == 2 * LONGEST
            && let Some(first) = self.window.pop_front()
        {
            self.sink.run(first)?;
        }
        Ok(())
    }

    fn end_pattern(&mut self) -> io::Result<()> {
        self.sink.pattern(&self.pattern, self.times)?;
        self.window.extend(&self.pattern[..self.at]);
        (self.times, self.at) = (0, 0);
        Ok(())
    }

    /// Hands on what is kept.
    ///
    /// # Errors
    /// The sink's.
    pub fn flush(&mut self) -> io::Result<()> {
        if self.times > 0 {
            self.end_pattern()?;
        }
        self.window.drain(..).try_for_each(|run| self.sink.run(run))
    }

    /// An object begins here.
    ///
    /// # Errors
    /// The sink's.
    pub fn object(&mut self, first: u64, pages: u64) -> io::Result<()> {
        self.flush()?;
        self.sink.object(first, pages)
    }

    /// The sink, with all that was pushed.
    ///
    /// # Errors
    /// The sink's.
    pub fn finish(mut self) -> io::Result<S> {
        self.flush()?;
        Ok(self.sink)
    }
}
