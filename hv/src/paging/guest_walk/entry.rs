//! What a single entry of a guest table says, apart from the rights in it.

use super::PagingState;
use super::kind::{FourLevel, Kind, Pae, TwoLevel};
use super::state::PagingKind;
use crate::arch::addr::Gpa;
use crate::arch::state::cr4;
use crate::paging::format::x86::{self, ADDRESS, GLOBAL, PRESENT};

/// The meaning of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// Walks fault here.
    NotPresent,
    /// Walks fault here with RSVD.
    Reserved,
    /// The table of the next lower level.
    Table(Gpa),
    /// A page.
    Page {
        /// Its first address.
        gpa: Gpa,
        /// log2 of its size: 12, 21, 22 or 30.
        shift: u8,
        /// The PAT index, 0 to 7.
        pat: u8,
        /// The page is global (and CR4.PGE is set).
        global: bool,
    },
}

/// What `raw` means in a table of `level` under these registers, of which CR3 and CPL do not matter. Without
/// paging nothing is present.
pub fn meaning(state: &PagingState, level: u8, raw: u64) -> Meaning {
    match state.kind() {
        PagingKind::Off => Meaning::NotPresent,
        PagingKind::TwoLevel => of_kind::<TwoLevel>(state, level, raw),
        PagingKind::Pae => of_kind::<Pae>(state, level, raw),
        PagingKind::FourLevel => of_kind::<FourLevel>(state, level, raw),
    }
}

fn of_kind<K: Kind>(state: &PagingState, level: u8, raw: u64) -> Meaning {
    if raw & PRESENT == 0 {
        return Meaning::NotPresent;
    }
    let leaf = K::is_leaf(state, raw, level);
    if raw & K::reserved(state, level, leaf) != 0 {
        return Meaning::Reserved;
    }
    if !leaf {
        return Meaning::Table(Gpa(raw & ADDRESS));
    }
    Meaning::Page {
        gpa: Gpa(if level == 1 { raw & ADDRESS } else { K::large_address(raw, level) }),
        shift: K::shift(level) as u8,
        pat: x86::pat_index(raw, level),
        global: raw & GLOBAL != 0 && state.cr4 & cr4::PGE != 0,
    }
}
