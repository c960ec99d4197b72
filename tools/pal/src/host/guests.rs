//! Where the guests that pal fetches come from.

use crate::cli::Guest;

/// The architecture of a guest's programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// 64-bit, which is this machine's own: its apt and its busybox serve.
    Amd64,
    /// 32-bit, for which apt gets a configuration of its own.
    I386,
}

/// What to fetch for a guest.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    /// Of kernel and busybox.
    pub architecture: Architecture,
    /// Packages that depend on the newest kernel, in the order in which they are tried.
    pub kernels: &'static [&'static str],
    /// Where the kernel is kept, in pal's cache.
    pub kernel_cache: &'static str,
    /// Where busybox is kept, in pal's cache.
    pub busybox_cache: &'static str,
}

impl Guest {
    /// Where it comes from.
    pub fn source(self) -> Source {
        let i386 = |kernels, kernel_cache| Source {
            architecture: Architecture::I386,
            kernels,
            kernel_cache,
            busybox_cache: "busybox-i386",
        };
        match self {
            Guest::DebianAmd64 => Source {
                architecture: Architecture::Amd64,
                // Debian's, then Ubuntu's.
                kernels: &["linux-image-cloud-amd64", "linux-image-virtual"],
                kernel_cache: "kernel",
                busybox_cache: "busybox",
            },
            Guest::Debian686 => i386(&["linux-image-686"], "kernel-686"),
            Guest::Debian686Pae => i386(&["linux-image-686-pae"], "kernel-686-pae"),
        }
    }
}
