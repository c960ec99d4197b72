//! `pal run --top`: top has the terminal, and what the guest prints and pal says waits until it is left.
//!
//! The guest's output goes to a file without a name meanwhile, so that a guest that prints for hours takes no memory.

use std::{
    fs::File,
    io::{self, Seek, SeekFrom, Write, copy, stdout},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::sync_channel,
    },
    thread::{self, JoinHandle},
};

use anyhow::{Context, Result};

use super::records::Feed;
use crate::{
    top::{self, Watched},
    ui::{self, Ui},
};

/// Lines of samples that wait to be shown.
const QUEUE: usize = 256;

/// Output that waits for the terminal.
#[derive(Default)]
pub struct Hold {
    /// While something else has the terminal.
    file: Mutex<Option<File>>,
    released: Condvar,
}

impl Hold {
    fn file(&self) -> MutexGuard<'_, Option<File>> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The terminal is taken.
    fn begin(&self) -> Result<()> {
        *self.file() = Some(tempfile::tempfile().context("cannot make a file for the guest's output")?);
        Ok(())
    }

    /// Takes output if the terminal is taken. `None`: it is not, and the output is the caller's to write.
    pub fn take(&self, bytes: &[u8]) -> Option<io::Result<()>> {
        self.file().as_mut().map(|file| file.write_all(bytes))
    }

    /// The terminal is free: what has waited goes there, in order.
    fn release(&self) {
        let mut held = self.file();
        if let Some(mut file) = held.take() {
            // The reader of standard output may have gone; the run finds that out by itself.
            let _ = file.seek(SeekFrom::Start(0)).and_then(|_| copy(&mut file, &mut stdout().lock()));
            let _ = stdout().flush();
        }
        self.released.notify_all();
    }

    /// Waits until the terminal is free.
    pub fn wait(&self) {
        let mut held = self.file();
        while held.is_some() {
            held = self.released.wait(held).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Top inside a run.
pub struct Top {
    over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Top {
    /// Shows the samples of the machine of this name until a person leaves, or [`Top::end`].
    ///
    /// # Errors
    /// No thread or file is to be had.
    pub fn start(name: &str, feed: Feed, hold: &Arc<Hold>, ui: Ui) -> Result<Top> {
        hold.begin()?;
        ui::hold();
        let over = Arc::new(AtomicBool::new(false));
        let (hold, asked, name) = (Arc::clone(hold), Arc::clone(&over), name.to_owned());
        let (sender, lines) = sync_channel(QUEUE);
        thread::Builder::new().name("samples".into()).spawn(move || {
            for line in feed.view() {
                if sender.send(Watched::Line(line)).is_err() {
                    return;
                }
            }
        })?;
        let show = move || {
            let result = top::within(&name, &lines, &asked);
            ui::release();
            if let Err(error) = result {
                ui.error(&format!("top: {error:#}"));
            }
            hold.release();
        };
        let thread = thread::Builder::new().name("top".into()).spawn(show)?;
        Ok(Top { over, thread })
    }

    /// The run ends: the terminal is as it was before.
    pub fn end(self) {
        self.over.store(true, Ordering::Release);
        let _ended = self.thread.join();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_waits_for_the_terminal() {
        let hold = Arc::new(Hold::default());
        assert!(hold.take(b"at once").is_none());
        hold.wait();
        hold.begin().unwrap();
        assert!(matches!(hold.take(b""), Some(Ok(()))));
        let waiting = Arc::clone(&hold);
        let waits = thread::spawn(move || waiting.wait());
        hold.release();
        waits.join().unwrap();
        assert!(hold.take(b"at once").is_none());
    }
}
