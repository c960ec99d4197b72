//! Random operations, with the priority resolver checked against a plain search.

use super::Pic;
use crate::device::fuzz::Input;

const PORTS: [u16; 8] = [0x20, 0x21, 0xa0, 0xa1, 0x4d0, 0x4d1, 0x20, 0xa0];

/// Interprets `data` as port accesses, line changes and acknowledges.
pub fn fuzz_one(data: &[u8]) {
    let mut input = Input::new(data);
    let mut pic = Pic::new();
    while let Some(op) = input.byte() {
        let argument = op >> 3;
        match op & 7 {
            0 | 1 => pic.write(PORTS[usize::from(argument & 7)], input.byte().unwrap_or(0)),
            2 => {
                let _ = pic.read(PORTS[usize::from(argument & 7)]);
            }
            3 => pic.pulse(argument),
            4 => {
                let requested = pic.output();
                let bases = [pic.master.vector(Some(0)), pic.slave.vector(Some(0))];
                let vector = pic.acknowledge();
                assert!(bases.contains(&(vector & 0xf8)));
                assert!(requested || vector == bases[0] | 7, "not the spurious interrupt");
            }
            _ => pic.set_line(argument, input.byte().unwrap_or(0) & 1 != 0),
        }
        pic.master.check();
        pic.slave.check();
        assert_eq!(pic.master.line(super::CASCADE), pic.slave.output());
    }
}
