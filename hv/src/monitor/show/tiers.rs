//! A VM's part of the fast memory.

use core::fmt::{self, Write};

use abi::tiers::Sharing;

use super::Bytes;
use crate::arch::addr::PAGE_SIZE;
use crate::mem::tier::Tiers;
use crate::mem::tier::sharing::EState;
use crate::monitor::command::TierState;
use crate::monitor::view::View;
use crate::virt::Virt;
use crate::vm::HostMemory;

fn frames(frames: u32) -> Bytes {
    Bytes(u64::from(frames) * PAGE_SIZE)
}

/// What it has, and what has moved.
pub fn tiers<V: Virt, M: HostMemory>(view: &View<'_, V, M>, answer: &mut dyn Write) -> fmt::Result {
    let Some(tiers) = &view.vm.tiers else {
        return writeln!(
            answer,
            "{} uses no fast memory: the machine has none (pal: --fast-mem), or the VM is to have none",
            view.vm.name
        );
    };
    let (pool, now) = (tiers.pool(), tiers.view());
    let (state, is_set) = now.state;
    writeln!(
        answer,
        "fast memory: {} of {} that it may have; the machine has {}, {} of it free; divided by {}",
        frames(now.fast),
        frames(now.share),
        frames(pool.total()),
        frames(pool.free()),
        pool.sharing()
    )?;
    let is_driven = matches!(pool.sharing(), Sharing::EstateQos | Sharing::EstateResource);
    match (is_set, is_driven) {
        (false, false) => writeln!(answer, "E-state: none is set, and {} has none", pool.sharing())?,
        (by_hand, _) => {
            let by = if by_hand { "set by hand" } else { "chosen by the policy" };
            writeln!(answer, "E-state: E{} ({}), {by}", state.number(), frames(state.frames(pool.total())))?;
        }
    }
    writeln!(
        answer,
        "hot pages ({}, from {} of 32 samples on): {} in slow memory, {} moves due; working set {}",
        tiers.policy(),
        now.hot,
        now.waiting,
        now.pending,
        frames(now.working_set)
    )?;
    let counts = now.counts;
    writeln!(
        answer,
        "moved in {}, out {}; busy {}, pinned {}; listed {}, dropped {}, list full {}; large leaves split {}; passes {}",
        counts.moved_in,
        counts.moved_out,
        counts.busy,
        counts.pinned,
        counts.listed,
        counts.dropped,
        counts.overflows,
        counts.splits,
        counts.passes
    )
}

/// Sets its E-state.
pub fn set<V: Virt, M: HostMemory>(
    view: &View<'_, V, M>,
    state: TierState,
    answer: &mut dyn Write,
) -> fmt::Result {
    let Some(tiers) = &view.vm.tiers else { return Ok(()) };
    let TierState(state) = state;
    tiers.set_state(state).or_else(|too_much| {
        writeln!(
            answer,
            "E{} is {}, and the E-states that are set for other VMs leave {}; lower theirs first",
            state.map_or(0, EState::number),
            frames(too_much.wanted),
            frames(too_much.left)
        )
    })
}

/// The lines of `stats`.
pub fn brief(tiers: &Tiers, answer: &mut dyn Write) -> fmt::Result {
    let now = tiers.view();
    writeln!(
        answer,
        "fast memory: {} of {}; pages moved in {}, out {}",
        frames(now.fast),
        frames(now.share),
        now.counts.moved_in,
        now.counts.moved_out
    )
}
