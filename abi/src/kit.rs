//! The guest kit's device, `/dev/palimpsest`: a Linux program makes regions and maps memory that is in them.
//!
//! A program opens the device, makes a region by [`CREATE`], and maps memory of it: `mmap` of the file, shared, readable or
//! writable, at the offset [`OFFSET_UNIT`] times the number of the region. The kit allocates the frames, puts them into the region
//! before `mmap` returns, and takes them out when the mapping ends, as a whole: by `munmap`, by the end of the process, or
//! however else. A region ends by [`DELETE`], or when the last descriptor of the file that made it is closed. No address of a
//! program is ever passed.
//!
//! A program says by [`TARGET`] what part of the guest's hot pages it wants in fast memory. The guest asks the hypervisor for the
//! most that any open file wants.
//!
//! The errors are those of Linux, each with a name here that says what it means for this device.

use core::mem::size_of;

/// Where the device is.
pub const PATH: &str = "/dev/palimpsest";

/// The number of an ioctl as Linux forms it (`asm-generic/ioctl.h`): direction, size of the argument, type, number.
const fn ioctl(direction: u64, number: u64, argument: usize) -> u64 {
    direction << 30 | (argument as u64) << 16 | IOCTL_TYPE << 8 | number
}

/// The kernel reads the argument.
const WRITE: u64 = 1;
/// The kernel writes it.
const READ: u64 = 2;

constants! {
    /// Version of this interface. Structures grow by new ioctls, never by fields.
    VERSION: u32 = 1;
    /// The type of the ioctls, which none in Linux has.
    IOCTL_TYPE: u64 = 0xba;
    /// Version, limits, and what this file uses of them. Argument: struct palimpsest_kit_info.
    INFO: u64 = ioctl(READ, 0, size_of::<Info>());
    /// Makes a region without frames. Argument: struct palimpsest_kit_region; reads `flags`, which is 0, and writes the rest.
    CREATE: u64 = ioctl(READ | WRITE, 1, size_of::<Region>());
    /// Ends a region of this file by its `number`. Argument: struct palimpsest_kit_region.
    DELETE: u64 = ioctl(WRITE, 2, size_of::<Region>());
    /// Writes `frames` and `mappings` of a region of this file by its `number`. Argument: struct palimpsest_kit_region.
    QUERY: u64 = ioctl(READ | WRITE, 3, size_of::<Region>());
    /// Says what part of the guest's hot pages this file wants in fast memory, until it is closed. Argument: struct
    /// palimpsest_kit_target.
    TARGET: u64 = ioctl(WRITE, 4, size_of::<Target>());
    /// The offset of a region for mmap is its number times this.
    OFFSET_UNIT: u64 = 4096;
    /// Regions of a file at most.
    REGIONS_PER_FILE: u32 = 16;
    /// Regions of all programs at most: half of what a guest may have.
    REGIONS_MAX: u32 = 128;
    /// The error for a region that does not exist, or that another file has made.
    ENOENT: u64 = 2;
    /// The error for a machine without memory for the mapping, or a hypervisor without memory for its records.
    ENOMEM: u64 = 12;
    /// The error for a mapping that would be executable, or a descriptor that may not read or write as the mapping would.
    EACCES: u64 = 13;
    /// The error for an argument that cannot be read or written.
    EFAULT: u64 = 14;
    /// The error for the end of a region that has mappings.
    EBUSY: u64 = 16;
    /// The error for a guest that uses no fast memory.
    ENODEV: u64 = 19;
    /// The error for flags that mean nothing, a target that is too large, a private mapping, and a change of a part of a mapping.
    EINVAL: u64 = 22;
    /// The error for an unknown ioctl.
    ENOTTY: u64 = 25;
    /// The error for a guest that has as many regions as it may have.
    ENOSPC: u64 = 28;
    /// The error for a target on a machine that divides its fast memory by another policy than estate-qos.
    EOPNOTSUPP: u64 = 95;
    /// The error for what is over a limit: regions of the file or of all programs, RLIMIT_MEMLOCK of the user, or frames of all
    /// programs, which may have a quarter of the guest's memory.
    EDQUOT: u64 = 122;
}

/// A region of a program's.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Region {
    /// The region's number, from 1 on; the hypervisor's monitor has the same.
    pub number: u32,
    /// 0.
    pub flags: u32,
    /// Frames in it.
    pub frames: u64,
    /// Mappings that have them.
    pub mappings: u64,
}

impl Region {
    /// The fields in their order, as the C header declares them.
    pub const FIELDS: &'static [(&'static str, &'static str)] =
        &[("uint32_t", "number"), ("uint32_t", "flags"), ("uint64_t", "frames"), ("uint64_t", "mappings")];
}

/// What a file may use, and what it uses.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Info {
    /// [`VERSION`].
    pub version: u32,
    /// Regions that the file has.
    pub regions: u32,
    /// Frames in them.
    pub frames: u64,
    /// Frames that all programs have.
    pub frames_all: u64,
    /// Frames that all programs may have.
    pub frames_max: u64,
}

impl Info {
    /// The fields in their order, as the C header declares them.
    pub const FIELDS: &'static [(&'static str, &'static str)] = &[
        ("uint32_t", "version"),
        ("uint32_t", "regions"),
        ("uint64_t", "frames"),
        ("uint64_t", "frames_all"),
        ("uint64_t", "frames_max"),
    ];
}

/// What a program wants of the fast memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// Hot pages that are to be in fast memory, of 1000; 0: none in particular.
    pub per_mille: u32,
    /// 0.
    pub flags: u32,
}

impl Target {
    /// The fields in their order, as the C header declares them.
    pub const FIELDS: &'static [(&'static str, &'static str)] =
        &[("uint32_t", "per_mille"), ("uint32_t", "flags")];
}

const _: () = assert!(size_of::<Region>() == 24 && size_of::<Info>() == 32 && size_of::<Target>() == 8);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ioctls_are_numbered_as_linux_does_it() {
        // `_IOR(0xba, 0, 32 bytes)` and so on, by asm-generic/ioctl.h.
        assert_eq!([INFO, CREATE, DELETE, QUERY], [0x8020_ba00, 0xc018_ba01, 0x4018_ba02, 0xc018_ba03]);
        assert_eq!(TARGET, 0x4008_ba04);
    }

    #[test]
    fn programs_leave_regions_to_the_kernel() {
        assert!(u64::from(REGIONS_MAX) < crate::hypercall::REGIONS_MAX);
    }
}
