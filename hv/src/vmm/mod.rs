//! What the hypervisor does once the host is up: makes the guests that the boot modules describe, runs them, reports how
//! they end.
//!
//! Called by `boot` with the running host; the only place that knows both the machine and the guests.

#[cfg(feature = "baremetal")]
mod backend;
#[cfg_attr(not(feature = "baremetal"), allow(dead_code))]
mod console;
#[cfg(feature = "baremetal")]
mod console_port;
#[cfg(feature = "baremetal")]
mod counters;
#[cfg_attr(not(feature = "baremetal"), allow(dead_code))]
mod domains;
#[cfg_attr(not(feature = "baremetal"), allow(dead_code))]
mod escapes;
#[cfg(feature = "baremetal")]
mod guest;
#[cfg(feature = "baremetal")]
mod idle;
#[cfg(feature = "baremetal")]
mod lab_time;
#[cfg(feature = "baremetal")]
mod lifecycle;
#[cfg(feature = "baremetal")]
mod machine;
#[cfg(feature = "baremetal")]
mod memory;
#[cfg(feature = "baremetal")]
mod overcommit;
#[cfg_attr(not(feature = "baremetal"), allow(dead_code))]
mod page_disk;
#[cfg(feature = "baremetal")]
mod pcpu;
#[cfg(feature = "baremetal")]
mod pcpus;
#[cfg(feature = "baremetal")]
mod records;
#[cfg_attr(not(feature = "baremetal"), allow(dead_code))]
pub mod report;
#[cfg_attr(not(feature = "baremetal"), allow(dead_code))]
mod restart;
#[cfg(feature = "baremetal")]
mod selftest_shootdown;
#[cfg(feature = "baremetal")]
mod session;
#[cfg(feature = "baremetal")]
mod shootdown;
#[cfg(feature = "baremetal")]
mod start;
#[cfg_attr(not(feature = "baremetal"), allow(dead_code))]
mod state;
#[cfg(feature = "baremetal")]
mod telemetry;
#[cfg(feature = "baremetal")]
mod tiers;
#[cfg(feature = "baremetal")]
mod worker;
