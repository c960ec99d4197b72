//! A VM's part of the fast memory, and all of their parts.

use core::fmt::{self, Write};

use abi::tiers::{ANSWER, Eviction};

use super::Bytes;
use crate::arch::addr::PAGE_SIZE;
use crate::mem::tier::sharing::EState;
use crate::mem::tier::{Tiers, TooMuch};
use crate::monitor::command::TierState;
use crate::monitor::view::View;
use crate::monitor::vms::{self, Vms};
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
        "fast memory: {} of {} that it may have; the machine has {}, {} of it free, {} page tables; divided by {}",
        frames(now.fast),
        frames(now.share),
        frames(pool.total()),
        frames(pool.free()),
        frames(pool.tables()),
        pool.sharing()
    )?;
    match (is_set, pool.sharing().has_states()) {
        (false, false) => writeln!(answer, "E-state: none is set, and {} has none", pool.sharing())?,
        (by_hand, _) => {
            let by = if by_hand { "set by hand" } else { "chosen by the policy" };
            writeln!(
                answer,
                "E-state: E{} ({}), {by}",
                state.number(),
                frames(state.frames(pool.for_pages()))
            )?;
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
    if let (Some(target), calls) = now.target {
        let (percent, tenth) = (target.per_mille() / 10, target.per_mille() % 10);
        writeln!(
            answer,
            "the guest wants {percent}.{tenth} % of its hot pages in fast memory; calls {calls}"
        )?;
    }
    let counts = now.counts;
    match now.eviction {
        Eviction::Lazy => writeln!(answer, "leave: inactive pages, when others need room (lazy)")?,
        policy => writeln!(answer, "leave: by {policy}, evictions {}", counts.evicted)?,
    }
    writeln!(
        answer,
        "moved in {}, out {} (discarded {}); busy {}, pinned {}; listed {}, dropped {}, list full {}; large leaves split {}; passes {}",
        counts.moved_in,
        counts.moved_out,
        counts.discarded,
        counts.busy,
        counts.pinned,
        counts.listed,
        counts.dropped,
        counts.overflows,
        counts.splits,
        counts.passes
    )?;
    writeln!(
        answer,
        "by 2 MiB: {} there, moved in {}, out {}, written meanwhile {}; small leaves joined {}",
        now.pieces, counts.pieces_in, counts.pieces_out, counts.pieces_written, counts.joins
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
    tiers.set_state(state).or_else(|too_much| refuse(state, too_much, answer))
}

fn refuse(state: Option<EState>, too_much: TooMuch, answer: &mut dyn Write) -> fmt::Result {
    writeln!(
        answer,
        "E{} is {}, and the E-states that are set for other VMs leave {}; lower theirs first",
        state.map_or(0, EState::number),
        frames(too_much.wanted),
        frames(too_much.left)
    )
}

/// Sets the E-state of the one with this name, and shows what all VMs have. An answer that does not begin with [`ANSWER`] says why not.
pub fn all(vms: &mut impl Vms, wanted: Option<(&str, TierState)>, answer: &mut dyn Write) -> fmt::Result {
    if let Some((name, TierState(state))) = wanted {
        let vm = match vms::find(vms, name) {
            Ok(vm) => vm,
            Err(why) => return writeln!(answer, "{why}"),
        };
        let mut done = Ok(());
        if !vms.tiers(vm, &mut |tiers| done = tiers.set_state(state)) {
            return writeln!(answer, "{name} uses no fast memory now: it has ended, or is to have none");
        }
        if let Err(too_much) = done {
            return refuse(state, too_much, answer);
        }
    }
    let mut result = Ok(());
    let mut has_head = false;
    for vm in 0..vms.count() {
        let name = vms.name(vm);
        let has_some = vms.tiers(vm, &mut |tiers| {
            let head = if has_head { Ok(()) } else { head(tiers, answer) };
            has_head = true;
            result = result.and(head).and_then(|()| row(name, tiers, answer));
        });
        if has_head && !has_some {
            result = result.and_then(|()| writeln!(answer, "{name:<16} -"));
        }
    }
    if !has_head {
        return writeln!(
            answer,
            "no VM uses fast memory: the machine has none (pal: --fast-mem), or they are to have none"
        );
    }
    result
}

/// The machine's fast memory, and the head of the table.
fn head(tiers: &Tiers, answer: &mut dyn Write) -> fmt::Result {
    let pool = tiers.pool();
    let (total, free, tables) = (frames(pool.total()), frames(pool.free()), frames(pool.tables()));
    writeln!(
        answer,
        "{ANSWER} {total}, {free} of it free, {tables} page tables; divided by {}; hot pages by {}",
        pool.sharing(),
        tiers.policy()
    )?;
    writeln!(
        answer,
        "{:<16} {:<12} {:>9} {:>10} {:>10} {:>11} {:>9} {:>9}",
        "name", "E-state", "share", "fast", "hot, slow", "working set", "moved in", "moved out"
    )
}

fn row(name: &str, tiers: &Tiers, answer: &mut dyn Write) -> fmt::Result {
    let now = tiers.view();
    let state = match (now.state, tiers.pool().sharing().has_states()) {
        ((state, true), _) => alloc::format!("E{} set", state.number()),
        ((state, false), true) => alloc::format!("E{} by policy", state.number()),
        ((_, false), false) => "-".into(),
    };
    writeln!(
        answer,
        "{name:<16} {state:<12} {:>9} {:>10} {:>10} {:>11} {:>9} {:>9}",
        frames(now.share),
        frames(now.fast),
        frames(now.waiting),
        frames(now.working_set),
        now.counts.moved_in,
        now.counts.moved_out
    )
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
