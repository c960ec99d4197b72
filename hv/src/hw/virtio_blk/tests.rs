//! The driver against a device that follows the standard, and against such as do not.

use super::*;

/// What is wrong with the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    Nothing,
    /// It says that requests fail.
    Fails,
    /// It never answers.
    IsSilent,
    /// It counts requests without doing them.
    OnlyCounts,
    /// It does each as it should, when the driver has looked at the clock as often as this.
    IsLate(u64),
}

/// A device: what it has of its queue, and a disk.
#[derive(Debug)]
struct Device {
    entries: u16,
    queue: u64,
    status: u8,
    seen: u16,
    disk: Vec<u8>,
    wrong: Wrong,
    clock: u64,
    /// When it does what it has been told of.
    due: Option<u64>,
}

fn at<T: Copy>(address: u64) -> T {
    // SAFETY: the test's own memory, or what the driver made of it.
    unsafe { (address as *const T).read_unaligned() }
}

fn set<T: Copy>(address: u64, value: T) {
    // SAFETY: as above.
    unsafe { (address as *mut T).write_unaligned(value) }
}

impl Device {
    fn serve(&mut self) {
        assert_eq!(self.status, ACKNOWLEDGE | DRIVER | DRIVER_OK);
        let ring = self.queue + 16 * u64::from(self.entries);
        let used = (ring + 4 + 2 * u64::from(self.entries) + 2).next_multiple_of(4096);
        assert_eq!(at::<u16>(ring), NO_INTERRUPT);
        while at::<u16>(ring + 2) != self.seen && self.wrong != Wrong::IsSilent {
            let head: u16 = at(ring + 4 + 2 * u64::from(self.seen % self.entries));
            if self.wrong != Wrong::OnlyCounts {
                self.execute(head);
            }
            set(used + 4 + 8 * u64::from(self.seen % self.entries), [u32::from(head), 1]);
            self.seen = self.seen.wrapping_add(1);
            set(used + 2, self.seen);
        }
    }

    fn execute(&mut self, head: u16) {
        let descriptor = |index: u16| {
            let entry = self.queue + 16 * u64::from(index);
            (at::<u64>(entry), at::<u32>(entry + 8) as usize, at::<u16>(entry + 12), at::<u16>(entry + 14))
        };
        let (header, size, flags, next) = descriptor(head);
        assert_eq!((size, flags), (16, NEXT));
        let (data, length, flags, last) = descriptor(next);
        let (status, size, status_flags, _) = descriptor(last);
        assert_eq!((size, status_flags), (1, DEVICE_WRITES));
        let (kind, sector): (u32, u64) = (at(header), at(header + 8));
        let place = sector as usize * SECTOR;
        let failed = u8::from(self.wrong == Wrong::Fails);
        for n in 0..length {
            match kind {
                READ => set(data + n as u64, self.disk[place + n]),
                _ => self.disk[place + n] = at(data + n as u64),
            }
        }
        assert_eq!(flags, if kind == READ { NEXT | DEVICE_WRITES } else { NEXT });
        set(status, failed);
    }
}

impl Registers for &mut Device {
    fn read32(&mut self, register: u16) -> u32 {
        match register {
            register::SECTORS_LOW => (self.disk.len() / SECTOR) as u32,
            _ => 0,
        }
    }

    fn read16(&mut self, _: u16) -> u16 {
        self.entries
    }

    fn write32(&mut self, register: u16, value: u32) {
        assert!(matches!((register, value), (register::QUEUE_FRAME, 7) | (register::DRIVER_FEATURES, 0)));
    }

    fn write16(&mut self, register: u16, _: u16) {
        match self.wrong {
            _ if register != register::NOTIFY => {}
            Wrong::IsLate(looks) => self.due = Some(self.clock + looks),
            _ => self.serve(),
        }
    }

    fn write8(&mut self, _: u16, value: u8) {
        self.status = value;
    }

    fn now(&mut self) -> u64 {
        self.clock += 1;
        if self.due.take_if(|due| *due <= self.clock).is_some() {
            self.serve();
        }
        self.clock
    }

    // A program's addresses have more bits than a frame's number has room for.
    fn frame(&self, queue: u64) -> Option<u32> {
        (queue == self.queue).then_some(7)
    }
}

/// Runs `test` with a driver of a device of 64 sectors.
fn with(entries: u16, wrong: Wrong, test: impl FnOnce(Option<VirtioBlk<&mut Device>>)) {
    let memory = vec![0u8; QUEUE_BYTES + MOST + 2 * PAGE];
    let queue = (memory.as_ptr() as u64).next_multiple_of(PAGE as u64);
    let disk = (0..64 * SECTOR).map(|n| (n / SECTOR) as u8).collect();
    let mut device = Device { entries, queue, status: 0, seen: 0, disk, wrong, clock: 0, due: None };
    // SAFETY: as large and as aligned as is asked for, and there until the test ends.
    test(unsafe { VirtioBlk::start(&mut device, queue, queue + QUEUE_BYTES as u64, 100) });
}

#[test]
fn what_is_written_is_read_again() {
    for entries in [4, 128, 256] {
        with(entries, Wrong::Nothing, |disk| {
            let mut disk = disk.expect("the device is as it should be");
            assert_eq!(disk.sectors(), 64);
            let mut out = [0; 2 * SECTOR];
            assert_eq!(disk.read(5, &mut out), Ok(()));
            assert_eq!((out[0], out[SECTOR - 1], out[SECTOR]), (5, 5, 6));
            // More requests than the ring has places, and than a byte counts.
            for round in 0..600u32 {
                let sector = u64::from(round % 60);
                let bytes = [round as u8; SECTOR];
                assert_eq!(disk.write(sector, &bytes), Ok(()));
                let mut out = [0; SECTOR];
                assert_eq!((disk.read(sector, &mut out), out), (Ok(()), bytes));
            }
        });
    }
}

#[test]
fn a_slow_device_is_waited_for_and_nothing_is_lost() {
    let sectors = |round: u8| -> Vec<u8> { (0..3 * SECTOR).map(|n| (n as u8).wrapping_mul(round)).collect() };
    // The first look is at the begin of the wait: up to 100 ticks later it is not given up.
    for looks in [2, 50, 101] {
        with(4, Wrong::IsLate(looks), |disk| {
            let mut disk = disk.expect("it starts");
            let mut before = disk.registers.now();
            for round in 0..60u8 {
                let place = u64::from(round % 20) * 3;
                assert_eq!(disk.write(place, &sectors(round)), Ok(()), "{looks}");
                let mut out = vec![0; 3 * SECTOR];
                assert_eq!(disk.read(place, &mut out), Ok(()), "{looks}");
                assert!(out == sectors(round), "{looks}: {round}");
                // What was written before is there, too, and what nothing was written to.
                let older = round.saturating_sub(19);
                assert_eq!(disk.read(u64::from(older % 20) * 3, &mut out), Ok(()), "{looks}");
                assert!(out == sectors(older), "{looks}: {older} in round {round}");
                assert_eq!(disk.read(60, &mut out[..SECTOR]), Ok(()), "{looks}");
                assert!(out[..SECTOR] == [60; SECTOR], "{looks}: {round}");
                let now = disk.registers.now();
                assert!(now - before > 4 * looks, "it has answered at once");
                before = now;
            }
        });
    }
}

#[test]
fn a_device_that_answers_after_it_was_given_up_is_not_asked_again() {
    with(128, Wrong::IsLate(104), |disk| {
        let mut disk = disk.expect("it starts");
        assert_eq!(disk.read(7, &mut [0; SECTOR]), Err(Error::Dead));
        // It does the request now, and the driver takes it for no answer to a later one.
        let answered = disk.registers.seen;
        disk.registers.now();
        disk.registers.now();
        assert_eq!(disk.registers.seen, answered + 1);
        assert_eq!(disk.read(7, &mut [0; SECTOR]), Err(Error::Dead));
        assert_eq!(disk.write(7, &[1; SECTOR]), Err(Error::Dead));
        assert!(disk.registers.due.is_none() && disk.registers.disk[7 * SECTOR] == 7);
    });
}

#[test]
fn what_is_not_on_the_disk_is_refused() {
    with(128, Wrong::Nothing, |disk| {
        let mut disk = disk.expect("the device is as it should be");
        let mut out = vec![0; 2 * MOST];
        for (sector, length) in
            [(64, SECTOR), (63, 2 * SECTOR), (u64::MAX, SECTOR), (0, 100), (0, 0), (0, 2 * MOST)]
        {
            assert_eq!(disk.read(sector, &mut out[..length]), Err(Error::Range), "{sector} {length}");
            assert_eq!(disk.write(sector, &out[..length]), Err(Error::Range), "{sector} {length}");
        }
        assert_eq!(disk.read(63, &mut out[..SECTOR]), Ok(()));
    });
}

#[test]
fn a_device_that_fails_says_so_and_one_that_is_dead_is_left_alone() {
    for (wrong, first, then) in [
        (Wrong::Fails, Error::Device, Error::Device),
        (Wrong::IsSilent, Error::Dead, Error::Dead),
        (Wrong::OnlyCounts, Error::Dead, Error::Dead),
    ] {
        with(128, wrong, |disk| {
            let mut disk = disk.expect("it starts");
            assert_eq!(disk.write(0, &[1; SECTOR]), Err(first), "{wrong:?}");
            let before = disk.registers.now();
            assert_eq!(disk.read(0, &mut [0; SECTOR]), Err(then), "{wrong:?}");
            assert!(then == Error::Device || disk.registers.now() == before + 1, "it was asked again");
        });
    }
}

#[test]
fn a_queue_that_has_no_room_is_refused() {
    for entries in [0, 2, 512] {
        with(entries, Wrong::Nothing, |disk| assert!(disk.is_none(), "{entries}"));
    }
}
