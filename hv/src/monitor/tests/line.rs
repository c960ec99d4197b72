//! The line editor against a model of a terminal.

use proptest::prelude::*;

use crate::monitor::line::{Editor, Entered, LENGTH};

const PROMPT: &str = "> ";

/// One row of a terminal.
#[derive(Default)]
struct Row {
    cells: Vec<char>,
    column: usize,
    sequence: Option<String>,
}

impl core::fmt::Write for Row {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        for c in text.chars() {
            match (self.sequence.take(), c) {
                (None, '\x1b') => self.sequence = Some(String::new()),
                (None, '\r') => self.column = 0,
                (None, '\n') => *self = Row::default(),
                (None, c) => {
                    self.cells.resize(self.cells.len().max(self.column + 1), ' ');
                    self.cells[self.column] = c;
                    self.column += 1;
                }
                (Some(s), '[') if s.is_empty() => self.sequence = Some("[".into()),
                (Some(s), '0'..='9') => self.sequence = Some(format!("{s}{c}")),
                (Some(s), 'K') if s == "[" => self.cells.truncate(self.column),
                (Some(s), 'D') => self.column -= s[1..].parse::<usize>().unwrap(),
                (s, c) => panic!("the terminal does not know {s:?} {c:?}"),
            }
        }
        Ok(())
    }
}

/// Feeds all keys; the finished lines, and what is shown.
fn typed(keys: &[u8]) -> (Vec<String>, Row) {
    let (mut editor, mut row) = (Editor::new(PROMPT), Row::default());
    let mut lines = vec![];
    editor.start(&mut row);
    for &key in keys {
        match editor.feed(key, &mut row) {
            Entered::Nothing => continue,
            Entered::Line(line) => lines.push(line.to_string()),
            Entered::End => lines.push("END".into()),
        }
        editor.start(&mut row);
    }
    (lines, row)
}

fn lines(keys: &[u8]) -> Vec<String> {
    typed(keys).0
}

#[test]
fn keys_edit_the_line() {
    assert_eq!(lines(b"regs\r"), ["regs"]);
    assert_eq!(lines(b"regs\r\nvms\n"), ["regs", "vms"], "CR LF is one end");
    assert_eq!(lines(b"rex\x08\x7fegs\r"), ["regs"]);
    assert_eq!(lines(b"rubbish\x15vms\r"), ["vms"]);
    assert_eq!(lines(b"rubbish\x03vms\r"), ["vms"]);
    assert_eq!(lines(b"x rip  \x17rsp\r"), ["x rsp"]);
    assert_eq!(lines(b"egs\x1b[Dx\x1b[Hr\x1b[F\x1b[D\x08\r"), ["regs"]);
    assert_eq!(lines(b"rxegs\x01\x06\x1b[3~\x05 0\r"), ["regs 0"]);
    assert_eq!(lines(b"vms stray\x02\x02\x02\x02\x02\x02\x0b\r"), ["vms"]);
    assert_eq!(lines(b"\x04"), ["END"]);
    assert_eq!(lines(b"a\x04\r"), ["a"], "only an empty line ends");
    assert_eq!(lines(b"v\x1b[1;5Zm\xc3\xa4s\x00\r"), ["vms"], "unknown keys do nothing");
}

#[test]
fn history_comes_back() {
    let (up, down) = ("\x1b[A", "\x1bOB");
    let type_all = |text: String| lines(text.as_bytes());
    assert_eq!(type_all(format!("a\rb\r{up}{up}\r")), ["a", "b", "a"]);
    assert_eq!(type_all(format!("a\rb\r{up}{up}{up}{down}\r")), ["a", "b", "b"]);
    assert_eq!(type_all(format!("a\rmine{up}{down}{down}!\r")), ["a", "mine!"], "the draft is kept");
    assert_eq!(type_all(format!("a\ra\r \rb\r{up}{up}\r")), ["a", "a", " ", "b", "a"], "no twins, no blanks");
    let many: String = (0..40).map(|n| format!("{n}\r")).collect();
    assert_eq!(type_all(format!("{many}{}\r", up.repeat(100))).last().unwrap(), "24", "the last 16");
}

#[test]
fn long_lines_end() {
    assert_eq!(lines(&[b"a".repeat(300), b"\r".to_vec()].concat()), ["a".repeat(LENGTH)]);
}

proptest! {
    #[test]
    fn the_screen_shows_the_line(
        keys in prop::collection::vec(
            prop_oneof![
                any::<u8>().prop_map(|b| vec![b]),
                (b' '..b'~').prop_map(|b| vec![b]),
                "\x1b[\\[O][0-9]{0,2}[A-H~]".prop_map(String::into_bytes),
                Just(b"\x1b[D".to_vec()),
                Just(b"\r".to_vec()),
            ],
            0..200,
        )
    ) {
        let keys: Vec<u8> = keys.concat();
        let row = typed(&keys).1;
        let shown: String = row.cells.iter().collect();
        prop_assert!(shown.starts_with(PROMPT), "{shown:?}");
        prop_assert!(row.column >= PROMPT.len() && row.column <= shown.len());
        // What is shown is what is entered.
        if !keys.contains(&0x1b) {
            let entered = lines(&[&keys[..], b"\r"].concat());
            prop_assert_eq!(entered.last().map(String::as_str), shown.get(PROMPT.len()..));
        }
    }
}
