//! A line editor for a VT100-like terminal: ASCII text, the usual keys, a short history.
//!
//! Owns the line that is being typed; the monitor feeds it bytes and gives it a screen to draw on. It asks the terminal
//! nothing, so that scripts can type too. Lines longer than the terminal is wide are drawn badly but
//! taken correctly. Control sequences: ECMA-48; DEC VT100 user guide, chapter 3.

use core::fmt::{self, Write};

use arrayvec::{ArrayString, ArrayVec};

/// Characters of a line at most.
pub const LENGTH: usize = 120;
/// Lines that are remembered.
const REMEMBERED: usize = 16;

/// A line.
pub type Line = ArrayString<LENGTH>;

/// What a byte led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entered {
    /// The line goes on, or a new one begins.
    Nothing,
    /// A finished line.
    Line(Line),
    /// Ctrl-d on an empty line.
    End,
}

/// Where in a control sequence the input is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sequence {
    None,
    /// After ESC.
    Escape,
    /// After ESC O.
    Single,
    /// After ESC \[ and this number, which saturates.
    Control(u8),
}

/// Keys beyond ASCII.
#[derive(Clone, Copy)]
enum Motion {
    Up,
    Down,
    Left,
    Right,
    Home,
    End,
    Delete,
}

/// The editor.
#[derive(Debug)]
pub struct Editor {
    prompt: &'static str,
    text: Line,
    /// Characters before the cursor.
    cursor: usize,
    sequence: Sequence,
    after_return: bool,
    /// Oldest first.
    history: ArrayVec<Line, REMEMBERED>,
    /// The line of `history` that is shown; its length: the draft.
    shown: usize,
    /// The draft, while a line of the history is shown.
    draft: Line,
}

impl Editor {
    /// An editor without history.
    pub const fn new(prompt: &'static str) -> Editor {
        Editor {
            prompt,
            text: Line::new_const(),
            cursor: 0,
            sequence: Sequence::None,
            after_return: false,
            history: ArrayVec::new_const(),
            shown: 0,
            draft: Line::new_const(),
        }
    }

    /// Begins a new line: draws the prompt.
    pub fn start(&mut self, screen: &mut dyn Write) {
        self.text.clear();
        self.cursor = 0;
        self.shown = self.history.len();
        draw(screen, format_args!("{}", self.prompt));
    }

    /// Takes one byte. After [`Entered::Line`] and [`Entered::End`] the screen is at the start of a line.
    pub fn feed(&mut self, byte: u8, screen: &mut dyn Write) -> Entered {
        let after_return = core::mem::replace(&mut self.after_return, byte == b'\r');
        if self.sequence != Sequence::None {
            if let Some(motion) = self.sequence(byte) {
                self.motion(motion, screen);
            }
            return Entered::Nothing;
        }
        match byte {
            b'\n' if after_return => {}
            b'\r' | b'\n' => return self.finish(screen),
            0x1b => self.sequence = Sequence::Escape,
            b' '..=b'~' => self.insert(char::from(byte), screen),
            0x08 | 0x7f => self.erase(self.cursor.saturating_sub(1), screen),
            // Ctrl-u, Ctrl-w: up to the line's or the word's beginning; Ctrl-k: to the line's end.
            0x15 => self.erase(0, screen),
            0x17 => self.erase(self.word_start(), screen),
            0x0b => {
                self.text.truncate(self.cursor);
                self.draw(screen);
            }
            // Ctrl-c: another line.
            0x03 => {
                draw(screen, format_args!("^C\n"));
                self.start(screen);
            }
            // Ctrl-d
            0x04 if self.text.is_empty() => {
                draw(screen, format_args!("\n"));
                return Entered::End;
            }
            0x04 => self.motion(Motion::Delete, screen),
            // Ctrl-a, e, b, f, p, n
            0x01 => self.motion(Motion::Home, screen),
            0x05 => self.motion(Motion::End, screen),
            0x02 => self.motion(Motion::Left, screen),
            0x06 => self.motion(Motion::Right, screen),
            0x10 => self.motion(Motion::Up, screen),
            0x0e => self.motion(Motion::Down, screen),
            _ => {}
        }
        Entered::Nothing
    }

    /// Goes on in a control sequence; unknown ones are swallowed.
    fn sequence(&mut self, byte: u8) -> Option<Motion> {
        let (next, motion) = match (self.sequence, byte) {
            (Sequence::Escape, b'[') => (Sequence::Control(0), None),
            (Sequence::Escape, b'O') => (Sequence::Single, None),
            (Sequence::Control(n), b'0'..=b'9') => {
                (Sequence::Control(n.saturating_mul(10).saturating_add(byte - b'0')), None)
            }
            (Sequence::Control(n), b'~') => (
                Sequence::None,
                match n {
                    1 | 7 => Some(Motion::Home),
                    3 => Some(Motion::Delete),
                    4 | 8 => Some(Motion::End),
                    _ => None,
                },
            ),
            // Parameters and intermediate bytes go on, a final byte ends it.
            (Sequence::Control(_), b' '..=b'?') => (self.sequence, None),
            (Sequence::Control(_) | Sequence::Single, b'A') => (Sequence::None, Some(Motion::Up)),
            (Sequence::Control(_) | Sequence::Single, b'B') => (Sequence::None, Some(Motion::Down)),
            (Sequence::Control(_) | Sequence::Single, b'C') => (Sequence::None, Some(Motion::Right)),
            (Sequence::Control(_) | Sequence::Single, b'D') => (Sequence::None, Some(Motion::Left)),
            (Sequence::Control(_) | Sequence::Single, b'F') => (Sequence::None, Some(Motion::End)),
            (Sequence::Control(_) | Sequence::Single, b'H') => (Sequence::None, Some(Motion::Home)),
            _ => (Sequence::None, None),
        };
        self.sequence = next;
        motion
    }

    fn motion(&mut self, motion: Motion, screen: &mut dyn Write) {
        let end = self.text.len();
        match motion {
            Motion::Up => return self.show(self.shown.checked_sub(1), screen),
            Motion::Down => return self.show(self.shown.checked_add(1), screen),
            Motion::Left => self.cursor = self.cursor.saturating_sub(1),
            Motion::Right => self.cursor = (self.cursor + 1).min(end),
            Motion::Home => self.cursor = 0,
            Motion::End => self.cursor = end,
            Motion::Delete if self.cursor < end => drop(self.text.remove(self.cursor)),
            Motion::Delete => {}
        }
        self.draw(screen);
    }

    fn insert(&mut self, c: char, screen: &mut dyn Write) {
        if self.text.is_full() {
            return;
        }
        let (before, after) = self.text.split_at(self.cursor);
        let mut text = Line::new();
        text.push_str(before);
        text.push(c);
        text.push_str(after);
        self.text = text;
        self.cursor += 1;
        if self.cursor == self.text.len() {
            draw(screen, format_args!("{c}"));
        } else {
            self.draw(screen);
        }
    }

    /// Removes the characters from `from` to the cursor.
    fn erase(&mut self, from: usize, screen: &mut dyn Write) {
        while self.cursor > from {
            self.cursor -= 1;
            self.text.remove(self.cursor);
        }
        self.draw(screen);
    }

    /// Where the word before the cursor begins.
    fn word_start(&self) -> usize {
        let before = self.text[..self.cursor].trim_end_matches(' ');
        before.rfind(' ').map_or(0, |blank| blank + 1)
    }

    /// Shows another line of the history, or the draft after the last.
    fn show(&mut self, which: Option<usize>, screen: &mut dyn Write) {
        let Some(which) = which.filter(|&n| n <= self.history.len()) else { return };
        if self.shown == self.history.len() {
            self.draft = self.text;
        }
        self.shown = which;
        self.text = self.history.get(which).copied().unwrap_or(self.draft);
        self.cursor = self.text.len();
        self.draw(screen);
    }

    fn finish(&mut self, screen: &mut dyn Write) -> Entered {
        draw(screen, format_args!("\n"));
        let line = self.text;
        if !line.trim().is_empty() && self.history.last() != Some(&line) {
            if self.history.is_full() {
                self.history.remove(0);
            }
            self.history.push(line);
        }
        Entered::Line(line)
    }

    /// Redraws the whole line.
    fn draw(&self, screen: &mut dyn Write) {
        draw(screen, format_args!("\r{}{}\x1b[K", self.prompt, self.text));
        let behind = self.text.len() - self.cursor;
        if behind > 0 {
            draw(screen, format_args!("\x1b[{behind}D"));
        }
    }
}

/// The terminal accepts everything, and an error could not be shown anywhere else.
fn draw(screen: &mut dyn Write, text: fmt::Arguments<'_>) {
    let _ = screen.write_fmt(text);
}
