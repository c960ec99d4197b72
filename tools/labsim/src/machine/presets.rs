//! The machines that come with the project.

/// Names and texts.
pub const PRESETS: &[(&str, &str)] = &[
    ("clovertown-x5365", include_str!("presets/clovertown-x5365.toml")),
    ("icelake-sp", include_str!("presets/icelake-sp.toml")),
    ("nehalem-i5", include_str!("presets/nehalem-i5.toml")),
    ("opteron-2350", include_str!("presets/opteron-2350.toml")),
    ("phenom-x2-550", include_str!("presets/phenom-x2-550.toml")),
    ("sandybridge-ep", include_str!("presets/sandybridge-ep.toml")),
    ("westmere-x5660", include_str!("presets/westmere-x5660.toml")),
    ("zen3", include_str!("presets/zen3.toml")),
];

/// The text of a machine that comes with the project.
pub fn preset(name: &str) -> Option<&'static str> {
    PRESETS.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::read;

    #[test]
    fn all_are_right() {
        for (name, text) in PRESETS {
            let machine = read(text, name).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(machine.name.get_ref(), name);
        }
        assert!(preset("zen3").is_some() && preset("zen").is_none());
    }
}
