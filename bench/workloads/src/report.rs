//! The program's output: one record, [`workloads::MARK`] and a JSON object, so that a reader finds it between the kernel's
//! messages. `tools/pal/src/workload/record.rs` reads it.

use workloads::MARK;

/// What was done, and when: the time-stamp counter before and after. Names are words.
pub fn done(name: &str, scale_milli: u32, checksum: u64, begin: u64, end: u64) {
    println!(
        "{MARK}{{\"workload\":\"{name}\",\"scale_milli\":{scale_milli},\"checksum\":\"{checksum:016x}\",\
         \"tsc_begin\":{begin},\"tsc_end\":{end}}}"
    );
}

/// Why it was not done.
pub fn error(text: &str) {
    let plain = |character: char| {
        if matches!(character, '"' | '\\') || character.is_control() { ' ' } else { character }
    };
    println!("{MARK}{{\"error\":\"{}\"}}", text.chars().map(plain).collect::<String>());
}

/// Something about the guest; the workloads have nothing to say.
pub fn info(_name: &str, _value: &str) {}
