//! How a PCPU takes a lock whose holder may be waiting for that same PCPU to forget translations.
//!
//! What must hold: every PCPU waits for such a lock in this way, and also for any lock whose holder may wait for it: otherwise
//! the holder's shootdown would never be answered. A PCPU that has answered while it waited reads its VCPU's mailbox before it
//! enters the guest.
//!
//! Of a readers-writer lock, new readers wait behind a waiting writer ([`Writers`]): otherwise two alternating readers could
//! starve it.

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

/// The number of waiting writers. What must hold: readers must not re-enter: a waiting writer would deadlock them, since the
/// second attempt waits for the writer and the writer waits for the first.
#[derive(Debug, Default)]
pub struct Writers(AtomicU32);

impl Writers {
    /// Takes a lock to write: present readers finish, and no new one begins.
    pub fn write<'a, T>(&self, lock: &'a RwLock<T>, mut answer: impl FnMut()) -> RwLockWriteGuard<'a, T> {
        self.0.fetch_add(1, Ordering::Relaxed);
        // An upgradeable reader keeps new readers out, while those that are in finish.
        let mut next = Some(take(|| lock.try_upgradeable_read(), &mut answer));
        let upgrade = || next.take()?.try_upgrade().map_err(|refused| next = Some(refused)).ok();
        let taken = take(upgrade, answer);
        self.0.fetch_sub(1, Ordering::Relaxed);
        taken
    }

    /// Waits between a failed attempt to read and the next one. An attempt counts as a reader for a moment (`spin::RwLock`), so
    /// constant attempts could keep a writer out: there are none while a writer waits.
    pub fn let_pass(&self, mut answer: impl FnMut()) {
        answer();
        take(|| (self.0.load(Ordering::Relaxed) == 0).then_some(()), answer);
    }
}

#[cfg(test)]
mod tests;
