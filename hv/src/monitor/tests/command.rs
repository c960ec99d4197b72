//! The grammar of the commands.

use proptest::prelude::*;

use crate::monitor::command::{COMMANDS, fuzz_one, parse};

fn understood(line: &str) -> String {
    match parse(line) {
        Ok(command) => format!("{command:?}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn lines() {
    for (line, expected) in [
        ("", "None"),
        (" \t ", "None"),
        ("help", "Some(Help(None))"),
        ("h p2m", "ambiguous command `h`: help host"),
        ("he p2", "Some(Help(Some(p2m)))"),
        ("help me", "unknown command `me`; `help` lists the commands"),
        ("regs", "Some(Registers(0))"),
        ("regs 3", "Some(Registers(3))"),
        ("regs 4294967296", "`4294967296` is not a VCPU number; `vcpus` lists them"),
        ("p2m", "Some(P2m(None))"),
        ("p2m fee00000", "Some(P2m(Some(At(4276092928))))"),
        ("p2m 0xFEE00000", "Some(P2m(Some(At(4276092928))))"),
        ("p2m +1", "`+1` is not a hexadecimal address or a register"),
        ("p2m 0x", "`0x` is not a hexadecimal address or a register"),
        ("p2m 10000000000000000", "`10000000000000000` is not a hexadecimal address or a register"),
        ("walk", "missing address; see `help walk`"),
        ("walk r10", "Some(Walk(Gpr(R10)))"),
        ("walk cr3", "Some(Walk(Cr3))"),
        ("x rip", "Some(Dump(Rip, 64))"),
        ("x 10 0x10", "Some(Dump(At(16), 16))"),
        ("xp 10 4096", "Some(DumpPhysical(At(16), 4096))"),
        ("xp 10 4097", "`4097` is not a number of bytes, 1 to 4096"),
        ("xp 10 0", "`0` is not a number of bytes, 1 to 4096"),
        ("stats now", "unexpected argument `now`; see `help stats`"),
        ("res", "ambiguous command `res`: resume restart reset"),
        ("pause", "Some(Act(Pause, None))"),
        ("resume web", "Some(Act(Resume, Some(\"web\")))"),
        ("start", "missing VM name; see `help start`"),
        ("destroy a b", "unexpected argument `b`; see `help destroy`"),
        ("destroy a", "Some(Act(Destroy, Some(\"a\")))"),
        ("se web", "Some(Select(\"web\"))"),
        ("console web", "Some(Console(\"web\"))"),
        ("loglevel DEBUG", "Some(LogLevel(Some(Debug)))"),
        ("mode", "Some(Mode(None))"),
        ("mode nested", "Some(Mode(Some(Nested)))"),
        ("mode switch=50", "Some(Mode(Some(Switch(50))))"),
        (
            "mode switch=0",
            "`switch=0` is no mode: use nested, shadow, agile, agile,machine=commodity, switch=N with N from 1 on (such as switch=50), or a policy: random, \
             threshold, dsp-sample, dav2m, dsp-offset, asp-svm, bandit, oracle, each with its parameters (such as dav2m,window_inst=50000000)",
        ),
        (
            "mode switch=4294967296",
            "`switch=4294967296` is no mode: use nested, shadow, agile, agile,machine=commodity, switch=N with N from 1 on (such as switch=50), or a policy: random, \
             threshold, dsp-sample, dav2m, dsp-offset, asp-svm, bandit, oracle, each with its parameters (such as dav2m,window_inst=50000000)",
        ),
        (
            "mode Shadow",
            "`Shadow` is no mode: use nested, shadow, agile, agile,machine=commodity, switch=N with N from 1 on (such as switch=50), or a policy: random, \
             threshold, dsp-sample, dav2m, dsp-offset, asp-svm, bandit, oracle, each with its parameters (such as dav2m,window_inst=50000000)",
        ),
        ("s", "ambiguous command `s`: select stats shadow start stop"),
        ("st", "ambiguous command `st`: stats start stop"),
        ("loglevel all", "`all` is not off, error, warn, info, debug or trace"),
        ("tiers", "Some(Tiers(None))"),
        ("tiers e3", "Some(Tiers(Some(TierState(Some(EState(3))))))"),
        ("tiers all", "Some(AllTiers(None))"),
        ("tiers web E0", "Some(AllTiers(Some((\"web\", TierState(Some(EState(0)))))))"),
        ("tiers all auto", "Some(AllTiers(Some((\"all\", TierState(None)))))"),
        ("tiers web db", "`db` is not an E-state from E0 to E7, nor `auto`"),
        ("tiers web E1 E2", "unexpected argument `E2`; see `help tiers`"),
        ("tiers E257", "`E257` is not an E-state from E0 to E7, nor `auto`"),
        ("tiers auto", "Some(Tiers(Some(TierState(None))))"),
        ("tiers E8", "`E8` is not an E-state from E0 to E7, nor `auto`"),
        ("q", "Some(Quit)"),
        ("exit", "Some(Quit)"),
    ] {
        assert_eq!(understood(line), expected, "{line:?}");
    }
}

#[test]
fn examples_work_and_names_are_unique() {
    for (i, command) in COMMANDS.iter().enumerate() {
        assert!(command.example.starts_with(command.name));
        assert!(parse(command.example).is_ok(), "{}", command.example);
        assert!(COMMANDS[..i].iter().all(|other| other.name != command.name));
    }
}

proptest! {
    #[test]
    fn nothing_panics(data in prop::collection::vec(any::<u8>(), 0..40)) {
        fuzz_one(&data);
    }

    #[test]
    fn nothing_panics_on_almost_commands(
        name in prop::sample::select(COMMANDS),
        rest in "( [0-9a-fx]{1,18}| r[a-z0-9]{1,2}){0,3}",
    ) {
        fuzz_one(format!("{}{rest}", name.name).as_bytes());
    }
}
