//! The guests that pal fetches: their names, and where they come from.

use std::{
    fmt::{self, Display, Formatter},
    str::FromStr,
};

/// A guest that is fetched: a kernel of Debian's, and a busybox of its architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guest {
    /// The 64-bit kernel for virtual machines: four levels of page tables.
    DebianAmd64,
    /// The 64-bit kernel for any PC.
    Generic,
    /// The same with real-time scheduling.
    Rt,
    /// The newest that Debian has built for the release that it runs on.
    Backports,
    /// The kernel for old 32-bit PCs: two levels.
    Debian686,
    /// The kernel for 32-bit PCs with PAE: three levels.
    Debian686Pae,
    /// The same with real-time scheduling.
    Rt686,
    /// Whatever this package holds or depends on. Its name lives as long as the program, which reads a few of them at its start.
    Package(&'static str),
}

/// The architecture of a guest's programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// 64-bit, which is this machine's own: its apt and its busybox serve.
    Amd64,
    /// 32-bit, for which apt gets a configuration of its own.
    I386,
}

/// Where packages are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suite {
    /// In the machine's own sources.
    Own,
    /// In the backports.
    Backports,
    /// In the machine's own sources, then in the backports.
    Any,
}

/// What to fetch for a guest.
#[derive(Clone, Debug)]
pub struct Source {
    /// Of kernel and busybox.
    pub architecture: Architecture,
    /// Of the kernel.
    pub suite: Suite,
    /// Packages that have the kernel or depend on the newest one, in the order in which they are tried.
    pub kernels: Vec<&'static str>,
    /// Where the kernel is kept, in pal's cache.
    pub kernel_cache: String,
    /// Where busybox is kept, in pal's cache.
    pub busybox_cache: &'static str,
}

/// How names of packages with kernels begin.
const IMAGE: &str = "linux-image-";

impl Guest {
    /// Those that have a name of their own.
    pub const NAMED: [Guest; 7] = [
        Guest::DebianAmd64,
        Guest::Generic,
        Guest::Rt,
        Guest::Backports,
        Guest::Debian686,
        Guest::Debian686Pae,
        Guest::Rt686,
    ];
    /// Those that the tests boot.
    pub const TESTED: [Guest; 4] =
        [Guest::DebianAmd64, Guest::Backports, Guest::Debian686, Guest::Debian686Pae];

    /// Where it comes from.
    pub fn source(self) -> Source {
        let kernel = |architecture, suite, kernels: &[&'static str], kernel_cache: &str| Source {
            architecture,
            suite,
            kernels: kernels.to_vec(),
            kernel_cache: kernel_cache.to_owned(),
            busybox_cache: match architecture {
                Architecture::Amd64 => "busybox",
                Architecture::I386 => "busybox-i386",
            },
        };
        let amd64 =
            |kernels: &[&'static str], cache: &str| kernel(Architecture::Amd64, Suite::Own, kernels, cache);
        let i386 =
            |kernels: &[&'static str], cache: &str| kernel(Architecture::I386, Suite::Own, kernels, cache);
        match self {
            // Debian's, then Ubuntu's.
            Guest::DebianAmd64 => amd64(&["linux-image-cloud-amd64", "linux-image-virtual"], "kernel"),
            Guest::Generic => amd64(&["linux-image-amd64", "linux-image-generic"], "kernel-generic"),
            Guest::Rt => amd64(&["linux-image-rt-amd64"], "kernel-rt"),
            Guest::Backports => {
                kernel(Architecture::Amd64, Suite::Backports, &["linux-image-amd64"], "kernel-backports")
            }
            Guest::Debian686 => i386(&["linux-image-686"], "kernel-686"),
            Guest::Debian686Pae => i386(&["linux-image-686-pae"], "kernel-686-pae"),
            Guest::Rt686 => i386(&["linux-image-rt-686-pae"], "kernel-686-rt"),
            Guest::Package(name) => {
                let is_32 = ["-686", "-686-pae", "-686-unsigned", "-686-pae-unsigned"]
                    .iter()
                    .any(|end| name.ends_with(end));
                let architecture = if is_32 { Architecture::I386 } else { Architecture::Amd64 };
                kernel(architecture, Suite::Any, &[name], &format!("kernel-{name}"))
            }
        }
    }

    fn name(self) -> &'static str {
        match self {
            Guest::DebianAmd64 => "debian-amd64",
            Guest::Generic => "debian-amd64-generic",
            Guest::Rt => "debian-amd64-rt",
            Guest::Backports => "debian-amd64-backports",
            Guest::Debian686 => "debian-686",
            Guest::Debian686Pae => "debian-686-pae",
            Guest::Rt686 => "debian-686-rt",
            Guest::Package(name) => name,
        }
    }
}

impl Display for Guest {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Guest {
    type Err = String;

    fn from_str(text: &str) -> Result<Guest, String> {
        if let Some(named) = Guest::NAMED.into_iter().find(|guest| guest.name() == text) {
            return Ok(named);
        }
        // Debian's rules for names, which leave nothing that means something to apt or in a path.
        let fits = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || b"+-.".contains(&c);
        if text.len() > IMAGE.len() && text.starts_with(IMAGE) && text.bytes().all(fits) && text.len() < 128 {
            return Ok(Guest::Package(text.to_owned().leak()));
        }
        let names = Guest::NAMED.map(Guest::name).join(", ");
        Err(format!("{text:?} is not one of {names}, nor the name of a package {IMAGE}…"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for guest in Guest::NAMED {
            assert_eq!(guest.to_string().parse(), Ok(guest));
        }
        let source = |text: &str| text.parse::<Guest>().map(Guest::source);
        let package = source("linux-image-6.1.0-50-686-pae").unwrap();
        assert_eq!((package.architecture, package.suite), (Architecture::I386, Suite::Any));
        assert_eq!(package.kernels, ["linux-image-6.1.0-50-686-pae"]);
        assert_eq!(source("linux-image-6.12.9+bpo-amd64").unwrap().architecture, Architecture::Amd64);
        for wrong in
            ["", "debian", "linux-image-", "linux-image-../x", "linux-image-a b", "linux-image-A", "bash"]
        {
            assert!(source(wrong).unwrap_err().contains("debian-amd64-rt"), "{wrong}");
        }
    }

    #[test]
    fn no_two_share_a_cache() {
        let mut caches: Vec<_> = Guest::NAMED.iter().map(|guest| guest.source().kernel_cache).collect();
        caches.push("linux-image-amd64".parse::<Guest>().unwrap().source().kernel_cache);
        caches.sort();
        caches.dedup();
        assert_eq!(caches.len(), Guest::NAMED.len() + 1);
    }
}
