//! What the hypervisor does once the host is up.

use super::host::Host;

/// Everything after bring-up.
pub fn main(host: &'static Host) -> ! {
    log::debug!("{:?}", host.boot);
    crate::vmm::main(host)
}
