//! The key `cpu` of a `[[vm]]` table: the processor as the guest sees it.

use alloc::string::{String, ToString};

use super::ConfigError;
use super::table::Table;
use crate::guest::cpuid::FeatureSet;

/// `cpu = { without = ["x2apic"] }`: the features that the guest does not see, and those that depend on them.
pub fn hidden(table: &mut Table<'_>) -> Result<FeatureSet, ConfigError> {
    let Some(mut cpu) = table.table("cpu")? else { return Ok(FeatureSet::NONE) };
    let line = Some(cpu.line());
    let names = cpu.strings("without")?;
    cpu.finish()?;
    FeatureSet::parse(names.iter().map(String::as_str))
        .map_err(|unknown| ConfigError { line, message: alloc::format!("`cpu.without`: {unknown}") })
}

/// Processors find each other by their local APICs.
pub fn validate(hidden: FeatureSet, vcpus: u32) -> Result<(), String> {
    if vcpus > 1 && hidden.names().any(|name| name == "apic") {
        return Err("`cpu.without` hides the local APIC (apic), without which a guest has one processor; leave it out or set \
                    `vcpus` to 1"
            .to_string());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;

    fn parse(lines: &str) -> Result<FeatureSet, String> {
        let text =
            alloc::format!("version = 1\n[[vm]]\nname = \"a\"\nkernel = \"k\"\nmemory_mib = 64\n{lines}\n");
        Config::parse(text.as_bytes()).map(|config| config.vm[0].hidden).map_err(|error| error.to_string())
    }

    #[test]
    fn features_are_hidden_by_name() {
        assert_eq!(parse(""), Ok(FeatureSet::NONE));
        assert_eq!(parse("cpu = {}"), Ok(FeatureSet::NONE));
        let avx = FeatureSet::parse(["x2apic", "avx"]).unwrap();
        assert_eq!(parse("cpu = { without = [\"x2apic\", \"avx\"] }"), Ok(avx));
        assert_eq!(parse("[vm.cpu]\nwithout = [\"avx\", \"x2apic\"]"), Ok(avx));
    }

    #[test]
    fn mistakes_are_named() {
        for (line, complaint) in [
            ("cpu = { without = [\"x2apci\"] }", "line 6: `cpu.without`: \"x2apci\" is no feature"),
            ("cpu = { without = [\"x2apci\"] }", "the nearest are x2apic, "),
            ("cpu = { without = [\"vmx\"] }", "\"vmx\" is no feature that guests can have"),
            ("cpu = { without = \"avx\" }", "`without` must be an array of strings"),
            ("cpu = { with = [\"avx\"] }", "unknown key `with`; known here: without"),
            ("cpu = [\"avx\"]", "`cpu` must be a table"),
            ("vcpus = 2\ncpu = { without = [\"apic\"] }", "hides the local APIC"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(complaint), "{line}: {error}");
        }
    }
}
