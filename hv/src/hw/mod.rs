//! One function per privileged instruction, and the few host devices that the hypervisor drives itself.
