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

    /// Reads a JSON string back, by the grammar's word.
    fn parse(json: &str) -> Option<String> {
        let mut chars = json.strip_prefix('"')?.strip_suffix('"')?.chars();
        let mut text = String::new();
        while let Some(c) = chars.next() {
            text.push(match c {
                '"' | '\0'..' ' => return None,
                '\\' => match chars.next()? {
                    'n' => '\n',
                    'u' => {
                        let digits: String = chars.by_ref().take(4).collect();
                        char::from_u32(u32::from_str_radix(&digits, 16).ok()?)?
                    }
                    c @ ('"' | '\\') => c,
                    _ => return None,
                },
                c => c,
            });
        }
        Some(text)
    }

    proptest! {
        #[test]
        fn any_text_comes_back(text in any::<String>()) {
            prop_assert_eq!(parse(&Quoted(&text).to_string()), Some(text));
        }
    }

    #[test]
    fn escapes() {
        assert_eq!(Quoted("a\"b\\c\nd\u{1}é").to_string(), "\"a\\\"b\\\\c\\nd\\u0001é\"");
    }
}
