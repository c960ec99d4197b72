//! The locks and atomics of the scheduler, in one place so that a model checker can put its own in.
//!
//! `tests/sched-loom` compiles the scheduler's source with `loom_model` set and looks at every order of its steps.

#[cfg(not(loom_model))]
pub(super) use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
#[cfg(loom_model)]
pub(super) use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

#[cfg(loom_model)]
pub(super) use loom::sync::MutexGuard as Guard;
#[cfg(not(loom_model))]
pub(super) use spin::MutexGuard as Guard;

/// A spin lock.
pub(super) struct Lock<T> {
    #[cfg(not(loom_model))]
    inner: spin::Mutex<T>,
    #[cfg(loom_model)]
    inner: loom::sync::Mutex<T>,
}

impl<T> Lock<T> {
    pub(super) fn new(value: T) -> Lock<T> {
        #[cfg(not(loom_model))]
        return Lock { inner: spin::Mutex::new(value) };
        #[cfg(loom_model)]
        return Lock { inner: loom::sync::Mutex::new(value) };
    }

    #[inline]
    pub(super) fn lock(&self) -> Guard<'_, T> {
        #[cfg(not(loom_model))]
        return self.inner.lock();
        #[cfg(loom_model)]
        return self.inner.lock().expect("no thread panics in a model that goes on");
    }
}
