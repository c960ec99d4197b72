//! The stand-in programs' accesses as a trace.

use std::{
    cell::RefCell,
    fs::File,
    io::{self, BufWriter, Write},
};

use workloads::science::{self, Watch};

use crate::trace::{Run, compact::Compactor, format::Writer};

/// Bits of an address within a page.
const PAGE_SHIFT: u32 = 12;
/// Larger allocations are objects: 10 pages, as in the thesis.
const OBJECT_BYTES: u64 = 40 << 10;

struct Inner<W: Write> {
    compactor: Compactor<Writer<W>>,
    last: Run<u64>,
    error: Option<io::Error>,
}

impl<W: Write> Inner<W> {
    /// The last run ends.
    fn end_run(&mut self) {
        if self.last.count > 0 && self.error.is_none() {
            self.error = self.compactor.push(self.last).err();
        }
        self.last.count = 0;
    }
}

/// Turns accesses into runs.
struct Recorder<W: Write>(RefCell<Inner<W>>);

impl<W: Write> Watch for Recorder<W> {
    #[inline]
    fn touch(&self, address: u64) {
        let page = address >> PAGE_SHIFT;
        let mut inner = self.0.borrow_mut();
        if page == inner.last.page && inner.last.count > 0 && inner.last.count < u32::MAX {
            inner.last.count += 1;
            return;
        }
        inner.end_run();
        inner.last = Run { page, count: 1 };
    }

    fn allocated(&self, address: u64, bytes: u64) {
        let mut inner = self.0.borrow_mut();
        inner.end_run();
        if bytes > OBJECT_BYTES && inner.error.is_none() {
            // Pages that it shares with others belong to the others.
            let first = address.div_ceil(1 << PAGE_SHIFT);
            let pages = ((address + bytes) >> PAGE_SHIFT) - first;
            inner.error = inner.compactor.object(first, pages).err();
        }
    }
}

/// What was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// References.
    pub references: u64,
    /// The program's checksum.
    pub checksum: u64,
}

/// Runs a program at this many thousandths of its size and writes its accesses as a trace.
///
/// # Errors
/// The trace cannot be written.
pub fn record<W: Write>(
    program: &science::Program,
    scale_milli: u32,
    output: W,
) -> io::Result<(W, Recorded)> {
    let inner = Inner {
        compactor: Compactor::new(Writer::new(output)?),
        last: Run { page: 0, count: 0 },
        error: None,
    };
    let recorder = Recorder(RefCell::new(inner));
    let checksum = science::run(program, scale_milli, &recorder);
    let mut inner = recorder.0.into_inner();
    inner.end_run();
    if let Some(error) = inner.error {
        return Err(error);
    }
    let (output, references) = inner.compactor.finish()?.finish()?;
    Ok((output, Recorded { references, checksum }))
}

/// The same into a file.
///
/// # Errors
/// The trace cannot be written.
pub fn record_to(program: &science::Program, scale_milli: u32, file: File) -> io::Result<Recorded> {
    record(program, scale_milli, BufWriter::new(file)).map(|(_, recorded)| recorded)
}
