//! Which VCPU runs on which PCPU, and for how long.
//!
//! Pure: time comes as an argument, interrupts to other PCPUs leave as values. The run loop of each PCPU calls it. The
//! decision is explained in `docs/design/0012-scheduler.md`, what a user sees in `docs/scheduler.md`.

pub mod topology;
pub mod types;
