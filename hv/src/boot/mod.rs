//! From the boot loader to a running PCPU: entry code, memory map, modules, command line.
