//! One virtual processor: the run loop, the dispatch of exits, instruction emulation.

pub mod emulate;
