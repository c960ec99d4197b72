//! The processors of the emulated machine, as `--pcpus` describes them.

use std::{fmt, str::FromStr};

/// The most that QEMU's machine has.
const MOST: u32 = 255;

/// How many processors, and how they are put together where that was said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pcpus {
    /// Threads in all.
    pub count: u32,
    /// Packages, cores in each, threads in each core: 0 if not said.
    shape: [u32; 3],
}

const PARTS: [&str; 3] = ["sockets", "cores", "threads"];

impl FromStr for Pcpus {
    type Err = String;

    fn from_str(text: &str) -> Result<Pcpus, String> {
        let number = |text: &str| {
            let number = text.parse().ok().filter(|n| (1..=MOST).contains(n));
            number.ok_or_else(|| format!("{text:?} is not a number from 1 to {MOST}"))
        };
        let mut words = text.split(',');
        let count = number(words.next().unwrap_or_default())?;
        let mut shape = [0; 3];
        for word in words {
            let (part, value) =
                word.split_once('=').ok_or(format!("{word:?} is not {} or so", "sockets=2"))?;
            let index = PARTS.iter().position(|name| *name == part);
            let index = index.ok_or(format!("{part:?} is none of {}", PARTS.join(", ")))?;
            shape[index] = number(value)?;
        }
        let product = shape.iter().filter(|n| **n != 0).try_fold(1u32, |product, n| product.checked_mul(*n));
        let fits = product.is_some_and(|product| {
            if shape.contains(&0) { count.is_multiple_of(product) } else { count == product }
        });
        if fits { Ok(Pcpus { count, shape }) } else { Err(format!("{count} processors do not make that up")) }
    }
}

impl Pcpus {
    /// One.
    pub const ONE: Pcpus = Pcpus { count: 1, shape: [0; 3] };

    /// So many, of which nothing else is said.
    pub fn new(count: u32) -> Pcpus {
        Pcpus { count, shape: [0; 3] }
    }

    /// Packages, cores in each, threads in each core. What is not said is 1, but for the first such of cores, packages and
    /// threads, which makes up the rest.
    fn parts(self) -> [u32; 3] {
        let mut parts = self.shape;
        let said: u32 = parts.iter().filter(|n| **n != 0).product();
        let mut rest = self.count / said.max(1);
        for index in [1, 0, 2] {
            if parts[index] == 0 {
                parts[index] = std::mem::replace(&mut rest, 1);
            }
        }
        parts
    }

    /// Bochs' `count`: packages, cores and threads, or packages alone.
    pub fn bochs(self) -> String {
        if self.shape == [0; 3] {
            return self.count.to_string();
        }
        let [packages, cores, threads] = self.parts();
        format!("{packages}:{cores}:{threads}")
    }
}

/// QEMU's `-smp`.
impl fmt::Display for Pcpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.count)?;
        if self.shape != [0; 3] {
            for (name, n) in PARTS.iter().zip(self.parts()) {
                write!(f, ",{name}={n}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes() {
        let said = |text: &str| text.parse::<Pcpus>().map(|pcpus| (pcpus.to_string(), pcpus.bochs()));
        let both = |qemu: &str, bochs: &str| Ok((qemu.to_owned(), bochs.to_owned()));
        assert_eq!(said("1"), both("1", "1"));
        assert_eq!(said("4"), both("4", "4"));
        assert_eq!(said("4,sockets=2"), both("4,sockets=2,cores=2,threads=1", "2:2:1"));
        assert_eq!(said("8,cores=2,threads=2"), both("8,sockets=2,cores=2,threads=2", "2:2:2"));
        assert_eq!(said("8,threads=2"), both("8,sockets=1,cores=4,threads=2", "1:4:2"));
        for wrong in [
            "",
            "0",
            "256",
            "x",
            "4,sockets=3",
            "4,dies=2",
            "4,cores",
            "4,sockets=2,cores=1,threads=1",
            "4,cores=0",
        ] {
            assert!(said(wrong).is_err(), "{wrong}");
        }
        assert_eq!(Pcpus::new(3).to_string(), "3");
    }
}
