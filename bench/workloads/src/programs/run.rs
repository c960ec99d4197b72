//! Runs programs in the guest, and makes a number of what they have written.

use std::{
    fs::{self, File, Permissions},
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::{fs::PermissionsExt, net::UnixStream},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use sha2::{Digest, Sha256};

/// Where inputs and outputs are.
pub const PLACE: &str = "/work";
/// What a program complains of.
const COMPLAINTS: &str = "/work/complaints";

/// Makes the place for inputs and outputs.
pub fn prepare() -> io::Result<()> {
    fs::create_dir_all(PLACE)
}

/// A program with its arguments, separated by blanks, and an environment in which the same input gives the same output.
pub fn command(program: &str, arguments: &str) -> io::Result<Command> {
    let mut command = Command::new(format!("{}/{program}", workloads::PROGRAMS));
    command.args(arguments.split_whitespace()).current_dir(PLACE).env_clear();
    // The order of hash tables is otherwise another one in each run.
    command.envs([("LC_ALL", "C"), ("PERL_HASH_SEED", "0"), ("PYTHONHASHSEED", "0")]);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::options().create(true).append(true).open(COMPLAINTS)?);
    Ok(command)
}

/// Runs a program from a file to a file.
pub fn filter(program: &str, arguments: &str, from: &str, to: &str) -> io::Result<()> {
    redirect(program, &mut command(program, arguments)?, from, to)
}

/// The same with a command that is there already.
pub fn redirect(program: &str, command: &mut Command, from: &str, to: &str) -> io::Result<()> {
    command.stdin(File::open(path(from))?).stdout(File::create(path(to))?);
    finish(program, start(program, command)?)
}

/// Starts a program.
pub fn start(program: &str, command: &mut Command) -> io::Result<Child> {
    command.spawn().map_err(|error| io::Error::other(format!("cannot start {program}: {error}")))
}

/// Waits for it, and expects success.
pub fn finish(program: &str, mut child: Child) -> io::Result<()> {
    let status = child.wait()?;
    if status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!("{program}: {status}{}", complaint())))
}

/// The last line of what programs have complained of.
fn complaint() -> String {
    let text = fs::read(COMPLAINTS).unwrap_or_default();
    let text = String::from_utf8_lossy(&text).into_owned();
    text.lines().rev().find(|line| !line.trim().is_empty()).map_or(String::new(), |line| format!(": {line}"))
}

/// The path of a file in the place.
pub fn path(name: &str) -> String {
    format!("{PLACE}/{name}")
}

/// Writes an input, which is not empty.
pub fn write(name: &str, contents: &[u8]) -> io::Result<()> {
    fs::write(path(name), contents)?;
    fs::set_permissions(path(name), Permissions::from_mode(0o644))
}

/// The first 64 bits of the SHA-256 of files, one after the other; a file without contents is an error, because a program
/// that has done nothing is none.
pub fn sum(names: &[&str]) -> io::Result<u64> {
    let mut hash = Sha256::new();
    for name in names {
        let contents = fs::read(path(name))?;
        if contents.is_empty() {
            return Err(io::Error::other(format!("{name} is empty{}", complaint())));
        }
        hash.update(&contents);
    }
    Ok(number(hash))
}

/// The same of a text.
pub fn sum_of(text: &str) -> u64 {
    number(Sha256::new_with_prefix(text))
}

fn number(hash: Sha256) -> u64 {
    hash.finalize()[..8].iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

/// Whether two files are the same.
pub fn same(one: &str, other: &str) -> io::Result<()> {
    if fs::read(path(one))? == fs::read(path(other))? {
        return Ok(());
    }
    Err(io::Error::other(format!("{other} is not {one} again")))
}

/// Asks a server at a socket in the place; its answer's first line. Waits for a server that has just been started.
pub fn ask(socket: &str, question: &str) -> io::Result<String> {
    const PATIENCE: Duration = Duration::from_secs(60);
    let start = Instant::now();
    let mut stream = loop {
        match UnixStream::connect(path(socket)) {
            Ok(stream) => break stream,
            Err(error) if start.elapsed() > PATIENCE => {
                return Err(io::Error::other(format!("no server at {socket}: {error}{}", complaint())));
            }
            Err(_) => thread::sleep(Duration::from_millis(20)),
        }
    };
    stream.write_all(format!("{question}\r\n").as_bytes())?;
    let mut answer = Vec::new();
    BufReader::new(stream).take(1 << 16).read_until(b'\n', &mut answer)?;
    Ok(String::from_utf8_lossy(&answer).trim_end().to_owned())
}
