//! How a PCPU takes a lock whose holder may be waiting for that same PCPU to forget translations.
//!
//! What must hold: nobody waits in any other way for such a lock, nor for one that is held by somebody who waits for it. Who has
//! answered while it waited looks into its VCPU's mailbox before it enters the guest.
//!
//! Of a lock with many readers and one writer, readers that come after a writer wait for it ([`Writers`]): else two that read by
//! turns could keep it out for ever.

use core::sync::atomic::{AtomicU32, Ordering};

use spin::{RwLock, RwLockWriteGuard};

/// Tries until `attempt` has the lock. `answer`, called in between, answers what others ask of this PCPU, and pauses.
#[inline(always)]
pub fn take<T>(mut attempt: impl FnMut() -> Option<T>, mut answer: impl FnMut()) -> T {
    loop {
        if let Some(taken) = attempt() {
            return taken;
        }
        answer();
    }
}

/// Those who wait to write to what others read. What must hold: who reads already does not try to read again, for it may have to
/// wait for a writer that waits for it.
#[derive(Debug, Default)]
pub struct Writers(AtomicU32);

impl Writers {
    /// Takes a lock to write: those who read end that, and nobody begins to any more.
    pub fn write<'a, T>(&self, lock: &'a RwLock<T>, mut answer: impl FnMut()) -> RwLockWriteGuard<'a, T> {
        self.0.fetch_add(1, Ordering::Relaxed);
        let mut next = Some(take(|| lock.try_upgradeable_read(), &mut answer));
        let upgrade = || next.take()?.try_upgrade().map_err(|refused| next = Some(refused)).ok();
        let taken = take(upgrade, answer);
        self.0.fetch_sub(1, Ordering::Relaxed);
        taken
    }

    /// Waits after an attempt to read that has failed, and before the next one. Attempts count as readers for a moment, and if many
    /// made them all the time there would always be some: so nobody does while somebody waits to write.
    pub fn let_pass(&self, mut answer: impl FnMut()) {
        answer();
        take(|| (self.0.load(Ordering::Relaxed) == 0).then_some(()), answer);
    }
}

#[cfg(test)]
mod tests;
