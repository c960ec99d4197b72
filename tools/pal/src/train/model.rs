//! Files of linear models and schedules, as `cargo pal train` writes them and `--policy dsp-offset,model=FILE` and
//! `--policy oracle,schedule=FILE` read them.
//!
//! A file is TOML: `version`, `policy`, and each of the policy's parameters, which are integers but for a schedule's. It is checked here with the
//! hypervisor's own limits (`abi/src/policy.rs`) and becomes parameters: the hypervisor reads no files. A key that is missing,
//! as in a file that was cut off, is refused, not replaced by its default.

use std::{fs::File, io::Read, path::Path};

use abi::{
    mode::Mode,
    policy::{AspSvm, DspOffset},
    schedule::Oracle,
};
use toml::{Table, Value};

/// The version of the file.
const VERSION: i64 = 1;
/// Bytes of a file at most; those with the remarks of the trainer have some thousands.
const LONGEST: u64 = 1 << 20;

/// Reads a mode with its parameters, of which `model=FILE` and `schedule=FILE` stand for those in a file. Parameters after it
/// count more.
///
/// # Errors
/// What is wrong with the word or the file.
pub fn mode(word: &str) -> Result<Mode, String> {
    let Some((name, parameters)) = word.split_once(',') else { return parse(word) };
    let named = |key: &str| {
        let files = |parameter| str::strip_prefix(parameter, key)?.strip_prefix('=');
        parameters.split(',').find_map(files)
    };
    let (key, file) = match (named("model"), named("schedule")) {
        (None, None) => return parse(word),
        (Some(file), _) => ("model", file),
        (None, Some(file)) => ("schedule", file),
    };
    if name != DspOffset::NAME && name != AspSvm::NAME && key == "model" {
        return Err(format!(
            "{name} has no model: model=FILE is for {} and {}",
            DspOffset::NAME,
            AspSvm::NAME
        ));
    }
    if name != Oracle::NAME && key == "schedule" {
        return Err(format!("{name} has no schedule: schedule=FILE is for {}", Oracle::NAME));
    }
    let words = read(name, Path::new(file)).map_err(|why| format!("{key} {file}: {why}"))?;
    let others = parameters.split(',').filter(|parameter| *parameter != format!("{key}={file}"));
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
    let keys = match policy {
        Oracle::NAME => Oracle::KEYS,
        DspOffset::NAME => DspOffset::KEYS,
        _ => AspSvm::KEYS,
    };
    let mut words = policy.to_owned();
    for key in keys {
        let value = table
            .remove(*key)
            .ok_or_else(|| format!("`{key}` is missing: the file was cut off, or is of something else"))?;
        words += &format!(",{key}={}", text_of(policy, key, &value)?);
    }
    match table.keys().next() {
        Some(key) => Err(format!("`{key}` is no parameter of {policy}")),
        None => Ok(words),
    }
}

/// A parameter's value as the mode has it.
fn text_of(policy: &str, key: &str, value: &Value) -> Result<String, String> {
    match value {
        Value::String(engine) if policy == Oracle::NAME && key == "first" => Ok(engine.clone()),
        Value::Array(list) if policy == Oracle::NAME && key == "changes" => {
            let numbers: Option<Vec<String>> =
                list.iter().map(|value| Some(value.as_integer()?.to_string())).collect();
            Ok(numbers.ok_or("`changes` is no list of integers")?.join(":"))
        }
        Value::Integer(value) if policy != Oracle::NAME => Ok(value.to_string()),
        _ if policy == Oracle::NAME => Err(format!("`{key}` is not what a schedule has there")),
        _ => Err(format!("`{key}` is no integer")),
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

    const SCHEDULE: &str =
        "# remarks\nversion = 1\npolicy = \"oracle\"\nfirst = \"shadow\"\nchanges = [12, 3456, 70000]\n";

    #[test]
    fn a_schedule_becomes_parameters() {
        let (_file, word) = with(SCHEDULE);
        let word = word.replace("dsp-offset,model", "oracle,schedule");
        assert_eq!(mode(&word).unwrap().to_string(), "oracle,first=shadow,changes=12:3456:70000");
        assert_eq!(mode(&(word + ",first=nested")).unwrap().to_string(), "oracle,changes=12:3456:70000");
        let (_file, empty) = with(&SCHEDULE.replace("12, 3456, 70000", ""));
        assert_eq!(
            mode(&empty.replace("dsp-offset,model", "oracle,schedule")).unwrap().to_string(),
            "oracle,first=shadow"
        );
    }

    #[test]
    fn bad_schedules_are_refused_with_the_reason() {
        let many = (1..40).map(|n| n.to_string()).collect::<Vec<_>>().join(", ");
        for (from, to, why) in [
            ("version = 1", "version = 2", "its version is 2"),
            ("oracle", "dsp-offset", "it is for dsp-offset, not for oracle"),
            ("first = \"shadow\"\n", "", "`first` is missing"),
            ("\"shadow\"", "\"agile\"", "first is nested or shadow"),
            ("\"shadow\"", "3", "`first` is not what a schedule has there"),
            ("[12, 3456, 70000]", "7", "`changes` is not what a schedule has there"),
            ("[12, 3456, 70000]", "[1, \"2\"]", "`changes` is no list of integers"),
            ("[12, 3456, 70000]", "[12, 3456", "not a model: "),
            ("12, 3456", "3456, 12", "changes are up to 32 rising numbers"),
            ("12, 3456, 70000", "-5", "changes are up to 32 rising numbers"),
            ("12, 3456, 70000", "4294967296", "changes are up to 32 rising numbers"),
            ("12, 3456, 70000", many.as_str(), "changes are up to 32 rising numbers"),
            ("changes", "margin = 1\nchanges", "`margin` is no parameter of oracle"),
        ] {
            let (_file, word) = with(&SCHEDULE.replace(from, to));
            let error = mode(&word.replace("dsp-offset,model", "oracle,schedule")).unwrap_err();
            assert!(error.contains(why) && error.starts_with("schedule /"), "{to}: {error}");
        }
        assert!(mode("dav2m,schedule=a").unwrap_err().contains("dav2m has no schedule"));
        assert!(mode("oracle,model=a").unwrap_err().contains("oracle has no model"));
        assert!(mode("oracle,schedule=/no/such").unwrap_err().contains("`cargo pal train` makes one"));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,200}", cut in 0..SCHEDULE.len()) {
            for text in [&text, &(SCHEDULE[..cut].to_owned() + &text)] {
                for policy in ["dsp-offset", "asp-svm", "oracle"] {
                    if let Ok(words) = check(policy, text) {
                        let _ = parse(&words);
                    }
                }
            }
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
