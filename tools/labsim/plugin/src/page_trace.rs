//! The pages that guests access, as a trace for the simulator of page replacement (docs/replacement.md).
//!
//! Callbacks of accesses and of code call it; it is complete once [`crate::state::finish`] has ended it. One recorder for all processors:
//! the order of its accesses is the one in which their threads came to it.

use std::{
    fs::File,
    io::BufWriter,
    sync::{Mutex, PoisonError},
};

use pagesim::record::Recorder;

/// See the module.
pub struct PageTrace {
    recorder: Mutex<Option<Recorder<BufWriter<File>>>>,
    /// The machine has no hypervisor: all that it executes is the guest's.
    of_all: bool,
}

impl PageTrace {
    /// Begins the file.
    pub fn new(path: &str, of_all: bool) -> Result<PageTrace, String> {
        let file = File::options().write(true).truncate(true).create(true).open(path);
        let recorder = file.and_then(|file| Recorder::new(BufWriter::new(file)));
        let recorder = recorder.map_err(|error| format!("pages={path}: {error}"))?;
        Ok(PageTrace { recorder: Mutex::new(Some(recorder)), of_all })
    }

    /// An access of memory at this physical address.
    pub fn access(&self, in_guest: bool, pa: u64) {
        if in_guest || self.of_all {
            let mut recorder = self.recorder.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(recorder) = recorder.as_mut() {
                recorder.touch(pa >> 12);
            }
        }
    }

    /// Ends the file: the number of its references, or why it is cut off.
    pub fn finish(&self) -> Result<u64, String> {
        let recorder = self.recorder.lock().unwrap_or_else(PoisonError::into_inner).take();
        let ended = recorder.map(Recorder::finish).transpose();
        // What is in the buffer still may not fit.
        let ended = ended.and_then(|ended| {
            let Some((buffer, references)) = ended else { return Ok(0) };
            buffer.into_inner().map(|_| references).map_err(std::io::IntoInnerError::into_error)
        });
        ended.map_err(|error: std::io::Error| error.to_string())
    }
}
