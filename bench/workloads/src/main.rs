//! The guest's program of `cargo pal workload`: does a fixed amount of one kind of work, and prints its checksum. It is made
//! to be a Linux guest's first process (then it powers the machine off at the end), but runs as a common program too.
//! Arguments: the workload's name, and thousandths of the scale.
//!
//! What a workload needs is there before the work begins; the work alone is marked for the lab machine. The program is
//! static and has one thread.
#![cfg_attr(not(test), no_main)]

mod anneal;
#[path = "../../guest/src/clock.rs"]
mod clock;
mod compute;
mod dedup;
#[path = "../../guest/src/guest.rs"]
#[allow(dead_code, reason = "the benchmark also describes its guest")]
mod guest;
mod memory;
mod neighbours;
mod paging;
mod phases;
mod programs;
mod random;
mod report;
mod standins;
mod store;
mod sys;

use std::{
    env,
    ffi::{CStr, c_char, c_int},
    fs::File,
    io, mem,
};

/// The name under which the program exits at once, with its first argument as status.
const EXIT_AT_ONCE: &CStr = c"exit";
/// The name under which it fills some memory before that.
const BUILD: &CStr = c"build";

/// The work, after what it needs has been prepared; its checksum. To be done once; what it needs is given back with it, after
/// the end, or goes with the guest.
type Work = Box<dyn FnMut() -> io::Result<u64>>;

/// What is looked at after the end of the work: from what the work returned to its checksum.
type Check = Box<dyn FnOnce(u64) -> io::Result<u64>>;

/// Rounds of `chase` at scale 1, of `mmap-churn`, `bfs` and `fork-server`.
const CHASE: u64 = 10_000_000;
const CHURN: u64 = 150;
const SEARCHES: u64 = 2;
const SERVE: u64 = 200;

/// Prepares this many rounds.
type Prepare = fn(u64) -> io::Result<Work>;

/// Each workload with its rounds at scale 1.
const WORKS: &[(&str, u64, Prepare)] = &[
    ("gups", 3_000_000, memory::gups),
    ("chase", CHASE, memory::chase),
    ("spmv", 2, memory::spmv),
    ("bfs", SEARCHES, memory::bfs),
    ("fork-exec", 100, paging::fork_exec),
    ("mmap-churn", CHURN, paging::mmap_churn),
    ("fork-server", SERVE, paging::fork_server),
    ("copy-on-write", 40, paging::copy_on_write),
    ("phases", CHURN, phases::phases),
    ("phases-fork", SEARCHES, phases::phases_fork),
    ("neighbours", 400, neighbours::neighbours),
    ("matmul", 6, compute::matmul),
    ("sha256", 400, compute::sha256),
    ("store", 300_000, store::store),
    ("anneal", 300_000, anneal::anneal),
    ("dedup", 64, dedup::dedup),
    ("dedup-maps", 128, dedup::dedup_maps),
];

/// Called by the C library. Not Rust's own `main`, whose runtime makes a dozen system calls first.
///
/// # Safety
/// `arguments` is a C program's list of `count` arguments.
#[cfg_attr(not(test), unsafe(export_name = "main"))]
pub unsafe extern "C" fn start(count: c_int, arguments: *const *const c_char) -> c_int {
    if count == 2 {
        // SAFETY: the caller's promise; both arguments are C strings.
        let [name, number] = unsafe { [CStr::from_ptr(*arguments), CStr::from_ptr(*arguments.add(1))] };
        if name == EXIT_AT_ONCE {
            return paging::exit_with(number.to_bytes()).into();
        }
        if name == BUILD {
            return paging::build(number.to_bytes()).into();
        }
    }
    let first = guest::is_first_process();
    if first {
        guest::prepare();
    }
    let arguments: Vec<String> = env::args().skip(1).collect();
    let status = match perform(&arguments) {
        Ok(()) => 0,
        Err(error) => {
            report::error(&error.to_string());
            1
        }
    };
    if first {
        guest::power_off();
    }
    status
}

/// Performs the work that the arguments name, and reports it.
fn perform(arguments: &[String]) -> io::Result<()> {
    let usage = || io::Error::other("arguments: a workload's name, and thousandths of its scale");
    // The kernel hands over unknown words of its own command line before them, such as `nokaslr`.
    let [.., name, scale] = arguments else { return Err(usage()) };
    let scale = scale.parse().ok().filter(|scale| workloads::SCALES.contains(scale)).ok_or_else(usage)?;
    // Real programs want devices, and stand-ins the guest kit's.
    if guest::is_first_process() && WORKS.iter().all(|(known, ..)| known != name) {
        programs::settle_guest()?;
    }
    if guest::is_first_process() {
        load_kit()?;
    }
    let (mut work, check) = prepare(name, scale)?;
    clock::mark::<{ abi::lab::MARK_BEGIN }>(workloads::REGION);
    let begin = clock::now();
    let sum = work();
    let end = clock::now();
    clock::mark::<{ abi::lab::MARK_END }>(workloads::REGION);
    report::done(name, scale, check(sum?)?, begin, end);
    if guest::is_first_process() {
        // The machine goes off in a moment. To give hundreds of MiB back page by page is a tenth of a short run.
        mem::forget(work);
    }
    Ok(())
}

/// "No such device", errno(3).
const ENODEV: i32 = 19;

/// Loads the guest kit, if the guest has it: it counts page faults from here on.
fn load_kit() -> io::Result<()> {
    let wrong = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", workloads::KIT));
    match File::open(workloads::KIT) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // A machine without hypervisor has no use for it.
        file => match sys::load_module(&file.map_err(wrong)?) {
            Err(error) if error.raw_os_error() == Some(ENODEV) => Ok(()),
            loaded => loaded.map_err(wrong),
        },
    }
}

/// Prepares a workload at this many thousandths of its scale: one round at least. What our own do is their checksum.
fn prepare(name: &str, scale: u32) -> io::Result<(Work, Check)> {
    let rounds = |at_one: u64| (at_one * u64::from(scale) / 1000).max(1);
    if let Some((_, at_one, prepare)) = WORKS.iter().find(|(known, ..)| *known == name) {
        return Ok((prepare(rounds(*at_one))?, Box::new(Ok)));
    }
    if let Some(program) = workloads::science::find(name) {
        return Ok((standins::prepare(program, scale), Box::new(Ok)));
    }
    let program = programs::PROGRAMS.iter().find(|(known, ..)| *known == name);
    let (_, at_one, prepare) =
        program.ok_or_else(|| io::Error::other(format!("no such workload: {name}")))?;
    prepare(rounds(*at_one))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_and_the_program_agree() {
        let names: Vec<_> = workloads::WORKLOADS.iter().map(|workload| workload.name).collect();
        let (ours, programs) =
            (WORKS.iter().map(|(name, ..)| *name), programs::PROGRAMS.iter().map(|(name, ..)| *name));
        assert_eq!(names, ours.chain(programs).collect::<Vec<_>>());
        let ours = workloads::WORKLOADS.iter().filter(|workload| workload.programs.is_none()).count();
        assert_eq!(ours, WORKS.len());
    }

    /// A stand-in in a guest comes to what it comes to where its accesses are recorded.
    #[test]
    fn stand_ins_have_the_same_checksum_in_regions() {
        for program in workloads::science::all() {
            let (mut work, check) = prepare(program.name, 100).unwrap();
            let sum = check(work().unwrap()).unwrap();
            assert_eq!(sum, workloads::science::run(program, 100, &()), "{}", program.name);
        }
    }

    #[test]
    fn a_checksum_is_that_of_the_work() {
        // Not what executes this program, nor what takes ten seconds to fork and has parts that are here as well.
        let other = ["fork-exec", "neighbours", "phases-fork"];
        for (name, ..) in WORKS.iter().filter(|(name, ..)| !other.contains(name)) {
            let sum = |scale| {
                let (mut work, check) = prepare(name, scale).unwrap();
                check(work().unwrap()).unwrap()
            };
            let (one, again) = (sum(10), sum(10));
            assert_eq!(one, again, "{name}");
            // One round is the least; most have more at a tenth of the scale.
            let differs = [100, 1000].into_iter().any(|scale| sum(scale) != one);
            assert!(differs, "{name}: more work is another sum");
        }
    }

    #[test]
    fn wrong_arguments_are_refused() {
        let perform =
            |words: &[&str]| perform(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        for words in [&[][..], &["gups"], &["gups", "0"], &["gups", "x"], &["gup", "1"]] {
            assert!(perform(words).is_err(), "{words:?}");
        }
    }
}
