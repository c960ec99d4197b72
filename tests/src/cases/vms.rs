//! Several guests from one description, with consoles and logs of their own; their lives in the monitor; networks between them.

use std::fs;

use anyhow::{Context as _, Result, ensure};

use super::{
    Case,
    boot::read_stats,
    monitor::{ask, enter, leave},
    only,
};
use crate::{context::Context, pty::Person};

pub const CASES: &[Case] = &[
    only("qemu-svm", "three guests from one description on four processors", three),
    only("qemu-svm", "a guest with a cap, and two that are pinned to one processor", limits),
    only("qemu-svm", "guests come and go while another one computes", lives),
    only("qemu-svm", "a guest writes to its disk until there is no memory", full),
    only("qemu-svm", "a guest with more processors than there is memory for", too_many_processors),
    only("qemu-svm", "two guests on a network", network),
    only("qemu-svm", "a guest starts on a network on which another one sends", flooded),
    only("qemu-svm", "one guest's console in a file", one_log),
    only("qemu-svm", "how guests end, and one that cannot start", ends),
    only("qemu-svm", "descriptions with mistakes", mistakes),
];

/// The log file of this name.
pub fn log(context: &Context, name: &str) -> Result<String> {
    let path = context.path(&format!("logs/{name}.log"));
    fs::read_to_string(&path).with_context(|| path)
}

/// The machine has two packages, and one processor more that runs no guests; the guests differ in everything that a description can say.
fn three(context: &Context) -> Result<()> {
    let config = context.file(
        "lab.toml",
        "version = 1\n\
         [[vm]]\nname = \"web\"\nmemory_mib = 96\nweight = 512\nexec = \"echo I am $((1 + 1))web; nproc; seq 20000 | md5sum; seq 999 > /n\"\nget = [\"/n:numbers\"]\n\
         [[vm]]\nname = \"db\"\nmemory_mib = 96\nmode = \"shadow\"\naffinity = [2, 3]\n\
         exec = \"read line; echo I am $((1 + 1))db, $line; exit 7\"\n\
         [[vm]]\nname = \"calc\"\nvcpus = 2\ncap = 150\nexec = \"echo I am $((1 + 1))calc; nproc; seq 3\"\n",
    )?;
    let (logs, stats) = (context.path("logs"), context.path("stats.json"));
    let options = ["--config", &config, "--pcpus", "4,sockets=2", "--console", "db", "--timeout", "500"];
    // The status is that of the only one that has not ended with 0.
    context
        .run_with(&[&options[..], &["--log-dir", &logs, "--stats", &stats]].concat(), Some(b"hello\n"))?
        .status(7)?
        .prints("I am 2db, hello\n")?
        .says("db ended with 7")?
        .says("the machine has 5 processors: QEMU's first is the hypervisor's alone")?;
    let has = |text: String, part: &str| {
        ensure!(text.contains(part), "no {part:?} in\n{text}");
        ensure!(text.matches("I am").count() < 2, "another's output\n{text}");
        Ok(())
    };
    has(log(context, "web")?, "I am 2web\n1\ne071f707df7bbeee2a6a1eb48011ddd0  -\n")?;
    let numbers: String = (1..=999).map(|n| format!("{n}\n")).collect();
    ensure!(fs::read_to_string(context.path("numbers"))? == numbers, "the file that web sends");
    has(log(context, "db")?, "I am 2db, hello\n")?;
    has(log(context, "calc")?, "I am 2calc\n2\n1\n2\n3\n")?;
    has(log(context, "hypervisor")?, "db: power-off")?;
    let stats = read_stats(&stats)?;
    let vcpus = stats["guests"].as_array().context("no guests")?;
    let of = |name: &str| vcpus.iter().filter(|vcpu| vcpu["vm"] == name).collect::<Vec<_>>();
    ensure!([of("web").len(), of("db").len(), of("calc").len()] == [1, 1, 2], "{stats}");
    ensure!(of("db")[0]["paging"]["mode"] == "shadow", "{stats}");
    ensure!(vcpus.iter().all(|vcpu| vcpu["time"]["ran"].as_u64() > Some(0)), "{stats}");
    ensure!(stats["vms"][1]["command"] == 7 && stats["vms"][2]["end"] == "power-off", "{stats}");
    // Processors are those that were asked for, by their numbers.
    let host = &stats["host"];
    let packages: Vec<_> = (0..5).map(|pcpu| host["topology"][pcpu]["package"].as_u64()).collect();
    ensure!(host["pcpus"] == 4 && packages[4].is_none(), "{host}");
    ensure!(packages[0] == packages[1] && packages[2] == packages[3] && packages[0] != packages[2], "{host}");
    let last = vcpus.iter().find_map(|vcpu| vcpu["pcpus"].as_array()).context("no processors")?;
    let numbers: Vec<_> = last.iter().map(|pcpu| pcpu["pcpu"].as_u64()).collect();
    ensure!(numbers == [0, 1, 2, 3].map(Some), "{last:?}");
    has(log(context, "hypervisor")?, "last-level caches of PCPUs 0-1, 2-3")?;
    Ok(())
}

/// All three compute for some seconds. The first two share the second of two processors and never leave it.
fn limits(context: &Context) -> Result<()> {
    fs::copy(&context.kit, context.path("kit"))?;
    let vm = |name: &str, limit: &str| {
        format!(
            "[[vm]]\nname = \"{name}\"\nkernel = \"kit\"\nmemory_mib = 32\ncmdline = \"compute=5\"\n{limit}\n"
        )
    };
    let pinned = ["left", "right"].map(|name| vm(name, "affinity = [1]")).concat();
    let config = context.file("lab.toml", format!("version = 1\n{pinned}{}", vm("capped", "cap = 20")))?;
    let stats = context.path("stats.json");
    context.run(&["--config", &config, "--pcpus", "2", "--timeout", "500", "--stats", &stats])?.status(0)?;
    let stats = read_stats(&stats)?;
    let of = |name: &str, what: &str| {
        let vcpus = stats["guests"].as_array().map_or(&[][..], Vec::as_slice);
        let number = |vcpu: &serde_json::Value| vcpu["time"][what].as_u64().or(vcpu[what].as_u64());
        vcpus.iter().find(|vcpu| vcpu["vm"] == name).and_then(number).context("no such number")
    };
    let percent = |name| Ok::<_, anyhow::Error>(of(name, "ran")? * 100 / of(name, "tsc")?);
    ensure!(of("capped", "capped")? > 0 && (5..=25).contains(&percent("capped")?), "{stats}");
    for name in ["left", "right"] {
        // They want their processor all the time, and each gets its half or more: they do not begin at the same moment.
        let (ran, waited) = (of(name, "ran")?, of(name, "waited")?);
        let wanted = (ran + waited) * 100 / of(name, "tsc")?;
        ensure!((80..=105).contains(&wanted) && waited > 0, "{name}: wanted {wanted} % of the time: {stats}");
        ensure!(ran * 100 / (ran + waited) >= 40, "{name} ran for {ran} and waited for {waited}: {stats}");
        let moves = of(name, "moves_within_cache")? + of(name, "moves_across_caches")?;
        ensure!(moves + of(name, "steals")? + of(name, "capped")? == 0, "{stats}");
    }
    let ends = stats["guests"].as_array().into_iter().flatten();
    let busy = ends.filter_map(|vcpu| vcpu["pcpus"][1]["busy"].as_u64()).max();
    let both = of("left", "ran")? + of("right", "ran")?;
    ensure!(busy.is_some_and(|busy| busy / 100 * 101 >= both), "{busy:?} of {both}: {stats}");
    Ok(())
}

/// Free frames, as `host` tells them.
fn free_frames(person: &mut Person) -> Result<u64> {
    let from = person.shown.len();
    ask(person, "host", &["frames free"])?;
    let words: Vec<_> = person.shown[from..].split_whitespace().collect();
    let at = words.windows(2).position(|pair| pair[0] == "memory:").context("no memory")?;
    Ok(words[at + 1].parse()?)
}

/// Milliseconds that the shell's guest has run, as `vms` tells them.
fn shell_ran(person: &mut Person) -> Result<u64> {
    let from = person.shown.len();
    ask(person, "vms", &["* kit", "running", "shell", "running", "128 MiB"])?;
    let words: Vec<_> = person.shown[from..].split_whitespace().collect();
    let at = words.iter().position(|word| *word == "shell").context("no shell")?;
    // Name, state, memory, VCPUs, uptime, CPU time.
    Ok(words[at + 7].replace('.', "").parse()?)
}

/// The shell of one guest computes with many processes until it is given a line. The other is a small kernel, started and taken
/// away meanwhile.
fn lives(context: &Context) -> Result<()> {
    fs::copy(&context.kit, context.path("kit"))?;
    let config = context.file(
        "lab.toml",
        "version = 1\nconsole = \"shell\"\n\
         [[vm]]\nname = \"kit\"\nkernel = \"kit\"\nmemory_mib = 32\ncmdline = \"spin\"\n\
         [[vm]]\nname = \"shell\"\nmemory_mib = 128\n",
    )?;
    let mut person = Person::start(context, &["--config", &config, "--pcpus", "2"])?;
    person.sees("guest:")?;
    let work = "sum=0; i=0; until [ $i -ge 30 ] && read -t 0; do i=$((i + 1)); sum=$((sum + $(/bin/echo $i))); done; ";
    let verdict = "echo right $((sum == i * (i + 1) / 2))";
    person.types(&format!("{work}{verdict}\r"))?;
    enter(&mut person)?;
    ask(&mut person, "vms", &["kit ", "running", "32 MiB", "* shell", "running", "128 MiB", "console"])?;
    ask(&mut person, "select kit", &["kit is paused", "running"])?;
    ask(&mut person, "vcpus", &["32-bit"])?;
    let before = shell_ran(&mut person)?;
    ask(&mut person, "stop kit", &["kit is off"])?;
    ask(&mut person, "regs", &["RIP"])?;
    ask(&mut person, "resume kit", &["kit is off; `start kit`"])?;
    ask(&mut person, "start kit", &["kit starts"])?;
    ask(&mut person, "start kit", &["started already"])?;
    ask(&mut person, "pause kit", &["kit is paused"])?;
    ask(&mut person, "vms", &["* kit", "paused", "shell", "running"])?;
    ask(&mut person, "resume kit", &["kit resumed"])?;
    ask(&mut person, "restart kit", &["kit restarts"])?;
    // At first the heap may grow, and the shell's guest may touch memory for the first time; what is lost each time is lost for good.
    let mut free = Vec::new();
    let is_steady = |free: &[u64]| free.last_chunk().is_some_and(|[a, b, c]: &[u64; 3]| a == b && b == c);
    while !is_steady(&free) {
        ensure!(free.len() < 16, "{free:?}\n{}", person.shown);
        ask(&mut person, "destroy kit", &["kit destroyed, its memory freed"])?;
        free.push(free_frames(&mut person)?);
        ask(&mut person, "regs", &["kit has ended or was destroyed; `start kit` starts it"])?;
        ask(&mut person, "start kit", &["kit starts"])?;
    }
    let after = shell_ran(&mut person)?;
    ensure!(after > before, "the other has not run: {before} ms, {after} ms");
    ask(&mut person, "console kit", &["kit gets the console"])?;
    leave(&mut person, "kit resumed")?;
    enter(&mut person)?;
    ask(&mut person, "destroy kit", &["kit destroyed"])?;
    // The console has passed to the only one that is left.
    leave(&mut person, "shell resumed")?;
    person.types(":\r")?;
    person.sees("right 1")?;
    // What it has not shown yet would be shown beside the next one's output.
    person.sees("guest:")?;
    person.sees("guest:")?;
    // When all have gone, it is that of the next one to start.
    enter(&mut person)?;
    ask(&mut person, "destroy shell", &["shell destroyed"])?;
    ask(&mut person, "start kit", &["kit starts"])?;
    ask(&mut person, "destroy kit", &["kit destroyed"])?;
    ask(&mut person, "start shell", &["shell starts"])?;
    leave(&mut person, "shell resumed")?;
    person.sees("guest:")?;
    person.types("exit\r")?;
    ensure!(person.ends()? == Some(0), "{}", person.shown);
    Ok(())
}

/// The machine has less memory than `pal` would give it, and the disk is not of whole pages, so that it is not mapped. The
/// hypervisor keeps what it needs for the guest that restarts again and again; the memory of the writer, and of the pages that
/// it wrote to the disk, is freed.
fn full(context: &Context) -> Result<()> {
    fs::copy(&context.kit, context.path("kit"))?;
    fs::File::create(context.path("disk"))?.set_len((64 << 20) + 512)?;
    let config = context.file(
        "lab.toml",
        "version = 1\nconsole = \"shell\"\n\
         [[vm]]\nname = \"again\"\nkernel = \"kit\"\nmemory_mib = 32\ncmdline = \"reset\"\n\
         [[vm]]\nname = \"shell\"\nmemory_mib = 96\ndisks = [{ file = \"disk\" }]\n",
    )?;
    let memory = ["--qemu-arg=-m", "--qemu-arg=264M"];
    let mut person = Person::start(context, &[&["--config", &config, "--pcpus", "2"], &memory[..]].concat())?;
    person.sees("guest:")?;
    enter(&mut person)?;
    let before = free_frames(&mut person)?;
    leave(&mut person, "shell resumed")?;
    person
        .types("dd if=/dev/zero of=/dev/vda bs=64k; sync; dmesg | grep -q 'vda.*WRITE' && echo \"fu\"ll\r")?;
    person.sees("full")?;
    person.types("sleep 1; echo \"li\"ves\r")?;
    person.sees("lives")?;
    enter(&mut person)?;
    let least = free_frames(&mut person)?;
    ask(&mut person, "vms", &["again", "running", "* shell", "running"])?;
    ask(&mut person, "destroy shell", &["shell destroyed, its memory freed"])?;
    let after = free_frames(&mut person)?;
    let memory = 96 << 8;
    ensure!(
        least < 2048 && after >= before + memory,
        "{before} frames, then {least}, then {after}\n{}",
        person.shown
    );
    person.types("\x01x")?;
    person.ends()?;
    Ok(())
}

/// The RAM of `many` fits into the machine, its VCPUs and cards do not: it is refused, at boot and in the monitor, and `one` runs on.
fn too_many_processors(context: &Context) -> Result<()> {
    fs::copy(&context.kit, context.path("kit"))?;
    let config = context.file(
        "lab.toml",
        "version = 1\nconsole = \"one\"\n\
         [[vm]]\nname = \"one\"\nkernel = \"kit\"\nmemory_mib = 32\ncmdline = \"spin\"\n\
         [[vm]]\nname = \"many\"\nkernel = \"kit\"\nmemory_mib = 230\ncmdline = \"spin\"\nvcpus = 64\n\
         networks = [\"a\", \"b\", \"c\", \"d\"]\n",
    )?;
    let options = ["--config", &config, "--pcpus", "2", "--qemu-arg=-m", "--qemu-arg=276"];
    let mut person = Person::start(context, &options)?;
    person.sees("kit: spin")?;
    enter(&mut person)?;
    let free = free_frames(&mut person)?;
    ask(
        &mut person,
        "start many",
        &["cannot be started", "no memory left for the guest's ", "lower `memory_mib`"],
    )?;
    ask(&mut person, "vms", &["* one", "running", "many"])?;
    ensure!(free_frames(&mut person)? == free, "memory is lost\n{}", person.shown);
    // In the place of the other one it has room.
    ask(&mut person, "destroy one", &["one destroyed"])?;
    ask(&mut person, "start many", &["many starts"])?;
    ask(&mut person, "destroy many", &["many destroyed"])?;
    ask(&mut person, "start one", &["one starts"])?;
    ask(&mut person, "vms", &["one", "running"])?;
    person.types("\x01x")?;
    person.ends()?;
    Ok(())
}

/// Both send at once, over one connection, and say what has come. Either goes on until it has all, and its end of the connection is
/// what the other one waits for.
fn network(context: &Context) -> Result<()> {
    const EXCHANGE: &str = ": > /received\n\
         exchange() { (cat /sent; until [ $(wc -c < /received) -ge 280000 ]; do sleep 1; done) | \
         nc \"$@\" > /received; md5sum < /received; }\n";
    let config = context.file(
        "lan.toml",
        format!(
            "version = 1\n\
             [[vm]]\nname = \"client\"\nmemory_mib = 128\nnetworks = [\"lan\"]\n\
             exec = '''\n{EXCHANGE}seq 200001 240000 > /sent\n\
             ip addr add 10.0.0.2/24 dev eth0; ip link set eth0 up\n\
             until ping -c 1 -w 2 10.0.0.1 > /dev/null; do sleep 1; done\n\
             ping -c 3 -w 60 10.0.0.1 | grep -o '[0-9]* packets received'\n\
             exchange 10.0.0.1 5000\n\
             while ping -c 1 -w 2 10.0.0.1 > /dev/null; do sleep 1; done'''\n\
             [[vm]]\nname = \"server\"\nmemory_mib = 128\nnetworks = [\"lan\"]\n\
             exec = '''\n{EXCHANGE}seq 400001 440000 > /sent\n\
             exchange -l -p 5000 &\n\
             until grep -qs :1388 /proc/net/tcp /proc/net/tcp6; do sleep 0.1; done\n\
             ip addr add 10.0.0.1/24 dev eth0; ip link set eth0 up\n\
             wait'''\n"
        ),
    )?;
    let logs = context.path("logs");
    context
        .run(&["--config", &config, "--pcpus", "2", "--log-dir", &logs, "--timeout", "500"])?
        .status(0)?
        .prints("3 packets received\n55579c89c51ab6cf9fdadf6753ae6afc  -\n")?;
    let server = log(context, "server")?;
    ensure!(server.contains("d082cd8c5ec70f55654a80d7a7d6de2c  -\n"), "{server}");
    Ok(())
}

/// Frames arrive all the time while the kernel and its large file are loaded: they must not let the guest run before it can.
fn flooded(context: &Context) -> Result<()> {
    fs::copy(&context.kit, context.path("kit"))?;
    fs::File::create(context.path("large"))?.set_len(48 << 20)?;
    let config = context.file(
        "lab.toml",
        "version = 1\nconsole = \"sender\"\n\
         [[vm]]\nname = \"kit\"\nkernel = \"kit\"\ninitrd = \"large\"\nmemory_mib = 96\ncmdline = \"spin\"\nnetworks = [\"lan\"]\n\
         [[vm]]\nname = \"sender\"\nmemory_mib = 96\nnetworks = [\"lan\"]\n",
    )?;
    let mut person = Person::start(context, &["--config", &config, "--pcpus", "2"])?;
    person.sees("guest:")?;
    person.types(
        "sent() { cat /sys/class/net/eth0/statistics/tx_packets; }\r\
         ip addr add 10.0.0.2/24 dev eth0; ip link set eth0 up\r\
         for i in 1 2 3; do ping -q -i 0.002 10.0.0.255 > /dev/null & done\r\
         until before=$(sent); [ $before -gt 50 ]; do sleep 0.1; done; echo $((6 * 7)) send\r",
    )?;
    person.sees("42 send")?;
    enter(&mut person)?;
    // The sender goes on.
    ask(&mut person, "select kit", &["kit is paused"])?;
    for _ in 0..4 {
        ask(&mut person, "destroy kit", &["kit destroyed"])?;
        ask(&mut person, "start kit", &["kit starts"])?;
    }
    ask(&mut person, "vms", &["* kit", "running", "sender", "running"])?;
    leave(&mut person, "sender resumed")?;
    // It has sent meanwhile, and is not only about to.
    person
        .types("now=$(sent); echo $before, then $now; [ $now -gt $((before + 100)) ] && echo \"ma\"ny\r")?;
    person.sees("many")?;
    person.types("\x01x")?;
    person.ends()?;
    Ok(())
}

/// `--log-dir` without a description.
fn one_log(context: &Context) -> Result<()> {
    let logs = context.path("logs");
    context.kit("print=hello", &["--log-dir", &logs])?.status(0)?.has("hello")?;
    ensure!(log(context, "guest")?.contains("hello"), "{}", log(context, "guest")?);
    ensure!(log(context, "hypervisor")?.contains("PCPU"), "no log");
    Ok(())
}

/// The first that has not ended well decides; of the others it is said.
fn ends(context: &Context) -> Result<()> {
    fs::copy(&context.kit, context.path("kit"))?;
    let vm = |name: &str, more: &str| {
        format!("[[vm]]\nname = \"{name}\"\nkernel = \"kit\"\nmemory_mib = 32\ntest_device = true\n{more}\n")
    };
    let (well, five) = (vm("well", ""), vm("five", "cmdline = \"exit=5\""));
    let nowhere = vm("nowhere", "affinity = [3]");
    let config = context.file("lab.toml", format!("version = 1\n{well}{five}{nowhere}"))?;
    // The hypervisor uses fewer processors than the machine has.
    let options = ["--config", &config, "--pcpus", "4", "--hv-arg", "pcpus=2", "--timeout", "500"];
    let finished = context.run(&options)?.status(5)?.says("five ended with 5")?;
    finished
        .says("nowhere: the hypervisor refuses")?
        .says("names no processor of this machine, which has 2")?;
    Ok(())
}

fn mistakes(context: &Context) -> Result<()> {
    let vm = "version = 1\n[[vm]]\nname = \"a\"\n";
    for (text, options, parts) in [
        ("version = 1\n", &[][..], &["lab.toml", "no [[vm]]"][..]),
        (&*format!("{vm}memroy = 3"), &[], &["lab.toml", "line 4", "memroy"]),
        (
            &*format!("{vm}kernel = \"none\""),
            &[],
            &["lab.toml, line 4", "vm \"a\"", "`kernel`", "No such file"],
        ),
        (&*format!("{vm}weight = 0"), &[], &["line 4", "`weight` is 0; it can be 1 to 65535"]),
        (&*format!("{vm}affinity = [4]"), &["--pcpus", "4"], &["line 4", "processor 4; the machine has 4"]),
        (&*format!("{vm}memory_mib = 30"), &[], &["line 4", "`memory_mib` 30: this kernel needs"]),
        (vm, &["--console", "b"], &["--console: no guest is called \"b\"; there are a"]),
        ("version = 1\n[[vm]]\nname = \"a/b\"", &["--log-dir", "logs"], &["line 3", "cannot be its log"]),
        (vm, &["--log-dir", "/dev/null/logs"], &["--log-dir /dev/null/logs"]),
        (vm, &["--mem", "64"], &["--mem", "--config"]),
        (vm, &["--machine", "native"], &["need the hypervisor"]),
    ] {
        let config = context.file("lab.toml", text)?;
        let mut finished = context.pal([&["run", "--config", &config], options].concat(), None)?.status(2)?;
        for part in parts {
            finished = finished.says(part)?;
        }
    }
    context.run(&["--console", "a"])?.status(2)?.says("--config")?;
    Ok(())
}
