//! The block device against a plain vector.

use proptest::prelude::*;

use super::driver::BUFFERS;
use super::*;

const SECTORS: u64 = 37;
const DATA: u64 = BUFFERS + 0x1000;

/// Sends a request with `data` cut into `pieces`; its status.
fn request(driver: &mut Driver, kind: u32, sector: u64, len: u32, pieces: u32) -> (u8, u32) {
    let mut header = [0; 16];
    header[..4].copy_from_slice(&kind.to_le_bytes());
    header[8..].copy_from_slice(&sector.to_le_bytes());
    driver.put(BUFFERS, &header);
    driver.put(BUFFERS + 16, &[0xff]);
    let piece = len / pieces + 1;
    let data = (0..pieces).map(|n| (DATA + u64::from(n * piece), piece.min(len - (n * piece).min(len))));
    let mut chain =
        Chain { readable: vec![(BUFFERS, 10), (BUFFERS + 10, 6)], writable: vec![], indirect: true };
    if kind == 1 { &mut chain.readable } else { &mut chain.writable }.extend(data);
    chain.writable.push((BUFFERS + 16, 1));
    let written = driver.request(0, &chain);
    (driver.bytes(BUFFERS + 16, 1)[0], written)
}

proptest! {
    #[test]
    fn a_disk_keeps_what_is_written(
        ops in prop::collection::vec((any::<bool>(), 0..SECTORS + 2, 0u32..12, 1u32..9, any::<u8>()), 1..60),
    ) {
        let mut driver = with_disk(SECTORS as usize, false);
        let mut model: Vec<u8> = disk_bytes(SECTORS as usize).to_vec();
        for (write, sector, sectors, pieces, byte) in ops {
            let len = sectors * 512;
            let range = sector as usize * 512..(sector as usize * 512 + len as usize);
            let fits = range.end <= model.len();
            if write {
                let data: Vec<u8> = (0..len).map(|n| byte.wrapping_add((n / 7) as u8)).collect();
                driver.put(DATA, &data);
                let expected = if fits { (0, 1) } else { (1, 1) };
                prop_assert_eq!(request(&mut driver, 1, sector, len, pieces), expected);
                if fits {
                    model[range].copy_from_slice(&data);
                }
            } else {
                let expected = if fits { (0, len + 1) } else { (1, 1) };
                prop_assert_eq!(request(&mut driver, 0, sector, len, pieces), expected);
                if fits {
                    prop_assert_eq!(driver.bytes(DATA, len as usize), &model[range]);
                }
            }
        }
    }
}

#[test]
fn the_configuration_tells_the_size() {
    let driver = with_disk(SECTORS as usize, false);
    let config = function::CONFIG.start;
    assert_eq!(driver.read(config, 8), SECTORS);
    assert_eq!((driver.read(config + 8, 4), driver.read(config + 12, 4)), (8192, 126));
    assert_eq!((driver.read(config + 20, 4), driver.read(config + 60, 4)), (512, 0));
}

#[test]
fn requests_that_cannot_be_done_say_so() {
    let mut driver = with_disk(SECTORS as usize, false);
    assert_eq!(request(&mut driver, 0, 0, 100, 1), (1, 1), "no whole sector");
    assert_eq!(request(&mut driver, 0, u64::MAX, 512, 1), (1, 1));
    assert_eq!(request(&mut driver, 0, u64::MAX >> 9, 512, 1), (1, 1));
    assert_eq!(request(&mut driver, 13, 0, 512, 1), (2, 1), "unknown");
    assert_eq!(request(&mut driver, 8, 0, 19, 1), (1, 1), "a name is 20 bytes");
    let mut driver = with_disk(SECTORS as usize, true);
    assert_eq!(request(&mut driver, 1, 0, 512, 1), (1, 1), "read-only");
    assert_eq!(request(&mut driver, 0, 3, 512, 2), (0, 513));
    assert_eq!(driver.bytes(DATA, 512), [3; 512]);
}

#[test]
fn a_file_of_any_length_is_filled_up_with_zeroes() {
    let mut disk = disk::RamDisk::new(&[7; 5000], false, &PAGES);
    assert_eq!(disk.sectors(), 10);
    let read = |disk: &disk::RamDisk| {
        let mut bytes = vec![];
        disk.read(0, 5120, |at, piece| {
            assert_eq!(at, bytes.len() as u64);
            bytes.extend_from_slice(piece);
            Ok::<_, ()>(())
        })
        .unwrap();
        bytes
    };
    assert_eq!(read(&disk), [[7; 5000].as_slice(), &[0; 120]].concat());
    disk.write(5000, 120, |_, piece| {
        piece.fill(9);
        Ok::<_, ()>(())
    })
    .unwrap();
    assert_eq!(read(&disk), [[7; 5000].as_slice(), &[9; 120]].concat());
    assert_eq!(disk.pages_written(), 1);
    assert!(disk.read(0, 5121, |_, _| Ok::<_, ()>(())).is_err());
}

/// A medium that others can look at.
#[derive(Debug)]
struct Shown(Vec<u8>, std::sync::Arc<std::sync::Mutex<Vec<u8>>>);

impl disk::Medium for Shown {
    fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.1.lock().unwrap().clone_from(&self.0);
    }
}

#[test]
fn a_medium_holds_what_is_written_in_its_place() {
    let seen = std::sync::Arc::default();
    let medium = |bytes: usize| Box::new(Shown(vec![7; bytes], std::sync::Arc::clone(&seen)));
    // The end of the last sector is missing, so the sector is.
    assert_eq!(disk::RamDisk::in_place(medium(1023), false).sectors(), 1);
    let mut driver = driver_of(disk::RamDisk::in_place(medium(32 * 512), false));
    driver.put(DATA, &[0xaa; 1024]);
    assert_eq!(request(&mut driver, 1, 7, 1024, 3), (0, 1), "across two pages");
    assert_eq!(request(&mut driver, 1, 31, 1024, 1), (1, 1), "beyond the end");
    assert_eq!(request(&mut driver, 4, 0, 0, 1), (0, 1), "a flush has nothing left to do");
    assert_eq!(request(&mut driver, 0, 6, 1024, 2), (0, 1025));
    assert_eq!(driver.bytes(DATA, 1024), [[7; 512], [0xaa; 512]].concat());
    drop(driver);
    let expected = [vec![7; 7 * 512], vec![0xaa; 1024], vec![7; 23 * 512]].concat();
    assert!(*seen.lock().unwrap() == expected);
    let mut driver = driver_of(disk::RamDisk::in_place(medium(4096), true));
    assert_eq!(request(&mut driver, 1, 0, 512, 1), (1, 1), "read-only");
    assert_eq!(request(&mut driver, 0, 0, 512, 1), (0, 513));
}

#[test]
fn writes_survive_a_reset() {
    let mut driver = with_disk(8, false);
    driver.put(DATA, &[0xaa; 512]);
    assert_eq!(request(&mut driver, 1, 2, 512, 1), (0, 1));
    driver.devices.reset();
    driver.configure(true, true);
    driver.start(VERSION_1 | INDIRECT);
    assert_eq!(request(&mut driver, 0, 2, 512, 1), (0, 513));
    assert_eq!(driver.bytes(DATA, 512), [0xaa; 512]);
}

#[test]
fn without_memory_writes_fail_and_what_was_written_stays() {
    static TWO: disk::FewPages = disk::FewPages::new(2);
    let disk = disk::RamDisk::new(disk_bytes(32), false, &TWO);
    assert_eq!(TWO.left(), 2, "nothing is taken before it is written");
    let mut driver = driver_of(disk);
    let write = |driver: &mut Driver, sector: u64, byte: u8| {
        driver.put(DATA, &[byte; 512]);
        request(driver, 1, sector, 512, 1)
    };
    // Pages have eight sectors.
    assert_eq!([0, 1, 9].map(|sector| write(&mut driver, sector, 0xaa)), [(0, 1); 3]);
    assert_eq!([17, 25].map(|sector| write(&mut driver, sector, 0xbb)), [(1, 1); 2], "no page is left");
    assert_eq!(write(&mut driver, 10, 0xcc), (0, 1), "it has its page");
    for (sector, byte) in [(0, 0xaa), (1, 0xaa), (2, 2), (9, 0xaa), (10, 0xcc), (17, 17), (25, 25)] {
        assert_eq!(request(&mut driver, 0, sector, 512, 1), (0, 513));
        assert_eq!(driver.bytes(DATA, 512), [byte; 512], "sector {sector}");
    }
    driver.devices.reset();
    assert_eq!(TWO.left(), 0, "a reset keeps them");
    drop(driver);
    assert_eq!(TWO.left(), 2);
}
