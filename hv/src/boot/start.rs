//! What the hypervisor does once the host is up.

use super::host::Host;
use crate::hw::pm;

/// Everything after bring-up.
pub fn main(host: &'static Host) -> ! {
    log::debug!("{:?}", host.boot);
    pm::end_machine(pm::STATUS_OK)
}
