//! How a PCPU takes a lock whose holder may be waiting for that same PCPU to forget translations.
//!
//! What must hold: nobody waits in any other way for such a lock, nor for one that is held by somebody who waits for it. Who has
//! answered while it waited looks into its VCPU's mailbox before it enters the guest.

/// Tries until `attempt` has the lock. `answer`, called in between, answers what others ask of this PCPU, and pauses.
pub fn take<T>(mut attempt: impl FnMut() -> Option<T>, mut answer: impl FnMut()) -> T {
    loop {
        if let Some(taken) = attempt() {
            return taken;
        }
        answer();
    }
}

#[cfg(test)]
mod tests;
