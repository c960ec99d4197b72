//! Text as JSON strings, without allocation (RFC 8259, section 7).

use core::fmt::{self, Display, Write};

/// Shows a value as a JSON string: quoted, with quotes, backslashes and control characters escaped.
#[derive(Clone, Copy, Debug)]
pub struct Quoted<T>(pub T);

impl<T: Display> Display for Quoted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        write!(Escape(&mut *f), "{}", self.0)?;
        f.write_char('"')
    }
}

/// Escapes what is written for the inside of a JSON string.
#[derive(Debug)]
pub struct Escape<W>(pub W);

impl<W: Write> Write for Escape<W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            match c {
                '"' => self.0.write_str("\\\"")?,
                '\\' => self.0.write_str("\\\\")?,
                '\n' => self.0.write_str("\\n")?,
                c if c < ' ' => write!(self.0, "\\u{:04x}", u32::from(c))?,
                c => self.0.write_char(c)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_text_comes_back(text in any::<String>()) {
            let json = Quoted(&text).to_string();
            prop_assert!(!json.contains('\n'));
            prop_assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
        }
    }
}
