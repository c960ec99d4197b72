//! Real programs, from Debian's packages, which `pal` puts into the guest (`tools/pal/src/workload/programs`): what each is given
//! to do, and what must come of it. Inputs are made here, before the work begins; outputs are looked at after its end. All of
//! them are files in the guest's memory, so that no device has a part in the work.

mod run;
mod science;
mod source;
mod text;

use std::{fs, io};

use crate::{Check, Work, guest};

/// Makes the input for this many rounds.
pub type Prepare = fn(u64) -> io::Result<(Work, Check)>;

/// Each program with its rounds at scale 1: KiB of text, functions in C, rows, requests, steps.
pub const PROGRAMS: &[(&str, u64, Prepare)] = &[
    ("gcc", 12, gcc),
    ("gzip", 1536, gzip),
    ("bzip2", 768, bzip2),
    ("perl", 64, perl),
    ("python", 12, python),
    ("sqlite", 10_000, sqlite),
    ("redis", 500, redis),
    ("numpy", 8, science::numpy),
    ("fftw", 4, science::fftw),
    ("lammps", 100, science::lammps),
];

/// The file with the text.
const TEXT: &str = "text";

/// Compiles files of up to 6 functions, one after the other.
fn gcc(functions: u64) -> io::Result<(Work, Check)> {
    const FUNCTIONS: u64 = 6;
    run::prepare()?;
    let files = functions.div_ceil(FUNCTIONS);
    for file in 0..files {
        let count = FUNCTIONS.min(functions - file * FUNCTIONS);
        run::write(&format!("{file}.i"), source::source(file, count).as_bytes())?;
    }
    let work = move || {
        for file in 0..files {
            let words = format!("-quiet -fpreprocessed -O2 -w {file}.i -o {file}.s");
            run::finish("cc1", run::start("cc1", &mut run::command("cc1", &words)?)?)?;
        }
        Ok(files)
    };
    let check = move |_| {
        let names: Vec<_> = (0..files).map(|file| format!("{file}.s")).collect();
        run::sum(&names.iter().map(String::as_str).collect::<Vec<_>>())
    };
    Ok((Box::new(work), Box::new(check)))
}

/// Without name and time in the archive.
fn gzip(kib: u64) -> io::Result<(Work, Check)> {
    pack("gzip", "-n -c", kib)
}

fn bzip2(kib: u64) -> io::Result<(Work, Check)> {
    pack("bzip2", "-c", kib)
}

/// Compresses a text, and makes it from that again.
fn pack(program: &'static str, options: &'static str, kib: u64) -> io::Result<(Work, Check)> {
    run::prepare()?;
    run::write(TEXT, &text::text(kib))?;
    let work = move || {
        run::filter(program, options, TEXT, "packed")?;
        run::filter(program, "-d -c", "packed", "unpacked")?;
        Ok(kib)
    };
    let check = |_| {
        run::same(TEXT, "unpacked")?;
        run::sum(&["packed", "unpacked"])
    };
    Ok((Box::new(work), Box::new(check)))
}

fn perl(kib: u64) -> io::Result<(Work, Check)> {
    run::prepare()?;
    run::write(TEXT, &text::text(kib))?;
    script("perl", "work.pl", include_str!("work.pl"), "work.pl".to_owned(), TEXT)
}

/// Without the directories of sites and users, which the guest lacks.
fn python(rounds: u64) -> io::Result<(Work, Check)> {
    run::prepare()?;
    script("python3", "work.py", include_str!("work.py"), format!("-I -S -B work.py {rounds}"), "work.py")
}

/// In a file, with a journal, as applications have it.
fn sqlite(rows: u64) -> io::Result<(Work, Check)> {
    run::prepare()?;
    let text = include_str!("work.sql").replace("@ROWS@", &rows.to_string());
    script("sqlite3", "work.sql", &text, "-batch -bail data".to_owned(), "work.sql")
}

/// An interpreter with a script.
fn script(
    program: &'static str,
    name: &str,
    script: &str,
    arguments: String,
    input: &'static str,
) -> io::Result<(Work, Check)> {
    run::write(name, script.as_bytes())?;
    let work = move || run::filter(program, &arguments, input, "output").map(|()| 0);
    Ok((Box::new(work), Box::new(|_| run::sum(&["output"]))))
}

/// A server in memory, and its own benchmark: each kind of request, at random keys. What the server holds then is the checksum.
fn redis(requests: u64) -> io::Result<(Work, Check)> {
    const SOCKET: &str = "redis.sock";
    run::prepare()?;
    let words = "--port 0 --unixsocket redis.sock --appendonly no --daemonize no --enable-debug-command yes";
    let mut command = run::command("redis-server", words)?;
    // Nothing is ever saved: an empty argument, which `words` cannot have.
    command.args(["--save", ""]);
    let server = run::start("redis-server", &mut command)?;
    let ping = run::ask(SOCKET, "PING")?;
    if ping != "+PONG" {
        return Err(io::Error::other(format!("redis-server: {ping}")));
    }
    let work = move || {
        let words =
            "-s redis.sock -q -c 8 -d 64 -r 20000 -t set,get,incr,lpush,rpush,lpop,sadd,hset,lrange_100,mset";
        let mut benchmark = run::command("redis-benchmark", &format!("{words} -n {requests}"))?;
        // The keys follow from the second in which the benchmark starts, and from its process's number.
        set_clock();
        run::finish("redis-benchmark", run::start("redis-benchmark", &mut benchmark)?)?;
        Ok(requests)
    };
    let check = move |_| {
        let (size, digest) = (run::ask(SOCKET, "DBSIZE")?, run::ask(SOCKET, "DEBUG DIGEST")?);
        if size == ":0" || !digest.starts_with('+') {
            return Err(io::Error::other(format!("redis-server has {size} keys, digest {digest}")));
        }
        // The server ends instead of answering.
        let _ended = run::ask(SOCKET, "SHUTDOWN NOSAVE");
        run::finish("redis-server", server)?;
        Ok(run::sum_of(&format!("{size} {digest}")))
    };
    Ok((Box::new(work), Box::new(check)))
}

/// Sets the guest's clock to a time that is always the same. Outside of a guest it is not this program's to set.
fn set_clock() {
    if !guest::is_first_process() {
        return;
    }
    let time = libc::timespec { tv_sec: 1_700_000_000, tv_nsec: 0 };
    // SAFETY: `time` is a whole structure, which is read.
    unsafe { libc::clock_settime(libc::CLOCK_REALTIME, &time) };
}

/// What programs expect of a guest: devices, and addresses that are the same in each run.
pub fn settle_guest() -> io::Result<()> {
    let (source, target) = (c"devtmpfs", c"/dev");
    // SAFETY: all texts are C strings; this file system takes no data.
    let result =
        unsafe { libc::mount(source.as_ptr(), target.as_ptr(), source.as_ptr(), 0, std::ptr::null()) };
    if result != 0 {
        return Err(io::Error::other(format!("cannot mount /dev: {}", io::Error::last_os_error())));
    }
    fs::write("/proc/sys/kernel/randomize_va_space", "0")
}
