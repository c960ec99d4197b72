//! Our own format (docs/replacement.md): magic, version, then records of variable length. Page numbers are differences to the page
//! before, so that a record takes one or two bytes in most traces.

use std::io::{self, BufRead, Write};

use super::{Batch, LONGEST, PAGES, Run, Sink, Source, TraceError, Universe};

/// What a file begins with.
pub const MAGIC: [u8; 8] = *b"PALPAGES";
/// The version that follows it.
pub const VERSION: u8 = 1;

/// Two lower bits of a record's first number.
mod tag {
    /// A run of one access; the difference follows in the upper bits.
    pub const ONE: u64 = 0;
    /// A run; its length is the next number.
    pub const RUN: u64 = 1;
    /// Something else, by the upper bits.
    pub const OTHER: u64 = 2;
}
/// The end: the number of all references follows.
const END: u64 = 0;
/// An object: its first page and the number of its pages follow. Larger numbers are the lengths of patterns, whose repetitions
/// follow, and then their runs.
const OBJECT: u64 = 1;
/// Objects of a trace, at most.
const OBJECTS: u32 = 1 << 16;

/// Writes a trace.
pub struct Writer<W: Write> {
    output: W,
    last: u64,
    references: u64,
}

impl<W: Write> Writer<W> {
    /// Begins a trace.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn new(mut output: W) -> io::Result<Self> {
        output.write_all(&MAGIC)?;
        output.write_all(&[VERSION])?;
        Ok(Self { output, last: 0, references: 0 })
    }

    fn number(&mut self, mut number: u64) -> io::Result<()> {
        let mut bytes = [0; 10];
        let mut len = 0;
        loop {
            bytes[len] = number as u8 & 0x7f | if number > 0x7f { 0x80 } else { 0 };
            (number, len) = (number >> 7, len + 1);
            if number == 0 {
                return self.output.write_all(&bytes[..len]);
            }
        }
    }

    fn record(&mut self, run: &Run<u64>) -> io::Result<()> {
        if run.page >= PAGES || run.count == 0 {
            return Err(io::Error::other("a page number of more than 52 bits, or an empty run"));
        }
        let difference = run.page.wrapping_sub(self.last) as i64;
        let zigzag = (difference << 1 ^ difference >> 63) as u64;
        self.last = run.page;
        if run.count == 1 {
            return self.number(zigzag << 2 | tag::ONE);
        }
        self.number(zigzag << 2 | tag::RUN)?;
        self.number(u64::from(run.count))
    }

    /// Ends the trace; without that it counts as cut off.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn finish(mut self) -> io::Result<(W, u64)> {
        self.number(END << 2 | tag::OTHER)?;
        self.number(self.references)?;
        self.output.flush()?;
        Ok((self.output, self.references))
    }
}

impl<W: Write> Sink for Writer<W> {
    fn object(&mut self, first: u64, pages: u64) -> io::Result<()> {
        self.number(OBJECT << 2 | tag::OTHER)?;
        self.number(first)?;
        self.number(pages)
    }

    fn run(&mut self, run: Run<u64>) -> io::Result<()> {
        self.references += u64::from(run.count);
        self.record(&run)
    }

    fn pattern(&mut self, runs: &[Run<u64>], times: u32) -> io::Result<()> {
        self.number((runs.len() as u64) << 2 | tag::OTHER)?;
        self.number(u64::from(times))?;
        let once: u64 = runs.iter().map(|run| u64::from(run.count)).sum();
        self.references += once * u64::from(times);
        runs.iter().try_for_each(|run| self.record(run))
    }
}

/// Reads a trace.
pub struct Reader<R> {
    input: R,
    at: u64,
    last: u64,
    references: u64,
    ended: bool,
}

impl<R: BufRead> Reader<R> {
    /// Of an input that begins with the magic.
    ///
    /// # Errors
    /// It does not, or is of another version.
    pub fn new(mut input: R) -> Result<Self, TraceError> {
        let mut head = [0; MAGIC.len() + 1];
        if let Err(error) = input.read_exact(&mut head) {
            return Err(match error.kind() {
                io::ErrorKind::UnexpectedEof => TraceError::Magic,
                _ => TraceError::Io(error),
            });
        }
        match head.split_last() {
            Some((&VERSION, magic)) if magic == MAGIC => {}
            Some((version, magic)) if magic == MAGIC => return Err(TraceError::Version(*version)),
            _ => return Err(TraceError::Magic),
        }
        Ok(Self { input, at: head.len() as u64, last: 0, references: 0, ended: false })
    }

    fn damaged<T>(&self, what: &'static str) -> Result<T, TraceError> {
        Err(TraceError::Damaged { at: self.at, what })
    }

    /// A byte; `None` at the end of the file.
    fn byte(&mut self) -> Result<Option<u8>, TraceError> {
        let byte = self.input.fill_buf()?.first().copied();
        if byte.is_some() {
            self.input.consume(1);
            self.at += 1;
        }
        Ok(byte)
    }

    fn number(&mut self) -> Result<u64, TraceError> {
        // The common case, without a call for each byte.
        if let [first, second, ..] = *self.input.fill_buf()? {
            let short = if first < 0x80 {
                Some((u64::from(first), 1))
            } else if second < 0x80 {
                Some((u64::from(first & 0x7f) | u64::from(second) << 7, 2))
            } else {
                None
            };
            if let Some((number, len)) = short {
                self.input.consume(len);
                self.at += len as u64;
                return Ok(number);
            }
        }
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let Some(byte) = self.byte()? else { return Err(TraceError::Cut(self.references)) };
            let part = u64::from(byte & 0x7f);
            if shift == 63 && part > 1 {
                break;
            }
            number |= part << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        self.damaged("a number of more than 64 bits")
    }

    fn short(&mut self, what: &'static str) -> Result<u32, TraceError> {
        match u32::try_from(self.number()?) {
            Ok(number) if number > 0 => Ok(number),
            _ => self.damaged(what),
        }
    }

    /// The run of a record that begins with this number.
    fn run(&mut self, first: u64) -> Result<Run<u64>, TraceError> {
        let zigzag = first >> 2;
        let difference = (zigzag >> 1) as i64 ^ -((zigzag & 1) as i64);
        let page = self.last.wrapping_add(difference as u64);
        if page >= PAGES {
            return self.damaged("a page number out of range");
        }
        self.last = page;
        let count = if first & 3 == tag::RUN { self.short("the length of a run")? } else { 1 };
        Ok(Run { page, count })
    }

    fn pattern(&mut self, len: u64, batch: &mut Batch, universe: &mut Universe) -> Result<(), TraceError> {
        if !(2..=LONGEST as u64).contains(&len) {
            return self.damaged("a record that there is not");
        }
        let times = self.short("the repetitions of a pattern")?;
        let mut once = 0;
        for _ in 0..len {
            let first = self.number()?;
            if first & 3 > tag::RUN {
                return self.damaged("a pattern of something else than runs");
            }
            let Run { page, count } = self.run(first)?;
            once += u64::from(count);
            let page = universe.row(page)?;
            batch.runs.push(Run { page, count });
        }
        self.references = self.references.saturating_add(once.saturating_mul(u64::from(times)));
        batch.repeat(len as u32, times);
        Ok(())
    }
}

impl<R: BufRead> Source for Reader<R> {
    fn fill(&mut self, batch: &mut Batch, universe: &mut Universe) -> Result<(), TraceError> {
        while !self.ended && !batch.is_full() {
            let first = self.number()?;
            if first & 3 <= tag::RUN {
                let Run { page, count } = self.run(first)?;
                self.references = self.references.saturating_add(u64::from(count));
                let page = universe.row(page)?;
                batch.push(Run { page, count });
                continue;
            }
            match first >> 2 {
                _ if first & 3 != tag::OTHER => return self.damaged("a record that there is not"),
                END if self.number()? != self.references => return self.damaged("the number of references"),
                END => self.ended = true,
                OBJECT => {
                    let (first, pages) = (self.number()?, self.number()?);
                    if universe.object_count() == OBJECTS {
                        return self.damaged("more than 65536 objects");
                    }
                    universe.object(first, pages);
                }
                len => self.pattern(len, batch, universe)?,
            }
        }
        Ok(())
    }
}
