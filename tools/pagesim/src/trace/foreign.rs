//! libCacheSim's common formats: `txt` with an id in each line, `csv` with columns, and `oracleGeneral`, records of 24 bytes. Sizes
//! and times are not looked at: all pages are of one size.

use std::io::{BufRead, Read};

use super::{Batch, PAGES, Run, Source, TraceError, Universe};

/// Characters of a line, at most.
const LINE: u64 = 1 << 16;

/// Lines of text.
pub struct Text<R> {
    input: R,
    /// The column of the id, from 1; `None`: the line is the id.
    column: Option<usize>,
    delimiter: u8,
    line: u64,
}

impl<R: BufRead> Text<R> {
    /// An id in each line.
    pub fn lines(input: R) -> Self {
        Self { input, column: None, delimiter: b',', line: 0 }
    }

    /// Columns; the id is in this one, from 1.
    pub fn columns(input: R, column: usize, delimiter: u8) -> Self {
        Self { input, column: Some(column), delimiter, line: 0 }
    }

    fn page(&self, line: &[u8]) -> Result<Option<u64>, TraceError> {
        let id = match self.column {
            None => Some(line),
            Some(column) => line.split(|byte| *byte == self.delimiter).nth(column - 1),
        };
        let wrong = |what: String| TraceError::Line { line: self.line, what };
        let id = id.map(<[u8]>::trim_ascii).filter(|id| !id.is_empty()).ok_or_else(|| {
            wrong(format!(
                "no column {}: --column and --delimiter say where the id is",
                self.column.unwrap_or(1)
            ))
        })?;
        let text = core::str::from_utf8(id).ok();
        let number = text.and_then(|text| match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        });
        match number {
            // Names of columns.
            None if self.line == 1 && self.column.is_some() => Ok(None),
            None => {
                Err(wrong("the id is no number: replace ids by numbers, the same for the same id".into()))
            }
            Some(number) if number >= PAGES => {
                Err(wrong("the id has more than 52 bits: replace ids by smaller numbers".into()))
            }
            number => Ok(number),
        }
    }
}

impl<R: BufRead> Source for Text<R> {
    fn fill(&mut self, batch: &mut Batch, universe: &mut Universe) -> Result<(), TraceError> {
        let mut line = Vec::new();
        while !batch.is_full() {
            line.clear();
            if self.input.by_ref().take(LINE).read_until(b'\n', &mut line)? == 0 {
                break;
            }
            self.line += 1;
            if line.len() as u64 == LINE && line.last() != Some(&b'\n') {
                return Err(TraceError::Line {
                    line: self.line,
                    what: "it has more than 65536 characters".into(),
                });
            }
            let text = line.trim_ascii();
            if text.is_empty() || text.starts_with(b"#") {
                continue;
            }
            if let Some(page) = self.page(text)? {
                let page = universe.row(page)?;
                batch.push(Run { page, count: 1 });
            }
        }
        Ok(())
    }
}

/// `oracleGeneral`: time (32 bits), id (64), size (32), position of the next access (64), little-endian and packed.
pub struct OracleGeneral<R> {
    input: R,
    records: u64,
}

/// Bytes of a record.
const RECORD: usize = 24;
/// What files of zstd begin with.
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

impl<R: BufRead> OracleGeneral<R> {
    /// Of the file's contents.
    pub fn new(input: R) -> Self {
        Self { input, records: 0 }
    }
}

impl<R: BufRead> Source for OracleGeneral<R> {
    fn fill(&mut self, batch: &mut Batch, universe: &mut Universe) -> Result<(), TraceError> {
        let mut record = [0; RECORD];
        while !batch.is_full() {
            // A whole record in the buffer is the common case.
            let mut got = 0;
            if let Some(whole) = self.input.fill_buf()?.first_chunk::<RECORD>() {
                (record, got) = (*whole, RECORD);
                self.input.consume(RECORD);
            }
            while got < RECORD {
                match self.input.read(&mut record[got..])? {
                    0 => break,
                    more => got += more,
                }
            }
            let at = self.records * RECORD as u64;
            if got == 0 {
                break;
            }
            if self.records == 0 && record.starts_with(&ZSTD) {
                return Err(TraceError::Damaged {
                    at,
                    what: "it is compressed, unpack it first by `zstd -d`",
                });
            }
            if got < RECORD {
                return Err(TraceError::Cut(self.records));
            }
            self.records += 1;
            // Ids are hashes there, of all 64 bits: only equality counts.
            let id = record[4..12].iter().rev().fold(0, |id, byte| id << 8 | u64::from(*byte));
            let page = universe.row(id)?;
            batch.push(Run { page, count: 1 });
        }
        Ok(())
    }
}
