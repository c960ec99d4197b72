//! What a virtualization extension offers, in a form that both vendors fill: for the log, telemetry and the hardware
//! report.
//!
//! A backend lists each feature that it uses where present, with what it does where the feature is missing.

use core::fmt;

/// A feature that a backend uses where the processor has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feature {
    /// Its name for people.
    pub name: &'static str,
    /// Its name in telemetry: lower-case words joined by `-`.
    pub id: &'static str,
    /// The processor has it.
    pub present: bool,
    /// What is done without it, in a few words for people: "a new ASID instead".
    pub without: &'static str,
}

/// `a, b; missing: c, d`
pub struct Listed<'a>(pub &'a [Feature]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names = |present: bool, first: &'static str| {
            let mut separator = first;
            self.0.iter().filter(|feature| feature.present == present).try_for_each(|feature| {
                let separator = core::mem::replace(&mut separator, ", ");
                write!(f, "{separator}{}", feature.name)
            })
        };
        names(true, "")?;
        let none = self.0.iter().all(|feature| !feature.present);
        names(false, if none { "missing: " } else { "; missing: " })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_for_people() {
        let feature = |name, present| Feature { name, id: "", present, without: "" };
        let all = [feature("a", true), feature("b", false), feature("c", true), feature("d", false)];
        let show = |features: &[Feature]| alloc::format!("{}", Listed(features));
        assert_eq!(show(&all), "a, c; missing: b, d");
        assert_eq!(show(&all[..1]), "a");
        assert_eq!(show(&all[1..2]), "missing: b");
    }
}
