//! The program's output: one record per line, [`MARK`] and a JSON object, so that a reader finds the records between the
//! kernel's messages. `tools/pal/src/bench/record.rs` reads them.

use std::fmt::Write;

use crate::sample::Summary;

/// What a record's line starts with.
const MARK: &str = "@bench ";

/// A row's figures.
pub fn row(name: &str, summary: &Summary) {
    println!("{MARK}{}", figures(name, summary));
}

/// A row's mean over a second.
pub fn second(name: &str, summary: &Summary) {
    let Summary { mean, samples, operations, .. } = summary;
    println!(
        "{MARK}{{\"second\":{},\"mean\":{mean:.3},\"samples\":{samples},\"operations\":{operations}}}",
        quote(name)
    );
}

/// All rows' records are of one length: printing them costs the same, so that exits can be counted without them.
fn figures(name: &str, summary: &Summary) -> String {
    let Summary { median, min, max, mean, samples, batch, operations } = summary;
    format!(
        "{{\"row\":{:20},\"unit\":\"tsc\",\"median\":{median:16.3},\"min\":{min:16.3},\"max\":{max:16.3},\
         \"mean\":{mean:16.3},\"samples\":{samples:8},\"batch\":{batch:8},\"operations\":{operations:8}}}",
        quote(name)
    )
}

/// Something that was found out about the guest.
pub fn info(name: &str, value: &str) {
    println!("{MARK}{{\"info\":{},\"value\":{}}}", quote(name), quote(value));
}

/// Something went wrong; the rows that follow may still be right.
pub fn error(text: &str) {
    println!("{MARK}{{\"error\":{}}}", quote(text));
}

/// The last record: the number of rows that were asked for.
pub fn done(rows: usize) {
    println!("{MARK}{{\"done\":{rows}}}");
}

/// A JSON string (RFC 8259, section 7).
fn quote(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            control if control < ' ' => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(control));
            }
            plain => quoted.push(plain),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_rows_have_one_length() {
        let summary = |value: u64| {
            let figure = value as f64;
            let (samples, operations) = (value as usize % 1000, value % 100_000);
            Summary {
                median: figure,
                min: figure,
                max: figure,
                mean: figure,
                samples,
                batch: operations,
                operations,
            }
        };
        assert_eq!(
            figures("cpuid", &summary(6)).len(),
            figures("first-instruction", &summary(15e9 as u64)).len()
        );
    }

    #[test]
    fn strings_are_quoted() {
        assert_eq!(quote("a\"b\\c\n\u{e4}"), "\"a\\\"b\\\\c\\u000a\u{e4}\"");
    }
}
