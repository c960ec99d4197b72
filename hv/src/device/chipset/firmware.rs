//! The devices as a BIOS leaves them to a boot loader, for guests that expect one.

use super::super::Nanos;
use super::super::layout::{PIC_MASTER, PIC_SLAVE};
use super::super::message::Messages;
use super::{Chipset, Timed};

/// The PICs' ICW1 to ICW4 and masks: vectors 8 and 70h; timer, keyboard, cascade and disk, and clock, mouse, coprocessor and
/// disk are open. SeaBIOS leaves the same on QEMU's PC.
const PICS: [(u16, [u8; 5]); 2] =
    [(PIC_MASTER, [0x11, 0x08, 0x04, 0x01, 0xb8]), (PIC_SLAVE, [0x11, 0x70, 0x02, 0x01, 0x8e])];

/// Counter 0: both bytes, mode 2, binary; 0 stands for 65536, which makes 18.2 interrupts a second.
const TIMER: [(u16, u8); 3] = [(3, 0x34), (0, 0), (0, 0)];

impl Chipset {
    /// Sets PICs and PIT up, after power-on or [`Chipset::reset`]. The I/O APIC stays masked: no message comes of this.
    pub fn set_up_as_bios(&mut self, now: Nanos) {
        for (port, [icw1, rest @ ..]) in PICS {
            self.pic.write(port, icw1);
            rest.into_iter().for_each(|word| self.pic.write(port + 1, word));
        }
        for (register, value) in TIMER {
            self.pit.write(register, value, now);
        }
        let mut none = Messages::new();
        self.changed(Timed::Pit, now, &mut none);
        debug_assert!(none.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use super::super::Options;
    use super::*;

    #[test]
    fn the_timer_ticks_18_times_a_second() {
        let mut chipset = Chipset::new(&Options::default());
        let mut messages = Messages::new();
        let start = Nanos(1_000_000_000);
        chipset.set_up_as_bios(start);
        assert_eq!((chipset.pic.read(PIC_MASTER + 1), chipset.pic.read(PIC_SLAVE + 1)), (0xb8, 0x8e));
        let mut ticks = 0;
        while let Some(deadline) = chipset.deadline().filter(|deadline| *deadline < Nanos(11_000_000_000)) {
            assert!(deadline > start);
            chipset.tick(deadline, &mut messages);
            while chipset.intr_output() {
                assert_eq!(chipset.pic_acknowledge(), 0x08);
                chipset.pic.write(PIC_MASTER, 0x20);
                ticks += 1;
            }
        }
        assert!(messages.is_empty(), "the I/O APIC is masked");
        assert_eq!(ticks, 182);
    }
}
