//! What a pager has done, for statistics.

/// Numbers of pages, unless they say something else; since the VM's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Accesses to absent pages.
    pub faults: u64,
    /// Of these, to pages that had been evicted.
    pub refaults: u64,
    /// Pages brought in.
    pub came_in: u64,
    /// Pages that were accessed on their way out, and stayed.
    pub rescued: u64,
    /// Pages evicted.
    pub went_out: u64,
    /// Of these, pages of zeroes, which take no room.
    pub zero_pages: u64,
    /// Of these, pages that did not compress, and are kept as they are.
    pub incompressible: u64,
    /// Pages whose contents were dropped at the guest's wish.
    pub discarded: u64,
    /// Bytes of the pages that were compressed, and what they became.
    pub compressed_from: u64,
    /// See [`compressed_from`](Self::compressed_from).
    pub compressed_to: u64,
    /// Ticks that bringing in took.
    pub in_ticks: u64,
    /// Ticks that storing took.
    pub out_ticks: u64,
    /// Pages in frames now.
    pub resident: u64,
    /// Pages in the store now.
    pub stored: u64,
    /// Frames of the store now.
    pub store_frames: u64,
    /// Pages on the disk now.
    pub on_disk: u64,
    /// Pages that came back from the disk.
    pub from_disk: u64,
    /// Runs read from the disk.
    pub disk_reads: u64,
    /// Writes to the disk, of up to a run each.
    pub disk_writes: u64,
}

impl Counts {
    /// Each with its name in records.
    pub fn named(&self) -> [(&'static str, u64); 19] {
        use abi::telemetry::key;
        [
            (key::FAULTS, self.faults),
            (key::REFAULTS, self.refaults),
            (key::CAME_IN, self.came_in),
            (key::RESCUED, self.rescued),
            (key::WENT_OUT, self.went_out),
            (key::ZERO_PAGES, self.zero_pages),
            (key::INCOMPRESSIBLE, self.incompressible),
            (key::DISCARDED, self.discarded),
            (key::COMPRESSED_FROM, self.compressed_from),
            (key::COMPRESSED_TO, self.compressed_to),
            (key::IN_TICKS, self.in_ticks),
            (key::OUT_TICKS, self.out_ticks),
            (key::RESIDENT, self.resident),
            (key::STORED, self.stored),
            (key::STORE_FRAMES, self.store_frames),
            (key::ON_DISK, self.on_disk),
            (key::FROM_DISK, self.from_disk),
            (key::DISK_READS, self.disk_reads),
            (key::DISK_WRITES, self.disk_writes),
        ]
    }
}
