//! Images are made, and made again: same bytes.

use std::{fs, path::Path, thread::sleep, time::Duration};

use bootimg::{Boot, Entry, Error, Firmware, Image, Menu, Module, Serial, Tools};

/// What makes images, unless this machine has only a part of it.
fn tools(firmware: Firmware) -> Option<Tools> {
    match Tools::find(firmware) {
        Ok(tools) => Some(tools),
        Err(error @ Error::Missing { .. }) => {
            eprintln!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn image(firmware: Firmware) -> Image {
    let mut image = Image::new(firmware);
    image.add("boot/palimpsest", vec![7; 70_000]).unwrap();
    image.add("guests/a/palimpsest.toml", b"version = 1\n".to_vec()).unwrap();
    image.add("guests/a/vmlinuz-6.1.0+x", (0..=255).cycle().take(300_000).collect()).unwrap();
    let module = |file: &str, name: &str| Module { file: file.into(), cmdline: name.into() };
    let hypervisor = Boot::Hypervisor {
        file: "boot/palimpsest".into(),
        cmdline: "loglevel=info $x".into(),
        modules: vec![
            module("guests/a/palimpsest.toml", "palimpsest.toml"),
            module("guests/a/vmlinuz-6.1.0+x", "v"),
        ],
    };
    let native =
        Boot::Linux { kernel: "guests/a/vmlinuz-6.1.0+x".into(), cmdline: "quiet".into(), initrd: None };
    image.menu = Menu {
        entries: vec![
            Entry { title: "nested".into(), boot: hypervisor },
            Entry { title: "it's native".into(), boot: native },
        ],
        default: 1,
        timeout_s: Some(5),
        serial: Some(Serial { unit: 0, baud: 115_200 }),
    };
    image
}

/// Names, times and contents of everything in a directory.
fn tree(dir: &Path) -> Vec<u8> {
    let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    let describe = |path: &std::path::PathBuf| {
        let modified = fs::metadata(path).unwrap().modified().unwrap();
        let head = format!("{:?} {modified:?}\n", path.file_name()).into_bytes();
        [head, if path.is_dir() { tree(path) } else { fs::read(path).unwrap() }].concat()
    };
    names.iter().flat_map(describe).collect()
}

#[test]
fn the_same_image_gives_the_same_bytes_at_other_times_and_places() {
    let Some(tools) = tools(Firmware::Both) else { return };
    let make = |dir: &Path| {
        fs::create_dir_all(dir).unwrap();
        let [cd, bios, disk, net] = ["cd.iso", "bios.iso", "disk.img", "net"].map(|name| dir.join(name));
        bootimg::iso(&image(Firmware::Both), &tools, &cd).unwrap();
        bootimg::iso(&image(Firmware::Bios), &tools, &bios).unwrap();
        bootimg::usb(&image(Firmware::Both), &tools, &disk).unwrap();
        bootimg::netboot(&image(Firmware::Both), &tools, &net).unwrap();
        [cd, bios, disk]
            .map(|path| fs::read(path).unwrap())
            .into_iter()
            .chain([tree(&net)])
            .collect::<Vec<_>>()
    };
    let scratch = tempfile::tempdir().unwrap();
    let first = make(scratch.path());
    // FAT counts time by two seconds.
    sleep(Duration::from_millis(2100));
    let second = make(&scratch.path().join("a much longer path/than before"));
    for (first, second) in first.iter().zip(&second) {
        assert!(first.len() > 400_000, "{} bytes", first.len());
        let differs = first.iter().zip(second).position(|(a, b)| a != b);
        assert!(
            first == second,
            "{} and {} bytes differ from byte {differs:?} on",
            first.len(),
            second.len()
        );
    }
    let mut other = image(Firmware::Bios);
    other.add("more", vec![]).unwrap();
    let path = scratch.path().join("other.iso");
    bootimg::iso(&other, &tools, &path).unwrap();
    assert!(fs::read(path).unwrap() != first[1]);
}

#[test]
fn descriptions_that_cannot_work_are_refused() {
    let Some(tools) = tools(Firmware::Bios) else { return };
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("x.iso");
    let refused = |change: fn(&mut Image), part: &str| {
        let mut image = image(Firmware::Bios);
        change(&mut image);
        let error = bootimg::iso(&image, &tools, &path).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
        assert!(!path.exists());
    };
    refused(|image| image.menu.entries.clear(), "default entry");
    refused(|image| image.menu.default = 2, "number 3 of 2");
    refused(|image| image.label = "palimpsest".into(), "label");
    refused(|image| image.epoch = 0, "1980");
    refused(|image| image.menu.serial = Some(Serial { unit: 4, baud: 9600 }), "serial port 4");
    refused(|image| image.menu.entries[0].title = "new\nline".into(), "title");
    refused(
        |image| {
            image.menu.entries[1].boot =
                Boot::Linux { kernel: "none".into(), cmdline: String::new(), initrd: None }
        },
        "\"it's native\": there is no file none",
    );
    refused(
        |image| {
            let kernel = "boot/palimpsest".into();
            image.menu.entries[1].boot = Boot::Linux { kernel, cmdline: "a='b'".into(), initrd: None }
        },
        "quote",
    );
    let mut image = image(Firmware::Bios);
    for (path, part) in [
        ("../etc/passwd", "cannot be a path"),
        ("/boot/x", "cannot be a path"),
        ("a b", "cannot be a path"),
        ("", "cannot be a path"),
        ("boot/Palimpsest", "taken"),
        ("boot/palimpsest/x", "taken"),
        ("guests", "taken"),
        ("boot/grub/grub.cfg", "taken"),
    ] {
        let error = image.add(path, vec![]).unwrap_err().to_string();
        assert!(error.contains(part), "{path}: {error}");
    }
}

#[test]
fn what_is_no_plain_file_is_written_to() {
    let Some(tools) = tools(Firmware::Bios) else { return };
    let scratch = tempfile::tempdir().unwrap();
    let (pipe, file) = (scratch.path().join("pipe"), scratch.path().join("x.iso"));
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let reader = std::thread::spawn({
        let pipe = pipe.clone();
        move || fs::read(pipe).unwrap()
    });
    bootimg::iso(&image(Firmware::Bios), &tools, &pipe).unwrap();
    bootimg::iso(&image(Firmware::Bios), &tools, &file).unwrap();
    assert!(reader.join().unwrap() == fs::read(&file).unwrap());
    assert!(!fs::metadata(&pipe).unwrap().is_file());
    let error = bootimg::iso(&image(Firmware::Bios), &tools, &scratch.path().join("no/x.iso")).unwrap_err();
    assert!(error.to_string().contains("no/x.iso"), "{error}");
}
