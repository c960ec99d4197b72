//! The regions that a guest has divided its memory into.

use core::fmt::{self, Write};

use super::Bytes;
use crate::arch::addr::PAGE_SHIFT;
use crate::monitor::view::View;
use crate::region::Kind;
use crate::virt::Virt;
use crate::vm::HostMemory;

/// The guest's regions by its numbers, and what it has asked for.
pub fn regions<V: Virt, M: HostMemory>(view: &View<'_, V, M>, answer: &mut dyn Write) -> fmt::Result {
    // No VCPU of a VM that is shown runs.
    let records = view.vm.regions.lock(core::hint::spin_loop);
    let Some(regions) = &*records else {
        return writeln!(answer, "the guest has defined no regions; docs/guest-kit.md has the calls");
    };
    writeln!(answer, "region  kind     caches    frames  memory")?;
    let partition = regions.partition();
    let mut sum = 0;
    for (number, info) in regions.list().filter_map(|(number, rid)| Some((number, partition.info(rid)?))) {
        let frames = u64::from(info.frames);
        sum += frames;
        let (kind, cache) = name(info.kind);
        write!(answer, "{number:>6}  {kind:<8} ")?;
        match cache {
            None => write!(answer, "all   ")?,
            Some(domain) => write!(answer, "{domain:<6}")?,
        }
        writeln!(answer, "{frames:>10}  {}", Bytes(frames << PAGE_SHIFT))?;
    }
    let counts = regions.counts();
    writeln!(
        answer,
        "{sum} of {} frames are in regions; calls performed {}, refused {}; records {}",
        partition.frames(),
        counts.performed,
        counts.refused,
        Bytes(partition.bytes() as u64)
    )
}

/// A kind by its name, and the cache that it is mapped to.
fn name(kind: Kind) -> (&'static str, Option<u8>) {
    match kind {
        Kind::Seed => ("seed", None),
        Kind::Regular => ("regular", None),
        Kind::Local(domain) => ("local", Some(domain.number())),
        Kind::Shared => ("shared", None),
        Kind::Global => ("global", None),
    }
}
