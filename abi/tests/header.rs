//! The C header says what the crate says. `PALIMPSEST_UPDATE=1 cargo test -p abi` writes it.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use abi::{Constant, config, hypercall, kit, lab, telemetry, testdev};

/// What precedes everything.
const HEAD: &str = "\
/* What kernels and programs in C must agree on with Palimpsest.
 * Generated from the crate `abi`; do not edit. `PALIMPSEST_UPDATE=1 cargo test -p abi` writes it.
 */
#ifndef PALIMPSEST_H
#define PALIMPSEST_H

#ifndef __ASSEMBLER__
#ifdef __KERNEL__
#include <linux/types.h>
#else
#include <stdint.h>
#endif
#endif
";

/// A comment of one or several lines.
fn comment(out: &mut String, indent: &str, docs: &[&str]) {
    let lines: Vec<_> = docs.iter().map(|line| line.trim()).collect();
    writeln!(out, "{indent}/* {} */", lines.join(&format!("\n{indent} * "))).unwrap();
}

fn constants(out: &mut String, title: &str, prefix: &str, constants: &[Constant]) {
    writeln!(out, "\n/* {title} */").unwrap();
    for Constant { name, docs, value } in constants {
        comment(out, "", docs);
        // Assemblers know no suffixes: only what needs more than 32 bits has one.
        let suffix = if *value > u32::MAX.into() { "ull" } else { "" };
        let value = if *value < 4096 { value.to_string() } else { format!("{value:#x}{suffix}") };
        writeln!(out, "#define PALIMPSEST_{prefix}_{name} {value}").unwrap();
    }
}

/// The page that a guest's kernel counts on.
fn counter_page(out: &mut String) {
    out.push_str("\n#ifndef __ASSEMBLER__\n/* The page on which a VCPU's kernel counts: 64-bit numbers that only grow. */\n");
    out.push_str("struct palimpsest_counter_page {\n");
    let names = hypercall::CounterPage::NAMES;
    names.iter().for_each(|name| writeln!(out, "    uint64_t {name};").unwrap());
    let reserved = hypercall::COUNTER_PAGE_BYTES / 8 - names.len();
    writeln!(out, "    uint64_t reserved[{reserved}];\n}};\n#endif").unwrap();
}

/// The arguments of the guest kit's ioctls.
fn kit_structures(out: &mut String) {
    writeln!(out, "#define PALIMPSEST_KIT_PATH \"{}\"", kit::PATH).unwrap();
    out.push_str("\n#ifndef __ASSEMBLER__\n");
    let region = ("region", "A region of a program's.", kit::Region::FIELDS);
    let info = ("info", "What a file may use, and what it uses.", kit::Info::FIELDS);
    let target = ("target", "What a program wants of the fast memory.", kit::Target::FIELDS);
    for (name, docs, fields) in [region, info, target] {
        writeln!(out, "/* {docs} */\nstruct palimpsest_kit_{name} {{").unwrap();
        fields.iter().for_each(|(kind, field)| writeln!(out, "    {kind} {field};").unwrap());
        out.push_str("};\n");
    }
    out.push_str("#endif\n");
}

/// The structures in the shared memory of a lab machine.
fn lab_structures(out: &mut String) {
    out.push_str("\n#ifndef __ASSEMBLER__\n/* The lab machine's counters in shared memory: this, then one record for each PCPU. */\n");
    out.push_str("struct palimpsest_lab_header {\n    uint64_t magic;\n    uint32_t version, pcpus;\n");
    out.push_str("    uint64_t record_offset, record_bytes, khz, counts_only;\n};\n\n");
    out.push_str("struct palimpsest_lab_counters {\n");
    lab::Counters::NAMES.iter().for_each(|name| writeln!(out, "    uint64_t {name};").unwrap());
    out.push_str("};\n\n");
    out.push_str("/* Walks of agile paging, by where they leave the shadow tables. */\n");
    writeln!(out, "struct palimpsest_lab_agile {{").unwrap();
    for name in ["walks", "refs", "refs_uncached"] {
        writeln!(out, "    uint64_t {name}[{}];", lab::SWITCHES).unwrap();
    }
    out.push_str("    uint64_t stand_ins, checks_stale;\n};\n\n");
    let sides: Vec<_> = lab::Side::ALL.iter().map(|side| side.name()).collect();
    writeln!(out, "/* A record: {}. */", sides.join(", ")).unwrap();
    out.push_str("struct palimpsest_lab_record {\n");
    writeln!(out, "    struct palimpsest_lab_counters sides[{}];", sides.len()).unwrap();
    out.push_str("    uint64_t doorbell;\n    struct palimpsest_lab_counters stand_ins;\n");
    out.push_str("    struct palimpsest_lab_agile agile;\n};\n#endif\n");
}

fn render() -> String {
    let mut out = HEAD.to_owned();
    constants(&mut out, "Hypercalls", "HYPERCALL", hypercall::CONSTANTS);
    counter_page(&mut out);
    constants(&mut out, "The guest kit's device, /dev/palimpsest", "KIT", kit::CONSTANTS);
    kit_structures(&mut out);
    constants(&mut out, "The test device", "TEST", testdev::CONSTANTS);
    constants(&mut out, "Limits of palimpsest.toml", "CONFIG", config::CONSTANTS);
    let docs: &'static [&'static str] = &["Version of the records' schema."];
    let version = Constant { name: "VERSION", docs, value: telemetry::VERSION.into() };
    constants(&mut out, "Telemetry", "TELEMETRY", &[version]);
    constants(&mut out, "Lab machines", "LAB", lab::CONSTANTS);
    lab_structures(&mut out);
    out.push_str("\n#endif\n");
    out
}

fn path() -> PathBuf {
    // Asked for when it runs: a checkout that was copied keeps its compiled tests.
    let package = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it");
    Path::new(&package).join("include/palimpsest.h")
}

#[test]
fn the_header_is_what_the_crate_says() {
    let wanted = render();
    if std::env::var_os("PALIMPSEST_UPDATE").is_some() {
        std::fs::write(path(), &wanted).unwrap();
    }
    let found = std::fs::read_to_string(path()).unwrap_or_default();
    assert!(
        found == wanted,
        "abi/include/palimpsest.h is not what the crate says: write it with `PALIMPSEST_UPDATE=1 cargo test -p abi`"
    );
}

/// The compiler's layout of the structures is the crate's.
#[test]
fn the_header_compiles_and_has_the_same_layout() {
    let sizes = [
        ("lab_header", size_of::<lab::Header>()),
        ("lab_counters", size_of::<lab::Counters>()),
        ("lab_agile", size_of::<lab::AgileCounters>()),
        ("lab_record", size_of::<lab::Record>()),
        ("counter_page", size_of::<hypercall::CounterPage>()),
        ("kit_region", size_of::<kit::Region>()),
        ("kit_info", size_of::<kit::Info>()),
        ("kit_target", size_of::<kit::Target>()),
    ];
    let mut source = format!("#include \"{}\"\n#include <stddef.h>\n", path().display());
    for (name, bytes) in sizes {
        writeln!(source, "_Static_assert(sizeof(struct palimpsest_{name}) == {bytes}, \"{name}\");").unwrap();
    }
    let places = [
        ("kit_region", "frames", std::mem::offset_of!(kit::Region, frames)),
        ("kit_region", "mappings", std::mem::offset_of!(kit::Region, mappings)),
        ("kit_info", "regions", std::mem::offset_of!(kit::Info, regions)),
        ("kit_info", "frames_max", std::mem::offset_of!(kit::Info, frames_max)),
        ("kit_target", "flags", std::mem::offset_of!(kit::Target, flags)),
        ("lab_record", "doorbell", std::mem::offset_of!(lab::Record, doorbell)),
        ("lab_record", "agile", std::mem::offset_of!(lab::Record, agile)),
        ("lab_agile", "checks_stale", std::mem::offset_of!(lab::AgileCounters, checks_stale)),
        ("counter_page", "page_faults_user", std::mem::offset_of!(hypercall::CounterPage, page_faults_user)),
        (
            "counter_page",
            "page_faults_kernel",
            std::mem::offset_of!(hypercall::CounterPage, page_faults_kernel),
        ),
    ];
    for (of, field, at) in places {
        let what = format!("offsetof(struct palimpsest_{of}, {field}) == {at}");
        writeln!(source, "_Static_assert({what}, \"{field}\");").unwrap();
    }
    let options = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-x", "c", "-"];
    let mut compiler = std::process::Command::new("cc")
        .args(options)
        .stdin(std::process::Stdio::piped())
        .spawn()
        .expect("cc; install gcc");
    std::io::Write::write_all(&mut compiler.stdin.take().unwrap(), source.as_bytes()).unwrap();
    assert!(compiler.wait().unwrap().success());
}
