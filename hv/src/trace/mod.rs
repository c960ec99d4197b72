//! Telemetry: one JSON line per record, versioned schema; and the counters that records report.

pub mod cost;
pub mod exits;
pub mod json;
pub mod record;
