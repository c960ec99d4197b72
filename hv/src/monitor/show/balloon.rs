//! The memory that a guest gives back.

use alloc::string::String;
use core::fmt::{self, Write};

use super::Bytes;
use crate::arch::addr::PAGE_SIZE;
use crate::device::message::Messages;
use crate::monitor::view::View;
use crate::monitor::vms::{Refused, Vms};
use crate::virt::Virt;
use crate::vm::HostMemory;

/// Sets the target of a VM's balloon, if that is wanted, and shows it. The VM is one by number, or the answer that there is none.
pub fn balloon<T: Vms>(
    vms: &mut T,
    vm: Result<usize, String>,
    wanted: Option<u64>,
    answer: &mut dyn Write,
) -> fmt::Result {
    let vm = match vm {
        Ok(vm) => vm,
        Err(why) => return writeln!(answer, "{why}"),
    };
    let mut result = Ok(());
    let show = &mut |view: &mut View<'_, T::Virt, T::Memory>| result = one(view, wanted, answer);
    if vms.look(vm, show) {
        return result;
    }
    writeln!(answer, "{}", Refused::Absent.explain(vms.name(vm)))
}

fn one<V: Virt, M: HostMemory>(
    view: &mut View<'_, V, M>,
    wanted: Option<u64>,
    answer: &mut dyn Write,
) -> fmt::Result {
    let (vm, name) = (view.vm, &view.vm.name);
    if vm.virtio.balloon_counts().is_none() {
        return writeln!(
            answer,
            "{name} has no balloon: that is for guests with `overcommit` and `balloon` (pal: --overcommit --balloon)"
        );
    }
    if let Some(mib) = wanted {
        let most = vm.layout.ram_bytes() >> 20;
        let pages = mib.checked_mul((1 << 20) / PAGE_SIZE).and_then(|pages| u32::try_from(pages).ok());
        let Some(pages) = pages.filter(|_| mib < most) else {
            return writeln!(answer, "{name} has {most} MiB, and cannot give {mib} of them; ask for less");
        };
        let mut messages = Messages::new();
        vm.virtio.set_balloon(pages, &mut messages);
        vm.chipset.lock().virtio_lines(&mut messages);
        if let Some(first) = view.vcpus.first_mut() {
            first.receive(&vm.mailboxes, &mut messages);
        }
    }
    let now = vm.virtio.balloon_counts().unwrap_or_default();
    let bytes = |pages: u64| Bytes(pages.saturating_mul(PAGE_SIZE));
    writeln!(
        answer,
        "balloon of {name}: {} wanted, {} there; since its start {} in, {} out, {} of free memory reported",
        bytes(now.target.into()),
        bytes(now.actual.into()),
        bytes(now.inflated),
        bytes(now.deflated),
        bytes(now.reported)
    )?;
    let discarded = vm.pager.as_ref().map_or(0, |pager| pager.counts().discarded);
    writeln!(answer, "{} of it was in memory or compressed, and is free now", bytes(discarded))
}
