//! The linked hypervisor touches no FPU, MMX or vector register outside `hw::fpu`: those registers hold guest values
//! that are not saved on exits.
//!
//! A linear sweep over the code of every symbol. Looks at the image that `cargo hv` built last, and builds it if there
//! is none.

mod image;

use elf::ElfBytes;
use elf::endian::LittleEndian;
use iced_x86::{CpuidFeature, Decoder, DecoderOptions, Instruction, InstructionInfoFactory, Register};

/// What may: one module, as it appears in mangled names, and the instruction that tests CR0.TS.
const ALLOWED: [&str; 2] = ["2hw3fpu", "hv_fpu_tripwire"];

/// Whether an instruction reads or writes state that belongs to the guest. The hypervisor's decoder is built without AVX:
/// such instructions are invalid to it, and nothing else in the code is.
fn touches_fpu(instruction: &Instruction, factory: &mut InstructionInfoFactory) -> bool {
    let x87 = instruction.cpuid_features().iter().any(|feature| {
        matches!(feature, CpuidFeature::FPU | CpuidFeature::FPU287 | CpuidFeature::FPU387 | CpuidFeature::MMX)
    });
    let vector = |r: Register| r.is_vector_register() || r.is_mm() || r.is_st() || r.is_k() || r.is_tmm();
    instruction.is_invalid()
        || x87
        || factory.info(instruction).used_registers().iter().any(|used| vector(used.register()))
}

/// The symbols of code, with what lies between each and the next, by section.
fn functions(elf: &ElfBytes<'_, LittleEndian>) -> Vec<(String, u64, Vec<u8>)> {
    let (sections, names) = elf.section_headers_with_strtab().unwrap();
    let (sections, names) = (sections.unwrap(), names.unwrap());
    let (index, text) =
        sections.iter().enumerate().find(|(_, s)| names.get(s.sh_name as usize).unwrap() == ".text").unwrap();
    let (bytes, _) = elf.section_data(&text).unwrap();
    let (symbols, strings) = elf.symbol_table().unwrap().unwrap();
    let end = text.sh_addr + text.sh_size;
    let is_code = |address: u64| (text.sh_addr..end).contains(&address);
    let mut starts: Vec<(u64, &str)> = symbols
        .iter()
        .filter(|s| {
            usize::from(s.st_shndx) == index && s.st_symtype() != elf::abi::STT_SECTION && is_code(s.st_value)
        })
        .map(|s| (s.st_value, strings.get(s.st_name as usize).unwrap()))
        .collect();
    starts.sort();
    starts.dedup_by_key(|(at, _)| *at);
    let ends = starts.iter().skip(1).map(|(at, _)| *at).chain([end]);
    let code =
        |from: u64, to: u64| bytes[(from - text.sh_addr) as usize..(to - text.sh_addr) as usize].to_vec();
    starts.iter().zip(ends).map(|((at, name), end)| (name.to_string(), *at, code(*at, end))).collect()
}

#[test]
fn only_the_fpu_module_touches_fpu_registers() {
    let bytes = std::fs::read(image::path()).unwrap();
    let elf = ElfBytes::<LittleEndian>::minimal_parse(&bytes).unwrap();
    let functions = functions(&elf);
    assert!(functions.len() > 50, "only {} functions found", functions.len());
    let mut factory = InstructionInfoFactory::new();
    let (mut guilty, mut allowed) = (vec![], 0);
    for (name, at, code) in &functions {
        for instruction in &mut Decoder::with_ip(64, code, *at, DecoderOptions::NONE) {
            if touches_fpu(&instruction, &mut factory) {
                match ALLOWED.iter().any(|part| name.contains(part)) {
                    true => allowed += 1,
                    false => {
                        guilty.push(format!("{:#x} {:?} in {name}", instruction.ip(), instruction.mnemonic()))
                    }
                }
            }
        }
    }
    assert!(guilty.is_empty(), "{} instructions:\n{}", guilty.len(), guilty.join("\n"));
    assert!(allowed > 32, "the FPU routines are in the image and are seen");
}

/// The check sees what it looks for.
#[test]
fn the_check_knows_such_instructions() {
    let mut factory = InstructionInfoFactory::new();
    let mut touches =
        |code: &[u8]| touches_fpu(&Decoder::new(64, code, DecoderOptions::NONE).decode(), &mut factory);
    assert!(touches(&[0x0f, 0x10, 0x00]), "movups xmm0, [rax]");
    assert!(touches(&[0xc5, 0xf8, 0x77]), "vzeroupper");
    assert!(touches(&[0x0f, 0x6f, 0x00]), "movq mm0, [rax]");
    assert!(touches(&[0x0f, 0x77]), "emms");
    assert!(touches(&[0xdd, 0x00]), "fld");
    assert!(touches(&[0xdb, 0xe3]), "fninit");
    assert!(!touches(&[0x48, 0x8b, 0x00]), "mov rax, [rax]");
    assert!(!touches(&[0x0f, 0xae, 0xe8]), "lfence");
    assert!(!touches(&[0xf3, 0x90]), "pause");
    assert!(!touches(&[0x0f, 0x06]), "clts");
}
