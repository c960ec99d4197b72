//! What a terminal shows after the bytes that a full-screen program has sent: as much of a VT100 as such programs use here.

/// The screen's size.
pub const WIDTH: usize = 80;
pub const HEIGHT: usize = 24;

/// The lines of the screen.
pub fn lines(bytes: &str) -> Vec<String> {
    let mut cells = vec![vec![' '; WIDTH]; HEIGHT];
    let (mut row, mut column) = (0, 0);
    let mut chars = bytes.chars();
    while let Some(c) = chars.next() {
        match c {
            '\x1b' => {
                if chars.as_str().starts_with('[') {
                    chars.next();
                    let rest = chars.as_str();
                    let Some(end) = rest.find(|c: char| ('@'..='~').contains(&c)) else { break };
                    let numbers = rest[..end].split(';').map(|word| word.parse().unwrap_or(1));
                    let numbers: Vec<usize> = numbers.collect();
                    match &rest[end..=end] {
                        "H" => {
                            let at = |index: usize| numbers.get(index).copied().unwrap_or(1).max(1) - 1;
                            (row, column) = (at(0).min(HEIGHT - 1), at(1).min(WIDTH - 1));
                        }
                        "J" => cells.iter_mut().flatten().for_each(|cell| *cell = ' '),
                        _ => {}
                    }
                    chars = rest[end + 1..].chars();
                }
            }
            '\r' => column = 0,
            '\n' => row = (row + 1).min(HEIGHT - 1),
            c => {
                if column < WIDTH {
                    cells[row][column] = c;
                }
                column += 1;
            }
        }
    }
    cells.into_iter().map(|line| line.into_iter().collect::<String>().trim_end().to_owned()).collect()
}
