//! The glyphs: 8 columns by 16 rows for each ASCII character, drawn for this project.
//!
//! `font.txt` is the drawing, eight glyphs side by side in the order of their codes, `#` for ink; rows without ink in
//! any glyph (two at the top, one at the bottom) are left out of it. It is read at compile time.

/// Columns of a glyph.
pub const WIDTH: u32 = 8;
/// Rows of a glyph.
pub const HEIGHT: u32 = 16;

/// The first character that has a glyph.
const FIRST: u8 = b' ';
/// How many have one; the last is the box that stands for everything else.
const COUNT: usize = 96;
/// Glyphs side by side in the drawing.
const BESIDE: usize = 8;
/// Rows of a glyph in the drawing, and the first of them on the screen.
const DRAWN: usize = 13;
const TOP: u32 = 2;

/// The box that stands for what has no glyph.
pub const BOX: u8 = 0x7f;

static GLYPHS: [[u8; DRAWN]; COUNT] = read(include_bytes!("font.txt"));

const fn read(drawing: &[u8]) -> [[u8; DRAWN]; COUNT] {
    let line = BESIDE * 9; // eight columns and a blank or line feed each
    let band = DRAWN * line + 1; // and an empty line
    let mut glyphs = [[0; DRAWN]; COUNT];
    let mut at = 0;
    while at < COUNT * DRAWN * 8 {
        let (glyph, row, column) = (at / 8 / DRAWN, at / 8 % DRAWN, at % 8);
        let place = glyph / BESIDE * band + row * line + glyph % BESIDE * 9 + column;
        match drawing[place] {
            b'#' => glyphs[glyph][row] |= 0x80 >> column,
            b'.' => {}
            _ => panic!("font.txt: a glyph is not eight columns of . and #"),
        }
        at += 1;
    }
    glyphs
}

/// The pixels of a row (0 to 15) of a character's glyph, the leftmost in bit 7. Characters without a glyph look like
/// [`BOX`].
pub fn row(character: u8, row: u32) -> u8 {
    let index = usize::from(character.wrapping_sub(FIRST)).min(COUNT - 1);
    row.checked_sub(TOP).and_then(|row| GLYPHS[index].get(row as usize)).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn glyphs_differ_and_leave_room_between_letters() {
        let mut seen = BTreeMap::new();
        for character in FIRST..=BOX {
            let rows: Vec<u8> = (0..HEIGHT).map(|n| row(character, n)).collect();
            assert_eq!(
                rows.iter().fold(0, |all, row| all | row) & 0x80,
                0,
                "{}: first column",
                character as char
            );
            assert_eq!((rows[0], rows[15]), (0, 0));
            assert_eq!(character == b' ', rows.iter().all(|row| *row == 0));
            if let Some(twin) = seen.insert(rows, character) {
                panic!("{} looks like {}", character as char, twin as char);
            }
        }
        assert_eq!(row(b'\n', 2), row(BOX, 2));
        assert_eq!(row(0xff, 2), row(BOX, 2));
        assert_eq!(row(b'A', 99), 0);
    }

    #[test]
    fn a_letter() {
        let rows: Vec<String> = (2..12).map(|n| format!("{:08b}", row(b'L', n))).collect();
        assert_eq!(rows[..9], ["01000000"; 9]);
        assert_eq!(rows[9], "01111110");
    }
}
