//! The monitor's longer answers. Each function writes one, of bounded length.

pub mod balloon;
pub mod guest;
pub mod help;
pub mod memory;
pub mod paging;
pub mod regions;
pub mod stats;
pub mod tiers;
pub mod vms;

use core::fmt;

/// Ticks as seconds with milliseconds.
struct Seconds {
    ticks: u64,
    khz: u64,
}

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.ticks / self.khz.max(1);
        f.pad(&alloc::format!("{}.{:03} s", ms / 1000, ms % 1000))
    }
}

/// A part of a whole in percent with one decimal.
struct Share {
    part: u64,
    whole: u64,
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let permille = u128::from(self.part) * 1000 / u128::from(self.whole.max(1));
        f.pad(&alloc::format!("{}.{} %", permille / 10, permille % 10))
    }
}

/// Tenths, with one decimal.
struct Tenths(u64);

impl fmt::Display for Tenths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 10, self.0 % 10)
    }
}

/// A number of bytes in the largest unit that divides it.
struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u32, &str); 4] = [(30, "GiB"), (20, "MiB"), (10, "KiB"), (0, "bytes")];
        let divides =
            |&&(shift, _): &&(u32, &str)| self.0 >> shift << shift == self.0 && self.0 >> shift != 0;
        let (shift, unit) = UNITS.iter().find(divides).unwrap_or(&(0, "bytes"));
        f.pad(&alloc::format!("{} {unit}", self.0 >> shift))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        assert_eq!(Seconds { ticks: 12_345_678, khz: 1000 }.to_string(), "12.345 s");
        assert_eq!(Seconds { ticks: 1, khz: 0 }.to_string(), "0.001 s");
        assert_eq!(Share { part: 1, whole: 3 }.to_string(), "33.3 %");
        assert_eq!(Share { part: u64::MAX, whole: u64::MAX }.to_string(), "100.0 %");
        assert_eq!(Share { part: 0, whole: 0 }.to_string(), "0.0 %");
        let bytes = [0, 1, 1024, 1025, 512 << 20, 3 << 30].map(|n| Bytes(n).to_string());
        assert_eq!(bytes, ["0 bytes", "1 bytes", "1 KiB", "1025 bytes", "512 MiB", "3 GiB"]);
        assert_eq!(format!("{:>8}|", Bytes(1024)), "   1 KiB|");
    }
}
