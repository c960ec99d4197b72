//! What the guest's program says: one record between whatever else a console shows. `bench/workloads/src/report.rs` writes it.

use serde::Deserialize;

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

    proptest! {
        #[test]
        fn no_output_panics(text in "(@workload )?.{0,80}") {
            let _ = read(&text);
        }
    }
}
