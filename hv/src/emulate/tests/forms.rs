//! All that the decoder knows, against the list of what is executed.

use std::collections::{BTreeMap, BTreeSet};

use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind};

use super::*;

/// Whether the instruction may meet a device or a table that is write-protected.
fn touches_memory(i: &Instruction) -> bool {
    let explicit = (0..i.op_count()).any(|n| {
        !matches!(
            i.op_kind(n),
            OpKind::Register
                | OpKind::NearBranch16
                | OpKind::NearBranch32
                | OpKind::NearBranch64
                | OpKind::FarBranch16
                | OpKind::FarBranch32
        ) && i.try_immediate(n).is_err()
    });
    let no_access = matches!(i.mnemonic(), Mnemonic::Lea | Mnemonic::Invlpg);
    (explicit || i.is_stack_instruction()) && !no_access
}

/// Every encoding of one opcode: prefixes, maps, opcodes, and the extensions in ModRM, with `[rax]` as memory operand.
fn encodings(mode: Mode) -> impl Iterator<Item = [u8; MAX_LEN]> {
    let prefixes: &[&[u8]] = &[&[], &[0x66], &[0xf2], &[0xf3], &[0x66, 0xf2], &[0x67]];
    let rex: &[&[u8]] = if mode == Mode::Bits64 { &[&[], &[0x48]] } else { &[&[]] };
    let maps: &[&[u8]] = &[&[], &[0x0f], &[0x0f, 0x38], &[0x0f, 0x3a]];
    prefixes.iter().flat_map(move |prefix| {
        rex.iter().flat_map(move |rex| {
            maps.iter().flat_map(move |map| {
                (0..=255u8).flat_map(move |opcode| {
                    (0..8u8).map(move |extension| {
                        let mut bytes = [0; MAX_LEN];
                        let all = prefix.iter().chain(*rex).chain(*map).copied();
                        let all = all.chain([opcode, extension << 3]);
                        bytes.iter_mut().zip(all).for_each(|(to, from)| *to = from);
                        bytes
                    })
                })
            })
        })
    })
}

/// What is not executed, and why: on a device it ends the guest; on a write-protected table the processor executes it.
fn reason(i: &Instruction) -> Option<&'static str> {
    let name = format!("{:?}", i.mnemonic()).to_lowercase();
    let one_of = |names: &str| names.split_whitespace().any(|n| n == name);
    let begins = |names: &str| names.split_whitespace().any(|n| name.starts_with(n));
    let is_vector = (0..i.op_count()).any(|n| i.op_register(n).is_xmm() || i.op_register(n).is_mm());
    Some(match () {
        () if is_vector => "vectors: what is not a move",
        () if begins("cvt") && name.ends_with("si") => "vectors: what is not a move",
        () if one_of("iret iretd iretq uiret") => {
            "an interrupt's frame: its delivery would have needed that stack, too"
        }
        () if one_of("popf popfd popfq") => "flags from a stack on a device",
        () if one_of("call jmp ret") => "66h on near branches, which processors read in different ways",
        () if one_of("lmsw") => "the way into protected mode (others are executed)",
        () if one_of("ldmxcsr stmxcsr") => "floating-point state",
        () if name.starts_with('f') => "x87 and its state",
        () if begins("xsave xrstor") => "the state of vector registers",
        () if begins("vm invept invvpid") => "virtualization, which no guest has",
        () if begins("wrss wruss rstorssp clrssbsy") => "shadow stacks, which no guest has",
        () if begins("bnd") => "MPX, which no guest has",
        () if begins("enqcmd ptwrite aesenc aesdec aadd aand aor axor lkgs") => "what no guest has",
        () if one_of("invpcid") => "an operand of INVPCID",
        () if one_of("ud0 ud1") => "#UD, which comes before the access",
        () => return None,
    })
}

#[test]
fn every_instruction_on_memory_is_executed_or_listed() {
    let mut listed: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    let mut executed = BTreeSet::new();
    let mut missing = BTreeSet::new();
    for mode in [Mode::Bits16, Mode::Bits32, Mode::Bits64] {
        for bytes in encodings(mode) {
            let i = Decoder::with_ip(mode.bits(), &bytes, 0, DecoderOptions::AMD).decode();
            if i.is_invalid() || !touches_memory(&i) {
                continue;
            }
            let (mut s, mut m) = (machine(mode), memory());
            s.gprs[0] = if mode == Mode::Bits16 { 0 } else { RAM };
            if !matches!(step(&mut s, &mut m, &bytes), Outcome::Unsupported(_)) {
                executed.insert(format!("{:?}", i.code()));
            } else if let Some(why) = reason(&i) {
                listed.entry(why).or_default().insert(format!("{:?}", i.mnemonic()));
            } else {
                missing.insert(format!("{:?} {mode:?}", i.code()));
            }
        }
    }
    println!("{} executed, not executed: {listed:#?}", executed.len());
    assert!(missing.is_empty(), "neither executed nor listed: {missing:#?}");
    assert!(executed.len() > EXECUTED, "only {} executed", executed.len());
}

/// How many of the decoder's codes are executed, at least.
const EXECUTED: usize = 400;
