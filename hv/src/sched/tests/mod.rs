//! The scheduler in simulated time.
//!
//! Tests with seeds run more of them with `SOAK=n`, from `FIRST_SEED=n` on.

#![allow(clippy::float_arithmetic)]

mod binding;
mod caps;
mod fairness;
mod moving;
mod sim;
mod waking;
