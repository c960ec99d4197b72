//! Files of linear models, as `cargo pal train` writes them and `--policy dsp-offset,model=FILE` reads them.
//!
//! A file is TOML with integers only: `version`, `policy`, and each of the policy's parameters. It is checked here with the
//! hypervisor's own limits (`abi/src/policy.rs`) and becomes parameters: the hypervisor reads no files. A key that is missing,
//! as in a file that was cut off, is refused, not replaced by its default.

use std::{fs::File, io::Read, path::Path};

use abi::{
    mode::Mode,
    policy::{AspSvm, DspOffset},
};
use toml::{Table, Value};

/// The version of the file.
const VERSION: i64 = 1;
/// Bytes of a file at most; those with the remarks of the trainer have some thousands.
const LONGEST: u64 = 1 << 20;

/// Reads a mode with its parameters, of which `model=FILE` stands for those in a file. Parameters after it count more.
///
/// # Errors
/// What is wrong with the word or the file.
pub fn mode(word: &str) -> Result<Mode, String> {
    let Some((name, parameters)) = word.split_once(',') else { return parse(word) };
    let Some(file) = parameters.split(',').find_map(|parameter| parameter.strip_prefix("model=")) else {
        return parse(word);
    };
    if name != DspOffset::NAME && name != AspSvm::NAME {
        return Err(format!(
            "{name} has no model: model=FILE is for {} and {}",
            DspOffset::NAME,
            AspSvm::NAME
        ));
    }
    let words = read(name, Path::new(file)).map_err(|why| format!("model {file}: {why}"))?;
    let others = parameters.split(',').filter(|parameter| !parameter.starts_with("model="));
    parse(&others.fold(words, |words, parameter| words + "," + parameter))
}

fn parse(word: &str) -> Result<Mode, String> {
    word.parse().map_err(|error: abi::mode::UnknownMode| error.to_string())
}

/// The file as a policy with its parameters.
fn read(policy: &str, file: &Path) -> Result<String, String> {
    let mut text = String::new();
    let opened = File::open(file).map_err(|error| format!("{error}; `cargo pal train` makes one"))?;
    opened.take(LONGEST).read_to_string(&mut text).map_err(|error| error.to_string())?;
    let words = check(policy, &text)?;
    // With the limits of each parameter.
    parse(&words)?;
    Ok(words)
}

/// What the text says, as a policy with its parameters.
fn check(policy: &str, text: &str) -> Result<String, String> {
    let mut table: Table = text.parse().map_err(|error: toml::de::Error| {
        format!("not a model: {}; `cargo pal train` makes one", error.message())
    })?;
    match table.remove("version") {
        Some(Value::Integer(VERSION)) => {}
        Some(version) => {
            return Err(format!(
                "its version is {version}, and version {VERSION} is known here: train it again with this checkout"
            ));
        }
        None => return Err("not a model: it has no `version`; `cargo pal train` makes one".into()),
    }
    match table.remove("policy") {
        Some(Value::String(name)) if name == policy => {}
        Some(Value::String(name)) => return Err(format!("it is for {name}, not for {policy}")),
        _ => return Err("not a model: it has no `policy`".into()),
    }
    let keys = if policy == DspOffset::NAME { DspOffset::KEYS } else { AspSvm::KEYS };
    let mut words = policy.to_owned();
    for key in keys {
        match table.remove(*key) {
            Some(Value::Integer(value)) => words += &format!(",{key}={value}"),
            Some(_) => return Err(format!("`{key}` is no integer")),
            None => return Err(format!("`{key}` is missing: the file was cut off, or is of something else")),
        }
    }
    match table.keys().next() {
        Some(key) => Err(format!("`{key}` is no parameter of {policy}")),
        None => Ok(words),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MODEL: &str = "# remarks\nversion = 1\npolicy = \"dsp-offset\"\nfaults = -70000\nmisses = 12\nbias = -9\nmargin = 16384\ninterval_ms = 50\n";

    fn with(text: &str) -> (tempfile::NamedTempFile, String) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let word = format!("dsp-offset,model={}", file.path().display());
        (file, word)
    }

    #[test]
    fn a_model_becomes_parameters() {
        let (_file, word) = with(MODEL);
        let inline = "dsp-offset,faults=-70000,misses=12,bias=-9,interval_ms=50";
        assert_eq!(mode(&word).unwrap().to_string(), inline, "the margin is the default");
        assert_eq!(mode(&(word + ",interval_ms=7")).unwrap().to_string(), inline.replace("=50", "=7"));
        assert_eq!(mode(inline).unwrap().to_string(), inline);
        assert_eq!(mode("nested"), Ok(Mode::Nested));
    }

    #[test]
    fn bad_models_are_refused_with_the_reason() {
        for (from, to, why) in [
            ("version = 1", "version = 2", "its version is 2, and version 1 is known here"),
            ("version = 1\n", "", "it has no `version`"),
            ("dsp-offset", "asp-svm", "it is for asp-svm, not for dsp-offset"),
            ("-70000", "-99999999999", "faults is a number from -65536000 to 65536000"),
            ("-70000", "-1.5", "`faults` is no integer"),
            ("interval_ms = 50\n", "", "`interval_ms` is missing: the file was cut off"),
            ("bias = -9", "bias = -9\nslope = 1", "`slope` is no parameter"),
            ("bias = -9", "bias = ", "not a model: "),
            ("margin = 16384", "margin = -1", "margin is a number from 0"),
        ] {
            let (_file, word) = with(&MODEL.replace(from, to));
            let error = mode(&word).unwrap_err();
            assert!(error.contains(why) && error.starts_with("model /"), "{from}: {error}");
        }
        assert!(mode("dsp-offset,model=/no/such").unwrap_err().contains("`cargo pal train` makes one"));
        assert!(mode("dav2m,model=/no/such").unwrap_err().contains("dav2m has no model"));
        assert!(mode("dsp-offset,model=/dev/zero").unwrap_err().contains("not a model"));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,200}") {
            let _ = check("dsp-offset", &text);
        }

        #[test]
        fn a_model_that_was_cut_off_is_refused_or_whole(length in 0..MODEL.len()) {
            match check("dsp-offset", &MODEL[..length]) {
                // What is left of the last number is a number.
                Ok(words) => prop_assert!(words.ends_with(",interval_ms=5") || words.ends_with(",interval_ms=50")),
                Err(why) => prop_assert!(!why.is_empty()),
            }
        }
    }
}
