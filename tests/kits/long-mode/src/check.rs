//! A case: what it is, and how it says what it found.

use core::fmt::{self, Debug, Write};

use crate::machine::{is_palimpsest, lapic};

/// One case.
pub struct Case {
    /// Its name: a group, a dot, and what it is about.
    pub name: &'static str,
    /// Runs it.
    pub run: fn(&mut Check),
    /// It does not come back when all is well, and so runs only if it is named in full.
    pub fatal: bool,
}

/// A case that comes back.
pub const fn case(name: &'static str, run: fn(&mut Check)) -> Case {
    Case { name, run, fatal: false }
}

/// A case that ends the guest.
pub const fn fatal(name: &'static str, run: fn(&mut Check)) -> Case {
    Case { name, run, fatal: true }
}

/// What a running case has found.
#[derive(Default)]
pub struct Check {
    /// The processor is QEMU's emulation: its documented mistakes do not count.
    pub tcg: bool,
    /// The processor is Bochs' emulation, likewise.
    pub bochs: bool,
    /// The hypervisor answers unknown MSRs with zero.
    pub permissive: bool,
    /// The hypervisor intercepts page faults and delivers the guest's own.
    pub shadow: bool,
    /// Time is counted in instructions: what is measured once is right, or the device is wrong.
    pub exact: bool,
    /// Differences found.
    pub failures: u32,
    /// Documented mistakes of the emulation that were seen.
    pub known: u32,
    /// Why it could not run.
    pub skipped: Option<&'static str>,
    text: Text,
}

impl Check {
    /// A check that has found nothing yet.
    pub fn new(option: impl Fn(&str) -> bool) -> Self {
        Check {
            tcg: option("tcg"),
            bochs: option("bochs"),
            permissive: option("permissive"),
            shadow: option("shadow"),
            exact: option("exact"),
            ..Check::default()
        }
    }

    /// `got` must be `want`.
    pub fn equal<T: PartialEq + Debug>(&mut self, what: impl fmt::Display, got: T, want: T) {
        if got != want {
            self.fail(format_args!("{what}: expected {want:x?}, got {got:x?}"));
        }
    }

    /// `got` must be `want`, or on QEMU's emulation `known`: what its mistake makes of it (docs/qemu.md).
    /// Any other value is wrong there, too.
    pub fn equal_but_tcg<T: PartialEq + Debug>(
        &mut self,
        what: impl fmt::Display,
        got: T,
        want: T,
        known: T,
    ) {
        if self.tcg && got != want && got == known {
            self.known += 1;
        } else {
            self.equal(what, got, want);
        }
    }

    /// `got` must be `want`, or on Bochs' emulation `known`: what its mistake makes of it (docs/design/0010-emulated-vtx.md).
    pub fn equal_but_bochs<T: PartialEq + Debug>(
        &mut self,
        what: impl fmt::Display,
        got: T,
        want: T,
        known: T,
    ) {
        if self.bochs && got != want && got == known {
            self.known += 1;
        } else {
            self.equal(what, got, want);
        }
    }

    /// Must be true.
    pub fn holds(&mut self, what: impl fmt::Display, got: bool) {
        self.equal(what, got, true);
    }

    /// `got` must be within `parts` per thousand of `want`. A busy host may be the reason where time is real: the text, which has
    /// "within" in such failures only, lets the end-to-end tests tell those apart.
    pub fn near(&mut self, what: impl fmt::Display, got: u64, want: u64, parts: u64) {
        if got.abs_diff(want) > want / 1000 * parts {
            self.fail(format_args!("{what}: expected {want} within {parts}/1000, got {got}"));
        }
    }

    /// Notes a failure; the first is printed with the verdict.
    pub fn fail(&mut self, what: fmt::Arguments<'_>) {
        self.failures += 1;
        if self.failures <= 3 {
            let separator = if self.failures > 1 { "; " } else { "" };
            let _ = write!(self.text, "{separator}{what}");
        }
    }

    /// This machine lacks what the case is about.
    pub fn skip(&mut self, why: &'static str) {
        self.skipped = Some(why);
    }

    /// Skips a case about x2APIC mode where there is none, or no way back from it: the way leads through an APIC that is off,
    /// which Bochs' never turns on again.
    pub fn lacks_x2apic(&mut self) -> bool {
        let why = match () {
            () if !lapic::has_x2() => "no x2APIC",
            () if self.bochs && !is_palimpsest() => "Bochs' local APIC stays off once it was turned off",
            () => return false,
        };
        self.skip(why);
        true
    }

    /// The first failures.
    pub fn text(&self) -> &str {
        self.text.as_str()
    }
}

/// Text of bounded length; what does not fit is cut off.
struct Text {
    bytes: [u8; 400],
    len: usize,
}

impl Default for Text {
    fn default() -> Self {
        Text { bytes: [0; 400], len: 0 }
    }
}

impl Text {
    fn as_str(&self) -> &str {
        core::str::from_utf8(&self.bytes[..self.len]).unwrap_or("(text cut within a character)")
    }
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let len = text.len().min(self.bytes.len() - self.len);
        self.bytes[self.len..self.len + len].copy_from_slice(&text.as_bytes()[..len]);
        self.len += len;
        Ok(())
    }
}
