//! Records as JSON objects over [`fmt::Write`]: no allocation, no floats, always one line.

use core::fmt::{self, Write};

use super::json::Quoted;

/// Writes one JSON value; objects and arrays are closed by [`Json::end`].
pub struct Json<'a> {
    out: &'a mut dyn Write,
    /// Whether the next value needs a comma before it.
    comma: bool,
    /// Closing brackets still owed, innermost last.
    open: arrayvec::ArrayVec<char, 8>,
}

impl<'a> Json<'a> {
    /// Starts an object.
    pub fn object(out: &'a mut dyn Write) -> Result<Json<'a>, fmt::Error> {
        out.write_char('{')?;
        let mut open = arrayvec::ArrayVec::new();
        open.push('}');
        Ok(Json { out, comma: false, open })
    }

    fn key(&mut self, key: &str) -> fmt::Result {
        if self.comma {
            self.out.write_char(',')?;
        }
        self.comma = true;
        if self.open.last() == Some(&'}') {
            write!(self.out, "\"{key}\":")?;
        }
        Ok(())
    }

    /// `"key": "value"`; `value` may be anything that can be shown.
    pub fn text(&mut self, key: &str, value: impl fmt::Display) -> fmt::Result {
        self.number(key, Quoted(value))
    }

    /// `"key": value` for integers and booleans.
    pub fn number(&mut self, key: &str, value: impl fmt::Display) -> fmt::Result {
        self.key(key)?;
        write!(self.out, "{value}")
    }

    /// Opens an object under `key`.
    pub fn begin_object(&mut self, key: &str) -> fmt::Result {
        self.begin(key, '{', '}')
    }

    /// Opens an array under `key`; keys of its elements are ignored.
    pub fn begin_array(&mut self, key: &str) -> fmt::Result {
        self.begin(key, '[', ']')
    }

    fn begin(&mut self, key: &str, open: char, close: char) -> fmt::Result {
        self.key(key)?;
        self.comma = false;
        self.open.try_push(close).map_err(|_| fmt::Error)?;
        self.out.write_char(open)
    }

    /// Closes the innermost object or array.
    pub fn end(&mut self) -> fmt::Result {
        self.comma = true;
        self.out.write_char(self.open.pop().ok_or(fmt::Error)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::String;

    #[test]
    fn nests() {
        let mut line = String::new();
        let mut json = Json::object(&mut line).unwrap();
        json.number("v", 1).unwrap();
        json.text("m", "a \"b\"").unwrap();
        json.begin_array("list").unwrap();
        json.number("", 1).unwrap();
        json.begin_object("").unwrap();
        json.number("x", true).unwrap();
        json.end().unwrap();
        json.end().unwrap();
        json.number("last", 2).unwrap();
        json.end().unwrap();
        assert_eq!(line, r#"{"v":1,"m":"a \"b\"","list":[1,{"x":true}],"last":2}"#);
    }

    #[test]
    fn too_many_ends_are_an_error() {
        let mut line = String::new();
        let mut json = Json::object(&mut line).unwrap();
        json.end().unwrap();
        assert!(json.end().is_err());
    }
}
