use super::*;
use crate::{Boot, Entry, Firmware, Image, Menu, Tools};
use proptest::prelude::*;

/// An ISO and a disk image, small enough to be damaged often: the disk's cut after its first files.
fn images() -> Option<Vec<Vec<u8>>> {
    let tools = match Tools::find(Firmware::Both) {
        Ok(tools) => tools,
        Err(error) => {
            eprintln!("skipped: {error}");
            return None;
        }
    };
    let mut image = Image::new(Firmware::Both);
    image.add("boot/palimpsest", vec![3; 5000]).unwrap();
    image
        .add("guests/debian/a-name-that-is-long-enough-for-more-entries.toml", b"version = 1".to_vec())
        .unwrap();
    let boot = Boot::Hypervisor { file: "boot/palimpsest".into(), cmdline: String::new(), modules: vec![] };
    image.menu = Menu { entries: vec![Entry { title: "one".into(), boot }], ..Menu::default() };
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("image");
    let read = |made: Result<(), Error>| {
        made.unwrap();
        let found = inspect(&path).unwrap();
        assert_eq!((found.label.as_str(), found.bios, found.uefi), ("PALIMPSEST", true, true));
        let size = |name: &str| found.files.iter().find(|(path, _)| path == name).map(|(_, size)| *size);
        assert_eq!(size("boot/palimpsest"), Some(5000));
        let toml = "guests/debian/a-name-that-is-long-enough-for-more-entries.toml";
        assert_eq!(found.read(toml, 100).unwrap(), b"version = 1");
        assert!(found.read(toml, 10).is_err() && found.read("none", 10).is_err());
        assert_eq!(found.menu().unwrap().entries[0].commands[0].file, "boot/palimpsest");
        fs::read(&path).unwrap()
    };
    let iso = read(crate::iso(&image, &tools, &path));
    let mut disk = read(crate::usb(&image, &tools, &path));
    disk.truncate(4 << 20);
    let net = scratch.path().join("net");
    crate::netboot(&image, &tools, &net).unwrap();
    let found = inspect(&net).unwrap();
    assert!(found.kind == Kind::Netboot && found.bios && found.uefi);
    assert!(found.files.iter().any(|file| *file == ("boot/palimpsest".into(), 5000)));
    assert!(inspect(scratch.path()).is_err() && inspect(&scratch.path().join("none")).is_err());
    Some(vec![iso, disk])
}

/// The bytes that are not zero are where damage matters.
fn places(image: &[u8], from: usize, to: usize) -> Vec<usize> {
    (from..to.min(image.len())).filter(|at| image[*at] != 0).collect()
}

#[test]
fn images_are_read_back_and_damage_is_survived() {
    let Some(images) = images() else { return };
    // Descriptors and directories of the ISO; boot sectors, tables and directories of the disk.
    let interesting = [places(&images[0], 0x8000, 0x20000), places(&images[1], 440, 0x40_0000)];
    let runs: usize = std::env::var("SOAK").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random as usize
    };
    for (image, places) in images.iter().zip(&interesting) {
        for _ in 0..300 * runs {
            let mut damaged = image.clone();
            for _ in 0..next() % 8 {
                damaged[places[next() % places.len()]] = [0, 0xff, next() as u8][next() % 3];
            }
            if next() % 4 == 0 {
                damaged.truncate(next() % image.len());
            }
            check(&damaged);
        }
    }
}

proptest! {
    #[test]
    fn noise_is_survived(data in prop::collection::vec(any::<u8>(), 0..2000), kind in 0..4) {
        let mut data = data;
        match kind {
            0 => data.splice(0..0, *b"\x7fELF\x02\x01").for_each(drop),
            1 => {
                data.splice(0..0, vec![0; 0x8000]);
                data.splice(0x8000..0x8000, *b"\x01CD001\x01");
                data.resize(0x9000, 0);
            }
            2 => data.splice(0..0, *b"menuentry 'x' {\nif serial --").for_each(drop),
            _ => {
                data.resize(0x1000, 0);
                data[510..512].copy_from_slice(&[0x55, 0xaa]);
            }
        }
        fuzz_one(&data);
    }
}

#[test]
fn the_volumes_around_noise_are_volumes() {
    let mut record = vec![34 + 4, 0, 18, 0, 0, 0, 0, 0, 0, 0, 10];
    record.resize(32, 0);
    record.extend(b"\x03A;1");
    record.resize(38, 0);
    let (found, _) = examine(&&iso_around(&record)[..]).ok().unwrap();
    assert_eq!(found.files, [("A".to_owned(), 10)]);
    let mut entry = b"NAME    TXT\0".to_vec();
    entry.resize(26, 0);
    entry.extend([2, 0, 44, 1, 0, 0]);
    entry.resize(64, 0);
    let image = &fat_around(&entry)[..];
    let (found, places) = examine(&image).ok().unwrap();
    assert_eq!(found.files, [("NAME.TXT".to_owned(), 300)]);
    let Places::Fat(geometry, clusters) = places else { panic!("it is FAT") };
    assert_eq!(geometry.read(&image, clusters[0], Some(300)).unwrap().len(), 300);
}
