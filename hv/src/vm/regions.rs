//! The regions of a VM's memory that its guest has defined. The records exist from the guest's first call on, until a reset.

use alloc::boxed::Box;

use spin::{Mutex, MutexGuard};

use crate::arch::addr::PAGE_SHIFT;
use crate::mem::pieces::OutOfMemory;
use crate::region::guest::GuestRegions;
use crate::vm::layout::MemoryLayout;
use crate::{arch::addr::Gfn, smp::lock};

/// See the module.
#[derive(Debug, Default)]
pub struct Regions(Mutex<Option<Box<GuestRegions>>>);

impl Regions {
    /// Locks them on behalf of a VCPU; between two attempts its PCPU does what `wait` says. A request takes no longer than
    /// [`MAX_FRAMES`](crate::region::guest::MAX_FRAMES) frames, the first one as long as the VM's memory is large.
    pub fn lock(&self, wait: impl FnMut()) -> MutexGuard<'_, Option<Box<GuestRegions>>> {
        lock::take(|| self.0.try_lock(), wait)
    }

    /// The records, which are made if there are none.
    ///
    /// # Errors
    /// The host has no memory for them.
    pub fn records(
        slot: &mut Option<Box<GuestRegions>>,
        layout: MemoryLayout,
    ) -> Result<&mut GuestRegions, OutOfMemory> {
        if slot.is_none() {
            let frames = layout
                .ram()
                .into_iter()
                .map(|ram| Gfn(ram.start.0 >> PAGE_SHIFT)..Gfn(ram.end.0 >> PAGE_SHIFT));
            *slot = Some(Box::new(GuestRegions::new(frames)?));
        }
        slot.as_deref_mut().ok_or(OutOfMemory)
    }

    /// Ends all regions, for a reset. No VCPU runs.
    pub fn forget(&self) {
        *self.0.lock() = None;
    }
}
