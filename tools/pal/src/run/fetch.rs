//! The files of `--get` on their way out of the guests.
//!
//! `session.sh` sends each between two marks, packed by gzip and written in base64, so that neither the console's drivers nor a
//! control character changes it, and gzip's own sum tells whether it is whole. It goes to a temporary file beside the wanted one and
//! takes its place once it is complete: what was there before stays if anything goes wrong.

use std::io::{self, Write};

use base64::{Engine, engine::general_purpose::STANDARD};
use flate2::write::GzDecoder;
use tempfile::NamedTempFile;

use super::session::{Plan, PlannedGuest};
use crate::guest::get::Get;

/// Bytes of a file at most. A guest must not fill this machine's disk.
const MOST: u64 = 1 << 30;
/// What `session.sh` says of a path that does not exist, and of one that is neither a file nor a directory.
const MISSING: u8 = 254;
const NEITHER: u8 = 253;

/// The files that the guests are to send.
pub struct Fetches {
    guests: Vec<Guest>,
}

struct Guest {
    /// What messages begin with.
    label: String,
    files: Vec<(Get, State)>,
    /// The number of the file whose contents arrive.
    current: Option<usize>,
}

enum State {
    Waiting,
    Receiving(Box<Receiver>),
    Here,
    Failed(String),
}

impl Fetches {
    /// The files that these guests shall send.
    pub fn new(plan: &Plan) -> Fetches {
        let several = plan.guests.len() > 1;
        let guest = |guest: &PlannedGuest| Guest {
            label: if several { format!("{}: get", guest.name) } else { "--get".to_owned() },
            files: guest.gets.iter().map(|get| (get.clone(), State::Waiting)).collect(),
            current: None,
        };
        Fetches { guests: plan.guests.iter().map(guest).collect() }
    }

    /// A guest begins to send the file with this number.
    pub fn begin(&mut self, guest: usize, number: usize) {
        let Some(guest) = self.guests.get_mut(guest) else { return };
        guest.current = None;
        let Some((get, state)) = guest.files.get_mut(number) else { return };
        guest.current = Some(number);
        *state = match Receiver::new(get, MOST) {
            Ok(receiver) => State::Receiving(Box::new(receiver)),
            Err(error) => State::Failed(error.to_string()),
        };
    }

    /// A piece of what arrives between the marks.
    pub fn text(&mut self, guest: usize, text: &[u8]) {
        let Some(guest) = self.guests.get_mut(guest) else { return };
        let Some((_, state)) = guest.current.and_then(|number| guest.files.get_mut(number)) else { return };
        if let State::Receiving(receiver) = state
            && let Err(error) = receiver.text(text)
        {
            *state = State::Failed(error.to_string());
        }
    }

    /// A guest has sent a file, or could not.
    pub fn end(&mut self, guest: usize, number: usize, status: u8) {
        let Some(guest) = self.guests.get_mut(guest) else { return };
        guest.current = None;
        let Some((get, state)) = guest.files.get_mut(number) else { return };
        // One that has failed already stays so.
        if !matches!(state, State::Receiving(_)) {
            return;
        }
        let State::Receiving(receiver) = std::mem::replace(state, State::Waiting) else { return };
        *state = match status {
            0 => receiver.finish(get).map_or_else(|error| State::Failed(error.to_string()), |()| State::Here),
            MISSING => State::Failed("there is no such file in the guest".into()),
            NEITHER => State::Failed("it is neither a file nor a directory".into()),
            _ => State::Failed("the guest cannot read it, or not to its end".into()),
        };
    }

    /// A message for each file that is not here.
    pub fn missing(&self) -> Vec<String> {
        let files = self.guests.iter().flat_map(|guest| guest.files.iter().map(move |file| (guest, file)));
        let message = |(guest, (get, state)): (&Guest, &(Get, State))| {
            let why = match state {
                State::Here => return None,
                State::Failed(why) => why,
                State::Waiting => "the run ended before the guest could send it",
                State::Receiving(_) => "the run ended while the guest was sending it",
            };
            Some(format!("{} {}: {why}", guest.label, get.guest_path))
        };
        files.filter_map(message).collect()
    }
}

/// Turns what arrives into a file.
struct Receiver {
    file: GzDecoder<Bounded>,
    /// The beginning of a group of four characters.
    group: Vec<u8>,
}

impl Receiver {
    fn new(get: &Get, most: u64) -> io::Result<Receiver> {
        let folder = get.file.parent().filter(|folder| !folder.as_os_str().is_empty());
        let file = tempfile::Builder::new()
            .prefix(".pal-")
            .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666))
            .tempfile_in(folder.unwrap_or(".".as_ref()))?;
        let file = GzDecoder::new(Bounded { file, left: most });
        Ok(Receiver { file, group: Vec::new() })
    }

    fn text(&mut self, text: &[u8]) -> io::Result<()> {
        self.group.extend(text.iter().filter(|byte| !byte.is_ascii_whitespace()));
        let whole = self.group.len() / 4 * 4;
        let bytes = STANDARD.decode(&self.group[..whole]).map_err(|_| damaged())?;
        self.group.drain(..whole);
        self.file.write_all(&bytes).map_err(readable)
    }

    fn finish(self, get: &Get) -> io::Result<()> {
        if !self.group.is_empty() {
            return Err(damaged());
        }
        let Bounded { mut file, .. } = self.file.finish().map_err(readable)?;
        file.flush()?;
        file.persist(&get.file)?;
        Ok(())
    }
}

fn damaged() -> io::Error {
    io::Error::other("it arrived damaged; the guest's kernel may have written to the console meanwhile")
}

/// What the decoder says of data that are not gzip's, in words for a person.
fn readable(error: io::Error) -> io::Error {
    match error.kind() {
        // `WriteZero`: the decoder takes nothing more, as after the end of its data.
        io::ErrorKind::InvalidInput
        | io::ErrorKind::InvalidData
        | io::ErrorKind::UnexpectedEof
        | io::ErrorKind::WriteZero => damaged(),
        _ => error,
    }
}

/// A file with a limit of bytes.
struct Bounded {
    file: NamedTempFile,
    left: u64,
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let size = self.file.write(bytes)?;
        let Some(left) = self.left.checked_sub(size as u64) else {
            let text = format!("it has more than {} MiB", MOST >> 20);
            return Err(io::Error::other(text));
        };
        self.left = left;
        Ok(size)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use flate2::{Compression, write::GzEncoder};
    use proptest::prelude::*;

    use super::*;

    /// As the guest sends it, in lines.
    fn sent(contents: &[u8]) -> Vec<u8> {
        let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
        packer.write_all(contents).unwrap();
        let text = STANDARD.encode(packer.finish().unwrap());
        text.as_bytes().chunks(76).flat_map(|line| [line, b"\r\n"].concat()).collect()
    }

    fn fetches(dir: &Path, names: &[&str]) -> Fetches {
        let get = |name: &&str| Get { guest_path: format!("/{name}"), file: dir.join(name) };
        let guest = PlannedGuest {
            name: "a".into(),
            gets: names.iter().map(get).collect(),
            ..PlannedGuest::default()
        };
        Fetches::new(&Plan { guests: vec![guest], ..Plan::default() })
    }

    fn files_in(dir: &Path) -> Vec<String> {
        let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }

    proptest! {
        #[test]
        fn contents_arrive_however_the_text_is_cut(
            contents in proptest::collection::vec(any::<u8>(), 0..500),
            size in 1_usize..90,
        ) {
            let dir = tempfile::tempdir().unwrap();
            let mut fetches = fetches(dir.path(), &["f"]);
            fetches.begin(0, 0);
            sent(&contents).chunks(size).for_each(|piece| fetches.text(0, piece));
            fetches.end(0, 0, 0);
            prop_assert_eq!(fetches.missing(), Vec::<String>::new());
            prop_assert_eq!(fs::read(dir.path().join("f")).unwrap(), contents);
            prop_assert_eq!(files_in(dir.path()), ["f"]);
        }

        #[test]
        fn no_text_panics(text in proptest::collection::vec(any::<u8>(), 0..200), status: u8) {
            let dir = tempfile::tempdir().unwrap();
            let mut fetches = fetches(dir.path(), &["f"]);
            fetches.begin(0, 0);
            fetches.text(0, &text);
            fetches.end(0, 0, status);
            prop_assert_eq!(fetches.missing().len(), 1);
            prop_assert_eq!(files_in(dir.path()), Vec::<String>::new());
        }
    }

    #[test]
    fn what_is_damaged_or_missing_leaves_the_old_file() {
        let dir = tempfile::tempdir().unwrap();
        let names = ["cut", "changed", "none", "device", "unreadable", "short", "never"];
        let mut fetches = fetches(dir.path(), &names);
        names.iter().for_each(|name| fs::write(dir.path().join(name), "old").unwrap());
        let whole = sent(&[7; 3000]);
        let mut changed = whole.clone();
        changed[20] ^= 1;
        for (number, (text, status)) in [
            (&whole[..whole.len() - 8], 0),
            (&changed[..], 0),
            (&b""[..], MISSING),
            (b"", NEITHER),
            (&whole, 1),
            (b"", 0),
        ]
        .into_iter()
        .enumerate()
        {
            fetches.begin(0, number);
            fetches.text(0, text);
            fetches.end(0, number, status);
        }
        // Out of turn, or from an unknown sender.
        fetches.text(0, b"x");
        fetches.begin(0, 99);
        fetches.text(0, b"x");
        fetches.end(3, 0, 0);
        fetches.end(0, 6, 0);
        let missing = fetches.missing();
        for (message, part) in missing.iter().zip([
            "--get /cut: it arrived damaged",
            "--get /changed: it arrived damaged",
            "--get /none: there is no such file in the guest",
            "--get /device: it is neither",
            "--get /unreadable: the guest cannot read it",
            "--get /short: it arrived damaged",
            "--get /never: the run ended before",
        ]) {
            assert!(message.starts_with(part), "{message}");
        }
        assert_eq!((missing.len(), files_in(dir.path()).len()), (7, 7));
        for name in names {
            assert_eq!(fs::read(dir.path().join(name)).unwrap(), b"old");
        }
    }

    #[test]
    fn what_follows_the_end_of_the_data_is_damage() {
        let dir = tempfile::tempdir().unwrap();
        let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
        packer.write_all(b"contents").unwrap();
        let longer = [packer.finish().unwrap(), b"more".repeat(9)].concat();
        let mut fetches = fetches(dir.path(), &["f"]);
        fetches.begin(0, 0);
        fetches.text(0, STANDARD.encode(longer).as_bytes());
        fetches.end(0, 0, 0);
        assert!(fetches.missing()[0].starts_with("--get /f: it arrived damaged"), "{:?}", fetches.missing());
    }

    #[test]
    fn a_file_that_is_too_large_is_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let get = Get { guest_path: "/f".into(), file: dir.path().join("f") };
        let mut receiver = Receiver::new(&get, 1000).unwrap();
        let error = receiver.text(&sent(&[0; 1001])).and_then(|()| receiver.finish(&get)).unwrap_err();
        assert!(error.to_string().contains("more than"), "{error}");
        assert!(files_in(dir.path()).is_empty());
    }
}
