//! Sizes of the XSAVE area (Intel SDM 1, 13.4.2 and 13.4.3).

use super::Regs;

/// The legacy region and the XSAVE header.
const HEADER: u32 = 512 + 64;
/// Components beyond x87 and SSE: bits 2 to 9 of XCR0.
const FIRST: usize = 2;
const COUNT: usize = 8;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Component {
    size: u32,
    offset: u32,
    aligned: bool,
}

/// Size and place of each state component.
#[derive(Clone, Copy, Debug, Default)]
pub struct XsaveSizes {
    components: [Component; COUNT],
}

impl XsaveSizes {
    /// Reads leaf 0xd of the host.
    pub fn new(host: impl Fn(u32, u32) -> Regs) -> Self {
        let component = |i| {
            let [size, offset, flags, _] = host(0xd, (i + FIRST) as u32);
            Component { size, offset, aligned: flags & 2 != 0 }
        };
        XsaveSizes { components: core::array::from_fn(component) }
    }

    /// Size of the standard form with these components enabled.
    pub fn standard(&self, xcr0: u64) -> u32 {
        self.enabled(xcr0).map(|c| c.offset.saturating_add(c.size)).fold(HEADER, u32::max)
    }

    /// Size of the compacted form with these components enabled.
    pub fn compact(&self, xcr0: u64) -> u32 {
        self.enabled(xcr0).fold(HEADER, |end, c| {
            let start = if c.aligned { end.saturating_add(63) & !63 } else { end };
            start.saturating_add(c.size)
        })
    }

    fn enabled(&self, xcr0: u64) -> impl Iterator<Item = &Component> {
        self.components.iter().enumerate().filter(move |(i, _)| xcr0 >> (i + FIRST) & 1 != 0).map(|(_, c)| c)
    }
}
