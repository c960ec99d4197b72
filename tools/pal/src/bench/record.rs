//! The guest program's records: lines that start with a mark and hold a JSON object, between whatever else a console
//! shows. `bench/guest/src/report.rs` writes them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

const MARK: &str = "@bench ";

/// The figures of one row, in ticks per operation.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Figures {
    /// The middle batch.
    pub median: f64,
    /// The fastest batch.
    pub min: f64,
    /// The slowest batch: it may hold timer interrupts.
    pub max: f64,
    /// All batches.
    pub mean: f64,
    /// Batches.
    pub samples: u64,
    /// Operations in each of them.
    pub batch: u64,
    /// Operations performed in all, with those that were not timed.
    pub operations: u64,
}

/// A row's figure over a second.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct Second {
    /// Ticks per operation, of all batches that a second holds.
    pub mean: f64,
    /// Batches.
    pub samples: u64,
    /// Operations performed.
    pub operations: u64,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Record {
    Row {
        row: String,
        #[serde(flatten)]
        figures: Figures,
    },
    Second {
        second: String,
        #[serde(flatten)]
        figure: Second,
    },
    Info {
        info: String,
        value: String,
    },
    Error {
        error: String,
    },
    Done {
        done: usize,
    },
}

/// What a guest reported.
#[derive(Clone, Debug, Default)]
pub struct Records {
    /// The rows.
    pub rows: BTreeMap<String, Figures>,
    /// The rows' means over a second, if they were asked for.
    pub seconds: BTreeMap<String, Second>,
    /// Kernel, processor, settings.
    pub info: BTreeMap<String, String>,
    /// What went wrong in the guest.
    pub errors: Vec<String>,
    /// How many rows the guest tried; `None` if it did not get that far.
    pub done: Option<usize>,
}

impl Records {
    /// Reads a console's output.
    pub fn read(output: &str) -> Self {
        let mut records = Self::default();
        // A message of the kernel's may stand before a record on the same line.
        for json in output.lines().filter_map(|line| line.split_once(MARK)) {
            match serde_json::from_str(json.1.trim_end()) {
                Ok(Record::Row { row, figures }) => drop(records.rows.insert(row, figures)),
                Ok(Record::Second { second, figure }) => drop(records.seconds.insert(second, figure)),
                Ok(Record::Info { info, value }) => drop(records.info.insert(info, value)),
                Ok(Record::Error { error }) => records.errors.push(error),
                Ok(Record::Done { done }) => records.done = Some(done),
                Err(error) => records.errors.push(format!("unreadable record ({error}): {}", json.1)),
            }
        }
        records
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn records_between_other_lines() {
        let records = Records::read(
            "[    0.1] Linux\r\n@bench {\"info\":\"cpu\",\"value\":\"a \\\"b\\\"\"}\r\n\
             [    0.2] x@bench {\"row\":\"cpuid\",\"unit\":\"tsc\",\"median\":6.5,\"min\":6,\"max\":7,\"mean\":6.6,\
             \"samples\":3,\"batch\":2,\"operations\":9}\r\n@bench {\"error\":\"e\"}\n\
             @bench {\"second\":\"cpuid\",\"mean\":6.75,\"samples\":5,\"operations\":1600}\n@bench {\"row\":\"x\"}\n@bench {\"done\":2}\n",
        );
        assert_eq!(records.info["cpu"], "a \"b\"");
        assert_eq!((records.rows["cpuid"].median, records.rows["cpuid"].operations), (6.5, 9));
        assert_eq!(records.seconds["cpuid"], Second { mean: 6.75, samples: 5, operations: 1600 });
        assert_eq!(records.errors.len(), 2, "{:?}", records.errors);
        assert_eq!(records.done, Some(2));
        assert_eq!(Records::read("@bench").done, None);
    }

    proptest! {
        #[test]
        fn no_output_panics(output in "(@bench |[{}\\[\\]\":,1a-e\n]|row|median){0,40}") {
            let _ = Records::read(&output);
        }
    }
}
