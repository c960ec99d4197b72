//! How constants and words are declared: once, with what the C header and the parsers need to know of them.

use core::fmt;

/// A constant of the C header.
#[derive(Clone, Copy, Debug)]
pub struct Constant {
    /// The name in Rust, upper case.
    pub name: &'static str,
    /// The lines of its documentation.
    pub docs: &'static [&'static str],
    /// The value.
    pub value: u64,
}

/// Declares constants of a module, and `CONSTANTS`, the list of them for the C header.
macro_rules! constants {
    ($($(#[doc = $doc:literal])+ $name:ident: $type:ty = $value:expr;)*) => {
        $($(#[doc = $doc])+ pub const $name: $type = $value;)*

        /// All constants of this module, for the C header.
        pub const CONSTANTS: &[$crate::Constant] = &[$($crate::Constant {
            name: stringify!($name),
            docs: &[$($doc),+],
            value: $value as u64,
        }),*];
    };
}

/// A word that is none of those that are expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownWord {
    /// Those that are.
    pub expected: &'static [&'static str],
}

impl fmt::Display for UnknownWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "use {}", List { words: self.expected, last: "or" })
    }
}

/// Words as a sentence has them, the last one after `last`.
pub(crate) struct List {
    pub words: &'static [&'static str],
    pub last: &'static str,
}

impl fmt::Display for List {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = self.words.len().saturating_sub(1);
        self.words.iter().enumerate().try_for_each(|(n, word)| match n {
            0 => f.write_str(word),
            _ if n == end => write!(f, " {} {word}", self.last),
            _ => write!(f, ", {word}"),
        })
    }
}

impl core::error::Error for UnknownWord {}

/// Declares an enumeration whose values go by words in text.
macro_rules! words {
    ($(#[$meta:meta])* $type:ident { $($(#[$doc:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $type { $($(#[$doc])* $variant,)* }

        impl $type {
            /// All values, in the order of their numbers.
            pub const ALL: &'static [$type] = &[$($type::$variant,)*];
            /// Their words, in the same order.
            pub const WORDS: &'static [&'static str] = &[$($word,)*];

            /// The word for it.
            pub const fn name(self) -> &'static str {
                match self { $($type::$variant => $word,)* }
            }
        }

        impl core::str::FromStr for $type {
            type Err = $crate::UnknownWord;

            fn from_str(word: &str) -> Result<$type, $crate::UnknownWord> {
                match word {
                    $($word => Ok($type::$variant),)*
                    _ => Err($crate::UnknownWord { expected: $type::WORDS }),
                }
            }
        }

        impl core::fmt::Display for $type {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.pad(self.name())
            }
        }
    };
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::string::ToString;

    words! {
        /// For the test.
        Colour {
            /// A colour.
            Red = "red",
            /// A colour.
            DarkBlue = "dark-blue",
            /// A colour.
            Grey = "grey",
        }
    }

    #[test]
    fn words_come_back_and_others_are_refused() {
        for (colour, word) in Colour::ALL.iter().zip(Colour::WORDS) {
            assert_eq!((colour.name(), word.parse()), (*word, Ok(*colour)));
        }
        assert_eq!("green".parse::<Colour>().unwrap_err().to_string(), "use red, dark-blue or grey");
        assert_eq!(std::format!("{:>5}", Colour::Red), "  red");
    }
}
