//! The monitor: a command line on the serial console to look at and control running VMs.
