//! A framebuffer as the boot loader describes it, and what is left of that after checking.
//!
//! Nothing of the description is trusted: [`Layout::new`] refuses what does not fit together, and everything that is
//! written later lies in [`Layout::memory`]. Multiboot2 specification 2.0, 3.6.12 (framebuffer information).

use core::fmt;
use core::ops::Range;

use super::font;

/// Columns that are used at most.
pub const MAX_COLUMNS: usize = 240;
/// Rows that are used at most.
pub const MAX_ROWS: usize = 100;

/// Pixels in a row and rows at most: a screen beyond that is a mistake.
const MAX_PIXELS: u32 = 1 << 15;
/// The same in text mode.
const MAX_CHARACTERS: u32 = 256;
/// Bytes from one row to the next at most.
const MAX_PITCH: u32 = 1 << 18;
/// Rows of pixels from which on each is drawn twice as large; again for each such step.
const LARGE: u32 = 1920;
/// The largest magnification.
pub(super) const MAX_SCALE: u32 = 8;
/// Video memory of a PC lies at or above this address.
const LOWEST: u64 = 0xa_0000;
/// The host's identity mapping ends here.
const HIGHEST: u64 = 1 << 47;

/// Where a colour is in a pixel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its lowest bit.
    pub position: u8,
    /// Its number of bits.
    pub size: u8,
}

/// What the bytes of a framebuffer mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Pixels of red, green and blue.
    Rgb([Field; 3]),
    /// Character and attribute in turn; sizes are in characters.
    Text,
    /// Something else, such as pixels with a palette.
    Other(u8),
}

/// A framebuffer as the boot loader describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Framebuffer {
    /// Physical address.
    pub address: u64,
    /// Bytes from one row to the next.
    pub pitch: u32,
    /// Pixels or characters in a row.
    pub width: u32,
    /// Rows of pixels or characters.
    pub height: u32,
    /// Bits of a pixel.
    pub bits: u8,
    /// What they mean.
    pub kind: Kind,
}

/// `640 x 480 of 1 bits, 80 bytes a row, at 0xa0000 (Other(0))`
impl fmt::Display for Framebuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Framebuffer { address, pitch, width, height, bits, kind } = self;
        write!(f, "{width} x {height} of {bits} bits, {pitch} bytes a row, at {address:#x} ({kind:?})")
    }
}

/// Why a framebuffer cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Neither text nor pixels of 16, 24 or 32 bits.
    Format,
    /// Sizes, pitch and fields do not fit together, or are out of range.
    Geometry,
    /// It lies where no video memory can be.
    Address,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refused::Format => "its format is not one of text, 16, 24 or 32 bits a pixel",
            Refused::Geometry => "its sizes do not fit together",
            Refused::Address => "no video memory can be at its address",
        })
    }
}

/// How a cell is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cell {
    /// As a character and its attribute.
    Text,
    /// As a glyph, each of its pixels `scale` by `scale` pixels of `bytes` bytes; `ink` is the value of a lit one.
    Glyph { bytes: u32, scale: u32, ink: u32 },
}

/// A framebuffer that was checked, divided into cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    framebuffer: Framebuffer,
    pub(super) cell: Cell,
    columns: u32,
    rows: u32,
}

impl Layout {
    /// Checks a description.
    ///
    /// # Errors
    /// It cannot be used, and why.
    pub fn new(framebuffer: &Framebuffer) -> Result<Layout, Refused> {
        let Framebuffer { address, pitch, width, height, bits, kind } = *framebuffer;
        if !(1..=MAX_PIXELS).contains(&width) || !(1..=MAX_PIXELS).contains(&height) || pitch > MAX_PITCH {
            return Err(Refused::Geometry);
        }
        let (cell, bytes, columns, rows) = match kind {
            Kind::Text if width.max(height) > MAX_CHARACTERS => return Err(Refused::Geometry),
            Kind::Text => (Cell::Text, 2, width, height),
            Kind::Rgb(fields) => {
                let bytes = match bits {
                    15 | 16 => 2,
                    24 => 3,
                    32 => 4,
                    _ => return Err(Refused::Format),
                };
                let ink = ink(&fields, bytes * 8).ok_or(Refused::Geometry)?;
                let scale = (width / LARGE).clamp(1, MAX_SCALE);
                let cell = Cell::Glyph { bytes, scale, ink };
                (cell, bytes, width / (font::WIDTH * scale), height / (font::HEIGHT * scale))
            }
            Kind::Other(_) => return Err(Refused::Format),
        };
        let (columns, rows) = (columns.min(MAX_COLUMNS as u32), rows.min(MAX_ROWS as u32));
        if pitch < width * bytes || columns == 0 || rows == 0 {
            return Err(Refused::Geometry);
        }
        let layout = Layout { framebuffer: *framebuffer, cell, columns, rows };
        let end = address.checked_add(layout.bytes()).ok_or(Refused::Address)?;
        if address < LOWEST || end > HIGHEST { Err(Refused::Address) } else { Ok(layout) }
    }

    /// Bytes from the first to the last that belongs to a pixel or character.
    pub fn bytes(&self) -> u64 {
        let (pitch, height) = (u64::from(self.framebuffer.pitch), u64::from(self.framebuffer.height));
        pitch * (height - 1) + self.row_bytes()
    }

    /// Bytes of a row that belong to pixels or characters.
    pub(super) fn row_bytes(&self) -> u64 {
        let bytes = match self.cell {
            Cell::Text => 2,
            Cell::Glyph { bytes, .. } => bytes,
        };
        u64::from(self.framebuffer.width * bytes)
    }

    /// The physical addresses of all that is ever written.
    pub fn memory(&self) -> Range<u64> {
        self.framebuffer.address..self.framebuffer.address + self.bytes()
    }

    /// Bytes from one row of pixels or characters to the next.
    pub(super) fn pitch(&self) -> u64 {
        self.framebuffer.pitch.into()
    }

    /// Rows of pixels or characters.
    pub(super) fn lines(&self) -> u64 {
        self.framebuffer.height.into()
    }

    /// Cells in a row.
    pub fn columns(&self) -> usize {
        self.columns as usize
    }

    /// Rows of cells.
    pub fn rows(&self) -> usize {
        self.rows as usize
    }
}

/// `1024 x 768 pixels of 32 bits, 128 x 48 characters`
impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Cell::Glyph { .. } = self.cell {
            let Framebuffer { width, height, bits, .. } = self.framebuffer;
            write!(f, "{width} x {height} pixels of {bits} bits, ")?;
        }
        write!(f, "{} x {} characters", self.columns, self.rows)
    }
}

/// The value of a light grey pixel, three quarters of each colour; `None` if a field reaches beyond `bits`.
fn ink(fields: &[Field; 3], bits: u32) -> Option<u32> {
    fields.iter().try_fold(0, |ink, field| {
        let (position, size) = (u32::from(field.position), u32::from(field.size));
        let fits = (2..=16).contains(&size) && position + size <= bits;
        fits.then(|| ink | (3 << (size - 2)) << position)
    })
}
