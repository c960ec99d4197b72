//! Text on the host's screen: what a machine without a serial port has to say, and what a photograph shows.
//!
//! [`Terminal`] owns the text and the cursor; where bytes go is the caller's ([`Video`]: `hw::video` on the machine, plain
//! memory in tests). Called by `boot::screen`. What must hold: nothing outside of [`Layout::memory`] is written, whatever
//! the boot loader said and whatever is printed. Video memory is never read: scrolling compares with the text in
//! memory and draws the cells that change.

pub mod font;
pub mod layout;
#[cfg(test)]
mod tests;

use core::fmt;

use layout::{Cell, MAX_COLUMNS, MAX_ROWS, MAX_SCALE};
pub use layout::{Field, Framebuffer, Kind, Layout, Refused};

/// The attribute of characters in text mode: light grey on black.
const GREY_ON_BLACK: u8 = 0x07;
const TAB: usize = 8;

/// The memory of a screen.
pub trait Video {
    /// Writes bytes at an offset from its beginning.
    fn write(&mut self, offset: u64, bytes: &[u8]);
    /// Writes zeroes.
    fn clear(&mut self, offset: u64, len: u64);
}

/// Where in a control sequence the output is (ECMA-48, 5.3 and 5.4; 5.6 for strings).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Text,
    /// After ESC.
    Escape,
    /// In a control sequence, until its final byte.
    Sequence,
    /// In a string, until BEL or ESC.
    String,
}

/// The text of a screen. All zeroes is an empty one, so that a static one takes no room in the image.
pub struct Text {
    /// Characters, XOR a blank. Behind the end of a row there are blanks.
    cells: [[u8; MAX_COLUMNS]; MAX_ROWS],
    /// The ends of the rows.
    ends: [usize; MAX_ROWS],
}

impl Text {
    /// Nothing.
    pub const fn new() -> Text {
        Text { cells: [[0; MAX_COLUMNS]; MAX_ROWS], ends: [0; MAX_ROWS] }
    }

    /// The character in a cell.
    fn get(&self, row: usize, column: usize) -> u8 {
        self.cells[row][column] ^ b' '
    }
}

impl Default for Text {
    fn default() -> Text {
        Text::new()
    }
}

/// A screen full of text. Control sequences of terminals are taken out and have no effect.
pub struct Terminal<'a, V> {
    video: V,
    layout: Layout,
    text: &'a mut Text,
    row: usize,
    column: usize,
    state: State,
}

impl<'a, V: Video> Terminal<'a, V> {
    /// An empty screen: clears it. `video` is the memory that `layout` describes.
    pub fn new(mut video: V, layout: Layout, text: &'a mut Text) -> Terminal<'a, V> {
        for line in 0..layout.lines() {
            let at = line * layout.pitch();
            match layout.cell {
                Cell::Glyph { .. } => video.clear(at, layout.row_bytes()),
                Cell::Text => (0..layout.row_bytes() / 2)
                    .for_each(|column| video.write(at + column * 2, &[b' ', GREY_ON_BLACK])),
            }
        }
        *text = Text::new();
        Terminal { video, layout, text, row: 0, column: 0, state: State::Text }
    }

    /// What it was made for.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Prints a byte: a character, a control character, or a part of a control sequence.
    pub fn put(&mut self, byte: u8) {
        self.state = match (self.state, byte) {
            (State::Text, 0x1b) | (State::String, 0x1b) => State::Escape,
            (State::Text, _) => {
                self.print(byte);
                State::Text
            }
            (State::Escape, b'[') => State::Sequence,
            (State::Escape, b']' | b'P' | b'X' | b'^' | b'_') => State::String,
            // Intermediate bytes: the final one comes later.
            (State::Escape, 0x20..=0x2f) => State::Escape,
            (State::Sequence, 0x20..=0x3f) => State::Sequence,
            (State::String, 0x07) | (State::Escape | State::Sequence, _) => State::Text,
            (State::String, _) => State::String,
        }
    }

    fn print(&mut self, byte: u8) {
        match byte {
            b'\n' => self.line_feed(),
            b'\r' => self.column = 0,
            0x08 => self.column = self.column.saturating_sub(1),
            b'\t' => self.column = ((self.column / TAB + 1) * TAB).min(self.layout.columns() - 1),
            b' '..=b'~' => self.character(byte),
            // The first byte of a character in UTF-8, or of one in another code; those that follow are passed over.
            0xc0.. => self.character(font::BOX),
            _ => {}
        }
    }

    /// Puts a character at the cursor; the one behind the last column goes to the next line.
    fn character(&mut self, character: u8) {
        if self.column >= self.layout.columns() {
            self.line_feed();
        }
        let (row, column) = (self.row, self.column);
        self.set(row, column, character);
        if let Some(end) = self.text.ends.get_mut(row) {
            *end = (*end).max(column + 1);
        }
        self.column += 1;
    }

    fn line_feed(&mut self) {
        self.column = 0;
        if self.row + 1 < self.layout.rows() {
            self.row += 1;
        } else {
            self.scroll();
        }
    }

    /// Moves all up by a row.
    fn scroll(&mut self) {
        let last = self.layout.rows() - 1;
        for row in 0..=last {
            let below = if row < last { self.text.ends[row + 1] } else { 0 };
            for column in 0..self.text.ends[row].max(below) {
                let character = if row < last { self.text.get(row + 1, column) } else { b' ' };
                self.set(row, column, character);
            }
            self.text.ends[row] = below;
        }
    }

    /// Makes a cell this character, and draws it unless it is.
    fn set(&mut self, row: usize, column: usize, character: u8) {
        let cells = &mut self.text.cells;
        let Some(cell) = cells.get_mut(row).and_then(|row| row.get_mut(column)) else { return };
        if *cell != character ^ b' ' {
            *cell = character ^ b' ';
            self.draw(row, column, character);
        }
    }

    fn draw(&mut self, row: usize, column: usize, character: u8) {
        let (row, column) = (row as u64, column as u64);
        match self.layout.cell {
            Cell::Text => {
                // The adapter's own font has something else at the box's place.
                let shown = if character == font::BOX { b'?' } else { character };
                self.video.write(row * self.layout.pitch() + column * 2, &[shown, GREY_ON_BLACK]);
            }
            Cell::Glyph { bytes, scale, ink } => {
                let mut line = [0; (font::WIDTH * MAX_SCALE * 4) as usize];
                let width = (font::WIDTH * scale * bytes) as usize;
                let first = row * u64::from(font::HEIGHT * scale);
                for y in 0..font::HEIGHT {
                    glyph_row(&mut line[..width], font::row(character, y), bytes, scale, ink);
                    for n in 0..scale {
                        let at = (first + u64::from(y * scale + n)) * self.layout.pitch();
                        self.video.write(at + column * width as u64, &line[..width]);
                    }
                }
            }
        }
    }
}

/// The pixels of a glyph's row.
fn glyph_row(line: &mut [u8], bits: u8, bytes: u32, scale: u32, ink: u32) {
    for (x, pixel) in line.chunks_exact_mut(bytes as usize).enumerate() {
        let lit = bits & 0x80 >> (x as u32 / scale) != 0;
        let value = if lit { ink } else { 0 }.to_le_bytes();
        pixel.copy_from_slice(&value[..pixel.len()]);
    }
}

impl<V: Video> fmt::Write for Terminal<'_, V> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.bytes().for_each(|byte| self.put(byte));
        Ok(())
    }
}

/// Takes arbitrary bytes as a framebuffer's description and what is printed on it; for fuzzing.
#[cfg(any(test, feature = "testing"))]
pub fn fuzz_one(data: &[u8]) {
    /// Memory whose contents no test checks.
    struct Bounds(u64);
    impl Video for Bounds {
        fn write(&mut self, offset: u64, bytes: &[u8]) {
            self.clear(offset, bytes.len() as u64);
        }
        fn clear(&mut self, offset: u64, len: u64) {
            assert!(offset.checked_add(len).is_some_and(|end| end <= self.0), "{offset}+{len} of {}", self.0);
        }
    }
    let Some((head, text)) = data.split_at_checked(32) else { return };
    let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let field = |at: usize| Field { position: head[at], size: head[at + 1] };
    let kind = match head[21] {
        0 => Kind::Text,
        1 => Kind::Rgb([field(22), field(24), field(26)]),
        other => Kind::Other(other),
    };
    let address = u64::from(word(0)) | u64::from(word(28)) << 32;
    let [pitch, width, height] = [word(4), word(8), word(12)];
    let Ok(layout) = Layout::new(&Framebuffer { address, pitch, width, height, bits: head[20], kind }) else {
        return;
    };
    assert_eq!(layout.memory().end - layout.memory().start, layout.bytes());
    let mut cells = Text::new();
    let mut terminal = Terminal::new(Bounds(layout.bytes()), layout, &mut cells);
    text.iter().for_each(|byte| terminal.put(*byte));
    assert!(terminal.row < layout.rows() && terminal.column <= layout.columns());
}
