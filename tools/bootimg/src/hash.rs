//! Hashes of contents.

use std::fmt::Write;

use sha2::{Digest, Sha256};

/// The SHA-256 hash in hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
