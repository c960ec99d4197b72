//! Telemetry: one JSON line per record, versioned schema.

pub mod json;
