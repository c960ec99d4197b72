//! stub
/// x
pub fn fuzz_one(_data: &[u8]) {}
