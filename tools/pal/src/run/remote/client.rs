//! The other shell's side: `pal ps`, `pal console`, `pal monitor`, `pal tier`, `pal top`, `pal stop`.

use std::{
    io::{IsTerminal, Read, Write, stdin, stdout},
    net::Shutdown,
    os::unix::net::UnixStream,
    sync::mpsc::{Receiver, sync_channel},
    thread,
    time::{Duration, SystemTime},
};

use abi::tiers::ANSWER;
use anyhow::{Context, Result, bail};

use super::{
    About, Request,
    place::Place,
    wire::{self, Kind},
};
use crate::{
    cli::TierArgs,
    project::Project,
    run::{console::Newlines, telemetry::LONGEST_LINE, terminal::Raw},
    status::{Usage, exit},
    top::Watched,
    ui::Ui,
};

/// How long a run may take to say what it is.
const PATIENCE: Duration = Duration::from_secs(5);
const ESCAPE: u8 = 0x01;
/// Lines of samples that wait to be shown.
const QUEUE: usize = 256;

/// Lists the running machines.
///
/// # Errors
/// The directory of sockets cannot be read.
pub fn list(project: &Project, ui: &Ui) -> Result<u8> {
    let running = Place::new(project)?.running()?;
    if running.is_empty() {
        ui.say("no machine of this checkout is running; `cargo pal run` starts one");
        return Ok(0);
    }
    let mut text = row(["NAME", "PID", "MACHINE", "MODE", "RUNNING FOR", "GUESTS"]);
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs();
    for (name, mut stream) in running {
        match ask_about(&mut stream) {
            Ok(about) => {
                let since = duration(now.saturating_sub(about.since));
                let guests = if about.guests.is_empty() { "-".into() } else { about.guests.join(", ") };
                let mode = about.mode.as_deref().unwrap_or("-");
                text += &row([&name, &about.pid.to_string(), &about.machine, mode, &since, &guests]);
            }
            Err(_) => text += &row([&name, "?", "?", "?", "?", "(does not answer)"]),
        }
    }
    stdout().write_all(text.as_bytes()).context("cannot write to standard output")?;
    Ok(0)
}

fn row([name, pid, machine, mode, since, guests]: [&str; 6]) -> String {
    format!("{name:<16} {pid:>8} {machine:<13} {mode:<10} {since:<12} {guests}\n")
}

/// A duration in the two largest units.
fn duration(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}

fn ask_about(stream: &mut UnixStream) -> Result<About> {
    stream.set_read_timeout(Some(PATIENCE))?;
    request(stream, &Request::About)?;
    match wire::read(stream)? {
        Some((Kind::About, bytes)) => Ok(serde_json::from_slice(&bytes)?),
        _ => bail!("not an answer"),
    }
}

fn request(stream: &mut UnixStream, request: &Request) -> Result<()> {
    Ok(wire::write(stream, Kind::Request, &serde_json::to_vec(request)?)?)
}

/// Shows the console of a machine, and types there.
///
/// # Errors
/// No such machine; it refuses.
pub fn console(name: Option<&str>, project: &Project, ui: &Ui) -> Result<u8> {
    let mut stream = Place::new(project)?.find(name)?;
    request(&mut stream, &Request::Console)?;
    let raw = enter_raw()?;
    if raw.is_some() {
        ui.say("Ctrl-a x detaches this terminal and leaves the run alone, Ctrl-a a sends Ctrl-a");
    }
    // Without a terminal the output goes on when there is no more to type.
    type_to(&stream, raw.is_some(), raw.is_some())?;
    let end = follow(&mut stream, raw.is_some(), ui);
    drop(raw);
    match end? {
        End::Status(status) => Ok(status),
        End::Closed if stdin().is_terminal() => {
            ui.say("detached");
            Ok(0)
        }
        End::Closed | End::Done => {
            bail!("the machine closed the connection: it was killed, or this end was too slow")
        }
        End::Refused(why) => bail!("{why}"),
    }
}

/// Has the monitor of a machine perform a command, or lets a person or script talk with it.
///
/// # Errors
/// No such machine; it has no monitor, or another shell is there.
pub fn monitor(name: Option<&str>, command: &[String], project: &Project, ui: &Ui) -> Result<u8> {
    let mut stream = Place::new(project)?.find(name)?;
    let command = (!command.is_empty()).then(|| command.join(" "));
    let interactive = command.is_none();
    request(&mut stream, &Request::Monitor { command })?;
    let raw = if interactive { enter_raw()? } else { None };
    if interactive {
        type_to(&stream, raw.is_some(), true)?;
    }
    let end = follow(&mut stream, raw.is_some(), ui);
    drop(raw);
    match end? {
        End::Status(status) => Ok(status),
        End::Done => Ok(0),
        End::Closed => bail!("the machine closed the connection"),
        End::Refused(why) => bail!("{why}"),
    }
}

/// Shows what guests have of a machine's fast memory, or sets the E-state of one first.
///
/// # Errors
/// [`Usage`]: no such machine or guest. The monitor refuses, or cannot be asked.
pub fn tier(args: &TierArgs, project: &Project, ui: &Ui) -> Result<u8> {
    let place = Place::new(project)?;
    let mut command = "tiers all".to_owned();
    if let (Some(vm), Some(state)) = (&args.vm, &args.state) {
        let about =
            ask_about(&mut place.find(args.name.as_deref())?).context("the machine does not answer")?;
        if !about.guests.contains(vm) {
            return Err(no_guest(vm, &about).into());
        }
        command = format!("tiers {vm} {state}");
    }
    let mut stream = place.find(args.name.as_deref())?;
    request(&mut stream, &Request::Monitor { command: Some(command) })?;
    let mut answer = Vec::new();
    match receive(&mut stream, &mut answer, false, ui)? {
        End::Status(status) => Ok(status),
        End::Done if answer.starts_with(ANSWER.as_bytes()) => {
            stdout().write_all(&answer).context("cannot write to standard output")?;
            Ok(0)
        }
        End::Done => bail!("{}", String::from_utf8_lossy(&answer).trim_end()),
        End::Closed => bail!("the machine closed the connection"),
        End::Refused(why) => bail!("{why}"),
    }
}

fn no_guest(vm: &str, about: &About) -> Usage {
    let guests = about.guests.join(", ");
    Usage::new(format!("{} has no guest named {vm}; its guests: {guests}", about.name))
}

/// The name of a machine, and its samples as they come.
///
/// # Errors
/// No such machine; it does not answer.
pub fn watch(name: Option<&str>, project: &Project) -> Result<(String, Receiver<Watched>)> {
    let mut stream = Place::new(project)?.find(name)?;
    request(&mut stream, &Request::Watch)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let name = match wire::read(&mut stream).context("the machine does not answer")? {
        Some((Kind::About, bytes)) => serde_json::from_slice::<About>(&bytes)?.name,
        Some((Kind::Refused, why)) => bail!("{}", String::from_utf8_lossy(&why)),
        _ => bail!("the machine closed the connection"),
    };
    stream.set_read_timeout(None)?;
    let (sender, receiver) = sync_channel(QUEUE);
    thread::Builder::new().name("samples".into()).spawn(move || {
        let mut rest = Vec::new();
        loop {
            let news = match wire::read(&mut stream) {
                Ok(Some((Kind::Output, bytes))) => {
                    rest.extend_from_slice(&bytes);
                    while let Some(end) = rest.iter().position(|&byte| byte == b'\n') {
                        let line: Vec<u8> = rest.drain(..=end).collect();
                        let line = String::from_utf8_lossy(&line).into_owned();
                        if sender.send(Watched::Line(line)).is_err() {
                            return;
                        }
                    }
                    if rest.len() <= LONGEST_LINE {
                        continue;
                    }
                    Watched::Lost
                }
                Ok(Some((Kind::Status, bytes))) => {
                    Watched::Ended(bytes.first().copied().unwrap_or(exit::TOOL))
                }
                Ok(Some((Kind::Refused, why))) => {
                    Watched::Refused(String::from_utf8_lossy(&why).into_owned())
                }
                Ok(_) | Err(_) => Watched::Lost,
            };
            let _the_receiver_may_be_gone = sender.send(news);
            return;
        }
    })?;
    Ok((name, receiver))
}

/// Ends a run and returns the status that it ends with.
///
/// # Errors
/// No such machine; it was killed.
pub fn stop(name: Option<&str>, project: &Project, ui: &Ui) -> Result<u8> {
    let mut stream = Place::new(project)?.find(name)?;
    request(&mut stream, &Request::Stop)?;
    match follow(&mut stream, false, ui)? {
        End::Status(status) => Ok(status),
        End::Refused(why) => bail!("{why}"),
        End::Closed | End::Done => bail!("the run ended without telling its status"),
    }
}

fn enter_raw() -> Result<Option<Raw>> {
    (stdin().is_terminal() && stdout().is_terminal()).then(Raw::enter).transpose()
}

/// How a connection ends.
enum End {
    Status(u8),
    Done,
    Closed,
    Refused(String),
}

/// Shows what comes.
fn follow(stream: &mut UnixStream, raw: bool, ui: &Ui) -> Result<End> {
    receive(stream, &mut stdout(), raw, ui)
}

/// Writes what comes.
fn receive(stream: &mut UnixStream, out: &mut impl Write, raw: bool, ui: &Ui) -> Result<End> {
    let mut newlines = Newlines::default();
    loop {
        let frame = match wire::read(stream) {
            Ok(frame) => frame,
            // Detached, while something came.
            Err(error) if error.kind() != std::io::ErrorKind::InvalidData => None,
            Err(error) => return Err(error.into()),
        };
        match frame {
            Some((Kind::Output, bytes)) => {
                let bytes = if raw { bytes } else { newlines.convert(&bytes) };
                if out.write_all(&bytes).and_then(|()| out.flush()).is_err() {
                    return Ok(End::Status(exit::STDOUT_CLOSED));
                }
            }
            Some((Kind::Status, bytes)) => {
                return Ok(End::Status(bytes.first().copied().unwrap_or(exit::TOOL)));
            }
            Some((Kind::Done, _)) => return Ok(End::Done),
            Some((Kind::Refused, why)) => {
                return Ok(End::Refused(String::from_utf8_lossy(&why).into_owned()));
            }
            Some(_) => ui.detail("an answer of another version of pal"),
            None => return Ok(End::Closed),
        }
    }
}

/// Sends what is typed, from a thread. At its end, or at Ctrl-a x on a terminal, the connection ends if `closes`.
fn type_to(stream: &UnixStream, raw: bool, closes: bool) -> Result<()> {
    let mut stream = stream.try_clone()?;
    let mut escape = Escape::default();
    thread::Builder::new().name("keyboard".into()).spawn(move || {
        let mut buffer = [0; 1024];
        while let Ok(size @ 1..) = stdin().lock().read(&mut buffer) {
            let (bytes, detach) =
                if raw { escape.take(&buffer[..size]) } else { (buffer[..size].to_vec(), false) };
            if !bytes.is_empty() && wire::write(&mut stream, Kind::Input, &bytes).is_err() {
                return;
            }
            if detach {
                break;
            }
        }
        if closes {
            let _ = stream.shutdown(Shutdown::Write);
        }
    })?;
    Ok(())
}

/// Watches for the escape key: Ctrl-a x or p ends the connection, Ctrl-a a is Ctrl-a.
#[derive(Default)]
struct Escape {
    escaped: bool,
}

impl Escape {
    /// What to send of the keys, and whether that is the end.
    fn take(&mut self, keys: &[u8]) -> (Vec<u8>, bool) {
        let mut bytes = Vec::new();
        for &key in keys {
            match (std::mem::take(&mut self.escaped), key) {
                (false, ESCAPE) => self.escaped = true,
                (false, key) => bytes.push(key),
                (true, b'x' | b'p') => return (bytes, true),
                (true, b'a' | ESCAPE) => bytes.push(ESCAPE),
                (true, _) => {}
            }
        }
        (bytes, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_escape_key_of_a_client() {
        let mut escape = Escape::default();
        assert_eq!(escape.take(b"ab\x01"), (b"ab".to_vec(), false));
        assert_eq!(escape.take(b"ac\x01zd"), (b"\x01cd".to_vec(), false));
        assert_eq!(escape.take(b"e\x01xf"), (b"e".to_vec(), true));
    }

    #[test]
    fn a_guest_that_is_not_there_is_told_from_those_that_are() {
        let guests = vec!["web".to_owned(), "db".to_owned()];
        let about = About { name: "lab".into(), guests, ..About::default() };
        assert_eq!(no_guest("x", &about).to_string(), "lab has no guest named x; its guests: web, db");
    }

    #[test]
    fn an_answer_is_kept_as_it_comes() {
        let (mut machine, mut client) = UnixStream::pair().unwrap();
        for (kind, bytes) in [(Kind::Output, &b"a\r"[..]), (Kind::Output, b"\nb"), (Kind::Done, b"")] {
            wire::write(&mut machine, kind, bytes).unwrap();
        }
        let mut answer = Vec::new();
        let end = receive(&mut client, &mut answer, false, &Ui::new(0)).unwrap();
        assert!(matches!(end, End::Done) && answer == b"a\nb", "{answer:?}");
        wire::write(&mut machine, Kind::Refused, b"busy").unwrap();
        let end = receive(&mut client, &mut answer, false, &Ui::new(0)).unwrap();
        assert!(matches!(end, End::Refused(why) if why == "busy"));
    }

    #[test]
    fn durations() {
        assert_eq!([7, 61, 7322].map(duration), ["7 s", "1 min 1 s", "2 h 2 min"]);
    }
}
