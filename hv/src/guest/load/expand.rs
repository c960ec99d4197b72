//! Expands the compressed kernel inside a bzImage (`arch/x86/boot/compressed/`, `scripts/Makefile.lib`).
//!
//! The build appends the expanded size as four little-endian bytes to every format but gzip, which ends in it
//! anyway.

use alloc::vec::Vec;

/// Magic of the lz4 "legacy" frame, the one that kernels use.
const LZ4_LEGACY: [u8; 4] = 0x184c_2102u32.to_le_bytes();
/// A legacy frame's blocks expand to this many bytes, but for the last.
const LZ4_BLOCK: usize = 8 << 20;

/// Expands `bytes` to at most `limit` bytes.
pub fn expand(bytes: &[u8], limit: u64) -> Result<Vec<u8>, &'static str> {
    let (body, size) = bytes.split_last_chunk().ok_or("the compressed part is empty")?;
    let is_expanded = body.starts_with(b"\x7fELF");
    let size = if is_expanded { bytes.len() } else { u32::from_le_bytes(*size) as usize };
    if size as u64 > limit {
        return Err("it is larger than the guest's memory; raise `memory_mib`");
    }
    let mut out = Vec::new();
    out.try_reserve_exact(size).map_err(|_| "the hypervisor has not enough memory to expand it")?;
    if is_expanded {
        out.extend_from_slice(bytes);
        return Ok(out);
    }
    out.resize(size, 0);
    let end = if let Some(blocks) = body.strip_prefix(&LZ4_LEGACY) {
        lz4(blocks, &mut out)?
    } else if body.starts_with(b"\x1f\x8b") {
        gzip(bytes, &mut out)?
    } else {
        return Err("only lz4 and gzip are supported here; extract vmlinux and give that");
    };
    if end == size { Ok(out) } else { Err("the expanded size differs from what the file says") }
}

fn lz4(mut blocks: &[u8], out: &mut [u8]) -> Result<usize, &'static str> {
    let mut end = 0;
    while let Some((size, rest)) = blocks.split_first_chunk() {
        let (block, rest) =
            rest.split_at_checked(u32::from_le_bytes(*size) as usize).ok_or("an lz4 block is cut off")?;
        let room = out.len() - end;
        let into = &mut out[end..end + room.min(LZ4_BLOCK)];
        end += lz4_flex::block::decompress_into(block, into).map_err(|_| "an lz4 block is damaged")?;
        blocks = rest;
    }
    Ok(end)
}

/// RFC 1952. The checksum is not looked at: the kernel's own expansion does not either.
fn gzip(bytes: &[u8], out: &mut [u8]) -> Result<usize, &'static str> {
    const HAS_EXTRA: u8 = 1 << 2;
    const TEXTS: [u8; 2] = [1 << 3, 1 << 4];
    const HAS_HEADER_CRC: u8 = 1 << 1;
    let damaged = "the gzip header is damaged";
    let flags = *bytes.get(3).ok_or(damaged)?;
    let mut rest = bytes.get(10..).ok_or(damaged)?;
    if flags & HAS_EXTRA != 0 {
        let (len, after) = rest.split_first_chunk().ok_or(damaged)?;
        rest = after.get(u16::from_le_bytes(*len) as usize..).ok_or(damaged)?;
    }
    for _ in TEXTS.iter().filter(|&&text| flags & text != 0) {
        let end = rest.iter().position(|&b| b == 0).ok_or(damaged)?;
        rest = &rest[end + 1..];
    }
    if flags & HAS_HEADER_CRC != 0 {
        rest = rest.get(2..).ok_or(damaged)?;
    }
    miniz_oxide::inflate::decompress_slice_iter_to_slice(out, [rest].into_iter(), false, true)
        .map_err(|_| "the gzip stream is damaged")
}
