//! Typed access to one table of a TOML document, with complaints that carry the line.
//!
//! The `toml` crate's serde path converts floating-point values, which the hypervisor cannot link (it has no
//! SSE); its document tree keeps numbers as text. Keys are taken out one by one, and [`Table::finish`]
//! refuses what is left.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::str::FromStr;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::ConfigError;

/// A table whose keys are being taken.
pub struct Table<'a> {
    text: &'a str,
    line: usize,
    entries: DeTable<'a>,
    asked: Vec<&'static str>,
}

impl<'a> Table<'a> {
    /// Parses a document.
    pub fn parse(text: &'a str) -> Result<Self, ConfigError> {
        let root = DeTable::parse(text).map_err(|e| ConfigError {
            line: e.span().map(|span| line_of(text.as_bytes(), span.start)),
            message: format!("not valid TOML: {}", e.message()),
        })?;
        Ok(Table { text, line: 1, entries: root.into_inner(), asked: Vec::new() })
    }

    /// The line on which the table begins.
    pub fn line(&self) -> usize {
        self.line
    }

    /// Takes a string.
    pub fn string(&mut self, key: &'static str) -> Result<Option<String>, ConfigError> {
        self.take(key, "a string, in quotes", |value| match value {
            DeValue::String(s) => Some(s.into_owned()),
            _ => None,
        })
    }

    /// Takes a string that must be there.
    pub fn required_string(&mut self, key: &'static str) -> Result<String, ConfigError> {
        let value = self.string(key)?;
        value.ok_or_else(|| self.missing(key))
    }

    /// Takes an integer.
    pub fn integer(&mut self, key: &'static str) -> Result<Option<u64>, ConfigError> {
        self.take(key, "an integer from 0 to 2^64 - 1", integer)
    }

    /// Takes an integer that must be there.
    pub fn required_integer(&mut self, key: &'static str) -> Result<u64, ConfigError> {
        let value = self.integer(key)?;
        value.ok_or_else(|| self.missing(key))
    }

    /// Takes a truth value.
    pub fn boolean(&mut self, key: &'static str) -> Result<Option<bool>, ConfigError> {
        self.take(key, "true or false", |value| match value {
            DeValue::Boolean(b) => Some(b),
            _ => None,
        })
    }

    /// Takes one of several words, for what its type has by default if the key is absent.
    pub fn choice<T: Default + FromStr>(
        &mut self,
        key: &'static str,
        words: &[&'static str],
    ) -> Result<T, ConfigError> {
        let line = self.line_of_key(key);
        let Some(word) = self.string(key)? else {
            return Ok(T::default());
        };
        word.parse().map_err(|_| {
            let message =
                format!("`{key}` is \"{}\"; use one of {}", word.escape_default(), words.join(", "));
            ConfigError { line, message }
        })
    }

    /// Takes a table.
    pub fn table(&mut self, key: &'static str) -> Result<Option<Table<'a>>, ConfigError> {
        let (text, line) = (self.text, self.line_of_key(key));
        self.take(key, "a table, such as { … }", |value| match value {
            DeValue::Table(entries) => {
                Some(Table { text, line: line.unwrap_or(1), entries, asked: Vec::new() })
            }
            _ => None,
        })
    }

    /// Takes an array of tables; an absent one is empty.
    pub fn tables(&mut self, key: &'static str) -> Result<Vec<Table<'a>>, ConfigError> {
        let text = self.text;
        let tables = self.take(key, "an array of tables", |value| match value {
            DeValue::Array(items) => items.into_iter().map(|item| Table::from_value(text, item)).collect(),
            _ => None,
        })?;
        Ok(tables.unwrap_or_default())
    }

    /// Takes an array of strings; an absent one is empty.
    pub fn strings(&mut self, key: &'static str) -> Result<Vec<String>, ConfigError> {
        let string = |item: Spanned<DeValue<'a>>| match item.into_inner() {
            DeValue::String(s) => Some(s.into_owned()),
            _ => None,
        };
        let strings = self.take(key, "an array of strings", |value| match value {
            DeValue::Array(items) => items.into_iter().map(string).collect(),
            _ => None,
        })?;
        Ok(strings.unwrap_or_default())
    }

    /// Takes an array of integers.
    pub fn integers(&mut self, key: &'static str) -> Result<Option<Vec<u64>>, ConfigError> {
        self.take(key, "an array of integers", |value| match value {
            DeValue::Array(items) => items.into_iter().map(|item| integer(item.into_inner())).collect(),
            _ => None,
        })
    }

    /// Refuses keys that were not taken.
    pub fn finish(self) -> Result<(), ConfigError> {
        match self.entries.iter().next() {
            None => Ok(()),
            Some((key, _)) => {
                let line = Some(line_of(self.text.as_bytes(), key.span().start));
                let known = self.asked.join(", ");
                let message =
                    format!("unknown key `{}`; known here: {known}", key.get_ref().escape_default());
                Err(ConfigError { line, message })
            }
        }
    }

    fn from_value(text: &'a str, value: Spanned<DeValue<'a>>) -> Option<Self> {
        let line = line_of(text.as_bytes(), value.span().start);
        match value.into_inner() {
            DeValue::Table(entries) => Some(Table { text, line, entries, asked: Vec::new() }),
            _ => None,
        }
    }

    fn take<T>(
        &mut self,
        key: &'static str,
        wanted: &str,
        convert: impl FnOnce(DeValue<'a>) -> Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        self.asked.push(key);
        let line = self.line_of_key(key);
        let Some(value) = self.entries.remove(key) else {
            return Ok(None);
        };
        let message = || format!("`{key}` must be {wanted}");
        convert(value.into_inner()).map(Some).ok_or_else(|| ConfigError { line, message: message() })
    }

    fn line_of_key(&self, key: &str) -> Option<usize> {
        let (key, _) = self.entries.get_key_value(key)?;
        Some(line_of(self.text.as_bytes(), key.span().start))
    }

    fn missing(&self, key: &str) -> ConfigError {
        ConfigError {
            line: Some(self.line),
            message: format!("`{key}` is missing; add it to this table").to_string(),
        }
    }
}

fn integer(value: DeValue<'_>) -> Option<u64> {
    match value {
        DeValue::Integer(n) => u64::from_str_radix(n.as_str(), n.radix()).ok(),
        _ => None,
    }
}

/// The line, from 1, that holds the byte at `offset`.
pub fn line_of(bytes: &[u8], offset: usize) -> usize {
    1 + bytes.iter().take(offset).filter(|&&b| b == b'\n').count()
}
