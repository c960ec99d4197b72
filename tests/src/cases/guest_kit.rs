//! The guest kit: its module counts page faults, and the hypervisor reads them; slab caches and programs have regions.

use anyhow::{Result, ensure};

use super::monitor::{ask, enter, leave};
use super::{Case, SHADOW, boot::read_stats, only, records, virtio::ext4};
use crate::{context::Context, pty::Person};

pub const CASES: &[Case] = &[
    only("qemu-svm", "guest kit: page faults are counted and sampled", counts).more(SHADOW),
    only("qemu-svm", "guest kit: slab caches are put into regions", slabs).more(SHADOW),
    only("qemu-svm", "guest kit: programs have objects in regions", programs).more(SHADOW),
    only("qemu-svm", "guest kit: programs misuse its device", misuse).more(SHADOW),
    only("qemu-svm", "guest kit: a VCPU goes where a region is mapped to", moves).also(SHADOW),
    only("qemu-svm", "guest kit: a region is opened for processors that would idle", idles),
    only("qemu-svm", "guest kit: refused", refused),
];

/// Page faults that a program makes on purpose, with the module for the first time, without it, and with it again.
const TOUCHED: [u64; 3] = [3000, 1000, 2000];
/// Page faults of a program's and its kernel's own that come along while it makes those.
const OWN: u64 = 60;

fn counts(context: &Context) -> Result<()> {
    let samples = context.path("samples.jsonl");
    let put = format!("{}:/clock", context.clock.display());
    let [first, none, again] = TOUCHED;
    // A file that is open keeps the module no longer than the reading of it takes. The last sample before the module goes is of
    // a moment without page faults.
    let command = format!(
        "kit=/sys/kernel/palimpsest; cat $kit/registered $kit/layout; exec 9<$kit/registered; /clock touch {first}
        total() {{ echo total $(($(cat $kit/page_faults_user) + $(cat $kit/page_faults_kernel))); }}
        total; sleep 0.2; rmmod palimpsest && ls $kit 2>&1; exec 9<&-; /clock touch {none}
        insmod /pal/modules/*palimpsest.ko && insmod /pal/modules/*palimpsest.ko 2>/dev/null || echo loaded once
        /clock touch {again}; echo 0 >/sys/devices/system/cpu/cpu1/online; cat $kit/registered
        echo 1 >/sys/devices/system/cpu/cpu1/online; cat $kit/registered; total; sleep 0.2"
    );
    let machine = ["--kit", "--vcpus", "2", "--samples", &samples, "--put", &put, "--exec", &command];
    let run = context.run(&machine)?.status(0)?;
    let said = run.stdout();
    let lines: Vec<&str> = said.lines().collect();
    ensure!(lines[..2] == ["0-1", "1"], "CPUs with a page, and its layout: {said}");
    ensure!(said.contains("/sys/kernel/palimpsest: No such file"), "the module has gone: {said}");
    ensure!(said.contains("loaded once\n"), "{said}");
    ensure!(said.contains("\n0\n0-1\n"), "a CPU goes and comes: {said}");
    let numbers = |key: &str| -> Vec<i64> {
        said.split_whitespace().filter_map(|word| word.strip_prefix(key)?.parse().ok()).collect()
    };
    let counted = numbers("counted=");
    ensure!(counted.len() == 3 && counted[1] == -1, "{said}");
    for (touched, counted) in [(first, counted[0]), (again, counted[2])] {
        let counted = counted as u64;
        ensure!((touched..=touched + OWN).contains(&counted), "{counted} counted, {touched} made: {said}");
    }
    let totals = said.lines().filter_map(|line| line.strip_prefix("total ")?.parse::<u64>().ok());
    let totals: Vec<u64> = totals.collect();
    ensure!(totals.len() == 2, "{said}");

    let lines = records::lines(&samples)?;
    let counting = lines.iter().filter(|line| line["guest"]["page_faults"].is_u64());
    let counting: Vec<_> = counting.cloned().collect();
    ensure!(counting.iter().any(|line| line["engine"] == context.mode.unwrap_or("nested")), "wrong mode");
    let sampled = records::sum(&counting, "guest", |line| &line["guest"]["page_faults"]);
    // What the shell and its programs do between a total and the end of counting is in the samples alone.
    let (least, made) = (totals.iter().sum::<u64>(), TOUCHED.iter().sum::<u64>());
    ensure!(
        (least * 97 / 100..=least + made / 2).contains(&sampled),
        "{sampled} in samples, {totals:?} in the guest"
    );
    if context.mode == Some("shadow") {
        let seen = records::sum(&counting, "guest", |line| &line["faults"]["guest"]);
        ensure!(
            (seen * 95 / 100..=seen * 105 / 100).contains(&sampled),
            "the guest counted {sampled}, shadow paging {seen}"
        );
    }
    Ok(())
}

/// A set of caches is in a region since the module was loaded. The inode cache of ext4 and that of names are put into regions while files
/// come and go, on two processors, and then a set that has these two as well. What the module counts is what the kernel's own statistics of
/// slabs say, and the hypervisor has no other number.
fn slabs(context: &Context) -> Result<()> {
    let (image, _) = ext4(context)?;
    let disk = ["--kit", "--vcpus", "2", "--disk", &image, "--append", "root=/dev/vda"];
    let script = r#"k=/sys/kernel/palimpsest
sums() {
    for again in 1 2 3 4 5 6 7 8 9; do
        found=$(awk -v of=$1 -v those=" $2 " '/slabdata/ { if (index(those, " " $1 " ")) sum += $15 * $6 } $1 == of { print sum, $3, $4 }' \
            /proc/slabinfo $k/regions)
        set -- "$1" "$2" $found
        [ $3 = $4 ] && break
        sleep 0.1
    done
    echo set $1 $found
}
show() {
    for cache in ext4_inode_cache dentry; do
        for again in 1 2 3 4 5 6 7 8 9; do
            sleep 0.1
            set -- $(awk -v c=$cache '$1 == c {print /slabdata/ ? $15 * $6 : $3 " " $4}' /proc/slabinfo $k/regions)
            [ $1 = $2 ] && break
        done
        echo slabs $cache $1; echo region $cache $2 $3
    done
}
files() { n=0; while [ $n -lt $1 ]; do n=$((n + 1)); : > /$2$n; done; }
sums kernel-core "task_struct mm_struct vm_area_struct anon_vma anon_vma_chain signal_cache sighand_cache files_cache cred_jar"
files 100 a; echo +ext4_inode_cache > $k/regions; echo +dentry > $k/regions
show; files 150 b & files 150 c; wait; show
rm /b* /c*; sync; echo 3 > /proc/sys/vm/drop_caches; show; cat $k/missed
echo +ext4_inode_cache > $k/regions; show; echo +fs-net-core > $k/regions
sums fs-net-core "ext4_extent_status mbcache jbd2_journal_head inode_cache buffer_head radix_tree_node skbuff_head_cache \
    skbuff_fclone_cache sock_inode_cache TCP TCPv6 UDP UDPv6 tw_sock_TCP request_sock_TCP"
echo -fs-net-core > $k/regions; echo -ext4_inode_cache > $k/regions; echo +net-core > $k/regions; cut -d' ' -f1,2,4 $k/regions
echo -nothing > $k/regions; echo nothing > $k/regions; rmmod palimpsest && ls $k; echo "(en)d"
"#;
    let at_load =
        [&disk[..5], &["--append", "root=/dev/vda palimpsest.regions=kernel-core", "--exec", script]];
    let run = context.run(&at_load.concat())?.status(0)?;
    let said = run.stdout();
    let numbers = |what: &str| -> Vec<Vec<u64>> {
        let lines = said.lines().filter_map(|line| line.strip_prefix(what));
        lines.map(|rest| rest.split_whitespace().filter_map(|word| word.parse().ok()).collect()).collect()
    };
    for cache in ["ext4_inode_cache", "dentry"] {
        let (slabs, regions) = (numbers(&format!("slabs {cache} ")), numbers(&format!("region {cache} ")));
        let frames: Vec<u64> = slabs.concat();
        let expected: Vec<Vec<u64>> = frames.iter().map(|frames| vec![*frames, 0]).collect();
        ensure!(regions == expected && frames.len() == 4, "{cache}: {slabs:?}, {regions:?}: {said}");
        ensure!(frames[0] > 0 && frames[1] > frames[0] && frames[2] < frames[1], "{cache}: {frames:?}");
    }
    for name in ["kernel-core", "fs-net-core"] {
        let found = numbers(&format!("set {name} "));
        ensure!(
            matches!(found[..], [ref set] if set[0] > 20 && *set == [set[0], set[0], 0]),
            "{name}: {found:?}: {said}"
        );
    }
    // Nothing was missed, a number that is free comes again, and the module can go.
    ensure!(said.contains("\n0\nslabs ext4_inode_cache"), "{said}");
    ensure!(said.contains("kernel-core 1 0\nnet-core 2 0\ndentry 3 0\n"), "{said}");
    ensure!(said.contains("write error: No such file") && said.contains("write error: Invalid"), "{said}");
    ensure!(said.contains("/sys/kernel/palimpsest: No such file") && said.ends_with("(en)d\n"), "{said}");

    let mut person = Person::start(context, &disk)?;
    // Not "guest:" alone: lines before the boot have it too, and what is typed then is lost.
    person.sees("guest:/root#")?;
    enter(&mut person)?;
    ask(&mut person, "regions", &["has defined no regions"])?;
    leave(&mut person, "resumed")?;
    // The echo of the line has the word in two parts.
    person.types("k=/sys/kernel/palimpsest/regions; echo +ext4_inode_cache >$k; awk '{print $3 \" fra\" \"mes\"}' $k\r")?;
    person.sees(" frames")?;
    let frames =
        person.shown.rsplit('\n').find_map(|line| line.trim().strip_suffix(" frames")).unwrap_or("?");
    let line = format!("{frames}  ");
    enter(&mut person)?;
    ask(&mut person, "regions", &["     1  regular  all ", &line, "iB", "refused 0; records "])?;
    leave(&mut person, "resumed")?;
    person.types("exit\r")?;
    ensure!(person.ends()? == Some(0), "{}", person.shown);
    Ok(())
}

/// What an example of the guest kit's libraries prints for a region: its number, frames, and the sum of what is in it.
fn regions_of(said: &str) -> Vec<[u64; 3]> {
    let numbers = |line: &str| -> Option<[u64; 3]> {
        let words: Vec<&str> = line.strip_prefix("region ")?.split_whitespace().collect();
        let [number, "frames", frames, "sum", sum] = words[..] else { return None };
        Some([number.parse().ok()?, frames.parse().ok()?, sum.parse().ok()?])
    };
    said.lines().filter_map(numbers).collect()
}

/// The examples in C and in Rust have their objects in regions: the module counts the frames that the libraries do, until the
/// program ends or is killed. The module stays while it is in use. Without it memory is plain.
fn programs(context: &Context) -> Result<()> {
    let put = [(&context.sdk.c, "/c"), (&context.sdk.rust, "/rust")]
        .map(|(from, to)| format!("{}:{to}", from.display()));
    let machine = ["--kit", "--put", &put[0], "--put", &put[1]];
    let script = r#"k=/sys/kernel/palimpsest
hold() {
    rm -f f out; mkfifo f; $1 2000 wait < f > out & exec 3> f
    until [ "$(grep -c sum out 2>/dev/null)" = 2 ]; do sleep 0.05; done
    cat out; sed 's/^/held /' $k/programs
}
hold /c; rmmod palimpsest 2>&1; exec 3>&-; wait; echo left $(wc -l < $k/programs)
hold /rust; kill -9 $!; wait; exec 3>&-; echo left $(wc -l < $k/programs)
rmmod palimpsest && for program in /c /rust; do $program 100; done; dmesg | grep -c 'Bad page\|Bad rss\|refcount_t\|Oops'
"#;
    let run = context.run(&[&machine[..], &["--exec", script]].concat())?.status(1)?;
    let said = run.stdout();
    let held: Vec<Vec<u64>> = said
        .lines()
        .filter_map(|line| Some(line.strip_prefix("held ")?.split(' ').flat_map(str::parse).collect()))
        .collect();
    // Nodes of 96 bytes in C and of 112 in Rust are in whole arenas of 64 frames; so is an array of 16 000 bytes.
    let expected = [[64, 1_999_000], [128, 7_998_000], [64, 1_999_000], [64, 2_664_667_000]];
    let plain = [[64, 4950], [64, 19900], [64, 4950], [64, 328_350]];
    let found = regions_of(&said);
    ensure!(found.len() == 8 && held.len() == 4, "{said}");
    for ((region, held), [frames, sum]) in found.iter().zip(&held).zip(expected) {
        let [number, _, counted, mappings] = held[..] else { anyhow::bail!("{said}") };
        ensure!(*region == [number, frames, sum] && number > 0, "{region:?}: {said}");
        ensure!(counted == frames && mappings == frames / 64, "{held:?} beside {region:?}: {said}");
    }
    ensure!(found[4..] == plain.map(|[frames, sum]| [0, frames, sum]), "{said}");
    ensure!(said.matches("plain memory: No such file or directory").count() == 4, "{said}");
    ensure!(said.matches("left 0\n").count() == 2 && said.contains("can't unload module"), "{said}");
    // The kernel has nothing to say about it.
    ensure!(said.ends_with("\n0\n"), "{said}");
    if context.mode.is_some() {
        return Ok(());
    }

    // The hypervisor has as many.
    let mut person = Person::start(context, &machine)?;
    person.sees("guest:/root#")?;
    person.types("/c 2000 wait\r")?;
    person.sees(" sum 7998000")?;
    enter(&mut person)?;
    let lines = ["     1  regular  all           64  256 KiB", "     2  regular  all          128  512 KiB"];
    ask(&mut person, "regions", &[lines[0], lines[1], "192 of ", "refused 0; records "])?;
    leave(&mut person, "resumed")?;
    person.types("\x04")?;
    person.sees("guest:/root#")?;
    enter(&mut person)?;
    ask(&mut person, "regions", &["0 of ", "refused 0; records "])?;
    leave(&mut person, "resumed")?;
    person.types("exit\r")?;
    ensure!(person.ends()? == Some(0), "{}", person.shown);
    Ok(())
}

/// Wrong and hostile calls, and those that are right but hard: the program checks each answer, and the frames in regions. Then the
/// library's own tests run on the device.
fn misuse(context: &Context) -> Result<()> {
    let put = [(&context.regions, "/regions"), (&context.sdk.c_tests, "/test")];
    let put = put.map(|(from, to)| format!("{}:{to}", from.display()));
    let script = r"/regions || exit; /test 7 1500 || exit; cat /sys/kernel/palimpsest/programs
        rmmod palimpsest && dmesg | grep -c 'Bad page\|Bad rss\|refcount_t\|Oops\|refuses'; true";
    // QEMU has one lock for all page faults on shadow tables, which makes two VCPUs there slow.
    let vcpus = if context.mode.is_some() { "1" } else { "2" };
    let machine = ["--kit", "--vcpus", vcpus, "--put", &put[0], "--put", &put[1], "--exec", script];
    let run = context.run(&machine)?.status(0)?;
    let said = run.stdout();
    let lines: Vec<&str> = said.lines().collect();
    let [checks, "ok", "0"] = lines[..] else { anyhow::bail!("{said}") };
    ensure!(checks.starts_with("regions: ") && checks.ends_with(" checks, ok"), "{said}");
    Ok(())
}

/// A guest whose first region is the slab cache of names in folders, with the sum of all folders' names in a file.
fn with_dentries(context: &Context, machine: &[&str]) -> Result<Person> {
    let mut person = Person::start(context, machine)?;
    person.sees("guest:/root#")?;
    person.types(
        "echo +dentry > /sys/kernel/palimpsest/regions; find / -xdev -type d | sort | md5sum > /sum; echo rea\"\"dy\r",
    )?;
    person.sees("ready")?;
    Ok(person)
}

/// A region of a slab cache is mapped to the cache of one package and then of the other: the VCPU goes there when it touches the
/// cache, the monitor and the statistics say so, and files are what they were.
fn moves(context: &Context) -> Result<()> {
    let path = context.path("stats.json");
    let mut person = with_dentries(context, &["--kit", "--pcpus", "4,sockets=2", "--stats", &path])?;
    for domain in ["0", "1", "0", "1"] {
        enter(&mut person)?;
        let local = format!("     1  local    {domain} ");
        ask(&mut person, &format!("regions 1 {domain}"), &[&local, "cache domains 2"])?;
        leave(&mut person, "resumed")?;
        // The list of files is the same but for the sum itself.
        person.types("find / -xdev -type d | sort | md5sum | cmp - /sum && echo sa\"\"me\r")?;
        person.sees("same")?;
    }
    enter(&mut person)?;
    ask(&mut person, "regions 1 global", &["     1  global   all "])?;
    leave(&mut person, "resumed")?;
    person.types("exit\r")?;
    ensure!(person.ends()? == Some(0), "{}", person.shown);
    let stats = read_stats(&path)?;
    let regions = &stats["guests"][0]["paging"]["regions"];
    let count = |key: &str| regions[key].as_u64().unwrap_or(0);
    ensure!(count("region_moves") >= 3 && count("moves") == count("region_moves"), "{stats}");
    ensure!(count("closed_faults") == count("region_moves") + count("regions_globalised"), "{stats}");
    ensure!(count("move_ticks") > 0, "{stats}");
    Ok(())
}

/// A region of a slab cache that four VCPUs use is mapped to the cache of two of four processors. The other two have nothing else to do than
/// what waits there, and so the region is opened in all caches, once or more; files are what they were.
fn idles(context: &Context) -> Result<()> {
    let path = context.path("stats.json");
    let machine = ["--kit", "--vcpus", "4", "--pcpus", "4,sockets=2", "--stats", &path];
    let mut person = with_dentries(context, &machine)?;
    enter(&mut person)?;
    ask(&mut person, "regions 1 1", &["     1  local    1 ", "cache domains 2"])?;
    leave(&mut person, "resumed")?;
    person.types(
        "for n in 1 2 3 4; do find / -xdev -type d | sort | md5sum | cmp - /sum && echo al\"\"ike & done; wait; echo fin\"\"ished\r",
    )?;
    person.sees("finished")?;
    ensure!(person.shown.matches("alike").count() == 4, "{}", person.shown);
    person.types("exit\r")?;
    ensure!(person.ends()? == Some(0), "{}", person.shown);
    let stats = read_stats(&path)?;
    let regions = &stats["guests"][0]["paging"]["regions"];
    let count = |key: &str| regions[key].as_u64().unwrap_or(0);
    ensure!(count("region_moves") >= 1 && count("regions_opened") >= 1, "{stats}");
    Ok(())
}

fn refused(context: &Context) -> Result<()> {
    let native = ["run", "--machine", "native", "--kit", "--exec", "true"];
    context.pal(native, None)?.status(2)?.says("there is none on this machine")?;
    context.run(&["--guest", "debian-686", "--kit", "--exec", "true"])?.status(2)?.says("64-bit guests")?;
    let initrd = context.file("initrd", "")?;
    context.run(&["--initrd", &initrd, "--kit"])?.status(2)?.says("--kit")?;
    // Built once: the same file comes again.
    let kit = || context.pal(["kit"], None)?.status(0);
    let (first, second) = (kit()?.stdout(), kit()?.stdout());
    ensure!(first == second && std::path::Path::new(first.trim()).is_file(), "{first} and {second}");
    Ok(())
}
