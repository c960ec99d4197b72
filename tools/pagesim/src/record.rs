//! Accesses as a trace: the stand-in programs', and those of a lab machine's guests, whose plugin calls [`Recorder`].

use std::{
    cell::RefCell,
    fs::File,
    io::{self, BufWriter, Write},
};

use workloads::science::{self, Global, Watch};

use crate::trace::{Run, compact::Compactor, format::Writer};

/// Bits of an address within a page.
const PAGE_SHIFT: u32 = 12;
/// Larger allocations are objects: 10 pages, as in the thesis.
const OBJECT_BYTES: u64 = 40 << 10;

/// Turns accesses, one after the other, into a trace. An error is kept until the end, and ends the recording.
pub struct Recorder<W: Write> {
    compactor: Compactor<Writer<W>>,
    last: Run<u64>,
    error: Option<io::Error>,
}

impl<W: Write> Recorder<W> {
    /// Begins a trace.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn new(output: W) -> io::Result<Self> {
        let compactor = Compactor::new(Writer::new(output)?);
        Ok(Self { compactor, last: Run { page: 0, count: 0 }, error: None })
    }

    /// An access to this page.
    #[inline]
    pub fn touch(&mut self, page: u64) {
        if page == self.last.page && self.last.count > 0 && self.last.count < u32::MAX {
            self.last.count += 1;
            return;
        }
        self.end_run();
        self.last = Run { page, count: 1 };
    }

    /// Pages that are an object from here on.
    pub fn object(&mut self, first: u64, pages: u64) {
        self.end_run();
        if self.error.is_none() {
            self.error = self.compactor.object(first, pages).err();
        }
    }

    /// The last run ends.
    fn end_run(&mut self) {
        if self.last.count > 0 && self.error.is_none() {
            self.error = self.compactor.push(self.last).err();
        }
        self.last.count = 0;
    }

    /// Ends the trace: what it was written to, and the number of its references.
    ///
    /// # Errors
    /// Some of it could not be written.
    pub fn finish(mut self) -> io::Result<(W, u64)> {
        self.end_run();
        match self.error {
            Some(error) => Err(error),
            None => self.compactor.finish()?.finish(),
        }
    }
}

/// A program's accesses, by address.
struct Accesses<W: Write>(RefCell<Recorder<W>>);

impl<W: Write> Watch for Accesses<W> {
    type Memory = Global;

    fn memory(&self, _bytes: u64) -> Global {
        Global
    }

    #[inline]
    fn touch(&self, address: u64) {
        self.0.borrow_mut().touch(address >> PAGE_SHIFT);
    }

    fn allocated(&self, address: u64, bytes: u64) {
        if bytes > OBJECT_BYTES {
            // Pages that it shares with others belong to the others.
            let first = address.div_ceil(1 << PAGE_SHIFT);
            self.0.borrow_mut().object(first, ((address + bytes) >> PAGE_SHIFT) - first);
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
    let accesses = Accesses(RefCell::new(Recorder::new(output)?));
    let checksum = science::run(program, scale_milli, &accesses);
    let (output, references) = accesses.0.into_inner().finish()?;
    Ok((output, Recorded { references, checksum }))
}

/// The same into a file.
///
/// # Errors
/// The trace cannot be written.
pub fn record_to(program: &science::Program, scale_milli: u32, file: File) -> io::Result<Recorded> {
    record(program, scale_milli, BufWriter::new(file)).map(|(_, recorded)| recorded)
}
