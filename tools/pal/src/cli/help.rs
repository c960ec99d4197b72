//! What follows the options in the help texts: examples, exit statuses.
//!
//! A test reads each example as a command line, and sees that each option of `pal run` has one. Lines of examples have 80 columns
//! at most, because clap breaks longer ones on a narrow terminal; other paragraphs are one line each, which it breaks by words.

use abi::policy::{Agile, Commodity};

/// Of `--mode`. The defaults are those of the hypervisor's own parameters.
pub fn mode() -> String {
    let defaults = |values: &[(&str, i64)]| {
        let words: Vec<String> = values.iter().map(|(key, value)| format!("{key}={value}")).collect();
        words.join(",")
    };
    format!(
        "How the hypervisor virtualizes guest memory: `nested` tables; `shadow` tables; `agile` paging, shadow tables with nested \
         parts, as a processor would walk them that is only modelled (by default {}), or with `machine=commodity`, on processors \
         as they are, nested or shadow tables for each address space (by default {}); `switch=N`, nested and shadow in turn for N \
         exits (with `engines=all`: agile, too); or a policy that chooses while the guest runs, with its parameters: `dav2m`, \
         `dsp-sample`, `dsp-offset`, `asp-svm`, `bandit`, `threshold`, `random`; `oracle`; `model=FILE` and `schedule=FILE` stand \
         for what `cargo pal train` has made (docs/guide.md, docs/policies.md)",
        defaults(&Agile::default().values()),
        defaults(&Commodity::default().values()),
    )
}

/// Of `pal` itself.
pub const PAL: &str = "\
Examples:
  cargo pal run                     a shell in a guest; `exit` powers it off
  cargo pal run --exec 'uname -a'   one command in a guest
  cargo pal doctor                  what is installed here, and what is missing
  cargo pal run --help              all options of `run`, with examples

docs/guide.md explains what they do together.";

/// Of `pal run`.
pub const RUN: &str = "\
Examples:
  cargo pal run                       a shell in the default guest
  cargo pal run --exec 'uname -a; free'
                                      one command, its output, its exit status
  cargo pal run --put ./tool --exec '/tool --self-test' --timeout 60 --yes
  cargo pal run --exec 'dmesg > /log' --get /log:boot.log
                                      a file out of the guest
  cargo pal run --verbose             boot messages, and the hypervisor's log
  cargo pal run --vcpus 4 --pcpus 4,sockets=2 --mem 1024
  cargo pal run --pcpus 2,sockets=2 --regions unify
                                      maps what is used together to a cache
  cargo pal run --mem 512 --overcommit --resident 160 --replacement clock-pro
                                      160 MiB in frames, the rest compressed
  cargo pal run --mem 512 --overcommit --resident 160 --balloon
                                      the guest gives free memory back
  cargo pal run --mem 512 --overcommit --host-mem 384
                                      more memory than the machine has
  cargo pal run --mem 512 --overcommit --host-mem 256 --page-disk 512
                                      what does not fit goes to a disk
  cargo pal run --fast-mem 64 --fast-sharing wss --fast-policy histogram
                                      moves hot pages to 64 MiB of fast memory
  cargo pal run --fast-mem 64 --fast-evict clock
                                      which pages leave it: by CLOCK
  cargo pal run --lab westmere-x5660 --lab-time --fast-mem 64
                                      the model's other memory is slow

The same guest elsewhere:
  cargo pal run --machine native --exec dmesg
                                      without the hypervisor, for comparison
  cargo pal run --machine native --disk root.ext4 --net lan --entropy
                                      its virtio devices are QEMU's
  cargo pal run --machine bochs-vtx --exec uname
                                      on an Intel processor; takes half a minute
  cargo pal run --machine bochs-vtx --model core2_penryn_t9600 --mode shadow
  cargo pal run --lab westmere-x5660 --lab-report report.json --exec true
                                      on a modelled machine (docs/lab.md)
  cargo pal run --lab zen3 --policy dav2m --samples samples.jsonl
                                      chooses between nested and shadow paging
  cargo pal run --lab zen3 --policy random,interval_ms=20 --samples random.jsonl
                                      a log for `cargo pal train`
  cargo pal run --lab zen3 --policy threshold --kit
                                      the guest counts its page faults for it
  cargo pal run --lab opteron-2350 --nested-page 4K --exec true
                                      more expensive walks of nested tables
  cargo pal run --lab zen3 --lab-from session --exec true
                                      without a model of the boot: half the time
  cargo pal run --lab zen3 --lab-from session --page-trace pages --exec true
                                      for `cargo pal replace --trace pages`
  cargo pal run --lab zen3 --lab-model tlb --lab-check miss --exec true
  cargo pal run --lab zen3 --deterministic --exec true
                                      repeats to the last count
  cargo pal run --lab zen3 --lab-time --exec 'time ls'
                                      its clocks follow the modelled cycles
  cargo pal run --lab zen3 --vcpus 2 --pcpus 2 --lab-step 2000
                                      truer waits for locks, a longer run

What it does, while it does it (docs/telemetry.md):
  cargo pal run --lab zen3 --samples samples.jsonl --exec true
                                      counters every 10 ms, as JSON lines
  cargo pal run --samples samples.jsonl --sample-ms 100
  cargo pal run --trace trace.json --exec true
                                      each exit, for https://ui.perfetto.dev
  cargo pal run --top --lab zen3      a screen as top's, then the console
  cargo pal run --watch --exec 'sleep 60'
                                      for `cargo pal top` in another shell

Disks and distributions:
  cargo pal run --disk root.ext4 --append root=/dev/vda
                                      a disk, with the root file system on it
  cargo pal run --disk data.ext4:rw   its file keeps what the guest writes
  cargo pal run --root root.ext4 --mem 512
                                      a distribution with its own init
                                      (`cargo pal root` makes one)
  cargo pal run --root root.ext4:rw --exec 'apt list --installed'
  cargo pal run --root ./rootfs --append init=/bin/sh --virtio-console

Other kernels:
  cargo pal run --guest debian-686-pae
                                      a 32-bit guest with PAE page tables
  cargo pal run --guest debian-amd64-backports --exec 'uname -r'
  cargo pal run --guest linux-image-rt-amd64
                                      any package of the machine's own sources
  cargo pal run --kernel /boot/vmlinuz-6.1.0-9-amd64 --disk root.ext4
                                      an installed one, with its modules
  cargo pal run --kernel bzImage --modules out --disk root.ext4
                                      one's own, after `make modules_install`
  cargo pal run --kernel bzImage --initrd initrd.img --append console=ttyS0
  cargo pal run --kernel vmlinux --protocol pvh
  cargo pal run --kernel kit.elf --module 'data.bin first second' --test-device

Several guests:
  cargo pal run --config lab.toml --pcpus 4
                                      from a file (docs/configuration.md)
  cargo pal run --config lab.toml --console db --log-dir logs
                                      at the console of one, a log for each

From another shell:
  cargo pal run --name lab < /dev/null &
                                      then `cargo pal ps`, `console lab`, …

To measure and to debug:
  cargo pal run --icount --exec true --stats stats.json
                                      time by instructions; exits by reason
  cargo pal run --deterministic=7 --exec 'uname -a'
                                      the same run each time, random numbers too
  cargo pal run --mode shadow --shadow-pages 600 --audit-shadow=13 --exec true
  cargo pal run --without x2apic,avx --exec 'cat /proc/cpuinfo'
                                      a processor with fewer features
  cargo pal run --kernel kit.elf --test-device --permissive-msr
  cargo pal run --hv-arg mitigations=off --hv-arg loglevel=debug
                                      words for the hypervisor
  cargo pal run --qemu /opt/qemu/bin/qemu-system-x86_64 --qemu-arg=-no-reboot
  cargo pal run --machine bochs-vtx --bochs /opt/bochs --bochs-line 'cpu: ips=9'
  cargo pal run --probe               what the hypervisor finds on the machine

On the console, Ctrl-a is the escape key: Ctrl-a x quits, Ctrl-a h helps, Ctrl-a p enters the hypervisor's monitor.

Exit status:
  0    the guest powered off, and CMD returned 0; or `cargo pal stop` ended a
       run without CMD
  n    CMD's own status, or the value that the guest wrote to the test device
  1    pal failed: the hypervisor does not build, the emulator is missing or
       does not start; or a file of --get did not come
  2    unknown options, unusable files
  3    the guest died, or ended before CMD did, also by `cargo pal stop`
  4    the hypervisor panicked
  5    the machine is unsuitable: no AMD-V or VT-x, or the firmware locked it
  124  the time limit passed
  128+n  signal n ended pal; 141: the reader of standard output went away

With several guests: 0 if all ended well, else what it would be for the first in the file that did not.

An option that is given twice: the last one counts; those that may be repeated add up.

The guest's output goes to standard output, everything else to standard error. Without a terminal a run that shows nothing for 30 \
seconds says there where it is (PAL_PROGRESS=N: for N seconds; 0: never).";

/// Of `pal test`.
pub const TEST: &str = "\
Examples:
  cargo pal test                      takes half an hour on two idle processors
  cargo pal test format lint unit     some of it
  cargo pal test --full --yes         takes hours

Logs are under target/pal/test. docs/testing.md says what each step does.

Exit status: 0 if nothing failed, else 1; 2 for unknown steps.";

/// Of `pal fuzz`.
pub const FUZZ: &str = "\
Examples:
  cargo pal fuzz                      lists the targets
  cargo pal fuzz device-hpet --seconds 600

Corpora and findings are kept under target/pal/fuzz.";

/// Of `pal kernel`.
pub const KERNEL: &str = "\
Examples:
  cargo pal kernel
  cargo pal kernel --guest debian-amd64-backports
  cargo pal kernel --guest linux-image-rt-amd64

Nothing is installed: kernels are kept under target/pal.";

/// Of `pal kit`.
pub const KIT: &str = "\
Examples:
  cargo pal kit                       for the kernel of the default guest
  cargo pal kit --guest debian-amd64-backports
  cargo pal kit --kernel bzImage --modules out
                                      for one's own, after `make modules_install`
  cargo pal run --kit --exec 'cat /sys/kernel/palimpsest/page_faults_user'

Nothing is installed but make and a compiler, if they are missing: headers and modules are kept under target/pal.";

/// Of `pal root`.
pub const ROOT: &str = "\
Examples:
  cargo pal root debian bookworm -o root.ext4
  cargo pal root debian trixie --packages stress-ng,python3 -o root.ext4
  cargo pal root debian bookworm --free 4096 -o large.ext4
  cargo pal run --root root.ext4 --mem 512 --exec 'stress-ng --cpu 1 --timeout 5'

The root user has no password. Without root rights this needs user namespaces, as Debian allows them.";

/// Of `pal ps`.
pub const PS: &str = "\
Examples:
  cargo pal run --name lab < /dev/null > lab.log &
  cargo pal ps                        its name, process, machine, mode, guests
  cargo pal monitor --name lab vms    what it does
  cargo pal stop lab

Those of this user and this checkout are listed. Exit status: 0.";

/// Of `pal top`.
pub const TOP: &str = "\
Examples:
  cargo pal run --name lab < /dev/null > lab.log &
  cargo pal top                       the only machine, every second
  cargo pal top lab -d 5
  cargo pal top --once                one screen as text
  cargo pal top -b -n 3 > top.txt     three of them, for a script

Keys: q leaves and h shows the others. Only machines that take samples can be shown: runs with --name, --watch, --samples or \
--trace, and those with a person at their console.

Exit status: 0, also when the run ends meanwhile; 1 if the machine takes no samples or the connection was lost; 2 without such a \
machine.";

/// Of `pal report`.
pub const REPORT: &str = "\
Examples:
  cargo pal run --lab zen3 --samples nested.jsonl --exec 'free; ps'
  cargo pal run --lab zen3 --samples shadow.jsonl --mode shadow --exec 'free; ps'
  cargo pal report nested.jsonl       report.html
  cargo pal report nested.jsonl shadow.jsonl -o both.html
                                      two runs beside each other
  cargo pal report nested.jsonl --miss-ratios pages.json
                                      with what pal replace --json wrote

The page holds all that it needs: it can be sent and opened anywhere, without a network.

Exit status: 0; 2 for a file that has no samples, or no miss ratios, and where the page cannot be written.";

/// Of `pal train`.
pub const TRAIN: &str = "\
Examples:
  cargo pal run --lab zen3 --policy random,interval_ms=20 --samples random.jsonl
  cargo pal train dsp-offset random.jsonl -o model.toml
  cargo pal run --lab zen3 --policy dsp-offset,faults=-9,misses=70000
  cargo pal train dsp-offset gcc.jsonl redis.jsonl --specific
                                      model-gcc.toml and model-redis.toml
  cargo pal train dsp-offset random.jsonl --begin-ms 880 --end-ms 1160
                                      from the work alone, without the boot
  cargo pal train asp-svm nested.jsonl shadow.jsonl --interval-ms 20
  cargo pal train asp-svm nested.jsonl shadow.jsonl --enumerate runs
                                      what else is to be run for it: each phase
  cargo pal train oracle nested.jsonl shadow.jsonl -o schedule.toml
  cargo pal run --lab zen3 --policy oracle,first=shadow,changes=400000:900000

The first run of it fetches Python packages into target/pal, once. docs/policies.md says what is learnt, and how.

Exit status: 0; 2 for logs of which nothing can be learnt; 1 where the environment cannot be made.";

/// Of `pal evaluate`.
pub const EVALUATE: &str = "\
Examples:
  cargo pal run --lab zen3 --policy random,interval_ms=20 --samples random.jsonl
  cargo pal evaluate --log random.jsonl --policy nested --policy shadow
  cargo pal evaluate --log random.jsonl --policy threshold,faults=50,interval_ms=20
  cargo pal evaluate --log random.jsonl --policy shadow --run nested.jsonl --run shadow.jsonl
                                           and what shadow paging really gained over nested paging

Exit status: 0; 2 for a log without chance, and for policies that no log can judge; 1 where the environment cannot be made.";

/// Of `pal console`.
pub const CONSOLE: &str = "\
Examples:
  cargo pal console                   the only machine's
  cargo pal console lab               that of `cargo pal run --name lab`
  echo 'uname -a; exit' | cargo pal console lab
                                      types this; shows output until the run ends

Ctrl-a x detaches this terminal, and the run goes on; Ctrl-a a sends Ctrl-a. Several terminals may be attached.

Exit status: 0 when detached; that of `cargo pal run` if the run ended; 1 if the connection was lost; 2 without such a machine.";

/// Of `pal monitor`.
pub const MONITOR: &str = "\
Examples:
  cargo pal monitor vms               of the only machine
  cargo pal monitor help              the monitor's commands
  cargo pal monitor --name lab walk rip
  cargo pal monitor --name lab        a conversation, until `quit`, Ctrl-d or
                                      Ctrl-a x

The guest that has the console is paused meanwhile.

Exit status: 0 when the monitor has answered, whatever it said; that of `cargo pal run` if the run ended meanwhile; 1 if the \
machine has no monitor or another shell is there; 2 without such a machine.";

/// Of `pal tier`.
pub const TIER: &str = "\
Examples:
  cargo pal run --name lab --fast-mem 64 < /dev/null > lab.log &
  cargo pal tier                      of the only machine: shares, what is there
  cargo pal tier lab guest E2         six eighths of the fast memory for it
  cargo pal tier lab guest auto       the policy decides again

A share that is set stays until `auto`, whatever the policy is, and those that are set fit the machine together. Pages move within \
seconds. The guest that has the console is paused for a moment.

Exit status: 0; that of `cargo pal run` if the run ended meanwhile; 1 if the machine has no fast memory left or none at all, no \
monitor, or if another shell is there; 2 without such a machine or guest.";

/// Of `pal stop`.
pub const STOP: &str = "\
Examples:
  cargo pal stop                      the only machine
  cargo pal stop lab

Exit status: that of `cargo pal run`: 0, or 3 if the command of --exec had not ended; 2 without such a machine.";

/// Of `pal doctor`.
pub const DOCTOR: &str = "\
Examples:
  cargo pal doctor

Exit status: 0 if everything is there that `cargo pal run` and `cargo pal test` need, else 1.";
