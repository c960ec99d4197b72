//! Instruction emulation for MMIO and watched memory: iced-x86 decodes, this module executes.
