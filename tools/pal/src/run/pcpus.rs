//! The processors of the emulated machine, as `--pcpus` describes them.

use std::{fmt, str::FromStr};

use crate::cli::{Machine, RunArgs};

/// The most that QEMU's machine has.
const MOST: u32 = 255;

/// How many processors, and how they are put together where that was said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pcpus {
    /// Threads in all.
    pub count: u32,
    /// Packages, dies in each, cores in each die, threads in each core: 0 if not said.
    shape: [u32; 4],
}

/// QEMU's names. The processors of a die share the last-level cache.
const PARTS: [&str; 4] = ["sockets", "dies", "cores", "threads"];
/// The parts of which the first that was not said makes up the rest.
const REST: [usize; 3] = [2, 0, 3];

impl FromStr for Pcpus {
    type Err = String;

    fn from_str(text: &str) -> Result<Pcpus, String> {
        let number = |text: &str| {
            let number = text.parse().ok().filter(|n| (1..=MOST).contains(n));
            number.ok_or_else(|| format!("{text:?} is not a number from 1 to {MOST}"))
        };
        let mut words = text.split(',');
        let count = number(words.next().unwrap_or_default())?;
        let mut shape = [0; 4];
        for word in words {
            let (part, value) =
                word.split_once('=').ok_or(format!("{word:?} is not {} or so", "sockets=2"))?;
            let index = PARTS.iter().position(|name| *name == part);
            let index = index.ok_or(format!("{part:?} is none of {}", PARTS.join(", ")))?;
            shape[index] = number(value)?;
        }
        let product = shape.iter().filter(|n| **n != 0).try_fold(1u32, |product, n| product.checked_mul(*n));
        let fits = product.is_some_and(|product| {
            if REST.iter().any(|index| shape[*index] == 0) {
                count.is_multiple_of(product)
            } else {
                count == product
            }
        });
        if fits { Ok(Pcpus { count, shape }) } else { Err(format!("{count} processors do not make that up")) }
    }
}

impl Pcpus {
    /// One.
    pub const ONE: Pcpus = Pcpus { count: 1, shape: [0; 4] };

    /// This number of PCPUs, without a topology.
    pub fn new(count: u32) -> Pcpus {
        Pcpus { count, shape: [0; 4] }
    }

    /// Packages, dies in each, cores in each die, threads in each core. What is not said is 1, but for the first such of cores, packages
    /// and threads, which makes up the rest.
    fn parts(self) -> [u32; 4] {
        let mut parts = self.shape;
        let said: u32 = parts.iter().filter(|n| **n != 0).product();
        let mut rest = self.count / said.max(1);
        for index in REST {
            if parts[index] == 0 {
                parts[index] = std::mem::replace(&mut rest, 1);
            }
        }
        parts[1] = parts[1].max(1);
        parts
    }

    /// The same where `each` processors share a last-level cache, as a lab machine's description says: each such cache is a die of its
    /// package, or a package if nothing was said of these. What is said of dies stays, and what is no multiple of a cache stays whole:
    /// see [`Pcpus::has_caches`].
    pub fn with_caches(self, each: u32) -> Pcpus {
        if self.shape == [0; 4] {
            let fits =
                self.count > each && self.count.is_multiple_of(each) && self.count + each <= MOST_OF_LAB;
            return if fits { Pcpus { shape: [self.count / each, 1, each, 1], ..self } } else { self };
        }
        let [packages, _, cores, threads] = self.parts();
        let package = cores * threads;
        let divides = each.is_multiple_of(threads) && package > each && package.is_multiple_of(each);
        if self.shape[1] != 0 || !divides {
            return self;
        }
        Pcpus { shape: [packages, package / each, each / threads, threads], ..self }
    }

    /// Whether the hypervisor sees last-level caches of `each` processors, but for one that is the only one and larger.
    pub fn has_caches(self, each: u32) -> bool {
        let die = match self.shape {
            [0, 0, 0, 0] => self.count,
            _ => self.parts()[2] * self.parts()[3],
        };
        die == each || die < each && self.parts()[1] == 1
    }

    /// Bochs' `count`: packages, cores and threads, or packages alone. It has no dies.
    pub fn bochs(self) -> String {
        if self.shape == [0; 4] {
            return self.count.to_string();
        }
        let [packages, dies, cores, threads] = self.parts();
        format!("{packages}:{}:{threads}", dies * cores)
    }

    /// Whether dies were asked for.
    pub fn has_dies(self) -> bool {
        self.shape[1] > 1
    }
}

/// Processors that a lab machine has at most, with the spare one's package.
const MOST_OF_LAB: u32 = 64;

/// The most with which QEMU's machine gets one more: the hypervisor starts 64.
const MOST_WITH_SPARE: u32 = 63;

/// Whether QEMU's machine has one processor more than `--pcpus` says: its first, which QEMU's emulation may spoil while others
/// compute (docs/design/0006-emulated-svm.md). The hypervisor runs no guests there and numbers the others from 0, if there are others.
/// Not where the hypervisor's command line, with these words, wants guests there.
pub fn has_spare(args: &RunArgs, words: &str) -> bool {
    let words = words.split_whitespace().chain(args.hv_arg.iter().flat_map(|arg| arg.split_whitespace()));
    args.machine == Machine::QemuSvm
        && (2..=MOST_WITH_SPARE).contains(&args.pcpus.count)
        && !args.probe
        && words.filter_map(|word| word.strip_prefix("first-pcpu=")).next_back() != Some("guests")
}

impl Pcpus {
    /// QEMU's arguments for these, and with `spare` one more before them. If their packages were described, it has one of its own.
    pub fn qemu(self, model: &str, spare: bool) -> Vec<String> {
        if !spare {
            return vec!["-smp".into(), self.to_string()];
        }
        if self.shape == [0; 4] {
            return vec!["-smp".into(), Pcpus::new(self.count + 1).to_string()];
        }
        // `-smp` fills packages from the first on; a package with one of several cores takes processors one by one.
        let [packages, dies, cores, threads] = self.parts();
        let sockets = packages + 1;
        let most = sockets * dies * cores * threads;
        let mut arguments = vec![
            "-smp".into(),
            format!("1,sockets={sockets},dies={dies},cores={cores},threads={threads},maxcpus={most}"),
        ];
        for number in 0..self.count {
            let (core, thread) = (number / threads, number % threads);
            let (die, core) = (core / cores, core % cores);
            let place = format!(
                "socket-id={},die-id={},core-id={core},thread-id={thread}",
                1 + die / dies,
                die % dies
            );
            arguments.extend(["-device".into(), format!("{model}-x86_64-cpu,{place}")]);
        }
        arguments
    }
}

/// QEMU's numbers of a machine's processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers {
    /// Of the spare one, and of the empty places in its package; 0 without one.
    pub spare: u32,
    /// In all.
    pub count: u32,
    /// Of each package; `None` if its number was not said.
    pub package: Option<u32>,
}

impl Numbers {
    /// Those of these processors, and with `spare` of one more before them.
    pub fn new(pcpus: Pcpus, spare: bool) -> Numbers {
        let [_, dies, cores, threads] = pcpus.parts();
        let package = if pcpus.shape == [0; 4] { 1 } else { dies * cores * threads };
        let spare = if spare { package } else { 0 };
        let package = (pcpus.shape[0] != 0).then_some(package);
        Numbers { spare, count: spare + pcpus.count, package }
    }
}

/// QEMU's `-smp`.
impl fmt::Display for Pcpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.count)?;
        if self.shape != [0; 4] {
            for (name, n) in PARTS.iter().zip(self.parts()) {
                write!(f, ",{name}={n}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    #[test]
    fn one_more_for_the_hypervisor() {
        let with = |text: &str, words: &str| {
            let Command::Run(args) =
                Cli::parse_from(["pal", "run"].into_iter().chain(text.split_whitespace())).command
            else {
                unreachable!()
            };
            has_spare(&args, words)
        };
        assert!(
            with("--pcpus 2", "")
                && with("--pcpus 2 --lab zen3", "")
                && with("--pcpus 63,sockets=3 --hv-arg first-pcpu=host", "stats=on")
        );
        for without in ["", "--pcpus 64", "--lab zen3", "--pcpus 2 --probe", "--pcpus 2 --machine bochs-vtx"]
        {
            assert!(!with(without, ""), "{without}");
        }
        // The last word wins, as in the hypervisor.
        assert!(!with("--pcpus 2 --hv-arg first-pcpu=guests", "first-pcpu=auto"));
        assert!(!with("--pcpus 2", "stats=on first-pcpu=guests"));
        assert!(with("--pcpus 2 --hv-arg first-pcpu=auto", "first-pcpu=guests"));
    }

    #[test]
    fn qemus_processors() {
        let words = |text: &str, spare| text.parse::<Pcpus>().unwrap().qemu("EPYC", spare).join(" ");
        assert_eq!(words("4,sockets=2", false), "-smp 4,sockets=2,dies=1,cores=2,threads=1");
        assert_eq!(words("4", true), "-smp 5");
        let place = |socket, core, thread| {
            format!(" -device EPYC-x86_64-cpu,socket-id={socket},die-id=0,core-id={core},thread-id={thread}")
        };
        assert_eq!(
            words("4,sockets=2", true),
            [
                "-smp 1,sockets=3,dies=1,cores=2,threads=1,maxcpus=6".into(),
                place(1, 0, 0),
                place(1, 1, 0),
                place(2, 0, 0),
                place(2, 1, 0)
            ]
            .concat()
        );
        assert_eq!(
            words("4,cores=2,threads=2", true),
            [
                "-smp 1,sockets=2,dies=1,cores=2,threads=2,maxcpus=8".into(),
                place(1, 0, 0),
                place(1, 0, 1),
                place(1, 1, 0),
                place(1, 1, 1)
            ]
            .concat()
        );
    }

    #[test]
    fn shapes() {
        let said = |text: &str| text.parse::<Pcpus>().map(|pcpus| (pcpus.to_string(), pcpus.bochs()));
        let both = |qemu: &str, bochs: &str| Ok((qemu.to_owned(), bochs.to_owned()));
        assert_eq!(said("1"), both("1", "1"));
        assert_eq!(said("4"), both("4", "4"));
        assert_eq!(said("4,sockets=2"), both("4,sockets=2,dies=1,cores=2,threads=1", "2:2:1"));
        assert_eq!(said("8,cores=2,threads=2"), both("8,sockets=2,dies=1,cores=2,threads=2", "2:2:2"));
        assert_eq!(said("8,threads=2"), both("8,sockets=1,dies=1,cores=4,threads=2", "1:4:2"));
        for wrong in [
            "",
            "0",
            "256",
            "x",
            "4,sockets=3",
            "4,dies=3",
            "4,cores",
            "4,sockets=2,cores=1,threads=1",
            "4,cores=0",
        ] {
            assert!(said(wrong).is_err(), "{wrong}");
        }
        assert_eq!(said("8,sockets=2,dies=2"), both("8,sockets=2,dies=2,cores=2,threads=1", "2:4:1"));
        assert_eq!(Pcpus::new(3).to_string(), "3");
    }

    #[test]
    fn packages_have_a_die_for_each_last_cache() {
        let with = |text: &str, each| text.parse::<Pcpus>().unwrap().with_caches(each).to_string();
        // Clovertown's packages have two caches, of two cores each.
        assert_eq!(with("8,sockets=2", 2), "8,sockets=2,dies=2,cores=2,threads=1");
        assert_eq!(with("8", 2), "8,sockets=4,dies=1,cores=2,threads=1");
        assert_eq!(with("8,sockets=1,threads=2", 4), "8,sockets=1,dies=2,cores=2,threads=2");
        // No more than one cache, and no whole number of them.
        for (whole, each) in [("2", 2), ("4,sockets=2", 2), ("4,sockets=2", 6), ("3", 2), ("4,threads=2", 1)]
        {
            assert_eq!(with(whole, each), whole.parse::<Pcpus>().unwrap().to_string(), "{whole}");
        }
        assert_eq!(with("8,dies=4", 4), "8,sockets=1,dies=4,cores=2,threads=1", "what was said stays");
        let sees = |text: &str, each| text.parse::<Pcpus>().unwrap().with_caches(each).has_caches(each);
        assert!(
            sees("8,sockets=2", 2) && sees("12", 6) && sees("2", 6) && sees("2,sockets=2", 2) && sees("1", 8)
        );
        assert!(
            !sees("8", 6) && !sees("16,sockets=2", 6) && !sees("8,sockets=2,dies=4", 2) && !sees("64", 8)
        );
        let clovertown = "8,sockets=2".parse::<Pcpus>().unwrap().with_caches(2);
        let arguments = clovertown.qemu("EPYC", true);
        assert_eq!(arguments[1], "1,sockets=3,dies=2,cores=2,threads=1,maxcpus=12");
        let fourth = "EPYC-x86_64-cpu,socket-id=1,die-id=1,core-id=1,thread-id=0";
        assert_eq!((arguments.len(), arguments[9].as_str()), (18, fourth));
        let numbers = Numbers::new(clovertown, true);
        assert_eq!(numbers, Numbers { spare: 4, count: 12, package: Some(4) });
    }
}
