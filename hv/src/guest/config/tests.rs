use super::*;
use abi::config::keys;
use proptest::prelude::*;

const MINIMAL: &str = "version = 1\n[[vm]]\nname = \"a\"\nkernel = \"k\"\nmemory_mib = 64\n";

fn message(text: &str) -> String {
    Config::parse(text.as_bytes()).unwrap_err().to_string()
}

#[test]
fn fills_in_defaults() {
    let config = Config::parse(MINIMAL.as_bytes()).unwrap();
    let vm = &config.vm[0];
    assert_eq!((vm.vcpus, vm.mode, vm.protocol, vm.pv_clock), (1, Mode::Nested, Protocol::Auto, true));
    assert!(
        vm.initrd.is_none() && vm.modules.is_empty() && !vm.permissive_msr && !vm.test_device && !vm.restart
    );
}

#[test]
fn reads_every_key() {
    let text = format!(
        "{MINIMAL}initrd = \"i\"\ncmdline = \"console=ttyS0\"\nvcpus = 4\nmode = \"nested\"\n\
         protocol = \"multiboot1\"\npermissive_msr = true\ntest_device = true\npv_clock = false\n\
         restart = true\n\
         modules = [{{ file = \"m\", cmdline = \"m 1\" }}, {{ file = \"n\" }}]\n"
    );
    let as_tables = text.replace("modules = [{ file = \"m\", cmdline = \"m 1\" }, { file = \"n\" }]\n", "")
        + "[[vm.modules]]\nfile = \"m\"\ncmdline = \"m 1\"\n\n[[vm.modules]]\nfile = \"n\"\n";
    assert_eq!(Config::parse(text.as_bytes()), Config::parse(as_tables.as_bytes()));
    let vm = &Config::parse(text.as_bytes()).unwrap().vm[0];
    assert_eq!(vm.protocol, Protocol::Multiboot1);
    assert_eq!(vm.modules[0], ModuleConfig { file: "m".into(), cmdline: "m 1".into() });
    assert_eq!(vm.modules[1].cmdline, "");
    assert_eq!(vm.mitigations, Mitigations::Auto);
    let off = Config::parse(format!("{MINIMAL}mitigations = \"off\"\n").as_bytes()).unwrap();
    assert_eq!(off.vm[0].mitigations, Mitigations::Off);
    assert!(message(&format!("{MINIMAL}mitigations = \"on\"\n")).contains("use one of auto, off"));
    assert!(vm.permissive_msr && vm.test_device && vm.restart && !vm.pv_clock && vm.vcpus == 4);
    assert_eq!(vm.overcommit, None);
}

#[test]
fn reads_devices() {
    let text = format!(
        "{MINIMAL}disks = [{{ file = \"root\" }}, {{ file = \"data\", read_only = true }}]\n\
         networks = [\"lan\", \"lan\"]\nconsole = \"virtio\"\nentropy = true\n"
    );
    let devices = &Config::parse(text.as_bytes()).unwrap().vm[0].devices;
    assert_eq!(devices.disks[0], DiskConfig { source: DiskSource::File("root".into()), read_only: false });
    assert_eq!(devices.disks[1], DiskConfig { source: DiskSource::File("data".into()), read_only: true });
    assert_eq!(devices.networks, ["lan", "lan"]);
    assert_eq!((devices.console, devices.entropy), (Console::Virtio, true));
    let none = &Config::parse(MINIMAL.as_bytes()).unwrap().vm[0].devices;
    assert_eq!(*none, DeviceConfig::default());
    for (line, complaint) in [
        ("disks = [\"root\"]", "`disks` must be an array of tables"),
        ("disks = [{ file = \"\" }]", "`disks.file` is empty"),
        ("disks = [{ address = 0x1_0000_0000 }]", "`file` is missing"),
        ("disks = [{ file = \"a\", address = 0x1_0000_0000, bytes = 512 }]", "unknown key `file`"),
        ("disks = [{ address = 0x1_0000_0200, bytes = 512 }]", "`disks.address` is 0x100000200; it must"),
        ("disks = [{ address = 0xffff_f000, bytes = 512 }]", "`disks.address` is 0xfffff000; it must"),
        ("disks = [{ address = 0x1_0000_0000, bytes = 0 }]", "`disks.bytes` is 0; it must"),
        ("disks = [{ address = 0x1_0000_0000, bytes = 513 }]", "`disks.bytes` is 513; it must"),
        ("disks = [{ address = 0x7fff_ffff_f000, bytes = 4608 }]", "`disks.bytes` is 4608; it must"),
        (
            "disks = [{ address = 0x1_0000_1000, bytes = 512 }, { address = 0x1_0000_0000, bytes = 4608 }]",
            "`disks.address` 0x100001000 is memory of another disk",
        ),
        ("disks = [{ file = \"a\", readonly = true }]", "unknown key `readonly`"),
        ("networks = \"lan\"", "`networks` must be an array of strings"),
        ("networks = [\"a b\"]", "`networks` must name switches"),
        ("networks = [\"a\", \"a\", \"a\", \"a\", \"a\"]", "`networks` has 5 entries; the most is 4"),
        ("console = \"tty\"", "use one of serial, virtio"),
        ("entropy = 1", "`entropy` must be true or false"),
    ] {
        let message = message(&format!("{MINIMAL}{line}\n"));
        assert!(message.contains(complaint), "{line}: {message}");
    }
}

/// The keys that are accepted where `text` ends, as the complaint about an unknown one lists them; sorted.
fn accepted(text: &str) -> Vec<String> {
    let complaint = message(text);
    let known = complaint.split_once("known here: ").expect("an unknown key").1;
    let mut known: Vec<_> = known.split(", ").map(String::from).collect();
    known.sort();
    known
}

#[test]
fn the_keys_are_those_of_the_schema() {
    let sorted = |keys: &[&str]| {
        let mut keys: Vec<_> = keys.iter().map(|key| key.to_string()).collect();
        keys.sort();
        keys
    };
    let file = MINIMAL.replace("version = 1", "version = 1\nunknown = 1");
    assert_eq!(accepted(&file), sorted(keys::FILE));
    assert_eq!(accepted(&format!("{MINIMAL}unknown = 1")), sorted(keys::VM));
    assert_eq!(accepted(&format!("{MINIMAL}cpu = {{ unknown = 1 }}")), sorted(keys::CPU));
    let module = "modules = [{ file = \"m\", unknown = 1 }]";
    assert_eq!(accepted(&format!("{MINIMAL}{module}")), sorted(keys::MODULE));
    let disk = "disks = [{ file = \"d\", unknown = 1 }]";
    assert_eq!(accepted(&format!("{MINIMAL}{disk}")), sorted(keys::DISK));
}

#[test]
fn several_guests() {
    let vm = |n: usize| format!("[[vm]]\nname = \"{n}\"\nkernel = \"k\"\nmemory_mib = 64\n");
    let many = |n: usize| (0..n).map(vm).collect::<String>();
    let config = Config::parse(format!("version = 1\nconsole = \"2\"\n{}", many(64)).as_bytes()).unwrap();
    assert_eq!((config.vm.len(), config.console), (64, 2));
    assert_eq!(Config::parse(MINIMAL.as_bytes()).unwrap().console, 0);
    assert!(message(&format!("version = 1\n{}", many(65))).contains("there are 65 guests; the most is 64"));
    let unknown = message(&format!("version = 1\nconsole = \"3\"\n{}", many(3)));
    assert!(unknown.contains("`console` is \"3\"; use the name of a vm"), "{unknown}");
}

#[test]
fn names_the_line_and_the_key() {
    let unknown = message(&format!("{MINIMAL}memroy = 3\n"));
    assert!(unknown.contains("line 6") && unknown.contains("memroy"), "{unknown}");
    let missing = message("version = 1\n[[vm]]\nname = \"a\"\nkernel = \"k\"\n");
    assert!(missing.contains("memory_mib"), "{missing}");
    let protocol = message(&format!("{MINIMAL}protocol = \"grub\"\n"));
    assert!(protocol.contains("grub") && protocol.contains("linux64"), "{protocol}");
    let small = message(&MINIMAL.replace("64", "19"));
    assert!(small.contains("`memory_mib` is 19; the least is 20"), "{small}");
    let vcpus = message(&format!("{MINIMAL}vcpus = 0"));
    assert!(vcpus.contains("`vcpus` is 0"), "{vcpus}");
    assert!(message("version = 2\n").contains("`version` is 2"));
    assert!(message("version = 1\n").contains("[[vm]]"));
    let twice = message(&format!("{MINIMAL}{}", MINIMAL.replace("version = 1", "")));
    assert!(twice.contains("is taken"), "{twice}");
    assert!(Config::parse(b"version = 1\n\xff").unwrap_err().to_string().contains("line 2"));
    assert!(message(&MINIMAL.replace("\"k\"", "\"\"")).contains("`kernel` is empty"));
    assert!(message(&format!("{MINIMAL}cmdline = \"a\\u0000b\"")).contains("zero byte"));
}

proptest! {
    #[test]
    fn survives_edits(at in 0usize..80, with in "[\\x00-\\x7f]{0,6}", cut in 0usize..6) {
        let mut text = MINIMAL.as_bytes().to_vec();
        let at = at.min(text.len());
        let end = (at + cut).min(text.len());
        text.splice(at..end, with.bytes());
        fuzz_one(&text);
    }
}

#[test]
fn overcommitted_guests_say_so() {
    let read =
        |more: &str| Config::parse(format!("{MINIMAL}{more}").as_bytes()).unwrap().vm[0].overcommit.clone();
    use abi::config::Replacement;
    let plain = Overcommit { resident_mib: None, replacement: Replacement::Clock };
    assert_eq!((read("overcommit = false\n"), read("overcommit = true\n")), (None, Some(plain)));
    let chosen = read("overcommit = true\nresident_mib = 32\nreplacement = \"s3-fifo\"\n");
    assert_eq!(chosen, Some(Overcommit { resident_mib: Some(32), replacement: Replacement::S3Fifo }));
    let with_balloon = format!("{MINIMAL}overcommit = true\nballoon = true\n");
    assert!(Config::parse(with_balloon.as_bytes()).unwrap().vm[0].devices.balloon);
    for (more, complaint) in [
        ("resident_mib = 32\n", "`resident_mib` is for guests with `overcommit = true`"),
        ("balloon = true\n", "`balloon` is for guests with `overcommit = true`"),
        ("overcommit = true\nballoon = 1\n", "`balloon` must be true or false"),
        ("replacement = \"clock\"\n", "`replacement` is for guests with `overcommit = true`"),
        ("overcommit = true\nreplacement = \"fifo\"\n", "use one of clock, clock-pro, seq"),
        ("overcommit = true\nresident_mib = 3\n", "the least is 4"),
        ("overcommit = true\nresident_mib = 65\n", "more than `memory_mib`"),
    ] {
        assert!(message(&format!("{MINIMAL}{more}")).contains(complaint), "{more}");
    }
}
