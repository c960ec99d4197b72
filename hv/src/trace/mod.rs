//! Telemetry: one JSON line per record, versioned schema.
