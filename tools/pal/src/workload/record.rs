//! What the guest's program says: one record between whatever else a console shows. `bench/workloads/src/report.rs` writes it.

use std::{error::Error, fmt, os::unix::process::ExitStatusExt, process::ExitStatus};

use serde::Deserialize;

use crate::status::exit;

/// What was done.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct Record {
    /// The workload.
    pub workload: String,
    /// Thousandths of its scale.
    pub scale_milli: u32,
    /// What came out; it depends on workload and scale alone.
    pub checksum: String,
    /// The guest's time-stamp counter when the work began.
    pub tsc_begin: u64,
    /// And when it had ended.
    pub tsc_end: u64,
}

/// A signal ended the run: its number. Ctrl-C in a terminal goes to `pal` and to its runs, which may be gone first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedBySignal(pub i32);

impl EndedBySignal {
    /// What the status of a run says, which may have been killed or have tidied up first.
    pub fn of(status: ExitStatus) -> Option<EndedBySignal> {
        // With 255 ssh and others say that something else was wrong; a signal's number is below 65.
        let told =
            || status.code().map(|code| code - i32::from(exit::SIGNAL)).filter(|it| (1..65).contains(it));
        status.signal().or_else(told).map(EndedBySignal)
    }
}

impl fmt::Display for EndedBySignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let EndedBySignal(signal) = self;
        write!(f, "signal {signal} ended the run; the same command runs it again")
    }
}

impl Error for EndedBySignal {}

#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Done(Record),
    Error { error: String },
}

/// Finds the record in what a guest has printed.
///
/// # Errors
/// The program's own error, or that there is none.
pub fn read(output: &str) -> Result<Record, String> {
    let lines = output.lines().filter_map(|line| line.split_once(workloads::MARK));
    match lines.filter_map(|(_, text)| serde_json::from_str(text).ok()).next_back() {
        Some(Line::Done(record)) if record.tsc_begin <= record.tsc_end => Ok(record),
        Some(Line::Done(_)) => Err("the guest's time-stamp counter ran backwards".into()),
        Some(Line::Error { error }) => Err(format!("the guest's program: {error}")),
        None => Err("the guest's program did not come to its end".into()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_record_is_found_among_messages() {
        let line = r#"{"workload":"gups","scale_milli":50,"checksum":"00ff","tsc_begin":5,"tsc_end":9}"#;
        let record =
            read(&format!("[    0.1] Linux\r\n[ 1.0] x @workload {line}\r\nreboot: Power down\n")).unwrap();
        assert_eq!((record.scale_milli, record.checksum.as_str(), record.tsc_end), (50, "00ff", 9));
        assert!(read("Linux\n").unwrap_err().contains("did not come to its end"));
        assert!(read("@workload {\"error\":\"no memory\"}").unwrap_err().contains("no memory"));
        assert!(read(&format!("@workload {}", line.replace(":9", ":1"))).unwrap_err().contains("backwards"));
    }

    #[test]
    fn a_status_tells_of_a_signal() {
        // Those of wait: the code in the second byte, or the signal in the first.
        let of = |raw| EndedBySignal::of(ExitStatus::from_raw(raw));
        assert_eq!([of(130 << 8), of(9)], [Some(EndedBySignal(2)), Some(EndedBySignal(9))]);
        assert_eq!([of(0), of(1 << 8), of(128 << 8), of(255 << 8)], [None; 4]);
    }

    proptest! {
        #[test]
        fn no_output_panics(text in "(@workload )?.{0,80}") {
            let _ = read(&text);
        }
    }
}
