//! The segments of the linked hypervisor lie side by side, without a gap. Its memory is one range to `boot::image`, while a boot
//! loader knows only the segments: GRUB put its boot information into a gap of one page, and the hypervisor refused it there.

mod image;

use elf::ElfBytes;
use elf::endian::LittleEndian;

const PAGE: u64 = 4096;

#[test]
fn there_is_no_gap_between_segments() {
    let bytes = std::fs::read(image::path()).unwrap();
    let elf = ElfBytes::<LittleEndian>::minimal_parse(&bytes).unwrap();
    let mut loaded: Vec<_> =
        elf.segments().unwrap().iter().filter(|segment| segment.p_type == elf::abi::PT_LOAD).collect();
    loaded.sort_by_key(|segment| segment.p_paddr);
    assert!(loaded.len() >= 3, "text, constants and data");
    for pair in loaded.windows(2) {
        let end = pair[0].p_paddr + pair[0].p_memsz;
        assert_eq!(end, pair[1].p_paddr, "a gap behind {:#x}", pair[0].p_paddr);
        assert!(end.is_multiple_of(PAGE));
    }
}
