//! Golden screens in every format, and a model of the text.

use std::fmt::Write as _;

use proptest::prelude::*;

use super::*;

const RED: Field = Field { position: 16, size: 8 };
const GREEN: Field = Field { position: 8, size: 8 };
const BLUE: Field = Field { position: 0, size: 8 };
const TRUE_COLOUR: Kind = Kind::Rgb([RED, GREEN, BLUE]);

/// Plain memory, filled with what must be cleared first.
#[derive(Clone)]
struct Memory(Vec<u8>);

impl Memory {
    fn of(layout: &Layout) -> Memory {
        Memory(vec![0xaa; layout.bytes() as usize])
    }
}

impl Video for Memory {
    fn write(&mut self, offset: u64, bytes: &[u8]) {
        self.0[offset as usize..][..bytes.len()].copy_from_slice(bytes);
    }
    fn clear(&mut self, offset: u64, len: u64) {
        self.0[offset as usize..][..len as usize].fill(0);
    }
}

fn rgb(width: u32, height: u32, bits: u8, pad: u32) -> Framebuffer {
    let pitch = width * u32::from(bits.div_ceil(8)) + pad;
    Framebuffer { address: 0xfd00_0000, pitch, width, height, bits, kind: TRUE_COLOUR }
}

fn screen(framebuffer: &Framebuffer) -> Terminal<'static, Memory> {
    let layout = Layout::new(framebuffer).unwrap();
    Terminal::new(Memory::of(&layout), layout, Box::leak(Box::new(Text::new())))
}

/// Whether a pixel is lit. It is the ink or black, nothing else.
fn lit(screen: &Terminal<'_, Memory>, x: u64, y: u64) -> bool {
    let Cell::Glyph { bytes, ink, .. } = screen.layout.cell else { panic!("no pixels") };
    let at = (y * screen.layout.pitch()) as usize + x as usize * bytes as usize;
    let pixel = &screen.video.0[at..at + bytes as usize];
    assert!(
        pixel == &ink.to_le_bytes()[..bytes as usize] || pixel.iter().all(|byte| *byte == 0),
        "{pixel:?}"
    );
    pixel.iter().any(|byte| *byte != 0)
}

/// The text on the screen, read back from pixels or characters.
fn read(screen: &Terminal<'_, Memory>) -> Vec<String> {
    let layout = &screen.layout;
    let cell = |row: usize, column: usize| match layout.cell {
        Cell::Text => {
            let at = row * layout.pitch() as usize + column * 2;
            assert_eq!(screen.video.0[at + 1], GREY_ON_BLACK);
            screen.video.0[at]
        }
        Cell::Glyph { scale, .. } => {
            let pixel = |x: u32, y: u32| {
                let corner = (column as u32 * font::WIDTH + x, row as u32 * font::HEIGHT + y);
                let block =
                    (0..scale * scale).map(|n| (corner.0 * scale + n % scale, corner.1 * scale + n / scale));
                let all: Vec<bool> = block.map(|(x, y)| lit(screen, x.into(), y.into())).collect();
                assert!(all.iter().all(|lit| *lit == all[0]), "pixels of a block differ");
                all[0]
            };
            let rows: Vec<u8> = (0..font::HEIGHT)
                .map(|y| (0..8).fold(0, |row, x| row << 1 | u8::from(pixel(x, y))))
                .collect();
            let found =
                (b' '..=font::BOX).find(|c| (0..font::HEIGHT).all(|y| rows[y as usize] == font::row(*c, y)));
            found.unwrap_or_else(|| panic!("no glyph looks like {rows:02x?}"))
        }
    };
    let line = |row| (0..layout.columns()).map(|column| cell(row, column) as char).collect::<String>();
    (0..layout.rows()).map(|row| line(row).trim_end().to_owned()).collect()
}

#[test]
fn text_appears_in_every_format() {
    let ega = Framebuffer { address: 0xb8000, pitch: 160, width: 80, height: 25, bits: 16, kind: Kind::Text };
    let high = Kind::Rgb([
        Field { position: 11, size: 5 },
        Field { position: 5, size: 6 },
        Field { position: 0, size: 5 },
    ]);
    let formats = [
        rgb(320, 64, 32, 0),
        rgb(333, 70, 24, 7),
        Framebuffer { kind: high, ..rgb(320, 64, 16, 2) },
        rgb(3840, 128, 32, 64),
        ega,
    ];
    for framebuffer in &formats {
        let mut screen = screen(framebuffer);
        write!(screen, "Hello, wörld\n  ~|}}{{@ \tx").unwrap();
        let lines = read(&screen);
        let unknown = if framebuffer.kind == Kind::Text { '?' } else { '\x7f' };
        assert_eq!(lines[0], format!("Hello, w{unknown}rld"), "{framebuffer:?}");
        assert_eq!(lines[1], "  ~|}{@         x");
        assert!(lines[2..].iter().all(String::is_empty));
    }
}

#[test]
fn the_pixels_of_a_letter() {
    let mut screen = screen(&rgb(16, 32, 24, 1));
    write!(screen, " T").unwrap();
    let rows: Vec<String> =
        (0..16).map(|y| (8..16).map(|x| if lit(&screen, x, y) { '#' } else { '.' }).collect()).collect();
    assert_eq!(rows[1..4], ["........", ".#####..", "...#...."]);
    assert_eq!(rows[11..13], ["...#....", "........"]);
    let at = 2 * 49 + 9 * 3;
    assert_eq!(screen.video.0[at..at + 3], [0xc0; 3], "light grey");
}

#[test]
fn long_lines_wrap_and_full_screens_scroll() {
    let mut screen = screen(&rgb(80, 48, 32, 0));
    write!(screen, "0123456789").unwrap();
    assert_eq!(read(&screen)[1], "", "a full line alone does not scroll");
    write!(screen, "ab\nc\nlast line?").unwrap();
    assert_eq!(read(&screen), ["ab", "c", "last line?"]);
    write!(screen, "!\r?\n\x08\x08x\x08y").unwrap();
    assert_eq!(read(&screen), ["last line?", "?", "y"]);
}

#[test]
fn scrolling_draws_only_what_changes() {
    struct Count(usize);
    impl Video for Count {
        fn write(&mut self, _: u64, _: &[u8]) {
            self.0 += 1;
        }
        fn clear(&mut self, _: u64, _: u64) {}
    }
    let layout = Layout::new(&rgb(1024, 768, 32, 0)).unwrap();
    let mut text = Text::new();
    let mut screen = Terminal::new(Count(0), layout, &mut text);
    (0..47).for_each(|n| writeln!(screen, "the same line but for {n:02}").unwrap());
    screen.video.0 = 0;
    writeln!(screen, "x").unwrap();
    assert!(screen.video.0 < 47 * 3 * 16 + 100 * 16, "{} rows of glyphs were drawn", screen.video.0);
}

#[test]
fn control_sequences_are_taken_out() {
    let mut screen = screen(&rgb(320, 32, 32, 0));
    write!(screen, "\x1b[1;31mred\x1b[0m \x1b]0;title\x07ok\x1b(B \x1bPx\x1b\\\x1b[?25h.\x07\0").unwrap();
    assert_eq!(read(&screen)[0], "red ok .");
}

#[test]
fn what_does_not_fit_together_is_refused() {
    let good = rgb(800, 600, 32, 0);
    assert_eq!(Layout::new(&good).unwrap().to_string(), "800 x 600 pixels of 32 bits, 100 x 37 characters");
    let refused = |framebuffer| Layout::new(&framebuffer).unwrap_err();
    for wrong in [
        Framebuffer { pitch: 3199, ..good },
        Framebuffer { width: 0, ..good },
        Framebuffer { width: 7, ..good },
        Framebuffer { height: 15, ..good },
        Framebuffer { height: 1 << 16, ..good },
        Framebuffer { width: u32::MAX, ..good },
        Framebuffer { pitch: u32::MAX, ..good },
        Framebuffer { kind: Kind::Rgb([RED, GREEN, Field { position: 28, size: 8 }]), ..good },
        Framebuffer { kind: Kind::Rgb([RED, GREEN, Field { position: 255, size: 255 }]), ..good },
        Framebuffer { bits: 24, kind: Kind::Rgb([Field { position: 24, size: 8 }, GREEN, BLUE]), ..good },
    ] {
        assert_eq!(refused(wrong), Refused::Geometry, "{wrong:?}");
    }
    assert_eq!(refused(Framebuffer { bits: 8, ..good }), Refused::Format);
    assert_eq!(refused(Framebuffer { kind: Kind::Other(0), ..good }), Refused::Format);
    for address in [0, 0x9_f000, u64::MAX - 100, 1 << 47] {
        assert_eq!(refused(Framebuffer { address, ..good }), Refused::Address, "{address:#x}");
    }
}

/// What a terminal shows, told apart from how it is drawn: all characters in rows.
fn model(text: &[u8], columns: usize, rows: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for byte in text {
        let full = lines.last().unwrap().len() == columns;
        match byte {
            b'\n' => lines.push(String::new()),
            _ => {
                if full {
                    lines.push(String::new());
                }
                lines.last_mut().unwrap().push(*byte as char);
            }
        }
    }
    let mut shown: Vec<_> = lines[lines.len().saturating_sub(rows)..].to_vec();
    shown.resize(rows, String::new());
    shown.iter().map(|line| line.trim_end().to_owned()).collect()
}

proptest! {
    #[test]
    fn shows_what_a_model_shows(text in prop::collection::vec(prop_oneof![4 => 0x20u8..0x7f, 1 => Just(b'\n')], 0..200),
                                columns in 1u32..20, rows in 1u32..6, pad in 0u32..9) {
        let mut screen = screen(&rgb(columns * 8 + pad.min(7), rows * 16 + pad, 24, pad));
        text.iter().for_each(|byte| screen.put(*byte));
        prop_assert_eq!(read(&screen), model(&text, columns as usize, rows as usize));
    }

    /// Sizes near those that pass the checks, and anything at all.
    #[test]
    fn nothing_is_written_outside(pitch in 0u32..9000, width in 0u32..2200, height in 0u32..200, bits in 0u8..=40,
                                  kind in 0u8..3, fields in prop::array::uniform6(0u8..32),
                                  text in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut data = vec![0; 32];
        for (at, word) in [(0, 0xe000_0000), (4, pitch), (8, width), (12, height)] {
            data[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        data[20] = bits;
        data[21] = kind;
        data[22..28].copy_from_slice(&fields);
        data.extend(&text);
        fuzz_one(&data);
        // Most sizes above do not fit together: these do.
        data[4..8].copy_from_slice(&(width * 4 + pitch % 64).to_le_bytes());
        data[20..28].copy_from_slice(&[[16, 24, 32][usize::from(bits) % 3], kind % 2, 11, 5, 5, 6, 0, 5]);
        fuzz_one(&data);
    }

    #[test]
    fn any_description_is_survived(data in prop::collection::vec(any::<u8>(), 0..400)) {
        fuzz_one(&data);
    }
}
