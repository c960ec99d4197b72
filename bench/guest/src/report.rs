//! The program's output: one record per line, [`MARK`] and a JSON object, so that a reader finds the records between the
//! kernel's messages. `tools/pal/src/bench/record.rs` reads them.

use std::fmt::Write;

use crate::sample::Summary;

/// What a record's line starts with.
const MARK: &str = "@bench ";

/// A row's figures.
pub fn row(name: &str, summary: &Summary) {
    let Summary { median, min, max, mean, samples, operations } = summary;
    println!(
        "{MARK}{{\"row\":\"{name}\",\"unit\":\"tsc\",\"median\":{median:.3},\"min\":{min:.3},\"max\":{max:.3},\
         \"mean\":{mean:.3},\"samples\":{samples},\"operations\":{operations}}}"
    );
}

/// Something that was found out about the guest.
pub fn info(name: &str, value: &str) {
    println!("{MARK}{{\"info\":{},\"value\":{}}}", quote(name), quote(value));
}

/// Something went wrong; the rows that follow may still be right.
pub fn error(text: &str) {
    println!("{MARK}{{\"error\":{}}}", quote(text));
}

/// The last record: so many rows were asked for.
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
    fn strings_are_quoted() {
        assert_eq!(quote("a\"b\\c\n\u{e4}"), "\"a\\\"b\\\\c\\u000a\u{e4}\"");
    }
}
