//! Finds the marks of default guests in console output.
//!
//! `init.sh` prints `RS pal NONCE begin RS` before the command or shell and `RS pal NONCE end STATUS RS` after it,
//! where RS is the control character 0x1e; before that, for each file that it sends, `RS pal NONCE file NUMBER RS`, the contents,
//! and `RS pal NONCE sent NUMBER STATUS RS`. The nonce is new in every run, so output cannot contain a mark by accident.

const RS: u8 = 0x1e;

/// A part of the console's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Output, never empty.
    Text(&'a [u8]),
    /// The command or shell of the guest with this number starts.
    Begin(usize),
    /// It ended with this status.
    End(usize, u8),
    /// The contents of the file with this number follow.
    File(usize, usize),
    /// The contents of the file with this number end; 0 if they are whole.
    Sent(usize, usize, u8),
}

/// Splits a stream of output into [`Piece`]s, however the stream is cut.
pub struct Marks {
    /// How the marks of each guest begin.
    heads: Vec<Vec<u8>>,
    /// The start of a possible mark, at most a few dozen bytes.
    pending: Vec<u8>,
}

impl Marks {
    /// Looks for the marks of these nonces, each another guest's. An empty one has none.
    pub fn new<'a>(nonces: impl IntoIterator<Item = &'a str>) -> Self {
        let head = |nonce| [&[RS], format!("pal {nonce} ").as_bytes()].concat();
        Self { heads: nonces.into_iter().map(head).collect(), pending: Vec::new() }
    }

    /// Passes on the pieces of `bytes`. A possible mark at the end is held back until more arrives.
    pub fn feed(&mut self, mut bytes: &[u8], mut sink: impl FnMut(Piece)) {
        while let Some((&first, rest)) = bytes.split_first() {
            if self.pending.is_empty() {
                let plain = bytes.iter().position(|&byte| byte == RS).unwrap_or(bytes.len());
                if plain > 0 {
                    sink(Piece::Text(&bytes[..plain]));
                    bytes = &bytes[plain..];
                    continue;
                }
            }
            self.pending.push(first);
            match self.classify() {
                Class::Possible => bytes = rest,
                Class::Mark(piece) => {
                    self.pending.clear();
                    sink(piece);
                    bytes = rest;
                }
                Class::No => {
                    // The byte that broke the match may start another one: it stays in `bytes`.
                    self.pending.pop();
                    sink(Piece::Text(&self.pending));
                    self.pending.clear();
                }
            }
        }
    }

    /// Passes on what was held back when the stream ends.
    pub fn finish(&mut self, mut sink: impl FnMut(Piece)) {
        if !self.pending.is_empty() {
            sink(Piece::Text(&self.pending));
            self.pending.clear();
        }
    }

    fn classify(&self) -> Class {
        let classes = self.heads.iter().enumerate().map(|(guest, head)| self.classify_for(guest, head));
        classes.fold(Class::No, |best, class| match (&best, &class) {
            (Class::Mark(_), _) | (Class::Possible, Class::No) => best,
            _ => class,
        })
    }

    fn classify_for(&self, guest: usize, head: &[u8]) -> Class {
        let Some(tail) = self.pending.strip_prefix(head) else {
            return if head.starts_with(&self.pending) { Class::Possible } else { Class::No };
        };
        match tail.split_last() {
            Some((&RS, words)) => read_mark(guest, words).map_or(Class::No, Class::Mark),
            _ if tail.len() <= LONGEST && tail.iter().all(|c| c.is_ascii_alphanumeric() || *c == b' ') => {
                Class::Possible
            }
            _ => Class::No,
        }
    }
}

/// The words of a mark are no longer than these.
const LONGEST: usize = "sent 65535 255".len();

/// The words of a guest's mark, after its nonce.
fn read_mark(guest: usize, words: &[u8]) -> Option<Piece<'static>> {
    let mut words = std::str::from_utf8(words).ok()?.split(' ');
    let what = words.next()?;
    // Digits alone: a number could also be written with a sign.
    let mut number =
        || words.next().filter(|word| word.bytes().all(|c| c.is_ascii_digit()))?.parse::<u16>().ok();
    let piece = match what {
        "begin" => Piece::Begin(guest),
        "end" => Piece::End(guest, number()?.try_into().ok()?),
        "file" => Piece::File(guest, number()?.into()),
        "sent" => Piece::Sent(guest, number()?.into(), number()?.try_into().ok()?),
        _ => return None,
    };
    words.next().is_none().then_some(piece)
}

enum Class {
    Possible,
    Mark(Piece<'static>),
    No,
}

/// Turns CR LF into LF, however the stream is cut. Other carriage returns stay.
#[derive(Default)]
pub struct Newlines {
    held: bool,
}

impl Newlines {
    /// The converted bytes; a carriage return at the end is held back until more arrives.
    pub fn convert(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut converted = Vec::with_capacity(bytes.len() + 1);
        for &byte in bytes {
            if self.held && byte != b'\n' {
                converted.push(b'\r');
            }
            self.held = byte == b'\r';
            if !self.held {
                converted.push(byte);
            }
        }
        converted
    }
}

/// How Linux begins the line that tells why it gives up.
const PANIC: &str = "Kernel panic - not syncing: ";

/// The last few lines of a stream, for messages.
#[derive(Default)]
pub struct Tail(Vec<u8>);

impl Tail {
    const KEPT: usize = 32 << 10;
    const LINES: usize = 60;
    /// Lines shown up to a kernel's panic where the dump that follows it is longer than [`Tail::LINES`].
    const BEFORE_PANIC: usize = 20;

    /// Takes note of output.
    pub fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
        if self.0.len() > 2 * Self::KEPT {
            self.0.drain(..self.0.len() - Self::KEPT);
        }
    }

    /// What a Linux kernel said last about its own death.
    pub fn kernel_panic(&self) -> Option<String> {
        let text = String::from_utf8_lossy(&self.0);
        let (_, rest) = text.rsplit_once(PANIC)?;
        let reason = rest.lines().next()?.trim();
        // The line that ends the dump of registers repeats the reason.
        Some(reason.strip_suffix(" ]---").unwrap_or(reason).to_owned())
    }

    /// The last lines as text without control characters. A panic has its cause in the lines before it, and a long dump after it:
    /// where both do not fit, the middle of the dump is left out, and a line says so.
    pub fn text(&self) -> String {
        let text = String::from_utf8_lossy(&self.0);
        let clean: String = text
            .chars()
            .filter(|&c| c == '\n' || c == '\t' || !(c.is_control() || c == '\u{fffd}'))
            .collect();
        let lines: Vec<_> = clean.trim().lines().collect();
        let panics = |line: &&str| line.contains(PANIC) && !line.contains(&format!("end {PANIC}"));
        let last = lines.len().saturating_sub(Self::LINES);
        let Some(panic) = lines.iter().rposition(panics).filter(|panic| *panic < last + Self::BEFORE_PANIC)
        else {
            return lines[last..].join("\n");
        };
        let upto_panic = &lines[(panic + 1).saturating_sub(Self::BEFORE_PANIC)..=panic];
        let dump = &lines[panic + 1..];
        let fits = Self::LINES - upto_panic.len();
        if dump.len() <= fits {
            return [upto_panic, dump].concat().join("\n");
        }
        let left_out = format!("[pal: {} lines are left out]", dump.len() - fits);
        [upto_panic, &[left_out.as_str()], &dump[dump.len() - fits..]].concat().join("\n")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Output, and the marks with the position at which they were found.
    fn split(chunks: &[&[u8]]) -> (Vec<u8>, Vec<(usize, Option<u8>)>) {
        let (mut text, mut found) = (Vec::new(), Vec::new());
        let mut marks = Marks::new(["n0nce"]);
        let mut sink = |piece: Piece| match piece {
            Piece::Text(bytes) => {
                assert!(!bytes.is_empty());
                text.extend_from_slice(bytes);
            }
            Piece::Begin(0) => found.push((text.len(), None)),
            Piece::End(0, status) => found.push((text.len(), Some(status))),
            other => panic!("{other:?}"),
        };
        for chunk in chunks {
            marks.feed(chunk, &mut sink);
        }
        marks.finish(&mut sink);
        (text, found)
    }

    #[test]
    fn marks_are_found_and_stripped() {
        let stream = b"boot\x1epal n0nce begin\x1eout\nput\x1epal n0nce end 42\x1edown";
        assert_eq!(split(&[stream]), (b"bootout\nputdown".to_vec(), vec![(4, None), (11, Some(42))]));
    }

    #[test]
    fn other_text_passes_unchanged() {
        for text in [
            &b"\x1epal other begin\x1e"[..],
            b"\x1epal n0nce end 256\x1e",
            b"\x1epal n0nce end \x1e",
            b"\x1epal n0nce end 1234\x1e",
            b"\x1e\x1e\x1epal n0nce beg",
            b"\x1epal n0nce end 7 \x1e",
            b"\x1epal n0nce begin 7\x1e",
            b"\x1epal n0nce file +7\x1e",
            b"\x1epal n0nce sent 7\x1e",
            b"\x1epal n0nce sent 65536 0\x1e",
            b"pal n0nce begin",
        ] {
            assert_eq!(split(&[text]), (text.to_vec(), vec![]), "{text:?}");
        }
    }

    #[test]
    fn a_broken_mark_may_start_a_whole_one() {
        assert_eq!(split(&[b"\x1epal n0\x1epal n0nce begin\x1e"]), (b"\x1epal n0".to_vec(), vec![(7, None)]));
    }

    #[test]
    fn guests_have_marks_of_their_own() {
        let mut found = Vec::new();
        let mut marks = Marks::new(["one", "", "onetwo"]);
        marks.feed(b"\x1epal onetwo begin\x1e\x1epal one begin\x1e\x1epal onetwo end 3\x1e", |piece| {
            match piece {
                Piece::Text(text) => panic!("{text:?}"),
                Piece::Begin(guest) => found.push((guest, None)),
                Piece::End(guest, status) => found.push((guest, Some(status))),
                other => panic!("{other:?}"),
            }
        });
        assert_eq!(found, [(2, None), (0, None), (2, Some(3))]);
    }

    #[test]
    fn files_between_marks() {
        let mut found = Vec::new();
        let mut marks = Marks::new(["one"]);
        marks.feed(b"\x1epal one file 0\x1eAA==\r\n\x1epal one sent 0 254\x1e", |piece| {
            found.push(match piece {
                Piece::Text(text) => format!("{} bytes", text.len()),
                piece => format!("{piece:?}"),
            });
        });
        assert_eq!(found, ["File(0, 0)", "6 bytes", "Sent(0, 0, 254)"]);
    }

    proptest! {
        #[test]
        fn cutting_the_stream_changes_nothing(
            parts in proptest::collection::vec(prop_oneof![
                Just(b"\x1epal n0nce begin\x1e".to_vec()),
                Just(b"\x1epal n0nce end 7\x1e".to_vec()),
                Just(b"\x1epal n0".to_vec()),
                proptest::collection::vec(prop_oneof![Just(0x1e_u8), any::<u8>()], 0..9),
            ], 0..8),
            size in 1_usize..40,
        ) {
            let stream = parts.concat();
            let chunks: Vec<_> = stream.chunks(size).collect();
            prop_assert_eq!(split(&chunks), split(&[&stream]));
        }

        #[test]
        fn newlines_do_not_depend_on_cuts(text in "[a\r\n]{0,40}", size in 1_usize..9) {
            let mut newlines = Newlines::default();
            let mut converted: Vec<u8> = text.as_bytes().chunks(size).flat_map(|chunk| newlines.convert(chunk)).collect();
            if newlines.held {
                converted.push(b'\r');
            }
            prop_assert_eq!(String::from_utf8(converted).unwrap(), text.replace("\r\n", "\n"));
        }
    }

    #[test]
    fn the_tail_is_bounded_and_printable() {
        let mut tail = Tail::default();
        for number in 0..100_000 {
            tail.push(format!("\x1b[31mline {number}\r\n").as_bytes());
            assert!(tail.0.len() <= 2 * Tail::KEPT);
        }
        let text = tail.text();
        assert!(text.ends_with("line 99999") && !text.contains('\r') && !text.contains('\x1b'));
        assert_eq!(text.lines().count(), Tail::LINES);
        assert_eq!(tail.kernel_panic(), None);
        tail.push(b"[    2.0] Kernel panic - not syncing: no init\r\ncall trace\r\n");
        assert_eq!(tail.kernel_panic().as_deref(), Some("no init"));
    }

    #[test]
    fn a_long_dump_does_not_hide_the_cause_of_a_panic() {
        let stream = |before: usize, after: usize| {
            let mut tail = Tail::default();
            (0..before).for_each(|number| tail.push(format!("before {number}\n").as_bytes()));
            tail.push(b"[    2.0] Kernel panic - not syncing: Attempted to kill init!\n");
            (0..after).for_each(|number| tail.push(format!("after {number}\n").as_bytes()));
            tail.push(b"---[ end Kernel panic - not syncing: Attempted to kill init! ]---\n");
            tail.text()
        };
        for (before, after) in [(0, 0), (5, 100), (19, 300), (20, 39), (100, 10), (100, 58), (1000, 300)] {
            let text = stream(before, after);
            let has = |line: String| text.lines().any(|shown| shown == line);
            let shown = before.min(Tail::BEFORE_PANIC - 1);
            assert!(
                (before - shown..before).all(|number| has(format!("before {number}"))),
                "{before} {after}\n{text}"
            );
            assert!(text.contains("] Kernel panic") && text.ends_with("]---"), "{before} {after}\n{text}");
            let all = before + after + 2;
            let fits = all.min(Tail::LINES);
            assert!((fits..=fits + 1).contains(&text.lines().count()), "{before} {after}\n{text}");
            let left_out = text
                .lines()
                .find_map(|line| line.strip_prefix("[pal: ")?.split(' ').next()?.parse::<usize>().ok());
            let dump = text.lines().filter(|line| line.starts_with("after ")).count();
            assert_eq!(dump + left_out.unwrap_or(0), after, "{text}");
        }
    }
}
