//! Address kinds as types of their own, so that they do not mix.
//!
//! `Gva`: guest-virtual (after segmentation: linear), `Gpa`: guest-physical, `Hpa`: host-physical.
//! A `Gfn`/`Hfn` is the number of a 4 KiB frame.

use core::fmt;

/// log2 of the base page size.
pub const PAGE_SHIFT: u32 = 12;
/// The base page size in bytes.
pub const PAGE_SIZE: u64 = 1 << PAGE_SHIFT;

/// The size of a leaf mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PageSize {
    /// 4 KiB
    Size4K,
    /// 2 MiB
    Size2M,
    /// 1 GiB
    Size1G,
}

impl PageSize {
    /// All sizes, smallest first.
    pub const ALL: [PageSize; 3] = [PageSize::Size4K, PageSize::Size2M, PageSize::Size1G];

    /// log2 of the size in bytes.
    pub const fn shift(self) -> u32 {
        match self {
            PageSize::Size4K => 12,
            PageSize::Size2M => 21,
            PageSize::Size1G => 30,
        }
    }

    /// The size in bytes.
    pub const fn bytes(self) -> u64 {
        1 << self.shift()
    }

    /// The table level that holds leaves of this size: 1 for 4 KiB, 2 for 2 MiB, 3 for 1 GiB.
    pub const fn level(self) -> u8 {
        match self {
            PageSize::Size4K => 1,
            PageSize::Size2M => 2,
            PageSize::Size1G => 3,
        }
    }
}

macro_rules! address {
    ($name:ident, $frame:ident, $what:literal) => {
        #[doc = concat!("A ", $what, " address in bytes.")]
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(pub u64);

        impl $name {
            /// The frame that holds this address.
            pub const fn frame(self) -> $frame {
                $frame(self.0 >> PAGE_SHIFT)
            }
            /// The offset within the 4 KiB frame.
            pub const fn offset(self) -> u64 {
                self.0 & (PAGE_SIZE - 1)
            }
            /// Rounds down to a multiple of `size`, which is a power of two.
            pub const fn align_down(self, size: u64) -> Self {
                $name(self.0 & !(size - 1))
            }
            /// Rounds up to a multiple of `size`, a power of two; `None` on overflow.
            pub const fn align_up(self, size: u64) -> Option<Self> {
                match self.0.checked_add(size - 1) {
                    Some(sum) => Some($name(sum & !(size - 1))),
                    None => None,
                }
            }
            /// Whether this is a multiple of `size`, a power of two.
            pub const fn is_aligned(self, size: u64) -> bool {
                self.0 & (size - 1) == 0
            }
            /// `self + bytes`, or `None` on overflow.
            pub const fn checked_add(self, bytes: u64) -> Option<Self> {
                match self.0.checked_add(bytes) {
                    Some(sum) => Some($name(sum)),
                    None => None,
                }
            }
            /// `self + bytes` modulo 2^64.
            pub const fn wrapping_add(self, bytes: u64) -> Self {
                $name(self.0.wrapping_add(bytes))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }
        impl fmt::LowerHex for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::LowerHex::fmt(&self.0, f)
            }
        }
    };
}

macro_rules! frame {
    ($name:ident, $address:ident, $what:literal) => {
        #[doc = concat!("The number of a ", $what, " 4 KiB frame.")]
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(pub u64);

        impl $name {
            /// The address of the first byte.
            pub const fn base(self) -> $address {
                $address(self.0 << PAGE_SHIFT)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }
    };
}

address!(Gva, Gvfn, "guest-virtual");
address!(Gpa, Gfn, "guest-physical");
address!(Hpa, Hfn, "host-physical");
frame!(Gvfn, Gva, "guest-virtual");
frame!(Gfn, Gpa, "guest-physical");
frame!(Hfn, Hpa, "host-physical");

/// Whether bits 63:47 of an address are equal: others cannot be accessed in 64-bit mode with 4-level paging.
pub const fn is_canonical(gva: Gva) -> bool {
    let top = (gva.0 as i64) >> 47;
    top == 0 || top == -1
}
