//! The schedule of the policy `oracle`, and how people and `pal` write it: `oracle[,first=ENGINE][,changes=A:B:…]`.
//!
//! A schedule says at which of the guest's instructions the engine changes. It is a bounded list, which fits the word of a mode, so
//! that descriptions and the monitor take it as they take any policy. `cargo pal train oracle` makes one from runs of both engines
//! (docs/policies.md).

use core::fmt;

use crate::mode::UnknownMode;

/// Changes of a schedule at most.
pub const MOST_CHANGES: usize = 32;
/// The unit of a schedule: a thousand instructions of the guest. With 32 bits a schedule may be some minutes long.
pub const INSTRUCTIONS: u64 = 1000;

/// When the engine changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Oracle {
    /// It begins with shadow paging, not with nested.
    pub shadow_first: bool,
    /// How many of `changes` there are.
    count: u8,
    /// Thousands of the guest's instructions since the policy began, after which it changes; rising.
    changes: [u32; MOST_CHANGES],
}

impl Oracle {
    /// The policy's name.
    pub const NAME: &'static str = "oracle";
    /// The keys of its parameters.
    pub const KEYS: &'static [&'static str] = &["first", "changes"];

    /// The changes, in thousands of instructions.
    pub fn changes(&self) -> &[u32] {
        self.changes.get(..self.count.into()).unwrap_or_default()
    }

    /// From what stands behind the name, as for the other policies.
    ///
    /// # Errors
    /// [`UnknownMode`]: a key that the policy lacks, an engine or a list that is none.
    pub fn parse(parameters: &str) -> Result<Oracle, UnknownMode> {
        let mut made = Oracle::default();
        for parameter in parameters.split(',').skip(1) {
            match parameter.split_once('=') {
                Some(("first", engine)) => {
                    made.shadow_first = match engine {
                        "nested" => false,
                        "shadow" => true,
                        _ => return Err(UnknownMode::Contradiction("first is nested or shadow")),
                    }
                }
                Some(("changes", list)) => made.take(list)?,
                _ => return Err(UnknownMode::Key { policy: Oracle::NAME, keys: Oracle::KEYS }),
            }
        }
        Ok(made)
    }

    /// Takes the changes from a list with colons; none from an empty one.
    fn take(&mut self, list: &str) -> Result<(), UnknownMode> {
        const WRONG: UnknownMode = UnknownMode::Contradiction(
            "changes are up to 32 rising numbers from 1 to 4294967295 with colons between them, in thousands of \
             instructions",
        );
        (self.count, self.changes) = (0, [0; MOST_CHANGES]);
        let mut last = 0;
        for word in list.split(':').filter(|_| !list.is_empty()) {
            let change = word.parse().ok().filter(|change| *change > last).ok_or(WRONG)?;
            *self.changes.get_mut(usize::from(self.count)).ok_or(WRONG)? = change;
            (self.count, last) = (self.count + 1, change);
        }
        Ok(())
    }
}

impl fmt::Display for Oracle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Oracle::NAME)?;
        if self.shadow_first {
            f.write_str(",first=shadow")?;
        }
        for (n, change) in self.changes().iter().enumerate() {
            f.write_str(if n == 0 { ",changes=" } else { ":" })?;
            change.fmt(f)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::string::{String, ToString};
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn schedules_come_back() {
        for (parameters, shown) in [
            ("", "oracle"),
            (",first=nested", "oracle"),
            (",changes=", "oracle"),
            (",first=shadow,changes=5", "oracle,first=shadow,changes=5"),
            (",changes=1:2:4294967295", "oracle,changes=1:2:4294967295"),
            (",changes=1:2,changes=9", "oracle,changes=9"),
        ] {
            let made = Oracle::parse(parameters).unwrap();
            assert_eq!(made.to_string(), shown);
            assert_eq!(Oracle::parse(&shown[Oracle::NAME.len()..]), Ok(made));
        }
        assert_eq!(Oracle::parse(",changes=3:7").unwrap().changes(), [3, 7]);
    }

    #[test]
    fn what_is_no_schedule() {
        let many = (1..=33).map(|n| n.to_string()).collect::<Vec<_>>().join(":");
        for list in ["0", "3:3", "5:4", "x", "1:", ":1", "1::2", "-1", "4294967296", "1:2:3 ", &many] {
            let parameters = String::from(",changes=") + list;
            let error = Oracle::parse(&parameters).unwrap_err().to_string();
            assert!(error.starts_with("changes are up to 32 rising numbers"), "{list}: {error}");
        }
        assert!(Oracle::parse(&(String::from(",changes=") + &many[..many.len() - 3])).is_ok(), "32 of them");
        assert_eq!(Oracle::parse(",first=agile").unwrap_err().to_string(), "first is nested or shadow");
        assert_eq!(
            Oracle::parse(",seed=3").unwrap_err().to_string(),
            "oracle takes its parameters as key=value; the keys are first and changes"
        );
    }

    proptest! {
        #[test]
        fn no_list_panics(parameters in "(,(first|changes)?=?(shadow|[0-9:]{0,40})){0,3}") {
            if let Ok(made) = Oracle::parse(&parameters) {
                prop_assert_eq!(Oracle::parse(&made.to_string()[Oracle::NAME.len()..]), Ok(made));
                prop_assert!(made.changes().is_sorted());
            }
        }
    }
}
