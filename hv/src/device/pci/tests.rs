use super::*;

fn select(pci: &mut Pci, devfn: u8, register: u8) {
    pci.write_address(ENABLE | u32::from(devfn) << 8 | u32::from(register));
}

#[test]
fn mechanism_1_finds_the_host_bridge() {
    let mut pci = Pci::new();
    pci.write_address(ENABLE);
    assert_eq!(pci.read_address(), ENABLE, "how software detects the mechanism");
    assert_eq!(pci.read_data(0, 4), 0x0d57_8086);
    assert_eq!(pci.read_data(2, 2), 0x0d57);
    assert_eq!(pci.read_data(1, 1), 0x80);
    pci.write_address(ENABLE | 0x08);
    assert_eq!(pci.read_data(0, 4) >> 16, 0x0600, "class: host bridge");
    pci.write_address(0);
    assert_eq!(pci.read_data(0, 4), 0xffff_ffff, "disabled");
    pci.write_address(0xffff_ffff);
    assert_eq!(pci.read_address(), 0x80ff_fffc);
}

#[test]
fn absent_functions_read_all_ones() {
    let mut pci = Pci::new();
    for address in [ENABLE | 1 << 8, ENABLE | 1 << 11, ENABLE | 1 << 16, ENABLE | 0xff_ff00] {
        pci.write_address(address);
        assert_eq!(pci.read_data(0, 4), 0xffff_ffff);
        assert_eq!(pci.read_data(2, 1), 0xff);
        pci.write_data(0, 4, 0);
    }
    assert_eq!(pci.read_ecam(1 << 20, 2), 0xffff);
    assert_eq!(pci.read_ecam(0x100, 4), 0xffff_ffff, "no extended space");
}

#[test]
fn ecam_reaches_the_same_space() {
    let mut pci = Pci::new();
    assert_eq!(pci.read_ecam(0, 4), 0x0d57_8086);
    assert_eq!(pci.read_ecam(0, 8), 0x0d57_8086);
    pci.write_ecam(0x3c, 1, 0x0b);
    select(&mut pci, 0, 0x3c);
    assert_eq!(pci.read_data(0, 1), 0x0b);
    pci.write_ecam(0, 8, 0);
    assert_eq!(pci.read_ecam(0, 4), 0x0d57_8086, "identity is read-only");
    pci.write_ecam(4, 2, 0xffff);
    assert_eq!(pci.read_ecam(4, 4), 0x0507);
}

#[test]
fn base_addresses_tell_their_size_and_decode() {
    let mut pci = Pci::new();
    let function = Function::new(0x1af4, 0x1041, 0x02_0000)
        .with_bar(0, Bar::Io(64))
        .with_bar(1, Bar::Memory32(4096))
        .with_bar(4, Bar::Memory64(1 << 33));
    assert_eq!(pci.plug(8, function), Ok(()));
    for (register, all_ones) in
        [(0x10, 0xffff_ffc1), (0x14, 0xffff_f000), (0x18, 0), (0x20, 0x0c), (0x24, 0xffff_fffe)]
    {
        select(&mut pci, 8, register);
        pci.write_data(0, 4, 0xffff_ffff);
        assert_eq!(pci.read_data(0, 4), all_ones, "{register:#x}");
    }
    let write = |pci: &mut Pci, register, value| {
        select(pci, 8, register);
        pci.write_data(0, 4, value);
    };
    write(&mut pci, 0x10, 0xc000);
    write(&mut pci, 0x14, 0xc000_1234);
    write(&mut pci, 0x20, 0);
    write(&mut pci, 0x24, 0x40);
    let bars = |pci: &Pci| [0, 1, 2, 4, 5, 6].map(|index| pci.function(0, 8).unwrap().bar(index));
    assert_eq!(bars(&pci)[..4], [None; 4]);
    write(&mut pci, 0x04, 3);
    let decoded = [Some(0xc000), Some(0xc000_1000), None, Some(0x40_0000_0000)];
    assert_eq!(bars(&pci)[..4], decoded);
    assert_eq!(bars(&pci)[5], None);
    pci.reset();
    assert_eq!(bars(&pci)[..4], [None; 4]);
    select(&mut pci, 8, 0x10);
    assert_eq!(pci.read_data(0, 4), 1);
}

#[test]
fn plugging() {
    let mut pci = Pci::new();
    let function = || Function::new(1, 2, 0);
    assert_eq!(pci.plug(0, function()), Err(PlugError::Taken));
    assert_eq!(pci.plug(1, function()), Ok(()));
    assert_eq!(pci.read_ecam(0x0e, 1), 0x80, "function 0 says that there are more");
    for devfn in 2..MAX_FUNCTIONS as u8 {
        assert_eq!(pci.plug(devfn * 8, function()), Ok(()));
    }
    assert_eq!(pci.plug(255, function()), Err(PlugError::Full));
}

#[test]
fn survives_arbitrary_accesses() {
    crate::device::fuzz::run(2000, 300, fuzz_one);
}
