//! Wrong descriptions, each with the line and the advice that its author gets.

use super::*;
use crate::machine::preset;

fn with(from: &str, to: &str) -> String {
    let text = preset("westmere-x5660").unwrap();
    assert!(text.contains(from), "{from}");
    text.replacen(from, to, 1)
}

fn error(from: &str, to: &str) -> String {
    read(&with(from, to), "m.toml").unwrap_err().to_string()
}

/// The line that a piece of the preset's text is on.
fn line(piece: &str) -> usize {
    let text = preset("westmere-x5660").unwrap();
    text[..text.find(piece).unwrap()].matches('\n').count() + 1
}

#[test]
fn unknown_keys() {
    let text = error("policy = ", "polcy = ");
    assert!(text.starts_with(&format!("m.toml:{}: ", line("policy = "))), "{text}");
    assert!(text.contains("unknown field `polcy`") && text.contains("docs/lab.md"), "{text}");
}

#[test]
fn values_of_the_wrong_kind() {
    let text = error("policy = \"lru\"", "policy = \"best\"");
    assert!(text.contains("unknown variant `best`"), "{text}");
    assert!(error("mhz = ", "mhz = -").starts_with(&format!("m.toml:{}: ", line("mhz = "))));
    assert!(read("version = ", "m.toml").unwrap_err().to_string().starts_with("m.toml:1: "));
}

#[test]
fn tables_that_are_missing() {
    let text = error("[memory]", "[memry]");
    assert!(text.contains("memry"), "{text}");
    assert!(read("", "m.toml").unwrap_err().to_string().contains("missing field"));
}

#[test]
fn impossible_geometry() {
    let first = "entries = 64\nways = 4";
    let text = error(first, "entries = 64\nways = 5");
    let table = line(first) - 4..line(first) + 1;
    let at: usize = text.split(':').nth(1).unwrap().parse().unwrap();
    assert!(table.contains(&at), "{at} is not in {table:?}");
    assert!(text.contains("5 ways do not divide 64 entries"), "{text}");
    assert!(error(first, "entries = 0\nways = 4").contains("1 to 32768 entries"));
    assert!(error(first, "entries = 64\nways = 0").contains("do not divide"));
    assert!(
        error("level = 2\nport = \"both\"\npages", "level = 3\nport = \"both\"\npages").contains("1 or 2")
    );
    let plru = "entries = 12\nways = \"full\"\npolicy = \"plru\"";
    assert!(error("entries = 64\nways = 4\npolicy = \"lru\"", plru).contains("power of two"));
    assert!(error("vmrun = ", "vmrun = 9999").contains("nothing takes more than 1000000"));
    assert!(error("slow = ", "slow = 9999").contains("nothing takes more than 1000000"));
    assert!(error("version = 1", "version = 2").contains("write 1"));
    assert!(error("begins_at = 1", "begins_at = 3").contains("level 1 or 2"));
    assert!(error("pcpus_per_domain = 6", "pcpus_per_domain = 0").contains("1 or more"));
}

#[test]
fn impossible_memory() {
    assert!(error("remote = ", "remote = 1 #").contains("remote memory takes at least as long"));
    let range = |text: &str| preset("westmere-x5660").unwrap().to_owned() + text;
    let ranges = "\n[[memory.range]]\nfrom_mib = 0\nto_mib = 10\n[[memory.range]]\nfrom_mib = 9\nto_mib = 11\nnode = 1\n";
    let text = read(&range(ranges), "m.toml").unwrap_err().to_string();
    assert!(text.contains("overlaps"), "{text}");
    let empty = "\n[[memory.range]]\nfrom_mib = 5\nto_mib = 5\n";
    assert!(read(&range(empty), "m.toml").unwrap_err().to_string().contains("empty"));
}

#[test]
fn impossible_bandwidth() {
    let with = |mb_s: &str| {
        let range = format!("\n[[memory.range]]\nfrom_mib = 0\nto_mib = 10\nbandwidth_mb_s = {mb_s}\n");
        read(&(preset("westmere-x5660").unwrap().to_owned() + &range), "m.toml")
            .map_err(|error| error.to_string())
    };
    let machine = with("13440").unwrap();
    assert_eq!(machine.memory.get_ref().range[0].get_ref().bandwidth_mb_s, Some(13_440));
    assert!(crate::machine::show(&machine).contains("0 to 10 MiB: slow tier, 13440 MB/s"));
    for wrong in ["0", "100000001"] {
        let text = with(wrong).unwrap_err();
        assert!(text.contains("from 1 to 100000000") && text.contains("leave it out"), "{text}");
    }
    assert!(with("-1").is_err() && with("\"fast\"").is_err());
    // 2800 MHz: 179 cycles for a line. Within the longest time there is a slowest channel.
    assert!(with("1").is_ok());
    let slow = preset("westmere-x5660").unwrap().replacen("mhz = 2800", "mhz = 100000", 1)
        + "\n[[memory.range]]\nfrom_mib = 0\nto_mib = 10\nbandwidth_mb_s = 1\n";
    let text = read(&slow, "m.toml").unwrap_err().to_string();
    assert!(text.contains("nothing takes more than 1000000"), "{text}");
}

#[test]
fn figures_without_a_source() {
    let text = preset("westmere-x5660").unwrap();
    let first = text.split("source = ").nth(1).unwrap().lines().next().unwrap();
    assert!(error(&format!("source = {first}"), "source = \"\"").contains("source is empty"));
    assert!(error(&format!("source = {first}"), "").contains("missing field `source`"));
}
