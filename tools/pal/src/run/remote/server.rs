//! The run's side of the [protocol](super): a thread that accepts clients, and one or two for each.

use std::{
    fs::File,
    io,
    net::Shutdown,
    os::unix::net::{UnixListener, UnixStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};

use super::{
    Request,
    hub::{Hub, News},
    wire::{self, Kind},
};
use crate::run::{
    keys::{Action, Keys},
    session::Event,
    verdict::Stop,
};

/// Clients at a time.
const CLIENTS: usize = 32;
/// How long a client may take for its request, and for each piece of output.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the monitor may take to come.
const ENTRY: Duration = Duration::from_secs(60);
/// How long it may take for an answer.
const ANSWER: Duration = Duration::from_secs(120);
/// Characters of a command at most: what the monitor's line holds.
const COMMAND: usize = 120;
/// Pieces of keys that wait for the monitor.
const QUEUE: usize = 16;
const PROMPT: &[u8] = b"monitor> ";

/// Serves clients until the process ends.
///
/// # Errors
/// No thread is to be had.
pub fn start(listener: UnixListener, hub: &Arc<Hub>, console: File, events: Sender<Event>) -> Result<()> {
    let (hub, console) = (Arc::clone(hub), Arc::new(console));
    let accept = move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else {
                // Too many descriptors are open.
                thread::sleep(Duration::from_millis(100));
                continue;
            };
            if !hub.connect(CLIENTS) {
                let _ = stream.set_write_timeout(Some(PATIENCE));
                let _ = wire::write(&mut stream, Kind::Refused, b"too many clients");
                continue;
            }
            let client = (Arc::clone(&hub), Arc::clone(&console), events.clone());
            let serve = move || {
                let (hub, console, events) = client;
                // A client that went away is no matter.
                let _ = serve(&mut stream, &hub, &console, &events);
                let _ = stream.shutdown(Shutdown::Both);
                hub.disconnect();
            };
            if thread::Builder::new().name("client".into()).spawn(serve).is_err() {
                hub.disconnect();
            }
        }
    };
    thread::Builder::new().name("clients".into()).spawn(accept).context("cannot start thread clients")?;
    Ok(())
}

fn serve(
    stream: &mut UnixStream,
    hub: &Arc<Hub>,
    console: &Arc<File>,
    events: &Sender<Event>,
) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let request = match wire::read(stream)? {
        Some((Kind::Request, bytes)) => serde_json::from_slice(&bytes).ok(),
        _ => None,
    };
    stream.set_read_timeout(None)?;
    match request {
        Some(Request::About) => wire::write(stream, Kind::About, &serde_json::to_vec(&hub.about)?),
        Some(Request::Console) => view(stream, hub, console),
        Some(Request::Monitor { command }) => {
            match command.as_deref().map_or(Ok(()), check).and_then(|()| hub.begin_session(console, ENTRY)) {
                Err(why) => wire::write(stream, Kind::Refused, why.as_bytes()),
                Ok(()) => {
                    let result = match command {
                        Some(command) => answer(stream, hub, console, &command),
                        None => converse(stream, hub, console),
                    };
                    hub.end_session(console);
                    result?;
                    farewell(stream, hub)
                }
            }
        }
        Some(Request::Watch) => watch(stream, hub),
        Some(Request::Stop) => {
            let _ = events.send(Event::Stop(Stop::Asked));
            status(stream, hub.wait_for_end(|| false))
        }
        None => wire::write(stream, Kind::Refused, b"the machine was started by another version of pal"),
    }
}

/// Checks a command for the monitor.
fn check(command: &str) -> Result<(), String> {
    let printable = command.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    if printable && command.len() <= COMMAND && !command.trim().is_empty() {
        return Ok(());
    }
    Err(format!("a command for the monitor is 1 to {COMMAND} printable ASCII characters; try `help`"))
}

fn status(stream: &mut UnixStream, status: Option<u8>) -> io::Result<()> {
    status.map_or(Ok(()), |status| wire::write(stream, Kind::Status, &[status]))
}

/// After the monitor: it was left, or the run has ended.
fn farewell(stream: &mut UnixStream, hub: &Hub) -> io::Result<()> {
    match hub.news().ended {
        true => status(stream, hub.wait_for_end(|| true)),
        false => wire::write(stream, Kind::Done, b""),
    }
}

/// Shows a client the console, and takes its input until it goes.
fn view(stream: &mut UnixStream, hub: &Arc<Hub>, console: &Arc<File>) -> io::Result<()> {
    let output = hub.view();
    let mut input = stream.try_clone()?;
    let gone = Arc::new(AtomicBool::new(false));
    let typing = (Arc::clone(hub), Arc::clone(console), Arc::clone(&gone));
    thread::Builder::new().name("client-input".into()).spawn(move || {
        let (hub, console, gone) = typing;
        let keys = Keys::new(hub.has_hypervisor());
        while let Ok(Some((Kind::Input, bytes))) = wire::read(&mut input) {
            if hub.send(&console, &literally(&bytes, &keys)).is_err() {
                break;
            }
        }
        gone.store(true, Ordering::Relaxed);
    })?;
    // Also while there is output all the time: a client that detaches does not want the rest.
    while !gone.load(Ordering::Relaxed) {
        match output.recv_timeout(Duration::from_millis(200)) {
            Ok(bytes) => wire::write(stream, Kind::Output, &bytes)?,
            Err(RecvTimeoutError::Timeout) => {}
            // The run has ended, or the client was too slow.
            Err(RecvTimeoutError::Disconnected) => return status(stream, hub.wait_for_end(|| true)),
        }
    }
    Ok(())
}

/// As no escape sequences of the hypervisor's.
fn literally(bytes: &[u8], keys: &Keys) -> Vec<u8> {
    let mut literal = Vec::with_capacity(2 * bytes.len());
    for &byte in bytes {
        match keys.piped(byte) {
            Action::Send(bytes) => literal.extend_from_slice(bytes),
            _ => literal.push(byte),
        }
    }
    literal
}

/// Waits for the prompt and returns what came with it; false: there was none in time.
fn wait_for_prompt(hub: &Hub, patience: Duration) -> (Vec<u8>, News, bool) {
    let deadline = Instant::now() + patience;
    let mut output = Vec::new();
    loop {
        let mut news = hub.wait_for_news();
        output.append(&mut news.output);
        if news.prompt || news.left || news.ended {
            return (output, news, true);
        }
        if Instant::now() > deadline {
            return (output, news, false);
        }
    }
}

/// One command, and its answer alone.
fn answer(stream: &mut UnixStream, hub: &Hub, console: &File, command: &str) -> io::Result<()> {
    let late = |stream: &mut UnixStream| {
        wire::write(
            stream,
            Kind::Refused,
            b"the monitor does not answer; see the run's own terminal or messages",
        )
    };
    if !wait_for_prompt(hub, ENTRY).2 {
        return late(stream);
    }
    hub.tell(console, format!("{command}\r").as_bytes())?;
    let (output, _, in_time) = wait_for_prompt(hub, ANSWER);
    wire::write(stream, Kind::Output, only_answer(&output))?;
    if in_time { Ok(()) } else { late(stream) }
}

/// Without the echo of the command, and without the next prompt.
fn only_answer(output: &[u8]) -> &[u8] {
    let begin = output.iter().position(|&byte| byte == b'\n').map_or(output.len(), |at| at + 1);
    let answer = &output[begin..];
    answer.strip_suffix(PROMPT).unwrap_or(answer)
}

/// Sends a client the lines of the samples until it goes.
fn watch(stream: &mut UnixStream, hub: &Hub) -> io::Result<()> {
    let Some(feed) = hub.feed() else {
        let name = &hub.about.name;
        let why = match hub.has_hypervisor() {
            true => {
                format!("{name} takes no samples; start it with --watch, or with --samples FILE or --name")
            }
            false => format!(
                "{name} runs without the hypervisor, which takes the samples: choose another --machine"
            ),
        };
        return wire::write(stream, Kind::Refused, why.as_bytes());
    };
    wire::write(stream, Kind::About, &serde_json::to_vec(&hub.about)?)?;
    for line in feed.view() {
        wire::write(stream, Kind::Output, line.as_bytes())?;
    }
    // The machine is gone; the run will soon say how.
    status(stream, hub.wait_for_end(|| false))
}

/// A person or a script at the monitor, until they leave it or go away.
fn converse(stream: &mut UnixStream, hub: &Arc<Hub>, console: &File) -> io::Result<()> {
    let (sender, keys) = sync_channel(QUEUE);
    let (mut input, waking) = (stream.try_clone()?, Arc::clone(hub));
    thread::Builder::new().name("client-input".into()).spawn(move || {
        while let Ok(Some((Kind::Input, bytes))) = wire::read(&mut input) {
            if sender.send(bytes).is_err() {
                break;
            }
            waking.wake();
        }
        drop(sender);
        waking.wake();
    })?;
    let mut typist = Typist { keys, waiting: Vec::new(), typed: false, after_return: false };
    let mut last = Instant::now();
    loop {
        let news = hub.wait_for_news();
        if !news.output.is_empty() {
            last = Instant::now();
            wire::write(stream, Kind::Output, &news.output)?;
        }
        if news.left || news.ended {
            return Ok(());
        }
        // One line at a time: what follows one that leaves is not for the guest. But the monitor may have taken an Enter for
        // something else, and must not hold up the rest.
        if news.prompt || last.elapsed() > PATIENCE {
            let Some(bytes) = typist.next() else { return Ok(()) };
            if !bytes.is_empty() {
                last = Instant::now();
                hub.tell(console, &bytes)?;
            }
        }
    }
}

/// Turns what a client types into what the monitor gets.
struct Typist {
    keys: Receiver<Vec<u8>>,
    waiting: Vec<u8>,
    /// Something was typed since the last line.
    typed: bool,
    after_return: bool,
}

impl Typist {
    /// What was typed, but no more than one line. `None`: the client types no more.
    fn next(&mut self) -> Option<Vec<u8>> {
        if self.waiting.is_empty() {
            self.waiting = match self.keys.try_recv() {
                Ok(bytes) => bytes,
                Err(TryRecvError::Empty) => return Some(Vec::new()),
                Err(TryRecvError::Disconnected) => return None,
            };
        }
        let mut line = Vec::new();
        let mut taken = 0;
        for &byte in &self.waiting {
            taken += 1;
            let after_return = std::mem::replace(&mut self.after_return, byte == b'\r');
            match byte {
                b'\n' if after_return => continue,
                b'\r' | b'\n' => line.push(b'\r'),
                // Ctrl-d leaves where nothing is typed, and else deletes. The server has to know which it is.
                4 if !self.typed => line.extend(b"quit\r"),
                4 => line.extend(b"\x1b[3~"),
                1 => line.extend([1, 1]),
                byte => line.push(byte),
            }
            self.typed = !line.ends_with(b"\r");
            if !self.typed {
                break;
            }
        }
        self.waiting.drain(..taken);
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_at_a_time() {
        let (sender, keys) = sync_channel(4);
        let mut typist = Typist { keys, waiting: Vec::new(), typed: false, after_return: false };
        assert_eq!(typist.next(), Some(vec![]));
        sender.send(b"vms\r\nx\x04\x01\n".to_vec()).unwrap();
        sender.send(b"\x04ls\n".to_vec()).unwrap();
        drop(sender);
        let lines: Vec<_> = std::iter::from_fn(|| typist.next()).collect();
        assert_eq!(lines, [&b"vms\r"[..], b"x\x1b[3~\x01\x01\r", b"quit\r", b"ls\r"]);
    }

    #[test]
    fn an_answer_comes_alone() {
        assert_eq!(only_answer(b"vms\r\n* guest\r\nmonitor> "), b"* guest\r\n");
        assert_eq!(only_answer(b"resume\r\nmonitor: guest resumed\r\n"), b"monitor: guest resumed\r\n");
        assert_eq!(only_answer(b"frob"), b"");
    }

    #[test]
    fn a_run_without_samples_says_how_to_have_them() {
        for (hypervisor, step) in [(true, "--watch"), (false, "--machine")] {
            let hub = Hub::new(super::super::About { name: "lab".into(), ..Default::default() }, hypervisor);
            let (mut client, mut run) = UnixStream::pair().unwrap();
            watch(&mut run, &hub).unwrap();
            let (kind, why) = wire::read(&mut client).unwrap().unwrap();
            let why = String::from_utf8(why).unwrap();
            assert!(kind == Kind::Refused && why.contains("lab") && why.contains(step), "{why}");
        }
    }

    #[test]
    fn commands_fit_a_line() {
        assert!(check("vms").is_ok() && check(&"x".repeat(120)).is_ok());
        for bad in ["", "  ", "a\nb", "\x01p", "\u{e4}", &"x".repeat(121)] {
            assert!(check(bad).is_err(), "{bad:?}");
        }
    }
}
