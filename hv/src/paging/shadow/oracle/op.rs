//! What the guest and its surroundings do, decoded from 64 bits each: small numbers are simple, and any number is
//! something.

use crate::arch::Access;
use crate::paging::engine::Engine;
use crate::paging::guest_walk::PagingKind;

/// One operation. Probes are numbers of addresses, `random` feeds what has many forms.
#[derive(Clone, Copy, Debug)]
pub enum Op {
    /// An access; a write may change a table if one is there.
    Access {
        probe: usize,
        access: Access,
        random: u64,
    },
    /// The guest changes an entry on the way of a probe, through a mapping if there is one.
    Store {
        probe: usize,
        depth: usize,
        random: u64,
    },
    /// The same for several entries of the last table on the way.
    Burst {
        probe: usize,
        count: u64,
        random: u64,
    },
    /// What kernels do: use an address, change the entry of the page, flush, use it again.
    Remap {
        probe: usize,
        random: u64,
    },
    /// A page that was written becomes a table.
    Adopt {
        probe: usize,
        random: u64,
    },
    /// A device writes.
    Dma {
        random: u64,
    },
    Invlpg {
        probe: usize,
    },
    FlushAll,
    /// A load of CR3: a root, or the same again.
    Cr3 {
        same: bool,
        random: u64,
    },
    /// Other values of CR0.WP, CR4.PGE, PSE, SMEP, SMAP, EFER.NXE.
    Registers {
        random: u64,
    },
    /// Another kind of paging.
    Kind {
        kind: PagingKind,
        random: u64,
    },
    /// CPL and RFLAGS.AC.
    Privilege {
        cpl: u8,
        ac: bool,
    },
    P2m {
        random: u64,
    },
    /// Memory moves to other frames with its contents.
    Move {
        random: u64,
    },
    /// The VM gets another policy.
    Policy {
        random: u64,
    },
    /// The VCPU's state changes: an engine that it can run on is none any more, or all are.
    Exclude {
        engine: Option<Engine>,
    },
}

/// Digits of a number of mixed bases.
struct Digits(u64);

impl Digits {
    fn take(&mut self, base: u64) -> u64 {
        let digit = self.0 % base;
        self.0 /= base;
        digit
    }
}

impl Op {
    /// The operation that a number stands for, with `probes` probes.
    pub fn decode(number: u64, probes: usize) -> Op {
        let mut digits = Digits(number);
        let what = digits.take(128);
        let mut probe = || digits.take(probes as u64) as usize;
        match what {
            0..36 => {
                let probe = probe();
                let access = [Access::READ, Access::WRITE, Access::FETCH][digits.take(3) as usize];
                let access = if digits.take(2) == 0 { access } else { access.user() };
                Op::Access { probe, access, random: digits.0 }
            }
            36 => Op::Adopt { probe: probe(), random: digits.0 },
            37..48 => Op::Remap { probe: probe(), random: digits.0 },
            48..76 => Op::Store { probe: probe(), depth: digits.take(4) as usize, random: digits.0 },
            76..82 => Op::Burst { probe: probe(), count: 2 + digits.take(5), random: digits.0 },
            82..86 => Op::Dma { random: digits.0 },
            86..102 => Op::Invlpg { probe: probe() },
            102..104 => Op::FlushAll,
            104..114 => Op::Cr3 { same: digits.take(3) == 0, random: digits.0 },
            114..117 => Op::Registers { random: digits.0 },
            117..119 => {
                let kinds = [PagingKind::Off, PagingKind::TwoLevel, PagingKind::Pae, PagingKind::FourLevel];
                Op::Kind { kind: kinds[digits.take(4) as usize], random: digits.0 }
            }
            119..122 => Op::Privilege { cpl: digits.take(4) as u8, ac: digits.take(2) != 0 },
            122 => Op::Move { random: digits.0 },
            123..125 => Op::P2m { random: digits.0 },
            125 | 126 => Op::Policy { random: digits.0 },
            _ => Op::Exclude {
                engine: [None, None, Some(Engine::Agile), Some(Engine::Nested), Some(Engine::Shadow)]
                    [digits.take(5) as usize],
            },
        }
    }
}
