//! Table entry formats: these modules know bits, walkers and mappers do not.
