//! Loaders: from files in boot modules to a guest that is ready to run.
