//! The software format of the P2m: no processor walks it.
//!
//! Bits 2:0 say what an entry is (0: nothing), bits 51:12 hold an address. MMIO leaves carry their own
//! guest-physical address, so that they split and merge like memory. RAM that is mapped to a cache has the number of its cache
//! domain in bits 6:3. A page that the pager holds is an MMIO leaf with bit 7 set; bit 8 says that bits 6:3 count. Bit 7 of RAM that
//! is not writable says that an equal copy of it is elsewhere.

use super::x86::{ADDRESS, leaf_address};
use super::{Entry, LeafAttr, PteFormat};
use crate::arch::addr::{Hfn, Hpa};
use crate::paging::tree_key::TreeKey;

const KIND: u64 = 7;
const TABLE: u64 = 1;
const RAM: u64 = 2;
const RAM_READ_ONLY: u64 = 3;
const ROM: u64 = 4;
const MMIO: u64 = 5;
const LOCAL: u64 = 6;
const LOCAL_READ_ONLY: u64 = 7;
/// The cache domain of the last two, and of an absent page.
const HOME: u32 = 3;
/// With [`MMIO`]: RAM that is not there.
const ABSENT: u64 = 1 << 7;
/// With RAM that is not writable.
const CLEAN: u64 = 1 << 7;
/// With [`ABSENT`]: it is mapped to a cache.
const HAS_HOME: u64 = 1 << 8;
const _: () = assert!(TreeKey::DOMAINS == 16);

/// What a guest-physical page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum P2mKind {
    /// RAM.
    Ram {
        /// If not, the hypervisor wants to see the next write before it happens.
        writable: bool,
    },
    /// Memory that the guest cannot write.
    Rom,
    /// Registers of a device on the bus.
    Mmio,
    /// RAM that is mapped to a cache: open in the tables of this cache domain, closed in those of all others.
    Local {
        /// As in [`P2mKind::Ram`].
        writable: bool,
        /// The domain, below [`TreeKey::DOMAINS`].
        home: u8,
    },
    /// RAM in fast memory whose home has the same contents, or a piece that is copied in parts, whichever way. To the engines it is not
    /// writable, but the first write is let in, and makes it plain RAM
    /// ([`P2m::translate_to_write`](crate::paging::p2m::P2m::translate_to_write)).
    Clean {
        /// The domain to whose cache it is mapped.
        home: Option<u8>,
    },
    /// RAM whose contents the pager holds ([`crate::mem::pager`]).
    Absent {
        /// The domain to whose cache it is mapped when it comes back.
        home: Option<u8>,
    },
}

impl P2mKind {
    /// Every kind.
    pub const ALL: [P2mKind; 10] = [
        P2mKind::Ram { writable: true },
        P2mKind::Ram { writable: false },
        P2mKind::Rom,
        P2mKind::Mmio,
        P2mKind::Local { writable: true, home: 0 },
        P2mKind::Local { writable: false, home: TreeKey::DOMAINS - 1 },
        P2mKind::Clean { home: None },
        P2mKind::Clean { home: Some(TreeKey::DOMAINS - 1) },
        P2mKind::Absent { home: None },
        P2mKind::Absent { home: Some(TreeKey::DOMAINS - 1) },
    ];

    /// RAM, mapped to the cache of this domain or open in all.
    pub(in crate::paging) const fn ram(writable: bool, home: Option<u8>) -> P2mKind {
        match home {
            None => P2mKind::Ram { writable },
            Some(home) => P2mKind::Local { writable, home: home % TreeKey::DOMAINS },
        }
    }
}

/// The format of the P2m.
#[derive(Debug)]
pub struct P2mFormat;

impl PteFormat for P2mFormat {
    type Attr = P2mKind;
    const HARDWARE: bool = false;
    const ACCESSED: u64 = 0;
    const DIRTY: u64 = 0;

    fn table(frame: Hfn) -> u64 {
        frame.base().0 | TABLE
    }

    fn leaf(to: Hpa, _level: u8, kind: P2mKind) -> u64 {
        to.0 | match kind {
            P2mKind::Ram { writable: true } => RAM,
            P2mKind::Ram { writable: false } => RAM_READ_ONLY,
            P2mKind::Rom => ROM,
            P2mKind::Mmio => MMIO,
            P2mKind::Local { writable: true, home } => LOCAL | u64::from(home) << HOME,
            P2mKind::Local { writable: false, home } => LOCAL_READ_ONLY | u64::from(home) << HOME,
            P2mKind::Clean { home: None } => RAM_READ_ONLY | CLEAN,
            P2mKind::Clean { home: Some(home) } => LOCAL_READ_ONLY | CLEAN | u64::from(home) << HOME,
            P2mKind::Absent { home: None } => MMIO | ABSENT,
            P2mKind::Absent { home: Some(home) } => MMIO | ABSENT | HAS_HOME | u64::from(home) << HOME,
        }
    }

    fn decode(raw: u64, level: u8) -> Entry<P2mKind> {
        let home = (raw >> HOME) as u8 & (TreeKey::DOMAINS - 1);
        let attr = match raw & KIND {
            TABLE => return Entry::Table(Hpa(raw & ADDRESS).frame()),
            RAM => P2mKind::Ram { writable: true },
            RAM_READ_ONLY if raw & CLEAN != 0 => P2mKind::Clean { home: None },
            LOCAL_READ_ONLY if raw & CLEAN != 0 => P2mKind::Clean { home: Some(home) },
            RAM_READ_ONLY => P2mKind::Ram { writable: false },
            ROM => P2mKind::Rom,
            MMIO if raw & ABSENT != 0 => P2mKind::Absent { home: (raw & HAS_HOME != 0).then_some(home) },
            MMIO => P2mKind::Mmio,
            kind @ (LOCAL | LOCAL_READ_ONLY) => P2mKind::Local { writable: kind == LOCAL, home },
            _ => return Entry::Empty,
        };
        Entry::Leaf { to: Hpa(leaf_address(raw, level)), attr }
    }
}

/// No processor walks these tables.
impl LeafAttr for P2mKind {
    fn must_flush(self, _: P2mKind) -> bool {
        false
    }

    fn is_present(self) -> bool {
        false
    }
}
