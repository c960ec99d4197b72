//! What the hypervisor does once the host is up.

use super::host::Host;
use crate::hw::pm;
use crate::mem::frame;

/// Everything after bring-up.
pub fn main(host: &'static Host) -> ! {
    log::info!("{:?}", host.boot);
    log::info!("{:?}", frame::stats());
    pm::end_machine(0)
}
