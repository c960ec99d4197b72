//! The consoles of all guests, as the hypervisor records them line by line: log files, ends of commands, last lines.
//!
//! What a person sees comes from the machine's serial port and not from here ([`super::output`]).

use std::{
    fs::{self, File},
    io::{self, Write},
    path::Path,
};

use anyhow::Result;

use super::{
    console::{Marks, Newlines, Piece, Tail},
    fetch::Fetches,
    prepare::HYPERVISOR_LOG,
    session::Plan,
};
use crate::{status::Usage, ui::Ui};

/// What is known of all consoles.
pub struct Consoles {
    guests: Vec<Console>,
    hypervisor: Option<Log>,
}

struct Console {
    name: String,
    marks: Option<Marks>,
    /// It sends a file.
    sends: bool,
    newlines: Newlines,
    tail: Tail,
    log: Option<Log>,
}

/// A log file, until it cannot be written any more.
struct Log {
    path: String,
    file: File,
}

impl Log {
    fn create(dir: &Path, name: &str) -> Result<Log> {
        let path = dir.join(format!("{name}.log"));
        let wrong = |error: io::Error| Usage::new(format!("--log-dir {}: {error}", path.display()));
        let file = File::create(&path).map_err(wrong)?;
        Ok(Log { path: path.display().to_string(), file })
    }
}

/// Writes to a log file if there is one; a file that cannot be written is reported once.
fn write(log: &mut Option<Log>, bytes: &[u8], ui: &Ui) {
    let Some(Log { path, file }) = log else { return };
    if let Err(error) = file.write_all(bytes) {
        ui.warn(&format!("--log-dir: {path}: {error}; the rest is lost"));
        *log = None;
    }
}

impl Consoles {
    /// Makes the log files, if there shall be any.
    ///
    /// # Errors
    /// [`Usage`]: the directory or a file cannot be made.
    pub fn new(plan: &Plan, dir: Option<&Path>) -> Result<Consoles> {
        if let Some(dir) = dir {
            fs::create_dir_all(dir)
                .map_err(|error| Usage::new(format!("--log-dir {}: {error}", dir.display())))?;
        }
        let log = |name: &str| dir.map(|dir| Log::create(dir, name)).transpose();
        let guests = plan.guests.iter().map(|guest| {
            let marks = guest.nonce.as_ref().map(|nonce| Marks::new([nonce.as_str()]));
            let (newlines, tail, sends) = (Newlines::default(), Tail::default(), false);
            Ok(Console { name: guest.name.clone(), marks, sends, newlines, tail, log: log(&guest.name)? })
        });
        Ok(Consoles { guests: guests.collect::<Result<_>>()?, hypervisor: log(HYPERVISOR_LOG)? })
    }

    /// Takes a piece of a guest's output, bytes as the characters with these numbers. The guest's number and the status of its
    /// command, if that has ended. The files that it sends go to `fetches`.
    pub fn feed(&mut self, vm: &str, text: &str, fetches: &mut Fetches, ui: &Ui) -> Option<(usize, u8)> {
        let (number, console) = self.guests.iter_mut().enumerate().find(|(_, guest)| guest.name == vm)?;
        let bytes: Vec<u8> = text.chars().map(|c| u8::try_from(c).unwrap_or(b'?')).collect();
        let Console { marks, sends, newlines, tail, log, .. } = console;
        let mut status = None;
        let mut plain = Vec::new();
        match marks {
            Some(marks) => marks.feed(&bytes, |piece| match piece {
                Piece::Text(text) if *sends => fetches.text(number, text),
                Piece::Text(text) => plain.extend_from_slice(text),
                Piece::Begin(_) => *sends = false,
                Piece::File(_, file) => {
                    *sends = true;
                    fetches.begin(number, file);
                }
                Piece::Sent(_, file, sent) => {
                    *sends = false;
                    fetches.end(number, file, sent);
                }
                Piece::End(_, ended) => status = Some((number, ended)),
            }),
            None => plain = bytes,
        }
        tail.push(&plain);
        write(log, &newlines.convert(&plain), ui);
        status
    }

    /// Takes a line of the hypervisor's log.
    pub fn log(&mut self, level: &str, text: &str, ui: &Ui) {
        write(&mut self.hypervisor, format!("{level:<5} {text}\n").as_bytes(), ui);
    }

    /// The last that a guest has said.
    pub fn tail(&self, guest: usize) -> Option<&Tail> {
        self.guests.get(guest).map(|guest| &guest.tail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::session::PlannedGuest;

    #[test]
    fn each_guest_has_its_log_without_marks() {
        let dir = tempfile::tempdir().unwrap();
        let guest = |name: &str| PlannedGuest {
            name: name.into(),
            nonce: Some(format!("{name}1")),
            ..PlannedGuest::default()
        };
        let plan = Plan { guests: vec![guest("a"), guest("b")], ..Plan::default() };
        let (logs, ui) = (dir.path().join("new/logs"), Ui::new(0));
        let mut fetches = Fetches::new(&plan);
        let mut consoles = Consoles::new(&plan, Some(&logs)).unwrap();
        assert_eq!(consoles.feed("b", "\u{1e}pal b1 begin\u{1e}h\u{e4}\r\n", &mut fetches, &ui), None);
        assert_eq!(consoles.feed("a", "one\r\n", &mut fetches, &ui), None);
        assert_eq!(
            consoles.feed(
                "a",
                "\u{1e}pal a1 file 0\u{1e}eA==\r\n\u{1e}pal a1 sent 0 0\u{1e}",
                &mut fetches,
                &ui
            ),
            None
        );
        assert_eq!(consoles.feed("a", "\u{1e}pal a1 end 7\u{1e}down\r\n", &mut fetches, &ui), Some((0, 7)));
        assert_eq!(consoles.feed("c", "absent\n", &mut fetches, &ui), None);
        consoles.log("info", "a starts", &ui);
        let read = |name: &str| fs::read(logs.join(name)).unwrap();
        assert_eq!(read("a.log"), b"one\ndown\n");
        assert_eq!(read("b.log"), b"h\xe4\n");
        assert_eq!(read("hypervisor.log"), b"info  a starts\n");
        assert_eq!(consoles.tail(0).unwrap().text(), "one\ndown");
        fs::create_dir(logs.join("c.log")).unwrap();
        let plan = Plan { guests: vec![guest("c")], ..Plan::default() };
        assert!(Consoles::new(&plan, Some(&logs)).err().unwrap().is::<Usage>());
    }
}
