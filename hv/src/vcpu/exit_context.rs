//! What the handlers of exits share.

use crate::vcpu::Vcpu;
use crate::virt::Virt;
use crate::vm::{HostMemory, Vm};

/// An exit of a VCPU: whose it is, where it happened and when. Handlers that need all of it take it by value: in inlined code its
/// fields then stay in registers, and it costs nothing where it is only handed on.
pub struct ExitContext<'a, V: Virt, M: HostMemory, H> {
    /// The VCPU that left the guest.
    pub vcpu: &'a mut Vcpu<V>,
    /// Its VM.
    pub vm: &'a Vm<V::NestedFormat, M>,
    /// The PCPU on which it runs.
    pub host: &'a mut H,
    /// The host's TSC when the exit came.
    pub tsc: u64,
}
