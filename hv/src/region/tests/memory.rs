//! What the records of a VM's memory take of it.

use crate::arch::addr::PAGE_SIZE;
use crate::mem::frame_record::FrameRecord;
use crate::mem::tier::Tiers;
use crate::region::partition::Partition;
use crate::region::rounds::Rounds;

/// Bytes for each frame of a VM with this much memory.
struct Bytes {
    partition: f64,
    histories: f64,
    rounds: f64,
    /// Lists of pages in tiers, with an eighth as much fast memory.
    lists: f64,
}

impl Bytes {
    fn new(mib: usize) -> Bytes {
        let frames = (mib << 20) / PAGE_SIZE as usize;
        // The tables of pieces are a 512th.
        let each = |bytes: usize| (bytes + bytes / 512) as f64 / frames as f64;
        Bytes {
            partition: each(Partition::bytes_for(frames)),
            histories: each(Partition::history_bytes_for(frames)),
            rounds: each(Rounds::bytes_for(frames)),
            lists: each(Tiers::bytes_for(frames as u32, frames as u32 / 8)),
        }
    }

    /// Per cent of the VM's memory that `--regions` takes, with the record that each frame of the host has.
    fn of_regions(&self) -> f64 {
        let frame = size_of::<FrameRecord>() as f64;
        100.0 * (self.partition + self.histories + self.rounds + frame) / PAGE_SIZE as f64
    }
}

/// The goal of all records of regions is 1.5 % of guest memory, that of histories and lists 16 bytes for a frame.
#[test]
fn all_records_take_a_small_share_of_memory() {
    for mib in [64, 512, 4096, 65_536] {
        let bytes = Bytes::new(mib);
        let Bytes { partition, histories, rounds, lists } = &bytes;
        let (percent, sum) = (bytes.of_regions(), histories + lists);
        println!(
            "{mib} MiB: for a frame {partition:.1} bytes of the partition, {histories:.1} of histories, {rounds:.1} of rounds, {lists:.1} of tiers; \
             regions {percent:.2} % with frame records; histories and lists {sum:.1} bytes"
        );
        assert!(percent <= 1.5 && sum <= 16.0, "{mib} MiB");
    }
}
