//! Paging torture: what the processor does with page tables, against the manuals.
//!
//! `model` says what should happen; a `script` foretells, performs and compares, in long mode or in 32-bit protected mode.
//! `space` is the memory that scripts play with, a `region` the tables of a few pages. The other modules are the cases.
//!
//! The command line's word `full` does everything; `thin=N` does an N-th of the usual; `seed=N` sets the random numbers;
//! `exits` puts an instruction that leaves for a hypervisor before about every fourth step.

mod bad;
mod combos;
mod events;
mod lives;
mod model;
mod modes;
mod pcid;
mod region;
mod script;
mod sharing;
mod space;
mod trace;
mod verdict;
mod zoo;

use crate::check::{Case, Check, case, fatal};
use crate::machine::Cell;
use model::Kind;

/// All cases.
pub const CASES: &[Case] = &[
    case("torture.bits-4", |c| bits(c, Kind::Four)),
    case("torture.bits-pae", |c| bits(c, Kind::Pae)),
    case("torture.bits-2", |c| bits(c, Kind::Two)),
    case("torture.sequences-4", |c| combos::sequences(c, Kind::Four, &options())),
    case("torture.sequences-pae", |c| combos::sequences(c, Kind::Pae, &options())),
    case("torture.sequences-2", |c| combos::sequences(c, Kind::Two, &options())),
    case("torture.trace-4", |c| trace::run(c, Kind::Four)),
    case("torture.trace-pae", |c| trace::run(c, Kind::Pae)),
    case("torture.trace-2", |c| trace::run(c, Kind::Two)),
    case("torture.roots-4", |c| sharing::roots(c, Kind::Four)),
    case("torture.roots-pae", |c| sharing::roots(c, Kind::Pae)),
    case("torture.roots-2", |c| sharing::roots(c, Kind::Two)),
    case("torture.levels-4", |c| sharing::levels(c, Kind::Four)),
    case("torture.levels-pae", |c| sharing::levels(c, Kind::Pae)),
    case("torture.levels-2", |c| sharing::levels(c, Kind::Two)),
    case("torture.aliases-4", |c| sharing::aliases(c, Kind::Four)),
    case("torture.aliases-pae", |c| sharing::aliases(c, Kind::Pae)),
    case("torture.aliases-2", |c| sharing::aliases(c, Kind::Two)),
    case("torture.split-4", |c| lives::split(c, Kind::Four)),
    case("torture.split-pae", |c| lives::split(c, Kind::Pae)),
    case("torture.split-2", |c| lives::split(c, Kind::Two)),
    case("torture.reuse-4", |c| lives::reuse(c, Kind::Four)),
    case("torture.reuse-pae", |c| lives::reuse(c, Kind::Pae)),
    case("torture.reuse-2", |c| lives::reuse(c, Kind::Two)),
    case("torture.flood-4", |c| lives::flood(c, Kind::Four)),
    case("torture.flood-pae", |c| lives::flood(c, Kind::Pae)),
    case("torture.flood-2", |c| lives::flood(c, Kind::Two)),
    case("torture.all-in-one", sharing::all_in_one),
    case("torture.mode-changes", modes::changes),
    case("torture.pointers", modes::pointers),
    case("torture.pcid", pcid::run),
    case("torture.writers", zoo::run),
    case("torture.upper-writers", zoo::upper),
    case("torture.own-table", zoo::own_table),
    case("torture.idt", events::idt),
    case("torture.gdt", events::gdt),
    case("torture.stacks", events::stacks),
    case("torture.straddles", events::straddles),
    case("torture.bad-places", bad::places),
    case("torture.bad-targets", bad::targets),
    fatal("dies.cr3-in-hole", bad::cr3_in_hole),
    fatal("dies.cr3-on-apic", bad::cr3_on_apic),
];

/// How much to do.
#[derive(Clone, Copy)]
pub struct Options {
    /// Everything.
    pub full: bool,
    /// Otherwise an N-th of the usual.
    pub thin: u32,
    /// Instructions that leave for the hypervisor between the steps.
    pub exits: bool,
    /// Where random numbers begin.
    pub seed: u64,
}

static OPTIONS: Cell<Options> = Cell::new(Options { full: false, thin: 1, exits: false, seed: 1 });

/// Takes the options out of a command line's words; called once.
pub fn set_options<'a>(words: impl Iterator<Item = &'a str>) {
    let mut options = OPTIONS.get();
    for word in words {
        match word.split_once('=').map(|(name, value)| (name, value.parse())) {
            Some(("thin", Ok(value @ 1..=128))) => options.thin = value,
            Some(("seed", Ok(value))) => options.seed = value.into(),
            _ => {
                options.full |= word == "full";
                options.exits |= word == "exits";
            }
        }
    }
    OPTIONS.set(options);
}

/// The options.
pub fn options() -> Options {
    OPTIONS.get()
}

/// Pseudo-random numbers: xorshift64* (Vigna 2016).
pub struct Random(u64);

impl Random {
    /// A sequence.
    pub fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Any number.
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    /// One of 0 to `end` - 1.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// One of several.
    pub fn choose<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }
}

fn bits(c: &mut Check, kind: Kind) {
    let count = combos::run(c, kind, &options());
    crate::say!("  {kind:?}: {count} combinations");
}
