//! The guest benchmark: performs the operations of `docs/benchmarks.md` one by one and prints what each took, in ticks of
//! the time-stamp counter. It is made to be a Linux guest's first process (then it powers the machine off at the end),
//! but runs as a common program too. Arguments are names of rows; none means all.
//!
//! It is small, static and has one thread, because its own size is part of what fork and exec cost.
#![cfg_attr(not(test), no_main)]

mod first;
mod guest;
mod ops;
mod report;
mod sample;

use std::{
    env,
    ffi::{CStr, c_char, c_int},
};

use ops::ROWS;
use sample::{Length, Samples, Summary};

/// The name under which the program exits before doing anything.
const EXIT_AT_ONCE: &CStr = c"exit";
/// The word for twice the batches of each row.
const TWICE: &str = "twice";
/// The word for the mean over a second of each row, after all rows have been measured as usual.
const SECOND: &str = "second";
/// The row that is measured before `main`.
const FIRST_INSTRUCTION: &str = "first-instruction";

/// Called by the C library. Not Rust's own `main`, whose runtime makes a dozen system calls first.
///
/// # Safety
/// `arguments` is a C program's list of `count` arguments.
#[cfg_attr(not(test), unsafe(export_name = "main"))]
pub unsafe extern "C" fn start(count: c_int, arguments: *const *const c_char) -> c_int {
    // SAFETY: the caller's promise; the first of at least one argument is a C string.
    if count == 1 && unsafe { CStr::from_ptr(*arguments) } == EXIT_AT_ONCE {
        return 0;
    }
    let first = guest::is_first_process();
    if first {
        guest::prepare();
    }
    let wanted: Vec<String> = env::args().skip(1).collect();
    let status = run(&wanted);
    if first {
        guest::power_off();
    }
    status
}

/// Performs the rows that are wanted; returns the exit status.
fn run(wanted: &[String]) -> c_int {
    let has_word = |word: &str| wanted.iter().any(|each| each == word);
    let is_wanted = |name: &str| wanted.is_empty() || has_word(name);
    guest::describe();
    let mut failed = 0;
    let mut rows = 0;
    if is_wanted(FIRST_INSTRUCTION) {
        rows += 1;
        report::row(FIRST_INSTRUCTION, &Samples::known(first::tsc()).summary());
    }
    let mut perform = |length: Length, report: fn(&str, &Summary)| {
        for row in ROWS.iter().filter(|row| is_wanted(row.name)) {
            let mut samples = Samples::new(length);
            match (row.measure)(&mut samples) {
                Ok(()) => report(row.name, &samples.summary()),
                Err(error) => {
                    failed = 1;
                    report::error(&format!("{}: {error}", row.name));
                }
            }
        }
    };
    perform(if has_word(TWICE) { Length::Twice } else { Length::Usual }, report::row);
    if has_word(SECOND) {
        // Only now: a second of forks leaves the kernel's allocators different from what the rows' figures are of.
        perform(Length::Second, report::second);
    }
    rows += ROWS.iter().filter(|row| is_wanted(row.name)).count();
    report::done(rows);
    failed
}
