//! The guest benchmark: performs the operations of `docs/benchmarks.md` one by one and prints what each took, in ticks of
//! the time-stamp counter. It is made to be a Linux guest's first process (then it powers the machine off at the end),
//! but runs as a common program too. Arguments are names of rows; none means all.
//!
//! It is small, static and has one thread, because its own size is part of what fork and exec cost.
#![cfg_attr(not(test), no_main)]

mod clock;
mod first;
mod guest;
mod ops;
mod report;
mod sample;

use std::{
    env,
    ffi::{CStr, c_char, c_int},
    io,
};

use ops::{Access, ROWS};
use sample::{Length, Samples, Summary};

/// The name under which the program exits before doing anything.
const EXIT_AT_ONCE: &CStr = c"exit";
/// The word for eight times the batches of each row.
const EIGHTFOLD: &str = "eight";
/// The word for the mean over a second of each row, after all rows have been measured as usual.
const SECOND: &str = "second";
/// Rows without a mean over a second: millions of exits, for which an emulator takes a minute.
const NOT_FOR_A_SECOND: [&str; 1] = ["cpuid"];
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

/// What measures a row.
type Measure = Box<dyn Fn(&mut Samples) -> io::Result<()>>;

/// The rows that are wanted besides the first one: those of the table in its order, all for no names; then those that
/// access memory, in the order of their names.
fn rows(wanted: &[String]) -> Vec<(&str, Measure)> {
    let usual = ROWS.iter().filter(|row| wanted.is_empty() || wanted.iter().any(|word| word == row.name));
    let usual = usual.map(|row| (row.name, Box::new(row.measure) as Measure));
    let accesses = wanted.iter().filter_map(|name| {
        let access = Access::named(name)?;
        Some((name.as_str(), Box::new(move |samples: &mut Samples| access.measure(samples)) as Measure))
    });
    usual.chain(accesses).collect()
}

/// Performs the rows that are wanted; returns the exit status.
fn run(wanted: &[String]) -> c_int {
    let has_word = |word: &str| wanted.iter().any(|each| each == word);
    guest::describe();
    let rows = rows(wanted);
    let first = wanted.is_empty() || has_word(FIRST_INSTRUCTION);
    if first {
        report::row(FIRST_INSTRUCTION, &Samples::known(first::tsc()).summary());
    }
    let mut failed = 0;
    let mut perform = |length: Length, report: fn(&str, &Summary)| {
        let is_too_much = |name: &str| length == Length::Second && NOT_FOR_A_SECOND.contains(&name);
        for (number, (name, measure)) in rows.iter().enumerate().filter(|(_, (name, _))| !is_too_much(name)) {
            guest::drain();
            // A lab machine knows the rows by their order.
            let mut samples = Samples::new(length, (length == Length::Usual).then_some(number as u64));
            match measure(&mut samples) {
                Ok(()) => report(name, &samples.summary()),
                Err(error) => {
                    failed = 1;
                    report::error(&format!("{name}: {error}"));
                }
            }
        }
    };
    perform(if has_word(EIGHTFOLD) { Length::Eightfold } else { Length::Usual }, report::row);
    if has_word(SECOND) {
        // Only now: a second of forks leaves the kernel's allocators different from what the rows' figures are of.
        perform(Length::Second, report::second);
    }
    report::done(rows.len() + usize::from(first));
    failed
}
