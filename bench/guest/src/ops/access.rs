//! Accesses of memory that say something on a machine whose walks and caches are modelled (`cargo pal bench --lab`). A row's name
//! has what is done, the pages that back the memory, and its size: `chase-4k-256m`.

use std::{hint::black_box, io, ptr};

use super::{
    check,
    memory::{HUGE, PAGE, Region, faults},
    must,
};
use crate::sample::Samples;

/// Bytes of a line of the caches.
const LINE: usize = 64;
/// Accesses in a batch of those that follow no order.
const ACCESSES: u64 = 16_384;

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Loads, each from where the one before says, on a way through all lines that looks random.
    Chase,
    /// Updates of random words.
    Gups,
    /// Passes through three arrays: one becomes the sum of the others.
    Stream,
    /// The kernel fills a new mapping at one call.
    Populate,
}

/// A row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    kind: Kind,
    /// Pages of 2 MiB, not of 4 KiB.
    huge: bool,
    bytes: usize,
}

impl Access {
    /// The row of this name.
    pub fn named(name: &str) -> Option<Self> {
        let mut words = name.split('-');
        let kind = match words.next()? {
            "chase" => Kind::Chase,
            "gups" => Kind::Gups,
            "stream" => Kind::Stream,
            "populate" => Kind::Populate,
            _ => return None,
        };
        let huge = match words.next()? {
            "4k" => false,
            "2m" => true,
            _ => return None,
        };
        let size = words.next().filter(|_| words.next().is_none())?;
        let (number, unit) = size.split_at_checked(size.len().checked_sub(1)?)?;
        let shift = match unit {
            "k" => 10,
            "m" => 20,
            _ => return None,
        };
        let bytes = number.parse::<usize>().ok().filter(|number| *number <= 1 << 20)? << shift;
        // Whole pages; where places are chosen by masks, a power of two.
        let page = if huge { HUGE } else { PAGE };
        let masked = matches!(kind, Kind::Chase | Kind::Gups);
        (bytes >= page && bytes % page == 0 && (!masked || bytes.is_power_of_two())).then_some(Self {
            kind,
            huge,
            bytes,
        })
    }

    /// Takes its samples.
    pub fn measure(self, samples: &mut Samples) -> io::Result<()> {
        match self.kind {
            Kind::Chase => self.chase(samples),
            Kind::Gups => self.gups(samples),
            Kind::Stream => self.stream(samples),
            Kind::Populate => self.populate(samples),
        }
    }

    fn region(self) -> io::Result<Region> {
        if self.huge { Region::huge(self.bytes) } else { Region::small(self.bytes / PAGE) }
    }

    /// Memory that is there, in pages of the size that the row is about.
    fn filled(self) -> io::Result<Region> {
        let region = self.region()?;
        let before = faults()?;
        region.write();
        let (taken, pages) = (faults()? - before, self.bytes / if self.huge { HUGE } else { PAGE });
        if taken.abs_diff(pages as i64) > 4 {
            return Err(io::Error::other(format!("{taken} page faults for {pages} pages")));
        }
        Ok(region)
    }

    fn chase(self, samples: &mut Samples) -> io::Result<()> {
        let region = self.filled()?;
        let lines = self.bytes / LINE;
        // All lines in one cycle: a linear congruence of full period (Hull and Dobell: an odd step, a factor of 4n + 1).
        let mut next: usize = 1_013_904_223;
        for line in 0..lines {
            let to = region.base().wrapping_add((next & (lines - 1)) * LINE);
            // SAFETY: a line of the region, which is writable and aligned to pages.
            unsafe { region.base().add(line * LINE).cast::<*mut u8>().write(to) };
            next = next.wrapping_add(1_664_525);
        }
        let mut at = region.base();
        samples.take(5, ACCESSES, || {
            for _ in 0..ACCESSES {
                // SAFETY: each line holds the address of one.
                at = unsafe { at.cast::<*mut u8>().read_volatile() };
            }
        });
        black_box(at);
        Ok(())
    }

    fn gups(self, samples: &mut Samples) -> io::Result<()> {
        let region = self.filled()?;
        let (base, mask) = (region.base().cast::<u64>(), self.bytes / size_of::<u64>() - 1);
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        samples.take(5, ACCESSES, || {
            for _ in 0..ACCESSES {
                // Marsaglia's xorshift.
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                // SAFETY: the mask keeps it inside the region.
                unsafe {
                    let word = base.add(random as usize & mask);
                    word.write_volatile(word.read_volatile() ^ random);
                }
            }
        });
        Ok(())
    }

    fn stream(self, samples: &mut Samples) -> io::Result<()> {
        let region = self.filled()?;
        let words = self.bytes / size_of::<u64>() / 3;
        let [a, b, c] = [0, 1, 2].map(|array| region.base().cast::<u64>().wrapping_add(array * words));
        samples.take(3, words as u64, || {
            for index in 0..words {
                // SAFETY: three arrays of that many words are in the region, which the kernel has filled with zeroes.
                unsafe { *a.add(index) = (*b.add(index)).wrapping_add((*c.add(index)).wrapping_mul(3)) };
            }
            black_box(a);
        });
        Ok(())
    }

    fn populate(self, samples: &mut Samples) -> io::Result<()> {
        let pages = (self.bytes / PAGE) as u64;
        samples.take_prepared(
            5,
            pages,
            || must(self.region()),
            |region| {
                let (base, bytes) = (region.base().cast(), self.bytes);
                // SAFETY: the range is ours, and nothing is in it yet.
                must(check(unsafe { libc::madvise(base, bytes, libc::MADV_POPULATE_WRITE) }));
                region
            },
        );
        let region = self.region()?;
        // SAFETY: as above.
        check(unsafe { libc::madvise(region.base().cast(), self.bytes, libc::MADV_POPULATE_WRITE) })?;
        let before = faults()?;
        region.write();
        let after = faults()?;
        // SAFETY: the region is filled with zeroes, but for the first byte of each page.
        let written = unsafe { ptr::read_volatile(region.base()) };
        if after - before > 4 || written != 1 {
            return Err(io::Error::other(format!("{} page faults in populated memory", after - before)));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Length;

    #[test]
    fn names_of_rows() {
        let chase = Access { kind: Kind::Chase, huge: false, bytes: 256 << 20 };
        assert_eq!(Access::named("chase-4k-256m"), Some(chase));
        assert_eq!(
            Access::named("stream-2m-48m"),
            Some(Access { kind: Kind::Stream, huge: true, bytes: 48 << 20 })
        );
        for name in [
            "",
            "chase",
            "chase-4k",
            "chase-4k-",
            "chase-4k-m",
            "chase-8k-4m",
            "chase-4k-4m-",
            "chase-4k-3m",
            "chase-4k-0k",
            "chase-2m-128k",
            "chase-4k-99999999999m",
            "gups-4k-48m",
            "chase-4k-4\u{e4}",
            "cpuid",
        ] {
            assert_eq!(Access::named(name), None, "{name}");
        }
    }

    #[test]
    fn each_kind_takes_its_samples() {
        for (name, operations) in [
            ("chase-4k-64k", 8 * ACCESSES),
            ("gups-4k-64k", 8 * ACCESSES),
            ("stream-4k-48k", 6 * 2048),
            ("populate-4k-64k", 8 * 16),
        ] {
            let mut samples = Samples::new(Length::Usual, None);
            Access::named(name).unwrap().measure(&mut samples).unwrap();
            assert_eq!(samples.summary().operations, operations, "{name}");
        }
    }
}
