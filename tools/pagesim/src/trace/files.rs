//! Traces in files: readers that are compiled here, with this crate's optimization, and not where they are used.

use std::{fs::File, io::BufReader};

use super::{
    Source, TraceError,
    foreign::{OracleGeneral, Text},
    format::Reader,
};

/// A file, of which the first bytes may have been looked at.
pub type Input = BufReader<File>;

/// Palimpsest's own format.
///
/// # Errors
/// It is another one, or of another version.
pub fn ours(input: Input) -> Result<Box<dyn Source>, TraceError> {
    Ok(Box::new(Reader::new(input)?))
}

/// A page number in each line.
pub fn lines(input: Input) -> Box<dyn Source> {
    Box::new(Text::lines(input))
}

/// Columns; the page number is in this one, from 1.
pub fn columns(input: Input, column: usize, delimiter: u8) -> Box<dyn Source> {
    Box::new(Text::columns(input, column, delimiter))
}

/// libCacheSim's binary records.
pub fn oracle_general(input: Input) -> Box<dyn Source> {
    Box::new(OracleGeneral::new(input))
}
